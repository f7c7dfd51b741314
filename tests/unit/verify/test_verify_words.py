"""What a comparison says: never equal where the counts differ."""

from __future__ import annotations

import io

import pyarrow as pa
from rich.console import Console

from rowferry.change.sqltype import SqlType
from rowferry.change.table import Column, Index, TableId, TableSchema
from rowferry.downstream.verify.run import TableResult, _Pair
from rowferry.face.cli.downstream.verify import _summary, _tell

NAME = TableId("shop", "orders")


def said(result: TableResult) -> list[str]:
    out = Console(file=io.StringIO(), width=200)
    _tell(out, result)
    _summary(out, [result])
    assert isinstance(out.file, io.StringIO)
    return out.file.getvalue().splitlines()


def test_a_side_that_changes_is_told() -> None:
    moving = TableResult(NAME, NAME, (100, 98))
    assert moving.is_changing and not moving.is_equal
    assert moving.to_json()["equal"] is False and moving.to_json()["changing"] is True
    assert said(moving) == [
        "shop.orders: changing, 100 rows in A, 98 in B; a side was written to meanwhile, and no "
        "row differs; stop the writers, or use --online",
        "1 table compared, 1 written to meanwhile",
    ]
    online = TableResult(NAME, NAME, (100, 98), tries=3, online=True)
    assert online.is_equal and online.is_changing
    first, last = said(online)
    assert first.startswith("shop.orders: in step, 100 rows in A, 98 in B; after 3 tries; a side")
    assert "equal" not in first and last == "1 table compared, 1 written to meanwhile"


def test_words_of_tables_that_stand_still() -> None:
    assert said(TableResult(NAME, NAME, (7, 7))) == [
        "shop.orders: equal, 7 rows",
        "1 table compared, all equal",
    ]
    lost = TableResult(NAME, NAME, (7, 6), only=[1, 0])
    assert not lost.is_changing and not lost.is_equal
    assert said(lost)[1] == "1 table compared, 1 different"


def test_enums_and_sets_are_shown_by_name() -> None:
    columns = (
        Column(1, "id", SqlType("bigint")),
        Column(2, "size", SqlType("enum", elements=("small", "large"))),
        Column(3, "tags", SqlType("set", elements=("a", "b", "c"))),
    )
    schema = TableSchema(NAME, 1, 1, columns, (Index(1, "PRIMARY", ("id",), True, True),))
    pair = _Pair.__new__(_Pair)
    pair._schemas = (schema, schema)
    rows = pa.table(
        {
            "id": pa.array([7], pa.int64()),
            "size": pa.array([2], pa.uint64()),
            "tags": pa.array([5], pa.uint64()),
        }
    )
    assert [pair._value(0, c, rows, 0) for c in columns] == [7, "large", "a,c"]
    nulls = pa.table({"tags": pa.array([None], pa.uint64())})
    assert pair._value(1, columns[2], nulls, 0) is None
