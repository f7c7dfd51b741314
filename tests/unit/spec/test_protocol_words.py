"""What is said of protocols: the list shows what can be used, and nothing listed is unknown."""

from __future__ import annotations

import pytest

from rowferry.errors import BadOption
from rowferry.flow.assemble import sink_traits
from rowferry.names import protocols
from rowferry.registry import load_format
from rowferry.spec.sink_traits import check_protocol
from rowferry.spec.ticdc_keys import PROTOCOLS_ELSEWHERE


def check(name: str) -> str:
    return check_protocol(sink_traits("kafka"), "kafka", name)


def test_every_protocol_that_is_listed_can_be_used() -> None:
    for name in protocols():
        assert check(name) == name
        assert load_format(name).TABLES


@pytest.mark.parametrize("name", PROTOCOLS_ELSEWHERE)
def test_a_protocol_that_is_elsewhere_says_so(name: str) -> None:
    with pytest.raises(BadOption, match=f"'{name}' is known to TiCDC and cannot be used here") as e:
        check(name)
    listed = e.value.words.rpartition("use one of ")[2].split(", ")
    assert listed == protocols()


def test_an_unknown_protocol_lists_none_that_cannot_be_used() -> None:
    with pytest.raises(BadOption) as e:
        check("xml")
    assert not any(name in e.value.words for name in PROTOCOLS_ELSEWHERE)
