"""The debezium-avro codec: schemas and where they are registered, NULL, names, notes, refusals."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from typing import Any

import fastavro
import pyarrow as pa
import pytest

from codec_kit import codec_for
from rowferry.change.chunk import DdlKind, Op, Rows, SchemaChange, Watermark, make_rows
from rowferry.change.plan import Topic
from rowferry.change.table import TableSchema
from rowferry.errors import (
    BadOption,
    DecodeError,
    EncodeError,
    MessageTooLarge,
    OptionsConflict,
    SchemaRefused,
)
from rowferry.flow.encode.contract import Encoded
from rowferry.flow.encode.debezium_avro.codec import DebeziumAvro
from rowferry.mysql.ddl.statement import parse_create
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.uri import Uri
from rowferry.testing.registry_stub import RegistryStub, registry_stub

TOPIC = Topic("d.t", 1, 1 << 20)
STAMP = 1_700_000_000_123 << 18
WITH_NOTES = "enable-tidb-extension=true&avro-enable-watermark=true"
TABLE = parse_create("create table d.t (id int key, v varchar(9) default 'x', n int)")


@pytest.fixture
def registry() -> Iterator[RegistryStub]:
    with registry_stub() as stub:
        yield stub


def codec(registry: RegistryStub | None, query: str = "", scheme: str = "kafka") -> DebeziumAvro:
    where = f"schema-registry={registry.url}&" if registry else ""
    uri = f"{scheme}://h/x?protocol=debezium-avro&debezium-name=p&{where}{query}".rstrip("&")
    source = Uri.parse("range://store", "source")
    return codec_for(DebeziumAvro, ChangefeedSpec("feed", source, Uri.parse(uri, "sink"), {}))


def rows(table: TableSchema, *changes: tuple[Op, Any, Any], image: Any = None) -> Rows:
    kind = image or table.image
    return make_rows(
        table,
        pa.array([int(op) for op, _, _ in changes], pa.int8()),
        pa.array([STAMP + i for i in range(len(changes))], pa.uint64()),
        pa.array(range(len(changes)), pa.int64()),
        pa.array([before for _, before, _ in changes], kind),
        pa.array([after for _, _, after in changes], kind),
    )


def read(registry: RegistryStub, data: bytes) -> Any:
    """A key or value as another reader of Avro finds it, whole."""
    assert data[0] == 0
    schema = json.loads(registry.schemas[int.from_bytes(data[1:5], "big")])
    rest = io.BytesIO(data[5:])
    found = fastavro.schemaless_reader(rest, fastavro.parse_schema(schema))
    assert not rest.read()
    return found


def values(registry: RegistryStub, encoded: Encoded) -> list[Any]:
    return [v and read(registry, v) for v in encoded.values.to_pylist()]


def one_row(registry: RegistryStub, table: TableSchema, row: Any, query: str = "") -> Any:
    chunk = rows(table, (Op.INSERT, None, row))
    (found,) = values(registry, codec(registry, query).encode_rows(chunk, 7, TOPIC))
    return found["after"]


OLD, NEW = {"id": 1, "v": "é", "n": None}, {"id": 1, "v": "b", "n": 5}


def test_events_keys_and_tombstones(registry: RegistryStub) -> None:
    one = codec(registry)
    chunk = rows(TABLE, (Op.INSERT, None, OLD), (Op.UPDATE, OLD, NEW), (Op.DELETE, NEW, None))
    sent = one.batch(one.encode_rows(chunk, 7, TOPIC), TOPIC)
    assert sent.row_count == 3 and sent.keys is not None
    assert [read(registry, k) for k in sent.keys.to_pylist()] == [{"id": 1}] * 4
    found = values(registry, sent)
    assert found[3] is None
    images = [(v["op"], v["before"], v["after"]) for v in found[:3]]
    assert images == [("c", None, OLD), ("u", OLD, NEW), ("d", NEW, None)]
    source = {"version": "3.5.0.Final", "connector": "rowferry", "name": "p", "snapshot": "false"}
    source |= {"ts_ms": STAMP >> 18, "ts_us": (STAMP >> 18) * 1000, "ts_ns": (STAMP >> 18) * 10**6}
    source |= {"db": "d", "table": "t", "server_id": 0, "file": "", "pos": 0, "row": 0}
    source |= dict.fromkeys(("sequence", "gtid", "thread", "query"))
    assert found[0]["source"] == source
    assert [found[0][f"ts_{unit}"] for unit in ("ms", "us", "ns")] == [7, 7000, 7000000]
    without = codec(registry, "debezium-tombstones-on-delete=false")
    assert len(without.batch(without.encode_rows(chunk, 7, TOPIC), TOPIC).values) == 3


def test_schemas_are_registered_once_under_the_topics_name(registry: RegistryStub) -> None:
    one, chunk = codec(registry), rows(TABLE, (Op.INSERT, None, OLD))
    for _ in range(2):
        one.encode_rows(chunk, 7, TOPIC)
    assert registry.subjects == {"d.t-key": [1], "d.t-value": [2]}
    assert [m for m, _ in registry.requests] == ["POST", "POST"]
    key, value = (json.loads(registry.schemas[n]) for n in (1, 2))
    assert key == {
        "type": "record",
        "name": "Key",
        "namespace": "p.d.t",
        "fields": [{"name": "id", "type": "int"}],
        "connect.name": "p.d.t.Key",
    }
    assert (value["name"], value["namespace"], value["connect.version"]) == ("Envelope", "p.d.t", 2)
    before, after = value["fields"][:2]
    assert before["type"][1]["connect.name"] == "p.d.t.Value"
    assert after == {"name": "after", "type": ["null", "p.d.t.Value"], "default": None}
    assert before["type"][1]["fields"][1:] == [
        {
            "name": "v",
            "type": [{"type": "string", "connect.default": "x"}, "null"],
            "default": "x",
        },
        {"name": "n", "type": ["null", "int"], "default": None},
    ]


def test_a_table_without_a_key_has_no_key_and_no_tombstones(registry: RegistryStub) -> None:
    table, row = parse_create("create table d.t (a int)"), {"a": 1}
    one = codec(registry)
    sent = one.encode_rows(rows(table, (Op.DELETE, row, None)), 7, TOPIC)
    assert sent.keys is None and len(one.batch(sent, TOPIC).values) == 1
    assert list(registry.subjects) == ["d.t-value"]


def test_null_in_a_column_with_a_default(registry: RegistryStub) -> None:
    row = {"id": 1, "v": None, "n": None}
    assert one_row(registry, TABLE, row) == {**row, "v": "x"}
    assert one_row(registry, TABLE, row, "debezium-replace-null-with-default=false") == row


DEFAULTS = (
    "create table d.t (id int key, b1 bit(1) default b'1', b9 bit(9) default b'101', f float"
    " default 1.5, d double default 2.25, de decimal(5,2) default -1.5, bu bigint unsigned default"
    " 7, vb varbinary(3) default 'z', da date default '2020-01-02', e enum('a','b') default 'b')"
)


@pytest.mark.parametrize("bigint", ["long", "precise"])
def test_defaults_of_all_forms_stand_for_null(registry: RegistryStub, bigint: str) -> None:
    table = parse_create(DEFAULTS)
    nulls = {c.name: None if c.name != "id" else 1 for c in table.columns}
    mode = f"debezium-bigint-unsigned-handling-mode={bigint}"
    found = one_row(registry, table, nulls, mode)
    value = json.loads(registry.schemas[2])["fields"][0]["type"][1]
    told = {f["name"]: f["default"] for f in value["fields"] if "default" in f}
    assert {k: v for k, v in found.items() if k not in ("id", "b9", "de", "bu", "vb")} == {
        k: told[k] for k in ("b1", "f", "d", "da", "e")
    }
    assert (found["b9"], found["vb"], str(found["de"]), int(found["bu"])) == (
        *(b"\5\0", b"z", "-1.50", 7),
    )
    assert (told["b9"], told["vb"], told["de"]) == ("\5\0", "z", "ÿj")


def test_a_date_that_no_calendar_has(registry: RegistryStub) -> None:
    table = parse_create("create table d.t (id int key, a date not null, b datetime(6), c date)")
    zero = {"id": 1, "a": "0000-00-00", "b": "0000-00-00 00:00:00.000000", "c": "2020-01-01"}
    assert one_row(registry, table, zero) == {"id": 1, "a": 0, "b": None, "c": 18262}


def test_names_that_avro_does_not_allow(registry: RegistryStub) -> None:
    table = parse_create("create table `my-shop`.`1 t` (`a-b` int key, `ü` int)")
    row, one = {"a-b": 1, "ü": 2}, codec(registry)
    sent = one.encode_rows(rows(table, (Op.INSERT, None, row)), 7, TOPIC)
    assert values(registry, sent)[0]["after"] == {"a_b": 1, "_": 2}
    value = json.loads(registry.schemas[2])
    assert (value["namespace"], value["connect.name"]) == (
        *("p.my_shop._1_t", "p.my_shop._1_t.Envelope"),
    )
    assert sent.keys is not None
    (back,) = one.decode_message(sent.keys[0].as_py(), sent.values[0].as_py())
    assert isinstance(back, Rows)
    assert back.after.to_pylist() == [row] and str(back.table.id) == "my-shop.1 t"
    assert back.table.handle_key == ("a-b",)


def test_two_columns_of_one_name_in_avro_are_refused(registry: RegistryStub) -> None:
    table = parse_create("create table d.t (`a-b` int key, `a_b` int)")
    chunk = rows(table, (Op.INSERT, None, {"a-b": 1, "a_b": 2}))
    with pytest.raises(SchemaRefused, match=r"'a-b' and 'a_b'.*'a_b' both.*column-selectors"):
        codec(registry).encode_rows(chunk, 7, TOPIC)


def test_notes_have_schemas_under_their_own_names(registry: RegistryStub) -> None:
    one = codec(registry, WITH_NOTES)
    change = SchemaChange(STAMP, DdlKind.CREATE_TABLE, "create table t", TABLE.id, TABLE)
    made = [one.encode_schema_change(change, 7), one.encode_watermark(Watermark(STAMP), 7)]
    assert sorted(registry.subjects) == [
        "io.debezium.connector.mysql.SchemaChangeKey",
        "io.debezium.connector.mysql.SchemaChangeValue",
        "p.watermark.Envelope",
        "p.watermark.Key",
    ]
    found: list[Any] = []
    for message in made:
        assert message is not None and message.keys is not None
        found += one.decode_message(message.keys[0].as_py(), message.values[0].as_py())
    told, mark = found
    assert isinstance(told, SchemaChange)
    assert (told.commit_ts, told.kind, told.query) == (STAMP, change.kind, change.query)
    assert mark == Watermark(STAMP)
    assert made[0] is not None
    (value,) = values(registry, made[0])
    (table,) = (c["table"] for c in value["tableChanges"])
    assert [c["name"] for c in table["columns"]] == ["id", "v", "n"]


@pytest.mark.parametrize("query", ["", "enable-tidb-extension=true"])
def test_without_the_option_there_are_no_notes(registry: RegistryStub, query: str) -> None:
    one = codec(registry, query)
    change = SchemaChange(STAMP, DdlKind.CREATE_TABLE, "create table t", TABLE.id, TABLE)
    assert one.encode_schema_change(change, 7) is None
    assert one.encode_watermark(Watermark(STAMP), 7) is None


def test_the_extension(registry: RegistryStub) -> None:
    one = codec(registry, "enable-tidb-extension=true")
    sent = one.encode_rows(rows(TABLE, (Op.INSERT, None, NEW)), 7, TOPIC)
    (value,) = values(registry, sent)
    assert (value["source"]["commit_ts"], value["source"]["cluster_id"]) == (STAMP, "p")
    fields = json.loads(registry.schemas[2])["fields"][0]["type"][1]["fields"]
    assert [f["tidb_type"] for f in fields] == ["INT", "VARCHAR", "INT"]
    assert sent.keys is not None
    (back,) = one.decode_message(sent.keys[0].as_py(), sent.values[0].as_py())
    assert isinstance(back, Rows) and back.commit_ts.tolist() == [STAMP]


def test_a_partial_image_is_refused(registry: RegistryStub) -> None:
    chunk = rows(TABLE, (Op.INSERT, None, {"id": 1}), image=pa.struct([TABLE.image.field("id")]))
    with pytest.raises(EncodeError, match=r"d\.t: debezium-avro cannot leave.*missing: v, n"):
        codec(registry).encode_rows(chunk, 7, TOPIC)


def test_a_row_that_is_too_large_stops_the_feed(registry: RegistryStub) -> None:
    chunk = rows(TABLE, (Op.INSERT, None, NEW))
    with pytest.raises(MessageTooLarge, match="debezium-avro has no other form"):
        codec(registry).encode_rows(chunk, 7, Topic("d.t", 1, 100))


@pytest.mark.parametrize(
    ("query", "scheme", "error", "words"),
    [
        ("avro-enable-watermark=true", "kafka", OptionsConflict, "needs enable-tidb-extension"),
        ("", "file", OptionsConflict, "debezium-avro is for message queues"),
    ],
)
def test_settings_that_cannot_be_kept(
    registry: RegistryStub, query: str, scheme: str, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        codec(registry, query, scheme)


def test_a_schema_registry_is_needed() -> None:
    with pytest.raises(BadOption, match="protocol debezium-avro needs a schema registry"):
        codec(None)


def test_what_is_no_event_is_refused(registry: RegistryStub) -> None:
    one = codec(registry)
    odd: list[Any] = ["string", {"type": "record", "name": "x", "fields": []}, {"type": "map"}]
    odd.append({"type": "record", "name": "x", "fields": [{"name": "a", "type": "x"}]})
    for number, schema in enumerate(odd, 1):
        registry.schemas[number] = json.dumps(schema)
        with pytest.raises(DecodeError):
            list(one.decode_message(None, b"\0" + number.to_bytes(4, "big") + b"\0"))
    for key, value in ((None, None), (None, b"{}"), (None, b"\0\0")):
        with pytest.raises(DecodeError):
            list(one.decode_message(key, value))


def test_a_table_that_is_another_one_at_the_same_commit_ts(registry: RegistryStub) -> None:
    """As after a second reset to one place: its rows need a schema of their own."""
    one = codec(registry)
    other = parse_create("create table d.t (id int key, w int)")
    assert (other.table_id, other.version) == (TABLE.table_id, TABLE.version)
    for table, row in ((TABLE, OLD), (other, {"id": 2, "w": 3}), (TABLE, NEW)):
        encoded = one.encode_rows(rows(table, (Op.INSERT, None, row)), 7, TOPIC)
        assert [v["after"] for v in values(registry, encoded)] == [row]
