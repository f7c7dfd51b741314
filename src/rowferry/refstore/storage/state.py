"""What a range holds: a few sorted runs below a small table of the newest writes."""

from __future__ import annotations

import numpy as np

from rowferry.change.position import PHYSICAL_SHIFT
from rowferry.refstore.storage import kernels
from rowferry.refstore.storage.kernels import Bytes, Places, Stamps, frozen
from rowferry.refstore.storage.pairs import EMPTY_RUN, NO_BYTES, Pairs, Run

FEW_ROWS = 64  # up to here a plain loop is as fast as searching all runs
RECENT_ROWS = 20_000
DELETED_ROWS_KEPT_MS = 60_000


class StoreState:
    """Key to (value, commit-ts), the newest version only; deleted keys are remembered for a while.

    Not thread-safe: the range's lock guards it.
    """

    def __init__(self, run: Run = EMPTY_RUN) -> None:
        self._runs: list[Run] = [run] if len(run) else []
        self._recent: dict[bytes, tuple[bytes | None, int]] = {}
        self.forgotten_ts = 0  # deletes up to here may have been forgotten

    def get(self, key: bytes) -> tuple[bytes | None, int]:
        """Return (value, commit-ts); (None, 0) for a key that was never written."""
        recent = self._recent.get(key)
        if recent is not None:
            return recent
        if self._runs:
            asked = Pairs.of([(key, None)])
            for run in reversed(self._runs):
                place = int(run.pairs.find(asked)[0])
                if place >= 0:
                    return run.pairs.value(place), int(run.commit_ts[place])
        return None, 0

    def before(self, pairs: Pairs) -> tuple[Stamps, tuple[Bytes, Places, Places]]:
        """Return, for ascending keys, the last commit-ts (0: none) and the present values."""
        if len(pairs) <= FEW_ROWS:
            newest = [self.get(pairs.key(i)) for i in range(len(pairs))]
            ts = np.array([t for _, t in newest], np.uint64)
            length = np.array([-1 if v is None else len(v) for v, _ in newest], np.int64)
            blob = np.frombuffer(b"".join(v or b"" for v, _ in newest), np.uint8)
            stored = np.maximum(length, 0)
            return ts, (blob, np.cumsum(stored) - stored, length)
        self._settle()
        ts = np.zeros(len(pairs), np.uint64)
        length = np.full(len(pairs), -1, np.int64)
        at, source = np.zeros(len(pairs), np.int64), np.full(len(pairs), -1, np.int64)
        for number in range(len(self._runs) - 1, -1, -1):
            run = self._runs[number]
            place = run.pairs.find(pairs)
            hit = (place >= 0) & (source < 0)
            source[hit] = number
            ts[hit] = run.commit_ts[place[hit]]
            at[hit] = run.pairs.value_at[place[hit]]
            length[hit] = run.pairs.value_len[place[hit]]
        return ts, self._gathered(source, at, length)

    def _gathered(self, source: Places, at: Places, length: Places) -> tuple[Bytes, Places, Places]:
        stored = np.maximum(length, 0)
        ends = np.cumsum(stored)
        if not ends.size or not ends[-1]:
            return NO_BYTES, at, length
        blob, place = np.empty(int(ends[-1]), np.uint8), ends - stored
        for number, run in enumerate(self._runs):
            mine = source == number
            kernels.copy_spans(
                run.pairs.blob, frozen(at[mine]), frozen(length[mine]), blob, frozen(place[mine])
            )
        return blob, place, length

    def apply(self, pairs: Pairs, commit_ts: int) -> None:
        """Take over a transaction's ascending pairs."""
        if len(pairs) <= FEW_ROWS:
            self._recent.update((k, (v, commit_ts)) for k, v in pairs.items())
            if len(self._recent) > RECENT_ROWS:
                self._settle()
        else:
            self.add(Run(pairs.compact(), frozen(np.full(len(pairs), commit_ts, np.uint64))))

    def add(self, run: Run) -> None:
        """Take over a run that is newer than everything held."""
        self._settle()
        self._push(run)

    def whole(self) -> Run:
        """Return everything as one run, deleted keys included; later writes do not touch it."""
        self._settle()
        while len(self._runs) > 1:
            newer = self._runs.pop()
            self._runs[-1] = self._runs[-1].merged(newer)
        if not self._runs:
            return EMPTY_RUN
        self._forget_deleted()
        return self._runs[0]

    def _forget_deleted(self) -> None:
        run = self._runs[0]
        newest = int(run.commit_ts.max()) if len(run) else 0
        limit = max(newest - (DELETED_ROWS_KEPT_MS << PHYSICAL_SHIFT), 0)
        kept = run.without_deleted(limit)
        if kept is not run:
            self._runs[0], self.forgotten_ts = kept, max(limit, self.forgotten_ts)

    def _settle(self) -> None:
        if not self._recent:
            return
        keys = sorted(self._recent)
        entries = [self._recent[k] for k in keys]
        pairs = Pairs.of([(k, v) for k, (v, _) in zip(keys, entries, strict=True)])
        self._recent = {}
        self._push(Run(pairs, frozen(np.array([t for _, t in entries], np.uint64))))

    def _push(self, run: Run) -> None:
        if not len(run):
            return
        # Each run is at least twice as large as the next newer one: few runs, little copying.
        while self._runs and len(self._runs[-1]) < 2 * len(run):
            run = self._runs.pop().merged(run)
        self._runs.append(run)
