"""Feeds of unusual shape to a directory and to a real object store, written and read back."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlencode

import pyarrow as pa
import pytest
from object_store_kit import sink_uri, spec_of

from codec_kit import codec_for
from rowferry.change.chunk import Op, Rows, make_rows
from rowferry.change.plan import Plan, Segment, Stretch, TableSlice
from rowferry.change.sqltype import SqlType
from rowferry.change.table import Column, Index, TableId, TableSchema
from rowferry.downstream.rebuild.stored_feed import open_storage
from rowferry.downstream.rebuild.table import plan_tables, rebuild_here
from rowferry.flow.encode.contract import Codec, Encoded
from rowferry.flow.sink.contract import Owner
from rowferry.flow.sink.storage.files import walk
from rowferry.flow.sink.storage.paths import DataFile, IndexFile, SchemaFile
from rowferry.flow.sink.storage.sink import StorageSink
from rowferry.registry import CODECS, SINKS

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


def opened(uri: str) -> tuple[StorageSink, Codec]:
    spec = spec_of(uri)
    codec: Codec = codec_for(CODECS.load(spec.protocol), spec)
    sink = cast("type[StorageSink]", SINKS.load(spec.sink.scheme))(spec, codec)
    sink.open(Owner("feed", 1), None)
    return sink, codec


def run(
    sink: StorageSink, number: int, frames: dict[TableSchema, Encoded], per_segment: int
) -> Plan:
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


@pytest.fixture(params=["file", "s3"])
def place(request: pytest.FixtureRequest, prefix: str, tmp_path: Path) -> Callable[..., str]:
    """Makes the sink URI of a place of the test's own."""

    def uri(**settings: str) -> str:
        if request.param == "file":
            return f"file://{tmp_path}/out?" + urlencode({"fsync": "false", **settings})
        return sink_uri(request.getfixturevalue("s3_server"), prefix, **settings)

    return uri


def test_a_thousand_tables_in_one_flush(place: Callable[..., str]) -> None:
    uri = place(protocol="canal-json", **{"enable-tidb-extension": "true"})
    sink, codec = opened(uri)
    tables = [
        table(f"t{n:04}", Column(2, "v", SqlType("varchar", length=9))) for n in range(TABLES)
    ]
    for number, count in ((1, TABLES), (2, SOME)):
        frames = {
            t: codec.encode_rows(rows_of(t, _images(t, number)), PLANNED_AT_MS)
            for t in tables[:count]
        }
        plan = run(sink, number, frames, PER_SEGMENT)
        assert {o.target["number"] for o in plan.outputs} == {number}
    feed = open_storage(uri)
    found = [kind for _, kind in walk(feed.files)]
    assert sum(isinstance(kind, SchemaFile) for kind in found) == TABLES
    assert sum(isinstance(kind, IndexFile) for kind in found) == TABLES
    assert {k.number for k in found if isinstance(k, DataFile)} == {1, 2}
    assert sum(isinstance(kind, DataFile) for kind in found) == TABLES + SOME
    plans = plan_tables(feed)
    assert [p.lineage.table for p in plans] == [t.id for t in tables]
    for t, plan in zip(tables[::25], plans[::25], strict=True):
        last = 2 if t in tables[:SOME] else 1
        rows = rebuild_here(plan).sort_by("id").to_pylist()
        assert rows == [row for n in range(1, last + 1) for row in _images(t, n)]
    sink.probe(Owner("feed", 1))


def _images(schema: TableSchema, number: int) -> list[dict[str, Any]]:
    return [{"id": 3 * number + n, "v": schema.id.table} for n in range(3)]


@pytest.mark.parametrize("protocol", ["csv", "canal-json"])
def test_five_hundred_columns_and_rows_of_ten_megabytes(
    place: Callable[..., str], protocol: str
) -> None:
    uri = place(protocol=protocol, **{"enable-tidb-extension": "true", "compression": "zstd"})
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
    rebuilt = [rebuild_here(plan).sort_by("id") for plan in plan_tables(open_storage(uri))]
    found = dict(zip(("long", "wide"), (t.to_pylist() for t in rebuilt), strict=True))
    assert found == {t.id.table: given for t, given in images.items()}
