"""How far the micro-batch under way is, and with it the snapshots; told while its tasks run."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final, Protocol, runtime_checkable

from rowferry.change.plan import Segment
from rowferry.change.table import TableId
from rowferry.flow.capture.contract import SnapshotShare

FIRST_BYTES: Final = 64 << 20
LONGEST_S: Final = 8.0  # a snapshot's micro-batch should not take longer: that much a crash costs
_FASTER: Final = 4
# Of what is read again beside the log: other tables wait for it, so that it is short beside the
# time for which they wait anyway.
_SHORTEST_PART_S: Final = 0.02
_LONGEST_PART_S: Final = 2.0
_PART_SHARE: Final = 0.1  # of the time in which a quiet feed gathers changes
_FIRST_PART_BYTES: Final = 1 << 20
_LEAST_PART_BYTES: Final = 256 << 10
_MOST_PART_BYTES: Final = 64 << 20
_IN_FOCUS: Final = 20  # tables; of more, only sums are shown


@runtime_checkable
class TellsParts(Protocol):
    """A runner that says of each segment that it is done, while others still run.

    `on_part(ordinal, rows, bytes)` may be called in any thread; it returns quickly.
    """

    on_part: Callable[[int, int, int], None] | None


@dataclass(frozen=True, slots=True)
class StepProgress:
    """How far a step is that has not ended.

    Attributes:
        parts: how many segments its plan has.
        rows, bytes: of the segments that are done.
        snapshots: of each table whose snapshot is under way, done parts included.
        unit: what they are counted in.
        seconds: how long the job has run.
    """

    micro_batch: int
    parts: int
    done_parts: int
    rows: int
    bytes: int
    snapshots: tuple[SnapshotShare, ...]
    unit: str
    seconds: float


def in_focus(shares: Sequence[SnapshotShare], most: int = _IN_FOCUS) -> tuple[SnapshotShare, ...]:
    """Return the tables to show where all would be too many: under way, waiting, then done."""

    def place(share: SnapshotShare) -> tuple[int, int]:
        if share.done >= share.total:
            return 2, -share.total
        return (0 if share.done else 1), -share.total

    return tuple(sorted(shares, key=place)[:most])


class SnapshotTally:
    """All tables of the snapshots under way, also those that have ended meanwhile.

    When all have ended, they are forgotten: the next ones begin a tally of their own.
    """

    def __init__(self) -> None:
        self._tables: dict[TableId, SnapshotShare] = {}
        self._left: dict[TableId, int] = {}  # planned, and not done yet
        self._shares: dict[int, tuple[TableId, int]] = {}

    def plan(self, segments: Iterable[Segment], after: Sequence[SnapshotShare] | None) -> None:
        """Take in a plan; `after`: how the tables stand that do not end with it.

        None: nobody knows, because an earlier process has planned it.
        """
        mine = [s for s in segments if s.snapshot]
        self._shares = {s.ordinal: (s.slices[0].table, max(1, s.share)) for s in mine}
        self._left = {}
        for table, share in self._shares.values():
            self._left[table] = self._left.get(table, 0) + share
        going_on = self._tables if after is None else {s.table: s for s in after}
        for table in [*self._tables, *self._left]:
            if table not in going_on:  # it ends with this plan, or has ended
                old = self._tables.get(table)
                total = max(old.total if old else 0, self._left.get(table, 0))
                self._tables[table] = SnapshotShare(table, total, total)
        self._tables.update(going_on)

    def done(self, ordinal: int) -> None:
        """Take in a segment that is done. On repeat: nothing changes."""
        table, share = self._shares.pop(ordinal, (None, 0))
        if table is not None:
            self._left[table] -= share

    def end(self) -> None:
        """Take in that the plan was published."""
        self._shares, self._left = {}, {}
        if all(s.done >= s.total for s in self._tables.values()):
            self._tables = {}

    def shares(self) -> tuple[SnapshotShare, ...]:
        """Return all tables of the snapshots under way."""
        return tuple(
            replace(s, done=max(0, s.done - self._left.get(s.table, 0)))
            for s in self._tables.values()
        )


class UnderWay:
    """The micro-batch under way. `begin` and `end` come from one thread, `part` from any."""

    def __init__(self, unit: str, tell: Callable[[StepProgress], None] | None = None) -> None:
        self._unit, self._tell = unit, tell
        self._lock = threading.Lock()
        self._tally = SnapshotTally()
        self._now = StepProgress(0, 0, 0, 0, 0, (), unit, 0.0)
        self._open: set[int] = set()
        self._began = 0.0

    def begin(
        self, micro_batch: int, segments: Sequence[Segment], after: Sequence[SnapshotShare] | None
    ) -> None:
        """Note that a plan is about to be run; `after`: see `SnapshotTally.plan`."""
        with self._lock:
            self._tally.plan(segments, after)
            self._began = time.monotonic()
            self._open = {s.ordinal for s in segments}
            shares = self._tally.shares()
            self._now = StepProgress(micro_batch, len(segments), 0, 0, 0, shares, self._unit, 0.0)
            self._say()

    def part(self, ordinal: int, rows: int, size: int) -> None:
        """Note that a segment is done. On repeat: nothing changes."""
        with self._lock:
            if ordinal not in self._open:
                return
            self._open.remove(ordinal)
            self._tally.done(ordinal)
            self._now = replace(
                self._now,
                done_parts=self._now.done_parts + 1,
                rows=self._now.rows + rows,
                bytes=self._now.bytes + size,
                snapshots=self._tally.shares(),
                seconds=time.monotonic() - self._began,
            )
            self._say()

    def end(self) -> tuple[SnapshotShare, ...]:
        """Note that the plan was published; returns how far the snapshots are."""
        with self._lock:
            self._open = set()
            self._tally.end()
            return self._tally.shares()

    def _say(self) -> None:
        if self._tell is not None:
            self._tell(self._now)


class SnapshotPace:
    """How much of snapshots makes a micro-batch: what takes a few seconds, as measured."""

    def __init__(self, most_bytes: int) -> None:
        self._most = most_bytes
        self.next_bytes = min(FIRST_BYTES, most_bytes)

    def took(self, segments: Sequence[Segment], seconds: float) -> None:
        """Take in how long a plan took."""
        size = sum(s.log_bytes for s in segments)
        if not segments or not all(s.snapshot for s in segments) or seconds <= 0:
            return
        wanted = round(min(size * LONGEST_S / seconds, size * _FASTER))
        self.next_bytes = max(min(FIRST_BYTES, self._most), min(wanted, self._most))


class RereadPace:
    """How much is read again at a time: what others wait for without noticing."""

    def __init__(self, flush_interval_s: float) -> None:
        self._aim_s = min(_LONGEST_PART_S, max(_SHORTEST_PART_S, flush_interval_s * _PART_SHARE))
        self.next_bytes = _FIRST_PART_BYTES

    def took(self, segments: Sequence[Segment], seconds: float) -> None:
        """Take in how long a part took."""
        size = sum(s.log_bytes for s in segments)
        if not size or seconds <= 0:
            return
        wanted = size * min(float(_FASTER), self._aim_s / seconds)
        self.next_bytes = round(max(_LEAST_PART_BYTES, min(wanted, _MOST_PART_BYTES)))


class StageTimes:
    """How long the parts of one step took."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    @contextmanager
    def measured(self, stage: str) -> Iterator[None]:
        """Measure what the block does."""
        began = time.monotonic()
        try:
            yield
        finally:
            self.seconds[stage] = time.monotonic() - began

    def read(self, lag_ms: int | None) -> None:
        """Note how old the newest row was, by the source's clock."""
        if lag_ms is not None:
            self.seconds["read"] = lag_ms / 1000
