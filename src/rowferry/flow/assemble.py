"""The diagram as one function: the only module that knows all five stages.

log ──▶ capture ──▶ decide ──▶ dispatch ──▶ encode ──▶ sink ──▶ receipts
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import pyarrow as pa

from rowferry.change.plan import Output, Plan, Receipt, Segment, TableSlice
from rowferry.change.table import TableSchema
from rowferry.errors import OptionsConflict
from rowferry.flow.capture.contract import Source
from rowferry.flow.decide.decisions import Decisions
from rowferry.flow.dispatch.by_slice import BySlice
from rowferry.flow.dispatch.contract import Dispatch
from rowferry.flow.encode.contract import Codec, Encoded
from rowferry.flow.sink.contract import Sink
from rowferry.registry import CODECS, SINKS, SOURCES
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.option import OptionTable


@dataclass(frozen=True, slots=True)
class Flow:
    """The five stages of one changefeed, ready to run on the driver or in a task."""

    capture: Source
    decide: Decisions
    dispatch: Dispatch
    encode: Codec
    sink: Sink

    def run_segment(
        self,
        segment: Segment,
        outputs: tuple[Output, ...],
        tables: Mapping[TableSlice, TableSchema],
        planned_at_ms: int,
    ) -> Iterator[Receipt]:
        """Carry one segment from the log to the sink, in a task. Idempotent, as `Sink.write` is."""

        def frames() -> Iterator[tuple[int, Encoded]]:
            for place, one in enumerate(segment.slices):
                head = self.encode.file_head(tables[one]) if self.sink.TRAITS.takes_files else b""
                if head:
                    yield place, Encoded(pa.array([head], pa.large_binary()), rows=0)
            for captured in self.capture.read(segment, tables):  # log     ──▶ Rows
                for decided in self.decide.rows(captured):  # Rows    ──▶ Rows | dropped
                    for place, rows in self.dispatch.route(segment, decided):  # ──▶ (output, Rows)
                        yield place, self.encode.encode_rows(rows, planned_at_ms)  # ──▶ Encoded

        receipts = list(self.sink.write(segment, outputs, frames()))  # ──▶ durable, receipts
        found = self.capture.found(segment)
        return iter([replace(r, found=found) for r in receipts] if found else receipts)


def codec_name(spec: ChangefeedSpec) -> str:
    """Return the codec that the spec asks for."""
    if not spec.protocol:
        known = ", ".join(CODECS.names())
        raise OptionsConflict(
            f"the sink needs a protocol: add ?protocol=… to the sink URI; known: {known}"
        )
    return spec.protocol


def assemble(spec: ChangefeedSpec) -> Flow:
    """Put the stages of one changefeed together. Pure: opens no connection, writes nothing."""
    codec = CODECS.load(codec_name(spec))
    sink = SINKS.load(spec.sink.scheme)
    return Flow(
        capture=SOURCES.load(spec.source.scheme)(spec),
        decide=Decisions(spec),
        dispatch=BySlice(),
        encode=codec(spec),
        sink=sink(spec, codec.TRAITS),
    )


def option_tables(spec: ChangefeedSpec) -> tuple[OptionTable, ...]:
    """Return the option tables of a spec's stages, for checking its configuration."""
    found: list[OptionTable] = []
    for owner in (
        SOURCES.load(spec.source.scheme),
        Decisions,
        CODECS.load(codec_name(spec)),
        SINKS.load(spec.sink.scheme),
    ):
        found += [table for table in owner.TABLES if table not in found]
    return tuple(found)


def tables_of(
    plan: Plan, versions: Mapping[tuple[int, int], TableSchema]
) -> dict[TableSlice, TableSchema]:
    """Return the definition of every slice in a plan."""
    slices = {one for segment in plan.stretch.segments for one in segment.slices}
    return {one: versions[one.table_id, one.version] for one in slices}
