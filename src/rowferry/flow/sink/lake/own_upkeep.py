"""Upkeep of all tables of a lake by the changefeed that owns them, between its micro-batches."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Final

from rowferry.flow.sink.contract import TableStatus, UpkeepPiece
from rowferry.flow.sink.lake.commit import CommitNote, Guard
from rowferry.flow.sink.lake.table_upkeep import Merge, TableUpkeep

# Tables that are looked at for one round, and of those that this run has not written to.
_MOST_LOOKED: Final = 64
_MOST_UNSEEN: Final = 4


class OwnUpkeep:
    """Knows which tables may need upkeep, and what they were made of when it last looked.

    Those that were written to are looked at in the order in which they came; one whose upkeep goes
    on, or fails, stands behind all others then.
    """

    def __init__(self, upkeep_of: Callable[[str], TableUpkeep], merge_after: int) -> None:
        """`merge_after`: how many files must be to be merged; 0: none ever is."""
        self._upkeep_of, self._merge_after = upkeep_of, merge_after
        self._waiting: dict[str, None] = {}
        self._summed: dict[str, int] = {}  # versions that were summed up as far as was due
        self._reached: dict[str, int] = {}  # commit-ts of the last commits
        self._untold: dict[str, None] = {}
        self._statuses: dict[str, TableStatus | None] = {}
        self._note: CommitNote | None = None

    def wrote(self, directories: Iterable[str], note: CommitNote) -> None:
        """Take in that a micro-batch was published, and which tables it has changed."""
        self._note = note
        for directory in directories:
            self._waiting.setdefault(directory)
            self._untold.setdefault(directory)
            self._reached[directory] = note.checkpoint_ts

    def due(self, tag: str, most: int) -> tuple[UpkeepPiece, ...]:
        """Return what is to be merged; logs are summed up on the way."""
        pieces: list[UpkeepPiece] = []
        for directory in list(self._waiting)[:_MOST_LOOKED]:
            if len(pieces) >= most or self._note is None:
                break
            del self._waiting[directory]
            self._waiting[directory] = None  # the last one, also should this fail
            upkeep = self._upkeep_of(directory)
            since = self._summed.get(directory, -1)
            self._summed[directory] = upkeep.sum_up(since, self._note.at_ms)
            merges = upkeep.due(tag, self._merge_after) if self._merge_after else []
            if not merges:
                del self._waiting[directory]
            for merge in merges[: most - len(pieces)]:
                pieces.append(UpkeepPiece(merge.to_json(), max(1, merge.size)))
        return tuple(pieces)

    def commit(self, done: Sequence[tuple[UpkeepPiece, dict[str, Any]]], guard: Guard) -> int:
        """Commit what tasks wrote, one table after the other; return how many files went."""
        tables: dict[str, list[tuple[Merge, dict[str, Any]]]] = {}
        for piece, made in done:
            merge = Merge.from_json(piece.work)
            tables.setdefault(merge.directory, []).append((merge, made))
        count = 0
        for directory, merges in tables.items():
            if self._note is not None:
                count += self._upkeep_of(directory).commit(self._note, merges, guard)
                self._untold.setdefault(directory)
        return count

    def statuses(self, delivered: Collection[str]) -> tuple[TableStatus, ...]:
        """Return what the tables are made of; tables of earlier runs come in a few at a time.

        `delivered`: the tables that are there.
        """
        unseen = sorted(set(delivered) - set(self._statuses) - set(self._untold))[:_MOST_UNSEEN]
        for directory in unseen:
            self._waiting.setdefault(directory)  # an earlier run may have left something
        for directory in [*list(self._untold)[:_MOST_LOOKED], *unseen]:
            self._untold.pop(directory, None)
            status = self._upkeep_of(directory).status(self._reached.get(directory))
            self._statuses[directory] = status
        for directory in set(self._statuses) - set(delivered):
            del self._statuses[directory]
        return tuple(one for _, one in sorted(self._statuses.items()) if one is not None)
