"""DDL understood: what a statement makes of the tables that are there.

Comes in: MySQL's DDL text and the definitions before it. Goes out: one `SchemaChange` for each
table or database that changes. What is not understood is refused by name, never guessed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import count
from typing import Final

from rowferry.change.chunk import DdlKind, SchemaChange
from rowferry.change.sqltype import SqlType
from rowferry.change.table import TableId, TableSchema
from rowferry.errors import BadStatement
from rowferry.mysql.ddl.alter import Draft, add_index, drop_index, read_alterations
from rowferry.mysql.ddl.cursor import TokenCursor
from rowferry.mysql.ddl.head import Head, WrittenName, not_understood, read_head
from rowferry.mysql.ddl.table import (
    copied,
    create_sql,
    quoted_table,
    read_definition,
    rename_sql,
)
from rowferry.mysql.ddl.type import accept_charset, read_type

__all__ = ["create_sql", "parse_create", "parse_type", "plan_ddl"]


def parse_create(sql: str, database: str = "") -> TableSchema:
    """Return the definition that a CREATE TABLE statement gives.

    The table's id and version are 0, its partitions' physical ids are 1, 2, …

    Args:
        sql: one CREATE TABLE statement with its columns.
        database: used where the statement names none.

    Raises:
        BadStatement: the text cannot be read, with the place.
    """
    ids = count()
    cursor = TokenCursor(sql)
    head = read_head(cursor, strict=False)
    is_create = (head.verb, head.subject) == ("CREATE", "TABLE")
    if not (is_create and head.is_known) or head.is_temporary:
        cursor.place = 0
        cursor.fail("expected CREATE TABLE")
    return read_definition(cursor, head.table.within(database), lambda: next(ids))


def parse_type(text: str) -> SqlType:
    """Return the column type that a text like `varchar(255)` or `int unsigned` names.

    Raises:
        BadStatement: no such type, or more text than a type.
    """
    cursor = TokenCursor(text)
    sql_type, _ = read_type(cursor, "utf8mb4")
    cursor.finish()
    return sql_type


def plan_ddl(
    sql: str,
    database: str,
    tables: Mapping[TableId, TableSchema],
    next_id: Callable[[], int],
) -> list[SchemaChange]:
    """Return what one DDL statement changes, in order; `tables` itself stays as it is.

    Commit-ts and versions are 0: whoever runs the statement knows them. A definition keeps its
    table id, except after TRUNCATE. New tables and partitions take their ids from `next_id`. A new
    column's id is higher than any that the table ever had. A statement that changes no definition
    (`IF EXISTS` on nothing, ENGINE, temporary tables) gives an empty list.

    Args:
        sql: one statement.
        database: the current database, for names without one; may be empty.
        tables: all tables that exist.
        next_id: gives a table id that was never used.

    Raises:
        BadStatement: not understood, or it does not fit the tables; the text names what is wrong.
    """
    return _Statement(sql, database, tables, next_id).plan()


class _Statement:
    """One statement being planned; `tables` is a copy that follows its parts."""

    def __init__(
        self,
        sql: str,
        database: str,
        tables: Mapping[TableId, TableSchema],
        next_id: Callable[[], int],
    ) -> None:
        self.cursor = TokenCursor(sql)
        self.query = sql.strip().rstrip(";").rstrip()
        self.database = database
        self.tables = dict(tables)
        self.next_id = next_id

    def plan(self) -> list[SchemaChange]:
        """Read the statement by its first words."""
        head = read_head(self.cursor)
        plan = _PLANS.get((head.verb, head.subject))
        if plan is None:
            not_understood(self.cursor)
        return [] if head.is_temporary else plan(self, head)  # seen by one session only

    # --- names -----------------------------------------------------------------------------------

    def name(self, written: WrittenName) -> TableId:
        """Return a table's name; it must have a database, given or current."""
        name = written.within(self.database)
        if not name.database:
            raise BadStatement(f"table {name.table!r} has no database; write database.{name.table}")
        return name

    def existing(self, name: TableId) -> TableSchema:
        """Return a table's definition, or refuse."""
        table = self.tables.get(name)
        if table is None:
            raise BadStatement(f"there is no table {name}")
        return table

    # --- CREATE ----------------------------------------------------------------------------------

    def create_view(self, head: Head) -> list[SchemaChange]:
        return [SchemaChange(0, DdlKind.CREATE_VIEW, self.query, self.name(head.table))]

    def create_table(self, head: Head) -> list[SchemaChange]:
        name = self.name(head.table)
        changes: list[SchemaChange] = []
        if name in self.tables:
            if head.conditional:
                return []
            if not head.replaces:
                raise BadStatement(f"table {name} exists already")
            changes.append(self._dropped(name, f"DROP TABLE {quoted_table(name)}"))
        if head.like is not None:
            like = self.existing(self.name(head.like))
            self.cursor.finish()
            table = replace(copied(like, name, self.next_id), version=0)
        else:
            table = read_definition(self.cursor, name, self.next_id)
        return [*changes, SchemaChange(0, DdlKind.CREATE_TABLE, self.query, name, table)]

    def create_index(self, head: Head) -> list[SchemaChange]:
        draft = Draft(self.existing(self.name(head.table)), self.next_id)
        add_index(self.cursor, draft, head)
        self.cursor.finish()
        return self._altered(draft)

    # --- DROP, TRUNCATE, RENAME ------------------------------------------------------------------

    def drop_database(self, head: Head) -> list[SchemaChange]:
        change = self._of_database(DdlKind.DROP_DATABASE, head)
        names = [n for n in self.tables if n.database == change.table.database]
        return [*(self._dropped(n, f"DROP TABLE {quoted_table(n)}") for n in names), change]

    def drop_index(self, head: Head) -> list[SchemaChange]:
        draft = Draft(self.existing(self.name(head.table)), self.next_id)
        self.cursor.skip_to_comma()
        self.cursor.finish()
        drop_index(draft, head.index, head.conditional)
        return self._altered(draft)

    def drop_views(self, head: Head) -> list[SchemaChange]:
        return self._each(head, lambda n, query: SchemaChange(0, DdlKind.DROP_VIEW, query, n))

    def drop_tables(self, head: Head) -> list[SchemaChange]:
        if head.conditional:
            return self._each(head, lambda n, q: self._dropped(n, q) if n in self.tables else None)
        return self._each(head, self._dropped)

    def _each(
        self, head: Head, change: Callable[[TableId, str], SchemaChange | None]
    ) -> list[SchemaChange]:
        """Return the change of each; each gets its own statement text if there are several."""
        names = [self.name(written) for written in head.tables]
        self.cursor.finish()
        several, verb = len(names) > 1, f"DROP {head.subject}"
        changes = (change(n, f"{verb} {quoted_table(n)}" if several else self.query) for n in names)
        return [c for c in changes if c is not None]

    def _dropped(self, name: TableId, query: str) -> SchemaChange:
        table = self.existing(name)
        del self.tables[name]
        return SchemaChange(0, DdlKind.DROP_TABLE, query, name, dropped_table_id=table.table_id)

    def truncate(self, head: Head) -> list[SchemaChange]:
        name = self.name(head.table)
        self.cursor.finish()
        old = self.existing(name)
        new = replace(copied(old, name, self.next_id), version=0)
        return [
            SchemaChange(
                0, DdlKind.TRUNCATE_TABLE, self.query, name, new, dropped_table_id=old.table_id
            )
        ]

    def rename(self, head: Head) -> list[SchemaChange]:
        pairs = [(self.name(old), self.name(new)) for old, new in head.pairs]
        self.cursor.finish()
        changes = []
        for old, new in pairs:
            table = replace(self.existing(old), id=new, version=0)
            self._move(old, table)
            query = rename_sql(old, new)
            changes.append(SchemaChange(0, DdlKind.RENAME_TABLE, query, new, table, previous=old))
        return changes

    def _move(self, old: TableId, table: TableSchema) -> None:
        """Put a renamed table in its new place, which must be free."""
        if table.id in self.tables and table.id != old:
            raise BadStatement(f"table {table.id} exists already")
        del self.tables[old]
        self.tables[table.id] = table

    # --- ALTER -----------------------------------------------------------------------------------

    def alter_table(self, head: Head) -> list[SchemaChange]:
        name = self.name(head.table)
        if head.conditional and name not in self.tables:
            return []
        draft = Draft(self.existing(name), self.next_id)
        read_alterations(self.cursor, draft)
        return self._altered(draft)

    def _altered(self, draft: Draft) -> list[SchemaChange]:
        if not draft.kinds:
            return []
        table = draft.finish()
        old = draft.table.id
        self._move(old, table)
        previous = old if DdlKind.RENAME_TABLE in draft.kinds else None
        only_renamed = draft.kind is DdlKind.RENAME_TABLE
        query = rename_sql(old, table.id) if only_renamed else self.query
        return [SchemaChange(0, draft.kind, query, table.id, table, previous)]

    # --- databases -------------------------------------------------------------------------------

    def create_database(self, head: Head) -> list[SchemaChange]:
        return [self._of_database(DdlKind.CREATE_DATABASE, head)]

    def alter_database(self, head: Head) -> list[SchemaChange]:
        change = self._of_database(DdlKind.DATABASE_CHARSET, head)
        self.cursor.accept("DEFAULT")
        if not accept_charset(self.cursor):
            not_understood(self.cursor)
        return [change]

    def _of_database(self, kind: DdlKind, head: Head) -> SchemaChange:
        name = head.database.database if head.database else self.database
        if not name:
            raise BadStatement("no database is named and none is current")
        return SchemaChange(0, kind, self.query, TableId(name, ""))


_PLANS: Final[dict[tuple[str, str], Callable[[_Statement, Head], list[SchemaChange]]]] = {
    ("ALTER", "DATABASE"): _Statement.alter_database,
    ("ALTER", "TABLE"): _Statement.alter_table,
    ("CREATE", "DATABASE"): _Statement.create_database,
    ("CREATE", "INDEX"): _Statement.create_index,
    ("CREATE", "TABLE"): _Statement.create_table,
    ("CREATE", "VIEW"): _Statement.create_view,
    ("DROP", "DATABASE"): _Statement.drop_database,
    ("DROP", "INDEX"): _Statement.drop_index,
    ("DROP", "TABLE"): _Statement.drop_tables,
    ("DROP", "VIEW"): _Statement.drop_views,
    ("RENAME", "TABLE"): _Statement.rename,
    ("TRUNCATE", "TABLE"): _Statement.truncate,
}
