"""One micro-batch as one Spark job: a row per segment, a task per row, receipts back.

Where segments can be written each on its own, the task does everything in one Python process
(fetch, decode, decide, dispatch, encode, write): no row crosses the JVM, and what returns is one
small record per output. A sink with lanes needs the rows of one lane together, in order: then the
first tasks end with packets of encoded messages, one shuffle brings those of a lane together, and
second tasks send them. A micro-batch of one segment needs no shuffle.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any
from zlib import crc32

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from rowferry.change.plan import Output, Plan, Receipt, Segment, TableSlice, Topic
from rowferry.change.table import TableSchema
from rowferry.flow.assemble import Flow, assemble
from rowferry.flow.sink.contract import Packet
from rowferry.flow.sink.packing import from_bytes, to_bytes
from rowferry.registry import SINKS
from rowferry.spark.failure import as_error
from rowferry.spark.session import close_session
from rowferry.spec.changefeed import ChangefeedSpec

_RECEIPT = pa.schema(
    [
        ("segment", pa.int32()),
        ("slice", pa.int32()),
        ("rows", pa.int64()),
        ("bytes", pa.int64()),
        ("source_bytes", pa.int64()),
        ("note", pa.string()),
        ("found", pa.string()),
    ]
)
_PACKET = pa.schema(
    [
        ("lane", pa.int32()),
        ("segment", pa.int32()),
        ("number", pa.int32()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("payload", pa.binary()),
    ]
)
_PACKET_DDL = "lane int, segment int, number int, topic string, partition int, payload binary"
_RECEIPTS_LAST = (1 << 31) - 1
_RECEIPT_DDL = (
    "segment int, slice int, rows long, bytes long, source_bytes long, note string, found string"
)


@lru_cache(maxsize=8)
def _flow_of(spec: str) -> Flow:
    """Return a worker process's stages for a spec; connections in them live from task to task."""
    return assemble(ChangefeedSpec.from_json(json.loads(spec)))


class SegmentTask:
    """What each task runs: its row's segment from the log to the sink."""

    def __init__(
        self,
        spec: ChangefeedSpec,
        plan: Plan,
        tables: Mapping[TableSlice, TableSchema],
    ) -> None:
        self._spec = json.dumps(spec.to_json())
        self._planned_at_ms = plan.planned_at_ms
        self._micro_batch, self._epoch = plan.micro_batch, plan.epoch
        self._segments = {
            s.ordinal: (
                json.dumps(s.to_json()),
                [(o.slice, o.target) for o in plan.outputs_of(s.ordinal)],
                [json.dumps(tables[one].to_json()) for one in s.slices],
            )
            for s in plan.stretch.segments
        }

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run the segments whose ordinals come in; yield their receipts."""
        for batch in batches:
            for ordinal in batch.column(0).to_numpy():
                yield _receipt_batch(list(self.run(int(ordinal))))

    def run(self, ordinal: int) -> Iterator[Receipt]:
        """Run one segment in this process."""
        flow = _flow_of(self._spec)
        if not flow.sink.TRAITS.needs_shuffle:
            return flow.run_segment(*self._work(ordinal))
        receipts: list[Receipt] = []
        self.deliver(_packets(flow.pack_segment(*self._work(ordinal)), receipts))
        return iter(receipts)

    def pack(self, ordinal: int) -> Iterator[Packet | Receipt]:
        """Run one segment in this process as far as its packets."""
        return _flow_of(self._spec).pack_segment(*self._work(ordinal))

    def deliver(self, packets: Iterator[Packet]) -> None:
        """Send packets from this process, as those of this plan and whoever carries it out."""
        number, epoch = self._micro_batch, self._epoch
        _flow_of(self._spec).deliver(
            replace(packet, micro_batch=number, epoch=epoch) for packet in packets
        )

    def _work(
        self, ordinal: int
    ) -> tuple[Segment, tuple[Output, ...], dict[TableSlice, TableSchema], int]:
        segment_text, targets, table_texts = self._segments[ordinal]
        segment = Segment.from_json(json.loads(segment_text))
        tables = {
            one: TableSchema.from_json(json.loads(text))
            for one, text in zip(segment.slices, table_texts, strict=True)
        }
        outputs = tuple(Output(ordinal, place, target) for place, target in targets)
        return segment, outputs, tables, self._planned_at_ms


class PackTask:
    """What each task before a shuffle runs: its row's segment from the log to packets."""

    def __init__(self, task: SegmentTask, lanes: int) -> None:
        self._task, self._lanes = task, lanes

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run the segments whose ordinals come in; yield their packets, then their receipts."""
        for batch in batches:
            for ordinal in batch.column(0).to_numpy():
                for found in self._task.pack(int(ordinal)):
                    yield self._row(found)

    def _row(self, found: Packet | Receipt) -> pa.RecordBatch:
        if isinstance(found, Receipt):
            payload = _receipt_batch([found]).serialize()
            row = (0, found.segment, _RECEIPTS_LAST, "", 0)
        else:
            lane = (crc32(found.topic.name.encode()) + found.partition) % self._lanes
            payload = to_bytes(found.messages)
            where = (json.dumps(found.topic.to_json()), found.partition)
            row = (lane, found.segment, found.number, *where)
        columns = [pa.array([one], kind) for one, kind in zip(row, _PACKET.types[:5], strict=True)]
        bounds = pa.array([0, payload.size], pa.int32()).buffers()[1]
        columns.append(pa.Array.from_buffers(pa.binary(), 1, [None, bounds, payload]))
        return pa.RecordBatch.from_arrays(columns, schema=_PACKET)


class DeliverTask:
    """What each task after a shuffle runs: its lane's packets to the sink."""

    def __init__(self, task: SegmentTask) -> None:
        self._task = task

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Send the packets that come in, in their order; yield the receipts among them."""
        receipts: list[Receipt] = []
        self._task.deliver(_packets(self._found(batches), receipts))
        yield _receipt_batch(receipts)

    def _found(self, batches: Iterator[pa.RecordBatch]) -> Iterator[Packet | Receipt]:
        for batch in batches:
            for at in range(batch.num_rows):
                _, segment, number, topic, partition = (
                    batch.column(i)[at].as_py() for i in range(5)
                )
                payload = batch.column("payload")[at].as_buffer()
                if number == _RECEIPTS_LAST:
                    yield from _receipts(pa.ipc.read_record_batch(payload, _RECEIPT).to_pylist())
                else:
                    where = Topic.from_json(json.loads(topic))
                    yield Packet(segment, number, where, partition, from_bytes(payload))


def _packets(found: Iterator[Packet | Receipt], receipts: list[Receipt]) -> Iterator[Packet]:
    """Yield the packets; receipts go to the list."""
    for one in found:
        if isinstance(one, Receipt):
            receipts.append(one)
        else:
            yield one


def _receipt_batch(receipts: Sequence[Receipt]) -> pa.RecordBatch:
    columns = {
        "segment": [r.segment for r in receipts],
        "slice": [r.slice for r in receipts],
        "rows": [r.rows for r in receipts],
        "bytes": [r.bytes for r in receipts],
        "source_bytes": [r.source_bytes for r in receipts],
        "note": [json.dumps(r.note) for r in receipts],
        "found": [json.dumps(r.found) for r in receipts],
    }
    return pa.RecordBatch.from_pydict(columns, schema=_RECEIPT)


def _receipts(rows: Sequence[Mapping[str, Any]]) -> Iterator[Receipt]:
    for row in rows:
        told = {**row, "note": json.loads(row["note"]), "found": json.loads(row["found"])}
        yield Receipt(**told)


class SparkRunner:
    """Runs plans as Spark jobs."""

    def __init__(self, session: SparkSession) -> None:
        self._session = session

    def run(
        self, spec: ChangefeedSpec, plan: Plan, tables: Mapping[TableSlice, TableSchema]
    ) -> list[Receipt]:
        """Run all segments of a plan and return their receipts.

        On raise, some segments may have been written; running the same plan again completes it.

        Raises:
            RowferryError: the error of the task that failed, with its code and verdict.
        """
        count = len(plan.stretch.segments)
        if not count:
            return []
        task = SegmentTask(spec, plan, tables)
        shuffle = count > 1 and SINKS.load(spec.sink.scheme).TRAITS.needs_shuffle
        try:
            segments = self._session.range(0, count, 1, numPartitions=count)
            if shuffle:
                told = self._by_lane(task, segments)
            else:
                told = segments.mapInArrow(task.__call__, _RECEIPT_DDL)
            rows = told.collect()
        except Exception as err:
            raise as_error(err) from err
        return list(_receipts([r.asDict() for r in rows]))

    def _by_lane(self, task: SegmentTask, segments: DataFrame) -> DataFrame:
        lanes = self._session.sparkContext.defaultParallelism
        packets = segments.mapInArrow(PackTask(task, lanes).__call__, _PACKET_DDL)
        in_order = packets.repartitionById(lanes, packets["lane"]).sortWithinPartitions(
            "segment", "number"
        )
        return in_order.mapInArrow(DeliverTask(task).__call__, _RECEIPT_DDL)

    def close(self) -> None:
        """Stop Spark and its Java process."""
        close_session(self._session)


class InProcessRunner:
    """Runs plans in this process, one segment after the other: for tests and tiny feeds."""

    def run(
        self, spec: ChangefeedSpec, plan: Plan, tables: Mapping[TableSlice, TableSchema]
    ) -> list[Receipt]:
        """Run all segments of a plan and return their receipts."""
        task = SegmentTask(spec, plan, tables)
        return [r for s in plan.stretch.segments for r in task.run(s.ordinal)]

    def close(self) -> None:
        """Nothing to let go."""
