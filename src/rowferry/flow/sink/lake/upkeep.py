"""Looking after the tables of a lake from outside of a feed, whatever their format."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, Final

from rowferry.flow.sink.contract import TableStatus, UpkeepPiece
from rowferry.flow.sink.lake.commit import CommitNote, Guard
from rowferry.flow.sink.lake.layout import PROGRESS, Progress
from rowferry.flow.sink.lake.table_upkeep import Merge, TableUpkeep
from rowferry.flow.sink.storage.files import Files
from rowferry.moment import moment


class LakeUpkeep(ABC):
    """The tables of a lake, one after the other."""

    def __init__(self, files: Files) -> None:
        self._files = files

    def progress(self) -> Progress:
        """Return how far all tables are."""
        moment("read lake progress for its keeper")
        stored = self._files.get(PROGRESS)
        return Progress.read(stored.data, self._files.shown(PROGRESS)) if stored else Progress()

    def remove(self, path: str) -> None:
        """Delete a file that `orphans` or `expired` gave."""
        moment("delete lake file")
        self._files.delete(path)

    def note(self, changefeed: str, now_ms: int) -> CommitNote:
        """Return what a commit says that no micro-batch makes."""
        return CommitNote(changefeed, 0, 0, 0, 0, self.progress().checkpoint_ts, now_ms)

    @abstractmethod
    def status(self) -> Iterator[TableStatus]:
        """Yield the state of each table."""

    @abstractmethod
    def optimize(self, now_ms: int) -> Iterator[tuple[str, int]]:
        """Merge small files of each table; yield how many files were replaced.

        A feed may run meanwhile: one of the two commits first, and the other looks again.
        """

    @abstractmethod
    def orphans(self) -> Iterator[str]:
        """Yield the files that no commit names, nor a plan that is still to be carried out."""

    @abstractmethod
    def expired(self, before_ms: int, now_ms: int) -> Iterator[str]:
        """Yield the files that were taken out of their tables before a moment.

        Where a table's log grows, also its files that nobody needs who begins at a checkpoint.
        """

    def forget(self, before_ms: int) -> None:
        """Take versions from before a moment out of the tables; `expired` lists their files.

        Not needed where a table's metadata does not lead readers to versions whose files are gone.
        """
        return


def is_pending(path: str, number: int) -> bool:
    """Return whether a path is one of a plan that was not carried out to its end.

    `number` is that of the last plan that was.
    """
    parts = path.rpartition("/")[2].split("-")
    return parts[0] == "part" and len(parts) > 3 and parts[3].isdigit() and int(parts[3]) > number


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
