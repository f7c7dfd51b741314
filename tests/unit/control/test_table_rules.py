"""Filter rules after tables were added or dropped, as a person would write them."""

from __future__ import annotations

import pytest

from rowferry.control.operator.settings.table_rules import (
    deciding_rule,
    with_tables,
    without_tables,
)
from rowferry.flow.decide.table_filter import TableFilter

ADDED = [
    ("a.*", "b.c", "a.* b.c"),
    ("a.*", "a.b", "a.*"),
    ("*.* !a.b", "a.b", "*.*"),
    ("a.* !c.d", "c.d", "a.* c.d"),
    ("*.* !a.*", "a.*", "*.*"),
    ("*.* !a.* b.b", "a.b", "*.* !a.* b.b a.b"),
    ("a.* !a.b", "a.*", "a.* !a.b a.*"),
    ("", "a.b", "*.*"),
    ("A.b", "a.B", "A.b"),
]
DROPPED = [
    ("a.* b.c", "b.c", "a.*"),
    ("a.*", "a.b", "a.* !a.b"),
    ("a.* !a.b", "a.b", "a.* !a.b"),
    ("a.* b.*", "b.*", "a.*"),
    ("*.*", "b.*", "*.* !b.*"),
    ("a.b a.c", "a.*", "a.b a.c !a.*"),
    ("a.* b.c", "c.d", "a.* b.c"),
    ("", "a.b", "*.* !a.b"),
]


@pytest.mark.parametrize(("rules", "pattern", "expected"), ADDED)
def test_added(rules: str, pattern: str, expected: str) -> None:
    found = with_tables(rules.split(), [pattern])
    assert " ".join(found) == expected
    assert with_tables(found, [pattern]) == found
    database, table = pattern.replace("*", "b").split(".")
    assert TableFilter(found).matches_table(database, table)


@pytest.mark.parametrize(("rules", "pattern", "expected"), DROPPED)
def test_dropped(rules: str, pattern: str, expected: str) -> None:
    found = without_tables(rules.split(), [pattern])
    assert " ".join(found) == expected
    assert without_tables(found, [pattern]) == found
    database, table = pattern.replace("*", "b").split(".")
    assert not TableFilter(found).matches_table(database, table)


def test_what_is_added_and_dropped_again_leaves_no_trace() -> None:
    rules = ("shop.*", "!shop.log")
    assert without_tables(with_tables(rules, ["crm.a", "crm.b"]), ["crm.b", "crm.a"]) == rules
    assert with_tables(without_tables(rules, ["shop.a"]), ["shop.a"]) == rules


def test_the_last_rule_that_fits_decides() -> None:
    rules = ["shop.*", "!shop.log*", "shop.log_1"]
    assert deciding_rule(rules, "shop", "orders") == "shop.*"
    assert deciding_rule(rules, "shop", "log_2") == "!shop.log*"
    assert deciding_rule(rules, "shop", "LOG_1") == "shop.log_1"
    assert deciding_rule(rules, "shop", "LOG_1", case_sensitive=True) == "shop.*"
    assert deciding_rule(rules, "crm", "a") is None
