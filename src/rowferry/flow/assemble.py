"""The diagram as one function: the only module that knows all five stages.

log ──▶ capture ──▶ decide ──▶ dispatch ──▶ encode ──▶ sink ──▶ receipts
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import cast

import pyarrow as pa

from rowferry.change.chunk import Rows
from rowferry.change.plan import Output, Plan, Receipt, Segment, TableSlice, Topic, Volume
from rowferry.change.table import TableSchema
from rowferry.errors import BadUri, OptionsConflict
from rowferry.flow.capture.contract import Source
from rowferry.flow.decide.decisions import Decisions
from rowferry.flow.dispatch.contract import Dispatch, Routed
from rowferry.flow.encode.contract import Codec, Encoded, Format, RowFormat
from rowferry.flow.encode.same_layout import encoded_rows
from rowferry.flow.sink.contract import LaneSink, Packet, RowSink, SegmentSink, Sink
from rowferry.flow.sink.packing import pack
from rowferry.registry import CODECS, ROW_FORMATS, SINKS, SOURCES, load_format
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.feed_options import own_tables
from rowferry.spec.option import OptionTable
from rowferry.spec.secrets import NOTHING_HIDDEN, Hiding
from rowferry.spec.sink_traits import SinkTraits


@dataclass(frozen=True, slots=True)
class Flow:
    """The five stages of one changefeed, ready to run on the driver or in a task."""

    capture: Source
    decide: Decisions
    dispatch: Dispatch
    format: Format
    sink: Sink
    hiding: Hiding = NOTHING_HIDDEN  # of the changefeed's secrets, in words of others

    @property
    def encode(self) -> Codec:
        """The format as a codec, where the sink takes bytes."""
        if isinstance(self.format, RowFormat):
            raise TypeError("a sink of rows has no codec")
        return cast(Codec, self.format)

    def run_segment(
        self,
        segment: Segment,
        outputs: tuple[Output, ...],
        tables: Mapping[TableSlice, TableSchema],
        planned_at_ms: int,
    ) -> Iterator[Receipt]:
        """Carry one segment from the log to the sink, in a task. Idempotent, as `Sink.write` is."""
        tally = _Tally()

        def rows() -> Iterator[tuple[int, Rows]]:
            routed = self._routed(segment, outputs, tables, tally)
            return ((one.place, one.rows) for one in routed)

        def frames() -> Iterator[tuple[int, Encoded]]:
            for place, one in enumerate(segment.slices):
                head = self._file_head(tables[one])
                if head:
                    yield place, Encoded(pa.array([head], pa.large_binary()), rows=0)
            yield from encoded_rows(self.encode, rows(), planned_at_ms)

        if isinstance(self.format, RowFormat):
            seen = [self.decide.seen_as(tables[one]) for one in segment.slices]
            written = cast(RowSink, self.sink).write_rows(segment, outputs, seen, rows())
        else:
            written = cast(SegmentSink, self.sink).write(segment, outputs, frames())
        receipts = list(written)  # Encoded | Rows ──▶ durable, receipts
        found = self.capture.found(segment)
        if found:
            receipts = [replace(r, found=found) for r in receipts]
        return iter(tally.noted_in(receipts))

    def pack_segment(
        self,
        segment: Segment,
        outputs: tuple[Output, ...],
        tables: Mapping[TableSlice, TableSchema],
        planned_at_ms: int,
    ) -> Iterator[Packet | Receipt]:
        """Carry one segment from the log to packets, which `deliver` sends; receipts come last."""
        rows, size = [0] * len(outputs), [0] * len(outputs)
        tally = _Tally()

        def frames() -> Iterator[tuple[Topic, Encoded]]:
            for routed in self._routed(segment, outputs, tables, tally):
                topic = routed.topic
                if topic is None:
                    raise TypeError("a sink with lanes needs a dispatch with topics")
                single = self.encode.encode_rows(routed.rows, planned_at_ms, topic)
                rows[routed.place] += len(routed.rows)
                joined = self.encode.batch(replace(single, partitions=routed.partitions), topic)
                size[routed.place] += joined.nbytes
                yield topic, joined

        yield from pack(segment.ordinal, frames())
        found = self.capture.found(segment)
        receipts = [
            Receipt(segment.ordinal, o.slice, rows[o.slice], size[o.slice], found=found)
            for o in outputs
        ]
        yield from tally.noted_in(receipts)

    def deliver(self, packets: Iterator[Packet]) -> None:
        """Send packets in their order, in a task; on return they are durable."""
        cast(LaneSink, self.sink).deliver(packets)

    def _routed(
        self,
        segment: Segment,
        outputs: tuple[Output, ...],
        tables: Mapping[TableSlice, TableSchema],
        tally: _Tally,
    ) -> Iterator[Routed]:
        for captured in self.capture.read(segment, tables):  # log     ──▶ Rows
            size = captured.batch.nbytes
            tally.captured = tally.captured.plus(len(captured), size)
            # Rows    ──▶ Rows | dropped
            for decided in self.decide.rows(captured, segment.snapshot):
                whole = decided.batch is captured.batch
                tally.decided = tally.decided.plus(
                    len(decided), size if whole else decided.batch.nbytes
                )
                yield from self.dispatch.route(segment, outputs, decided)  # ──▶ Routed

    def _file_head(self, table: TableSchema) -> bytes:
        if not self.sink.TRAITS.takes_files:
            return b""
        return self.encode.file_head(self.decide.seen_as(table))


@dataclass(slots=True)
class _Tally:
    """How much of a segment has passed which stage."""

    captured: Volume = Volume()
    decided: Volume = Volume()

    def noted_in(self, receipts: list[Receipt]) -> list[Receipt]:
        """Return the receipts of the segment, with the tally in the first."""
        noted = [replace(r, captured=self.captured, decided=self.decided) for r in receipts[:1]]
        return noted + receipts[1:]


def sink_traits(scheme: str) -> SinkTraits:
    """Return what the sink of a URI scheme says about itself.

    Raises:
        BadUri: no sink has that scheme; the text lists the known ones.
    """
    if scheme not in SINKS.names():
        known = ", ".join(SINKS.names())
        raise BadUri(f"the sink URI has the unknown scheme {scheme!r}; known: {known}")
    return SINKS.load(scheme).TRAITS


def codec_name(spec: ChangefeedSpec) -> str:
    """Return the codec that the spec asks for, or else its sink's own."""
    name = spec.protocol or sink_traits(spec.sink.scheme).default_protocol
    if not name:
        known = ", ".join([*CODECS.names(), *ROW_FORMATS.names()])
        raise OptionsConflict(
            f"the sink needs a protocol: add ?protocol=… to the sink URI; known: {known}"
        )
    return name


def format_class(spec: ChangefeedSpec) -> type[Format]:
    """Return the class of the spec's protocol.

    Raises:
        OptionsConflict: it makes files of rows, and the sink takes none.
    """
    name = codec_name(spec)
    if name in ROW_FORMATS.names() and not hasattr(SINKS.load(spec.sink.scheme), "write_rows"):
        raise OptionsConflict(
            f"protocol {name} is a format of whole files, which a {spec.sink.scheme} sink cannot "
            f"take; use one of {', '.join(CODECS.names())}, or a storage sink"
        )
    return load_format(name)


def format_of(spec: ChangefeedSpec) -> Format:
    """Return the format that a changefeed's sink is written in."""
    return format_class(spec)(spec, sink_traits(spec.sink.scheme))


def decisions_of(spec: ChangefeedSpec) -> Decisions:
    """Return what decides about a changefeed's tables and rows."""
    source = SOURCES.load(spec.source.scheme)
    return Decisions(spec, sink_traits(spec.sink.scheme), source.STAMPED_BY_ROWS)


def assemble(spec: ChangefeedSpec) -> Flow:
    """Put the stages of one changefeed together. Pure: opens no connection, writes nothing."""
    codec = format_of(spec)
    sink = SINKS.load(spec.sink.scheme)(spec, codec)
    return Flow(
        capture=SOURCES.load(spec.source.scheme)(spec),
        decide=decisions_of(spec),
        dispatch=sink.dispatch,
        format=codec,
        sink=sink,
        hiding=Hiding.of(spec, (*own_tables(sink.TRAITS), *option_tables(spec))),
    )


def option_tables(spec: ChangefeedSpec) -> tuple[OptionTable, ...]:
    """Return the option tables of a spec's stages, for checking its configuration."""
    found: list[OptionTable] = []
    for owner in (
        SOURCES.load(spec.source.scheme),
        Decisions,
        format_class(spec),
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
