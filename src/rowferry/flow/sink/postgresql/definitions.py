"""Statements that make and alter tables, of the source's definitions. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

import pyarrow as pa

from rowferry.change.position import physical_ms
from rowferry.change.sqltype import Kind, SqlType
from rowferry.change.table import Column, Index, TableId, TableSchema
from rowferry.errors import EncodeError
from rowferry.flow.sink.postgresql.column_types import condition, conversion, image_of
from rowferry.flow.sink.postgresql.names import (
    index_name,
    literal,
    names_of,
    quoted,
    quoted_table,
    shortened,
)

_DAYS: Final = frozenset({Kind.DATE, Kind.DATETIME, Kind.TIMESTAMP})
# Forms of constants that PostgreSQL reads as the source does.
_DAY: Final = re.compile(r"\d{4}-\d\d?-\d\d?( \d\d?:\d\d?:\d\d?(\.\d*)?)?")
_TIME: Final = re.compile(r"-?\d+:\d\d:\d\d(\.\d*)?")
_NOW: Final = "CURRENT_TIMESTAMP"
# What MySQL puts into rows that are there for NOT NULL without a default.
_IMPLICIT: Final = {
    Kind.INTEGER: "0",
    Kind.YEAR: "0",
    Kind.FLOAT: "0",
    Kind.DOUBLE: "0",
    Kind.DECIMAL: "0",
    Kind.TEXT: "''",
    Kind.SET: "''",
    Kind.TIME: "'00:00:00'",
}
# It is there for a moment: its name is what the refusal of rows that do not fit says.
_FITS: Final = quoted("rowferry: rows fit the altered column")
_LONGEST_INDEXED: Final = 600  # characters; a row of an index has at most 2,704 bytes
_BOUNDED: Final = frozenset(
    {
        Kind.INTEGER,
        Kind.YEAR,
        Kind.FLOAT,
        Kind.DOUBLE,
        Kind.DECIMAL,
        Kind.BIT,
        Kind.DATE,
        Kind.DATETIME,
        Kind.TIMESTAMP,
        Kind.TIME,
        Kind.ENUM,
        Kind.SET,
    }
)


class Untranslatable(Exception):
    """A change that cannot be said by PostgreSQL's words; the text says why."""


@dataclass(frozen=True, slots=True)
class Making:
    """What definitions depend on beside the source's.

    Attributes:
        json_type: of JSON columns.
        zero_is_null: columns of dates take NULL.
    """

    json_type: str
    zero_is_null: bool

    def is_nullable(self, table: TableSchema, column: Column) -> bool:
        """Return whether a column takes NULL."""
        if column.name in table.handle_key:
            return False
        return column.nullable or (self.zero_is_null and column.type.kind in _DAYS)


def create_statements(table: TableSchema, making: Making) -> list[str]:
    """Return statements that make a table's schema and the table, where they are missing."""
    name = quoted_table(table.written_as)
    parts = [_definition(table, column, making) for column in table.visible]
    for index in table.indexes:
        if index.primary:
            parts.append(_primary(table.written_as, index))
    return [
        schema_statement(table.written_as.database),
        f"CREATE TABLE {name} ({', '.join(parts)})",
        *(s for i in table.indexes if (s := _index_statement(table, i))),
        *_comments(table, {}),
    ]


def schema_statement(database: str) -> str:
    """Return the statement that makes a schema where it is missing."""
    return f"CREATE SCHEMA IF NOT EXISTS {quoted(database)}"


def index_renames(
    table: TableSchema, old: TableId, new: TableId, there: Collection[str]
) -> dict[str, str]:
    """Return the new names of a table's indexes by those that are `there`, for a renamed table."""
    if old.table == new.table:
        return {}
    called = {_called(old.table, index, there): index for index in table.indexes}
    return {was: index_name(new.table, index.name) for was, index in called.items() if was}


def rename_statements(old: TableId, new: TableId, indexes: Mapping[str, str]) -> list[str]:
    """Return statements that give a table a new name, and some indexes theirs, by the former."""
    statements = []
    if old.database != new.database:
        statements.append(schema_statement(new.database))
        statements.append(f"ALTER TABLE {quoted_table(old)} SET SCHEMA {quoted(new.database)}")
    if old.table == new.table:
        return statements
    between = TableId(new.database, old.table)
    statements.append(f"ALTER TABLE {quoted_table(between)} RENAME TO {quoted(new.table)}")
    for was, now in indexes.items():
        at = f"{quoted(new.database)}.{quoted(was)}"
        statements.append(f"ALTER INDEX {at} RENAME TO {quoted(now)}")
    return statements


def alter_statements(
    old: TableSchema,
    new: TableSchema,
    same: Mapping[str, str],
    making: Making,
    there: Collection[str] = (),
) -> list[str]:
    """Return statements that make a table as `new` says out of one as `old` says.

    Args:
        old: the definition that the table follows; it has the name of `new` already.
        new: the definition to follow.
        same: the name that each column of `new` had in `old`; one that is missing is added.
        making: what definitions depend on.
        there: the names of the table's indexes.

    Raises:
        Untranslatable: rows that are there would not become those of the source.
    """
    name = quoted_table(new.written_as)
    same = _same_here(old, new, same)
    kept = set(same.values())
    drops = [i for i in old.indexes if not _is_kept(i, new, same)]
    statements = [s for i in drops if (s := _drop_index(new.written_as, i, there))]
    gone = [c.name for c in old.visible if c.name not in kept]
    statements += [f"ALTER TABLE {name} DROP COLUMN {quoted(c)}" for c in gone]
    statements += _renamed(name, {now: was for now, was in same.items() if now != was})
    for column in new.visible:
        was = same.get(column.name)
        if was is None:
            statements += _added(new, column, making)
        else:
            statements += _changed(old, old.column(was), new, column, making)
    for index in new.indexes:
        if not any(_is_same(index, other, same) for other in old.indexes):
            if index.primary:
                statements.append(f"ALTER TABLE {name} ADD {_primary(new.written_as, index)}")
            elif statement := _index_statement(new, index):
                statements.append(statement)
    before = {now: old.column(was).comment for now, was in same.items()}
    return statements + _comments(new, before, old.comment)


def _same_here(old: TableSchema, new: TableSchema, same: Mapping[str, str]) -> dict[str, str]:
    """Return what of `same` are columns here, too: virtual generated ones are not.

    Raises:
        Untranslatable: one was virtual and is no more.
    """
    before, after = ({c.name for c in t.visible} for t in (old, new))
    computed = sorted(now for now, was in same.items() if now in after and was not in before)
    if computed:
        raise Untranslatable(f"column {computed[0]!r} is computed for the rows that are there")
    return {now: was for now, was in same.items() if now in after}


def _renamed(name: str, pairs: dict[str, str]) -> list[str]:
    """Return statements that rename columns, also where one gets the name that another had."""
    taken = set(pairs.values())
    first, then, last = [], [], []
    for now, was in pairs.items():
        if now in taken:
            between = shortened(f"rowferry_was_{was}")
            first.append(_rename(name, was, between))
            last.append(_rename(name, between, now))
        else:
            then.append(_rename(name, was, now))
    return first + then + last


def _rename(name: str, was: str, now: str) -> str:
    return f"ALTER TABLE {name} RENAME COLUMN {quoted(was)} TO {quoted(now)}"


def _definition(table: TableSchema, column: Column, making: Making) -> str:
    words = f"{quoted(column.name)} {image_of(column.type, making.json_type)}"
    return words if making.is_nullable(table, column) else f"{words} NOT NULL"


def _added(table: TableSchema, column: Column, making: Making) -> list[str]:
    name = quoted_table(table.written_as)
    filled = _filled(table, column, making)
    adding = f"ALTER TABLE {name} ADD COLUMN {_definition(table, column, making)}"
    if not filled:
        return [adding]
    # Later rows bring their own values.
    return [
        f"{adding} DEFAULT {filled}",
        f"ALTER TABLE {name} ALTER COLUMN {quoted(column.name)} DROP DEFAULT",
    ]


def _filled(table: TableSchema, column: Column, making: Making) -> str:
    """Return what rows that are there have in a new column; "": NULL.

    Raises:
        Untranslatable: that is not known.
    """
    where = f"column {column.name!r} ({column.type.sql})"
    given = column.filled if column.filled is not None else column.default
    if column.generated or (column.expression and given is None) or column.auto_increment:
        raise Untranslatable(f"{where} is computed for the rows that are there")
    kind = column.type.kind
    if given is None:
        if making.is_nullable(table, column):
            return ""
        if kind is Kind.ENUM and column.type.elements:
            return literal(column.type.elements[0])
        if kind is Kind.BIT:
            return f"B'{'0' * (column.type.size or 1)}'"
        if kind is Kind.BINARY:
            return _bytes(b"", column.type)
        return _IMPLICIT.get(kind, "")  # without one, PostgreSQL refuses unless no row is there
    if str(given).startswith(_NOW):
        if kind is not Kind.TIMESTAMP:
            raise Untranslatable(f"{where} is filled with the time of day in an unknown zone")
        return literal(_moment(table.version, column.type.fraction_digits))
    if kind is Kind.BIT:
        return f"B'{int(given):0{column.type.size or 1}b}'"
    if kind is Kind.BINARY:
        data = given if isinstance(given, bytes) else str(given).encode("utf-8", "surrogateescape")
        return _bytes(data, column.type)
    try:
        text = pa.scalar(given).cast(pa.string()).as_py()
    except (pa.ArrowException, EncodeError, UnicodeEncodeError) as err:
        raise Untranslatable(f"{where} has a default of unknown form") from err
    if kind in _DAYS and text.startswith("0000"):
        if making.zero_is_null:
            return ""
        raise Untranslatable(f"{where} is filled with a day that PostgreSQL does not have")
    if kind is Kind.TIMESTAMP:
        raise Untranslatable(f"{where} is filled with a time in an unknown zone")
    kept = _kept(text, column.type)
    if kept is None:
        raise Untranslatable(f"{where} has a default of unknown form")
    return literal(kept)


def _bytes(data: bytes, kind: SqlType) -> str:
    """Return bytes as a column of a type has them: a BINARY is filled up with zeros."""
    length = (kind.size or 0) if kind.name == "binary" else 0
    return literal(f"\\x{data.ljust(length, bytes(1)).hex()}")


def _kept(text: str, kind: SqlType) -> str | None:
    """Return what the source makes of a default's text; None: PostgreSQL may read it otherwise."""
    if "\0" in text:
        return None
    match kind.kind:
        case Kind.ENUM:
            return _element(text, kind)
        case Kind.SET:
            names = [_element(name, kind) for name in text.split(",")] if text else []
            return None if None in names else ",".join(e for e in kind.elements if e in names)
        case Kind.YEAR:
            return text if len(text) == 4 else None
        case Kind.DATE | Kind.DATETIME:
            return text if _DAY.fullmatch(text) else None
        case Kind.TIME:
            return text if _TIME.fullmatch(text) else None
        case Kind.TEXT:
            return text.rstrip(" ") if kind.name == "char" else text
    return text


def _element(text: str, kind: SqlType) -> str | None:
    """Return the element of an ENUM or SET that a text names; None: that is not certain."""
    if text in kind.elements:
        return text
    alike = [e for e in kind.elements if e.casefold() == text.casefold()]
    return alike[0] if len(alike) == 1 else None


def _moment(commit_ts: int, digits: int) -> str:
    """Return when a DDL was committed, in UTC, with so many digits of a second."""
    ms = physical_ms(commit_ts)
    second = datetime.fromtimestamp(ms // 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
    return f"{second}.{ms % 1000:03d}000"[: 20 + digits] if digits else second


def _changed(
    old: TableSchema, was: Column, new: TableSchema, now: Column, making: Making
) -> list[str]:
    name, column = quoted_table(new.written_as), quoted(now.name)
    how = conversion(was.type, now.type, column, making.json_type)
    if how is None:
        raise Untranslatable(
            f"column {now.name!r} changes from {was.type.sql} to {now.type.sql}, which PostgreSQL "
            "converts otherwise than the source"
        )
    statements = [f"ALTER TABLE {name} ALTER COLUMN {column} {how}"] if how else []
    if holds := condition(was.type, now.type, column):
        statements.append(f"ALTER TABLE {name} ADD CONSTRAINT {_FITS} CHECK ({holds})")
        statements.append(f"ALTER TABLE {name} DROP CONSTRAINT {_FITS}")
    before, after = making.is_nullable(old, was), making.is_nullable(new, now)
    if before != after:
        verb = "DROP" if after else "SET"
        statements.append(f"ALTER TABLE {name} ALTER COLUMN {column} {verb} NOT NULL")
    return statements


# --- keys and comments ---------------------------------------------------------------------------


def _called(table: str, index: Index, there: Collection[str]) -> str:
    """Return which of the names that are `there` an index has; "": none of them."""
    early = shortened(f"{table}_{'pkey' if index.primary else index.name}")  # without a digest
    return next((n for n in (index_name(table, index.name), early) if n in there), "")


def _primary(table: TableId, index: Index) -> str:
    named = quoted(index_name(table.table, index.name))
    return f"CONSTRAINT {named} PRIMARY KEY ({names_of(index.columns)})"


def _index_statement(table: TableSchema, index: Index) -> str:
    """Return the statement that makes an index beside the primary key; "": there is none here.

    An index that is not unique makes no difference to what a table holds: one whose values might
    be too long for PostgreSQL is left out.
    """
    visible = {c.name for c in table.visible}
    if index.primary or not index.columns or not set(index.columns) <= visible:
        return ""
    if not index.unique and not all(_is_short(table.column(c)) for c in index.columns):
        return ""
    kind = "UNIQUE INDEX" if index.unique else "INDEX"
    name = quoted(index_name(table.written_as.table, index.name))
    return f"CREATE {kind} {name} ON {quoted_table(table.written_as)} ({names_of(index.columns)})"


def _is_short(column: Column) -> bool:
    limited = column.type.name in ("char", "varchar", "binary", "varbinary", "uuid", "inet6")
    return column.type.kind in _BOUNDED or (limited and (column.type.size or 0) <= _LONGEST_INDEXED)


def _drop_index(table: TableId, index: Index, there: Collection[str]) -> str:
    """Return the statement that drops an index; "": the table does not have it."""
    name = _called(table.table, index, there)
    if not name:
        return ""
    if index.primary:
        return f"ALTER TABLE {quoted_table(table)} DROP CONSTRAINT {quoted(name)}"
    return f"DROP INDEX {quoted(table.database)}.{quoted(name)}"


def _is_same(new: Index, old: Index, same: Mapping[str, str]) -> bool:
    columns = tuple(same.get(c, "") for c in new.columns)
    named = (new.name, new.unique, new.primary) == (old.name, old.unique, old.primary)
    return named and columns == old.columns


def _is_kept(old: Index, new: TableSchema, same: Mapping[str, str]) -> bool:
    return any(_is_same(index, old, same) for index in new.indexes)


def _comments(table: TableSchema, before: Mapping[str, str], was: str = "") -> list[str]:
    name = quoted_table(table.written_as)
    statements = []
    if table.comment != was:
        statements.append(f"COMMENT ON TABLE {name} IS {literal(table.comment)}")
    for column in table.visible:
        if column.comment != before.get(column.name, ""):
            what = f"COLUMN {name}.{quoted(column.name)}"
            statements.append(f"COMMENT ON {what} IS {literal(column.comment)}")
    return statements
