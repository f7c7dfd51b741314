"""What a schema change does to the rows that are already there.

The test kit has rules of its own, `rowferry.testing.evolve`: who judges must not share these.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

import pyarrow as pa

from rowferry.change.chunk import DdlKind
from rowferry.change.sqltype import Kind, SqlType
from rowferry.change.table import Column, TableId, TableSchema
from rowferry.downstream.rebuild.convert import rounded
from rowferry.errors import BadInput
from rowferry.mysql.ddl.clauses import new_names, split_clauses
from rowferry.mysql.ddl.cursor import TokenCursor
from rowferry.mysql.ddl.head import read_altered

# These move rows in a way that the statement's text and the table versions do not tell.
UNMODELLED: Final = frozenset(
    {DdlKind.DROP_PARTITION, DdlKind.TRUNCATE_PARTITION, DdlKind.EXCHANGE_PARTITION}
)

# What DROP can name beside a column.
_NO_COLUMNS: Final = tuple(
    "PRIMARY INDEX KEY FOREIGN CHECK CONSTRAINT PARTITION PERIOD SYSTEM".split()
)

_ZERO: Final[dict[Kind, Any]] = {
    Kind.INTEGER: 0,
    Kind.FLOAT: 0.0,
    Kind.DOUBLE: 0.0,
    Kind.BIT: 0,
    Kind.TEXT: "",
    Kind.BINARY: b"",
    Kind.DATE: "0000-00-00",
    Kind.YEAR: 0,
    Kind.ENUM: 1,
    Kind.SET: 0,
    Kind.JSON: "null",
    Kind.VECTOR: "[]",
}


def refuse_unmodelled(kind: DdlKind, query: str) -> None:
    """Raise BadInput for a schema change whose effect on rows cannot be known here."""
    if kind in UNMODELLED:
        raise BadInput(f"{kind.name} cannot be followed by its text alone: {query}")


def column_origins(
    old: TableSchema, new: TableSchema, query: str = ""
) -> list[tuple[Column, Column | None]]:
    """Return each column of `new` with the column of `old` that its values come from, if any.

    Columns go by name, except where the DDL's text renames or drops them; ids are not used, because
    files do not always carry them.

    Raises:
        BadInput: a statement that changes columns cannot be read.
    """
    renamed, gone = _moved_columns(query)

    def origin(name: str) -> Column | None:
        came = old.by_name.get(renamed[name]) if name in renamed else None
        # RENAME COLUMN IF EXISTS may have found nothing to rename.
        return came or (None if name in gone else old.by_name.get(name))

    return [(c, origin(c.name.lower())) for c in new.columns]


@lru_cache(maxsize=1024)  # it is asked for every piece of every file
def _moved_columns(query: str) -> tuple[dict[str, str], set[str]]:
    """Return new name to old name of what an ALTER TABLE renames, and the names that it takes away.

    All in lower case. One that is taken away may be that of another column after it.
    """
    renamed: dict[str, str] = {}
    gone: set[str] = set()
    reader = TokenCursor(query, ansi_quotes=True)
    if read_altered(reader) is None:
        return renamed, gone
    for clause in split_clauses(reader):
        cursor = reader.at_place(clause.first)
        change = cursor.accept("CHANGE")
        if change or cursor.accept("RENAME", "COLUMN"):
            cursor.accept("COLUMN")
            cursor.accept("IF", "EXISTS")
            old = cursor.name().lower()
            if not change:
                cursor.expect("TO")
            renamed[cursor.name().lower()] = old
            gone.add(old)
        elif cursor.accept("DROP") and (cursor.accept("COLUMN") or not cursor.at_any(*_NO_COLUMNS)):
            cursor.accept("IF", "EXISTS")
            gone.add(cursor.name().lower())
    return renamed, gone


def altered_from(query: str, table: TableId) -> TableId:
    """Return the name that a table had before an ALTER TABLE that may rename it, too.

    Raises:
        BadInput: the statement cannot be read.
    """
    cursor = TokenCursor(query, ansi_quotes=True)
    old = read_altered(cursor)
    if old is None or not any(new_names(cursor)):
        return table
    return old.within(table.database)


def default_value(column: Column) -> Any:
    """Return what old rows get in a new column: its default, else NULL, else the type's zero."""
    kind = column.type.kind
    if column.default is None:
        return None if column.nullable else _zero(column.type)
    value = column.default
    if kind is Kind.ENUM and isinstance(value, str) and value in column.type.elements:
        return column.type.elements.index(value) + 1
    if kind is Kind.SET and isinstance(value, str):
        names = value.split(",") if value else []
        return sum(1 << column.type.elements.index(n) for n in names)
    made = _plain(value, column.type)
    if column.type.name == "binary":
        return made.ljust(column.type.size or 1, b"\0")
    return made.rstrip(" ") if column.type.name == "char" else made


def _plain(value: Any, to: SqlType) -> Any:
    kind = to.kind
    if kind is Kind.DECIMAL:
        return f"{rounded(value, to.fraction_digits):f}"
    if kind in (Kind.FLOAT, Kind.DOUBLE):
        return pa.scalar(float(value), to.arrow).as_py()
    if kind in (Kind.INTEGER, Kind.YEAR, Kind.BIT, Kind.ENUM, Kind.SET):
        return int(rounded(value, 0))
    if kind is Kind.BINARY:
        return value if isinstance(value, bytes) else str(value).encode()
    text = value.decode() if isinstance(value, bytes) else str(value)
    if kind in (Kind.DATETIME, Kind.TIMESTAMP, Kind.TIME) and text[:1].isdigit():
        whole, _, fraction = text.partition(".")
        digits = to.fraction_digits
        return f"{whole}.{fraction[:digits].ljust(digits, '0')}" if digits else whole
    return text


def _zero(of: SqlType) -> Any:
    digits = of.fraction_digits
    fraction = "." + "0" * digits if digits else ""
    if of.name == "binary":
        return bytes(of.size or 1)
    if of.kind is Kind.DECIMAL:
        return f"0{fraction}"
    if of.kind in (Kind.DATETIME, Kind.TIMESTAMP):
        return f"0000-00-00 00:00:00{fraction}"
    if of.kind is Kind.TIME:
        return f"00:00:00{fraction}"
    return _ZERO[of.kind]
