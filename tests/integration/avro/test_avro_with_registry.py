"""Rows as Avro with a real schema registry, read back by Confluent's own deserializer."""

from __future__ import annotations

import json
import socket
import socketserver
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from decimal import Decimal
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import pyarrow as pa
import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext

from codec_kit import codec_for
from rowferry.change.chunk import Op, Rows, make_rows
from rowferry.change.plan import Topic
from rowferry.change.table import TableSchema
from rowferry.errors import SchemaRefused, SinkUnavailable
from rowferry.flow.encode.avro.codec import Avro
from rowferry.flow.encode.avro.schema import Modes, key_schema, value_schema
from rowferry.mysql.ddl.statement import parse_create
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.uri import Uri
from rowferry.testing.servers import SchemaRegistryServer

Image = dict[str, Any] | None
COMMIT_TS = 1_700_000_000_000 << 18


def avro(url: str, query: str = "") -> Avro:
    sink = f"kafka://broker/topic?protocol=avro&schema-registry={url}&{query}".rstrip("&")
    source = Uri.parse("range://store", "source")
    return codec_for(Avro, ChangefeedSpec("feed", source, Uri.parse(sink, "sink"), {}))


@pytest.fixture
def confluent(schema_registry: SchemaRegistryServer) -> Iterator[SchemaRegistryClient]:
    with SchemaRegistryClient({"url": schema_registry.url}) as client:
        yield client


@pytest.fixture
def topic() -> Topic:
    """A topic of its own: no test sees another one's subjects."""
    return Topic(f"db.t-{uuid4().hex}", 1, 1 << 20)


def subject(topic: Topic, what: str) -> str:
    return f"{topic.name}-{what}"


def table(columns: str, version: int = 1) -> TableSchema:
    ddl = f"create table db.t (id int not null primary key, {columns})"
    return parse_create(ddl).at(version)


def chunk(schema: TableSchema, *changes: tuple[Op, Image, Image]) -> Rows:
    return make_rows(
        schema,
        pa.array([int(op) for op, _, _ in changes], pa.int8()),
        pa.array([COMMIT_TS + i for i in range(len(changes))], pa.uint64()),
        pa.array(range(len(changes)), pa.int64()),
        pa.array([before for _, before, _ in changes], schema.image),
        pa.array([after for _, _, after in changes], schema.image),
    )


def one_insert(schema: TableSchema) -> Rows:
    row = {c.name: 1 if c.name == "id" or not c.nullable else None for c in schema.columns}
    return chunk(schema, (Op.INSERT, None, row))


class Downstream:
    """A table that a consumer keeps up to date, by Confluent's deserializer."""

    def __init__(self, client: SchemaRegistryClient, topic: Topic) -> None:
        self._read = AvroDeserializer(client)
        self._topic = topic
        self.rows: dict[int, dict[str, Any]] = {}

    def apply(self, codec: Avro, rows: Rows) -> None:
        encoded = codec.encode_rows(rows, 0, self._topic)
        assert encoded.keys is not None
        for key, value in zip(encoded.keys.to_pylist(), encoded.values.to_pylist(), strict=True):
            at_key = SerializationContext(self._topic.name, MessageField.KEY)
            at_value = SerializationContext(self._topic.name, MessageField.VALUE)
            found = self._read(key, at_key)
            row = self._read(value, at_value)
            if row is None:
                del self.rows[found["id"]]
            else:
                self.rows[found["id"]] = row


# --- schemas --------------------------------------------------------------------------------------


def test_a_schema_that_is_not_in_the_registry_is_created(
    schema_registry: SchemaRegistryServer, topic: Topic
) -> None:
    codec, schema = avro(schema_registry.url), table("a varchar(9), b decimal(9,2) not null")
    codec.probe()
    rows = chunk(schema, (Op.INSERT, None, {"id": 1, "a": "x", "b": "1.00"}))
    encoded = codec.encode_rows(rows, 0, topic)
    wanted = {"key": key_schema(schema, Modes()), "value": value_schema(schema, Modes(), False)}
    for what, text in wanted.items():
        assert schema_registry.schema(subject(topic, what)) == json.loads(text)
        assert schema_registry.versions(subject(topic, what)) == [1]
    # Another process finds the same ids, also when several ask at once.
    with ThreadPoolExecutor(4) as pool:
        others = [avro(schema_registry.url) for _ in range(4)]
        for again in pool.map(lambda other: other.encode_rows(rows, 0, topic), others):
            assert again.values.equals(encoded.values) and again.keys.equals(encoded.keys)
    assert schema_registry.versions(subject(topic, "value")) == [1]


def test_a_compatible_change_of_the_table_is_a_new_version(
    schema_registry: SchemaRegistryServer, topic: Topic
) -> None:
    codec = avro(schema_registry.url)
    first = codec.encode_rows(one_insert(table("a int")), 0, topic).values.to_pylist()
    wider = table("a int, b varchar(9), c int not null default 5", version=2)
    second = codec.encode_rows(one_insert(wider), 0, topic).values.to_pylist()
    assert first[0][:5] != second[0][:5]
    assert schema_registry.versions(subject(topic, "value")) == [1, 2]
    assert schema_registry.versions(subject(topic, "key")) == [1]
    again = codec.encode_rows(one_insert(table("a int")), 0, topic).values.to_pylist()
    assert again == first  # rows of the older version keep its schema


def test_an_incompatible_change_is_refused_in_the_registrys_words(
    schema_registry: SchemaRegistryServer, topic: Topic
) -> None:
    codec = avro(schema_registry.url)
    codec.encode_rows(one_insert(table("a int")), 0, topic)
    narrow = table("a int, b int not null", version=2)
    for _ in range(2):  # the answer is no other the second time
        with pytest.raises(SchemaRefused, match=rf"409.*{subject(topic, 'value')}.*ncompatible"):
            codec.encode_rows(one_insert(narrow), 0, topic)
    assert schema_registry.versions(subject(topic, "value")) == [1]


# --- rows -----------------------------------------------------------------------------------------


def test_insert_update_and_delete_reach_a_consumer(
    schema_registry: SchemaRegistryServer, confluent: SchemaRegistryClient, topic: Topic
) -> None:
    codec = avro(schema_registry.url, "enable-tidb-extension=true")
    target, schema = Downstream(confluent, topic), table("a varchar(9)")
    old, new = {"id": 1, "a": "x"}, {"id": 1, "a": None}
    target.apply(codec, chunk(schema, (Op.INSERT, None, old)))
    stamp = {"_tidb_commit_ts": COMMIT_TS, "_tidb_commit_physical_time": COMMIT_TS >> 18}
    assert target.rows == {1: {**old, "_tidb_op": "c", **stamp}}
    target.apply(codec, chunk(schema, (Op.UPDATE, old, new)))
    assert target.rows == {1: {**new, "_tidb_op": "u", **stamp}}
    target.apply(codec, chunk(schema, (Op.DELETE, new, None)))
    assert target.rows == {}


TYPES: dict[str, tuple[Any, Any]] = {  # column type: our value, the consumer's
    "tinyint": (-1, -1),
    "int unsigned not null": (4294967295, 4294967295),
    "bigint unsigned default 1": ((1 << 64) - 1, -1),
    "float": (0.5, 0.5),
    "double not null": (0.1, 0.1),
    "decimal(65,30)": (f"-{'9' * 35}.{'9' * 30}", Decimal(f"-{'9' * 35}.{'9' * 30}")),
    "bit(10) default b'1'": (65, b"\0A"),
    "varchar(9) default '<>'": ("ß€", "ß€"),
    "blob": (b"\0\xff", b"\0\xff"),
    "datetime(3) default current_timestamp(3)": (
        "2020-01-01 00:00:00.123",
        "2020-01-01 00:00:00.123",
    ),
    "time": ("-838:59:59", "-838:59:59"),
    "year": (2155, 2155),
    "json": ('{"a": 1}', '{"a": 1}'),
    "enum('a','b,c') default 'a'": (2, "b,c"),
    "set('x','y')": (3, "x,y"),
}


@pytest.mark.parametrize("floats", ["double", "float"])
def test_every_type_reaches_a_consumer_and_comes_back(
    schema_registry: SchemaRegistryServer,
    confluent: SchemaRegistryClient,
    topic: Topic,
    floats: str,
) -> None:
    names = [f"c{i}" for i in range(len(TYPES))]
    schema = table(", ".join(f"{n} {t}" for n, t in zip(names, TYPES, strict=True)))
    ours = {"id": 1, **dict(zip(names, (v[0] for v in TYPES.values()), strict=True))}
    theirs = {"id": 1, **dict(zip(names, (v[1] for v in TYPES.values()), strict=True))}
    nulls = {**ours, "id": 2}
    nulls |= {n: None for n, t in zip(names, TYPES, strict=True) if "not null" not in t}
    rows = chunk(schema, (Op.INSERT, None, ours), (Op.INSERT, None, nulls))
    codec = avro(schema_registry.url, f"avro-float={floats}")
    target = Downstream(confluent, topic)
    target.apply(codec, rows)
    (field,) = (
        f for f in schema_registry.schema(subject(topic, "value"))["fields"] if f["name"] == "c3"
    )
    assert field["type"][1]["type"] == floats
    gone = {n: None for n in names if nulls[n] is None}
    assert target.rows == {1: theirs, 2: {**theirs, "id": 2, **gone}}
    encoded = codec.encode_rows(rows, 0, topic)
    reader = avro(schema_registry.url)
    found = [
        change.after.to_pylist()[0]
        for pair in zip(encoded.keys.to_pylist(), encoded.values.to_pylist(), strict=True)
        for change in reader.decode_message(*pair)
        if isinstance(change, Rows)
    ]
    assert found == [ours, nulls]


# --- outage ---------------------------------------------------------------------------------------


@contextmanager
def way_to(url: str, port: int) -> Iterator[None]:
    """A way through `port` of this machine to a registry, while the block lasts."""
    parts = urlsplit(url)

    def pour(source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)

    class Relay(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with socket.create_connection((parts.hostname or "", parts.port or 0)) as far:
                back = threading.Thread(target=pour, args=(far, self.request), daemon=True)
                back.start()
                pour(self.request, far)
                back.join()

    socketserver.ThreadingTCPServer.allow_reuse_address = True
    with socketserver.ThreadingTCPServer(("127.0.0.1", port), Relay) as server:
        server.daemon_threads = True
        threading.Thread(
            target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
        ).start()
        try:
            yield
        finally:
            server.shutdown()


def test_an_outage_is_retried_and_the_registry_comes_back(
    schema_registry: SchemaRegistryServer, topic: Topic
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
    path = urlsplit(schema_registry.url).path
    codec = avro(f"http://127.0.0.1:{port}{path}")
    known, fresh = one_insert(table("a int")), one_insert(table("a int, b int", version=2))
    with pytest.raises(SinkUnavailable, match=f"{port}.*does not answer"):
        codec.encode_rows(known, 0, topic)
    with way_to(schema_registry.url, port):
        first = codec.encode_rows(known, 0, topic)
    codec._registry._pool.clear()
    assert codec.encode_rows(known, 0, topic).values.equals(first.values)  # nobody is asked
    with pytest.raises(SinkUnavailable):
        codec.encode_rows(fresh, 0, topic)
    with way_to(schema_registry.url, port):
        assert codec.encode_rows(fresh, 0, topic).row_count == 1
