"""The tables that a walk over the log knows, and the walk itself with them."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from rowferry.errors import CorruptLog
from rowferry.flow.capture.binlog.frame import scan_kernels as k
from rowferry.flow.capture.binlog.frame.carry_kernels import keep_needed
from rowferry.flow.capture.binlog.frame.event_kernels import CRC_TABLES
from rowferry.flow.capture.binlog.frame.walk_state import WalkState

MOST_MAPS: Final = 256 << 20  # bytes of the TABLE_MAPs of one transaction, with what they cost
_MAP_COST: Final = 512  # beside its bytes: names, a schema's place, objects
_NAMES_AT: Final = 8
_UNSEEN = np.iinfo(np.int64).max
NONE_JOINED = np.zeros((0, 2), np.int64)


class Maps:
    """TABLE_MAPs by the log's table number: their bytes, and whether their rows are captured."""

    def __init__(self) -> None:
        self.keys = np.zeros(64, np.int64)
        self.slots = np.zeros(64, np.int32)
        self.start = np.zeros(16, np.int64)
        self.size = np.zeros(16, np.int64)
        self.captured = np.zeros(16, np.int8)
        self.bytes = np.zeros(4096, np.uint8)
        self._filled = self._count = 0

    def put(self, body: bytes, captured: bool, mark: bool = False, by_name: bool = False) -> int:
        """Remember a TABLE_MAP (for its number, instead of an earlier one); returns its slot.

        A `mark` keeps all rows behind it in its transaction from being captured. `by_name`: of a
        table that is not captured, only its name matters, and no more of it is kept. A server with
        many changefeeds knows all tables of its sources once for each of them.

        Raises:
            CorruptLog: there are more than any transaction has.
        """
        number = int.from_bytes(body[:6], "little")
        slot = self._count
        if by_name:
            body = body[: _behind_names(body)]
        if self._filled + len(body) + _MAP_COST * slot > MOST_MAPS:
            raise CorruptLog(
                f"one transaction has {slot + 1:,} TABLE_MAPs, which take more than {MOST_MAPS:,} "
                "bytes; no table is changed as often, so that the log cannot be believed"
            )
        self._count += 1
        self.start, self.size = _grown(self.start, slot + 1), _grown(self.size, slot + 1)
        self.captured = _grown(self.captured, slot + 1)
        self.bytes = _grown(self.bytes, self._filled + len(body))
        self.start[slot] = self._filled
        self.size[slot] = -len(body) if by_name else len(body)
        self.captured[slot] = k.MARK if mark else k.CAPTURED if captured else 0
        self.bytes[self._filled : self._filled + len(body)] = np.frombuffer(body, np.uint8)
        self._filled += len(body)
        if slot * 2 >= len(self.keys):
            self._rehash()
        place = k.find_map(self.keys, number)
        self.keys[place], self.slots[place] = number + 1, slot
        return slot

    def forget_others(self) -> None:
        """Let the walk stop at the next TABLE_MAP of each table whose rows are not captured."""
        count = self._count
        self.size[:count][self.captured[:count] == 0] = 0  # no TABLE_MAP is as short

    @property
    def all_captured(self) -> bool:
        """Whether no table was met whose rows are not captured."""
        return bool(self.captured[: self._count].all())

    def needed(self, data: npt.NDArray[np.uint8], begin: int, behind: int, tail: int) -> memoryview:
        """Return the packets of data[begin:behind] that a reader of captured rows needs."""
        out = np.empty(behind - begin, np.uint8)
        where = (np.int64(begin), np.int64(behind), np.int64(tail))
        size = keep_needed(data, *where, self.keys, self.slots, self.captured, out)
        return out[: int(size)].data

    def in_force(self) -> tuple[list[str], list[int]]:
        """Return the TABLE_MAPs of captured tables, and the numbers of the other tables.

        A statement maps all its tables before its first row. Who begins to read behind that must
        know of rows that are not captured, too.
        """
        bodies: list[str] = []
        others: list[int] = []
        for key, slot in zip(self.keys.tolist(), self.slots.tolist(), strict=True):
            if not key:
                continue
            if self.captured[slot]:
                start = self.start[slot]
                bodies.append(self.bytes[start : start + self.size[slot]].tobytes().hex())
            else:
                others.append(key - 1)
        return bodies, sorted(others)

    def __len__(self) -> int:
        return self._count

    def _rehash(self) -> None:
        keys, slots = self.keys, self.slots
        self.keys = np.zeros(len(keys) * 4, np.int64)
        self.slots = np.zeros(len(keys) * 4, np.int32)
        for key, slot in zip(keys[keys != 0], slots[keys != 0], strict=True):
            place = k.find_map(self.keys, key - 1)
            self.keys[place], self.slots[place] = key, slot


def _behind_names(body: bytes) -> int:
    """Return where the names in a TABLE_MAP end; each has its length before it, a zero behind."""
    at = _NAMES_AT
    for _ in range(2):
        at += 2 + body[at]
    return at


class SegmentPairs:
    """The (slot, partition) pairs of one segment; each has a place, its slice."""

    def __init__(self) -> None:
        self.keys = np.full(64, -1, np.int64)
        self.place = np.zeros(64, np.int32)
        self.first_seen = np.full(16, _UNSEEN, np.int64)
        self.seen_bytes = np.zeros(16, np.int64)
        self._known = 0

    def put(self, slot: int, partition: int, place: int) -> None:
        """Give a pair its place; several pairs may share one."""
        self._known += 1
        if self._known * 2 > len(self.keys):
            keys, places = self.keys, self.place
            self.keys = np.full(len(keys) * 4, -1, np.int64)
            self.place = np.zeros(len(keys) * 4, np.int32)
            for key, old in zip(keys[keys != -1], places[keys != -1], strict=True):
                at_slot = k.find_pair(self.keys, key)
                self.keys[at_slot], self.place[at_slot] = key, old
        key = slot * 65537 + partition
        at_slot = k.find_pair(self.keys, np.int64(key))
        self.keys[at_slot], self.place[at_slot] = key, place
        if place >= len(self.first_seen):
            more = np.full(max(place + 1, 2 * len(self.first_seen)), _UNSEEN, np.int64)
            more[: len(self.first_seen)] = self.first_seen
            self.first_seen = more
            self.seen_bytes = _grown(self.seen_bytes, len(more))

    def seen(self, count: int) -> list[int]:
        """Return the places that occurred up to the `count`-th captured rows event."""
        return [int(p) for p in np.flatnonzero(self.first_seen <= count)]


class FoundEvents:
    """Room for the rows events that a collecting walk finds."""

    def __init__(self, room: int) -> None:
        self.spans = np.zeros((room, 4), np.int64)
        self.commit_ts = np.zeros(room, np.int64)
        self.place = np.zeros(room, np.int32)


_NONE = FoundEvents(0)


class LogBytes(NamedTuple):
    """What is walked over.

    Attributes:
        data: a buffer of packets or of bare events.
        filled: how many of its bytes are valid.
        prefix: 5 for packets, 0 for bare events.
        tail: how many bytes of checksum stand behind each event.
        maria: whether MariaDB wrote it.
        stop_at: the log offset at which the walk ends.
        joined: (place, size) of the packets that were joined from several.
    """

    data: npt.NDArray[np.uint8]
    filled: int
    prefix: int
    tail: int
    maria: bool
    stop_at: int
    joined: npt.NDArray[np.int64] = NONE_JOINED


def run_walk(
    log: LogBytes,
    state: WalkState,
    border: WalkState,
    maps: Maps,
    pairs: SegmentPairs,
    collect: bool,
    events: FoundEvents = _NONE,
) -> int:
    """Walk on from `state.at`; see `scan_kernels.walk`."""
    data, filled, prefix, tail, maria, stop_at, joined = log
    # Plain tuples: the compiled function looks up the types of others for a tenth of a millisecond.
    numbers = np.int64(filled), np.int64(prefix), np.int64(tail), maria, np.int64(stop_at)
    reason: Any = k.walk(
        (data, *numbers, joined, CRC_TABLES),
        state.array,
        border.array,
        (maps.keys, maps.slots, maps.start, maps.size, maps.captured, maps.bytes),
        (pairs.keys, pairs.place, pairs.first_seen, pairs.seen_bytes),
        (events.spans, events.commit_ts, events.place),
        collect,
    )
    return int(reason)


def _grown(array: npt.NDArray[Any], size: int) -> npt.NDArray[Any]:
    if size <= len(array):
        return array
    more = np.zeros(max(size, 2 * len(array)), array.dtype)
    more[: len(array)] = array
    return more
