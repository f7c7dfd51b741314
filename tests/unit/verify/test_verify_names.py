"""Which tables are compared with which."""

from __future__ import annotations

import pytest

from rowferry.change.table import TableId
from rowferry.downstream.verify.names import Names
from rowferry.downstream.verify.side import open_side
from rowferry.errors import BadFilterRule, BadInput, BadRoute, BadUri


def ids(*names: str) -> list[TableId]:
    return [TableId(*name.split(".")) for name in names]


def test_tables_are_paired_by_name_and_by_route() -> None:
    names = Names.of(["shop.*", "!shop.tmp*"], [])
    assert [names.keeps(n) for n in ids("shop.a", "shop.tmp1", "x.a")] == [True, False, False]
    both, lone, extra = names.pairs(ids("shop.a", "shop.b"), ids("shop.a", "shop.tmp2", "shop.c"))
    assert (both, lone) == ([(*ids("shop.a"), *ids("shop.a"))], ids("shop.b"))
    assert extra == ids("shop.c")
    names = Names.of([], ["shop.old -> *.new", "shop.* -> copy.*"])
    assert [names.target(n) for n in ids("shop.old", "shop.a", "x.a")] == ids(
        "shop.new", "copy.a", "x.a"
    )
    with pytest.raises(BadRoute, match=r"shop\.a and shop\.b are both copy\.all"):
        Names.of([], ["shop.* -> copy.all"]).pairs(ids("shop.a", "shop.b"), [])


@pytest.mark.parametrize("text", ["a.b", "a.* -> b", "-> b.*", "a.* -> b*.*", "a -> b.c"])
def test_a_route_that_cannot_be_read(text: str) -> None:
    with pytest.raises(BadRoute, match="--route"):
        Names.of([], [text])


def test_sides_that_cannot_be_compared() -> None:
    with pytest.raises(BadFilterRule):
        Names.of(["nothing"], [])
    for uri in ("kafka://host/topic", "mysql://host:3306/", "mysql://root@host/db"):
        with pytest.raises(BadUri):
            open_side(uri, 10)
    with pytest.raises(BadInput):
        open_side("mysql://root@host/?colour=red", 10)
