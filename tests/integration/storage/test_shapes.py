"""Feeds of unusual shape on a real object store: many tables, many columns, long rows."""

from __future__ import annotations

import random
from typing import Any, cast

import pyarrow as pa
import pytest
from object_store_kit import files_at, sink_uri, spec_of

from rowferry.change.chunk import Op, Rows, make_rows
from rowferry.change.plan import Plan, Segment, Stretch, TableSlice
from rowferry.change.sqltype import SqlType
from rowferry.change.table import Column, Index, TableId, TableSchema
from rowferry.flow.encode.contract import Codec, Encoded
from rowferry.flow.sink.contract import Owner
from rowferry.flow.sink.storage.paths import DataFile, IndexFile, SchemaFile
from rowferry.flow.sink.storage.reader import StoredData, read_storage
from rowferry.flow.sink.storage.sink import Storage
from rowferry.flow.sink.storage.walk import walk
from rowferry.registry import CODECS, SINKS
from rowferry.testing.servers import Minio

NOON = 1_683_633_600_000 << 18
PLANNED_AT_MS = 1_683_633_601_000
TABLES = 1000
SOME = 100
PER_SEGMENT = 250
COLUMNS = 500


def table(name: str, *more: Column) -> TableSchema:
    columns = (Column(1, "id", SqlType("bigint"), nullable=False), *more)
    primary = Index(1, "PRIMARY", ("id",), unique=True, primary=True)
    return TableSchema(TableId("shop", name), 1, 100, columns, (primary,))


def opened(uri: str) -> tuple[Storage, Codec]:
    spec = spec_of(uri)
    codec: Codec = CODECS.load(spec.protocol)(spec)
    sink = cast("type[Storage]", SINKS.load(spec.sink.scheme))(spec, codec)
    sink.open(Owner("feed", 1), None)
    return sink, codec


def run(sink: Storage, number: int, frames: dict[TableSchema, Encoded], per_segment: int) -> Plan:
    """One micro-batch with a file for each table."""
    tables = list(frames)
    slices = {t: TableSlice(t.id, t.table_id, t.version) for t in tables}
    parts = [tables[i : i + per_segment] for i in range(0, len(tables), per_segment)]
    segments = tuple(
        Segment(n, {}, tuple(slices[t] for t in part), NOON, NOON, 1000)
        for n, part in enumerate(parts)
    )
    known = {s: t for t, s in slices.items()}
    stretch = Stretch(segments, (), {}, watermark=NOON + number)
    outputs, state = sink.allocate(stretch, known)
    plan = Plan(number, 1, PLANNED_AT_MS, stretch, outputs, state)
    receipts = []
    for segment, part in zip(segments, parts, strict=True):
        given = iter([(place, frames[t]) for place, t in enumerate(part)])
        receipts += sink.write(segment, plan.outputs_of(segment.ordinal), given)
    sink.publish(plan, receipts, known)
    return plan


def rows_of(schema: TableSchema, images: list[dict[str, Any]]) -> Rows:
    count = len(images)
    return make_rows(
        schema,
        pa.array([int(Op.INSERT)] * count, pa.int8()),
        pa.array([NOON] * count, pa.uint64()),
        pa.array(range(count), pa.int64()),
        pa.nulls(count, schema.image),
        pa.array(images, schema.image),
    )


def read(uri: str, codec: Codec) -> list[Rows]:
    steps = [s for s in read_storage(files_at(uri)) if isinstance(s, StoredData)]
    changes = [c for s in steps for c in codec.decode(s.content, s.schema)]
    return [c for c in changes if isinstance(c, Rows)]


def test_a_thousand_tables_in_one_flush(s3_server: Minio, prefix: str) -> None:
    uri = sink_uri(s3_server, prefix)
    sink, _ = opened(uri)
    tables = [table(f"t{n:04}") for n in range(TABLES)]
    for number, count in ((1, TABLES), (2, SOME)):
        texts = {t: [b"%d,%s\n" % (number, t.id.table.encode())] for t in tables[:count]}
        frames = {t: Encoded(pa.array(v, pa.large_binary())) for t, v in texts.items()}
        plan = run(sink, number, frames, PER_SEGMENT)
        assert {o.target["number"] for o in plan.outputs} == {number}
    files = files_at(uri)
    found = [kind for _, kind in walk(files)]
    assert sum(isinstance(kind, SchemaFile) for kind in found) == TABLES
    assert sum(isinstance(kind, IndexFile) for kind in found) == TABLES
    assert {k.number for k in found if isinstance(k, DataFile)} == {1, 2}
    assert sum(isinstance(kind, DataFile) for kind in found) == TABLES + SOME
    steps = (s for s in read_storage(files) if isinstance(s, StoredData))
    assert [next(steps).content for _ in range(2)] == [b"1,t0000\n", b"2,t0000\n"]
    sink.probe(Owner("feed", 1))


@pytest.mark.parametrize("protocol", ["csv", "canal-json"])
def test_five_hundred_columns_and_rows_of_ten_megabytes(
    s3_server: Minio, prefix: str, protocol: str
) -> None:
    uri = sink_uri(s3_server, prefix, protocol=protocol, **{"enable-tidb-extension": "true"})
    sink, codec = opened(uri)
    kinds = ("int", "varchar", "double", "decimal", "datetime")
    values: dict[str, Any] = {
        "int": -5, "varchar": 'ä",\r\n', "double": 0.5, "decimal": "12345.6789012345",
        "datetime": "2023-05-09 12:00:00.000000",
    }  # fmt: skip
    sizes = {"varchar": {"length": 50}, "decimal": {"length": 20, "scale": 10}}
    sizes["datetime"] = {"scale": 6}
    columns = [
        Column(2 + n, f"c{n}", SqlType(kind, **sizes.get(kind, {})))
        for n in range(COLUMNS - 1)
        for kind in [kinds[n % len(kinds)]]
    ]
    wide = table("wide", *columns)
    long = table(
        "long", Column(2, "body", SqlType("longtext")), Column(3, "raw", SqlType("longblob"))
    )
    draw = random.Random(3)
    body = "é" * (5 << 20)
    images = {
        wide: [
            {"id": n, **{c.name: values[c.type.name] if n % 2 else None for c in columns}}
            for n in range(40)
        ],
        long: [{"id": n, "body": body, "raw": draw.randbytes(1000)} for n in range(3)],
    }
    written = {t: rows_of(t, given) for t, given in images.items()}
    run(sink, 1, {t: codec.encode_rows(r, PLANNED_AT_MS) for t, r in written.items()}, 2)
    found = {r.table.id.table: r.after.to_pylist() for r in read(uri, codec)}
    assert found == {t.id.table: given for t, given in images.items()}
