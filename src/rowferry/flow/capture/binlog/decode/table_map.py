"""TABLE_MAP events: what the log itself says of a table's columns.

With `binlog_row_metadata=FULL` that is enough to decode rows. Facts that only the server's catalog
has (which unique key is PRIMARY, defaults, comments, generated columns) come from table versions.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from rowferry.change.sqltype import Kind, SqlType
from rowferry.change.table import Column, Index, TableSchema
from rowferry.errors import SourceUnsupported
from rowferry.flow.capture.binlog.decode.table_map_reader import (
    BIT,
    BLOBS,
    DATE,
    DATETIME,
    DATETIME2,
    DOUBLE,
    ENUM,
    FLOAT,
    GEOMETRY,
    INTEGERS,
    JSON,
    NEWDATE,
    NEWDECIMAL,
    SET,
    STRING,
    STRINGS,
    TIME,
    TIME2,
    TIMESTAMP,
    TIMESTAMP2,
    VARCHAR_COMPRESSED,
    VECTOR,
    YEAR,
    MappedColumn,
    MappedTable,
    parse_table_map,
)
from rowferry.mysql.charsets import charset_of, longest_character, plain_name
from rowferry.mysql.type_facts import display_width

__all__ = [
    "MappedColumn",
    "MappedTable",
    "column_types",
    "infer_schema",
    "is_sequence",
    "mismatch",
    "other_key",
    "parse_table_map",
    "with_known_ids",
]

_TIMES: Final = {
    TIMESTAMP: "timestamp",
    TIMESTAMP2: "timestamp",
    DATETIME: "datetime",
    DATETIME2: "datetime",
    TIME: "time",
    TIME2: "time",
}
_BINARY_COLLATION: Final = 63
_OF_SEQUENCES: Final = (
    "next_not_cached_value",
    "minimum_value",
    "maximum_value",
    "start_value",
    "increment",
    "cache_size",
    "cycle_option",
    "cycle_count",
)
_BLOB_NAMES: Final = ("tiny", "", "medium", "long")


def column_types(mapped: MappedTable) -> tuple[SqlType, ...]:
    """Return the columns' types as far as the log alone tells them.

    It does not tell display widths, ZEROFILL, nor MariaDB's INET4, INET6 and UUID (which look like
    BINARY) and JSON (LONGTEXT).
    """
    return tuple(_type(c) for c in mapped.columns)


def _type(column: MappedColumn) -> SqlType:
    code, meta = column.code, column.meta
    if code in INTEGERS:
        return SqlType(INTEGERS[code], unsigned=column.unsigned)
    if code in (FLOAT, DOUBLE):
        return SqlType("float" if code == FLOAT else "double", unsigned=column.unsigned)
    if code == NEWDECIMAL:
        return SqlType("decimal", unsigned=column.unsigned, length=meta >> 8, scale=meta & 255)
    if code in _TIMES:
        return SqlType(_TIMES[code], scale=meta or None)
    if code in STRINGS or code in BLOBS:
        return _string_type(column)
    if code in (ENUM, SET):
        charset = charset_of(column.collation) or "utf8mb4"
        name = "enum" if code == ENUM else "set"
        return SqlType(name, elements=column.elements, charset=charset)
    if code == BIT:
        return SqlType("bit", length=meta)
    if code == VECTOR:
        return SqlType("vector", length=column.vector_dimensions or None)
    names = {DATE: "date", NEWDATE: "date", YEAR: "year", JSON: "json", GEOMETRY: "geometry"}
    return SqlType(names[code])


def _string_type(column: MappedColumn) -> SqlType:
    charset = charset_of(column.collation) or "utf8mb4"
    binary = column.collation == _BINARY_COLLATION
    if column.code in BLOBS:
        name = _BLOB_NAMES[column.meta - 1] + ("blob" if binary else "text")
        return SqlType(name, charset=charset)
    stem = "char" if column.code == STRING else "varchar"
    name = stem.replace("char", "binary") if binary else stem
    size = column.meta - (column.code == VARCHAR_COMPRESSED)  # one byte says how it is compressed
    return SqlType(name, length=size // longest_character(charset), charset=charset)


def mismatch(mapped: MappedTable, schema: TableSchema) -> str:
    """Return words for the first difference between the log's columns and a version's; "": none.

    Compares what the log tells: number, names and types of the columns; without metadata only what
    rows look like.
    """
    if len(mapped.columns) != len(schema.columns):
        return f"the log has {len(mapped.columns)} columns, the version {len(schema.columns)}"
    for logged, column in zip(mapped.columns, schema.columns, strict=True):
        if mapped.has_metadata and logged.name.lower() != column.name.lower():
            return f"the log has column {logged.name!r} in the place of {column.name!r}"
        if not _fits(logged, column.type, mapped.has_metadata):
            return (
                f"column {column.name!r} is {_type(logged).sql} in the log, not {column.type.sql}"
            )
    return ""


def other_key(mapped: MappedTable, schema: TableSchema) -> str:
    """Return words where the log names another key than a version has; "": it does not.

    It names the primary key; without one, a unique key of columns that are not NULL. Which of these
    a server leaves out, as some of virtual or long columns, a version does not tell.
    """
    names = [mapped.columns[place].name for place in mapped.primary_key]
    known = schema.handle_index
    if not mapped.has_metadata or _named(names) in map(_named, _keys(schema)):
        return ""
    if known is None and not names:
        return ""
    logged, own = (f"({', '.join(c)})" for c in (names, known.columns if known else ()))
    return f"its key is {logged} in the log, not {own}"


def _keys(schema: TableSchema) -> list[tuple[str, ...]]:
    """Return the keys of which the server may name one."""
    primary = [i.columns for i in schema.indexes if i.primary]
    return primary or [
        i.columns
        for i in schema.indexes
        if i.unique and not any(schema.column(c).nullable for c in i.columns)
    ]


def _named(columns: Iterable[str]) -> frozenset[str]:
    return frozenset(c.lower() for c in columns)


def _fits(logged: MappedColumn, known: SqlType, has_metadata: bool) -> bool:
    """Return whether a version's type can be what the log says."""
    logged_type, is_string = _type(logged), logged.code in STRINGS or logged.code in BLOBS
    if known.name in ("inet4", "inet6", "uuid"):
        return logged.code == STRING and logged.meta == {"inet4": 4}.get(known.name, 16)
    if known.kind is Kind.VECTOR and logged.code in STRINGS:  # MariaDB's
        return known.length is None or logged.meta == 4 * known.length
    if is_string and not (has_metadata and charset_of(logged.collation)):
        return _same_bytes(logged, known)
    if logged_type.name != known.name or (has_metadata and logged_type.unsigned != known.unsigned):
        return False
    if is_string:
        same_length = logged.code in BLOBS or logged_type.length == display_width(known)
        return same_length and _same_charset(logged_type, known)
    match logged_type.kind:
        case Kind.ENUM | Kind.SET:
            same = logged_type.elements == known.elements and _same_charset(logged_type, known)
            return same or not has_metadata
        case Kind.DECIMAL | Kind.BIT:
            return (
                logged_type.length == display_width(known)
                and logged_type.fraction_digits == known.fraction_digits
            )
        case Kind.DATETIME | Kind.TIMESTAMP | Kind.TIME:
            is_old = logged.code in (TIMESTAMP, DATETIME, TIME)  # these do not tell the fraction
            return is_old or logged_type.fraction_digits == known.fraction_digits
        case Kind.VECTOR:
            return None in (logged_type.length, known.length) or logged_type.length == known.length
    return True


def _same_bytes(logged: MappedColumn, known: SqlType) -> bool:
    """Compare strings without metadata: their length in bytes says enough."""
    if logged.code in BLOBS:
        return known.name in (_BLOB_NAMES[logged.meta - 1] + end for end in ("blob", "text"))
    stems = ("char", "binary") if logged.code == STRING else ("varchar", "varbinary")
    longest = longest_character(known.charset)
    return known.name in stems and logged.meta == (display_width(known) or 0) * longest


def _same_charset(logged_type: SqlType, known: SqlType) -> bool:
    return plain_name(logged_type.charset) == plain_name(known.charset)


def is_sequence(mapped: MappedTable) -> bool:
    """Return whether this is one of MariaDB's sequences: their state is logged like rows."""
    return tuple(c.name for c in mapped.columns) == _OF_SEQUENCES


def with_known_ids(now: TableSchema, previous: TableSchema) -> TableSchema:
    """Return a definition that was read anew, with the ids that its columns have had before.

    Columns that survive (by name) keep their ids and what older rows have in them; new ones get ids
    above all that were ever used. Where others went at the same time, nobody knows whether a new
    one is one of them by another name: it is `untold`.
    """
    known = previous.by_name
    next_id = max([previous.dropped_column_id, *(c.id for c in previous.columns)], default=0)
    gone = [c.id for name, c in known.items() if name not in now.by_name]
    columns = []
    for column in now.columns:
        same = known.get(column.name.lower())
        if same is not None:
            column = replace(column, id=same.id, filled=same.filled, untold=same.untold)
        else:
            next_id += 1
            untold = column.untold or bool(gone)
            column = replace(column, id=next_id, filled=column.default, untold=untold)
        columns.append(column)
    dropped = max([previous.dropped_column_id, *gone])
    return replace(now, columns=tuple(columns), dropped_column_id=dropped)


def infer_schema(mapped: MappedTable, previous: TableSchema | None) -> TableSchema:
    """Return a version made from what the log says, marked `inferred`, with version 0.

    Columns that survive (by name) keep their ids and all facts that the log does not contradict;
    new ones get ids above all that were ever used, and are `untold`, as the log has no defaults.
    Indexes survive with their columns.

    Raises:
        SourceUnsupported: the log has no metadata to infer from.
    """
    if not mapped.has_metadata:
        raise SourceUnsupported(
            f"{mapped.table}: the log has no column names; SET GLOBAL binlog_row_metadata = FULL"
        )
    known = previous.by_name if previous else {}
    columns = []
    for place, logged in enumerate(mapped.columns, 1):
        column = known.get(logged.name.lower())
        if column is None:
            column = Column(place, logged.name, _type(logged), untold=previous is not None)
        elif not _fits(logged, column.type, True):
            column = replace(column, type=_type(logged))
        columns.append(
            replace(
                column,
                name=logged.name,
                nullable=logged.nullable,
                invisible=column.invisible or not logged.visible,
            )
        )
    inferred = TableSchema(
        id=mapped.table,
        table_id=previous.table_id if previous else 0,
        version=0,
        columns=tuple(columns),
        indexes=_indexes(mapped, previous, {c.name.lower() for c in columns}),
        charset=previous.charset if previous else "utf8mb4",
        comment=previous.comment if previous else "",
        inferred=True,
    )
    return with_known_ids(inferred, previous) if previous else inferred


def _indexes(
    mapped: MappedTable, previous: TableSchema | None, names: set[str]
) -> tuple[Index, ...]:
    """Return the indexes that survive, and the key that the log names if none of them is it."""
    key = tuple(mapped.columns[place].name for place in mapped.primary_key)
    lower = tuple(c.lower() for c in key)
    kept = []
    for index in previous.indexes if previous else ():
        columns = tuple(c.lower() for c in index.columns)
        if names.issuperset(columns) and (columns == lower or not index.primary):
            kept.append(index)
            if index.unique and columns == lower:
                key = ()  # it is there
    if not key:
        return tuple(kept)
    number = max((i.id for i in kept), default=0) + 1
    return (Index(number, "PRIMARY", key, unique=True, primary=True), *kept)
