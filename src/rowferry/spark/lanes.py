"""The two kinds of tasks around a shuffle: packets of each segment, then each lane in order."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Protocol

import pyarrow as pa

from rowferry.change.plan import Receipt, Topic
from rowferry.flow.sink.contract import Packet
from rowferry.flow.sink.packing import from_bytes, to_bytes
from rowferry.spark.packet_spool import PacketSpool, fetch, spooling
from rowferry.spark.receipts import RECEIPT, read_receipts, receipt_batch

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
PACKET_DDL = "lane int, segment int, number int, topic string, partition int, payload binary"
_RECEIPTS_LAST = (1 << 31) - 1


class LaneWork(Protocol):
    """What the tasks of one micro-batch do."""

    def pack(self, ordinal: int) -> Iterator[Packet | Receipt]:
        """Run one segment as far as its packets; receipts come last."""

    def tell(self, ordinal: int, receipts: Sequence[Receipt]) -> None:
        """Tell the driver that the packets of a segment are there."""

    def deliver(self, packets: Iterator[Packet]) -> None:
        """Send packets; on return they are durable."""

    def counted(self) -> list[Receipt]:
        """Return what happened in this process, as receipts that have no output."""


class PackTask:
    """What each task before a shuffle runs: its row's segment from the log to packets."""

    def __init__(self, task: LaneWork, lanes: int, spool: str | None = None) -> None:
        """Prepare a job's first tasks; `spool`: a folder that the second ones can read too."""
        self._task, self._lanes, self._spool = task, lanes, spool

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Run the segments whose ordinals come in; yield their packets, then their receipts."""
        for batch in batches:
            for ordinal in batch.column(0).to_numpy():
                receipts: list[Receipt] = []
                with spooling(self._spool) as spool:
                    for item in self._task.pack(int(ordinal)):
                        if isinstance(item, Receipt):
                            receipts.append(item)
                        yield self._row(item, spool)
                for counts in self._task.counted():
                    yield self._row(counts, spool)
                self._task.tell(int(ordinal), receipts)

    def _row(self, item: Packet | Receipt, spool: PacketSpool) -> pa.RecordBatch:
        if isinstance(item, Receipt):
            payload = receipt_batch([item]).serialize()
            row = (0, item.segment, _RECEIPTS_LAST, "", 0)
        else:
            lane = item.topic.lane_of(item.partition) % self._lanes
            payload = spool.put(to_bytes(item.messages))
            where = (json.dumps(item.topic.to_json()), item.partition)
            row = (lane, item.segment, item.number, *where)
        columns = [pa.array([one], kind) for one, kind in zip(row, _PACKET.types[:5], strict=True)]
        bounds = pa.array([0, payload.size], pa.int32()).buffers()[1]
        columns.append(pa.Array.from_buffers(pa.binary(), 1, [None, bounds, payload]))
        return pa.RecordBatch.from_arrays(columns, schema=_PACKET)


class DeliverTask:
    """What each task after a shuffle runs: its lane's packets to the sink."""

    def __init__(self, task: LaneWork) -> None:
        self._task = task

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Send the packets that come in, in their order; yield the receipts among them."""
        receipts: list[Receipt] = []
        self._task.deliver(packets_of(self._items(batches), receipts))
        yield receipt_batch([*receipts, *self._task.counted()])

    def _items(self, batches: Iterator[pa.RecordBatch]) -> Iterator[Packet | Receipt]:
        for batch in batches:
            for at in range(batch.num_rows):
                _, segment, number, topic, partition = (
                    batch.column(i)[at].as_py() for i in range(5)
                )
                payload = batch.column("payload")[at].as_buffer()
                if number == _RECEIPTS_LAST:
                    yield from read_receipts(pa.ipc.read_record_batch(payload, RECEIPT).to_pylist())
                else:
                    where = Topic.from_json(json.loads(topic))
                    yield Packet(segment, number, where, partition, from_bytes(fetch(payload)))


def packets_of(items: Iterator[Packet | Receipt], receipts: list[Receipt]) -> Iterator[Packet]:
    """Yield the packets; receipts go to the list."""
    for one in items:
        if isinstance(one, Receipt):
            receipts.append(one)
        else:
            yield one
