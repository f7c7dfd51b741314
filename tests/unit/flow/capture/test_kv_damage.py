"""Bytes that are no rows: an error that names the place, never a crash."""

from __future__ import annotations

import random
import struct

import numpy as np
import pyarrow as pa
import pytest

from rowferry.change.sqltype import SqlType
from rowferry.change.table import Column, Index, TableId, TableSchema
from rowferry.errors import BadInput, CorruptLog
from rowferry.flow.capture.range_log.kv import RowDecoder
from rowferry.mysql.type_facts import TYPE_FACTS
from rowferry.refstore.rows.kv_encode import encode_rows

PREFIX = "748000000000000001" + "5f72"
ROW_1 = PREFIX + "8000000000000001"
TYPES = [
    SqlType(name, scale=3)
    if name in ("datetime", "timestamp", "time", "vector")
    else SqlType(name, length=20, scale=3, elements=("a", "b"))
    for name in TYPE_FACTS
]
VALUES = {
    "decimal": "-12345.678",
    "date": "2020-01-02",
    "datetime": "2020-01-02 03:04:05.678",
    "timestamp": "2020-01-02 03:04:05.678",
    "time": "-123:04:05.678",
    "json": '{"a": [1, 2.5, null, {"b": "text"}], "c": -1}',
    "vector": "[1,2.5,-3]",
    "float": 1.5,
    "double": -2.5e100,
    "year": 2024,
}


def table(*types: SqlType, key: tuple[str, ...] = ()) -> TableSchema:
    columns = tuple(Column(i + 1, f"c{i}", t, f"c{i}" not in key) for i, t in enumerate(types))
    index = (Index(1, "PRIMARY", key, unique=True, primary=True),) if key else ()
    return TableSchema(TableId("d", "t"), 1, 1, columns, index)


def decode(definition: TableSchema, key: bytes, value: bytes) -> pa.StructArray:
    """Decode one row whose bytes lie at the very end of the buffer."""
    raw = np.frombuffer(key + value, np.uint8)
    ints = [np.array([n], np.int64) for n in (0, len(key), len(key), len(value))]
    found = RowDecoder(definition).decode(raw, *ints)
    found.validate(full=True)
    return found


def refused(definition: TableSchema, key: str, value: str) -> str:
    with pytest.raises(CorruptLog) as caught:
        decode(definition, bytes.fromhex(key), bytes.fromhex(value.replace(" ", "")))
    return caught.value.words


def small(data: str) -> str:
    return "80 00 0100 0000 01" + f"{len(data) // 2:02x}00" + data


def test_error_names_table_row_column_and_key() -> None:
    words = refused(table(SqlType("int")), ROW_1, small("010203"))
    assert (
        words == f"d.t, row 0, column 'c0', key {ROW_1}: the number of bytes does not fit the type"
    )


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("", "cut short"),
        ("80 00 0100 00", "cut short"),
        ("7f 00 0000 0000", "row format 2"),
        ("80 00 0100 0000 01", "cut short"),
        ("80 00 ffff ffff 01", "cut short"),
        ("80 01 ffff ffff 01000000", "cut short"),
        ("80 00 0200 0000 02 01 0100 0200 0101", "not in order"),
        ("80 00 0200 0000 01 01 0100 0200 0101", "not in order"),
        ("80 00 0000 0200 02 01", "not in order"),
        ("80 00 0100 0000 01 0200 01", "offsets"),
        ("80 00 0200 0000 01 02 0200 0100 0101", "offsets"),
        ("80 01 0100 0000 01000000 ffffffff 01", "offsets"),
        (small("01") + "00", "after its data"),
        ("80 02 0100 0000 01 0100 01 01", "after its data"),
    ],
)
def test_damaged_value(value: str, why: str) -> None:
    assert why in refused(table(SqlType("int")), ROW_1, value)


@pytest.mark.parametrize(
    ("key", "why"),
    [
        ("", "not a record key"),
        ("74", "not a record key"),
        ("758000000000000001" + "5f72" + "8000000000000001", "not a record key"),
        ("748000000000000001" + "5f69" + "8000000000000001", "not a record key"),
        (PREFIX, "handle"),
        (ROW_1 + "00", "handle"),
    ],
)
def test_damaged_key(key: str, why: str) -> None:
    assert why in refused(table(SqlType("int"), key=("c0",)), key, "80 00 0000 0000")


@pytest.mark.parametrize(
    "handle",
    [
        "",
        "02" + "6162630000000000fa",
        "01" + "616263",
        "01" + "6162636465666768ff",
        "01" + "6162630000000000f6",
        "01" + "6162630000000001fa",
        "01" + "6162630000000000fa",
        "01" + "6162630000000000fa" + "03" + "80000000000000",
        "01" + "6162630000000000fa" + "03" + "8000000000000000" + "00",
        "00" + "03" + "8000000000000000",
    ],
)
def test_damaged_common_handle(handle: str) -> None:
    definition = table(SqlType("varbinary", length=9), SqlType("int"), key=("c0", "c1"))
    assert "handle" in refused(definition, PREFIX + handle, "80 00 0000 0000")


@pytest.mark.parametrize(
    ("column_type", "data"),
    [
        (SqlType("int"), ""),
        (SqlType("double"), "00000000"),
        (SqlType("float"), "ffefffffffffffff"),  # a double's largest
        (SqlType("decimal", length=10), "0a00"),
        (SqlType("decimal", length=10), "0a00" + "80000000"),
        (SqlType("decimal", length=10), "0a0b" + "8000000000"),
        (SqlType("decimal", length=9), "0900" + "ffffffff"),  # more than nine digits in a group
        (SqlType("decimal", length=10), "4200" + "80" * 30),
        (SqlType("decimal", length=1), "0200" + "8b"),  # 11 is too large
        (SqlType("decimal", length=3, scale=1), "0302" + "8005"),  # too many digits after the point
        (SqlType("datetime"), "ff" * 8),
        (SqlType("datetime"), "0000003c00000000"),  # 60 seconds
        (SqlType("date"), "ffffffffffffff7f"),
        (SqlType("time"), "ffffffffffffff7f"),
        (SqlType("time"), "0000000000000080"),
        (SqlType("varchar", length=9), "ff"),
        (SqlType("vector"), "01"),
        (SqlType("vector"), "02000000" + "0000803f"),
        (SqlType("vector"), "01000000" + "0000807f"),
        (SqlType("json"), ""),
        (SqlType("json"), "04"),
        (SqlType("json"), "0403"),
        (SqlType("json"), "0505"),
        (SqlType("json"), "0c05" + "6162"),
        (SqlType("json"), "0c" + "ff" * 10),
        (SqlType("json"), "0c01ff"),
        (SqlType("json"), "0b" + "000000000000f07f"),
        (SqlType("json"), "0d"),
        (SqlType("json"), "0e" + "ff" * 8),
        (SqlType("json"), "11" + "00" * 11),
        (SqlType("json"), "03" + "ffffffff" + "08000000"),
        (SqlType("json"), "03" + "00000000" + "09000000"),
        (SqlType("json"), "03" + "01000000" + "0d000000" + "09ffffffff"),
        (SqlType("json"), "01" + "01000000" + "13000000" + "ffffffff0100" + "0400000000"),
    ],
)
def test_damaged_data(column_type: SqlType, data: str) -> None:
    assert "column 'c0'" in refused(table(column_type), ROW_1, small(data))


def test_json_that_points_at_itself() -> None:
    inside_itself = "03" + "01000000" + "0d000000" + "0300000000"
    assert "too deeply" in refused(table(SqlType("json")), ROW_1, small(inside_itself))
    many = "03" + "0a000000" + "3a000000" + "0300000000" * 10
    refused(table(SqlType("json")), ROW_1, small(many))


@pytest.mark.parametrize("count", [1, 30])
def test_json_that_shows_one_string_again_and_again(count: int) -> None:
    # Thirty elements, all of them one string of 200 bytes: more text than such a document can hold.
    start = 8 + 5 * count
    elements = struct.pack("<BI", 0x0C, start) * count
    body = struct.pack("<BII", 3, count, start + 202) + elements + b"\xc8\x01" + b"a" * 200
    value = bytes.fromhex("80000100000001") + struct.pack("<H", len(body)) + body
    if count == 1:
        found = decode(table(SqlType("json")), bytes.fromhex(ROW_1), value)
        assert found.to_pylist() == [{"c0": '["' + "a" * 200 + '"]'}]
    else:
        assert "binary JSON" in refused(table(SqlType("json")), ROW_1, value.hex())


def test_places_outside_the_bytes() -> None:
    decoder, key = RowDecoder(table(SqlType("int"))), bytes.fromhex(ROW_1)
    raw = np.frombuffer(key + bytes.fromhex("800000000000"), np.uint8)

    def at(*numbers: int) -> list[np.ndarray]:
        return [np.array([n], np.int64) for n in numbers]

    assert decoder.decode(raw, *at(0, 19, 19, 6)).to_pylist() == [{"c0": None}]
    for places in ((0, 19, 19, 7), (0, 19, -1, 6), (-1, 19, 19, 6), (7, 19, 19, 6), (0, -1, 19, 6)):
        with pytest.raises(CorruptLog, match="outside"):
            decoder.decode(raw, *at(*places))
    with pytest.raises(CorruptLog, match="outside"):
        decoder.decode(raw, *at(0, 19, 2**62, 2**62))


def test_json_cannot_be_in_a_key() -> None:
    with pytest.raises(BadInput, match="'c0' cannot be in a key"):
        RowDecoder(table(SqlType("json"), key=("c0",)))


def _row() -> tuple[TableSchema, bytes, bytes]:
    """One row with all types, some of them in its key."""
    names = list(TYPE_FACTS)
    in_key = [names.index(n) for n in ("varchar", "varbinary", "decimal", "time", "double", "int")]
    definition = table(*TYPES, key=tuple(f"c{i}" for i in in_key))
    row = {}
    for i, column_type in enumerate(TYPES):
        plain = 1 if pa.types.is_integer(column_type.arrow) else "text"
        value = VALUES.get(column_type.name, plain)
        row[f"c{i}"] = b"bytes" if pa.types.is_large_binary(column_type.arrow) else value
    keys, values = encode_rows(definition, 1, pa.array([row], definition.image))
    return definition, keys[0].as_py(), values[0].as_py()


def test_every_truncation_is_an_error() -> None:
    definition, key, value = _row()
    assert decode(definition, key, value).null_count == 0
    for size in range(len(key)):
        with pytest.raises(CorruptLog):
            decode(definition, key[:size], value)
    for size in range(len(value)):
        with pytest.raises(CorruptLog):
            decode(definition, key, value[:size])


def test_random_damage_never_crashes() -> None:
    definition, key, value = _row()
    chance = random.Random(7)
    fine = wrong = 0
    for _ in range(3000):
        new_key, new_value = bytearray(key), bytearray(value)
        for _ in range(chance.choice((1, 2, 8))):
            target = chance.choice((new_key, new_value, new_value))
            target[chance.randrange(len(target))] = chance.choice(
                (0, 1, 0x7F, 0xFF, chance.randrange(256))
            )
        try:
            decode(definition, bytes(new_key), bytes(new_value))
            fine += 1
        except CorruptLog:
            wrong += 1
    assert fine and wrong


@pytest.mark.parametrize("column_type", TYPES, ids=lambda t: t.name)
def test_random_bytes_never_crash(column_type: SqlType) -> None:
    chance = random.Random(column_type.name)
    definition, key = table(column_type), bytes.fromhex(ROW_1)
    for _ in range(200):
        data = bytearray(chance.randbytes(chance.randrange(40)))
        if data and column_type.name == "json":
            data[0] = chance.choice((1, 3, 9, 11, 12, 13))
            for i in range(1, min(len(data), 9)):
                data[i] = 0 if i % 4 != 1 else chance.randrange(30)
        try:
            decode(definition, key, bytes.fromhex("80000100000001") + bytes((len(data), 0)) + data)
        except CorruptLog as err:
            assert "column 'c0'" in err.words
