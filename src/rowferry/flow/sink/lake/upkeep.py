"""Looking after the tables of a lake from outside of a feed, whatever their format."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator

from rowferry.flow.sink.contract import TableStatus
from rowferry.flow.sink.lake.commit import CommitNote
from rowferry.flow.sink.lake.layout import PROGRESS, Progress
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
