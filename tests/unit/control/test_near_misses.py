"""What a person may have meant whose filter fits nothing."""

from __future__ import annotations

import pytest

from rowferry.change.table import TableId
from rowferry.control.operator.checks.near_misses import near_misses

TABLES = [
    TableId("shop", "orders"),
    TableId("shop", "order_items"),
    TableId("Crm", "customers"),
]


@pytest.mark.parametrize(
    ("rules", "found"),
    [
        (["shp.*"], ["shop.*"]),
        (["shop.order"], ["shop.orders", "shop.order_items"]),
        (["crm.customer"], ["Crm.customers"]),
        (["`shopp`.`ord*`"], ["shop.ord*"]),
        (["elsewhere.thing"], []),
        (["!shp.*", "/^shp$/.*", "@file", "word"], []),
        (["shop.zzz*"], []),  # the database is there: it is the rest that fits nothing
    ],
)
def test_names_like_the_rules(rules: list[str], found: list[str]) -> None:
    assert near_misses(rules, TABLES) == found
