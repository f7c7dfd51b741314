"""The row hash against the same rules in plain Python, for every column type."""

from __future__ import annotations

import zlib
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from dispatch_kit import chunk, inserts, plain_hashes
from hypothesis import given, settings
from hypothesis import strategies as st

from rowferry.change.chunk import Op, Rows, make_rows
from rowferry.change.sqltype import KINDS, SqlType
from rowferry.change.table import Column, TableId, TableSchema
from rowferry.errors import BadDispatchRule, EncodeError
from rowferry.flow.dispatch import hash_kernels
from rowferry.flow.dispatch.row_hash import row_hashes, table_hash

ELEMENTS = ("x", "y", "z")
FLOATS = (0.0, -0.0, 1.0, -1.5, 0.1, 1e-7, 1e21, 3.4e38, 123456.79)
# Values of each type, and the text that is hashed where it is not plain to see.
VALUES: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(
        ("tinyint", "smallint", "mediumint", "int", "bigint"),
        (0, 7, -1, 127, -128, 99_999_999, 100_000_000, -(1 << 63), (1 << 63) - 1),
    ),
    "year": (0, 1901, 2155),
    "float": FLOATS,
    "double": (*FLOATS, 1.7976931348623157e308, 5e-324),
    "decimal": ("0", "-1.50", "9" * 65),
    "bit": (0, 1, (1 << 64) - 1),
    "enum": (0, 1, 3),
    "set": (0, 5, 7),
    "date": ("0000-00-00", "2026-02-03"),
    "datetime": ("2026-02-03 04:05:06", "2026-02-03 04:05:06.120000"),
    "timestamp": ("2026-02-03 04:05:06.1",),
    "time": ("-838:59:59", "00:00:00.123456"),
    "json": ('{"a": [1, null]}', "null"),
    "vector": ("[1,2]",),
    "uuid": ("00000000-0000-0000-0000-000000000001",),
    "inet4": ("127.0.0.1",),
    "inet6": ("::1",),
}
TEXTS = ("", "a", "exactly8", "Füße 你好", "x" * 100)
BLOBS = (b"", b"\x00\xff", b"12345678", bytes(range(256)))


def kind_of(name: str) -> SqlType:
    return SqlType(name, elements=ELEMENTS if name in ("enum", "set") else ())


def one_column(kind: SqlType, name: str = "Col") -> TableSchema:
    return TableSchema(TableId("Db", "Tab"), 1, 1, (Column(1, name, kind),))


def values_of(kind: SqlType) -> tuple[Any, ...]:
    return VALUES.get(kind.name) or (BLOBS if kind.arrow == pa.large_binary() else TEXTS)


@pytest.mark.parametrize("name", KINDS)
def test_every_type(name: str) -> None:
    table = one_column(kind_of(name))
    rows = inserts(table, *((v,) for v in (*values_of(table.columns[0].type), None)))
    found = row_hashes(rows, table.columns)
    assert found.tolist() == plain_hashes(rows, list(table.columns))
    assert found[-1] == table_hash(table.id) == zlib.crc32(b"DbTab")


def test_unsigned_numbers() -> None:
    table = one_column(SqlType("bigint", unsigned=True))
    powers = [10**e + d for e in range(20) for d in (-1, 0, 1)]
    rows = inserts(table, *((v,) for v in (*powers, (1 << 64) - 1)))
    assert row_hashes(rows, table.columns).tolist() == plain_hashes(rows, list(table.columns))


def test_texts_that_are_hashed() -> None:
    def text(kind: SqlType, value: Any, expected: bytes) -> None:
        table = one_column(kind)
        (found,) = row_hashes(inserts(table, (value,)), table.columns)
        assert int(found) == zlib.crc32(b"DbTab") ^ zlib.crc32(b"Col" + expected)

    text(SqlType("enum", elements=ELEMENTS), 2, b"2")
    text(SqlType("set", elements=ELEMENTS), 5, b"5")
    text(SqlType("bit", length=10), 65, b"65")
    text(SqlType("float"), 3.14, b"3.14")
    text(SqlType("double"), 1e21, b"1000000000000000000000")
    text(SqlType("double"), 1.0, b"1")
    text(SqlType("double"), -0.0, b"0")  # which is the same key as 0, and has the same partition
    text(SqlType("float"), -0.0, b"0")
    text(SqlType("float"), float("nan"), b"0")
    text(SqlType("double"), float("-inf"), b"0")
    text(SqlType("decimal", length=10, scale=2), "1.50", b"1.50")
    text(SqlType("datetime", scale=3), "2026-02-03 04:05:06.120", b"2026-02-03 04:05:06.120")
    text(SqlType("varbinary", length=3), b"\x00\xff", b"\x00\xff")


TABLE = TableSchema(
    TableId("d", "t"),
    1,
    1,
    (
        Column(1, "n", SqlType("bigint")),
        Column(2, "S", SqlType("varchar", length=30)),
        Column(3, "u", SqlType("bigint", unsigned=True)),
        Column(4, "f", SqlType("double")),
        Column(5, "b", SqlType("varbinary", length=30)),
        Column(6, "g", SqlType("float")),
    ),
)
ROW = st.fixed_dictionaries(
    {
        "n": st.none() | st.integers(-(1 << 63), (1 << 63) - 1),
        "S": st.none() | st.text(st.characters(exclude_categories=("Cs",)), max_size=20),
        "u": st.none() | st.integers(0, (1 << 64) - 1),
        "f": st.none() | st.floats(allow_nan=False, allow_infinity=False),
        "b": st.none() | st.binary(max_size=20),
        "g": st.none() | st.floats(width=32, allow_nan=False, allow_infinity=False),
    }
)
CHANGES = st.lists(
    st.one_of(
        st.tuples(st.just(Op.INSERT), st.none(), ROW),
        st.tuples(st.just(Op.UPDATE), ROW, ROW),
        st.tuples(st.just(Op.DELETE), ROW, st.none()),
    ),
    max_size=9,
)


@settings(max_examples=150, deadline=None)
@given(CHANGES, st.sets(st.sampled_from(TABLE.columns), min_size=1), st.data())
def test_any_rows_by_any_columns(
    changes: list[tuple[Op, Any, Any]], columns: set[Column], data: st.DataObject
) -> None:
    rows = chunk(TABLE, *changes)
    start = data.draw(st.integers(0, len(changes)))
    part = Rows(TABLE, rows.batch.slice(start, data.draw(st.integers(0, len(changes) - start))))
    order = data.draw(st.permutations(sorted(columns, key=lambda c: c.id)))
    assert row_hashes(part, order).tolist() == plain_hashes(part, order)


def test_no_rows() -> None:
    rows = chunk(TABLE)
    assert row_hashes(rows, TABLE.columns).tolist() == []
    assert row_hashes(rows, TABLE.columns).dtype == np.uint32


def test_what_did_not_change_may_be_missing_from_the_new_image() -> None:
    after = pa.struct([TABLE.image.field("S")])
    before = {"n": 5, "S": "old", "u": 1, "f": 1.5, "b": b"", "g": 0.5}
    rows = chunk(TABLE, (Op.UPDATE, before, {"S": "new"}), (Op.DELETE, before, None), after=after)
    wanted = [TABLE.column("n"), TABLE.column("S")]
    full = chunk(TABLE, (Op.UPDATE, before, {**before, "S": "new"}), (Op.DELETE, before, None))
    assert row_hashes(rows, wanted).tolist() == plain_hashes(full, wanted)


def test_a_column_that_no_image_has_is_no_way_to_a_partition() -> None:
    """The other changes of the row, which have it, would be in another one."""
    image = pa.struct([TABLE.image.field("S")])
    wanted = [TABLE.column("S"), TABLE.column("n")]
    for one in (
        (Op.INSERT, None, {"S": "x"}),
        (Op.UPDATE, {"S": "w"}, {"S": "x"}),
        (Op.DELETE, {"S": "x"}, None),
    ):
        rows = chunk(TABLE, one, before=image, after=image)
        with pytest.raises(BadDispatchRule, match=r"d\.t: the partition is found by n, which"):
            row_hashes(rows, wanted)
        assert len(row_hashes(rows, wanted[:1])) == 1
    whole = {"n": 5, "S": "x", "u": 1, "f": 1.5, "b": b"", "g": 0.5}
    insert, delete = (Op.INSERT, None, whole), (Op.DELETE, {"S": "x"}, None)
    with pytest.raises(BadDispatchRule):
        row_hashes(chunk(TABLE, insert, delete, before=image), wanted)


def test_a_virtual_column_is_in_no_image_and_makes_no_difference() -> None:
    virtual = replace(TABLE.column("n"), generated="virtual")
    table = replace(TABLE, columns=(virtual, *TABLE.columns[1:]))
    image = pa.struct([TABLE.image.field("S")])
    rows = chunk(table, (Op.INSERT, None, {"S": "x"}), before=image, after=image)
    assert row_hashes(rows, [virtual]).tolist() == [table_hash(TABLE.id)]


# --- damaged chunks ------------------------------------------------------------------------------


def damaged(values: pa.Array) -> Rows:
    image = pa.struct([pa.field("S", pa.large_utf8())])
    table = one_column(SqlType("varchar", length=9), "S")
    count = len(values)
    return make_rows(
        table,
        pa.array([0] * count, pa.int8()),
        pa.array([1] * count, pa.uint64()),
        pa.array(range(count), pa.int64()),
        pa.nulls(count, image),
        pa.StructArray.from_arrays([values], fields=list(image)),
    )


@pytest.mark.parametrize("offsets", [[0, 99, 3], [0, 2, 1, 3], [0, -5, 3]])
def test_text_outside_its_buffer_is_an_error(offsets: list[int]) -> None:
    places = pa.py_buffer(np.array(offsets, np.int64))
    values = pa.LargeStringArray.from_buffers(len(offsets) - 1, places, pa.py_buffer(b"abc"))
    rows = damaged(values)
    with pytest.raises(EncodeError, match=r"Db\.Tab: row \d of a chunk has text outside"):
        row_hashes(rows, rows.table.columns)


def test_a_row_without_its_image_is_an_error() -> None:
    rows = chunk(TABLE, (Op.DELETE, None, None))
    with pytest.raises(EncodeError, match="lacks the image"):
        row_hashes(rows, TABLE.columns)


def test_warm_compiles_everything() -> None:
    """Each kernel has one signature, whoever was first: `warm` or a chunk."""
    row_hashes(inserts(TABLE, (1, "s", 2, 1.5, b"b", 0.5)), TABLE.columns)
    hash_kernels.warm()
    kernels = {n: v for n, v in vars(hash_kernels).items() if hasattr(v, "signatures")}
    again = {n for n, v in kernels.items() if n.startswith("hash") and len(v.signatures) != 1}
    assert "hash_rows" in kernels and again == set()
