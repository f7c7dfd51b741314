"""Applying changes to a MySQL-compatible database, in plain statements.

Rows of a table with a key are replaced or deleted by key, so that repeats do no harm. Between two
schema changes only the last change of each key is carried out, all in one transaction. Tables
without a key are followed change by change, and a repeat is a row more.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from itertools import groupby
from typing import Any, Final

from rowferry.change.chunk import DdlKind, Op
from rowferry.change.sqltype import KINDS, Kind, SqlType
from rowferry.change.table import Column, TableId, TableSchema
from rowferry.downstream.consume.arrival import (
    Arrival,
    ArrivedRow,
    ArrivedStatement,
    Image,
    Key,
    key_of,
)
from rowferry.downstream.consume.checks import ConsumeFindings
from rowferry.downstream.consume.exchanges import Exchanges
from rowferry.downstream.consume.mysql_target import MySqlTarget, quoted, quoted_table
from rowferry.mysql.type_facts import same_value

_DELETES_AT_ONCE: Final = 500
_KEY_TEXT: Final = 255  # characters of a text in a key, where nothing tells its length
# To these no two texts are the same: MySQL's and MariaDB's. To others `a` and `a ` are.
_EXACT: Final = ("utf8mb4_0900_bin", "utf8mb4_nopad_bin")
_NEARLY_EXACT: Final = "utf8mb4_bin"
_OF_DATABASE: Final = (DdlKind.CREATE_DATABASE, DdlKind.DROP_DATABASE, DdlKind.DATABASE_CHARSET)
_WORDS_OF_DATABASE: Final = ("DATABASE", "SCHEMA")
_NUMBER: Final = re.compile(r"[+-]?\d+(\.\d+)?", re.ASCII)


@dataclass(slots=True)
class _Target:
    """A table of the database: lower-case names of its columns, some by what they are.

    Attributes:
        columns: all of them.
        settable: those that may be set.
        documents: those that hold JSON, which the database writes in its own way.
    """

    columns: set[str]
    settable: set[str]
    documents: set[str]


class Applier:
    """Carries out what is handed over; on return of `take` it is committed."""

    def __init__(self, target: MySqlTarget, findings: ConsumeFindings) -> None:
        self._target = target
        self._findings = findings
        self._tables: dict[TableId, _Target] = {}
        self._databases: set[str] = set()
        self._exchanges = Exchanges(target)
        self._collation = ""  # of texts in keys; empty: the database was not asked yet

    def take(self, changes: Iterable[Arrival]) -> None:
        """Apply changes in their order.

        Raises:
            RowRejected: the database refuses one; what came before it is applied.
            ExchangedBefore: an earlier run has applied one, and tables have traded names since.
            SinkUnavailable: the connection is lost.
        """
        changes = list(changes)
        self._exchanges.refuse_repeats(changes)
        for kind, group in groupby(changes, type):
            if kind is ArrivedStatement:
                for one in group:
                    assert isinstance(one, ArrivedStatement)
                    self._change_schema(one)
            else:
                self._apply([one for one in group if isinstance(one, ArrivedRow)])

    def close(self) -> None:
        """Let the connection go."""
        self._target.close()

    # --- schema changes --------------------------------------------------------------------------

    def _change_schema(self, statement: ArrivedStatement) -> None:
        change = statement.change
        table = change.written_as
        of_database = change.kind in _OF_DATABASE or _is_of_database(change.query)
        if of_database:
            self._target.change_schema("", change.query)
            self._databases.discard(table.database)
        elif change.query:
            self._have_database(table.database)
            with self._exchanges.noted(change, table.database):
                self._target.change_schema(table.database, change.query)
        elif change.schema is not None:  # a storage directory describes a table that was there
            self._have_table(change.schema)
        self._target.commit()
        self._tables.clear()

    def _have_database(self, name: str) -> None:
        if name not in self._databases:
            self._target.execute(f"CREATE DATABASE IF NOT EXISTS {quoted(name)}")
            self._databases.add(name)

    def _have_table(self, schema: TableSchema) -> _Target:
        """Return the table; make it, or columns of it, where they are not there.

        Not every format carries schema changes, and some carry them beside the rows.
        """
        name = schema.written_as
        there = self._tables.get(name)
        if there is None:
            self._have_database(name.database)
            there = self._look(name)
            if not there.columns:
                self._target.execute(create_statement(schema, self._of_key_texts(schema)))
                there = self._look(name)
            self._tables[name] = there
        missing = [c for c in schema.visible if c.name.lower() not in there.columns]
        if missing:
            added = ", ".join(f"ADD COLUMN {_column(c, False)}" for c in missing)
            self._target.execute(f"ALTER TABLE {quoted_table(name)} {added}")
            there = self._tables[name] = self._look(name)
        return there

    def _of_key_texts(self, schema: TableSchema) -> str:
        """Return the collation by which a REPLACE takes no other row's text for a key's own."""
        key = (schema.column(name) for name in schema.handle_key)
        if not self._collation and any(c.type.kind is Kind.TEXT for c in key):
            there = self._target.execute(
                "SELECT collation_name FROM information_schema.collations "
                "WHERE collation_name IN (%s, %s)",
                _EXACT,
            )
            self._collation = next((str(name) for (name,) in there), _NEARLY_EXACT)
        return self._collation

    def _look(self, table: TableId) -> _Target:
        """Return a table as it is; one without columns is not there."""
        columns = self._target.execute(
            "SELECT column_name, extra, data_type FROM information_schema.columns "
            "WHERE table_schema = %s AND table_name = %s",
            table,
        )
        # MySQL says DEFAULT_GENERATED of a default that is computed; such a column may be set.
        computed = {n.lower() for n, extra, _ in columns if "GENERATED" in extra.split()}
        documents = {n.lower() for n, _, of_type in columns if KINDS.get(of_type) is Kind.JSON}
        names = {n.lower() for n, *_ in columns}
        return _Target(names, names - computed, documents)

    # --- rows ------------------------------------------------------------------------------------

    def _apply(self, rows: Sequence[ArrivedRow]) -> None:
        by_table: dict[TableId, list[ArrivedRow]] = {}
        for row in rows:
            if why := _hindrance(row):
                self._findings.fault(f"{row}: cannot be applied, {why}")
                continue
            by_table.setdefault(row.table.written_as, []).append(row)
        for changes in by_table.values():
            if changes[-1].table.handle_key:
                self._apply_keyed(changes)
            else:
                for row in changes:
                    self._apply_keyless(row)
        self._target.commit()

    def _apply_keyed(self, rows: list[ArrivedRow]) -> None:
        last: dict[Key, tuple[TableSchema, Image | None, Image]] = {}
        for row in rows:
            gone = row.left_key
            if gone is not None:
                last.pop(gone, None)
                last[gone] = (row.table, None, {**(row.after or {}), **(row.before or {})})
            last.pop(row.key, None)  # so that keys are in the order of their last change
            image = row.after if row.after is not None else row.before or {}
            last[row.key] = (row.table, row.after, image)
        doomed = [(table, image) for table, after, image in last.values() if after is None]
        for table, some in groupby(doomed, lambda one: one[0]):
            self._delete(table, [image for _, image in some])
        kept = [(table, after) for table, after, _ in last.values() if after is not None]
        # Neighbours with the same columns share a statement.
        for (table, _), same in groupby(kept, lambda one: (one[0], tuple(one[1]))):
            self._write("REPLACE", table, [after for _, after in same])

    def _apply_keyless(self, row: ArrivedRow) -> None:
        if row.op is not Op.INSERT and row.before is not None:
            there = self._have_table(row.table)
            fits, values = [], []
            for name, value in row.before.items():
                column = row.table.column(name)
                kind = Kind.JSON if name.lower() in there.documents else _kind_of(column, value)
                same = same_value(kind, _name(name))
                if same is not None and name.lower() in there.settable:
                    fits.append("%s".join(same))
                    values.append(_compared(column, value))
            self._target.execute(
                f"DELETE FROM {_table(row.table)} WHERE {' AND '.join(fits)} LIMIT 1", values
            )
        if row.after is not None:
            self._write("INSERT", row.table, [row.after])

    def _write(self, verb: str, table: TableSchema, images: Sequence[Image]) -> None:
        there = self._have_table(table)
        names = [n for n in images[0] if n.lower() in there.settable]
        columns = ", ".join(map(_name, names))
        places = ", ".join(["%s"] * len(names))
        self._target.execute_many(
            f"{verb} INTO {_table(table)} ({columns}) VALUES ({places})",
            [[image[n] for n in names] for image in images],
        )

    def _delete(self, table: TableSchema, images: Sequence[Image]) -> None:
        self._have_table(table)
        key = table.handle_key
        place = f"({', '.join(['%s'] * len(key))})"
        start = f"DELETE FROM {_table(table)} WHERE ({', '.join(map(_name, key))})"
        for first in range(0, len(images), _DELETES_AT_ONCE):
            some = images[first : first + _DELETES_AT_ONCE]
            values = [
                _compared(table.column(name), value)
                for image in some
                for name, value in zip(key, key_of(table, image), strict=True)
            ]
            places = ", ".join([place] * len(some))
            self._target.execute(f"{start} IN ({places})", values)


def _hindrance(row: ArrivedRow) -> str:
    """Return why a row cannot be applied without making something else of it; empty: it can."""
    if row.key_only and row.op is not Op.DELETE:
        return "the message holds its key only"
    if row.op is not Op.UPDATE or row.after is None:
        return ""
    if not row.table.handle_key and row.before is None:
        return "its table tells no key, and the update not what the row was"
    if len(row.after) < len(row.table.visible):
        return "the update does not hold all columns"
    return ""


def _compared(column: Column, value: Any) -> Any:
    """Return a value that names a row, as servers compare it exactly.

    Beside a text a DECIMAL counts as a DOUBLE, in which neighbours of many digits are one: a delete
    would take them along.
    """
    is_text = column.type.kind is Kind.DECIMAL and isinstance(value, str)
    return Decimal(value) if is_text and _NUMBER.fullmatch(value) else value


def _kind_of(column: Column, value: Any) -> Kind:
    """Return the kind by which a value is compared; elements may come as their numbers."""
    by_number = column.type.kind in (Kind.ENUM, Kind.SET) and not isinstance(value, str)
    return Kind.INTEGER if by_number else column.type.kind


def _name(name: str) -> str:
    """Return a name for a statement with values, where the client reads % as a place for one."""
    return quoted(name).replace("%", "%%")


def _table(table: TableSchema) -> str:
    return quoted_table(table.written_as).replace("%", "%%")


def create_statement(table: TableSchema, collation: str = _NEARLY_EXACT) -> str:
    """Return a statement that makes a table with these columns and its key.

    Messages do not always tell lengths: such columns get a type that holds any value. None tells
    collations: texts in the key get the given one.
    """
    key = {name.lower() for name in table.handle_key}
    lines = [_column(c, c.name.lower() in key, collation) for c in table.visible]
    if table.handle_key:
        lines.append(f"PRIMARY KEY ({', '.join(_key_part(table, n) for n in table.handle_key)})")
    return f"CREATE TABLE {quoted_table(table.written_as)} ({', '.join(lines)})"


def _column(column: Column, in_key: bool, collation: str = "") -> str:
    ending = " NOT NULL" if in_key or not column.nullable else " NULL"
    if in_key and column.type.kind is Kind.TEXT:
        ending = f" COLLATE {collation}{ending}"
    return f"{quoted(column.name)} {_type(column.type, in_key)}{ending}"


def _type(type_: SqlType, in_key: bool) -> str:
    """Return a type that is complete, and can be part of a key if it must."""
    named = type_.length is not None
    match type_.kind:
        case Kind.DECIMAL if not named:
            return "decimal(65,30)"
        case Kind.FLOAT | Kind.DOUBLE if type_.scale is None:
            return replace(type_, length=None).sql  # DOUBLE(22) is no SQL
        case Kind.BIT if not named:
            return "bit(64)"
        case Kind.ENUM | Kind.SET if not type_.elements:
            return "bigint unsigned"  # values come as numbers
        case Kind.TEXT if type_.name in ("varchar", "char") and not named:
            return f"varchar({_KEY_TEXT})" if in_key else "longtext"
        case Kind.BINARY if type_.name in ("varbinary", "binary") and not named:
            return f"varbinary({_KEY_TEXT})" if in_key else "longblob"
        case Kind.TEXT | Kind.BINARY if type_.name.endswith(("text", "blob")):
            return type_.name
        case Kind.DATETIME | Kind.TIMESTAMP | Kind.TIME if type_.scale is None:
            return f"{type_.name}(6)"
        case Kind.TEXT if type_.name in ("inet4", "inet6", "uuid"):
            return "varchar(64)"  # MariaDB's own
        case _:
            return type_.sql


def _key_part(table: TableSchema, name: str) -> str:
    long = table.column(name).type.name.endswith(("text", "blob"))
    return f"{quoted(name)}({_KEY_TEXT})" if long else quoted(name)


def _is_of_database(query: str) -> bool:
    words = query.upper().split(None, 2)
    return len(words) > 1 and words[1] in _WORDS_OF_DATABASE
