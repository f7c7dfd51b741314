"""DDL understood: what a statement makes of the tables that are there.

Comes in: MySQL's DDL text and the definitions before it. Goes out: one `SchemaChange` for each
table or database that changes. What is not understood is refused by name, never guessed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import count
from typing import Final, NoReturn

from rowferry.change.chunk import DdlKind, SchemaChange
from rowferry.change.sqltype import SqlType
from rowferry.change.table import TableId, TableSchema
from rowferry.errors import BadStatement
from rowferry.mysql.ddl.alter import Draft, drop_index, read_alterations
from rowferry.mysql.ddl.column import key_parts
from rowferry.mysql.ddl.cursor import TokenCursor
from rowferry.mysql.ddl.table import (
    copied,
    create_sql,
    quoted_table,
    read_definition,
    rename_sql,
)
from rowferry.mysql.ddl.type import accept_charset, read_type

__all__ = ["create_sql", "parse_create", "parse_type", "plan_ddl"]

_UNDERSTOOD: Final = (
    "CREATE/DROP/ALTER DATABASE, CREATE/DROP/TRUNCATE/RENAME/ALTER TABLE, CREATE/DROP INDEX, "
    "CREATE/DROP VIEW"
)


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
    statement = _Statement(sql, database, {}, lambda: next(ids))
    cursor = statement.cursor
    cursor.expect("CREATE")
    cursor.accept("OR", "REPLACE")
    cursor.expect("TABLE")
    cursor.accept("IF", "NOT", "EXISTS")
    named, name = cursor.qualified_name()
    return read_definition(cursor, TableId(named or database, name), statement.next_id)


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
        cursor = self.cursor
        if cursor.accept("CREATE"):
            return self._create()
        if cursor.accept("DROP"):
            return self._drop()
        if cursor.accept("TRUNCATE"):
            cursor.accept("TABLE")
            return self._truncate()
        if cursor.accept("RENAME"):
            if not cursor.accept_any("TABLE", "TABLES"):
                self._not_understood()
            return self._rename()
        if cursor.accept("ALTER"):
            return self._alter()
        self._not_understood()

    def _not_understood(self) -> NoReturn:
        self.cursor.place = 0
        self.cursor.fail(f"not a statement that is understood ({_UNDERSTOOD})")

    # --- names -----------------------------------------------------------------------------------

    def table_name(self) -> TableId:
        """Consume a table's name; it must have a database, given or current."""
        database, name = self.cursor.qualified_name()
        if not (database or self.database):
            raise BadStatement(f"table {name!r} has no database; write database.{name}")
        return TableId(database or self.database, name)

    def existing(self, name: TableId) -> TableSchema:
        """Return a table's definition, or refuse."""
        table = self.tables.get(name)
        if table is None:
            raise BadStatement(f"there is no table {name}")
        return table

    # --- CREATE ----------------------------------------------------------------------------------

    def _create(self) -> list[SchemaChange]:
        cursor = self.cursor
        replacing = cursor.accept("OR", "REPLACE")
        if cursor.accept_any("DATABASE", "SCHEMA"):
            cursor.accept("IF", "NOT", "EXISTS")
            return [self._of_database(DdlKind.CREATE_DATABASE)]
        if cursor.accept("TABLE"):
            return self._create_table(replacing)
        if cursor.accept_any("TEMPORARY"):
            return []  # seen by one session only
        unique = cursor.at("UNIQUE")
        cursor.accept_any("UNIQUE", "FULLTEXT", "SPATIAL", "VECTOR")
        if cursor.accept("INDEX"):
            return self._create_index(unique)
        while not cursor.done() and not cursor.accept("VIEW"):
            cursor.take()  # ALGORITHM, DEFINER, SQL SECURITY
            if cursor.at_any("TRIGGER", "PROCEDURE", "FUNCTION", "EVENT", "SEQUENCE", "USER"):
                self._not_understood()
        if cursor.done():
            self._not_understood()
        cursor.accept("IF", "NOT", "EXISTS")
        return [SchemaChange(0, DdlKind.CREATE_VIEW, self.query, self.table_name())]

    def _create_table(self, replacing: bool) -> list[SchemaChange]:
        cursor = self.cursor
        unless = cursor.accept("IF", "NOT", "EXISTS")
        name = self.table_name()
        changes: list[SchemaChange] = []
        if name in self.tables:
            if unless:
                return []
            if not replacing:
                raise BadStatement(f"table {name} exists already")
            changes.append(self._dropped(name, f"DROP TABLE {quoted_table(name)}"))
        inner = cursor.at("(", "LIKE")
        if cursor.accept("LIKE") or cursor.accept("(", "LIKE"):
            like = self.existing(self.table_name())
            if inner:
                cursor.expect(")")
            cursor.finish()
            table = replace(copied(like, name, self.next_id), version=0)
        else:
            table = read_definition(cursor, name, self.next_id)
        return [*changes, SchemaChange(0, DdlKind.CREATE_TABLE, self.query, name, table)]

    def _create_index(self, unique: bool) -> list[SchemaChange]:
        cursor = self.cursor
        unless = cursor.accept("IF", "NOT", "EXISTS")
        index = cursor.name()
        if cursor.accept("USING"):
            cursor.name()
        cursor.expect("ON")
        draft = Draft(self.existing(self.table_name()), self.next_id)
        key = key_parts(cursor, index, unique=unique)
        cursor.finish()
        if unless and draft.has_index(index):
            return []
        draft.keys.append(key)
        draft.kinds.append(DdlKind.ADD_INDEX)
        return self._altered(draft)

    # --- DROP, TRUNCATE, RENAME ------------------------------------------------------------------

    def _drop(self) -> list[SchemaChange]:
        cursor = self.cursor
        if cursor.accept_any("DATABASE", "SCHEMA"):
            cursor.accept("IF", "EXISTS")
            change = self._of_database(DdlKind.DROP_DATABASE)
            names = [n for n in self.tables if n.database == change.table.database]
            return [*(self._dropped(n, f"DROP TABLE {quoted_table(n)}") for n in names), change]
        if cursor.accept("INDEX"):
            unless = cursor.accept("IF", "EXISTS")
            index = cursor.name()
            cursor.expect("ON")
            draft = Draft(self.existing(self.table_name()), self.next_id)
            cursor.skip_to_comma()
            cursor.finish()
            drop_index(draft, index, unless)
            return self._altered(draft)
        if cursor.accept("TEMPORARY"):
            return []
        if cursor.accept("VIEW"):
            cursor.accept("IF", "EXISTS")
            return self._each(
                "DROP VIEW", lambda n, query: SchemaChange(0, DdlKind.DROP_VIEW, query, n)
            )
        if not cursor.accept_any("TABLE", "TABLES"):
            self._not_understood()
        if cursor.accept("IF", "EXISTS"):
            return self._each(
                "DROP TABLE", lambda n, q: self._dropped(n, q) if n in self.tables else None
            )
        return self._each("DROP TABLE", self._dropped)

    def _each(
        self, verb: str, change: Callable[[TableId, str], SchemaChange | None]
    ) -> list[SchemaChange]:
        """Consume names; each gets its own statement text if there are several."""
        names = [self.table_name()]
        while self.cursor.accept(","):
            names.append(self.table_name())
        self.cursor.accept_any("RESTRICT", "CASCADE")
        self.cursor.finish()
        several = len(names) > 1
        changes = (change(n, f"{verb} {quoted_table(n)}" if several else self.query) for n in names)
        return [c for c in changes if c is not None]

    def _dropped(self, name: TableId, query: str) -> SchemaChange:
        table = self.existing(name)
        del self.tables[name]
        return SchemaChange(0, DdlKind.DROP_TABLE, query, name, dropped_table_id=table.table_id)

    def _truncate(self) -> list[SchemaChange]:
        name = self.table_name()
        self.cursor.finish()
        old = self.existing(name)
        new = replace(copied(old, name, self.next_id), version=0)
        return [
            SchemaChange(
                0, DdlKind.TRUNCATE_TABLE, self.query, name, new, dropped_table_id=old.table_id
            )
        ]

    def _rename(self) -> list[SchemaChange]:
        cursor = self.cursor
        cursor.accept("IF", "EXISTS")
        pairs: list[tuple[TableId, TableId]] = []
        while True:
            old = self.table_name()
            cursor.expect("TO")
            pairs.append((old, self.table_name()))
            if not cursor.accept(","):
                break
        cursor.finish()
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

    def _alter(self) -> list[SchemaChange]:
        cursor = self.cursor
        if cursor.accept_any("DATABASE", "SCHEMA"):
            return self._alter_database()
        cursor.accept_any("ONLINE", "IGNORE")
        if not cursor.accept("TABLE"):
            self._not_understood()
        unless = cursor.accept("IF", "EXISTS")
        name_of = self.table_name()
        if unless and name_of not in self.tables:
            return []
        draft = Draft(self.existing(name_of), self.next_id)
        read_alterations(cursor, draft)
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

    def _alter_database(self) -> list[SchemaChange]:
        cursor = self.cursor
        unnamed = cursor.at_any("DEFAULT", "CHARACTER", "CHARSET", "COLLATE")
        name = self._database_id(self.database if unnamed else cursor.name())
        cursor.accept("DEFAULT")
        if not accept_charset(cursor):
            self._not_understood()
        return [SchemaChange(0, DdlKind.DATABASE_CHARSET, self.query, name)]

    def _of_database(self, kind: DdlKind) -> SchemaChange:
        return SchemaChange(0, kind, self.query, self._database_id(self.cursor.name()))

    def _database_id(self, name: str) -> TableId:
        if not name:
            raise BadStatement("no database is named and none is current")
        return TableId(name, "")
