"""One range as its leader holds it: transactions in, an ordered log out.

Order: a transaction's commit-ts is asked for after it was prepared everywhere, so it is above
the highest timestamp that the leader had seen at that time, its *floor*. A committed transaction
waits until its commit-ts is at or below the floors of all open ones; then it is appended to the
log. So the log's commit-ts never decreases, and nothing at or below the smallest floor can follow.
"""

from __future__ import annotations

import fcntl
import heapq
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rowferry.refstore.master.timestamps import Clock
from rowferry.refstore.meta import Fault, RangeMeta, RequestRefused
from rowferry.refstore.rows.mutations import (
    OP_DELETE,
    OP_INSERT,
    OP_UPDATE,
    KeyChanges,
    read_mutations,
)
from rowferry.refstore.storage.checkpoint import Checkpoint, read_checkpoint
from rowferry.refstore.storage.journal import Journal
from rowferry.refstore.storage.kernels import LOG_TAG, Stamps
from rowferry.refstore.storage.logfile import PRIMARY, LogFile
from rowferry.refstore.storage.pairs import Pairs, Run
from rowferry.refstore.storage.snapshots import Snapshots
from rowferry.refstore.storage.state import StoreState
from rowferry.wire import store_pb2 as wire

_PATIENCE_S = 10.0


@dataclass(frozen=True, slots=True)
class RangeOptions:
    """How a data server keeps its ranges.

    Attributes:
        fsync: writes reach the disk before they are acknowledged; without it they survive the
            death of the process, but not that of the machine.
        without_old_value: change entries carry no value from before the change.
        abandoned_after_s: a prepared transaction that hears nothing for so long is resolved.
        part_bytes: about this much of a snapshot between two split keys.
    """

    fsync: bool = False
    without_old_value: bool = False
    abandoned_after_s: float = 2.0
    part_bytes: int = 8 << 20


@dataclass(slots=True)
class Open:
    """A transaction that is prepared, or committed but not yet in the log."""

    request: wire.WriteRequest
    change: KeyChanges
    floor: int
    expires_at: float
    one_phase: bool = False

    @property
    def start_ts(self) -> int:
        """The transaction's name."""
        return self.request.start_ts


class Range:
    """A range that this process leads: it holds the folder's lock until `close`.

    All methods may be called from any thread.
    """

    def __init__(
        self,
        folder: Path,
        meta: RangeMeta,
        clock: Clock,
        options: RangeOptions,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Open the range's files.

        Raises:
            BlockingIOError: another process holds the range.
            StoreDamaged: a file is damaged before its tail.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.meta, self.clock, self.options = folder, meta, clock, options
        self._monotonic = monotonic
        self.changed = threading.Condition()
        self.snapshots = Snapshots()
        self.schema_version = 0
        self.frozen = False
        self.frozen_at = 0  # the heartbeat before which an assignment cannot unfreeze it
        self.closed = False
        self._lock_fd = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with self.changed:
                self._load()
        except BaseException:
            os.close(self._lock_fd)
            raise

    def _load(self) -> None:
        kept = read_checkpoint(self.folder)
        self.decided: dict[int, int] = kept.decided
        self.log = LogFile(self.folder, self.options.fsync)
        self.journal = Journal(self.folder, self.options.fsync)
        self.state = StoreState(kept.run)
        self.state.forgotten_ts = kept.forgotten_ts
        for piece in self.log.replay(max(kept.index, self.log.base_index)):
            self.state.add(Run.sorted_from(piece.pairs, piece.commit_ts))
        self._open: dict[int, Open] = {}
        self._held: list[tuple[int, Open]] = []
        for start_ts, prepared in self.journal.prepared.items():
            if self.log.commit_of(start_ts):
                continue
            change = read_mutations(prepared.request.mutations, self.meta)
            # Its client is as good as gone with the former leader: ask about it at once.
            entry = Open(prepared.request, change, prepared.floor, self._monotonic())
            if start_ts in self.journal.committed:
                heapq.heappush(self._held, (self.journal.committed[start_ts], entry))
            else:
                self._open[start_ts] = entry
        self._release()

    def close(self) -> None:
        """Let the range go; every later call is refused."""
        with self.changed:
            if self.closed:
                return
            self.closed = True
            self.log.close()
            self.journal.close()
            os.close(self._lock_fd)
            self.changed.notify_all()

    def check(self, conf_ver: int, version: int) -> None:
        """Refuse a request that was made for another epoch."""
        if self.closed:
            raise RequestRefused(Fault.NOT_LEADER, f"range {self.meta.range_id} is led elsewhere")
        if (conf_ver, version) != (self.meta.conf_ver, self.meta.version):
            raise RequestRefused(
                Fault.STALE_EPOCH,
                f"range {self.meta.range_id} has epoch {self.meta.conf_ver}.{self.meta.version}, "
                f"not {conf_ver}.{version}",
            )

    # --- transactions ----------------------------------------------------------------------------

    def write(self, request: wire.WriteRequest) -> int:
        """Commit a transaction that touches this range only; returns its commit-ts.

        On return it is durable. On raise of Refused nothing was written.
        """
        change = read_mutations(request.mutations, self.meta)
        with self.changed:
            self._admit(request, change)
            entry = Open(request, change, self.clock.last, float("inf"), one_phase=True)
            self._open[entry.start_ts] = entry
        try:
            commit_ts = self.clock.now()
        except BaseException:
            with self.changed:
                self._forget(entry.start_ts)
            raise
        with self.changed:
            self._usable()
            self._end(entry, commit_ts)
        return commit_ts

    def prepare(self, request: wire.WriteRequest) -> None:
        """Promise that the transaction can be committed; on return the promise is durable."""
        change = read_mutations(request.mutations, self.meta)
        with self.changed:
            if request.start_ts in self._open:
                return
            self._admit(request, change)
            expires_at = self._monotonic() + self.options.abandoned_after_s
            entry = Open(request, change, self.clock.last, expires_at)
            self.journal.prepare(request, entry.floor)
            self._open[entry.start_ts] = entry

    def commit(self, start_ts: int, commit_ts: int) -> None:
        """Commit a prepared transaction; repeating it does nothing."""
        self.clock.saw(commit_ts)
        with self.changed:
            self._usable()
            entry = self._open.get(start_ts)
            if entry is None:
                if self._outcome(start_ts) == commit_ts:
                    return
                raise RequestRefused(Fault.ROLLED_BACK, f"transaction {start_ts} was rolled back")
            if entry.one_phase or commit_ts <= entry.floor:
                raise RequestRefused(Fault.BAD_REQUEST, f"{commit_ts} cannot be the commit-ts here")
            self._end(entry, commit_ts)

    def roll_back(self, start_ts: int) -> None:
        """Roll back a transaction for good, also one that has not arrived yet."""
        with self.changed:
            self._usable()
            if self._outcome(start_ts):
                raise RequestRefused(Fault.BAD_REQUEST, f"transaction {start_ts} is committed")
            if start_ts not in self.journal.rolled_back:
                self.journal.roll_back(start_ts)
            self._forget(start_ts)

    def status(self, start_ts: int) -> tuple[wire.StatusReply.Status, int]:
        """Return what became of a transaction that this range decides, and its commit-ts.

        One that is unknown here or has expired is rolled back, for good.
        """
        with self.changed:
            self._usable()
            commit_ts = self._outcome(start_ts)
            if commit_ts:
                return wire.StatusReply.COMMITTED, commit_ts
            entry = self._open.get(start_ts)
            if entry is not None and self._monotonic() < entry.expires_at:
                return wire.StatusReply.PENDING, 0
            if not self.journal.refuses(start_ts):
                self.journal.roll_back(start_ts)
            self._forget(start_ts)
            return wire.StatusReply.ROLLED_BACK, 0

    def abandoned(self) -> list[Open]:
        """Return expired transactions that another range decides; expired own ones are ended."""
        with self.changed:
            if self.closed:
                return []
            now = self._monotonic()
            late = [t for t in self._open.values() if t.expires_at <= now]
            for entry in late:
                if entry.request.primary:
                    self.journal.roll_back(entry.start_ts)
                    self._forget(entry.start_ts)
            return [t for t in late if not t.request.primary]

    def _usable(self) -> None:
        if self.closed:
            raise RequestRefused(Fault.NOT_LEADER, f"range {self.meta.range_id} is led elsewhere")

    def _admit(self, request: wire.WriteRequest, change: KeyChanges) -> None:
        """Refuse a transaction that cannot be prepared now."""
        self._usable()
        # First of all: a master that has just started freezes tables whose version it must learn.
        if self.frozen:
            raise RequestRefused(
                Fault.BUSY, f"range {self.meta.range_id} takes no writes for a moment"
            )
        if self.meta.dropped or (
            self.meta.physical_id and request.schema_version != self.schema_version
        ):
            raise RequestRefused(
                Fault.SCHEMA_CHANGED, f"the table of range {self.meta.range_id} changed"
            )
        if self.journal.refuses(request.start_ts):
            raise RequestRefused(
                Fault.ROLLED_BACK, f"transaction {request.start_ts} was rolled back"
            )
        for other in [*self._open.values(), *(t for _, t in self._held)]:
            key = other.change.pairs.common_key(change.pairs)
            if key is not None:
                words = f"key {key.hex()} is locked by transaction {other.start_ts}"
                raise RequestRefused(Fault.CONFLICT, words)
        self._check_rows(change, request.read_ts)

    def _check_rows(self, change: KeyChanges, read_ts: int) -> None:
        ts, (_, _, length) = self.state.before(change.pairs)
        _refuse_first(ts > np.uint64(read_ts), change.pairs, Fault.CONFLICT, "changed meanwhile")
        if read_ts < self.state.forgotten_ts:
            _refuse_first(ts == 0, change.pairs, Fault.CONFLICT, "may have changed meanwhile")
        there = length >= 0
        _refuse_first(
            (change.ops == OP_INSERT) & there, change.pairs, Fault.DUPLICATE_KEY, "exists already"
        )
        needs = (change.ops == OP_UPDATE) | (change.ops == OP_DELETE)
        _refuse_first(needs & ~there, change.pairs, Fault.NO_SUCH_ROW, "does not exist")

    def _outcome(self, start_ts: int) -> int:
        """Return the commit-ts of a committed transaction, else 0."""
        held = next((ts for ts, t in self._held if t.start_ts == start_ts), 0)
        return held or self.decided.get(start_ts, 0) or self.log.commit_of(start_ts)

    def _forget(self, start_ts: int) -> None:
        if self._open.pop(start_ts, None) is not None:
            self._release()
        self.changed.notify_all()

    def _end(self, entry: Open, commit_ts: int) -> None:
        """Commit an open transaction: into the log, or into the journal if it must wait."""
        del self._open[entry.start_ts]
        heapq.heappush(self._held, (commit_ts, entry))
        if commit_ts > self._smallest_floor():
            if entry.one_phase:
                self.journal.prepare(entry.request, entry.floor)
            self.journal.commit(entry.start_ts, commit_ts)
        self._release()

    def _smallest_floor(self) -> int:
        return min((t.floor for t in self._open.values()), default=(1 << 64) - 1)

    def _release(self) -> None:
        """Move to the log what no open transaction can precede any more."""
        limit = self._smallest_floor()
        while self._held and self._held[0][0] <= limit:
            commit_ts, entry = self._held[0]
            self._log(entry, commit_ts)
            heapq.heappop(self._held)
        if self.journal.large:
            self._rewrite_journal()
        self.changed.notify_all()

    def _log(self, entry: Open, commit_ts: int) -> None:
        pairs = entry.change.pairs
        old = None if self.options.without_old_value else self.state.before(pairs)[1]
        stamps: Stamps = np.full(len(pairs), commit_ts, np.uint64)
        entries, ends = pairs.entries(LOG_TAG, stamps, old)
        flags = PRIMARY if entry.request.primary else 0
        self.log.append(entry.start_ts, commit_ts, flags, entries, ends)
        self.state.apply(pairs, commit_ts)

    def _rewrite_journal(self) -> None:
        still = [(t.request, t.floor, 0) for t in self._open.values() if not t.one_phase]
        still += [(t.request, t.floor, ts) for ts, t in self._held]
        self.journal.rewrite(still)

    # --- reading ---------------------------------------------------------------------------------

    def closed_ts(self, reading: int) -> int:
        """Return a timestamp that no later log entry is at or below; the lock must be held.

        `reading` is a timestamp given out before the lock was taken.
        """
        return min(reading, self._smallest_floor())

    def get(self, keys: list[bytes], read_ts: int) -> list[bytes | None]:
        """Return the rows as of `read_ts`, which must be the newest state of these keys."""
        asked = Pairs.of([(k, None) for k in sorted(set(keys))])
        with self.changed:
            self._wait(
                lambda: (
                    not any(
                        t.floor < read_ts and t.change.pairs.common_key(asked) is not None
                        for t in [*self._open.values(), *(t for _, t in self._held)]
                    )
                )
            )
            versions = [self.state.get(k) for k in keys]
        for key, (_, ts) in zip(keys, versions, strict=True):
            if ts > read_ts:
                raise RequestRefused(Fault.CONFLICT, f"key {key.hex()} changed meanwhile")
        return [value for value, _ in versions]

    def settle(self, ts: int) -> None:
        """Return when every transaction that can commit at or below `ts` is in the log."""
        self.clock.saw(ts)
        with self.changed:
            self._wait(
                lambda: self._smallest_floor() >= ts and not (self._held and self._held[0][0] <= ts)
            )

    def _wait(self, until: Callable[[], bool]) -> None:
        self.changed.wait_for(lambda: self.closed or until(), _PATIENCE_S)
        self._usable()
        if not until():
            raise RequestRefused(
                Fault.BUSY, f"range {self.meta.range_id} has a transaction under way"
            )

    # --- administration --------------------------------------------------------------------------

    def drain(self, heartbeat: int) -> None:
        """Take no new transaction; return when none is open.

        Only an assignment asked for after the heartbeat of that number can end this.
        """
        with self.changed:
            self._usable()
            self.frozen, self.frozen_at = True, heartbeat
            self._wait(lambda: not self._open and not self._held)

    def assign(self, meta: RangeMeta, schema_version: int, frozen: bool, heartbeat: int) -> None:
        """Take over what the master's answer to that heartbeat says."""
        with self.changed:
            self.meta, self.schema_version = meta, schema_version
            if frozen or heartbeat > self.frozen_at:
                self.frozen = frozen

    def checkpoint(self) -> Checkpoint:
        """Return the present state; the lock must be held."""
        decided = {**self.decided, **dict(self.log.decided(self.log.last_index))}
        return Checkpoint(self.log.last_index, self.state.whole(), decided, self.state.forgotten_ts)

    def compact(self, through_index: int) -> int:
        """Drop the log up to an index (0: all of it); returns the first index that is left."""
        with self.changed:
            self._usable()
            if through_index > self.log.last_index:
                words = f"range {self.meta.range_id} has no index {through_index} yet"
                raise RequestRefused(
                    Fault.BAD_REQUEST, f"{words}; the last is {self.log.last_index}"
                )
            kept = self.checkpoint()
            kept.write(self.folder, self.options.fsync)
            self.decided = kept.decided
            # The log proves that a prepared transaction was committed; without it the journal must
            # no longer mention it.
            self._rewrite_journal()
            self.log.drop_through(through_index or self.log.last_index)
            return self.log.base_index + 1


def _refuse_first(
    bad: np.ndarray[tuple[int], np.dtype[np.bool_]],
    pairs: Pairs,
    code: wire.StoreFault.Code,
    words: str,
) -> None:
    hits = np.flatnonzero(bad)
    if hits.size:
        raise RequestRefused(code, f"key {pairs.key(int(hits[0])).hex()} {words}")
