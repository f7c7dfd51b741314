"""The simple codec with `encoding-format = avro`: what another reader of Avro finds in messages."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from codec_kit import codec_for
from rowferry.change.chunk import DdlKind, Op, Rows, SchemaChange, Watermark, make_rows
from rowferry.change.plan import Topic
from rowferry.change.table import TableId
from rowferry.errors import DecodeError, OptionsConflict
from rowferry.flow.encode.simple.avro_form import SCHEMA
from rowferry.flow.encode.simple.codec import Simple
from rowferry.mysql.ddl.statement import parse_create
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.uri import Uri

TOPIC = Topic("t", 2, 1 << 20)
STAMP = 1_700_000_000_000 << 18
TABLE = replace(
    parse_create(
        "create table d.t (id int key, ti tinyint unsigned zerofill, bu bigint unsigned default 3,"
        " f float, d double, de decimal(10,2), b bit(9) default b'101', y year, vc varchar(9),"
        " vb varbinary(9), dt datetime(3), ts timestamp(6) null, tm time(2), e enum('a','b'),"
        " s set('x','y'), j json, unique key u (ti, y))"
    ),
    table_id=7,
    version=11,
)
FULL: dict[str, Any] = {
    "id": -1,
    "ti": 200,
    "bu": (1 << 64) - 1,
    "f": 0.5,
    "d": 0.1,
    "de": "1.50",
    "b": 257,
    "y": 2024,
    "vc": "é<",
    "vb": b"\0\xff",
    "dt": "2020-01-02 03:04:05.678",
    "ts": "2020-01-02 03:04:05.678901",
    "tm": "-10:00:00.25",
    "e": 2,
    "s": 3,
    "j": '{"a": 1}',
}
NULLS = {**dict.fromkeys(FULL), "id": 2}
# What another reader sees: TiCDC's types of values.
SEEN = {
    **FULL,
    "bu": {"value": -1},
    "b": "257",
    "ts": {"location": "UTC", "value": FULL["ts"]},
}
PARSED = fastavro.parse_schema(json.loads(json.dumps(SCHEMA)))


def codec(section: dict[str, Any] | None = None, scheme: str = "kafka", more: Any = None) -> Simple:
    source, sink = Uri.parse("range://store", "source"), Uri.parse(f"{scheme}://h/x", "sink")
    kafka = {"codec-config": {"encoding-format": "avro"}, **(more or {})}
    config = {"sink": {"kafka-config": kafka, **(section or {})}}
    return codec_for(Simple, ChangefeedSpec("feed", source, sink, config))


def rows(*changes: tuple[Op, Any, Any]) -> Rows:
    return make_rows(
        TABLE,
        pa.array([int(op) for op, _, _ in changes], pa.int8()),
        pa.array([STAMP + i for i in range(len(changes))], pa.uint64()),
        pa.array(range(len(changes)), pa.int64()),
        pa.array([before for _, before, _ in changes], TABLE.image),
        pa.array([after for _, _, after in changes], TABLE.image),
    )


def seen(value: bytes) -> tuple[str, dict[str, Any]]:
    """A message as another reader finds it, whole."""
    data = io.BytesIO(value)
    found: Any = fastavro.schemaless_reader(data, PARSED)
    assert not data.read()
    return found["type"], found["payload"]


def test_another_reader_finds_every_value() -> None:
    chunk = rows((Op.INSERT, None, FULL), (Op.UPDATE, FULL, NULLS), (Op.DELETE, NULLS, None))
    values = codec().encode_rows(chunk, 5).values.to_pylist()
    head = {"version": 1, "database": "d", "table": "t", "tableID": 7, "buildTs": 5}
    head |= {"schemaVersion": 11, "claimCheckLocation": None, "handleKeyOnly": None}
    wanted = [("INSERT", SEEN, None), ("UPDATE", NULLS, SEEN), ("DELETE", None, NULLS)]
    for place, (value, (kind, data, old)) in enumerate(zip(values, wanted, strict=True)):
        own = {"type": kind, "commitTs": STAMP + place, "checksum": None, "data": data, "old": old}
        assert seen(value) == ("DML", {**head, **own})


def test_values_have_the_branches_that_tell_their_types() -> None:
    """Of a union, a reader learns which branch it was; numbers alone would not tell."""
    (value,) = codec().encode_rows(rows((Op.INSERT, None, FULL)), 5).values.to_pylist()
    places = {"f": 4, "d": 6, "de": 8, "vb": 10, "ts": 12, "bu": 14, "ti": 2, "b": 8, "s": 2}
    for name, branch in places.items():
        key = bytes([2 * len(name)]) + name.encode()
        assert value.count(key + bytes([branch])) == 1, name


def test_an_update_without_its_old_row_has_none() -> None:
    (value,) = codec().encode_rows(rows((Op.UPDATE, None, FULL)), 5).values.to_pylist()
    assert seen(value)[1]["old"] is None


def test_a_definition_tells_all_of_a_table() -> None:
    lead = codec().encode_rows(rows((Op.INSERT, None, FULL)), 5, TOPIC).lead
    assert lead is not None
    kind, found = seen(lead)
    assert kind == "BOOTSTRAP" and (found["version"], found["buildTs"]) == (1, 5)
    table = found["tableSchema"]
    assert (table["database"], table["table"], table["tableID"], table["version"]) == (
        *("d", "t", 7, 11),
    )
    columns = {c["name"]: c for c in table["columns"]}
    assert list(columns) == list(FULL)
    plain = {"charset": "binary", "collate": "binary", "elements": None}
    assert columns["ti"]["dataType"] == {
        **plain,
        "mysqlType": "tinyint",
        "length": 3,
        "decimal": None,
        "unsigned": True,
        "zerofill": True,
    }
    # TiCDC's decoder rounds times to the digits that it is told.
    numbers = {n: (c["dataType"]["decimal"], c["dataType"]["length"]) for n, c in columns.items()}
    assert (numbers["de"], numbers["ts"]) == ((2, 10), (6, 26))
    assert (numbers["dt"], numbers["tm"]) == ((3, 23), (2, 13))
    assert numbers["f"][0] is None and numbers["id"][0] is None
    assert columns["e"]["dataType"]["elements"] == ["a", "b"]
    defaults = {n: c["default"] for n, c in columns.items() if c["default"] is not None}
    assert defaults == {"bu": "3", "b": "\0\5"}
    assert [c["nullable"] for c in table["columns"]] == [False] + [True] * (len(FULL) - 1)
    assert table["indexes"] == [
        {"name": n, "unique": True, "primary": p, "nullable": not p, "columns": c}
        for n, p, c in (("u", False, ["ti", "y"]), ("primary", True, ["id"]))
    ]


def test_what_was_written_comes_back_by_the_definition() -> None:
    one, reader = codec(), codec()
    chunk = rows((Op.INSERT, None, FULL), (Op.UPDATE, FULL, NULLS), (Op.DELETE, NULLS, None))
    sent = one.batch(one.encode_rows(chunk, 5, TOPIC), TOPIC).values.to_pylist()
    found = [c for value in sent for c in reader.decode_message(None, value)]
    chunks = [c for c in found if isinstance(c, Rows)]
    images = [(c.before.to_pylist()[0], c.after.to_pylist()[0]) for c in chunks]
    assert images == [(None, FULL), (FULL, NULLS), (NULLS, None)]
    types = {c.name: c.type for c in chunks[0].table.columns}
    assert {n: types[n].scale for n in ("dt", "ts", "tm", "de")} == {
        "dt": 3,
        "ts": 6,
        "tm": 2,
        "de": 2,
    }
    assert chunks[0].table.handle_key == ("id",)


def test_digits_of_times_that_only_the_length_tells() -> None:
    """So TiCDC writes them, except of a TIMESTAMP."""
    one, reader = codec(), codec()
    encoded = one.encode_rows(rows((Op.INSERT, None, FULL)), 5, TOPIC)
    assert encoded.lead is not None
    found: Any = fastavro.schemaless_reader(io.BytesIO(encoded.lead), PARSED)
    for column in found["payload"]["tableSchema"]["columns"]:
        if column["dataType"]["mysqlType"] in ("datetime", "time"):
            column["dataType"]["decimal"] = None
    bare = io.BytesIO()
    named = ("com.pingcap.simple.avro.Message", found)
    fastavro.schemaless_writer(bare, PARSED, named)
    sent = [bare.getvalue(), *encoded.values.to_pylist()]
    (row,) = (c for v in sent for c in reader.decode_message(None, v) if isinstance(c, Rows))
    types = {c.name: c.type for c in row.table.columns}
    assert {n: types[n].scale for n in ("dt", "ts", "tm")} == {"dt": 3, "ts": 6, "tm": 2}


def test_schema_changes_and_watermarks() -> None:
    one, reader = codec(), codec()
    change = SchemaChange(STAMP, DdlKind.RENAME_TABLE, "rename", TABLE.id, TABLE, TableId("d", "o"))
    made = one.encode_schema_change(change, 5)
    assert made is not None
    kind, found = seen(made.values[0].as_py())
    assert (kind, found["type"], found["sql"], found["commitTs"]) == (
        *("DDL", "RENAME", "rename", STAMP),
    )
    assert (found["tableSchema"]["table"], found["preTableSchema"]["table"]) == ("t", "o")
    (back,) = reader.decode_message(None, made.values[0].as_py())
    assert isinstance(back, SchemaChange)
    assert (back.kind, back.query, back.table) == (DdlKind.RENAME_TABLE, "rename", TABLE.id)
    bare = one.encode_schema_change(
        SchemaChange(STAMP, DdlKind.DROP_DATABASE, "drop database d", TableId("d", "")), 5
    )
    assert bare is not None
    assert seen(bare.values[0].as_py())[1]["tableSchema"] is None
    mark = one.encode_watermark(Watermark(STAMP), 5)
    assert mark is not None
    assert seen(mark.values[0].as_py()) == (
        *("WATERMARK", {"version": 1, "commitTs": STAMP, "buildTs": 5}),
    )
    assert list(reader.decode_message(None, mark.values[0].as_py())) == [Watermark(STAMP)]


@pytest.mark.parametrize("compression", ["none", "snappy", "lz4"])
@pytest.mark.parametrize("handling", ["handle-key-only", "claim-check"])
def test_a_row_that_is_too_large(handling: str, compression: str, tmp_path: Any) -> None:
    large = {
        "large-message-handle-option": handling,
        "claim-check-storage-uri": f"file://{tmp_path}",
        "large-message-handle-compression": compression,
    }
    one = codec(more={"large-message-handle": large})
    wide = {**FULL, "vc": "".join(chr(0x4E00 + i) for i in range(2000))}
    topic = Topic("t", 1, 2000)
    encoded = one.encode_rows(rows((Op.INSERT, None, wide)), 5, topic)
    *_, value = sent = one.batch(encoded, topic).values.to_pylist()
    assert len(value) < 300
    if compression == "none":
        _, found = seen(value)
        assert found["data"] == {"id": -1}
        assert found["handleKeyOnly"] is True
        assert (found["claimCheckLocation"] is None) == (handling == "handle-key-only")
    (row,) = (c for v in sent for c in one.decode_message(None, v) if isinstance(c, Rows))
    assert row.after.to_pylist() == [{"id": -1} if row.key_only else wide]
    assert row.key_only == (handling == "handle-key-only")


@pytest.mark.parametrize("junk", [b"", b"{}", b"\x16", b"\x16\x06\x06\x04" + bytes(40), b"\x14"])
def test_what_is_no_message_is_refused(junk: bytes) -> None:
    with pytest.raises(DecodeError):
        list(codec().decode_message(None, junk))


def test_lines_of_text_are_refused() -> None:
    with pytest.raises(OptionsConflict, match="encoding-format = avro makes bytes.*set it to json"):
        codec(scheme="http")
