"""Statements after which names mean other tables: each is run once, and nothing of before again.

A run has no state but the database, and begins at the beginning. Where tables have traded names, or
a partition and a table their rows, a repeat of the statement would undo it, and rows that come
before it would go into the other's table. No look at the database tells the two states apart for
certain: tables that trade names are often made alike. So the statement is noted there, before it
is run and after.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final

from rowferry.change.chunk import DdlKind, SchemaChange
from rowferry.change.own_tables import EXCHANGES
from rowferry.change.table import TableId
from rowferry.downstream.consume.arrival import Arrival, ArrivedStatement
from rowferry.downstream.consume.mysql_target import MySqlTarget, quoted_table
from rowferry.errors import BadStatement, ExchangedBefore, RowRejected
from rowferry.mysql.ddl.cursor import TokenCursor
from rowferry.mysql.ddl.exchange import MovedNames, renamed_tables, traded_tables
from rowferry.mysql.ddl.head import read_head

NOTES: Final = TableId("tidb_cdc", EXCHANGES)
_COLUMNS: Final = (
    "commit_ts BIGINT UNSIGNED NOT NULL, digest CHAR(64) CHARACTER SET ascii NOT NULL, "
    "state VARCHAR(16) CHARACTER SET ascii NOT NULL, "
    "table_names LONGTEXT CHARACTER SET utf8mb4 NOT NULL, "
    "statement LONGTEXT CHARACTER SET utf8mb4 NOT NULL, PRIMARY KEY (commit_ts, digest)"
)
_BEGUN, _DONE = "begun", "done"
_OPEN: Final = "open"  # set by whoever has seen that it was begun and not done
_SHOWN: Final = 120  # characters of a statement in an error


@dataclass(frozen=True, slots=True)
class _Note:
    """A statement that exchanges tables, as an earlier run has noted it.

    Attributes:
        commit_ts: 0 where the format does not tell it.
        tables: as the statement wrote them.
    """

    commit_ts: int
    digest: str
    state: str
    tables: frozenset[TableId]
    statement: str

    def comes_after(self, commit_ts: int) -> bool:
        """Return whether a change of this commit-ts may have come before it, or be it.

        The statement itself may come again where it is open.
        """
        if not commit_ts or not self.commit_ts:
            return True
        return commit_ts < self.commit_ts + (self.state != _OPEN)

    def is_about(self, tables: Iterable[TableId]) -> bool:
        """Return whether it has exchanged one of these; servers may not tell cases apart."""
        mine = {one.folded for one in self.tables}
        return not mine.isdisjoint(one.folded for one in tables)


class Exchanges:
    """What was exchanged in a database: by earlier runs, and by this one."""

    def __init__(self, target: MySqlTarget) -> None:
        """Ask for nothing yet."""
        self._target = target
        self._earlier: list[_Note] | None = None  # None: the database was not asked yet
        self._moved = MovedNames()  # in this run
        self._has_table = False

    def refuse_repeats(self, changes: Iterable[Arrival]) -> None:
        """Refuse what an earlier run has applied before it exchanged the tables that it is about.

        Raises:
            ExchangedBefore: names the place from which a run can go on.
            RowRejected, SinkUnwritable, SinkUnavailable: as `MySqlTarget.execute`.
        """
        if self._earlier is None:
            self._earlier = self._read()
        if not self._earlier:
            return
        for change in changes:
            for note in self._earlier:
                if note.comes_after(change.commit_ts) and note.is_about(_tables_of(change)):
                    raise ExchangedBefore(f"{change.where}: {_words(note)}")

    @contextmanager
    def noted(self, change: SchemaChange, database: str) -> Iterator[None]:
        """Note a statement before and after the block that runs it, if it exchanges anything.

        Raises:
            RowRejected, SinkUnwritable, SinkUnavailable: as `MySqlTarget.execute`.
        """
        place = (change.commit_ts, hashlib.sha256(change.query.encode()).hexdigest())
        traded = traded_tables(change.query, database) | self._follow(change, database)
        for note in self._earlier or ():  # one that is open: those before it were in another run
            if (note.commit_ts, note.digest) == place:
                traded |= note.tables
        if not traded:
            yield
            return
        names = json.dumps(sorted(traded), ensure_ascii=False)
        self._have_table()
        self._note(place, _BEGUN, names, change.query)
        try:
            yield
        except RowRejected:  # the server says that it has not done it
            self._forget(place)
            raise
        self._note(place, _DONE, names, change.query)

    def _follow(self, change: SchemaChange, database: str) -> frozenset[TableId]:
        """Follow names through the statements of this run; return those that a rename exchanges.

        Several statements can do what one does: each of them is refused on a repeat, but not the
        rows between them.
        """
        if change.kind is DdlKind.DROP_TABLE:
            self._moved.drop(change.written_as)
        pairs: list[tuple[TableId, TableId]] = []
        with suppress(BadStatement):
            pairs = renamed_tables(change.query, database)
        before = self._moved.traded()
        self._moved.move(pairs)
        return self._moved.traded() - before

    # --- the notes -------------------------------------------------------------------------------

    def _read(self) -> list[_Note]:
        """Return the notes of tables that are there; who has dropped them all begins anew."""
        self._has_table = self._is_there(NOTES)
        if not self._has_table:
            return []
        rows = self._target.execute(
            f"SELECT commit_ts, digest, state, table_names, statement FROM {quoted_table(NOTES)} "
            "ORDER BY commit_ts"
        )
        notes = [
            _Note(
                int(commit_ts),
                str(digest),
                str(state),
                frozenset(TableId(*name) for name in json.loads(names)),
                str(statement),
            )
            for commit_ts, digest, state, names, statement in rows
        ]
        there = [note for note in notes if any(map(self._is_there, note.tables))]
        for note in notes:
            if note not in there:
                self._forget((note.commit_ts, note.digest))
        return there

    def _is_there(self, table: TableId) -> bool:
        rows = self._target.execute(
            "SELECT 1 FROM information_schema.tables WHERE table_schema = %s AND table_name = %s",
            table,
        )
        return bool(rows)

    def _have_table(self) -> None:
        if not self._has_table:
            name = NOTES.database
            self._target.execute(f"CREATE DATABASE IF NOT EXISTS `{name}`")
            self._target.execute(f"CREATE TABLE IF NOT EXISTS {quoted_table(NOTES)} ({_COLUMNS})")
            self._has_table = True

    def _note(self, place: tuple[int, str], state: str, names: str, statement: str) -> None:
        self._target.execute(
            f"REPLACE INTO {quoted_table(NOTES)} VALUES (%s, %s, %s, %s, %s)",
            (*place, state, names, statement),
        )
        self._target.commit()

    def _forget(self, place: tuple[int, str]) -> None:
        self._target.execute(
            f"DELETE FROM {quoted_table(NOTES)} WHERE commit_ts = %s AND digest = %s", place
        )
        self._target.commit()


def _words(note: _Note) -> str:
    """Return why a change is refused, and how to go on."""
    text = " ".join(note.statement.split())
    shown = text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."
    tables = ", ".join(map(str, sorted(note.tables)))
    at, place = note.commit_ts, f"noted in {NOTES}"
    anew = f"to begin anew, drop {tables} first"
    if note.state == _DONE:
        behind = f"go on with --from {at}, or " if at else ""
        return (
            f"{shown} was carried out by an earlier run ({place}), and what comes before it would "
            f"go into the wrong tables; {behind}{anew}"
        )
    behind = ""
    if at:
        behind = (
            f"see whose rows {tables} have: if they were exchanged, go on with --from {at}, if "
            f"not, set the note's state to '{_OPEN}' and go on with --from {at - 1}; or "
        )
    return (
        f"{shown} was begun by an earlier run ({place}), and whether it was carried out is not "
        f"known; {behind}{anew}"
    )


def _tables_of(change: Arrival) -> set[TableId]:
    """Return the tables that a row or a schema change is about."""
    if not isinstance(change, ArrivedStatement):
        return {change.table.written_as}
    names = {change.change.written_as}
    with suppress(BadStatement):
        head = read_head(TokenCursor(change.change.query, ansi_quotes=True), strict=False)
        names |= {one.within(change.change.written_as.database) for one in head.tables}
    return names
