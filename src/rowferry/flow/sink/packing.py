"""Frames of a segment become packets: messages of one topic's partition, in order.

Packets are what a shuffle carries. They are large, so that few of them cross from process to
process, and have a compact binary form.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import pyarrow as pa

from rowferry.change.plan import Topic
from rowferry.flow.encode.contract import Encoded
from rowferry.flow.sink.contract import Packet

PACKET_BYTES: Final = 1 << 20
_HELD_BYTES: Final = 64 << 20  # of all packets that are being filled
_SCHEMA: Final = pa.schema([("key", pa.large_binary()), ("value", pa.large_binary())])


def pack(segment: int, frames: Iterator[tuple[Topic, Encoded]]) -> Iterator[Packet]:
    """Gather a segment's messages by topic and partition.

    Order inside each partition is kept; `number` counts the packets of the segment.
    """
    held: dict[tuple[Topic, int], _Pile] = {}
    size, number = 0, 0

    def let_go(place: tuple[Topic, int]) -> Packet:
        nonlocal size, number
        pile = held.pop(place)
        size -= pile.bytes
        number += 1
        return Packet(segment, number - 1, *place, pile.messages())

    for topic, messages in frames:
        for partition, part in by_partition(messages):
            place = (topic, partition)
            pile = held.setdefault(place, _Pile())
            size += pile.add(part)
            if pile.bytes >= PACKET_BYTES:
                yield let_go(place)
        while size > _HELD_BYTES:
            yield let_go(max(held, key=lambda p: held[p].bytes))
    for place in list(held):
        yield let_go(place)


def by_partition(messages: Encoded) -> Iterator[tuple[int, Encoded]]:
    """Yield the messages of each partition that occurs, in the order in which they came."""
    partitions = messages.partitions
    if partitions is None:
        raise ValueError("messages without partitions")
    if not len(partitions):
        return
    first = int(partitions[0])
    if (partitions == first).all():
        yield first, messages
        return
    if (partitions[1:] > partitions[:-1]).all():  # one each: they need no copy
        for place, partition in enumerate(partitions):
            keys = None if messages.keys is None else messages.keys.slice(place, 1)
            yield int(partition), Encoded(messages.values.slice(place, 1), keys)
        return
    order = np.argsort(partitions, kind="stable")
    numbers, starts = np.unique(partitions[order], return_index=True)
    for partition, where in zip(numbers, np.split(order, starts[1:]), strict=True):
        places = pa.array(where)
        keys = None if messages.keys is None else messages.keys.take(places)
        yield int(partition), Encoded(messages.values.take(places), keys)


class _Pile:
    """A packet that is being filled."""

    def __init__(self) -> None:
        self.bytes = 0
        self._parts: list[Encoded] = []

    def add(self, part: Encoded) -> int:
        """Take messages in; return their size."""
        size = part.nbytes + (0 if part.keys is None else part.keys.nbytes)
        self.bytes += size
        self._parts.append(part)
        return size

    def messages(self) -> Encoded:
        parts = self._parts
        if len(parts) == 1:
            return parts[0]
        keyless = all(p.keys is None for p in parts)
        return Encoded(
            pa.concat_arrays([p.values for p in parts]),
            None if keyless else pa.concat_arrays([_keys(p) for p in parts]),
        )


def _keys(messages: Encoded) -> pa.LargeBinaryArray:
    if messages.keys is None:
        return pa.nulls(len(messages.values), pa.large_binary())
    return messages.keys


def to_bytes(messages: Encoded) -> pa.Buffer:
    """Return the messages in a form that another process reads with `from_bytes`."""
    batch = pa.record_batch([_keys(messages), messages.values], schema=_SCHEMA)
    return batch.serialize()


def from_bytes(data: pa.Buffer | bytes) -> Encoded:
    """Read what `to_bytes` wrote, without a copy."""
    batch = pa.ipc.read_record_batch(pa.py_buffer(data), _SCHEMA)
    keys = batch.column(0)
    return Encoded(batch.column(1), None if keys.null_count == len(keys) else keys)
