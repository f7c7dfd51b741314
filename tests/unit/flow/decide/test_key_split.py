from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rowferry.change.chunk import Op, Rows, make_rows
from rowferry.change.sqltype import SqlType
from rowferry.change.table import Column, Index, TableId, TableSchema
from rowferry.flow.decide.key_split import split_in_halves

TABLE = TableSchema(
    TableId("shop", "orders"),
    1,
    1,
    (
        Column(1, "ID", SqlType("bigint"), nullable=False),
        Column(2, "code", SqlType("varchar", length=9)),
        Column(3, "raw", SqlType("varbinary", length=9)),
        Column(4, "price", SqlType("double")),
        Column(5, "note", SqlType("text")),
    ),
    (
        Index(1, "PRIMARY", ("id",), unique=True, primary=True),
        Index(2, "u1", ("code", "raw"), unique=True),
        Index(3, "u2", ("price",), unique=True),
        Index(4, "plain", ("note",)),
    ),
)
NAMES = [c.name for c in TABLE.columns]
Image = tuple[Any, ...] | None


def chunk(changes: list[tuple[Image, Image]], table: TableSchema = TABLE) -> Rows:
    def image(row: Image) -> dict[str, Any] | None:
        return None if row is None else dict(zip(NAMES, row, strict=True))

    kinds = [Op.INSERT if b is None else Op.DELETE if a is None else Op.UPDATE for b, a in changes]
    n = len(changes)
    return make_rows(
        table,
        pa.array(kinds, pa.int8()),
        pa.array(range(100, 100 + n), pa.uint64()),
        pa.array(range(7, 7 + n), pa.int64()),
        pa.array([image(b) for b, _ in changes], table.image),
        pa.array([image(a) for _, a in changes], table.image),
        physical_id=5,
    )


def listed(rows: Rows) -> list[tuple[int, int, int, Image, Image]]:
    def image(row: dict[str, Any] | None) -> Image:
        return None if row is None else tuple(row[n] for n in NAMES)

    return [
        (r["op"], r["commit_ts"], r["seq"], image(r["before"]), image(r["after"]))
        for r in rows.batch.to_pylist()
    ]


A = (1, "a", b"x", 1.5, "n")


def split(rows: Rows) -> Rows:
    return split_in_halves(rows)[0]


def test_key_change_becomes_delete_then_insert_in_place() -> None:
    b = (2, *A[1:])
    rows = split(chunk([(None, A), (A, b), (b, None)]))
    assert listed(rows) == [
        (Op.INSERT, 100, 7, None, A),
        (Op.DELETE, 101, 8, A, None),
        (Op.INSERT, 101, 8, None, b),
        (Op.DELETE, 102, 9, b, None),
    ]
    assert rows.physical_id == 5 and rows.table is TABLE
    assert rows.batch.schema == chunk([]).batch.schema
    rows.batch.validate(full=True)


@pytest.mark.parametrize(
    "after",
    [
        (2, "a", b"x", 1.5, "n"),
        (1, "A", b"x", 1.5, "n"),
        (1, "a", b"x ", 1.5, "n"),
        (1, None, b"x", 1.5, "n"),
        (1, "a", b"x", 1.25, "n"),
        (1, "a", b"x", None, "n"),
    ],
)
def test_any_column_of_any_key_counts_in_both_directions(after: Image) -> None:
    assert [r[0] for r in listed(split(chunk([(A, after)])))] == [Op.DELETE, Op.INSERT]
    assert [r[0] for r in listed(split(chunk([(after, A)])))] == [Op.DELETE, Op.INSERT]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (A, (1, "a", b"x", 1.5, "other")),
        ((1, None, None, None, None), (1, None, None, None, "n")),
        ((1, None, None, float("nan"), ""), (1, None, None, float("nan"), "n")),
    ],
)
def test_chunk_without_key_change_is_the_same_object(before: Image, after: Image) -> None:
    rows = chunk([(None, A), (before, after), (A, None)])
    assert split(rows) is rows


def test_no_updates_no_rows_no_keys() -> None:
    for rows in (chunk([]), chunk([(None, A), (A, None)])):
        assert split(rows) is rows
    keyless = TableSchema(TABLE.id, 1, 1, TABLE.columns, TABLE.indexes[3:])
    rows = chunk([(A, (9, *A[1:]))], keyless)
    assert split(rows) is rows


def test_update_without_before_image_is_left_alone() -> None:
    rows = chunk([(None, (2, *A[1:])), (A, (3, *A[1:]))])
    batch = rows.batch.set_column(0, "op", pa.array([Op.UPDATE, Op.UPDATE], pa.int8()))
    assert [r[0] for r in listed(split(Rows(TABLE, batch)))] == [
        Op.UPDATE,
        Op.DELETE,
        Op.INSERT,
    ]


def test_absent_key_column_is_not_compared() -> None:
    rows = chunk([(A, (1, "b", *A[2:]))])
    fields = [f for f in TABLE.image if f.name != "code"]
    images = []
    for image in (rows.before, rows.after):
        images.append(
            pa.StructArray.from_arrays([image.field(f.name) for f in fields], fields=fields)
        )
    cols = [rows.batch.column(n) for n in ("op", "commit_ts", "seq")]
    partial = make_rows(TABLE, *cols, *images)
    assert split(partial) is partial


def test_slice_of_a_larger_batch() -> None:
    b = (2, *A[1:])
    rows = chunk([(A, b), (None, A), (A, A), (b, A)])
    part = Rows(TABLE, rows.batch.slice(1, 3))
    assert [r[:3] for r in listed(split(part))] == [
        (Op.INSERT, 101, 8),
        (Op.UPDATE, 102, 9),
        (Op.DELETE, 103, 10),
        (Op.INSERT, 103, 10),
    ]


ROW = st.tuples(
    st.integers(0, 2),
    st.sampled_from(["a", "b", None]),
    st.sampled_from([b"", b"x", None]),
    st.sampled_from([0.5, None]),
    st.sampled_from(["m", None]),
)
CHANGE = st.one_of(
    st.tuples(st.none(), ROW), st.tuples(ROW, st.none()), st.tuples(ROW, ROW), st.tuples(ROW, ROW)
)


@settings(max_examples=150, deadline=None)
@given(st.lists(CHANGE, max_size=12))
def test_against_row_by_row(changes: list[tuple[Image, Image]]) -> None:
    rows = chunk(changes)
    wanted: list[tuple[int, int, int, Image, Image]] = []
    for kind, ts, seq, before, after in listed(rows):
        if before and after and before[:4] != after[:4]:
            wanted += [(Op.DELETE, ts, seq, before, None), (Op.INSERT, ts, seq, None, after)]
        else:
            wanted.append((kind, ts, seq, before, after))
    assert listed(split(rows)) == wanted
