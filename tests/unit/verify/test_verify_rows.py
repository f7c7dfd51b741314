"""Rows side by side: as which values they are compared, and what is found to differ."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from rowferry.change.table import TableSchema
from rowferry.downstream.verify.comparison import A, B, Comparison, compare_tables
from rowferry.downstream.verify.work import (
    EQUAL,
    Differences,
    Sums,
    bucket_count,
    compare,
    groups_of,
    joined,
    measure,
    pick,
)
from rowferry.errors import BadOption
from rowferry.mysql.ddl.statement import parse_create


def schema(columns: str, name: str = "d.t") -> TableSchema:
    return parse_create(f"CREATE TABLE {name} ({columns})")


def sided(a: str, b: str, *ignored: str) -> Comparison:
    one, two = schema(a), schema(b)
    return compare_tables(one, two, (one.handle_key, two.handle_key), ignored)


def rows(table: TableSchema, *values: tuple[Any, ...]) -> pa.Table:
    columns = zip(*values, strict=True) if values else ([] for _ in table.columns)
    fields = pa.schema([pa.field(c.name, c.type.arrow) for c in table.columns])
    return pa.table(dict(zip(fields.names, map(list, columns), strict=True)), schema=fields)


def found(comparison: Comparison, a: pa.Table, b: pa.Table, buckets: int = 4) -> Differences:
    """Compare as tasks do: sums, then the rows of what differs."""
    sums = [measure(comparison, s, buckets, [t]) for s, t in ((A, a), (B, b))]
    groups = groups_of(sums[A], sums[B], 1000)
    sides = []
    for side, table in ((A, a), (B, b)):
        frames = [frame for _, frame in pick(comparison, side, groups, [table])]
        sides.append(joined(comparison, side, frames))
    return Differences.from_bytes(compare(comparison, sides[A], sides[B]).to_bytes())


@pytest.mark.parametrize(
    ("a", "b", "equal", "other"),
    [
        ("int", "bigint unsigned", (5, 5), (-1, (1 << 64) - 1)),
        ("float", "double", (0.5, 0.5), (0.5, 0.25)),
        ("double", "double", (0.0, -0.0), (1e300, 1e299)),
        ("decimal(10,2)", "decimal(12,4)", ("1.50", "1.5000"), ("1.50", "1.0500")),
        ("decimal(10,0)", "int", ("100", 100), ("100", 10)),
        ("datetime", "datetime(3)", ("2024-01-10 00:00:00", "2024-01-10 00:00:00.000"),
         ("2024-01-10 00:00:00", "2024-01-10 00:00:00.010")),
        ("enum('x','y')", "enum('y','x')", (1, 2), (1, 1)),
        ("enum('x','y')", "varchar(9)", (2, "y"), (2, "Y")),
        ("json", "longtext", ('{"a": 1, "b": [2]}', '{"b":[2],"a":1}'), ("[1]", "[1,1]")),
        ("varchar(9)", "text", ("ä", "ä"), ("ä", "a")),
        ("varbinary(9)", "blob", (b"\0a", b"\0a"), (b"a\0", b"a")),
        ("varchar(9)", "varchar(9)", (None, None), (None, "")),
        ("int", "int", (None, None), (None, 0)),
    ],
)  # fmt: skip
def test_values_are_compared_by_what_they_mean(
    a: str, b: str, equal: tuple[Any, Any], other: tuple[Any, Any]
) -> None:
    comparison = sided(f"id int primary key, v {a}", f"v {b}, id int primary key")
    one, two = comparison.schemas
    whole = rows(one, (1, equal[A]), (2, equal[A])), rows(two, (equal[B], 2), (equal[B], 1))
    assert len(found(comparison, *whole)) == 0
    sums = [measure(comparison, side, 4, [whole[side]]) for side in (A, B)]
    assert (groups_of(sums[A], sums[B], 10) == EQUAL).all()
    differ = found(comparison, rows(one, (1, other[A])), rows(two, (other[B], 1)))
    assert (differ.only[A].num_rows, differ.only[B].num_rows) == (0, 0)
    assert list(comparison.differing(*differ.changed)) == ["v"]


def test_what_is_left_of_rows_with_a_key() -> None:
    comparison = sided("a int, b varchar(9), v int, primary key (a, b)", "a int, b varchar(9), v "
                       "int, primary key (b, a)")  # fmt: skip
    one, two = comparison.schemas
    same = [(n, "x", n) for n in range(500)]
    a = rows(one, *same, (1000, "a", 1), (1001, "a", 1), (1002, "a", None))
    b = rows(two, *same[::-1], (1001, "a", 2), (1002, "a", None), (1001, "A", 1))
    differ = found(comparison, a, b)
    names = ["a", "b", "v"]
    assert differ.only[A].select(names).to_pylist() == [{"a": 1000, "b": "a", "v": 1}]
    assert differ.only[B].select(names).to_pylist() == [{"a": 1001, "b": "A", "v": 1}]
    assert differ.changed[A].select(names).to_pylist() == [{"a": 1001, "b": "a", "v": 1}]
    assert differ.changed[B].select(names).to_pylist() == [{"a": 1001, "b": "a", "v": 2}]
    assert len(differ.among(differ.keys[:1])) == 1
    # Values that change places between rows, and between columns, are seen.
    assert len(found(comparison, rows(one, (1, "x", 2), (2, "x", 1)),
                     rows(two, (1, "x", 1), (2, "x", 2)))) == 2  # fmt: skip
    swapped = sided("id int primary key, v int, w int", "id int primary key, v int, w int")
    one, two = swapped.schemas
    assert len(found(swapped, rows(one, (1, 2, 3)), rows(two, (1, 3, 2)))) == 1


def test_rows_without_a_key_are_counted() -> None:
    comparison = sided("v int, w int", "v int, w int")
    one, two = comparison.schemas
    a = rows(one, (1, 1), (1, 1), (1, 1), (2, 2), (None, 1))
    b = rows(two, (1, 1), (2, 2), (2, 2), (None, 1))
    differ = found(comparison, a, b)
    assert [t.num_rows for t in (*differ.only, differ.changed[A])] == [2, 1, 0]
    assert differ.only[A].column("v").to_pylist() == [1, 1]
    # Where keys are not the same on both sides, rows are counted, too.
    assert sided("a int primary key, b int", "a int, b int primary key").key == ()


def test_columns_that_one_side_lacks_or_that_are_ignored() -> None:
    comparison = sided(
        "id int primary key, Name int, x int, g int as (id + 1) virtual, _tmp int",
        "id int primary key, name int, y int",
        "_*",
    )
    assert (comparison.names, comparison.lone) == (("id", "Name"), (("x",), ("y",)))
    with pytest.raises(BadOption, match="'id' is a part of the key"):
        sided("id int primary key, v int", "id int primary key, v int", "i*")
    with pytest.raises(BadOption, match="no column to compare"):
        sided("a int", "b int")
    with pytest.raises(BadOption, match="--ignore-columns"):
        sided("a int", "a int", "[")


def test_groups_have_a_bounded_size() -> None:
    a, b = Sums.empty(8), Sums.empty(8)
    keys = np.arange(800, dtype=np.uint64)
    a.add(keys, keys)
    b.add(keys[:400], keys[:400] + np.uint64(1))
    groups = groups_of(a, b, 100)
    assert groups.min() == 0 and len(np.unique(groups)) > 3
    for group in np.unique(groups):
        assert (a.counts + b.counts)[groups == group].sum() <= 200 + 150
    b = Sums.from_bytes(a.to_bytes())
    assert (groups_of(a, b, 100) == EQUAL).all()
    b.merge(a)
    assert (groups_of(a, b, 100) != EQUAL).all()
    assert [bucket_count(n, 1000) for n in (0, 300_000, 1 << 40)] == [256, 512, 1 << 16]
