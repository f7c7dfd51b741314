"""What DDLs do to the tables of a lake."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Final

from rowferry.change.chunk import DdlKind, SchemaChange
from rowferry.errors import SchemaChangeRefused, TargetLost
from rowferry.flow.sink.contract import RESTORE
from rowferry.flow.sink.lake.commit import CommitNote, Guard, LakeTables, LakeTarget
from rowferry.flow.sink.lake.layout import table_directory, tables_directory

_ROWS_GO: Final = frozenset(
    {DdlKind.DROP_PARTITION, DdlKind.TRUNCATE_PARTITION, DdlKind.EXCHANGE_PARTITION}
)
_NOTHING: Final = frozenset(
    {DdlKind.CREATE_DATABASE, DdlKind.DATABASE_CHARSET, DdlKind.CREATE_VIEW, DdlKind.DROP_VIEW}
)


def moved_directories(
    known: Iterable[str], changes: Sequence[SchemaChange], on_drop: str
) -> set[str]:
    """Return which directories of tables are there after schema changes."""
    directories = set(known)
    for change in changes:
        if change.kind is DdlKind.RENAME_TABLE and change.previous is not None:
            old = table_directory(change.previous_target or change.previous)
            if old in directories:
                directories.discard(old)
                directories.add(table_directory(change.written_as))
        elif change.kind is DdlKind.DROP_TABLE and on_drop == "drop":
            directories.discard(table_directory(change.written_as))
        elif change.takes_tables and on_drop == "drop":
            above = tables_directory(change.written_as.database) + "/"
            directories = {d for d in directories if not d.startswith(above)}
    return directories


class TableChanges:
    """Makes schema changes, one after the other; each may be repeated before the next is made."""

    def __init__(
        self,
        tables: LakeTables,
        target: Callable[[str], LakeTarget],
        on_drop: str,
        guard: Guard,
    ) -> None:
        self._tables = tables
        self._target = target
        self._on_drop = on_drop
        self._guard = guard

    def apply(
        self, note: CommitNote, change: SchemaChange, changelog: bool, delivered: Collection[str]
    ) -> None:
        """Make one; `delivered`: the directories that have rows before it is made.

        Raises:
            SchemaChangeRefused: the lake's table cannot follow; the text has the choices.
            TargetLost: the table was delivered to, and is gone.
        """
        kind = change.kind
        directory = table_directory(change.written_as)
        if kind in _NOTHING or (kind is not DdlKind.DROP_DATABASE and not change.written_as.table):
            return
        if kind is DdlKind.DROP_DATABASE:
            database = tables_directory(change.written_as.database)
            for one in list(self._tables.directories(database)) if change.takes_tables else ():
                if self._is_ours(note, one, delivered):
                    self._drop(note, change, one)
        elif kind is DdlKind.DROP_TABLE:
            self._drop(note, change, directory)
        elif kind is DdlKind.TRUNCATE_TABLE and not changelog:
            self._target(directory).truncate(note, change, self._guard)
        elif kind in _ROWS_GO and not changelog:
            raise SchemaChangeRefused(
                f"{change.table}: {change.query!r} takes rows away that the log does not name; set "
                "sink.lake.mode = 'changelog', or fill the lake anew: rowferry changefeed reset "
                "--snapshot"
            )
        else:
            if kind is DdlKind.RENAME_TABLE and change.previous is not None:
                self._rename(change, directory, delivered)
            creates = kind is DdlKind.CREATE_TABLE  # also again, after a DROP that kept the old one
            there = moved_directories(delivered, [change], self._on_drop)
            anew, expected = creates and not changelog, not creates and directory in there
            self._target(directory).commit_schema(note, change, self._guard, anew, expected)

    def _is_ours(self, note: CommitNote, directory: str, delivered: Collection[str]) -> bool:
        """Return whether a table is the changefeed's, or what a removal that was cut off has left.

        Such a rest names no owner any more. A table that is made there later would go on with it.
        """
        target = self._target(directory)
        owner = target.owner()
        if owner or directory not in delivered:
            return owner == note.changefeed
        return not target.exists()

    def _drop(self, note: CommitNote, change: SchemaChange, directory: str) -> None:
        if self._on_drop == "keep":
            self._target(directory).mark_dropped(note, change, self._guard)
            return
        self._tables.remove(directory, self._guard)

    def _rename(self, change: SchemaChange, directory: str, delivered: Collection[str]) -> None:
        assert change.previous is not None
        old = table_directory(change.previous_target or change.previous)
        here, there = self._target(old), self._target(directory)
        if old == directory:
            return
        if not here.exists():  # it was moved already, or there was none
            if old in delivered and there.is_dropped():  # what is there was not moved to there
                raise TargetLost(f"{self._tables.shown(old)} is gone; {RESTORE}")
            if there.exists():
                self._tables.remove(old, self._guard)
            return
        if not there.exists():
            # A removal that was cut off has left a part of a log, which would follow this table's.
            if directory in self._tables.directories(directory.partition("/")[0]):
                self._tables.remove(directory, self._guard)
        elif there.identity() != here.identity():
            if not there.is_dropped():
                raise SchemaChangeRefused(
                    f"{change.table}: {self._tables.shown(directory)} is a table already, to which "
                    f"{self._tables.shown(old)} cannot be renamed; move it away, then resume"
                )
            self._tables.remove(directory, self._guard)
        self._tables.rename(old, directory, self._guard)
