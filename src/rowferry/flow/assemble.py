"""The diagram as one function: the only module that knows all five stages.

log ──▶ capture ──▶ decide ──▶ dispatch ──▶ encode ──▶ sink ──▶ receipts
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol, cast, runtime_checkable

import numpy as np
import pyarrow as pa

from rowferry.change.chunk import Rows
from rowferry.change.event_counts import EventCounts, summed
from rowferry.change.plan import (
    Output,
    Plan,
    Receipt,
    RedoStep,
    Segment,
    TableSlice,
    Topic,
    Volume,
)
from rowferry.change.quarantine import PlanQuarantine, RefusedKey, RefusedRows, as_error
from rowferry.change.sampled_change import SampleMode
from rowferry.change.table import TableSchema
from rowferry.errors import BadUri, MessageTooLarge, OptionsConflict
from rowferry.flow.capture.contract import Source
from rowferry.flow.decide.decisions import Decisions, WritableKinds
from rowferry.flow.dispatch.contract import Dispatch, Routed
from rowferry.flow.encode.contract import Codec, Encoded, Format, RowFormat
from rowferry.flow.encode.same_layout import encoded_rows
from rowferry.flow.parking import Parking, parked_rows, refusal_of
from rowferry.flow.redo.log import RedoLog
from rowferry.flow.redo.place import redo_log_of
from rowferry.flow.rereading import reread_rows
from rowferry.flow.sampling import Sampler
from rowferry.flow.sink.contract import (
    HasUpkeep,
    LaneSink,
    NamesRefused,
    Owner,
    Packet,
    RowSink,
    SegmentSink,
    Sink,
)
from rowferry.flow.sink.packing import pack
from rowferry.names import protocols
from rowferry.registry import ROW_FORMATS, SINKS, SOURCES, load_format
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.feed_options import FeedOptions, own_tables
from rowferry.spec.option import OptionTable
from rowferry.spec.quarantine import QuarantineOptions
from rowferry.spec.reach import Reach
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
    sample: SampleMode = SampleMode.OFF  # what is kept of the last changes, for people
    refused: RefusedRows = field(default_factory=RefusedRows)  # that tasks find
    quarantine: QuarantineOptions = field(default_factory=lambda: QuarantineOptions.read({}))
    redo: RedoLog | None = None  # where what the sink gets is kept first

    @property
    def encode(self) -> Codec:
        """The format as a codec, where the sink takes bytes."""
        if isinstance(self.format, RowFormat):
            raise TypeError("a sink of rows has no codec")
        return cast(Codec, self.format)

    def probe_target(self, owner: Owner) -> None:
        """Ask whether a changefeed may write; writes nothing. Raises as `Sink.probe`."""
        self.format.probe()
        self.sink.probe(owner)
        if self.redo is not None:
            self.redo.probe()

    def run_segment(
        self,
        segment: Segment,
        outputs: tuple[Output, ...],
        tables: Mapping[TableSlice, TableSchema],
        planned_at_ms: int,
    ) -> Iterator[Receipt]:
        """Carry one segment from the log to the sink, in a task. Idempotent, as `Sink.write` is."""
        if segment.upkeep:
            made = cast(HasUpkeep, self.sink).do_upkeep(segment.read)
            return iter([Receipt(segment.ordinal, 0, 0, 0, segment.log_bytes, note=made)])
        tally = _Tally(Sampler(self.sample, segment.snapshot))

        def rows() -> Iterator[tuple[int, Rows]]:
            for one in self._routed(segment, outputs, tables, tally):
                tally.saw(one)
                yield one.place, one.rows

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
        source_facts = self.capture.facts_read(segment)
        if source_facts:
            receipts = [replace(r, source_facts=source_facts) for r in receipts]
        return iter(tally.noted_in(receipts))

    def pack_segment(
        self,
        segment: Segment,
        outputs: tuple[Output, ...],
        tables: Mapping[TableSlice, TableSchema],
        planned_at_ms: int,
        quarantine: PlanQuarantine | None,
        redo: RedoStep | None = None,
    ) -> Iterator[Packet | Receipt]:
        """Carry one segment from the log to packets, which `deliver` sends; receipts come last.

        Rows that the plan parks go with the receipts. By way of the redo log, packets are kept
        there in one step, and there are only receipts; in the next one they come from there.
        """
        if redo is not None and not redo.keeps:
            yield from cast(RedoLog, self.redo).packets(redo.directory, segment.ordinal)
            return
        # Packets of an earlier segment may be under way, and what was refused of them is kept.
        self.refused.allow(0 if quarantine is None else quarantine.noted_keys)
        parking = None if quarantine is None else Parking(quarantine, quarantine.limit)
        rows, size = [0] * len(outputs), [0] * len(outputs)
        tally = _Tally(Sampler(self.sample, segment.snapshot))

        def frames() -> Iterator[tuple[Topic, Encoded]]:
            too_large: list[RefusedKey] = []
            for whole in self._routed(segment, outputs, tables, tally, parking):
                for routed, single in self._encoded(whole, planned_at_ms, too_large):
                    if too_large:  # nothing may overtake them
                        continue
                    topic = routed.topic
                    if topic is None:
                        raise TypeError("a sink with lanes needs a dispatch with topics")
                    tally.saw(routed)
                    rows[routed.place] += len(routed.rows)
                    joined = self.encode.batch(replace(single, partitions=routed.partitions), topic)
                    size[routed.place] += joined.nbytes
                    yield topic, joined
            if too_large:
                raise as_error(too_large)

        packets = pack(segment.ordinal, frames())
        if redo is None:
            yield from packets
        else:
            cast(RedoLog, self.redo).keep(redo.directory, segment.ordinal, packets)
        source_facts = None if segment.parked else self.capture.facts_read(segment)
        receipts = [
            Receipt(
                segment.ordinal, o.slice, rows[o.slice], size[o.slice], source_facts=source_facts
            )
            for o in outputs
        ]
        yield from tally.noted_in(receipts)
        if parking is not None:
            yield from parking.receipts(segment.ordinal)

    def _encoded(
        self, routed: Routed, planned_at_ms: int, too_large: list[RefusedKey]
    ) -> Iterator[tuple[Routed, Encoded]]:
        """Yield rows with their messages; those that must be parked for their size go to a list."""
        if routed.topic is None:
            raise TypeError("a sink with lanes needs a dispatch with topics")
        try:
            yield routed, self.encode.encode_rows(routed.rows, planned_at_ms, routed.topic)
        except MessageTooLarge as err:
            if not self.refused.is_open:
                raise
            if len(routed.rows) == 1:
                too_large.append(refusal_of(routed.rows, err))
                return
            middle = len(routed.rows) // 2
            for places in np.split(np.arange(len(routed.rows)), [middle]):
                lanes = None if routed.partitions is None else routed.partitions[places]
                part = replace(routed, rows=routed.rows.take(places), partitions=lanes)
                yield from self._encoded(part, planned_at_ms, too_large)

    def deliver(self, packets: Iterator[Packet], quarantine: PlanQuarantine | None) -> None:
        """Send packets in their order, in a task; on return they are durable.

        Where refused rows are parked, their keys are to be had by `take_refused`: all but the
        transactions that they were in is durable then, and the plan must be carried out again.
        """
        self.refused.begin(0 if quarantine is None else quarantine.noted_keys)
        cast(LaneSink, self.sink).deliver(packets)

    def take_refused(self) -> tuple[RefusedKey, ...]:
        """Return the keys that were refused since the last call."""
        return self.refused.take()

    def take_counts(self) -> dict[str, int]:
        """Return what happened in the stages since the last call; see `change.event_counts`."""
        stages = (stage for stage in (self.decide, self.sink) if isinstance(stage, CountsEvents))
        return summed(stage.counts.take() for stage in stages)

    def _routed(
        self,
        segment: Segment,
        outputs: tuple[Output, ...],
        tables: Mapping[TableSlice, TableSchema],
        tally: _Tally,
        parking: Parking | None = None,
    ) -> Iterator[Routed]:
        if segment.parked:
            seen = {one: self.decide.seen_as(table) for one, table in tables.items()}
            for rows in parked_rows(segment, seen):
                yield from self.dispatch.route(segment, outputs, rows)
            return
        captured_rows = self.capture.read(segment, tables)
        if segment.reread:
            captured_rows = reread_rows(self, segment, tables, captured_rows)
        for captured in captured_rows:  # log     ──▶ Rows
            size = captured.batch.nbytes
            tally.captured = tally.captured.plus(len(captured), size)
            # Rows    ──▶ Rows | dropped
            for decided in self.decide.rows(captured, segment.snapshot):
                whole = decided.batch is captured.batch
                tally.decided = tally.decided.plus(
                    len(decided), size if whole else decided.batch.nbytes
                )
                passed = decided if parking is None else parking.passed(decided)
                if passed is decided or len(passed):
                    yield from self.dispatch.route(segment, outputs, passed)  # ──▶ Routed

    def _file_head(self, table: TableSchema) -> bytes:
        if not self.sink.TRAITS.takes_files:
            return b""
        return self.encode.file_head(self.decide.seen_as(table))


@dataclass(slots=True)
class _Tally:
    """How much of a segment has passed which stage."""

    sampler: Sampler
    captured: Volume = Volume()
    decided: Volume = Volume()
    last_ts: dict[int, int] = field(default_factory=dict)  # by the place of the slice

    def saw(self, routed: Routed) -> None:
        """Take in rows that go to an output."""
        if len(routed.rows):
            last = int(routed.rows.commit_ts.max())
            self.last_ts[routed.place] = max(last, self.last_ts.get(routed.place, 0))
            self.sampler.saw(routed.rows)

    def noted_in(self, receipts: list[Receipt]) -> list[Receipt]:
        """Return the receipts of the segment, with the tally in the first."""
        dated = [replace(r, last_ts=self.last_ts.get(r.slice, 0)) for r in receipts]
        sample = self.sampler.forms()
        noted = [
            replace(r, captured=self.captured, decided=self.decided, sample=sample)
            for r in dated[:1]
        ]
        return noted + dated[1:]


@runtime_checkable
class CountsEvents(Protocol):
    """A stage that counts what happens in it."""

    counts: EventCounts


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
        raise OptionsConflict(
            "the sink needs a protocol: add ?protocol=… to the sink URI; known: "
            f"{', '.join(protocols())}"
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
            f"take; use one of {', '.join(n for n in protocols() if n != name)}, or a storage sink"
        )
    return load_format(name)


def format_of(spec: ChangefeedSpec) -> Format:
    """Return the format that a changefeed's sink is written in."""
    return format_class(spec)(spec, sink_traits(spec.sink.scheme))


def decisions_of(spec: ChangefeedSpec) -> Decisions:
    """Return what decides about a changefeed's tables and rows."""
    source = SOURCES.load(spec.source.scheme)
    # One that does not say so may store keys.
    keeps_keys = getattr(source, "KEEPS_KEYS", True)
    return Decisions(
        spec,
        sink_traits(spec.sink.scheme),
        source.STAMPED_BY_ROWS,
        source.DIALECT,
        WritableKinds(codec_name(spec), format_class(spec).TRAITS.kinds),
        keeps_keys,
    )


def assemble(spec: ChangefeedSpec) -> Flow:
    """Put the stages of one changefeed together. Pure: opens no connection, writes nothing."""
    codec = format_of(spec)
    sink = SINKS.load(spec.sink.scheme)(spec, codec)
    refused = RefusedRows()
    if isinstance(sink, NamesRefused):
        sink.refused = refused
    return Flow(
        capture=SOURCES.load(spec.source.scheme)(spec),
        decide=decisions_of(spec),
        dispatch=sink.dispatch,
        format=codec,
        sink=sink,
        hiding=Hiding.of(spec, secret_tables(spec)),
        sample=SampleMode(spec.options(FeedOptions).sample_changes),
        refused=refused,
        quarantine=spec.options(QuarantineOptions),
        redo=redo_log_of(spec, secret_tables(spec)),
    )


def option_tables(spec: ChangefeedSpec) -> tuple[OptionTable, ...]:
    """Return the option tables of a spec's stages, for checking its configuration."""
    tables: list[OptionTable] = []
    for owner in (
        SOURCES.load(spec.source.scheme),
        Decisions,
        format_class(spec),
        SINKS.load(spec.sink.scheme),
    ):
        tables += [table for table in owner.TABLES if table not in tables]
    return tuple(tables)


def secret_tables(spec: ChangefeedSpec) -> tuple[OptionTable, ...]:
    """Return all option tables that tell which of a changefeed's settings are secret."""
    return (*own_tables(sink_traits(spec.sink.scheme)), *option_tables(spec))


def check_reach(reach: Reach, spec: ChangefeedSpec) -> None:
    """Refuse settings that name more than a server allows, whichever table an option is in.

    Raises:
        NotAllowed, BadOption, SecretsLocked: as `Reach.check` does.
    """
    reach.check(spec, secret_tables(spec))


def sink_secret_tables(spec: ChangefeedSpec) -> tuple[OptionTable, ...]:
    """Return those that tell it of all settings but the source's, which need not be known."""
    stages = (Decisions, format_class(spec), SINKS.load(spec.sink.scheme))
    own = own_tables(sink_traits(spec.sink.scheme))
    return tuple(dict.fromkeys([*own, *(table for stage in stages for table in stage.TABLES)]))


def tables_of(
    plan: Plan, versions: Mapping[tuple[int, int], TableSchema]
) -> dict[TableSlice, TableSchema]:
    """Return the definition of every slice in a plan."""
    slices = {one for segment in plan.stretch.segments for one in segment.slices}
    return {one: versions[one.table_id, one.version] for one in slices}
