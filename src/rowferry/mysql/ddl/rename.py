"""Other names for the tables of a DDL statement; all the rest stays as the user wrote it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

from rowferry.change.table import TableId
from rowferry.mysql.ddl.cursor import QUOTED, STRING, WORD, TokenCursor

NewName: TypeAlias = Callable[[TableId], TableId]

_DATABASE: Final = ("DATABASE", "SCHEMA")
_DATABASE_OPTIONS: Final = ("DEFAULT", "CHARACTER", "CHARSET", "COLLATE", "COMMENT", "READ")
_OTHER_RENAMES: Final = ("COLUMN", "INDEX", "KEY", "PARTITION")


def rename_tables(sql: str, database: str, new_name: NewName) -> str:
    """Return a DDL with the tables and databases that it names under new names.

    Names of tables are the statement's own (in CREATE, ALTER, DROP, TRUNCATE and RENAME TABLE,
    CREATE and DROP INDEX, CREATE and DROP VIEW), those after LIKE and REFERENCES, and the table of
    EXCHANGE PARTITION; a database's name is that of CREATE, ALTER and DROP DATABASE. What a view
    selects from is left as it is. A name is only touched where it changes, or where it would no
    longer be found beside a table that has gone to another database.

    Args:
        sql: one statement.
        database: of names without one.
        new_name: returns the name of a table, or of a database (its table's name is empty).

    Raises:
        BadStatement: the text is not one statement.
    """
    reader = _Names(TokenCursor(sql), database, new_name)
    reader.read()
    return _edited(sql, reader.all_edits())


def qualify_tables(sql: str, plain: str, database: str) -> str:
    """Return a DDL of a table in another database with no table's name left to the session.

    Who runs it later does so in the table's own database, where `LIKE t` means another table.

    Args:
        sql: one statement.
        plain: the same with all that is no code blanked out.
        database: the session's.

    Raises:
        BadStatement: the text is not one statement.
    """
    reader = _Names(TokenCursor(plain), database, lambda name: name)
    reader.read()
    return sql if reader.home in ("", database) else _edited(sql, reader.bare)


def _edited(sql: str, edits: list[tuple[int, int, str]]) -> str:
    for start, end, text in sorted(edits, reverse=True):
        sql = sql[:start] + text + sql[end:]
    return sql


class _Names:
    """Walks over a statement and notes what takes the place of which piece of text."""

    def __init__(self, cursor: TokenCursor, database: str, new_name: NewName) -> None:
        self.cursor, self.database, self.new_name = cursor, database, new_name
        self.home = ""  # the database of the statement's own table
        self.moved = False  # that table goes to another database
        self.edits: list[tuple[int, int, str]] = []
        self.bare: list[tuple[int, int, str]] = []  # names that stay, with their database in front

    def all_edits(self) -> list[tuple[int, int, str]]:
        """Return what is to be replaced."""
        return self.edits + (self.bare if self.moved else [])

    def read(self) -> None:
        cursor = self.cursor
        verb = cursor.accept_any("CREATE", "ALTER", "DROP", "TRUNCATE", "RENAME")
        if not verb:
            return
        if cursor.accept("OR"):
            cursor.accept("REPLACE")
        if cursor.accept_any(*_DATABASE):
            self._conditions()
            self._database_name()
        elif verb == "TRUNCATE":
            cursor.accept("TABLE")
            self._table_name()
        elif verb == "RENAME":
            self._renames()
        else:
            self._of_object(verb)

    def _of_object(self, verb: str) -> None:
        """Read a statement about a table, an index or a view, from behind its verb."""
        cursor = self.cursor
        while not cursor.done() and not cursor.at_any("TABLE", "INDEX", "VIEW"):
            cursor.take()  # TEMPORARY, UNIQUE, ALGORITHM = …, DEFINER = …
        what = cursor.accept_any("TABLE", "INDEX", "VIEW")
        self._conditions()
        if what == "INDEX":
            while not cursor.done() and not cursor.accept("ON"):
                cursor.take()
        if cursor.done():
            return
        self._table_name()
        while verb == "DROP" and cursor.accept(","):
            self._table_name()
        if what == "TABLE" and verb != "DROP":
            self._body(verb)

    def _body(self, verb: str) -> None:
        """Look for further tables behind the table's own name."""
        cursor = self.cursor
        if verb == "CREATE" and (cursor.accept("LIKE") or cursor.accept("(", "LIKE")):
            self._table_name()
        while not cursor.done():
            word = cursor.take().word
            if word == "REFERENCES":
                self._table_name(self.home)
            elif word == "WITH" and cursor.accept("TABLE"):
                self._table_name()
            elif word == "RENAME" and verb == "ALTER" and not cursor.at_any(*_OTHER_RENAMES):
                cursor.accept_any("TO", "AS", "=")
                self._table_name()

    def _renames(self) -> None:
        cursor = self.cursor
        if not cursor.accept_any("TABLE", "TABLES"):
            return
        self._conditions()
        while True:
            self._table_name()
            while not cursor.done() and not cursor.accept("TO"):
                cursor.take()  # WAIT n, NOWAIT
            self._table_name()
            if not cursor.accept(","):
                return

    def _conditions(self) -> None:
        self.cursor.accept("IF", "NOT", "EXISTS") or self.cursor.accept("IF", "EXISTS")

    def _database_name(self) -> None:
        if not self._at_name() or self.cursor.at_any(*_DATABASE_OPTIONS):
            return  # ALTER DATABASE may leave it out
        token = self.cursor.take()
        new = self.new_name(TableId(token.text, "")).database
        if new != token.text:
            self.edits.append((token.start, token.end, _quoted(new)))

    def _table_name(self, database: str = "") -> None:
        """Consume a table's name; without one of its own, its database is the given one."""
        cursor = self.cursor
        if not self._at_name():
            cursor.fail("expected the name of a table")
        first = last = cursor.take()
        database = database or self.database
        if cursor.accept("."):
            database, last = first.text, cursor.take()
        old = TableId(database, last.text)
        new = self.new_name(old)
        if not self.home:
            self.home, self.moved = database, new.database != database
        bare, full = _quoted(new.table), f"{_quoted(new.database)}.{_quoted(new.table)}"
        if new != old:
            qualified = first is not last or new.database != database or self.moved
            self.edits.append((first.start, last.end, full if qualified else bare))
        elif first is last:
            self.bare.append((first.start, last.end, full))

    def _at_name(self) -> bool:
        token = self.cursor.peek()
        in_quotes = token.kind == STRING and self.cursor.sql[token.start] == '"'  # ANSI_QUOTES
        return token.kind in (WORD, QUOTED) or in_quotes


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
