"""Items become requests: each document once in a request, and a transaction's last word only.

Several changes of one row in one transaction have the same version. Of those only the last is
sent: whichever request then comes twice, or late, has the same content for the same version. So a
lane keeps back the rows of the newest transaction until it sees that it has all of them.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rowferry.change.plan import Topic
from rowferry.columnar.cuts import cuts_of
from rowferry.flow.encode.sql_rows.frame import RowFrame
from rowferry.flow.sink.contract import Packet

_HELD_BYTES: Final = 64 << 20  # of a transaction in a lane; a longer one is sent in pieces


@dataclass(frozen=True, slots=True)
class Bulk:
    """Items that are sent together, no document twice; `index` has a name for each."""

    seat: int
    index: pa.StringArray
    ids: pa.LargeBinaryArray
    versions: npt.NDArray[np.uint64]
    items: pa.LargeBinaryArray

    def __len__(self) -> int:
        return len(self.items)

    def take(self, places: npt.NDArray[np.int64]) -> Bulk:
        """Return the items at these places."""
        where = pa.array(places)
        return Bulk(
            self.seat,
            self.index.take(where),
            self.ids.take(where),
            self.versions[places],
            self.items.take(where),
        )

    def parts(self, max_rows: int, max_bytes: int) -> Iterator[Bulk]:
        """Yield it in pieces, each within the limits unless a single item is longer."""
        for start, stop in pairwise(cuts_of(self.items, max_rows, max_bytes)):
            size = stop - start
            yield Bulk(
                self.seat,
                self.index.slice(start, size),
                self.ids.slice(start, size),
                self.versions[start:stop],
                self.items.slice(start, size),
            )

    def body(self) -> bytes:
        """Return the items one after the other."""
        if not len(self.items):
            return b""
        ends = np.frombuffer(self.items.buffers()[1], np.int64)
        first, last = ends[self.items.offset], ends[self.items.offset + len(self.items)]
        return memoryview(self.items.buffers()[2])[first:last].tobytes()


class _Lane:
    """The items of one lane that wait."""

    def __init__(self, topic: Topic) -> None:
        self.topic = topic
        self.bytes = 0
        self._frames: list[RowFrame] = []

    def add(self, frame: RowFrame) -> int:
        self._frames.append(frame)
        self.bytes += frame.nbytes
        return frame.nbytes

    def take(self, to_the_end: bool) -> list[RowFrame]:
        """Return what may be sent: all but the newest transaction, of which more may come."""
        if not self._frames:
            return []
        # The rows of a snapshot have one commit-ts, and each of its keys is there once.
        whole = to_the_end or not self.topic.exact or self.bytes > _HELD_BYTES
        newest = self._frames[-1].commit_ts[-1]
        kept: list[RowFrame] = []
        ready: list[RowFrame] = []
        for frame in self._frames:
            begin = len(frame)
            if not whole and (kept or frame.commit_ts[-1] == newest):
                others = np.flatnonzero(frame.commit_ts != newest)
                begin = int(others[-1]) + 1 if len(others) else 0
            if begin:
                ready.append(frame.slice(0, begin))
            if begin < len(frame):
                kept.append(frame.slice(begin, len(frame)))
        self._frames, self.bytes = kept, sum(frame.nbytes for frame in kept)
        return ready


def bulks(packets: Iterator[Packet], seats: int, max_bytes: int) -> Iterator[Bulk]:
    """Yield the packets' items as bulks; those of one lane have one seat, and are in order."""
    places: dict[Hashable, int] = {}
    waiting: list[dict[Hashable, _Lane]] = [{} for _ in range(seats)]
    sizes = [0] * seats

    def gathered(seat: int, to_the_end: bool) -> Iterator[Bulk]:
        lanes = waiting[seat].values()
        taken = [(lane.topic.name, frame) for lane in lanes for frame in lane.take(to_the_end)]
        sizes[seat] = sum(lane.bytes for lane in lanes)
        if taken:
            yield joined(seat, taken)

    for packet in packets:
        name = (packet.topic.name, packet.partition)
        seat = places.setdefault(name, len(places) % seats)
        lane = waiting[seat].setdefault(name, _Lane(packet.topic))
        lane.topic = packet.topic
        for frame in _frames(packet):
            sizes[seat] += lane.add(frame)
        if sizes[seat] >= max_bytes:
            yield from gathered(seat, to_the_end=False)
    for seat in range(seats):
        yield from gathered(seat, to_the_end=True)


def joined(seat: int, taken: list[tuple[str, RowFrame]]) -> Bulk:
    """Return items as one bulk; of a document's changes only the newest is left."""
    counts = [len(frame) for _, frame in taken]
    names = pa.array([name for name, _ in taken], pa.string())
    bulk = Bulk(
        seat,
        names.take(pa.array(np.repeat(np.arange(len(taken)), counts))),
        pa.concat_arrays([frame.keys for _, frame in taken]),
        np.concatenate([frame.commit_ts for _, frame in taken]),
        pa.concat_arrays([frame.rows for _, frame in taken]),
    )
    newest = _newest(bulk)
    return bulk if len(newest) == len(bulk) else bulk.take(newest)


def _newest(bulk: Bulk) -> npt.NDArray[np.int64]:
    """Return the places of each document's newest change, in order; of equal ones the last."""
    ids = pc.dictionary_encode(bulk.ids)
    index = pc.dictionary_encode(bulk.index)
    codes = ids.indices.to_numpy().astype(np.int64) * len(index.dictionary)
    codes += index.indices.to_numpy()
    places = np.arange(len(codes))
    if len(index.dictionary) == 1 and len(ids.dictionary) == len(codes):
        return places
    order = np.lexsort((places, bulk.versions, codes))
    last = np.append(codes[order][1:] != codes[order][:-1], True)
    return np.sort(order[last])


def _frames(packet: Packet) -> Iterator[RowFrame]:
    messages = packet.messages
    if messages.keys is None:
        raise ValueError("frames of items have keys")
    for key, value in zip(messages.keys, messages.values, strict=True):
        yield RowFrame.from_message(key.as_py(), value.as_buffer())
