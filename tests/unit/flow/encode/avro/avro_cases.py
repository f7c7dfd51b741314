"""Tables, rows and codecs for the tests of this folder, and readers that are not ours."""

from __future__ import annotations

import io
import json
from typing import Any

import fastavro
import pyarrow as pa

from codec_kit import codec_for
from rowferry.change.chunk import Op, Rows, make_rows
from rowferry.change.plan import Topic
from rowferry.change.table import TableSchema
from rowferry.flow.encode.avro.codec import Avro
from rowferry.mysql.ddl.statement import parse_create
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.uri import Uri

Image = dict[str, Any] | None
NOWHERE = "http://127.0.0.1:9"
TOPIC = Topic("shop.orders", 3, 1 << 20)
COMMIT_TS = 1_700_000_000_000 << 18


def spec(config: dict[str, Any] | None = None, sink: str = "", **parameters: Any) -> ChangefeedSpec:
    """A spec for a queue; parameters of the URI are written with underscores."""
    given = {"schema_registry": NOWHERE, **parameters}
    query = "&".join(f"{k.replace('_', '-')}={v}" for k, v in given.items() if v is not None)
    target = Uri.parse(sink or f"kafka://broker:9092/topic?protocol=avro&{query}", "sink")
    return ChangefeedSpec("feed", Uri.parse("range://store", "source"), target, config or {})


def avro(**parameters: Any) -> Avro:
    return codec_for(Avro, spec(**parameters))


def table(columns: str, name: str = "shop.orders") -> TableSchema:
    """A table with these columns after a key `id`."""
    return parse_create(f"create table {name} (id int not null primary key, {columns})").at(7)


def chunk(schema: TableSchema, *changes: tuple[Op, Image, Image]) -> Rows:
    """Changes as (op, before, after), each with a commit-ts of its own."""
    return make_rows(
        schema,
        pa.array([int(op) for op, _, _ in changes], pa.int8()),
        pa.array([COMMIT_TS + i for i in range(len(changes))], pa.uint64()),
        pa.array(range(len(changes)), pa.int64()),
        pa.array([before for _, before, _ in changes], schema.image),
        pa.array([after for _, _, after in changes], schema.image),
    )


def inserts(schema: TableSchema, *rows: dict[str, Any]) -> Rows:
    return chunk(schema, *((Op.INSERT, None, row) for row in rows))


def foreign_read(schema: str, message: bytes) -> Any:
    """What fastavro reads of a message; every byte must be used."""
    binary = io.BytesIO(message[5:])
    found = fastavro.schemaless_reader(binary, fastavro.parse_schema(json.loads(schema)), None)
    assert binary.read() == b""
    return found
