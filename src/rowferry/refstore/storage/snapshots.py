"""Snapshots that a leader keeps in memory for its CDC subscribers."""

from __future__ import annotations

from dataclasses import dataclass, replace

from rowferry.refstore.storage.pairs import Run

PER_SUBSCRIBER = 2
IN_ALL = 16


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The rows of a range at one log index.

    Attributes:
        version: the log index.
        ts: no entry after the index has a commit-ts at or below it, none up to it one above.
        cuts: keys that cut it into parts of similar size.
    """

    version: int
    ts: int
    run: Run
    cuts: tuple[bytes, ...]


class Snapshots:
    """Snapshots by version; each subscriber's newest ones are kept. The range's lock guards it."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, int], Snapshot] = {}

    def newest(self) -> Snapshot | None:
        """Return the snapshot with the highest version."""
        return max(self._kept.values(), key=lambda s: s.version, default=None)

    def keep(self, subscriber: str, snapshot: Snapshot) -> None:
        """Keep a snapshot for a subscriber; its older ones, and the oldest of all, may go."""
        self._kept.pop((subscriber, snapshot.version), None)
        self._kept[subscriber, snapshot.version] = snapshot
        own = [k for k in self._kept if k[0] == subscriber]
        for key in own[:-PER_SUBSCRIBER]:
            del self._kept[key]
        for key in list(self._kept)[:-IN_ALL]:
            del self._kept[key]

    def get(self, version: int) -> Snapshot | None:
        """Return the snapshot of a version, for whomever it was made."""
        return next((s for s in self._kept.values() if s.version == version), None)

    def inherit(self, parent: Snapshots, start: bytes, end: bytes) -> None:
        """Take over the parent's snapshots, for the keys in [start, end)."""
        for key, snapshot in parent._kept.items():
            cuts = tuple(c for c in snapshot.cuts if start < c < end)
            run = snapshot.run.between(start, end)
            self._kept[key] = replace(snapshot, run=run, cuts=cuts)
