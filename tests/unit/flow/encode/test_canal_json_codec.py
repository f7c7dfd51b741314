from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from encode_cases import INT_TEXT, chunk, inserts, spec, table, text

from codec_kit import codec_for
from rowferry.change.chunk import DdlKind, Op, Rows, SchemaChange, Watermark
from rowferry.change.sqltype import SqlType
from rowferry.change.table import TableId, TableSchema
from rowferry.errors import BadOption, DecodeError, EncodeError
from rowferry.flow.encode.canal_json import reader as canal_json_reader
from rowferry.flow.encode.canal_json.codec import CanalJson, mysql_type, sql_type
from rowferry.mysql.ddl.statement import parse_create

OLD, NEW = {"a": 1, "b": "old"}, {"a": 1, "b": "new"}
KAFKA = "kafka://broker/topic"


def message(**changes: Any) -> dict[str, Any]:
    return {
        "id": 0,
        "database": "test",
        "table": "t",
        "type": "INSERT",
        "isDdl": False,
        "es": 1,
        "data": [{"a": "1", "b": "x"}],
        "old": None,
        **changes,
    }


def read(
    codec: CanalJson, *messages: dict[str, Any] | bytes, schema: TableSchema = INT_TEXT
) -> Any:
    lines = (m if isinstance(m, bytes) else json.dumps(m).encode() + b"\r\n" for m in messages)
    return list(codec.decode(b"".join(lines), schema))


def images(parts: list[Rows]) -> list[tuple[int, Any, Any]]:
    return [
        (int(op), before, after)
        for p in parts
        for op, before, after in zip(p.op, p.before.to_pylist(), p.after.to_pylist(), strict=True)
    ]


def test_row_key_is_refused() -> None:
    with pytest.raises(BadOption, match="output-row-key is not supported"):
        codec_for(CanalJson, spec(f"{KAFKA}?output-row-key=true"))


def test_an_update_without_its_old_row_has_old_null() -> None:
    codec = codec_for(CanalJson, spec(KAFKA))
    rows = chunk(INT_TEXT, (Op.UPDATE, None, NEW), (Op.UPDATE, OLD, NEW))
    first, second = (json.loads(v) for v in codec.encode_rows(rows, 5).values.to_pylist())
    assert first["type"] == second["type"] == "UPDATE"
    assert first["old"] is None and second["old"] == [{"a": "1", "b": "old"}]


def test_absent_columns_are_left_out() -> None:
    rows = chunk(INT_TEXT, (Op.INSERT, None, {"b": "x"}), kind=pa.struct([("b", pa.large_utf8())]))
    found = json.loads(text(codec_for(CanalJson, spec(KAFKA)).encode_rows(rows, 5)))
    assert found["data"] == [{"b": "x"}]
    assert list(found["sqlType"]) == list(found["mysqlType"]) == ["b"]


def test_a_keyless_table_has_no_delete_by_handle_key() -> None:
    keyless = TableSchema(INT_TEXT.id, 1, 1, INT_TEXT.columns)
    codec = codec_for(CanalJson, spec(**{"delete-only-output-handle-key-columns": True}))
    with pytest.raises(EncodeError, match="test.t: a change has no column to write"):
        codec.encode_rows(chunk(keyless, (Op.DELETE, OLD, None)), 5)


@pytest.mark.parametrize(
    ("name", "unsigned", "value", "number"),
    [
        ("tinyint", True, 127, -6),
        ("tinyint", True, 128, 5),
        ("smallint", True, 32767, 5),
        ("smallint", True, 32768, 4),
        ("mediumint", True, 16777215, 4),
        ("int", True, 2147483647, 4),
        ("int", True, 2147483648, -5),
        ("bigint", True, 9223372036854775807, -5),
        ("bigint", True, 9223372036854775808, 3),
        ("bigint", True, None, -5),
        ("bigint", False, -1, -5),
        ("int", False, -1, 4),
    ],
)
def test_sql_type_of_integers_follows_the_value(
    name: str, unsigned: bool, value: int | None, number: int
) -> None:
    schema = table(SqlType("int"), SqlType(name, unsigned=unsigned))
    found = json.loads(
        text(codec_for(CanalJson, spec(KAFKA)).encode_rows(inserts(schema, (1, value)), 5))
    )
    assert found["sqlType"]["b"] == number


@pytest.mark.parametrize(
    ("name", "number", "shown"),
    [("geometry", 2004, "blob"), ("inet6", 2005, "text"), ("uuid", 2005, "text")],
)
@pytest.mark.parametrize("full", [False, True])
def test_types_that_stand_for_others(name: str, number: int, shown: str, full: bool) -> None:
    assert (sql_type(SqlType(name)), mysql_type(SqlType(name), full)) == (number, shown)


def test_what_is_no_number_is_zero() -> None:
    schema = table(SqlType("int"), SqlType("double"), SqlType("float"))
    rows = inserts(schema, (1, float("nan"), float("-inf")))
    found = json.loads(text(codec_for(CanalJson, spec(KAFKA)).encode_rows(rows, 5)))
    assert found["data"] == [{"a": "1", "b": "0", "c": "0"}]


WORDS = {
    "CREATE": {3},
    "RENAME": {14},
    "CINDEX": {7, 9, 32},
    "DINDEX": {8, 10, 33},
    "ALTER": {5, 6, 12, 13, 15, 17, 18, 19, 20, 22, 23, 41, 61, 64, 71, 72},
    "ERASE": {4},
    "TRUNCATE": {11},
    "QUERY": {0, 1, 2, 21, 24, 26, 42},
}


@pytest.mark.parametrize("kind", DdlKind, ids=lambda k: k.name)
def test_schema_changes(kind: DdlKind) -> None:
    codec = codec_for(CanalJson, spec(f"{KAFKA}?enable-tidb-extension=true"))
    change = SchemaChange(5 << 18, kind, 'alter "<x>"\n', TableId("d", "t"))
    encoded = codec.encode_schema_change(change, 9)
    assert encoded is not None
    (word,) = (w for w, kinds in WORDS.items() if kind in kinds)
    assert text(encoded) == (
        f'{{"id":0,"database":"d","table":"t","pkNames":null,"isDdl":true,"type":"{word}","es":5,'
        '"ts":9,"sql":"alter \\"\\u003cx\\u003e\\"\\n","sqlType":null,"mysqlType":null,"data":null,'
        f'"old":null,"_tidb":{{"commitTs":{5 << 18}}}}}'
    )
    (found,) = codec.decode(bytes(encoded.value_bytes()), INT_TEXT)
    assert isinstance(found, SchemaChange) and int(found.kind) in WORDS[word]
    assert (found.commit_ts, found.query, found.table) == (5 << 18, change.query, change.table)


def test_watermarks_need_the_extension() -> None:
    assert codec_for(CanalJson, spec(KAFKA)).encode_watermark(Watermark(7), 9) is None
    codec = codec_for(CanalJson, spec(f"{KAFKA}?enable-tidb-extension=true"))
    encoded = codec.encode_watermark(Watermark(7 << 18), 9)
    assert encoded is not None
    assert list(codec.decode(bytes(encoded.value_bytes()), INT_TEXT)) == [Watermark(7 << 18)]


def test_reading_takes_keys_in_any_order_and_spaces() -> None:
    backwards = dict(reversed(message(type="UPDATE", old=[{"b": "o", "a": "1"}]).items()))
    raw = json.dumps(backwards, indent=1, ensure_ascii=False).encode() + b"\r\n"
    parts = read(codec_for(CanalJson, spec()), raw)
    assert images(parts) == [(Op.UPDATE, {"a": 1, "b": "o"}, {"a": 1, "b": "x"})]


def test_commit_ts_comes_from_the_extension_or_the_millisecond() -> None:
    (rows,) = read(
        codec_for(CanalJson, spec()), message(es=3), message(_tidb={"x": {}, "commitTs": 786433})
    )
    assert rows.commit_ts.tolist() == [3 << 18, 786433]


def test_unknown_columns_are_passed_over_and_missing_ones_absent() -> None:
    (rows,) = read(codec_for(CanalJson, spec()), message(data=[{"z": "9", "b": "x"}]))
    assert rows.after.to_pylist() == [{"b": "x"}]


def test_rows_with_other_columns_start_a_new_chunk() -> None:
    few = {"type": "DELETE", "data": [{"a": "1"}]}
    parts = read(
        codec_for(CanalJson, spec()),
        message(),
        message(**few),
        message(),
        message(**few),
        message(type="DELETE"),
        message(data=[{"b": "y"}]),
    )
    assert [len(p) for p in parts] == [4, 1, 1]
    assert [p.before.type.num_fields for p in parts[:2]] == [1, 2]
    assert [s for p in parts for s in p.batch.column("seq").to_pylist()] == list(range(6))


def test_blocks_keep_the_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(canal_json_reader, "_LEAST", 1)
    monkeypatch.setattr(canal_json_reader, "_MOST", 3)
    codec = codec_for(CanalJson, spec(**{"enable-tidb-extension": True}))
    rows = inserts(INT_TEXT, *((i, f"v{i}") for i in range(10)))
    parts = list(codec.decode(bytes(codec.encode_rows(rows, 5).value_bytes()), INT_TEXT))
    assert len(parts) == 4
    assert [i for p in parts for i in p.after.to_pylist()] == rows.after.to_pylist()
    assert [t for p in parts for t in p.commit_ts.tolist()] == rows.commit_ts.tolist()


def test_another_terminator_may_stand_inside_values() -> None:
    codec = codec_for(CanalJson, spec(terminator="}"))
    rows = inserts(INT_TEXT, (1, "}}}"), (2, "{"))
    (found,) = codec.decode(bytes(codec.encode_rows(rows, 5).value_bytes()), INT_TEXT)
    assert isinstance(found, Rows) and found.after.equals(rows.after)


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (b"[]\r\n", "row 2: it is not a canal-json object"),
        (b"{}\r\n", "row 2: it is not a canal-json object"),
        (b'{"type":"INSERT","data":[{"a":}]}\r\n', "row 2: it is not"),
        (b'{"type":"INSERT","data":[{"a":{}}]}\r\n', "row 2: it is not"),
        (b'{"type":"INSERT","data":[{"a":"1"},{"a":"2"}]}\r\n', "row 2: it is not"),
        (b'{"type":"INSERT","data":[nul]}\r\n', "row 2: it is not"),
        (b'{"type":"INSERT","data":nul}\r\n', "row 2: it is not"),
        (b'{"type":"INSERT","es":99999999999999999999}\r\n', "row 2: it is not"),
        (json.dumps(message()).encode() + b"\n", "row 2: it does not end with the terminator"),
        (json.dumps(message(data=None)).encode() + b"\r\n", "row 2: it has no data"),
        (json.dumps(message(data=[{"z": "1"}])).encode() + b"\r\n", "row 2: it has no column of"),
        (json.dumps(message(type="OTHER")).encode() + b"\r\n", "row 2: it is neither a row change"),
        (json.dumps(message(data=[{"a": "x"}])).encode() + b"\r\n", "row 2, column 'a': 'x' is no"),
        (b'{"type":"INSERT","data":[{"a":"1","b":"\\x"}]}\r\n', "row 2, column 'b'"),
        (b'{"type":"INSERT","data":[{"a":"1","b":"\\u12"}]}\r\n', "row 2, column 'b'"),
        (b'{"type":"INSERT","data":[{"a":"1","b":"\xff"}]}\r\n', "row 2, column 'b'"),
    ],
)
def test_malformed_messages_are_errors_with_a_place(bad: bytes, words: str) -> None:
    with pytest.raises(DecodeError) as caught:
        read(codec_for(CanalJson, spec()), message(), bad)
    assert words in str(caught.value)


def test_binary_text_beyond_latin1_is_an_error() -> None:
    schema = table(SqlType("int"), SqlType("blob"))
    for shown in ("€", "\\u20ac"):
        raw = f'{{"type":"INSERT","data":[{{"a":"1","b":"{shown}"}}]}}\r\n'.encode()
        with pytest.raises(DecodeError, match="row 1, column 'b': .* is no latin-1 text"):
            read(codec_for(CanalJson, spec()), raw, schema=schema)


def test_escapes_of_other_writers_are_read() -> None:
    raw = rb'{"type":"INSERT","data":[{"\u0061":"1","b":"\/\b\f\ud83d\ude00\ud800"}]}' + b"\r\n"
    assert images(read(codec_for(CanalJson, spec()), raw)) == [
        (Op.INSERT, None, {"a": 1, "b": "/\b\f\U0001f600\ufffd"})
    ]


def test_every_cut_of_a_file_is_an_error_or_fewer_rows() -> None:
    codec = codec_for(CanalJson, spec(**{"enable-tidb-extension": True}))
    rows = chunk(INT_TEXT, (Op.UPDATE, OLD, {"a": 1, "b": 'é"\\'}), (Op.DELETE, OLD, None))
    values = codec.encode_rows(rows, 5).values.to_pylist()
    data = b"".join(values)
    for cut in range(1, len(data)):
        if cut == len(values[0]):
            continue
        with pytest.raises(DecodeError, match="row [12]"):
            list(codec.decode(data[:cut], INT_TEXT))


# --- messages of a queue --------------------------------------------------------------------------


def received(codec: CanalJson, rows: Rows) -> list[Any]:
    values = codec.encode_rows(rows, 5).values.to_pylist()
    return [change for value in values for change in codec.decode_message(None, value)]


def test_elements_come_back_with_quotes_and_backslashes() -> None:
    codec = codec_for(CanalJson, spec(f"{KAFKA}?content-compatible=true"))
    names = ("it's", "ends\\", "a\\b c", "line\nbreak")
    schema = table(SqlType("int"), SqlType("enum", elements=names))
    (found,) = received(codec, inserts(schema, (1, 2)))
    assert found.table.column("b").type.elements == names


@pytest.mark.parametrize("full", ["false", "true"])
def test_a_message_tells_its_table(full: str) -> None:
    codec = codec_for(
        CanalJson, spec(f"{KAFKA}?enable-tidb-extension=true&content-compatible={full}")
    )
    sql = (
        "create table t (a bigint unsigned, b varbinary(9), c text, d datetime(3), e decimal(9,2),"
        " f enum('x','y'), g set('x'), h bit(9), i time(2), j json, k float, y year, z int(4)"
        " unsigned zerofill, primary key (z, a))"
    )
    schema = parse_create(sql, "test")
    row = (1 << 63, b"\x89", "t", "2020-01-01 00:00:00.123", "1.50", 2, 1, 5, "-01:00:00.25")
    (found,) = received(codec, inserts(schema, (*row, '{"a": 1}', 0.5, 1999, 7)))
    assert [c.type.name for c in found.table.columns] == [c.type.name for c in schema.columns]
    assert [c.type.unsigned for c in found.table.columns] == [
        c.type.unsigned for c in schema.columns
    ]
    assert found.table.column("f").type.elements == (("x", "y") if full == "true" else ())
    assert (
        found.after.to_pylist()
        == inserts(schema, (*row, '{"a": 1}', 0.5, 1999, 7)).after.to_pylist()
    )
    assert (found.table.id, found.table.table_id, found.table.version) == (schema.id, 0, 0)
    assert found.table.primary_key == ("a", "z")
    (again,) = received(codec, inserts(schema, (*row, None, None, None, 7)))
    assert again.table is found.table


def test_messages_have_the_routed_names() -> None:
    codec = codec_for(CanalJson, spec(KAFKA))
    routed = replace(INT_TEXT, target=TableId("there", 'x"'))
    (found,) = received(codec, inserts(routed, (1, "x")))
    assert found.table.id == routed.target
    change = SchemaChange(1, DdlKind.DROP_TABLE, "drop", INT_TEXT.id, target=routed.target)
    encoded = codec.encode_schema_change(change, 5)
    assert encoded is not None
    (told,) = codec.decode_message(None, encoded.values[0].as_py())
    assert isinstance(told, SchemaChange) and told.table == routed.target


def test_messages_with_only_updated_columns_come_back_whole() -> None:
    codec = codec_for(CanalJson, spec(f"{KAFKA}?only-output-updated-columns=true"))
    rows = chunk(INT_TEXT, (Op.UPDATE, OLD, NEW), (Op.UPDATE, OLD, OLD), (Op.DELETE, OLD, None))
    found = received(codec, rows)
    assert images(found) == images([rows])


def test_a_keyless_table_has_no_key_in_messages() -> None:
    keyless = TableSchema(INT_TEXT.id, 1, 1, INT_TEXT.columns)
    (found,) = received(codec_for(CanalJson, spec(KAFKA)), inserts(keyless, (1, "x")))
    assert found.table.indexes == ()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "row 1: it does not tell its columns' types"),
        ({"mysqlType": {"a": "int"}}, "row 1: it does not tell its columns' types"),
        ({"mysqlType": {"a": "int", "b": 5}}, "row 1: it does not tell its columns' types"),
        ({"mysqlType": {"a": "int", "b": "thing"}}, "row 1: mysqlType: "),
        ({"mysqlType": ["a", "b"]}, "row 1: it does not tell its columns' types"),
        ({"data": {"a": "1"}}, "row 1: a row image is no list of one object"),
        ({"data": [{"a": 1}]}, "row 1: a row image is no list of one object"),
        ({"es": None, "mysqlType": {"a": "int", "b": "text"}}, "row 1: it has neither commitTs"),
        ({"_tidb": [1]}, "row 1: it is not a canal-json object"),
        ({"type": "OTHER", "data": None}, "row 1: it is neither a row change"),
        ({"type": "INSERT", "data": None}, "row 1: it has no data"),
        (
            {"data": [{"a": "x"}], "mysqlType": {"a": "int"}},
            "row 1, column 'a': 'x' is no value of int",
        ),
    ],
)
def test_malformed_messages_of_a_queue(changes: dict[str, Any], words: str) -> None:
    text = json.dumps(message(pkNames=["a"], **changes)).encode()
    with pytest.raises(DecodeError) as caught:
        list(codec_for(CanalJson, spec(KAFKA)).decode_message(None, text))
    assert words in str(caught.value)


@pytest.mark.parametrize("mark", ["1e999", "[1]", "null"])
def test_a_watermark_without_a_number_is_refused(mark: str) -> None:
    text = f'{{"isDdl": false, "type": "TIDB_WATERMARK", "_tidb": {{"watermarkTs": {mark}}}}}'
    with pytest.raises(DecodeError, match="neither a row change, nor a DDL, nor a watermark"):
        canal_json_reader.read_note(text.encode(), 1)
