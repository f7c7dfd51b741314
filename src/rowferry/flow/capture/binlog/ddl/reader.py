"""One logged statement being read: its names, and what it does as it comes to light."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from rowferry.change.chunk import DdlKind, SchemaChange
from rowferry.change.table import TableId, TableSchema
from rowferry.errors import BadStatement
from rowferry.mysql.ddl.alter import Draft
from rowferry.mysql.ddl.cursor import TokenCursor
from rowferry.mysql.ddl.head import WrittenName
from rowferry.mysql.ddl.rename import qualify_tables
from rowferry.mysql.ddl.table import quoted_table, rename_sql
from rowferry.mysql.server_form import ServerSettings, Untold, server_form
from rowferry.mysql.session import ServerFacts

ANSI_QUOTES: Final = 1 << 2
_NO_BACKSLASH_ESCAPES: Final = 1 << 20
# Under these modes (REAL_AS_FLOAT, ORACLE, MSSQL, DB2, MAXDB) column types mean other things.
_OTHER_TYPES: Final = 1 | 0x200 | 0x400 | 0x800 | 0x1000

_START_TRANSACTION: Final = re.compile(r"\s+START\s+TRANSACTION\s*$", re.IGNORECASE)
# Pairs of words by which the server makes more, or other things, of a text than it says.
_MAKES_MORE: Final = frozenset(
    {
        ("SYSTEM", "VERSIONING"),
        ("PERIOD", "FOR"),
        ("WITHOUT", "OVERLAPS"),
        ("TEXT", "("),  # its size depends on a character set that may follow
    }
)


class NotUnderstood(Exception):
    """What the statement does is not known by its words. It never leaves this package."""


@dataclass(frozen=True, slots=True)
class Scope:
    """The tables that matter, and how names are compared.

    Attributes:
        is_announced: whether readers know of a captured table.
    """

    known: Mapping[TableId, TableSchema]
    keeps: Callable[[TableId], bool]
    next_id: Callable[[], int]
    facts: ServerFacts
    settings: ServerSettings
    is_announced: Callable[[TableId], bool]

    def name(self, written: TableId) -> TableId:
        """Return a written name as the server keeps it."""
        if not self.settings.lower_case or written in self.known:
            return written
        small = _small(written)
        return next((n for n in self.known if _small(n) == small), self.settings.kept(written))

    def concerns(self, name: TableId) -> bool:
        """Return whether a table is captured or would be."""
        return name in self.known or self.keeps(name)


def _small(name: TableId) -> tuple[str, str]:
    return name.database.lower(), name.table.lower()


def _whole_names(sql: str, cursor: TokenCursor, database: str) -> str:
    """Return the text that means the same in the table's own database."""
    with suppress(BadStatement):
        sql = qualify_tables(sql, cursor, database)
    return sql.strip().rstrip(";").rstrip()


class StatementReader:
    """A statement and the place in it; what it does is gathered as it is read.

    Attributes:
        query: the text to hand on: without the mark of a table that is filled by the same
            transaction, and with no name that only the session's database tells.
        changes: see `Effects`, as all that follow.
    """

    def __init__(self, sql: str, plain: str, database: str, scope: Scope, sql_mode: int) -> None:
        self.cursor = TokenCursor(plain)
        self.query = _START_TRANSACTION.sub(
            "", _whole_names(sql, self.cursor.at_place(0), database)
        )
        self.database = database
        self.scope = scope
        self.changes: list[SchemaChange] = []
        self.unread: list[TableId] = []
        self.swapped: list[tuple[TableId, TableId]] = []
        self.filled: list[TableId] = []
        self.thinned: list[TableId] = []
        self._other_types = bool(sql_mode & _OTHER_TYPES) or (
            bool(sql_mode & _NO_BACKSLASH_ESCAPES) and "\\" in plain
        )

    # --- names -----------------------------------------------------------------------------------

    def name(self, written: WrittenName) -> TableId:
        """Return a written name as the server keeps it."""
        return self.scope.name(written.within(self.database))

    def database_name(self, written: str) -> str:
        """Return a database's name as the server keeps it."""
        if self.scope.settings.lower_case:
            known = {name.database.lower(): name.database for name in self.scope.known}
            written = known.get(written.lower(), written)
        return self.scope.settings.kept(TableId(written, "")).database

    # --- what it does ----------------------------------------------------------------------------

    def change(
        self,
        kind: DdlKind,
        table: TableId,
        schema: TableSchema | None = None,
        previous: TableId | None = None,
        query: str | None = None,
        dropped: int = 0,
    ) -> None:
        """Note a change; a rename has the one form that every consumer of TiCDC's reads."""
        text = self.query if query is None else query
        if kind is DdlKind.RENAME_TABLE and previous is not None:
            text = rename_sql(previous, table)
        self.changes.append(SchemaChange(0, kind, text, table, schema, previous, dropped))

    def change_to_read(
        self,
        kind: DdlKind,
        table: TableId,
        previous: TableId | None = None,
        query: str | None = None,
    ) -> None:
        """Note a change after which the table has to be read, unless it left the filter."""
        if self.scope.keeps(table):
            self.unread.append(table)
        self.change(kind, table, previous=previous, query=query)

    def arrived(self, name: TableId) -> None:
        """Note a table that is new to the feed and whose text is not known."""
        self.change_to_read(DdlKind.CREATE_TABLE, name, query="")

    def dropped(self, name: TableId, query: str | None = None) -> None:
        """Note that a table is gone, if it was captured."""
        if (table := self.scope.known.get(name)) is not None:
            text = query or f"DROP TABLE {quoted_table(name)}"
            self.change(DdlKind.DROP_TABLE, name, query=text, dropped=table.table_id)

    def of_database(self, kind: DdlKind, written: str) -> None:
        """Note a change of a database."""
        if written:
            self.change(kind, TableId(self.database_name(written), ""))

    def redefine(
        self,
        name: TableId,
        alter: Callable[[Draft], None],
        otherwise: DdlKind,
        new: TableId | None = None,
    ) -> None:
        """Note the next definition of a table; where the text does not tell it, that.

        Args:
            name: the table.
            alter: reads the text into a draft.
            otherwise: the kind of change where the text is not understood.
            new: the table's name after the statement, if it gets one.
        """
        scope, after = self.scope, new or name
        previous = name if after != name else None
        table = scope.known.get(name)
        if table is None:
            return
        draft = Draft(table, scope.next_id, as_mysql=True)
        try:
            alter(draft)
            renamed_to_itself = draft.kinds == [DdlKind.RENAME_TABLE] and previous is None
            if draft.kinds and not renamed_to_itself:
                self.change(draft.kind, after, self.in_server_form(draft.finish(), table), previous)
        except BadStatement:
            self.change_to_read(otherwise, after, previous)
        except Untold:
            self.change_to_read(draft.kind, after, previous)

    def in_server_form(self, table: TableSchema, before: TableSchema | None) -> TableSchema:
        """Return a definition as the server shows it.

        Raises:
            Untold: the text does not tell it.
        """
        words = [t.word for t in self.cursor.tokens]
        if (
            self._other_types
            or "REFERENCES" in words  # the server makes an index for a foreign key that lacks one
            or "SELECT" in words
            or "LOCALTIME" in words  # the time of day for newer MariaDB, else the date as well
            or not _MAKES_MORE.isdisjoint(zip(words, words[1:], strict=False))
        ):
            raise Untold
        return server_form(table, before, self.scope.facts, self.scope.settings)
