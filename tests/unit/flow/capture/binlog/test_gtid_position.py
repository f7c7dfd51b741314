"""MariaDB's GTID positions: text, order, and what is refused."""

from __future__ import annotations

import pytest

from rowferry.errors import BadOption
from rowferry.flow.capture.binlog.client.gtid import GtidPosition, parse_gtids
from rowferry.mysql.session import Flavour


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("", ""),
        ("0-1-100", "0-1-100"),
        ("10-2-7, 2-1-5\n", "2-1-5,10-2-7"),
        (f"{2**32 - 1}-{2**32 - 1}-{2**64 - 1}", f"{2**32 - 1}-{2**32 - 1}-{2**64 - 1}"),
    ],
)
def test_text_is_read_and_printed_canonically(text: str, canonical: str) -> None:
    found = parse_gtids(text, Flavour.MARIADB)
    assert str(found) == canonical
    assert GtidPosition.parse(canonical) == found
    assert hash(GtidPosition.parse(canonical)) == hash(found)


@pytest.mark.parametrize(
    "text",
    ["nonsense", "0-1", "0-1-2-3", f"{2**32}-1-1", f"0-1-{2**64}", "-1-1-1", "0-1-1;1-1-1"]
    + ["3e11fa47-71ca-11e1-9e33-c80aa9429562:1-5"],
)
def test_what_is_no_position_is_refused_by_name(text: str) -> None:
    with pytest.raises(BadOption) as caught:
        parse_gtids(f"7-1-1,{text}", Flavour.MARIADB)
    assert text in str(caught.value)
    assert "DOMAIN-SERVER-NUMBER" in str(caught.value)


def test_a_domain_twice_is_refused() -> None:
    with pytest.raises(BadOption, match="domain 3 twice"):
        GtidPosition.parse("3-1-5,3-2-6")


def test_adding_leaves_the_old_position_alone() -> None:
    before = GtidPosition.parse("0-1-5")
    after = before.add(0, 2, 6).add(1, 1, 1)
    assert str(before) == "0-1-5"
    assert str(after) == "0-2-6,1-1-1"
    assert after.contains(before) and not before.contains(after)
    assert after.holds(0, 6) and not after.holds(0, 7) and not after.holds(2, 1)
    assert GtidPosition().is_empty and not before.is_empty


def test_what_is_ahead() -> None:
    ours, theirs = GtidPosition.parse("0-1-9,1-1-5,2-1-1"), GtidPosition.parse("0-1-9,1-2-4")
    assert str(ours.minus(theirs)) == "1-1-5,2-1-1"
