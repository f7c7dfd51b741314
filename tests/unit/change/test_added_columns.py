"""A column that was added keeps what older rows have in it, whatever becomes of its default."""

from __future__ import annotations

from dataclasses import replace
from itertools import count

import pytest

from rowferry.change.table import Column, TableSchema
from rowferry.mysql.ddl.statement import parse_create, plan_ddl


def after(*statements: str) -> TableSchema:
    table = parse_create("CREATE TABLE d.t (id int PRIMARY KEY, n int DEFAULT 5)")
    ids = count(100)
    for number, sql in enumerate(statements, 1):
        (change,) = plan_ddl(sql, "d", {table.id: table}, lambda: next(ids))
        assert change.schema is not None
        table = replace(change.schema, version=number)
    return table


@pytest.mark.parametrize(
    "later",
    [
        "ALTER TABLE t MODIFY COLUMN v bigint NULL",
        "ALTER TABLE t MODIFY COLUMN v bigint NULL DEFAULT 9",
        "ALTER TABLE t CHANGE COLUMN v v bigint",
        "ALTER TABLE t ALTER COLUMN v SET DEFAULT 9",
        "ALTER TABLE t ALTER COLUMN v DROP DEFAULT",
    ],
)
def test_older_rows_keep_the_first_default(later: str) -> None:
    assert after("ALTER TABLE t ADD COLUMN v int DEFAULT 7", later).column("v").filled == 7


def test_older_rows_stay_null_where_the_default_came_later() -> None:
    later = "ALTER TABLE t ALTER COLUMN v SET DEFAULT 9"
    found = after("ALTER TABLE t ADD COLUMN v int", later).column("v")
    assert (found.filled, found.default) == (None, 9)


def test_a_column_from_the_beginning_has_nothing_to_fill() -> None:
    assert after().column("n").filled is None


def test_the_json_form_keeps_it() -> None:
    found = after("ALTER TABLE t ADD COLUMN v int DEFAULT 7").column("v")
    assert Column.from_json(found.to_json()) == found
