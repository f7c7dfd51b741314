from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from avro_cases import COMMIT_TS, TOPIC, avro, chunk, foreign_read, inserts, table

from rowferry.change.chunk import DdlKind, Op, Rows, SchemaChange, Watermark
from rowferry.change.table import TableId
from rowferry.errors import DecodeError, EncodeError, MessageTooLarge
from rowferry.flow.encode.avro import kernels, messages
from rowferry.flow.encode.avro.codec import Avro
from rowferry.flow.encode.avro.schema import Modes, key_schema, value_schema
from rowferry.flow.encode.avro.writer import AvroCell, write_rows

# column type; then each canonical value, and what a foreign reader must see for it
VALUES: list[tuple[str, list[Any], list[Any]]] = [
    ("tinyint", [-128, 0, 127], [-128, 0, 127]),
    ("tinyint unsigned", [0, 255], [0, 255]),
    ("smallint", [-32768, 32767], [-32768, 32767]),
    ("mediumint unsigned", [16777215], [16777215]),
    ("int", [-2147483648, -1, 2147483647], [-2147483648, -1, 2147483647]),
    ("int unsigned", [4294967295], [4294967295]),
    ("bigint", [-(1 << 63), -65, 64, (1 << 63) - 1], [-(1 << 63), -65, 64, (1 << 63) - 1]),
    ("bigint unsigned", [0, 1 << 63, (1 << 64) - 1], [0, -(1 << 63), -1]),
    ("float", [0.5, -3.4028234663852886e38], [0.5, -3.4028234663852886e38]),
    ("double", [0.1, 5e-324, -1.7976931348623157e308], [0.1, 5e-324, -1.7976931348623157e308]),
    ("decimal(10,2)", ["1.50", "-0.01", "0.00"], [Decimal("1.50"), Decimal("-0.01"), Decimal(0)]),
    (
        "decimal(65,30)",
        [f"{'9' * 35}.{'9' * 30}", f"-{'9' * 35}.{'9' * 30}"],
        [Decimal(f"{'9' * 35}.{'9' * 30}"), Decimal(f"-{'9' * 35}.{'9' * 30}")],
    ),
    ("decimal(5,0)", ["127", "128", "-128", "-129"], [127, 128, -128, -129]),
    ("bit(1)", [0, 1], [b"\0", b"\1"]),
    ("bit(10)", [65, 1023], [b"\0A", b"\3\xff"]),
    ("bit(64)", [(1 << 64) - 1, 5], [b"\xff" * 8, b"\0" * 7 + b"\5"]),
    ("char(9)", ["", "ß€\U0001f600"], ["", "ß€\U0001f600"]),
    ("varchar(9)", ["it's"], ["it's"]),
    ("longtext", ["x" * 70_000], ["x" * 70_000]),
    ("binary(2)", [b"\0\xff"], [b"\0\xff"]),
    ("varbinary(9)", [b""], [b""]),
    ("longblob", [bytes(range(256)) * 300], [bytes(range(256)) * 300]),
    ("geometry", [b"\0\1"], [b"\0\1"]),
    ("date", ["0000-00-00", "9999-12-31"], ["0000-00-00", "9999-12-31"]),
    ("datetime(6)", ["2020-01-01 00:00:00.000001"], ["2020-01-01 00:00:00.000001"]),
    ("timestamp", ["2020-01-01 00:00:00"], ["2020-01-01 00:00:00"]),
    ("time", ["-838:59:59"], ["-838:59:59"]),
    ("year", [0, 2155], [0, 2155]),
    ("json", ['{"a": 1}', "null"], ['{"a": 1}', "null"]),
    ("vector(2)", ["[1,2.5]"], ["[1,2.5]"]),
    ("inet6", ["::1"], ["::1"]),
    ("uuid", ["123e4567-e89b-12d3-a456-426655440000"], ["123e4567-e89b-12d3-a456-426655440000"]),
    ("enum('a','b,c')", [0, 1, 2], ["", "a", "b,c"]),
    ("set('x','y','z')", [0, 5, 7], ["", "x,z", "x,y,z"]),
]


@pytest.mark.parametrize("null", ["", "not null", "default"])
@pytest.mark.parametrize(("column", "values", "seen"), VALUES, ids=[v[0] for v in VALUES])
def test_a_foreign_reader_sees_every_value(
    column: str, values: list[Any], seen: list[Any], null: str
) -> None:
    """In each of the three places of NULL: second branch, no union, first branch."""
    schema = table(f"c {column} {'' if null == 'default' else null}")
    if null == "default":
        _give_default(schema)
    if null != "not null":
        values, seen = [*values, None], [*seen, None]
    encoded = avro().encode_rows(inserts(schema, *({"id": 1, "c": v} for v in values)), 0)
    text = value_schema(schema, Modes(), False)
    found = [foreign_read(text, m) for m in encoded.values.to_pylist()]
    assert found == [{"id": 1, "c": v} for v in seen]


def _give_default(schema: Any) -> None:
    """Give the column some default, so that its union begins with the value's branch."""
    column = schema.columns[1]
    object.__setattr__(column, "default", 1 if column.type.arrow != pa.large_utf8() else "1")


def test_modes_of_text() -> None:
    schema = table("d decimal(10,2), b bigint unsigned, s bigint")
    codec = avro(avro_decimal_handling_mode="string", avro_bigint_unsigned_handling_mode="string")
    rows = [{"id": 1, "d": "-1.50", "b": (1 << 64) - 1, "s": -2}]
    rows += [{"id": 2, "d": None, "b": None, "s": None}]
    text = value_schema(schema, Modes(True, True), False)
    found = [
        foreign_read(text, m)
        for m in codec.encode_rows(inserts(schema, *rows), 0).values.to_pylist()
    ]
    assert found[0] == {"id": 1, "d": "-1.50", "b": "18446744073709551615", "s": -2}
    assert found[1] == rows[1]


@pytest.mark.parametrize("null", ["", "not null", "default 1.5"])
def test_floats_in_single_precision(null: str) -> None:
    """The largest, the smallest and a shortest one; a DOUBLE beside it stays a double."""
    numbers = [0.5, -0.0, 3.4028234663852886e38, 1.401298464324817e-45, float(np.float32(0.1))]
    values: list[Any] = [*numbers, *([] if null == "not null" else [None, 2.0])]
    schema = table(f"f float {null}, d double")
    rows = inserts(schema, *({"id": 1, "f": v, "d": 0.1} for v in values))
    text = value_schema(schema, Modes(single_float=True), False)
    messages = avro(avro_float="float").encode_rows(rows, 0).values.to_pylist()
    assert [foreign_read(text, m) for m in messages] == rows.after.to_pylist()
    plain = avro(avro_float="double").encode_rows(rows, 0).values.to_pylist()
    assert plain == avro().encode_rows(rows, 0).values.to_pylist()
    shorter = [len(b) - len(a) for a, b in zip(messages, plain, strict=True)]
    assert shorter == [0 if v is None else 4 for v in values]


def test_default_settings_write_no_extension() -> None:
    schema = table("c int")
    rows = chunk(
        schema,
        (Op.INSERT, None, {"id": 1, "c": 2}),
        (Op.UPDATE, {"id": 1, "c": 2}, {"id": 1, "c": 2}),
    )
    one, other = avro().encode_rows(rows, 0).values.to_pylist()
    assert one == other == bytes.fromhex("0000000000020204")


def test_the_extension_tells_the_change_and_its_time() -> None:
    schema = table("c int")
    old, new = {"id": 1, "c": 2}, {"id": 1, "c": None}
    rows = chunk(schema, (Op.INSERT, None, old), (Op.UPDATE, old, new), (Op.DELETE, new, None))
    encoded = avro(enable_tidb_extension="true").encode_rows(rows, 0)
    text = value_schema(schema, Modes(), True)
    first, second, third = encoded.values.to_pylist()
    stamp = {"_tidb_commit_ts": COMMIT_TS, "_tidb_commit_physical_time": COMMIT_TS >> 18}
    assert foreign_read(text, first) == {**old, "_tidb_op": "c", **stamp}
    stamp["_tidb_commit_ts"] += 1
    assert foreign_read(text, second) == {**new, "_tidb_op": "u", **stamp}
    assert third is None


def test_a_delete_is_its_key_with_no_value() -> None:
    schema = table("c varchar(9) not null")
    gone = {"id": 9, "c": "x"}
    rows = chunk(schema, (Op.INSERT, None, gone), (Op.DELETE, gone, None))
    encoded = avro().encode_rows(rows, 0)
    assert encoded.keys is not None
    assert encoded.values.to_pylist()[1] is None
    text = key_schema(schema, Modes())
    assert [foreign_read(text, k) for k in encoded.keys.to_pylist()] == [{"id": 9}, {"id": 9}]


def test_a_delete_needs_only_its_key_columns() -> None:
    schema = table("c int not null")
    before = pa.array([{"id": 4}], pa.struct([schema.image.field("id")]))
    whole = chunk(schema, (Op.DELETE, {"id": 4, "c": 1}, None))
    batch = whole.batch.set_column(3, "before", before)
    encoded = avro().encode_rows(Rows(schema, batch), 0)
    assert encoded.keys.to_pylist() == [bytes.fromhex("000000000008")]


def test_an_update_of_the_key_has_the_new_key() -> None:
    schema = table("c int")
    rows = chunk(schema, (Op.UPDATE, {"id": 1, "c": 1}, {"id": 2, "c": 1}))
    assert avro().encode_rows(rows, 0).keys.to_pylist() == [bytes.fromhex("000000000004")]


def test_watermark_mode_sends_ddl_watermarks_and_dated_deletes() -> None:
    schema = table("c int")
    codec = avro(enable_tidb_extension="true", avro_enable_watermark="true")
    mark = codec.encode_watermark(Watermark(COMMIT_TS), 0)
    assert mark is not None and mark.keys is None
    assert mark.values.to_pylist() == [b"\x02" + COMMIT_TS.to_bytes(8, "big")]
    change = SchemaChange(5, DdlKind.ADD_COLUMN, "alter `<`", schema.id, target=TableId("a", "b"))
    ddl = codec.encode_schema_change(change, 0)
    assert ddl is not None
    text = '{"query":"alter `\\u003c`","type":5,"schema":"a","table":"b","commitTs":5}'
    assert ddl.values.to_pylist() == [b"\x01" + text.encode()]
    rows = chunk(schema, (Op.DELETE, {"id": 1, "c": 1}, None))
    gone = codec.encode_rows(rows, 0).values.to_pylist()
    assert gone == [b"\x03" + COMMIT_TS.to_bytes(8, "big")]


def test_neither_ddl_nor_watermarks_without_that_mode() -> None:
    for codec in (avro(), avro(enable_tidb_extension="true")):
        assert codec.encode_watermark(Watermark(1), 0) is None
        change = SchemaChange(5, DdlKind.ADD_COLUMN, "alter", TableId("a", "b"))
        assert codec.encode_schema_change(change, 0) is None


def test_null_where_none_may_be_is_refused_by_column() -> None:
    with pytest.raises(EncodeError, match="row 1 .*NULL in column 'c'"):
        avro().encode_rows(
            inserts(
                table("b int, c int not null"), *({"id": 1, "b": 1, "c": c} for c in (1, None))
            ),
            0,
        )


def test_a_decimal_that_is_none_is_refused_by_column() -> None:
    with pytest.raises(EncodeError, match=r"shop\.orders\.c: '1\.555'"):
        avro().encode_rows(inserts(table("c decimal(9,2)"), {"id": 1, "c": "1.555"}), 0)


@pytest.mark.parametrize("middle", [1 << 40, -1, 1])
def test_text_outside_its_buffer_is_an_error_and_no_crash(middle: int) -> None:
    offsets = pa.py_buffer(np.array([2, middle, 3], np.int64))
    buffers = [None, offsets, pa.py_buffer(b"abc")]
    bad = pa.LargeBinaryArray.from_buffers(pa.large_binary(), 2, buffers)
    with pytest.raises(EncodeError, match="outside its buffer"):
        write_rows([[AvroCell(kernels.TEXT, bad)]], np.zeros(2, np.int8))


def test_a_column_shorter_than_the_chunk_is_an_error_and_no_crash() -> None:
    short = pa.array([1, 2], pa.int64())
    with pytest.raises(EncodeError, match="shorter than the chunk"):
        write_rows([[AvroCell(kernels.LONG, short)]], np.zeros(3, np.int8))


def test_a_message_longer_than_the_topic_takes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    codec = avro()
    monkeypatch.setattr(codec._registry, "register", lambda subject, schema: 1)
    schema = table("c longtext")
    size = TOPIC.max_message_bytes - 36 - 6 - 5 - 1 - 1 - 3  # key; head, id, branch, count
    fits = inserts(schema, {"id": 1, "c": "x" * size})
    assert codec.encode_rows(fits, 0, TOPIC).row_count == 1
    with pytest.raises(MessageTooLarge, match=r"shop\.orders: a message of 1048577 bytes.*1048576"):
        codec.encode_rows(inserts(schema, {"id": 1, "c": "x" * (size + 1)}), 0, TOPIC)


def test_schemas_are_registered_once_for_each_version_and_topic(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    codec, asked = avro(), []
    monkeypatch.setattr(
        codec._registry, "register", lambda subject, schema: asked.append(subject) or len(asked)
    )
    schema = table("c int")
    rows = inserts(schema, {"id": 1, "c": 1})
    for _ in range(3):
        encoded = codec.encode_rows(rows, 0, TOPIC)
    assert asked == ["shop.orders-key", "shop.orders-value"]
    assert encoded.keys.to_pylist() == [bytes.fromhex("000000000102")]
    assert encoded.values.to_pylist()[0].startswith(bytes.fromhex("0000000002"))
    codec.encode_rows(inserts(schema.at(8), {"id": 1, "c": 1}), 0, TOPIC)
    assert len(asked) == 4


def test_an_empty_key_or_value_is_refused_with_words() -> None:
    for key, value in ((None, b""), (b"", None), (None, None), (b"\0\0\0\0\1", b"\3\0")):
        with pytest.raises(DecodeError):
            list(avro().decode_message(key, value))


def test_a_ddl_message_that_is_none_is_refused() -> None:
    for text in (b"", b"[]", b"{}", json.dumps({"schema": 1}).encode()):
        with pytest.raises(DecodeError, match="DDL"):
            list(avro().decode_message(None, bytes([messages.DDL]) + text))


def test_a_ddl_of_a_type_that_no_source_of_ours_has() -> None:
    text = {"query": "ALTER TABLE t REMOVE TTL", "type": 67, "schema": "d", "table": "t"}
    value = bytes([messages.DDL]) + json.dumps({**text, "commitTs": 5}).encode()
    (found,) = avro().decode_message(None, value)
    assert isinstance(found, SchemaChange)
    assert (found.kind, found.query, found.commit_ts) == (DdlKind.NONE, text["query"], 5)


def test_it_needs_one_table_per_topic() -> None:
    assert Avro.TRAITS.one_table_per_topic
