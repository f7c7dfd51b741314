"""Table definitions out of information_schema.

The number of statements does not depend on the number of tables: a server may have 10,000 of them.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final

from rowferry.change.sqltype import Kind, SqlType
from rowferry.change.table import Column, Index, TableId, TableSchema
from rowferry.errors import BadStatement, RowferryError, SourceUnsupported
from rowferry.moment import moment
from rowferry.mysql.ddl.cursor import TokenCursor
from rowferry.mysql.ddl.statement import parse_type
from rowferry.mysql.ddl.table import quoted_table
from rowferry.mysql.ddl.type import (
    charset_of_collation,
    collation_of,
    has_charset,
    read_default,
    typed_default,
    with_charset,
)
from rowferry.mysql.server_form import (
    ServerSettings,
    as_logged,
    in_order,
    plain_charset,
)
from rowferry.mysql.session import Flavour, Login, ServerFacts, one_row, rows

_SYSTEM: Final = ("information_schema", "mysql", "performance_schema", "sys")
_TABLES: Final = (
    "SELECT TABLE_SCHEMA, TABLE_NAME, TABLE_COLLATION, TABLE_COMMENT, TABLE_TYPE"
    " FROM information_schema.TABLES WHERE TABLE_TYPE IN ('BASE TABLE', 'SYSTEM VERSIONED') AND "
)
_COLUMNS: Final = (
    "SELECT TABLE_SCHEMA, TABLE_NAME, COLUMN_NAME, COLUMN_TYPE, CHARACTER_SET_NAME, COLLATION_NAME,"
    " IS_NULLABLE, COLUMN_DEFAULT, EXTRA, GENERATION_EXPRESSION, COLUMN_COMMENT, ORDINAL_POSITION"
    " FROM information_schema.COLUMNS WHERE "
)
_INDEXES: Final = (
    "SELECT TABLE_SCHEMA, TABLE_NAME, INDEX_NAME, COLUMN_NAME, NON_UNIQUE, SUB_PART, SEQ_IN_INDEX"
    " FROM information_schema.STATISTICS WHERE "
)
_COMMENT: Final = re.compile(r"/\*.*?\*/", re.DOTALL)
_NOW: Final = re.compile(r"CURRENT_TIMESTAMP(\(\d+\))?")
_TIMES: Final = frozenset({Kind.DATETIME, Kind.TIMESTAMP, Kind.TIME})


@dataclass(frozen=True, slots=True)
class _Where:
    """Which tables to read: a condition and its values."""

    condition: str
    values: tuple[str, ...]


def read_settings(connection: Any, login: Login) -> ServerSettings:
    """Return the settings that change what statements mean, as they are now."""
    moment("read settings")
    lower_case, explicit = one_row(
        connection, login, "SELECT @@lower_case_table_names, @@explicit_defaults_for_timestamp"
    )
    collations = rows(
        connection,
        login,
        "SELECT SCHEMA_NAME, DEFAULT_COLLATION_NAME FROM information_schema.SCHEMATA",
    )
    return ServerSettings(int(lower_case), explicit in ("1", "ON"), dict(collations))


def read_tables(
    connection: Any,
    login: Login,
    facts: ServerFacts,
    keeps: Callable[[TableId], bool],
    next_id: Callable[[], int],
) -> tuple[TableSchema, ...]:
    """Return the tables whose names `keeps`, as they are now, in the order of their names.

    Views, sequences, temporary tables and those of system databases are not among them. Versions
    are 0, table ids come from `next_id`. A table that is dropped between the statements is left
    out.

    Raises:
        SourceUnsupported: a column has a type that is not known, or a table is system-versioned.
    """
    moment("list tables")
    holes = ", ".join(["%s"] * len(_SYSTEM))
    outside = _Where(f"TABLE_SCHEMA NOT IN ({holes})", _SYSTEM)
    present = _present(_select(connection, login, _TABLES, outside), keeps)
    if not present:
        return ()
    databases = tuple(sorted({name.database for name in present}))
    holes = ", ".join(["%s"] * len(databases))
    return _definitions(
        _Read(connection, login, facts, _Where(f"TABLE_SCHEMA IN ({holes})", databases)),
        present,
        next_id,
    )


def read_table(
    connection: Any, login: Login, facts: ServerFacts, table: TableId, table_id: int
) -> TableSchema | None:
    """Return one table as it is now, with version 0; None: there is no such base table.

    Raises:
        SourceUnsupported: a column has a type that is not known, or a table is system-versioned.
    """
    moment("look at table")
    one = _Where("TABLE_SCHEMA = %s AND TABLE_NAME = %s", tuple(table))
    present = _present(
        _select(connection, login, _TABLES, one), lambda name: name.database.lower() not in _SYSTEM
    )
    definitions = _definitions(_Read(connection, login, facts, one), present, lambda: table_id)
    return definitions[0] if definitions else None


# --- rows to definitions -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Read:
    """One reading of a server: where from, and which tables."""

    connection: Any
    login: Login
    facts: ServerFacts
    where: _Where

    def grouped(
        self, select: str, wanted: Collection[TableId]
    ) -> dict[TableId, list[Sequence[Any]]]:
        """Return the rest of each row, by the table that its first two values name."""
        by_table: dict[TableId, list[Sequence[Any]]] = defaultdict(list)
        for database, table, *rest in _select(self.connection, self.login, select, self.where):
            if (name := TableId(database, table)) in wanted:
                by_table[name].append(rest)
        return by_table


def _select(connection: Any, login: Login, select: str, where: _Where) -> list[tuple[Any, ...]]:
    return rows(connection, login, select + where.condition, where.values)


def _present(
    listed: Iterable[Sequence[Any]], keeps: Callable[[TableId], bool]
) -> dict[TableId, tuple[Any, Any]]:
    """Return collation and comment of the tables that are kept.

    Raises:
        SourceUnsupported: one of them keeps the past of its rows. Its log has rows of the past
            which no snapshot has, and columns that the catalog may not tell.
    """
    present = {}
    for database, table, collation, comment, kind in listed:
        if not keeps(name := TableId(database, table)):
            continue
        if kind == "SYSTEM VERSIONED":
            raise SourceUnsupported(
                f"table {name} is system-versioned, which is not supported; run: ALTER TABLE "
                f"{quoted_table(name)} DROP SYSTEM VERSIONING, or leave it out with filter.rules"
            )
        present[name] = (collation, comment)
    return present


def _definitions(
    read: _Read, present: dict[TableId, tuple[Any, Any]], next_id: Callable[[], int]
) -> tuple[TableSchema, ...]:
    if not present:
        return ()
    moment("read columns")
    columns = read.grouped(_COLUMNS, present)
    moment("read indexes")
    indexes = read.grouped(_INDEXES, present)
    return tuple(
        as_logged(
            TableSchema(
                id=name,
                table_id=next_id(),
                version=0,
                columns=_columns(name, columns[name], read.facts.flavour),
                indexes=_indexes(indexes.get(name, ())),
                charset=plain_charset(charset_of_collation(collation or "binary")),
                collation=collation_of(collation or ""),
                comment=comment or "",
            ),
            read.facts,
        )
        for name, (collation, comment) in sorted(present.items())
        if name in columns
    )


def _columns(
    table: TableId, listed: Iterable[Sequence[Any]], flavour: Flavour
) -> tuple[Column, ...]:
    ordered = sorted(listed, key=lambda row: int(row[-1]))
    return tuple(_column(table, row, flavour, number) for number, row in enumerate(ordered, 1))


def _column(table: TableId, row: Sequence[Any], flavour: Flavour, number: int) -> Column:
    name, type_text, charset, collation, nullable, default, extra, generation, comment, _ = row
    try:
        kind = _type(type_text)
    except RowferryError:
        raise SourceUnsupported(
            f"column {name!r} of table {table} has the type {type_text!r}, which is not known; "
            "leave the table out with filter.rules"
        ) from None
    if has_charset(kind):
        kind = with_charset(kind, plain_charset(charset or "binary"))
        kind = replace(kind, collation=collation_of(collation or ""))
    extra = extra.upper()
    generated = next((w.lower() for w in ("VIRTUAL", "STORED") if f"{w} GENERATED" in extra), "")
    value, expression = None, _unescaped(generation or "", flavour)
    if not generated:
        value, expression = _default(default, kind, extra, flavour)
    return Column(
        id=number,
        name=name,
        type=kind,
        nullable=nullable == "YES",
        default=value,
        generated=generated,
        comment=comment or "",
        invisible="INVISIBLE" in extra,
        auto_increment="AUTO_INCREMENT" in extra,
        expression=expression,
    )


@lru_cache(maxsize=1024)  # tables have many columns and few types
def _type(text: str) -> SqlType:
    return parse_type(_COMMENT.sub("", text))


def _indexes(listed: Iterable[Sequence[Any]]) -> tuple[Index, ...]:
    parts: dict[str, list[Sequence[Any]]] = defaultdict(list)
    for row in sorted(listed, key=lambda row: int(row[-1])):
        parts[row[0]].append(row)
    return in_order(
        Index(
            0,
            name,
            tuple(r[1] for r in keys if r[1] is not None),
            unique=name == "PRIMARY" or all(_names_rows(r) for r in keys),
            primary=name == "PRIMARY",
        )
        for name, keys in parts.items()
    )


def _names_rows(part: Sequence[Any]) -> bool:
    """Return whether a part of a key is a whole column of a unique key.

    Parts that are prefixes or expressions cannot name rows: such a key counts as not unique.
    """
    _, column, non_unique, prefix, _ = part
    return non_unique == "0" and column is not None and prefix is None


# --- defaults ------------------------------------------------------------------------------------


def _default(text: Any, kind: SqlType, extra: str, flavour: Flavour) -> tuple[Any, str]:
    """Return a default's value, or None and its expression."""
    if text is None:
        return None, ""
    if isinstance(text, bytes):
        text = text.decode("utf-8", "surrogateescape")
    value: Any
    if flavour is Flavour.MARIADB:
        value, expression = _printed_default(text, kind)
    elif "DEFAULT_GENERATED" in extra:
        if kind.kind in _TIMES and _NOW.fullmatch(text):
            return text, ""
        return None, _unescaped(text, flavour)
    elif kind.kind in (Kind.BIT, Kind.BINARY):
        value, expression = _printed_default("''" if text in ("", "0x") else text, kind)
    else:
        value, expression = _plain_default(text, kind), ""
    if kind.name == "binary" and isinstance(value, str):
        value = value.rstrip("\0")  # the padding
    return value, expression


@lru_cache(maxsize=1024)
def _printed_default(text: str, kind: SqlType) -> tuple[Any, str]:
    """Read a default that is printed as a statement would write it: values have quotes."""
    try:
        cursor = TokenCursor(text)
        value, expression = read_default(cursor, kind, "")
    except BadStatement:
        return None, text
    if cursor.done():
        return value, expression
    return None, text


def _plain_default(text: str, kind: SqlType) -> Any:
    try:
        return typed_default(text, kind)
    except (ArithmeticError, ValueError, IndexError):
        return text


def _unescaped(expression: str, flavour: Flavour) -> str:
    """Return an expression as a statement would write it; MySQL escapes the quotes in it."""
    if flavour is Flavour.MARIADB:
        return expression
    return re.sub(r"\\(.)", r"\1", _encoded_once(expression), flags=re.DOTALL)


def _encoded_once(text: str) -> str:
    """Return a text of MySQL's information_schema that was taken for latin1 and encoded again.

    That befalls expressions: `é` is shown as `Ã©`. What cannot be such a text stays as it is, so
    that a server that shows them rightly is believed.
    """
    try:
        return text.encode("latin-1").decode()
    except UnicodeError:
        return text
