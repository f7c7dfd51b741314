"""Bytes written by hand from the rules of the key and row encodings, read and written."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest

from rowferry.change.sqltype import SqlType
from rowferry.change.table import Column, Index, TableId, TableSchema
from rowferry.flow.capture.range_log.kv import RowDecoder
from rowferry.refstore.rows.kv_encode import encode_keys, encode_rows, table_end, table_prefix

PREFIX = "748000000000000001" + "5f72"  # table 1
ROW_1 = PREFIX + "8000000000000001"


def table(*columns: Column, key: tuple[str, ...] = ()) -> TableSchema:
    indexes = (Index(1, "PRIMARY", key, unique=True, primary=True),) if key else ()
    return TableSchema(TableId("d", "t"), 1, 1, columns, indexes)


def decode(definition: TableSchema, rows: list[tuple[str, str | None]]) -> pa.StructArray:
    """Decode rows given as hex; their bytes lie behind each other, keys and values mixed."""
    raw, places = b"", []
    for key, value in rows:
        for part in (key, value):
            data = bytes.fromhex(part) if part is not None else b""
            places.append((len(raw), len(data) if part is not None else -1))
            raw += data
    at = np.array([p[0] for p in places], np.int64)
    size = np.array([p[1] for p in places], np.int64)
    found = RowDecoder(definition).decode(
        np.frombuffer(raw, np.uint8), at[::2], size[::2], at[1::2], size[1::2]
    )
    found.validate(full=True)
    assert found.type == definition.image
    return found


def check(definition: TableSchema, row: dict[str, object], key: str, value: str) -> None:
    """The row has these bytes, both ways."""
    image = pa.array([row], definition.image)
    row_ids = None if definition.primary_key else pa.array([1], pa.int64())
    keys, values = encode_rows(definition, 1, image, row_ids)
    assert (keys[0].as_py().hex(), values[0].as_py().hex()) == (key, value)
    assert encode_keys(definition, 1, image, row_ids).to_pylist() == keys.to_pylist()
    assert decode(definition, [(key, value)]).to_pylist() == [row]


def one(column_type: SqlType) -> TableSchema:
    """A table without a key and with one column, of id 1."""
    return table(Column(1, "v", column_type))


def small(data: str) -> str:
    """The value of a row whose only column, of id 1, has this data."""
    return "80 00 0100 0000 01".replace(" ", "") + f"{len(data) // 2:02x}00" + data


def test_integer_handle_is_not_in_the_value() -> None:
    definition = table(Column(1, "id", SqlType("bigint"), False), key=("id",))
    empty = "800000000000"
    check(definition, {"id": 1}, PREFIX + "8000000000000001", empty)
    check(definition, {"id": -2}, PREFIX + "7ffffffffffffffe", empty)


def test_unsigned_handle_keeps_its_bit_pattern() -> None:
    definition = table(Column(1, "id", SqlType("bigint", unsigned=True), False), key=("id",))
    check(definition, {"id": 2**64 - 1}, PREFIX + "7fffffffffffffff", "800000000000")


def test_table_bounds() -> None:
    assert table_prefix(1).hex() == PREFIX
    assert table_end(1).hex() == "748000000000000001" + "5f73"
    assert table_prefix(-1).hex() == "747fffffffffffffff5f72"


def test_common_handle_of_string_and_integer() -> None:
    definition = table(
        Column(1, "s", SqlType("varchar", length=20), False),
        Column(2, "n", SqlType("int"), False),
        key=("s", "n"),
    )
    # The string is in the value, too: other collations would not keep it in the key.
    key = PREFIX + "01" + "6162630000000000fa" + "03" + "7fffffffffffffff"
    check(definition, {"s": "abc", "n": -1}, key, small("616263"))
    key = PREFIX + "01" + "6162636465666768ff" + "0000000000000000f7" + "03" + "8000000000000002"
    check(definition, {"s": "abcdefgh", "n": 2}, key, small("6162636465666768"))


def test_common_handle_in_the_order_of_the_key() -> None:
    definition = table(
        Column(1, "b", SqlType("varbinary", length=20), False),
        Column(2, "n", SqlType("int", unsigned=True), False),
        key=("n", "b"),
    )
    key = PREFIX + "04" + "0000000000000007" + "01" + "ff00000000000000f8"
    check(definition, {"b": b"\xff", "n": 7}, key, "800000000000")


def test_short_common_handle_is_filled_to_nine_bytes() -> None:
    definition = table(Column(1, "d", SqlType("decimal", length=4, scale=2), False), key=("d",))
    check(definition, {"d": "1.50"}, PREFIX + "06" + "0402" + "8132" + "00000000", "800000000000")


def test_small_row() -> None:
    definition = table(
        Column(3, "s", SqlType("varchar", length=9)),
        Column(4, "empty", SqlType("int")),
        Column(2, "n", SqlType("int")),
    )
    value = "80 00 0200 0100 02 03 04 0100 0300 01 6162".replace(" ", "")
    check(definition, {"s": "ab", "empty": None, "n": 1}, ROW_1, value)


def test_large_row_by_column_id() -> None:
    definition = table(Column(256, "n", SqlType("int")), Column(1, "empty", SqlType("int")))
    value = "80 01 0100 0100 00010000 01000000 01000000 05".replace(" ", "")
    check(definition, {"n": 5, "empty": None}, ROW_1, value)


def test_large_row_by_size() -> None:
    definition = table(Column(1, "s", SqlType("longtext")), Column(2, "n", SqlType("int")))
    head = "80 01 0200 0000 01000000 02000000 00000100 01000100".replace(" ", "")
    check(definition, {"s": "x" * 65536, "n": -1}, ROW_1, head + "78" * 65536 + "ff")
    head = "80 00 0200 0000 01 02 feff ffff".replace(" ", "")
    check(definition, {"s": "x" * 65534, "n": -1}, ROW_1, head + "78" * 65534 + "ff")


@pytest.mark.parametrize(
    ("column_type", "value", "data"),
    [
        (SqlType("int"), -1, "ff"),
        (SqlType("int"), 128, "8000"),
        (SqlType("int"), -32769, "ff7fffff"),
        (SqlType("bigint"), 2**31, "0000008000000000"),
        (SqlType("int", unsigned=True), 255, "ff"),
        (SqlType("int", unsigned=True), 256, "0001"),
        (SqlType("bigint", unsigned=True), 2**64 - 1, "ff" * 8),
        (SqlType("double"), 1.0, "bff0000000000000"),
        (SqlType("double"), -1.0, "400fffffffffffff"),
        (SqlType("float"), 0.5, "bfe0000000000000"),
        (SqlType("decimal", length=14, scale=4), "-1234567890.1234", "0e04" + "7ef204c72dfb2d"),
        (SqlType("decimal", length=14, scale=4), "1234567890.1234", "0e04" + "810dfb38d204d2"),
        (SqlType("decimal", length=3), "0", "0300" + "8000"),
        (SqlType("decimal", length=2, scale=2), "0.05", "0202" + "85"),
        (SqlType("datetime", scale=6), "2020-01-02 03:04:05.000006", "060000053144a519"),
        (SqlType("datetime"), "0000-00-00 00:00:00", "00"),
        (SqlType("date"), "2020-01-02", "000000000044a519"),
        (SqlType("time"), "-00:00:01", "003665c4"),
        (SqlType("time", scale=3), "00:00:00.001", "40420f00"),
        (SqlType("year"), 2024, "e807"),
        (SqlType("enum", elements=("a", "b")), 2, "02"),
        (SqlType("set", elements=("a", "b", "c")), 5, "05"),
        (SqlType("bit", length=9), 257, "0101"),
        (SqlType("blob"), b"\x00\xff", "00ff"),
        (SqlType("vector"), "[1,-0.5,3.25]", "03000000" + "0000803f" + "000000bf" + "00005040"),
        (SqlType("json"), "null", "0400"),
        (SqlType("json"), "-1", "09" + "ff" * 8),
        (SqlType("json"), '"é"', "0c02c3a9"),
        (SqlType("json"), "1.5", "0b" + "000000000000f83f"),
        (
            SqlType("json"),
            '{"a": true, "bb": [1]}',
            "01" + "02000000" + "36000000"
            # names: where and how long; values: type and where, true in place
            + "1e000000" + "0100" + "1f000000" + "0200" + "0401000000" + "0321000000"
            + "61" + "6262"
            + "01000000" + "15000000" + "090d000000" + "0100000000000000",
        ),
    ],
)  # fmt: skip
def test_column_data(column_type: SqlType, value: object, data: str) -> None:
    check(one(column_type), {"v": value}, ROW_1, small(data))


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ("0d" + "fd" + "04" + "00010203", '"base64:type253:AAECAw=="'),
        ("0d" + "0f" + "00", '"base64:type15:"'),
        ("0e" + "000000000002911f", '"2020-04-01"'),
        ("10" + "600000c5c048911f", '"2020-05-04 12:03:05.000006"'),
        ("11" + "003665c4ffffffff" + "00000000", '"-00:00:01.000000"'),
        ("0c" + "04" + "22085c01", '"\\"\\b\\\\\\u0001"'),
        ("0c" + "03" + "e280a9", '"\\u2029"'),
        ("0b" + "182d4454fb210940", "3.141592653589793"),
        ("0b" + "0000000000000080", "-0.0"),
        ("0b" + "66de77832112dc42", "123456789012345.6"),
        ("0b" + "00003426f56b0c43", "1e15"),
        ("0b" + "50efe2d6e41a1b44", "1.25e20"),
        ("0b" + "4d67e2f1059ea53c", "1.5e-16"),
        ("0b" + "9b2ba1869b84e63c", "0.0000000000000025"),
        ("0b" + "0000000000005940", "100.0"),
        ("0b" + "9a9999999999b93f", "0.1"),
        ("0b" + "0000901ec4bcd642", "100000000000000.0"),
        ("0b" + "59f3f8c21f6ea581", "-1e-300"),
        ("0a" + "ffffffffffffffff", "18446744073709551615"),
        ("03" + "00000000" + "08000000", "[]"),
        ("01" + "00000000" + "08000000", "{}"),
    ],
)
def test_json_that_only_a_database_writes(data: str, text: str) -> None:
    assert decode(one(SqlType("json")), [(ROW_1, small(data))]).to_pylist() == [{"v": text}]


def test_decimal_zero_has_no_sign() -> None:
    definition = one(SqlType("decimal", length=3, scale=1))
    found = decode(definition, [(ROW_1, small("0301" + "7fff"))])
    assert found.to_pylist() == [{"v": "0.0"}]


def test_null_image_and_null_value() -> None:
    definition = table(
        Column(1, "id", SqlType("int"), False), Column(2, "n", SqlType("int")), key=("id",)
    )
    null = "80 00 0000 0100 02".replace(" ", "")
    value = "80 00 0100 0000 02 0100 05".replace(" ", "")
    found = decode(definition, [(ROW_1, None), (ROW_1, null), (ROW_1, value)])
    assert found.to_pylist() == [None, {"id": 1, "n": None}, {"id": 1, "n": 5}]


def test_row_with_checksum() -> None:
    value = small("07")
    value = value[:2] + "02" + value[4:]
    found = decode(one(SqlType("int")), [(ROW_1, value + "01" + "aabbccdd")])
    assert found.to_pylist() == [{"v": 7}]


def test_keys_alone() -> None:
    definition = table(
        Column(1, "s", SqlType("varchar", length=20), False),
        Column(2, "v", SqlType("int")),
        Column(3, "d", SqlType("datetime", scale=6), False),
        key=("d", "s"),
    )
    key = bytes.fromhex(PREFIX + "04" + "19a5443105000006" + "01" + "6162630000000000fa")
    at, size = np.zeros(1, np.int64), np.array([len(key)], np.int64)
    found = RowDecoder(definition).decode_keys(np.frombuffer(key, np.uint8), at, size)
    assert found.to_pylist() == [{"s": "abc", "d": "2020-01-02 03:04:05.000006"}]


def test_keys_of_a_table_without_one() -> None:
    key = bytes.fromhex(ROW_1)
    at, size = np.zeros(1, np.int64), np.array([len(key)], np.int64)
    decoder = RowDecoder(one(SqlType("int")))
    found = decoder.decode_keys(np.frombuffer(key, np.uint8), at, size)
    assert found.to_pylist() == [{}]


@pytest.mark.parametrize(
    ("column_type", "default", "value"),
    [
        (SqlType("int"), 7, 7),
        (SqlType("int"), "7", 7),
        (SqlType("varchar", length=5), "x", "x"),
        (SqlType("decimal", length=9, scale=2), "1.5", "1.50"),
        (SqlType("double"), 1, 1.0),
        (SqlType("enum", elements=("a", "b")), "b", 2),
        (SqlType("set", elements=("a", "b", "c")), "a,c", 5),
        (SqlType("datetime", scale=3), "2020-01-01 00:00:00", "2020-01-01 00:00:00.000"),
        (SqlType("datetime"), "CURRENT_TIMESTAMP", None),
        (SqlType("date"), "2020-01-01", "2020-01-01"),
        (SqlType("blob"), "x", b"x"),
        (SqlType("int"), None, None),
    ],
)
def test_column_added_later(column_type: SqlType, default: object, value: object) -> None:
    definition = table(Column(1, "v", SqlType("int")), Column(2, "w", column_type, filled=default))
    null = "80 00 0000 0200 01 02".replace(" ", "")
    rows = decode(definition, [(ROW_1, small("05")), (ROW_1, null)])
    assert rows.to_pylist() == [{"v": 5, "w": value}, {"v": None, "w": None}]


def test_dropped_columns_are_passed_over() -> None:
    definition = table(Column(2, "w", SqlType("int")))
    value = "80 00 0300 0100 01 02 03 04 0100 0200 0300 050607".replace(" ", "")
    assert decode(definition, [(ROW_1, value)]).to_pylist() == [{"w": 6}]


COMPILED_LATER = """
import numpy as np, pyarrow as pa
from numba.core.registry import CPUDispatcher
from rowferry.flow.capture.range_log import kv, kv_locate, kv_numbers, kv_text, kv_vector
from rowferry.flow.capture.range_log import kv_time
from rowferry.columnar import json_binary, packed_text
from rowferry.mysql.type_facts import TYPE_FACTS
from rowferry.refstore.rows import kv_encode
from rowferry.refstore.rows import kv_encode_kernels
from rowferry.change.sqltype import SqlType
from rowferry.change.table import Column, Index, TableId, TableSchema

MODULES = (kv_vector, json_binary, packed_text, kv_locate, kv_numbers, kv_text, kv_time,
           kv_encode_kernels)

def compiled():
    found = {}
    for module in MODULES:
        for name, kernel in vars(module).items():
            if isinstance(kernel, CPUDispatcher):
                found[module.__name__, name] = len(kernel.signatures)
    return found

kv.warm()
kv_encode.warm()
before = compiled()
words = {"date": "2020-01-01", "datetime": "2020-01-01 00:00:00", "time": "00:00:00",
         "timestamp": "2020-01-01 00:00:00", "json": "[1.5]", "vector": "[1.5]", "decimal": "1"}
columns = tuple(Column(i + 1, n, SqlType(n, elements=("a",))) for i, n in enumerate(TYPE_FACTS))
for key in ("int", "varchar", "decimal"):
    index = Index(1, "PRIMARY", (key,), unique=True, primary=True)
    table = TableSchema(TableId("d", "t"), 1, 1, columns, (index,))
    row = {}
    for c in columns:
        plain = b"x" if pa.types.is_large_binary(c.type.arrow) else "x"
        row[c.name] = words.get(c.name, 1 if pa.types.is_primitive(c.type.arrow) else plain)
        row["year"] = 2000
    image = pa.array([row, row], table.image)[1:]
    key, value = (array[0].as_py() for array in kv_encode.encode_rows(table, 1, image))
    places = [np.array([n]) for n in (0, len(key), len(key), len(value))]
    found = kv.RowDecoder(table).decode(np.frombuffer(key + value, np.uint8), *places)
    assert found.to_pylist()[0]["json"] == "[1.5]", found
print(sorted(name for name, count in compiled().items() if count != before[name]))
"""


def test_warm_leaves_nothing_to_compile() -> None:
    done = subprocess.run(
        [sys.executable, "-c", COMPILED_LATER], capture_output=True, text=True, check=False
    )
    assert (done.stderr, done.stdout) == ("", "[]\n")
