"""A changefeed to a local directory, one step at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa

from rowferry.change.chunk import SchemaChange
from rowferry.change.plan import Plan, Receipt, Segment, Stretch, TableSlice
from rowferry.change.sqltype import SqlType
from rowferry.change.table import Column, Index, TableId, TableSchema
from rowferry.flow.encode.contract import CodecTraits, Encoded
from rowferry.flow.sink.contract import Owner
from rowferry.flow.sink.storage.sink import StorageSink
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.uri import Uri

CSV = CodecTraits(".csv", "nowhere", carries_before_image=False, can_omit_columns=False)
OWNER = Owner("feed", 1)


def ts(text: str) -> int:
    """The commit-ts of a moment, UTC unless it says otherwise."""
    moment = datetime.fromisoformat(text if "+" in text else text + "+00:00")
    return round(moment.timestamp() * 1000) << 18


NOON = ts("2023-05-09T12:00:00")
NEXT_DAY = ts("2023-05-10T00:00:00")


def spec_for(root: Path, config: dict[str, Any] | None = None, query: str = "") -> ChangefeedSpec:
    query = f"?fsync=false&{query}" if query else "?fsync=false"
    return ChangefeedSpec(
        "feed",
        Uri.parse("range://127.0.0.1:1", "source"),
        Uri.parse(f"file://{root}{query}", "sink"),
        config or {},
    )


def no_head(table: TableSchema) -> bytes:
    return b""


def storage(
    root: Path,
    config: dict[str, Any] | None = None,
    query: str = "",
    codec: CodecTraits = CSV,
    now: Callable[[], datetime] | None = None,
) -> StorageSink:
    made: Any = SimpleNamespace(TRAITS=codec, file_head=no_head)
    return StorageSink(spec_for(root, config, query), made, now)


def table(name: str = "employee", database: str = "hr", version: int = 100) -> TableSchema:
    columns = (
        Column(1, "Id", SqlType("int"), nullable=False),
        Column(2, "LastName", SqlType("varchar", length=20)),
    )
    indexes = (Index(1, "PRIMARY", ("Id",), unique=True, primary=True),)
    return TableSchema(TableId(database, name), 1, version, columns, indexes)


EMPLOYEE = table()


def slice_of(schema: TableSchema, physical_id: int | None = None) -> TableSlice:
    return TableSlice(schema.id, schema.table_id, schema.version, physical_id)


def segment(
    ordinal: int, *slices: TableSlice, at: int = NOON, log_bytes: int = 1000, until: int = 0
) -> Segment:
    return Segment(ordinal, {}, slices, at, until or at, log_bytes)


def frame(*values: bytes, rows: int | None = None) -> Encoded:
    return Encoded(pa.array(values, pa.large_binary()), rows=rows)


class Feed:
    """Plans, writes and publishes as the loop does, with one table version per slice."""

    def __init__(self, sink: StorageSink, *schemas: TableSchema) -> None:
        self.sink = sink
        self.schemas = {(s.id, s.version): s for s in schemas or (EMPLOYEE,)}
        self.state: dict[str, Any] | None = None
        self.number = 0

    def tables(self, plan: Plan) -> dict[TableSlice, TableSchema]:
        slices = (s for g in plan.stretch.segments for s in g.slices)
        return {s: self.schemas[s.table, s.version] for s in slices}

    def plan(
        self,
        *segments: Segment,
        changes: Sequence[SchemaChange] = (),
        watermark: int | None = NOON,
    ) -> Plan:
        stretch = Stretch(segments, tuple(changes), {}, watermark=watermark)
        tables = {s: self.schemas[s.table, s.version] for g in segments for s in g.slices}
        outputs, state = self.sink.allocate(stretch, tables)
        self.number += 1
        # Through its JSON form: what is run is what was recorded.
        return Plan.from_json(Plan(self.number, 1, 0, stretch, outputs, state).to_json())

    def write(self, plan: Plan, content: bytes = b"row\n") -> list[Receipt]:
        found: list[Receipt] = []
        for part in plan.stretch.segments:
            frames = [(place, frame(content)) for place in range(len(part.slices)) if content]
            outputs = plan.outputs_of(part.ordinal)
            found.extend(self.sink.write(part, outputs, iter(frames)))
        return found

    def publish(self, plan: Plan, receipts: Sequence[Receipt]) -> None:
        self.sink.publish(plan, receipts, self.tables(plan))
        self.state = plan.sink_state

    def run(self, *segments: Segment, content: bytes = b"row\n", **more: Any) -> Plan:
        plan = self.plan(*segments, **more)
        self.publish(plan, self.write(plan, content))
        return plan


def opened(root: Path, *schemas: TableSchema, **options: Any) -> Feed:
    sink = storage(root, **options)
    sink.open(OWNER, None)
    return Feed(sink, *schemas)


def files_in(root: Path) -> dict[str, bytes]:
    """Every file that readers may look at, by its path."""
    own = ("rowferry.owner", "rowferry.lock")
    return {
        str(p.relative_to(root)): p.read_bytes()
        for p in sorted(root.rglob("*"))
        if p.is_file() and p.name not in own
    }


def numbers(plan: Plan) -> list[int]:
    return [o.target["number"] for o in plan.outputs]


def name(number: int) -> str:
    return f"CDC{number:020d}.csv"
