from __future__ import annotations

import json
import re
import struct
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from encode_cases import INT_TEXT, chunk, inserts, spec, table

from codec_kit import codec_for
from rowferry.change.chunk import DdlKind, Op, Rows, SchemaChange, Watermark
from rowferry.change.plan import Topic
from rowferry.change.sqltype import SqlType
from rowferry.change.table import Column, Index, TableId, TableSchema
from rowferry.errors import DecodeError, EncodeError, OptionsConflict
from rowferry.flow.encode.contract import Encoded
from rowferry.flow.encode.open_protocol.codec import OpenProtocol, framed
from rowferry.flow.encode.open_protocol.column import flags_of
from rowferry.mysql.ddl.statement import parse_create

KAFKA = "kafka://broker/topic"
TOPIC = Topic("topic", 4, 1 << 20)
OLD, NEW = {"a": 1, "b": "old"}, {"a": 1, "b": "new"}


def codec(uri: str = KAFKA, **sink: Any) -> OpenProtocol:
    return codec_for(OpenProtocol, spec(uri, **sink))


def pairs(one: OpenProtocol, rows: Rows) -> list[tuple[str, str]]:
    found = one.encode_rows(rows, 5)
    assert found.keys is not None
    keys = (k.decode() for k in found.keys.to_pylist())
    return list(zip(keys, (v.decode() for v in found.values.to_pylist()), strict=True))


def value(one: OpenProtocol, rows: Rows) -> str:
    ((_, found),) = pairs(one, rows)
    return found


def shown(kind: SqlType, cell: Any) -> str:
    """The text of one value of column `b`."""
    text = value(codec(), inserts(table(SqlType("int"), kind), (1, cell)))
    return text.rpartition('"v":')[2].removesuffix("}}}")


def sent(one: OpenProtocol, rows: Rows) -> Encoded:
    return one.batch(one.encode_rows(rows, 5, TOPIC), TOPIC)


def read(one: OpenProtocol, messages: Encoded) -> list[Any]:
    assert messages.keys is not None
    both = zip(messages.keys.to_pylist(), messages.values.to_pylist(), strict=True)
    return [change for key, value in both for change in one.decode_message(key, value)]


def row_message(value: bytes | str, **head: Any) -> tuple[bytes, bytes]:
    key = json.dumps({"ts": 7, "scm": "test", "tbl": "t", "t": 1, **head}).encode()
    return framed(key, value if isinstance(value, bytes) else value.encode())


def test_files_cannot_hold_it() -> None:
    with pytest.raises(OptionsConflict, match="file files do not have; use protocol=canal-json"):
        codec("file:///data")


# --- text ----------------------------------------------------------------------------------------


def test_the_three_kinds_of_rows() -> None:
    rows = chunk(INT_TEXT, (Op.INSERT, None, OLD), (Op.UPDATE, OLD, NEW), (Op.DELETE, NEW, None))
    a, b = '"a":{"t":3,"h":true,"f":11,"v":1}', '"b":{"t":15,"f":64,"v":"%s"}'
    old, new = f"{{{a},{b % 'old'}}}", f"{{{a},{b % 'new'}}}"
    assert [v for _, v in pairs(codec(), rows)] == [
        f'{{"u":{old}}}',
        f'{{"u":{new},"p":{old}}}',
        f'{{"d":{new}}}',
    ]
    assert pairs(codec(), rows)[1][0] == f'{{"ts":{(1 << 18) + 1},"scm":"test","tbl":"t","t":1}}'


def test_an_update_without_its_old_row_has_none() -> None:
    rows = chunk(INT_TEXT, (Op.UPDATE, None, NEW))
    assert set(json.loads(value(codec(), rows))) == {"u"}


def test_old_values_can_be_left_out() -> None:
    rows = chunk(INT_TEXT, (Op.UPDATE, OLD, NEW), (Op.DELETE, OLD, None))
    kinds = [set(json.loads(v)) for _, v in pairs(codec(open={"output-old-value": False}), rows)]
    assert kinds == [{"u"}, {"d"}]


def test_names_are_the_routed_ones_and_a_partition_has_its_id() -> None:
    routed = replace(INT_TEXT, target=TableId('d"', "ü\n"))
    rows = replace(inserts(routed, (1, "x")), physical_id=77)
    ((key, _),) = pairs(codec(), rows)
    assert key == f'{{"ts":{1 << 18},"scm":"d\\"","tbl":"ü\\n","t":1,"ptn":77}}'
    (found,) = read(codec(), sent(codec(), rows))
    assert (found.table.id, found.physical_id) == (routed.target, 77)


def test_absent_columns_are_left_out() -> None:
    rows = chunk(INT_TEXT, (Op.INSERT, None, {"b": "x"}), kind=pa.struct([("b", pa.large_utf8())]))
    assert list(json.loads(value(codec(), rows))["u"]) == ["b"]


def test_a_keyless_table_has_no_delete_by_handle_key() -> None:
    keyless = TableSchema(INT_TEXT.id, 1, 1, INT_TEXT.columns)
    one = codec(**{"delete-only-output-handle-key-columns": True})
    with pytest.raises(EncodeError, match=r"test\.t: a change has no column to write"):
        one.encode_rows(chunk(keyless, (Op.DELETE, OLD, None)), 5)


@pytest.mark.parametrize(
    ("kind", "cell", "text"),
    [
        (
            SqlType("varchar"),
            'a"b\\c\n\r\t\x01<>&\u2028é\x7f',
            r'"a\"b\\c\n\r\t\u0001<>&' '\u2028é\x7f"',
        ),
        (SqlType("text"), "é", '"w6k="'),
        (SqlType("uuid"), "é", '"w6k="'),
        (SqlType("blob"), b"\x00\xff", '"AP8="'),
        (SqlType("geometry"), b"\x00", '"AA=="'),
        (SqlType("varbinary"), b'\x89PN"G\r\n\\\x7f\x00', r'"\\x89PN\\\"G\\r\\n\\\\\\x7f\\x00"'),
        (
            SqlType("binary"),
            "é\u2028\U0001d173\U0001f600".encode(),
            r'"é\\u2028\\U0001d173' '\U0001f600"',
        ),
        (SqlType("varbinary"), b"\xc3(\xed\xa0\x80\xf5", r'"\\xc3(\\xed\\xa0\\x80\\xf5"'),
        (SqlType("varbinary"), b"", '""'),
        (SqlType("varbinary"), "\U0001fa77\U00031350\U000323b0".encode(), '"🩷𱍐\\\\U000323b0"'),
        (SqlType("enum", elements=("x",)), 1, "1"),
        (SqlType("set", elements=("x", "y")), 3, "3"),
        (SqlType("bit", length=64), (1 << 64) - 1, str((1 << 64) - 1)),
        (SqlType("year"), 2024, "2024"),
        (SqlType("bigint"), -(1 << 63), str(-(1 << 63))),
        (SqlType("decimal"), "-0.10", '"-0.10"'),
        (SqlType("json"), '{"a": 1}', r'"{\"a\": 1}"'),
        (SqlType("double"), 1e-7, "1e-07"),
        (SqlType("double"), 1e-6, "0.000001"),
        (SqlType("double"), 1.5e-5, "0.000015"),
        (SqlType("double"), 9.99e-7, "9.99e-07"),
        (SqlType("double"), 1e21, "1e+21"),
        (SqlType("double"), 1e20, "100000000000000000000"),
        (SqlType("double"), float("inf"), "0"),
        (SqlType("double"), 5e-324, "5e-324"),
        (SqlType("float"), 0.1, "0.1"),
        (SqlType("float"), None, "null"),
    ],
)
def test_values(kind: SqlType, cell: Any, text: str) -> None:
    assert shown(kind, cell) == text


def test_flags() -> None:
    sql = (
        "create table t (id int, b bit, y year, u bigint unsigned not null, v varchar(9) not null,"
        " e enum('a'), j json, z int(5) zerofill, g int as (id) stored, k int, m int, n int,"
        " primary key (id), unique key one (u), unique key two (v, k), key three (m),"
        " key four (n, k))"
    )
    schema = parse_create(sql, "test")
    found = {c.name: int(flags_of(schema, c)) for c in schema.columns}
    assert found == {
        "id": 1 + 2 + 8,
        "b": 1 + 64 + 128,
        "y": 1 + 64 + 128,
        "u": 1 + 16 + 128,
        "v": 16 + 32,
        "e": 64,
        "j": 1 + 64,
        "z": 1 + 64 + 128,
        "g": 1 + 4 + 64,
        "k": 1 + 16 + 32 + 64,
        "m": 1 + 32 + 64,
        "n": 1 + 32 + 64,
    }


def test_zerofill_is_unsigned() -> None:
    schema = table(SqlType("int"), SqlType("int", zerofill=True))
    assert flags_of(schema, schema.columns[1]) == 1 + 64 + 128


def test_a_unique_key_serves_as_handle() -> None:
    schema = parse_create("create table t (a int, b int not null unique)", "test")
    members = json.loads(value(codec(), inserts(schema, (1, 2))))["u"]
    assert members["b"] == {"t": 3, "h": True, "f": 1 + 2 + 16, "v": 2}
    (found,) = read(codec(), sent(codec(), inserts(schema, (1, 2))))
    assert (found.table.primary_key, found.table.handle_key) == ((), ("b",))


def test_a_part_of_a_key_is_no_handle() -> None:
    """Readers would take rows that differ in the virtual column alone for one."""
    schema = parse_create(
        "create table t (a int not null, v int as (a + 1) virtual not null, unique key (a, v))",
        "test",
    )
    assert json.loads(value(codec(), inserts(schema, (1, 2))))["u"] == {
        "a": {"t": 3, "f": 1 + 16 + 32, "v": 1}
    }
    (found,) = read(codec(), sent(codec(), inserts(schema, (1, 2))))
    assert found.table.handle_key == ()


# --- only updated columns ------------------------------------------------------------------------

THREE = table(SqlType("int"), SqlType("int"), SqlType("int"), SqlType("varchar"))
ONLY_UPDATED = {"only-output-updated-columns": True}


def three(a: int, b: int | None, c: int | None, d: str | None) -> dict[str, Any]:
    return {"a": a, "b": b, "c": c, "d": d}


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        (three(1, 2, 3, "x"), three(1, 2, 3, "x"), ""),
        (three(1, 2, 3, "x"), three(1, 9, 3, "x"), '"b":{"t":3,"f":65,"v":2}'),
        (three(1, None, 3, "x"), three(1, 9, 3, "x"), '"b":{"t":3,"f":65,"v":null}'),
        (three(1, 2, 3, "x"), three(1, None, 3, "x"), '"b":{"t":3,"f":65,"v":2}'),
        (
            three(1, 2, 3, "x"),
            three(1, None, None, "y"),
            '"b":{"t":3,"f":65,"v":2},"c":{"t":3,"f":65,"v":3},"d":{"t":15,"f":64,"v":"x"}',
        ),
        (
            three(1, 2, 3, "x"),
            three(1, 5, 3, None),
            '"b":{"t":3,"f":65,"v":2},"d":{"t":15,"f":64,"v":"x"}',
        ),
        (three(1, 2, None, "x"), three(1, None, None, "x"), '"b":{"t":3,"f":65,"v":2}'),
    ],
)
def test_only_updated_columns(old: dict[str, Any], new: dict[str, Any], text: str) -> None:
    """A column that has changed keeps its name, also when it becomes NULL."""
    one, rows = codec(**ONLY_UPDATED), chunk(THREE, (Op.UPDATE, old, new))
    assert value(one, rows).partition(',"p":')[2] == f"{{{text}}}}}"
    (found,) = read(one, sent(one, rows))
    assert (found.before.to_pylist(), found.after.to_pylist()) == ([old], [new])


def without_names(rows: Rows, *names: str) -> Encoded:
    """A message as TiCDC writes it: the old values of these columns have no name."""
    one = codec(**ONLY_UPDATED)
    raw = one.encode_rows(rows, 5)
    new, mark, old = raw.values[0].as_py().decode().partition(',"p":')
    for name in names:
        member = re.compile(rf'"{name}":\{{("t":[^{{}}]*)\}}')
        assert member.search(old)
        old = member.sub(r"\1", old)
    text = pa.array([f"{new}{mark}{old}".encode()], pa.large_binary())
    return one.batch(replace(raw, values=text), TOPIC)


def test_old_values_that_lost_their_names_are_found_again() -> None:
    old, new = three(1, 2, 3, "x"), three(1, None, None, "y")
    rows = chunk(THREE, (Op.UPDATE, old, new))
    (found,) = read(codec(**ONLY_UPDATED), without_names(rows, "b", "c"))
    assert (found.before.to_pylist(), found.after.to_pylist()) == ([old], [new])


def test_a_lost_name_that_could_be_two_is_not_guessed() -> None:
    rows = chunk(THREE, (Op.UPDATE, three(1, 2, None, "x"), three(1, None, None, "y")))
    (found,) = read(codec(**ONLY_UPDATED), without_names(rows, "b"))
    assert found.before.to_pylist() == [{"a": 1, "d": "x"}]


def test_columns_named_like_the_parts_of_a_column() -> None:
    columns = tuple(Column(i, n, SqlType("int")) for i, n in enumerate("tfvh"))
    schema = TableSchema(
        TableId("test", "t"), 1, 1, columns, (Index(1, "PRIMARY", ("h",), True, True),)
    )
    old, new = {"t": 1, "f": 2, "v": 3, "h": 4}, {"t": None, "f": 5, "v": None, "h": 4}
    one, rows = codec(**ONLY_UPDATED), chunk(schema, (Op.UPDATE, old, new))
    for messages in (sent(one, rows), without_names(rows, "t", "v")):
        (found,) = read(one, messages)
        assert (found.before.to_pylist(), found.after.to_pylist()) == ([old], [new])


# --- frames --------------------------------------------------------------------------------------


def test_rows_are_framed_by_partition_and_in_order() -> None:
    one = codec(f"{KAFKA}?max-batch-size=3")
    rows = inserts(INT_TEXT, *((i, f"v{i}") for i in range(10)))
    raw = one.encode_rows(rows, 5, TOPIC)
    partitions = np.array([2, 0, 2, 2, 2, 0, 3, 2, 2, 2], np.int32)
    messages = one.batch(replace(raw, partitions=partitions), TOPIC)
    assert messages.partitions is not None and messages.keys is not None
    assert messages.partitions.tolist() == [2, 0, 2, 3, 2]
    assert messages.row_count == 10
    ids = [[r["a"] for r in c.after.to_pylist()] for c in read(one, messages)]
    assert ids == [[0, 2, 3], [1, 5], [4, 7, 8], [6], [9]]
    keys, values = raw.keys.to_pylist(), raw.values.to_pylist()  # type: ignore[union-attr]
    wanted_key = struct.pack(">Q", 1) + b"".join(struct.pack(">Q", len(k)) + k for k in keys[6:7])
    assert messages.keys.to_pylist()[3] == wanted_key
    wanted = b"".join(struct.pack(">Q", len(values[i])) + values[i] for i in (0, 2, 3))
    assert messages.values.to_pylist()[0] == wanted


def test_a_message_takes_rows_up_to_the_limit_and_not_beyond() -> None:
    one, rows = codec(), inserts(INT_TEXT, *((i, "x") for i in range(5)))
    raw = one.encode_rows(rows, 5)
    size = len(raw.values[0].as_py()) + len(raw.keys[0].as_py()) + 16  # type: ignore[index]
    for limit, counts in (
        (8 + 2 * size + 36, [2, 2, 1]),
        (8 + 2 * size + 35, [1] * 5),
        (1, [1] * 5),
    ):
        messages = one.batch(raw, Topic("t", 1, limit))
        assert [len(c) for c in read(one, messages)] == counts


def test_a_message_may_hold_any_number_of_rows() -> None:
    one = codec(f"{KAFKA}?max-batch-size={10**30}")
    (found,) = read(one, sent(one, inserts(THREE, (1, 2, 3, "x"), (2, 2, 3, "y"))))
    assert len(found) == 2


def test_nothing_is_no_message() -> None:
    one = codec()
    messages = one.batch(one.encode_rows(inserts(INT_TEXT), 5, TOPIC), TOPIC)
    assert (len(messages.values), messages.row_count) == (0, 0)


def test_rows_of_one_message_with_other_columns_are_other_chunks() -> None:
    one = codec(**{"delete-only-output-handle-key-columns": True})
    rows = chunk(INT_TEXT, (Op.INSERT, None, OLD), (Op.DELETE, OLD, None), (Op.INSERT, None, NEW))
    found = read(one, sent(one, rows))
    assert [c.batch.column("seq").to_pylist() for c in found] == [[0], [1], [2]]
    assert [int(c.op[0]) for c in found] == [Op.INSERT, Op.DELETE, Op.INSERT]
    assert found[1].before.to_pylist() == [{"a": 1}]
    assert not found[1].key_only


# --- schema changes and watermarks ---------------------------------------------------------------


@pytest.mark.parametrize("compression", ["none", "snappy", "lz4"])
def test_schema_changes(compression: str) -> None:
    large = {"large-message-handle": {"large-message-handle-compression": compression}}
    one = codec(**{"kafka-config": large})
    change = SchemaChange(
        1, DdlKind.CREATE_TABLE, 'create "t"\n', TableId("d", "t"), target=TableId("r", "s")
    )
    encoded = one.encode_schema_change(change, 5)
    assert encoded is not None and encoded.keys is not None
    key, body = encoded.keys.to_pylist()[0], encoded.values.to_pylist()[0]
    text = b'{"ts":1,"scm":"r","tbl":"s","t":2}'
    assert key == struct.pack(">QQ", 1, len(text)) + text
    if compression == "none":
        assert body[8:] == b'{"q":"create \\"t\\"\\n","t":3}'
    (found,) = one.decode_message(key, body)
    assert found == SchemaChange(1, DdlKind.CREATE_TABLE, change.query, TableId("r", "s"))


def test_a_kind_that_we_do_not_know_is_none() -> None:
    (found,) = codec().decode_message(*row_message('{"q":"flashback","t":62}', t=2))
    assert isinstance(found, SchemaChange) and found.kind is DdlKind.NONE


def test_watermarks() -> None:
    encoded = codec().encode_watermark(Watermark(12345678), 5)
    assert encoded is not None and encoded.keys is not None
    key, body = encoded.keys.to_pylist()[0], encoded.values.to_pylist()[0]
    assert key.hex() == "00000000000000010000000000000015" + b'{"ts":12345678,"t":3}'.hex()
    assert body == bytes(8)
    assert list(codec().decode_message(key, body)) == [Watermark(12345678)]


# --- reading -------------------------------------------------------------------------------------


def test_the_table_is_made_of_the_message() -> None:
    sql = (
        "create table t (a bigint unsigned primary key, b varbinary(9), c text, d datetime(3),"
        " e decimal(9,2), f enum('x'), y year)"
    )
    schema = parse_create(sql, "test")
    row = (1 << 63, b"\x89", "t", "2020-01-01 00:00:00.123", "1.50", 1, 1999)
    (found,) = read(codec(), sent(codec(), inserts(schema, row)))
    names = [(c.name, c.type.name, c.type.unsigned, c.nullable) for c in found.table.columns]
    assert names == [
        ("a", "bigint", True, False),
        ("b", "varbinary", False, True),
        ("c", "text", False, True),
        ("d", "datetime", False, True),
        ("e", "decimal", False, True),
        ("f", "enum", False, True),
        ("y", "year", False, True),
    ]
    assert (found.table.primary_key, found.table.table_id, found.table.version) == (("a",), 0, 0)
    assert list(found.after.to_pylist()[0].values()) == list(row)
    (again,) = read(codec(), sent(codec(), inserts(schema, row)))
    assert again.table is found.table


A = '"a":{"t":3,"h":true,"f":11,"v":1}'


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ((b"", b""), "row 1: the key does not begin with version 1"),
        ((struct.pack(">Q", 2), b""), "row 1: the key does not begin with version 1"),
        ((struct.pack(">Q", 1), b""), "row 1: 0 keys and 0 values"),
        ((struct.pack(">QQ", 1, 9) + b"{}", b""), "row 1: the key is cut short"),
        ((struct.pack(">QQ", 1, (1 << 64) - 1) + b"{}", b""), "row 1: the key is cut short"),
        ((struct.pack(">Q", 1) + b"abc", b""), "row 1: the key is cut short"),
        (framed(b"[]", b""), "row 1: it is not an open-protocol object"),
        (framed(b'{"t":1}', b""), "row 1: the key has no ts"),
        (framed(b'{"t":1,"ts":-1}', b""), "row 1: the key has no ts"),
        (framed(b'{"t":9,"ts":1}', b""), "row 1: it is neither a row change"),
        (row_message(b"\xff"), "row 1: it is not an open-protocol object"),
        (row_message("{}"), "row 1: it has no data"),
        (row_message('{"u":{}}'), "row 1: it has no data"),
        (row_message('{"u":{"a":1}}'), "row 1: a column without its type"),
        (row_message('{"u":{"a":{"t":3,"f":1}}}'), "row 1: a column without its type"),
        (row_message('{"u":{"a":{"t":1e999,"f":1,"v":1}}}'), "row 1: a column without its type"),
        (row_message('{"u":{"a":{"t":99,"f":1,"v":1}}}'), "row 1, column 'a': 99 is no type"),
        (row_message('{"u":{"a":{"t":3,"f":1,"v":"1"}}}'), "row 1, column 'a': '1' is no whole"),
        (
            row_message('{"u":{"a":{"t":3,"f":1,"v":18446744073709551616}}}'),
            "row 1: a value does not fit",
        ),
        (row_message('{"u":{"a":{"t":252,"f":1,"v":"*"}}}'), "row 1, column 'a': '*'"),
        (row_message('{"u":{"a":{"t":252,"f":0,"v":"/w=="}}}'), "row 1, column 'a': '/w=='"),
        (row_message('{"u":{"a":{"t":15,"f":1,"v":"\\\\q"}}}'), "malformed escape"),
        (row_message('{"u":{"a":{"t":15,"f":0,"v":1}}}'), "row 1, column 'a': 1 is no text"),
        (row_message(f'{{"u":{{{A}}},"p":3}}'), "row 1: the old row is no object"),
        (row_message(f'{{"u":{{{A}}},"p":{{"v":3}}}}'), "row 1: an old value without its type"),
        (row_message(f'{{"u":{{{A}}},"p":{{"t":3,"f":65,"v":3}}}}'), "belongs to no column"),
        (row_message("{}", t=2), "row 1: a DDL without its statement"),
        (row_message(f'{{"u":{{{A}}}}}', ccl="file:///x/y.json"), "claim-check-storage-uri"),
    ],
)
def test_malformed_messages_are_errors_with_a_place(
    message: tuple[bytes, bytes], words: str
) -> None:
    with pytest.raises(DecodeError) as caught:
        list(codec().decode_message(*message))
    assert words in str(caught.value)


def test_every_cut_of_a_message_is_an_error() -> None:
    one = codec()
    messages = sent(
        one, chunk(INT_TEXT, (Op.UPDATE, OLD, {"a": 1, "b": 'é"\\'}), (Op.DELETE, OLD, None))
    )
    assert messages.keys is not None
    key, body = messages.keys.to_pylist()[0], messages.values.to_pylist()[0]
    for cut in range(len(key)):
        with pytest.raises(DecodeError, match="row [12]"):
            list(one.decode_message(key[:cut], body))
    for cut in range(len(body)):
        with pytest.raises(DecodeError, match="row [12]"):
            list(one.decode_message(key, body[:cut]))
