"""Upkeep of one lake table: what its owner decides, what tasks write, and how that is committed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final
from uuid import uuid4

import pyarrow as pa

from rowferry.change.json_form import JsonForm
from rowferry.errors import SinkUnavailable
from rowferry.flow.sink.contract import TableStatus
from rowferry.flow.sink.lake.commit import CommitNote, Guard
from rowferry.flow.sink.lake.rewriting import in_key_order, put_data_file
from rowferry.flow.sink.lake.runs import run_path
from rowferry.flow.sink.lake.stored_columns import StoredColumns
from rowferry.flow.sink.storage.files import Files
from rowferry.moment import moment

SMALL: Final = 0.75  # of the wanted size
DELETED: Final = 0.3  # share of rows from which on a file is written anew
_TRIES: Final = 50


@dataclass(frozen=True, slots=True)
class Merge(JsonForm):
    """Files of one table that become one: all that a task needs to know to write it.

    Attributes:
        directory: of the table.
        root: where data files go, below the prefix.
        name: of the new file.
        key: the key's columns in data files; empty: the file has no key run.
        columns: the table's, as `StoredColumns.schema_text` tells them, with `mapped` and `max_id`.
        files: what is replaced, in the format's own words; none: only deletes are summed up.
        size: bytes of these files.
        version: that the table had when this was decided, as the format counts its commits.
    """

    directory: str
    root: str
    name: str
    key: tuple[str, ...]
    columns: str
    mapped: bool
    max_id: int
    files: tuple[dict[str, Any], ...]
    size: int
    version: int

    @property
    def path(self) -> str:
        """Where the new file is, below the prefix."""
        return f"{self.root}/{self.name}"

    def stored_columns(self) -> StoredColumns:
        """Return the columns of the table."""
        columns = StoredColumns.read(self.columns, self.mapped, self.max_id)
        assert columns is not None  # they were the owner's own when this was decided
        return columns


def merged_name(tag: str, columns: str, files: Iterable[str]) -> str:
    """Return the name of the file that takes the place of others.

    It follows what goes into it, so that a repeat finds, and writes, the same file. `tag` tells
    processes from each other that may both try: an owner has its epoch.
    """
    digest = blake2b(columns.encode(), digest_size=12)
    for one in files:
        digest.update(f"\0{one}".encode())
    return f"merged-{tag}-{digest.hexdigest()}.parquet"


class TableUpkeep(ABC):
    """Upkeep of one table. `write` may be called in a task, all else by whoever commits."""

    def __init__(self, files: Files) -> None:
        self._files = files

    @abstractmethod
    def status(self, checkpoint_ts: int | None = None) -> TableStatus | None:
        """Return what the table is made of, as it was last seen; None: there is no table of ours.

        `checkpoint_ts`: that of its last commit, where it is known; else the table is asked.
        """

    @abstractmethod
    def due(self, tag: str, wanted: int) -> list[Merge]:
        """Return what is to be merged, if at least so many files are; see `merged_name`."""

    @abstractmethod
    def rows(self, merge: Merge) -> pa.Table:
        """Return the rows of the files that are replaced, in the columns of the table."""

    @abstractmethod
    def commit(
        self, note: CommitNote, done: Sequence[tuple[Merge, dict[str, Any]]], guard: Guard
    ) -> int:
        """Put new files in the place of old ones; return how many were replaced.

        A merge whose commit is there already counts as done: its answer was lost. Any other of
        files that are not there any more as they were is left out, and its file removed.
        """

    @abstractmethod
    def was_committed(self, merge: Merge) -> bool:
        """Return whether a commit has put a merge's file in its place, or may have.

        Asked when the files that it replaces are gone: its commit cannot come in later then.
        """

    def sum_up(self, since: int, now_ms: int) -> int:
        """Sum the history up where that is due; return the version that the table has.

        `since` is what an earlier call returned; below 0: there was none.
        """
        return since

    def in_file(self, rows: pa.Table, merge: Merge) -> pa.Table:
        """Return rows with the schema that a data file has."""
        return rows

    def write(self, merge: Merge) -> dict[str, Any]:
        """Write the file that takes the place of others; return what its commit is told.

        Run twice, or by two processes at once, it leaves the same.
        """
        if not merge.files:
            return {"rows": 0}
        rows = in_key_order(self.rows(merge), merge.key)
        if not rows.num_rows:
            return {"rows": 0}
        stored = self.in_file(rows, merge)
        return put_data_file(self._files, merge.root, merge.name, rows, merge.key, stored)

    def optimize(self, note: CommitNote, guard: Guard) -> int:
        """Merge all that can be merged, here and now; return how many files were replaced.

        A feed may run meanwhile: one of the two commits first, and the other looks again.
        """
        for _ in range(_TRIES):
            done = [(merge, self.write(merge)) for merge in self.due(uuid4().hex, 0)]
            count = self.commit(note, done, guard) if done else 0
            if count or not done:
                return count
        raise SinkUnavailable("files to be merged are changed by others all the time")

    def _settle(self, left_out: Iterable[Merge], guard: Guard) -> int:
        """Remove files of merges that were left out; return how many files others replaced.

        A commit's answer may have been lost, or have told the contrary: its file is the table's,
        also if later commits have replaced it, as readers of earlier versions need it.
        """
        count = 0
        for merge in left_out:
            if self.was_committed(merge):
                count += len(merge.files)
                continue
            moment("discard merged file")
            with guard():
                self._files.delete(merge.path)
                self._files.delete(run_path(merge.root, merge.name))
        return count
