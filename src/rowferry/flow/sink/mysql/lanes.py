"""Each lane in strict order by one connection at a time: for exactly-once and atomicity.

With atomicity a lane's transaction ends where a source transaction does. Rows come table by table,
so that all of a segment is held first: it ends with a transaction. Where segments are not cut by
time (one for each table, say), all that share transactions are held. What is too large to be held
is written into one transaction that stays open until its end.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Final

import numpy as np

from rowferry.change.plan import Segment
from rowferry.flow.encode.sql_rows.frame import RowFrame
from rowferry.flow.sink.contract import Packet
from rowferry.flow.sink.lanes import in_lanes
from rowferry.flow.sink.mysql.apply import one_transaction
from rowferry.flow.sink.mysql.ledger import Ledger
from rowferry.flow.sink.mysql.options import MySqlSettings
from rowferry.flow.sink.mysql.session import Session, Sessions, StatementRefused
from rowferry.flow.sink.mysql.statements import Limits, Put, SqlStatement
from rowferry.flow.sink.mysql.transactions import Transactions
from rowferry.flow.sink.sql.ledger import LaneNote, LanePlace
from rowferry.flow.sink.sql.noted_lanes import NotedLanes
from rowferry.flow.sink.sql.windows import frames_of
from rowferry.moment import moment

_HELD_BYTES: Final = 64 << 20
_BY_TS: Final = -1  # instead of a packet's number: a commit-ts says how far it came
_NO_TS: Final = (1 << 63) - 1  # above every commit-ts: the whole segment
_LATER: Final = 1 << 64


class Lanes:
    """Applies packets lane by lane; different lanes side by side."""

    def __init__(
        self,
        settings: MySqlSettings,
        ledger: Ledger,
        sessions: Sessions,
        limits: Limits,
        workers: int,
        how: Put,
        since: int,
    ) -> None:
        """Apply through `sessions`; `since` is what was published when the task began."""
        self._settings, self._ledger, self._sessions = settings, ledger, sessions
        self._limits, self._workers, self._how, self._since = limits, workers, how, since
        self._transactions = Transactions(settings, ledger, sessions, since=since)
        self._noted: NotedLanes[Session] | None = None
        if settings.options.exactly_once:
            self._noted = NotedLanes(ledger, sessions)

    def deliver(self, packets: Iterator[Packet]) -> None:
        """Apply all packets; on return they are durable."""
        lanes: dict[str, _Lane] = {}

        def work(packet: Packet, stop: threading.Event) -> None:
            lanes[_name(packet)].take(packet, stop)

        def met() -> Iterator[Packet]:
            for packet in packets:
                if _name(packet) not in lanes:
                    lanes[_name(packet)] = self._lane(_name(packet))
                yield packet

        if self._noted is not None:
            self._noted.read()  # before lanes go side by side
        try:
            in_lanes(met(), _name, self._workers, work)
            for lane in lanes.values():
                lane.finish(threading.Event())
        finally:
            for lane in lanes.values():
                lane.close()

    def _lane(self, name: str) -> _Lane:
        return _Lane(
            name,
            self._settings,
            self._ledger,
            self._sessions,
            self._limits,
            self._transactions,
            self._how,
            self._noted,
            self._since,
        )


def _name(packet: Packet) -> str:
    return f"{packet.topic.name}/{packet.partition}"


class _Lane:
    """One lane's changes that are not durable yet."""

    def __init__(
        self,
        name: str,
        settings: MySqlSettings,
        ledger: Ledger,
        sessions: Sessions,
        limits: Limits,
        transactions: Transactions,
        how: Put,
        noted: NotedLanes[Session] | None,
        since: int,
    ) -> None:
        self._name, self._settings, self._ledger = name, settings, ledger
        self._sessions, self._limits, self._transactions = sessions, limits, transactions
        self._how, self._noted, self._since = how, noted, since
        self._held: list[RowFrame] = []  # with atomicity: of segments that share transactions
        self._bytes = self._epoch = 0
        self._at: Packet | None = None
        self._came = LanePlace(0, 0, 0, 0)  # without atomicity: what came so far
        self._open: Session | None = None  # with a transaction that is too large to be held

    def take(self, packet: Packet, stop: threading.Event) -> None:
        """Take a packet in; what is complete becomes durable."""
        self._epoch = packet.epoch
        if self._settings.shared.transaction_atomicity == "none":
            self._at_once(packet, stop)
            return
        if self._at is not None and _end_of(self._at) != _end_of(packet):
            self.finish(stop)
        self._at = packet
        for frame in frames_of(packet):
            kept = self._not_done(frame, packet)
            self._held.append(kept)
            self._bytes += kept.nbytes
        if self._bytes > _HELD_BYTES:
            self._write_held()

    def finish(self, stop: threading.Event) -> None:
        """Make durable what is held: no transaction goes on behind it."""
        if self._at is None:
            return
        if self._open is not None:
            self._write_held()
            self._end_open(self._place(_NO_TS))
        else:
            for frames, last_ts in _by_commits(self._held, self._limits.rows):
                self._apply(frames, self._place(last_ts), stop)
        self._held, self._bytes, self._at = [], 0, None

    def close(self) -> None:
        """Let go of a transaction that was not finished."""
        if self._open is not None:
            self._open.close()
            self._open = None

    # --- rows of any transaction ------------------------------------------------------------------

    def _at_once(self, packet: Packet, stop: threading.Event) -> None:
        """Apply a packet, so many rows at a time.

        Counted are the rows of the lane within its segment: a replay may cut them into other
        packets.
        """
        at, came = (packet.micro_batch, packet.segment), self._came
        before = came.rows if at == (came.micro_batch, came.segment) else 0
        done = 0 if self._noted is None else self._noted.rows_done(packet, self._name)
        for frame in frames_of(packet):
            start = min(max(done - before, 0), len(frame))
            for begin in range(start, len(frame), self._limits.rows):
                end = min(begin + self._limits.rows, len(frame))
                self._apply([frame.slice(begin, end)], LanePlace(*at, 0, before + end), stop)
            before += len(frame)
        self._came = LanePlace(*at, 0, before)

    # --- whole transactions -----------------------------------------------------------------------

    def _place(self, last_ts: int) -> LanePlace:
        """Return where a transaction of what is at hand ended."""
        at = self._at
        return (
            LanePlace(at.micro_batch, _end_of(at), _BY_TS, last_ts) if at else LanePlace(0, 0, 0, 0)
        )

    def _not_done(self, frame: RowFrame, packet: Packet) -> RowFrame:
        """Return the part of a frame that no earlier run made durable."""
        done = None if self._noted is None else self._noted.done(packet, self._name)
        if done is None or _end_of(packet) > done.segment:
            return frame
        if _end_of(packet) < done.segment:
            return frame.slice(0, 0)
        start = int(np.searchsorted(frame.commit_ts, np.uint64(done.rows), side="right"))
        return frame.slice(start, len(frame))

    def _write_held(self) -> None:
        """Write what is held into a transaction that stays open until all of it is there."""
        moment("write held rows")
        if self._open is None:
            self._open = self._sessions.take()
            try:
                self._ledger.begin(self._open, self._epoch, since=self._since)
            except StatementRefused as err:
                raise err.as_error("the fence") from err
        for statement in self._statements(self._held):
            try:
                # It cannot be tried again in another form: what came before it would be lost.
                self._open.run(statement.replacing().sql)
            except StatementRefused as err:
                raise err.as_error(statement.named(err.row or 0)) from err
        self._held, self._bytes = [], 0

    def _end_open(self, place: LanePlace) -> None:
        moment("commit held rows")
        if self._open is None:
            return
        note = self._note(place)
        try:
            self._open.run(*self._ledger.note_delivered(note), b"COMMIT")
        except StatementRefused as err:
            self._open.rollback()
            if note is not None:
                self._ledger.check_noted(self._open, note)
            raise err.as_error("the end of a transaction") from err
        self._moved(note)
        self._sessions.give(self._open)
        self._open = None

    # --- both -------------------------------------------------------------------------------------

    def _apply(self, frames: list[RowFrame], place: LanePlace, stop: threading.Event) -> None:
        """Make rows durable that end at a place."""
        note = self._note(place)
        self._transactions.apply(self._statements(frames), self._epoch, stop, note)
        self._moved(note)

    def _note(self, place: LanePlace) -> LaneNote | None:
        return None if self._noted is None else self._noted.note(self._name, place)

    def _moved(self, note: LaneNote | None) -> None:
        if self._noted is not None:
            self._noted.moved(note)

    def _statements(self, frames: list[RowFrame]) -> list[SqlStatement]:
        return one_transaction(
            frames, self._limits, self._how, self._settings.options.batch_dml_enable
        )


def last_of_shared(segments: Sequence[Segment]) -> dict[int, int]:
    """Return, by the ordinal of each segment that shares transactions with others, the last one's.

    Segments of a log that is cut by time share none. Parts of a snapshot are no transactions.
    """
    last: dict[int, int] = {}
    group: list[Segment] = []
    lows = [_LATER if s.snapshot else s.first_commit_ts for s in segments]
    still_to_come = list(accumulate(reversed(lows), min, initial=_LATER))[::-1]
    for place, segment in enumerate(segments):
        if segment.snapshot:
            continue
        group.append(segment)
        if max(s.last_commit_ts for s in group) < still_to_come[place + 1]:
            if len(group) > 1:
                last |= {s.ordinal: segment.ordinal for s in group}
            group = []
    return last


def _end_of(packet: Packet) -> int:
    """Return the last segment of those that a packet's transactions may be in."""
    last = packet.topic.last_segment
    return packet.segment if last is None else last


def _by_commits(frames: list[RowFrame], rows: int) -> Iterator[tuple[list[RowFrame], int]]:
    """Yield whole transactions, about so many rows together, and the last one's commit-ts.

    Frames are of different tables, each in the order of its own; a transaction's rows may be in
    several of them.
    """
    if not frames:
        return
    stamps, counts = np.unique(np.concatenate([f.commit_ts for f in frames]), return_counts=True)
    ends = np.cumsum(counts)
    first = 0
    while first < len(stamps):
        before = ends[first - 1] if first else 0
        last = max(int(np.searchsorted(ends, before + rows, side="right")) - 1, first)
        low, high = stamps[first], stamps[last]
        part = []
        for frame in frames:
            start = int(np.searchsorted(frame.commit_ts, low, side="left"))
            stop = int(np.searchsorted(frame.commit_ts, high, side="right"))
            if stop > start:
                part.append(frame.slice(start, stop))
        yield part, int(high)
        first = last + 1
