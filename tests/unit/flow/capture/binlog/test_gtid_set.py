"""MySQL's GTID sets: text, wire form, and what is refused."""

from __future__ import annotations

import pytest

from rowferry.errors import BadOption
from rowferry.flow.capture.binlog.client.gtid import GtidPosition, GtidSet, parse_gtids
from rowferry.mysql.session import Flavour

A = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
B = "4f22fb58-82db-22f2-af44-d91bba530673"


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("", ""),
        (" \n", ""),
        (f"{A}:1", f"{A}:1"),
        (f"{A}:1-5", f"{A}:1-5"),
        (f"{A}:7:1-5:6", f"{A}:1-7"),
        (f"{A}:1-5:9-12:7", f"{A}:1-5:7:9-12"),
        (f"{A}:5-9:1-6", f"{A}:1-9"),
        (f"{B}:1,\n{A}:2", f"{A}:2,{B}:1"),
        (f"{A}:1,,{A}:3,", f"{A}:1:3"),
        (A.upper() + ":1 - 3", f"{A}:1-3"),
        (A.replace("-", "") + ":4", f"{A}:4"),
        (f"{A}:1-3:blue:2:7-8:red:1", f"{A}:1-3:blue:2:7-8:red:1"),
        (f"{A}:red:1,{A}:1,{A}:blue:1", f"{A}:1:blue:1:red:1"),
        (f"{A}:Blue:1", f"{A}:blue:1"),
        (f"{A}:1-{2**63 - 2}", f"{A}:1-{2**63 - 2}"),
    ],
)
def test_text_is_read_and_printed_canonically(text: str, canonical: str) -> None:
    found = GtidSet.parse(text)
    assert str(found) == canonical
    assert GtidSet.parse(canonical) == found
    assert hash(GtidSet.parse(canonical)) == hash(found)


@pytest.mark.parametrize(
    "text",
    [
        "nonsense",
        A,
        f"{A}:",
        f"{A}:0",
        f"{A}:5-3",
        f"{A}:-3",
        f"{A}:1-",
        f"{A}:{2**63 - 1}",
        f"{A}:blue",
        f"{A}:1:blue",
        f"{A}:blue:red:1",
        f"{A}:{'x' * 33}:1",
        f"{A}:1-2-3",
        f"{A[:-1]}:1",
        f"{A[:-1]}g:1",
        "0-1-100",
        f"{A}:1;{B}:1",
    ],
)
def test_what_is_no_set_is_refused_by_name(text: str) -> None:
    with pytest.raises(BadOption) as caught:
        parse_gtids(f"{B}:1-9,{text}", Flavour.MYSQL)
    assert text.lower().split(":")[0] in str(caught.value).lower()
    assert "UUID:1-77" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_adding_leaves_the_old_set_alone() -> None:
    before = GtidSet.parse(f"{A}:1-5")
    after = before.add(A, 6).add(bytes.fromhex(B.replace("-", "")), 1).add(A, 1, "blue")
    assert str(before) == f"{A}:1-5"
    assert str(after) == f"{A}:1-6:blue:1,{B}:1"
    assert after.holds(A, 6) and not after.holds(A, 7) and not after.holds(A, 0)
    assert after.holds(A, 1, "blue") and not after.holds(A, 2, "blue")
    assert after.contains(before) and not before.contains(after)


def test_a_gap_is_closed() -> None:
    assert str(GtidSet.parse(f"{A}:1-3:5-7").add(A, 4)) == f"{A}:1-7"


def test_sets_are_joined_and_taken_apart() -> None:
    one, other = GtidSet.parse(f"{A}:1-10,{B}:1:t:5"), GtidSet.parse(f"{A}:3-4:8:12,{B}:t:5")
    assert str(one.union(other)) == f"{A}:1-10:12,{B}:1:t:5"
    assert str(one.minus(other)) == f"{A}:1-2:5-7:9-10,{B}:1"
    assert one.minus(one).is_empty and not one.is_empty


def test_the_other_kind_of_position_is_never_contained() -> None:
    assert not GtidSet.parse(f"{A}:1").contains(GtidPosition())
    assert not GtidPosition.parse("0-1-1").contains(GtidSet())


def test_the_wire_form_without_tags() -> None:
    encoded = GtidSet.parse(f"{A}:1-5:9").encode()
    assert encoded.hex() == (
        "0100000000000000"  # one source
        + A.replace("-", "")
        + "0200000000000000"  # two intervals, ends exclusive
        + "01000000000000000600000000000000"
        + "09000000000000000a00000000000000"
    )
    assert GtidSet().encode() == bytes(8)


def test_the_wire_form_with_tags() -> None:
    encoded = GtidSet.parse(f"{A}:1:ab:2").encode()
    assert encoded.hex() == (
        "0102000000000001"  # the form in the first and last byte, two sources between
        + A.replace("-", "")
        + "00"  # no tag
        + "0100000000000000"
        + "01000000000000000200000000000000"
        + A.replace("-", "")
        + "046162"  # twice the length, then the tag
        + "0100000000000000"
        + "02000000000000000300000000000000"
    )
