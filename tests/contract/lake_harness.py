"""Each sink of lake tables, read by what stands in its log and by a reader of others."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar
from zlib import crc32

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, QueryBuilder
from sink_harness import (
    FEED,
    FileHarness,
    FlakyFileHarness,
    ObjectHarness,
    SinkHarness,
    table_of,
    text_rows,
)

from rowferry.change.chunk import Rows
from rowferry.change.plan import Receipt, Segment
from rowferry.flow.sink.storage.files import Files
from rowferry.registry import SINKS
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.uri import Uri

ORDERS_LOG = "shop/orders/_delta_log"
_OWN = ("rowferry.owner", "rowferry.lock")


class DeltaHarness(FileHarness):
    """Delta tables in a directory, each change a row: the log's files in their order."""

    scheme: ClassVar[str] = "delta+file"
    mode: ClassVar[str] = "changelog"

    def uri(self) -> str:
        return f"{self.scheme}://{self.place}?fsync=false&mode={self.mode}&optimize-after=0"

    def hand(
        self, sink: Any, part: Segment, outputs: Any, frames: Iterable[tuple[int, list[bytes]]]
    ) -> list[Receipt]:
        tables = [table_of(one) for one in part.slices]
        sizes = [0] * len(tables)

        def rows() -> Iterator[tuple[int, Rows]]:
            number = 0
            for place, values in frames:
                yield place, self.rows(text_rows(tables[place], values, number), values)
                number += len(values)
                sizes[place] += sum(map(len, values))

        receipts = list(sink.write_rows(part, outputs, tables, rows()))
        return [replace(r, bytes=sizes[r.slice]) for r in receipts]

    def rows(self, made: Rows, values: list[bytes]) -> Rows:
        return made

    def content(self) -> dict[str, bytes]:
        """Every file by its path."""
        return {
            str(p.relative_to(self.place)): p.read_bytes()
            for p in sorted(self.place.rglob("*"))
            if p.is_file()
        }

    def actions(self) -> Iterator[dict[str, Any]]:
        """All actions of the table's log, in order."""
        found = self.content()
        for path in sorted(p for p in found if p.startswith(ORDERS_LOG) and p.endswith(".json")):
            yield from (json.loads(line) for line in found[path].splitlines())

    def visible_rows(self) -> list[bytes]:
        found = self.content()
        adds = [a["add"]["path"] for a in self.actions() if "add" in a]
        tables = [pq.read_table(pa.BufferReader(found[f"shop/orders/{p}"])) for p in adds]
        return [v.encode() for t in tables for v in t.column("note").to_pylist()]

    def visible_changes(self) -> list[str]:
        told = (a["commitInfo"]["operationParameters"] for a in self.actions() if "commitInfo" in a)
        return [t["statement"] for t in told if "statement" in t]

    def watermark(self) -> int | None:
        content = self.content().get("rowferry.progress")
        return json.loads(content)["checkpoint-ts"] or None if content else None

    def traces(self) -> dict[str, bytes]:
        found = self.content()
        return {p: d for p, d in found.items() if p not in _OWN and b'"discard"' not in d}


class UpsertHarness(DeltaHarness):
    """The same with a row for each key, as delta-rs reads them; values are their own keys."""

    mode: ClassVar[str] = "upsert"

    def rows(self, made: Rows, values: list[bytes]) -> Rows:
        images = [{"id": crc32(v), "note": v.decode()} for v in values]
        columns = made.batch.columns[:4] + [pa.array(images, made.table.image)]
        return replace(made, batch=pa.RecordBatch.from_arrays(columns, schema=made.batch.schema))

    def visible_rows(self) -> list[bytes]:
        if not (self.place / ORDERS_LOG).is_dir():
            return []
        source = QueryBuilder().register("t", DeltaTable(str(self.place / "shop/orders")))
        found = pa.table(source.execute("SELECT note FROM t ORDER BY note").read_all())
        return [v.encode() for v in found.column("note").to_pylist()]


class FlakyUpsertHarness(UpsertHarness, FlakyFileHarness):
    """Every call fails once, before it was done or after."""


class DeltaObjectHarness(DeltaHarness, ObjectHarness):
    """Delta tables in a bucket, reached through a relay that can be cut."""

    def uri(self) -> str:
        plain = ObjectHarness.uri(self)
        return plain.replace("protocol=csv", f"mode={self.mode}&optimize-after=0")

    def _files(self) -> Files:
        uri = self._uri(self.server.client_port)
        spec = ChangefeedSpec(FEED, self.spec().source, Uri.parse(uri, "sink"))
        sink: Any = SINKS.load(self.scheme)
        return sink.files_of(spec, 16, False)  # type: ignore[no-any-return]

    def content(self) -> dict[str, bytes]:
        files = self._files()
        found = {p: files.get(p) for p in sorted(files.paths(9))}
        return {p: s.data for p, s in found.items() if s is not None}


def _objects(scheme: str) -> type[DeltaObjectHarness]:
    return type(f"DeltaObjectHarness_{scheme}", (DeltaObjectHarness,), {"scheme": scheme})


LAKE_SERVERS = {"delta+azure": "azure_server", "delta+gs": "gcs_server", "delta+s3": "s3_server"}

LAKE_HARNESSES: dict[str, Callable[[Path, pytest.MonkeyPatch], SinkHarness]] = {
    "delta+file": DeltaHarness,
    "delta+file+upsert": UpsertHarness,
    "delta+file+flaky": FlakyUpsertHarness,
    **{scheme: _objects(scheme) for scheme in LAKE_SERVERS},
}
