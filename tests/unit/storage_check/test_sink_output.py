"""What the sink writes over days, partitions and versions passes, in every form it can have."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from check_kit import CSV, clean
from obstore.store import MemoryStore
from storage_kit import OWNER, Feed, segment, slice_of, ts

from rowferry.change.chunk import DdlKind, Op, SchemaChange, make_rows
from rowferry.change.plan import TableSlice
from rowferry.change.table import TableSchema
from rowferry.downstream.rebuild.stored_feed import open_storage
from rowferry.downstream.storage_check.check import check_storage
from rowferry.downstream.storage_check.expected import expected_of
from rowferry.downstream.storage_check.listing import Listing
from rowferry.downstream.storage_check.rules import Rule, StorageFindings
from rowferry.flow.assemble import assemble, option_tables, sink_traits
from rowferry.flow.encode.contract import RowFormat
from rowferry.flow.sink.storage.object_files import ObjectFiles
from rowferry.flow.sink.storage.sink import StorageSink
from rowferry.mysql.ddl.statement import parse_create
from rowferry.spec.build import build_spec

START = ts("2023-05-09T10:00:00")
DAYS = [ts(f"2023-05-{text}") for text in ("09T23:59:59", "10T00:00:00", "11T12:00:00")]
ALTERED = ts("2023-05-12T00:00:00")
TABLE = parse_create("CREATE TABLE hr.`a/b` (id INT PRIMARY KEY, v VARCHAR(9), d DATETIME(2))").at(
    START
)
FORMS: dict[str, tuple[str, dict[str, Any]]] = {
    "csv": ("protocol=csv", {"csv": {"include-commit-ts": True}}),
    "csv-month": (
        "protocol=csv&date-separator=month&file-index-digit=6",
        {"terminator": "\n", "csv": {"include-commit-ts": True, "delimiter": "||", "quote": ""}},
    ),
    "csv-year": ("protocol=csv&date-separator=year&transaction-atomicity=table", {}),
    "csv-none": ("protocol=csv&date-separator=none&enable-partition-separator=false", {}),
    "csv-tokyo": ("protocol=csv&time-zone=Asia/Tokyo", {"csv": {"include-commit-ts": True}}),
    "csv-gzip": ("protocol=csv", {"cloud-storage-config": {"compression": "gzip"}}),
    "canal": ("protocol=canal-json&enable-tidb-extension=true", {}),
    "parquet": ("protocol=parquet&transaction-atomicity=table", {}),
    "parquet-images": (
        "protocol=parquet&file-index-digit=6",
        {"parquet": {"layout": "images", "temporal": "string"}},
    ),
    "canal-zstd": ("protocol=canal-json", {"cloud-storage-config": {"compression": "zstd"}}),
}


def written(root: Path, query: str, sink: dict[str, Any]) -> None:
    """Write two partitions over three days, a DDL, and rows of the next version."""
    uri = f"file://{root}?fsync=false&{query}"
    spec, _ = build_spec(
        "range://127.0.0.1:1", uri, {"sink": sink}, "feed", option_tables, sinks=sink_traits
    )
    flow = assemble(spec)
    assert isinstance(flow.sink, StorageSink)
    flow.sink.open(OWNER, None)
    feed = Feed(flow.sink, TABLE, TABLE.at(ALTERED))
    for number, day in enumerate(DAYS):
        run(feed, flow.format, TABLE, day, number * 10)
    after = TABLE.at(ALTERED)
    ddl = SchemaChange(ALTERED, DdlKind.TABLE_COMMENT, "ALTER TABLE x COMMENT 'y'", TABLE.id, after)
    feed.publish(feed.plan(changes=[ddl], watermark=ALTERED), [])
    run(feed, flow.format, after, ALTERED + 1, 100)


def run(feed: Feed, codec: Any, schema: TableSchema, at: int, first: int) -> None:
    partitions: Sequence[int] = (13, 2024)
    slices: list[TableSlice] = [slice_of(schema, part) for part in partitions]
    plan = feed.plan(segment(0, *slices, at=at), watermark=at)
    given = []
    for place, _ in enumerate(slices):
        images = [
            {"id": first + place, "v": 'x",\r\n', "d": "2024-01-02 03:04:05.67"},
            {"id": first + place + 5, "v": None, "d": None},
        ]
        rows = make_rows(
            schema,
            pa.array([Op.INSERT, Op.DELETE], pa.int8()),
            pa.array([at, at], pa.uint64()),
            pa.array([0, 1], pa.int64()),
            pa.array([None, images[1]], schema.image),
            pa.array([images[0], None], schema.image),
        )
        given.append((place, rows))
    (part,) = plan.stretch.segments
    if isinstance(codec, RowFormat):
        tables = [schema] * len(slices)
        written = feed.sink.write_rows(part, plan.outputs_of(0), tables, iter(given))
    else:
        frames = ((place, codec.encode_rows(rows, 0)) for place, rows in given)
        written = feed.sink.write(part, plan.outputs_of(0), frames)
    feed.publish(plan, list(written))


def checked(root: Path, query: str, sink: dict[str, Any], folder: Path) -> StorageFindings:
    spec, _ = build_spec(
        "range://127.0.0.1:1",
        f"file://{root}?{query}",
        {"sink": sink},
        "feed",
        option_tables,
        sinks=sink_traits,
    )
    stored = open_storage(f"file://{root}?{query}")
    return check_storage(Listing(stored.files), expected_of(spec))


@pytest.mark.parametrize("form", FORMS)
def test_what_the_sink_writes_passes(form: str, tmp_path: Path) -> None:
    query, sink = FORMS[form]
    written(tmp_path / "out", query, sink)
    findings = checked(tmp_path / "out", query, sink, tmp_path)
    assert findings.violations == []
    assert findings.rows == 16


def test_objects_of_a_bucket_are_checked_as_files_are() -> None:
    files = ObjectFiles(MemoryStore(), "s3://bucket", "some/prefix")
    for path, content in clean().items():
        files.overwrite(path, content)
    assert not check_storage(Listing(files), CSV).counts
    files.overwrite("hr/notes", b"")
    assert set(check_storage(Listing(files), CSV).counts) == {Rule.UNKNOWN_OBJECT}
