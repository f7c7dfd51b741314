"""Plain JSON: what its readers get, and what its own reader makes of other texts."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from codec_kit import codec_for
from rowferry.change.chunk import DdlKind, Op, Rows, SchemaChange, Watermark, make_rows
from rowferry.change.plan import Topic
from rowferry.change.table import TableId, TableSchema
from rowferry.errors import DecodeError, MessageTooLarge
from rowferry.flow.encode.plain_json.codec import PlainJson
from rowferry.mysql.ddl.statement import parse_create
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.uri import Uri

TABLE = parse_create(
    "CREATE TABLE shop.orders (id bigint NOT NULL PRIMARY KEY, v bigint unsigned, d double, "
    "note text, doc json, must json NOT NULL, e enum('a','b'), s set('x','y'), b blob)",
    "shop",
)
ROW: dict[str, Any] = {
    "id": 7,
    "v": (1 << 64) - 1,
    "d": 1e-7,
    "note": 'say "ü"\n',
    "doc": '{"a": [1, "x"], "b": null}',
    "must": "null",
    "e": 2,
    "s": 3,
    "b": b"\x00\xff",
}
READ = {
    **ROW,
    "doc": {"a": [1, "x"], "b": None},
    "must": None,
    "e": "b",
    "s": "x,y",
    "b": "AP8=",
}
AT = 449_000_000_000_000_001


def codec(**section: Any) -> PlainJson:
    source = Uri.parse("range://127.0.0.1:1", "source")
    sink = Uri.parse("http://127.0.0.1:1/", "sink")
    return codec_for(PlainJson, ChangefeedSpec("feed", source, sink, {"sink": {"json": section}}))


def rows(
    changes: list[tuple[Op, dict[str, Any] | None, dict[str, Any] | None]],
    table: TableSchema = TABLE,
) -> Rows:
    return make_rows(
        table,
        pa.array([int(op) for op, _, _ in changes], pa.int8()),
        pa.array([AT] * len(changes), pa.uint64()),
        pa.array(range(len(changes)), pa.int64()),
        pa.array([before for _, before, _ in changes], table.image),
        pa.array([after for _, _, after in changes], table.image),
    )


ALL = rows([(Op.INSERT, None, ROW), (Op.UPDATE, ROW, ROW), (Op.DELETE, ROW, None)])


def written(one: PlainJson, chunk: Rows = ALL) -> list[bytes]:
    found: list[bytes] = one.encode_rows(chunk, 0).values.to_pylist()
    return found


def test_a_key_that_is_not_written_as_a_whole_is_null() -> None:
    """What is left of it would name several rows."""
    table = parse_create(
        "CREATE TABLE shop.t (id int NOT NULL, v int AS (id + 1) VIRTUAL NOT NULL, UNIQUE (id, v))",
        "shop",
    )
    (message,) = written(codec(), rows([(Op.INSERT, None, {"id": 1, "v": 2})], table))
    assert json.loads(message)["key"] is None
    assert json.loads(message)["after"] == {"id": 1}


def test_messages_are_json_with_typed_values() -> None:
    common = {"database": "shop", "table": "orders", "commitTs": AT, "key": {"id": 7}}
    assert [json.loads(v) for v in written(codec())] == [
        {"op": "insert", **common, "before": None, "after": READ},
        {"op": "update", **common, "before": READ, "after": READ},
        {"op": "delete", **common, "before": READ, "after": None},
    ]


def test_json_columns_as_text() -> None:
    (first, *_) = written(codec(**{"json-columns": "text"}))
    found = json.loads(first)["after"]
    assert (found["doc"], found["must"]) == (ROW["doc"], "null")


def test_an_update_without_its_old_row() -> None:
    (found,) = written(codec(), rows([(Op.UPDATE, None, ROW)]))
    assert json.loads(found)["before"] is None
    (back,) = codec().decode(found, TABLE)
    assert isinstance(back, Rows)
    assert back.before.to_pylist() == [None]


def test_routed_names_are_written() -> None:
    routed = replace(TABLE, target=TableId("lake", 'o"1'))
    (found,) = written(codec(), rows([(Op.INSERT, None, ROW)], routed))
    assert [json.loads(found)[k] for k in ("database", "table")] == ["lake", 'o"1']
    change = SchemaChange(AT, DdlKind.DROP_TABLE, "q", TABLE.id, target=TableId("lake", "o"))
    note = codec().encode_schema_change(change, 0)
    assert note is not None
    assert json.loads(note.values[0].as_py())["database"] == "lake"


def test_an_array_of_messages_is_read_like_the_messages() -> None:
    one = codec()
    body = b"[" + b",".join(written(one)) + b"]"
    (back,) = one.decode(body, TABLE)
    assert isinstance(back, Rows)
    assert back.batch.equals(ALL.batch)
    assert list(one.decode(b"[]", TABLE)) == []
    mark = one.encode_watermark(Watermark(AT), 0)
    assert mark is not None
    assert list(one.decode(b"[" + mark.values[0].as_py() + b"]\n", TABLE)) == [Watermark(AT)]


def test_json_null_is_null_where_a_column_may_be_null() -> None:
    one = codec()
    (found,) = one.decode(written(one, rows([(Op.INSERT, None, {**ROW, "doc": "null"})]))[0], TABLE)
    assert isinstance(found, Rows)
    (image,) = found.after.to_pylist()
    assert (image["doc"], image["must"]) == (None, "null")


def test_keys_in_any_order_with_space() -> None:
    text = b"""{ "after" : { "zzz": [1, {"q": "}"}], "note" : "\\u00fc" , "id":1 },
        "commitTs" : 5, "more": {"op": "delete"}, "op" : "insert" }"""
    (found,) = codec().decode(text, TABLE)
    assert isinstance(found, Rows)
    assert (found.op.tolist(), found.commit_ts.tolist()) == ([Op.INSERT], [5])
    assert found.after.to_pylist() == [{"id": 1, "note": "ü"}]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b'{"op":"insert","commitTs":1,"before":null,"after":null}', "lacks the row image"),
        (b'{"op":"delete","commitTs":1,"before":null,"after":{"id":1}}', "lacks the row image"),
        (b'{"op":"insert","commitTs":1,"after":{"id":{"x":1}}}', "not an object of a row change"),
        (b'{"op":"insert","commitTs":1,"after":{"zzz":1}}', "no column of table"),
        (b'{"type":"watermark","commitTs":1e999}', "not an object of a row change"),
        (b'{"op":"upsert","commitTs":1,"after":{"id":1}}', "neither a row change"),
        (b'{"op":"insert","commitTs":1,"after":{"id":"x"}}', "no whole number"),
        (b'{"op":"insert","commitTs":1,"after":{"id":1,"b":"?"}}', "no base64"),
        (b'[{"op":"insert"}', "does not end"),
        (b"[1]", "not an object"),
        (b'{"type":"else"}', "neither a row change"),
    ],
)
def test_what_cannot_be_read(text: bytes, why: str) -> None:
    with pytest.raises(DecodeError, match=rf"row 1.*{why}"):
        list(codec().decode(text, TABLE))


def test_no_cut_of_a_message_is_read_or_crashes() -> None:
    (whole,) = written(codec(), rows([(Op.UPDATE, ROW, ROW)]))
    for end in range(1, len(whole)):
        with pytest.raises(DecodeError, match="row 1"):
            list(codec().decode(whole[:end], TABLE))


# --- without a table ------------------------------------------------------------------------------


def test_a_message_alone_has_guessed_types() -> None:
    (first, *_) = written(codec())
    (found,) = codec().decode_message(None, first)
    assert isinstance(found, Rows)
    table = found.table
    assert (table.id, table.handle_key, table.version) == (TABLE.id, ("id",), 0)
    assert {c.name: c.type.sql for c in table.columns} == {
        "id": "bigint",
        "v": "bigint unsigned",
        "d": "double",
        "note": "longtext",
        "doc": "json",
        "must": "longtext",
        "e": "longtext",
        "s": "longtext",
        "b": "longtext",
    }
    (image,) = found.after.to_pylist()
    assert image == {**ROW, "must": None, "e": "b", "s": "x,y", "b": "AP8="}


@pytest.mark.parametrize(
    ("old", "new", "kind", "read"),
    [
        ("1.5", "1", "double", [1.5, 1.0]),
        ("1", "1.5", "double", [1.0, 1.5]),
        ("18446744073709551615", "1", "bigint unsigned", [(1 << 64) - 1, 1]),
        ("1e+300", "100000000000000000000", "double", [1e300, 1e20]),
        ('{"a":1}', "5", "json", ['{"a":1}', "5"]),
        ('"x"', "5", "json", ['"x"', "5"]),
        ('"x"', "null", "longtext", ["x", None]),
    ],
)
def test_a_guessed_type_holds_the_old_value_and_the_new_one(
    old: str, new: str, kind: str, read: list[Any]
) -> None:
    head = '{"op":"update","database":"d","table":"t","commitTs":1,"key":null'
    text = f'{head},"before":{{"c":{old}}},"after":{{"c":{new}}}}}'
    (found,) = codec().decode_message(None, text.encode())
    assert isinstance(found, Rows)
    assert found.table.columns[0].type.sql == kind
    assert [image[0].as_py()["c"] for image in (found.before, found.after)] == read


def test_messages_in_an_array_alone() -> None:
    body = b"[" + b",".join(written(codec())) + b"]"
    found = list(codec().decode_message(None, body))
    assert [c.op.tolist() for c in found if isinstance(c, Rows)] == [[0], [1], [2]]


@pytest.mark.parametrize("value", [None, b"", b"{", b"7", b'{"op":"insert"}', b'[{"op":"x"}]'])
def test_a_message_alone_that_is_none(value: bytes | None) -> None:
    with pytest.raises(DecodeError):
        list(codec().decode_message(None, value))


# --- limits ---------------------------------------------------------------------------------------


def test_a_message_that_does_not_fit_is_refused_with_its_key() -> None:
    sizes = [len(v) for v in written(codec())]
    fits = Topic("shop.orders", 1, max(sizes))
    assert codec().encode_rows(ALL, 0, fits).row_count == 3
    with pytest.raises(MessageTooLarge, match=r'shop\.orders.*\{"id": 7\}.*max-batch-bytes'):
        codec().encode_rows(ALL, 0, Topic("shop.orders", 1, max(sizes) - 1))
