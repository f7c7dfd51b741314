"""Other names for the tables of a DDL statement; all the rest stays as the user wrote it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from rowferry.change.table import TableId
from rowferry.mysql.ddl.clauses import accept_new_name, accept_of_partitions, split_clauses
from rowferry.mysql.ddl.cursor import TokenCursor
from rowferry.mysql.ddl.head import Head, WrittenName, read_head, written_name

NewName: TypeAlias = Callable[[TableId], TableId]


def rename_tables(sql: str, database: str, new_name: NewName) -> str:
    """Return a DDL with the tables and databases that it names under new names.

    Names of tables are the statement's own (in CREATE, ALTER, DROP, TRUNCATE and RENAME TABLE,
    CREATE and DROP INDEX, CREATE, ALTER and DROP VIEW), those after LIKE and REFERENCES, and the
    table that EXCHANGE and CONVERT name beside a partition; a database's name is that of CREATE,
    ALTER and DROP DATABASE. What a view selects from is left as it is. A name is only touched where
    it changes, or where it would no longer be found beside a table that has gone to another
    database.

    Args:
        sql: one statement.
        database: of names without one.
        new_name: returns the name of a table, or of a database (its table's name is empty).

    Raises:
        BadStatement: the text is not one statement.
    """
    reader = _Names(TokenCursor(sql, ansi_quotes=True), database, new_name)
    reader.read()
    return _edited(sql, reader.all_edits())


def qualify_tables(sql: str, cursor: TokenCursor, database: str) -> str:
    """Return a DDL of a table in another database with no table's name left to the session.

    Who runs it later does so in the table's own database, where `LIKE t` means another table.

    Args:
        sql: one statement.
        cursor: stands at its beginning, and has tokens of what is code in it only.
        database: the session's.

    Raises:
        BadStatement: a name is missing.
    """
    reader = _Names(cursor, database, lambda name: name)
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
        head = read_head(self.cursor, strict=False)
        if head.database is not None:
            self._database(head.database)
        for written in head.tables:
            self._table(written)
        if head.like is not None:
            self._table(head.like)
        if head.subject == "TABLE" and head.verb in ("ALTER", "CREATE"):
            self._body(head)

    def _body(self, head: Head) -> None:
        """Look for further tables behind the table's own name."""
        tokens, begin = self.cursor.tokens, self.cursor.place
        for place in range(begin, len(tokens)):
            if tokens[place].word == "REFERENCES":
                self._table(written_name(self.cursor.at_place(place + 1)), self.home)
        for clause in split_clauses(self.cursor, strict=False) if head.alters_table else ():
            ahead = self.cursor.at_place(clause.first)
            action = accept_of_partitions(ahead)
            other = action.other if action is not None else accept_new_name(ahead)
            if other is not None:
                self._table(other)

    def _database(self, written: WrittenName) -> None:
        new = self.new_name(TableId(written.database, "")).database
        if new != written.database:
            self.edits.append((written.start, written.end, _quoted(new)))

    def _table(self, written: WrittenName, database: str = "") -> None:
        """Note a table's name; without one of its own, its database is the given one."""
        old = written.within(database or self.database)
        new = self.new_name(old)
        if not self.home:
            self.home, self.moved = old.database, new.database != old.database
        bare, full = _quoted(new.table), f"{_quoted(new.database)}.{_quoted(new.table)}"
        if new != old:
            qualified = written.database or new.database != old.database or self.moved
            self.edits.append((written.start, written.end, full if qualified else bare))
        elif not written.database:
            self.bare.append((written.start, written.end, full))


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
