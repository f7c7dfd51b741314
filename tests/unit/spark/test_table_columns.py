"""Chunks become columns of Spark types: every kind of column, every kind of change."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from rowferry.change.chunk import Op, Rows, make_rows
from rowferry.change.sqltype import SqlType
from rowferry.change.table import Column, Index, TableId, TableSchema
from rowferry.errors import CorruptLog, SourceUnsupported, TableAltered
from rowferry.flow.decide.key_split import split_in_halves
from rowferry.flow.sink.lake.columns import LakeColumns
from rowferry.spark.table_columns import as_batches, change_schema, same_columns


def table(*types: SqlType, names: str = "abcdefgh", version: int = 1) -> TableSchema:
    columns = tuple(Column(i, n, t) for i, (n, t) in enumerate(zip(names, types, strict=False), 1))
    return TableSchema(TableId("d", "t"), 7, version, columns)


def chunk(of: TableSchema, *changes: tuple[Op, Any, Any]) -> Rows:
    """Return a chunk of (op, before, after); images are tuples by column."""
    names = [c.name for c in of.columns]

    def images(found: list[Any]) -> pa.StructArray:
        return pa.array([i and dict(zip(names, i, strict=True)) for i in found], of.image)

    ops, before, after = zip(*changes, strict=True)
    count = len(changes)
    return make_rows(
        of,
        pa.array([int(o) for o in ops], pa.int8()),
        pa.array([1 << 60] * count, pa.uint64()),
        pa.array(range(count), pa.int64()),
        images(list(before)),
        images(list(after)),
    )


def converted(rows: Rows, native: bool = False, now: TableSchema | None = None) -> list[Any]:
    wanted = change_schema(now or rows.table, native)
    batches = list(as_batches(rows, wanted, native))
    assert all(b.schema == wanted for b in batches)
    return pa.Table.from_batches(batches, wanted).to_pylist()


def values(kind: SqlType, *given: Any, native: bool = False) -> list[Any]:
    of = table(kind)
    return [r["a"] for r in converted(chunk(of, *((Op.INSERT, None, (v,)) for v in given)), native)]


BIG = 2**64 - 1


@pytest.mark.parametrize(
    ("kind", "given", "found", "arrow"),
    [
        (SqlType("int"), [-5, None], [-5, None], pa.int64()),
        (SqlType("int", unsigned=True), [2**32 - 1], [2**32 - 1], pa.int64()),
        (SqlType("bigint"), [-(2**63)], [-(2**63)], pa.int64()),
        (SqlType("bigint", unsigned=True), [BIG, 0], [Decimal(BIG), 0], pa.decimal128(20, 0)),
        (SqlType("year"), [2024, 0], [2024, 0], pa.int64()),
        (SqlType("float"), [1.5], [1.5], pa.float32()),
        (SqlType("double"), [1e300], [1e300], pa.float64()),
        (SqlType("decimal", length=5, scale=2), ["-0.50"], [Decimal("-0.50")], None),
        (SqlType("decimal", length=38), ["9" * 38], [Decimal("9" * 38)], None),
        (SqlType("decimal", length=39), ["9" * 39], ["9" * 39], pa.string()),
        (SqlType("bit", length=63), [2**63 - 1], [2**63 - 1], pa.int64()),
        (SqlType("bit", length=64), [BIG], [Decimal(BIG)], pa.decimal128(20, 0)),
        (SqlType("enum", elements=("x", "y")), [2, 0, None], ["y", "", None], pa.string()),
        (SqlType("set", elements=("x", "y", "z")), [5, 0, None], ["x,z", "", None], pa.string()),
        (SqlType("text"), ["é🚢", ""], ["é🚢", ""], pa.string()),
        (SqlType("blob"), [b"\x00\xff"], [b"\x00\xff"], pa.binary()),
        (SqlType("json"), ['{"a": 1}'], ['{"a": 1}'], pa.string()),
        (SqlType("time"), ["-838:59:59"], ["-838:59:59"], pa.string()),
        (SqlType("date"), ["0000-00-00"], ["0000-00-00"], pa.string()),
    ],
    ids=lambda v: v.sql if isinstance(v, SqlType) else "",
)
def test_every_kind(kind: SqlType, given: list[Any], found: list[Any], arrow: Any) -> None:
    assert values(kind, *given) == found
    if arrow is not None:
        assert change_schema(table(kind), False).field("a").type == arrow


def test_a_set_of_64_elements_uses_all_bits() -> None:
    names = tuple(f"n{i}" for i in range(64))
    assert values(SqlType("set", elements=names), BIG, 1 << 63) == [",".join(names), "n63"]


def test_an_element_that_does_not_exist_is_refused() -> None:
    with pytest.raises(CorruptLog, match=r"d\.t, column 'a' holds element 3 of 2"):
        values(SqlType("enum", elements=("x", "y")), 1, 3)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("2024-02-29", date(2024, 2, 29)),
        ("0001-01-01", date(1, 1, 1)),
        ("9999-12-31", date(9999, 12, 31)),
        ("1969-12-31", date(1969, 12, 31)),
        ("1900-03-01", date(1900, 3, 1)),
        ("2023-02-29", None),
        ("1900-02-29", None),
        ("2024-00-10", None),
        ("2024-01-00", None),
        ("2024-13-01", None),
        ("0000-01-01", None),
        ("0000-00-00", None),
        (None, None),
    ],
)
def test_native_dates(text: str | None, found: date | None) -> None:
    assert values(SqlType("date"), "2000-01-01", text, native=True) == [date(2000, 1, 1), found]


def test_native_times_keep_their_fraction() -> None:
    given = ["1000-01-01 00:00:00.000000", "9999-12-31 23:59:59.999999", "0000-00-00 00:00:00"]
    found = values(SqlType("datetime", scale=6), *given, None, native=True)
    last = datetime(9999, 12, 31, 23, 59, 59, 999999)
    assert found == [datetime(1000, 1, 1), last, None, None]
    found = values(SqlType("timestamp", scale=3), "2038-01-19 03:14:07.999", native=True)
    assert found == [datetime(2038, 1, 19, 3, 14, 7, 999000, UTC)]
    assert values(SqlType("datetime"), "1969-12-31 23:59:59", native=True) == [
        datetime(1969, 12, 31, 23, 59, 59)
    ]


def test_a_slice_of_a_chunk_is_read_at_its_place() -> None:
    whole = chunk(
        table(SqlType("datetime")),
        *((Op.INSERT, None, (f"2024-01-0{d} 00:00:00",)) for d in range(1, 6)),
    )
    part = Rows(whole.table, whole.batch.slice(2, 2))
    assert [r["a"].day for r in converted(part, native=True)] == [3, 4]


def test_changes_have_their_images() -> None:
    of = table(SqlType("int"), SqlType("varchar", length=9))
    found = converted(
        chunk(
            of,
            (Op.INSERT, None, (1, "x")),
            (Op.UPDATE, (1, "x"), (1, None)),
            (Op.DELETE, (1, None), None),
        )
    )
    before, gone = {"a": 1, "b": "x"}, {"a": 1, "b": None}
    assert [(r["_op"], r["a"], r["b"], r["_before"]) for r in found] == [
        ("insert", 1, "x", None),
        ("update", 1, None, before),
        ("delete", 1, None, gone),
    ]
    assert [r["_seq"] for r in found] == [1, 3, 4]
    assert {r["_commit_ts"] for r in found} == {1 << 60}


def test_halves_of_an_update_that_changes_a_unique_key_have_an_order() -> None:
    """They may have one primary key: its last change is the insert, here and in a lake's log."""
    unique = Index(2, "u", ("b",), unique=True)
    of = replace(table(SqlType("int"), SqlType("int")), indexes=(unique,))
    halves, _ = split_in_halves(chunk(of, (Op.UPDATE, (1, 5), (1, 6))))
    deleted, inserted = converted(halves)
    assert (deleted["_op"], inserted["_op"]) == ("delete", "insert")
    assert deleted["_seq"] < inserted["_seq"]
    first, second = LakeColumns("changelog", "null").changes(halves)[2].to_pylist()
    assert first < second


def test_a_large_chunk_comes_in_pieces() -> None:
    of = table(SqlType("longblob"))
    rows = chunk(of, *((Op.INSERT, None, (bytes(300_000),)) for _ in range(10)))
    batches = list(as_batches(rows, change_schema(of, False), False))
    assert [b.num_rows for b in batches] == [3, 3, 3, 1]
    assert [s for b in batches for s in b.column("_seq").to_pylist()] == list(range(1, 20, 2))


def test_no_rows_are_no_batch() -> None:
    of = table(SqlType("int"))
    rows = chunk(of, (Op.INSERT, None, (1,)))
    empty = Rows(of, rows.batch.slice(0, 0))
    assert list(as_batches(empty, change_schema(of, False), False)) == []


def test_rows_of_before_an_alteration_have_the_columns_of_now() -> None:
    old = table(SqlType("int"), SqlType("int"), SqlType("float"), names="Abx")
    now = table(SqlType("bigint"), SqlType("varchar", length=9), SqlType("int"), names="abn")
    (found,) = converted(chunk(old, (Op.DELETE, (1, 2, 0.5), None)), now=now)
    image = {"a": 1, "b": "2", "n": None}
    assert found["_before"] == image
    assert {k: found[k] for k in image} == image


def test_a_column_that_may_have_another_name_now_is_not_called_null() -> None:
    old, now = (table(SqlType("int"), SqlType("varchar", length=9), names=n) for n in ("ab", "ac"))
    rows = chunk(old, (Op.INSERT, None, (1, "x")))
    with pytest.raises(TableAltered, match="had a column 'b' .* and has 'c' of the same type now"):
        converted(rows, now=now)
    gone = table(SqlType("int"), names="a")
    assert converted(rows, now=gone)[0]["a"] == 1
    assert converted(chunk(gone, (Op.INSERT, None, (1,))), now=now)[0]["c"] is None


def test_a_value_that_does_not_fit_the_type_of_now_is_told() -> None:
    old, now = table(SqlType("varchar", length=9), version=99), table(SqlType("int"))
    assert converted(chunk(old, (Op.INSERT, None, ("12",))), now=now)[0]["a"] == 12
    with pytest.raises(TableAltered, match=r"column 'a' was varchar\(9\) at commit-ts 99"):
        converted(chunk(old, (Op.INSERT, None, ("x",))), now=now)


def test_virtual_columns_are_left_out() -> None:
    of = table(SqlType("int"))
    more = Column(2, "v", SqlType("int"), generated="virtual")
    of = TableSchema(of.id, 7, 1, (*of.columns, more))
    (found,) = converted(chunk(of, (Op.INSERT, None, (1, 2))))
    assert list(found) == ["a", "_op", "_commit_ts", "_commit_time", "_seq", "_before"]


def test_the_time_of_a_commit_is_that_of_its_ts() -> None:
    rows = chunk(table(SqlType("int")), (Op.INSERT, None, (1,)))
    at = datetime(2026, 2, 3, 4, 5, 6, 789_000, UTC)
    ms = round(at.timestamp() * 1000)
    stamped = make_rows(
        rows.table,
        rows.batch.column("op"),
        pa.array([(ms << 18) + 5], pa.uint64()),
        rows.batch.column("seq"),
        rows.before,
        rows.after,
    )
    (found,) = converted(stamped)
    assert (found["_commit_ts"], found["_commit_time"]) == ((ms << 18) + 5, at)


def test_a_column_with_a_name_of_ours_is_refused() -> None:
    of = TableSchema(TableId("d", "t"), 7, 1, (Column(1, "_OP", SqlType("int")),))
    with pytest.raises(SourceUnsupported, match="'_op'"):
        change_schema(of, False)


def test_schemas_are_compared_by_names_and_types() -> None:
    one = change_schema(table(SqlType("int")), False)
    strict = pa.schema([f.with_nullable(False) for f in one])
    assert same_columns(one, strict)
    assert same_columns(one, change_schema(table(SqlType("bigint")), False))
    assert not same_columns(one, change_schema(table(SqlType("double")), False))
    assert not same_columns(one, change_schema(table(SqlType("int"), names="z"), False))
