"""One micro-batch as one Spark job: a row per segment, a task per row, receipts back.

Where segments can be written each on its own, the task does everything in one Python process
(fetch, decode, decide, dispatch, encode, write): no row crosses the JVM, and what returns is one
small record per output. A sink with lanes needs the rows of one lane together, in order: then the
first tasks end with packets of encoded messages, one shuffle brings those of a lane together, and
second tasks send them. A micro-batch of one segment needs no shuffle.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from rowferry.change.plan import Output, Plan, Receipt, Segment, TableSlice
from rowferry.change.table import TableSchema
from rowferry.flow.assemble import Flow, assemble
from rowferry.flow.parking import refusal_receipts
from rowferry.flow.sink.contract import Packet
from rowferry.registry import SINKS
from rowferry.spark.ended_tasks import JobTasks
from rowferry.spark.failure import as_error
from rowferry.spark.finished_parts import PartListener, PartReporter
from rowferry.spark.lanes import PACKET_DDL, DeliverTask, PackTask, packets_of
from rowferry.spark.packet_spool import clear
from rowferry.spark.receipts import RECEIPT_DDL, read_receipts, receipt_batch
from rowferry.spark.session import close_session
from rowferry.spark.shipping import has_key, packed, unpacked
from rowferry.spark.versions import by_number, scratch_folder
from rowferry.spec.changefeed import ChangefeedSpec


@lru_cache(maxsize=8)
def _flow_of(spec: str) -> Flow:
    """Return a worker process's stages for a spec; connections in them live from task to task."""
    return assemble(unpacked(spec))


@lru_cache(maxsize=16384)
def _table_of(text: str) -> TableSchema:
    """Return a table version; the same one each time, as whoever remembers things by it needs."""
    return TableSchema.from_json(json.loads(text))


class SegmentTask:
    """What each task runs: its row's segment from the log to the sink."""

    def __init__(
        self,
        spec: ChangefeedSpec,
        plan: Plan,
        tables: Mapping[TableSlice, TableSchema],
        with_key: bool = False,
        reporter: PartReporter | None = None,
        is_near: bool = True,
    ) -> None:
        """Make a task; `with_key`: the processes that run it have our key.

        `is_near`: they are on this machine.
        """
        self._reporter = reporter
        self._spec = packed(spec, with_key)
        self._planned_at_ms = plan.planned_at_ms
        self._micro_batch, self._epoch = plan.micro_batch, plan.epoch
        self._quarantine, self._redo = plan.quarantine, plan.redo
        targets: dict[int, list[tuple[int, dict[str, Any]]]] = {}
        for output in plan.outputs:
            targets.setdefault(output.segment, []).append((output.slice, output.target))
        texts = {one: json.dumps(table.to_json()) for one, table in tables.items()}
        self._segments = {
            s.ordinal: (
                json.dumps(s.to_json()),
                targets.get(s.ordinal, []),
                [texts[one] for one in s.slices],
                s.near if is_near else s.near_anywhere,
            )
            for s in plan.stretch.segments
        }

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run the segments whose ordinals come in; yield their receipts."""
        for batch in batches:
            for ordinal in batch.column(0).to_numpy():
                with _flow_of(self._spec).hiding.in_errors():
                    receipts = list(self.run(int(ordinal)))
                self.tell(int(ordinal), receipts)
                yield receipt_batch([*receipts, *self.counted()])

    def run(self, ordinal: int) -> Iterator[Receipt]:
        """Run one segment in this process."""
        flow = _flow_of(self._spec)
        if not flow.sink.TRAITS.needs_shuffle:
            return flow.run_segment(*self._work(ordinal))
        return iter(self.run_lanes([ordinal])[0])

    def run_lanes(self, ordinals: Sequence[int]) -> list[list[Receipt]]:
        """Run segments in this process, with all packets in one call of the sink."""
        flow = _flow_of(self._spec)
        receipts: list[list[Receipt]] = []

        def packets() -> Iterator[Packet]:
            for ordinal in ordinals:
                receipts.append([])
                items = flow.pack_segment(*self._work(ordinal), self._quarantine, self._redo)
                yield from packets_of(items, receipts[-1])

        self.deliver(packets())
        return receipts

    def pack(self, ordinal: int) -> Iterator[Packet | Receipt]:
        """Run one segment in this process as far as its packets."""
        flow = _flow_of(self._spec)
        with flow.hiding.in_errors():
            yield from flow.pack_segment(*self._work(ordinal), self._quarantine, self._redo)

    def tell(self, ordinal: int, receipts: Sequence[Receipt]) -> None:
        """Tell the driver that a segment is done, as far as this task goes."""
        if self._reporter is not None:
            self._reporter.add(
                ordinal, sum(r.rows for r in receipts), sum(r.bytes for r in receipts)
            )

    def counted(self) -> list[Receipt]:
        """Return what happened in this process since the last call, if anything did."""
        flow = _flow_of(self._spec)
        counts = flow.take_counts()
        receipts = [Receipt.of_counts(counts)] if counts else []
        return receipts + refusal_receipts(flow.take_refused())

    def deliver(self, packets: Iterator[Packet]) -> None:
        """Send packets from this process, as those of this plan and whoever carries it out."""
        number, epoch, flow = self._micro_batch, self._epoch, _flow_of(self._spec)
        with flow.hiding.in_errors():  # what a task fails with is written to Spark's log
            mine = (replace(packet, micro_batch=number, epoch=epoch) for packet in packets)
            flow.deliver(mine, self._quarantine)

    def _work(
        self, ordinal: int
    ) -> tuple[Segment, tuple[Output, ...], dict[TableSlice, TableSchema], int]:
        segment_text, targets, table_texts, near = self._segments[ordinal]
        segment = replace(Segment.from_json(json.loads(segment_text)), near=near)
        tables = {
            one: _table_of(text) for one, text in zip(segment.slices, table_texts, strict=True)
        }
        outputs = tuple(Output(ordinal, place, target) for place, target in targets)
        return segment, outputs, tables, self._planned_at_ms


class SparkRunner:
    """Runs plans as Spark jobs; each thread of a process needs a runner of its own."""

    def __init__(self, session: SparkSession, pool: str = "") -> None:
        """Use a session alone, or (`pool`) as one of several with a fair share of it each."""
        self._session, self._pool = session, pool
        self._with_key = has_key(session.sparkContext.getConf())
        # Where all tasks run on this machine, packets need not go through Java.
        self._local = (session.sparkContext.master or "").startswith("local")
        spool = tempfile.mkdtemp("-packets", dir=scratch_folder(session)) if self._local else None
        self._spool = spool
        self.on_part: Callable[[int, int, int], None] | None = None
        self._parts: PartListener | None = None

    @property
    def slots(self) -> int:
        """How many tasks Spark can run at once."""
        return self._session.sparkContext.defaultParallelism

    def run(
        self,
        spec: ChangefeedSpec,
        plan: Plan,
        tables: Mapping[TableSlice, TableSchema],
        tasks: int | None = None,
    ) -> list[Receipt]:
        """Run all segments of a plan and return their receipts; at most `tasks` of them at once.

        On raise, some segments may have been written; running the same plan again completes it.

        Raises:
            RowferryError: the error of the task that failed, with its code and verdict.
        """
        count = len(plan.stretch.segments)
        if not count:
            return []
        reporter = self._part_reporter(count)
        task = SegmentTask(spec, plan, tables, self._with_key, reporter, self._local)
        if self._pool:  # of this thread: Spark keeps it apart from the others'
            self._session.sparkContext.setLocalProperty("spark.scheduler.pool", self._pool)
        shuffle = count > 1 and SINKS.load(spec.sink.scheme).TRAITS.needs_shuffle
        if plan.redo is not None and plan.redo.keeps:  # nothing is sent yet
            shuffle = False
        lanes: JobTasks | None = None
        try:
            parts, first = min(count, tasks or count), plan.stretch.segments[0].ordinal
            segments = self._session.range(first, first + count, 1, numPartitions=parts)
            if shuffle:
                lanes = JobTasks(self._session.sparkContext)
                frame = self._by_lane(task, segments, tasks or self.slots)
            else:
                frame = segments.mapInArrow(task.__call__, RECEIPT_DDL)
            rows = frame.collect()
        except Exception as err:
            clear(self._spool)  # without their packets, lanes that still send end sooner
            if lanes is not None:
                lanes.wait()
            raise as_error(err) from err
        finally:
            clear(self._spool)
            if lanes is not None:
                lanes.forget()
        return list(read_receipts([r.asDict() for r in rows]))

    def _part_reporter(self, count: int) -> PartReporter | None:
        """Return where tasks tell that they are done; a single one tells it by its end."""
        if self.on_part is None or count < 2:
            return None
        if self._parts is None:
            self._parts = PartListener(self._session.sparkContext, self._part_done)
        return self._parts.next_job()

    def _part_done(self, ordinal: int, rows: int, size: int) -> None:
        if self.on_part is not None:
            self.on_part(ordinal, rows, size)

    def _by_lane(self, task: SegmentTask, segments: DataFrame, lanes: int) -> DataFrame:
        packets = segments.mapInArrow(PackTask(task, lanes, self._spool).__call__, PACKET_DDL)
        in_order = by_number(packets, lanes, "lane").sortWithinPartitions("segment", "number")
        return in_order.mapInArrow(DeliverTask(task).__call__, RECEIPT_DDL)

    def close(self) -> None:
        """Stop Spark and its Java process, unless others use the session, too."""
        if self._parts is not None:
            self._parts.close()
        if not self._pool:
            close_session(self._session)
        elif self._spool is not None:
            shutil.rmtree(self._spool, ignore_errors=True)


class InProcessRunner:
    """Runs plans in this process, one segment after the other: for tests."""

    on_part: Callable[[int, int, int], None] | None = None

    def run(
        self, spec: ChangefeedSpec, plan: Plan, tables: Mapping[TableSlice, TableSchema]
    ) -> list[Receipt]:
        """Run all segments of a plan and return their receipts."""
        task = SegmentTask(spec, plan, tables)
        ordinals = [s.ordinal for s in plan.stretch.segments]
        lanes = SINKS.load(spec.sink.scheme).TRAITS.needs_shuffle
        parts = iter(task.run_lanes(ordinals)) if lanes else map(task.run, ordinals)
        receipts: list[Receipt] = []
        for segment, part in zip(plan.stretch.segments, parts, strict=True):
            mine = list(part)
            if self.on_part is not None:
                self.on_part(segment.ordinal, sum(r.rows for r in mine), sum(r.bytes for r in mine))
            receipts += [*mine, *task.counted()]
        return receipts

    def close(self) -> None:
        """Nothing to let go."""
