"""What open-protocol says about a column: its type code and its flags."""

from __future__ import annotations

from enum import IntFlag
from typing import Final

from rowferry.change.sqltype import KINDS, Kind, SqlType
from rowferry.change.table import Column, Index, TableSchema
from rowferry.mysql.type_facts import TYPE_FACTS
from rowferry.mysql.type_facts import type_code as mysql_code


class Flag(IntFlag):
    """The bits of `f`."""

    BINARY = 1
    HANDLE_KEY = 2
    GENERATED = 4
    PRIMARY_KEY = 8
    UNIQUE_KEY = 16
    MULTIPLE_KEY = 32
    NULLABLE = 64
    UNSIGNED = 128


# GEOMETRY is BLOB, INET4, INET6 and UUID are TEXT, as in every codec.
_BLOB: Final = TYPE_FACTS["blob"].code
_WRITTEN_AS: Final = dict.fromkeys(("geometry", "inet4", "inet6", "uuid"), _BLOB)
_ALWAYS_UNSIGNED: Final = frozenset({Kind.BIT, Kind.YEAR})
# Codes that stand for two types each: with the binary flag, and without it.
_TWO_NAMES: Final = {
    15: ("varbinary", "varchar"),
    253: ("varbinary", "varchar"),
    254: ("binary", "char"),
    249: ("tinyblob", "tinytext"),
    250: ("mediumblob", "mediumtext"),
    251: ("longblob", "longtext"),
    252: ("blob", "text"),
}
_NAMES: Final = {
    facts.code: name for name, facts in TYPE_FACTS.items() if facts.code not in _TWO_NAMES
} | {0: "decimal", 14: "date", 255: "blob"}
_FRACTION: Final = 6  # a code does not tell how many digits a second has
_SECONDS: Final = frozenset({Kind.DATETIME, Kind.TIMESTAMP, Kind.TIME})
PACKED: Final = frozenset({249, 250, 251, 252})  # written as base64, whatever the charset


def type_code(kind: SqlType) -> int:
    """Return the number that stands for a column's type."""
    return _WRITTEN_AS.get(kind.name, mysql_code(kind))


def flags_of(table: TableSchema, column: Column) -> Flag:
    """Return what `f` says about a column."""
    flags = Flag(0)
    if column.type.charset == "binary":
        flags |= Flag.BINARY
    if column.type.unsigned or column.type.zerofill or column.type.kind in _ALWAYS_UNSIGNED:
        flags |= Flag.UNSIGNED
    if column.nullable:
        flags |= Flag.NULLABLE
    if column.generated:
        flags |= Flag.GENERATED
    elif column.name in table.written_key:
        flags |= Flag.HANDLE_KEY
    for index in table.indexes:
        names = [name.lower() for name in index.columns]
        if column.name.lower() in names:
            first = names[0] == column.name.lower()
            flags |= _of_generated(index, first) if column.generated else _of_index(index)
    return flags


def _of_index(index: Index) -> Flag:
    """Return what an index makes of each of its columns."""
    flags = Flag(0)
    if index.primary:
        flags |= Flag.PRIMARY_KEY
    elif index.unique:
        flags |= Flag.UNIQUE_KEY
    if len(index.columns) > 1 or not (index.primary or index.unique):
        flags |= Flag.MULTIPLE_KEY
    return flags


def _of_generated(index: Index, first: bool) -> Flag:
    """Return what it makes of a generated column: as MySQL, which marks the first one only."""
    if index.primary:
        return Flag.PRIMARY_KEY
    if not first:
        return Flag(0)
    return Flag.UNIQUE_KEY if index.unique and len(index.columns) == 1 else Flag.MULTIPLE_KEY


def sql_type(code: int, flags: Flag) -> SqlType | None:
    """Return the type that a code and flags stand for, as far as they tell; None: there is none."""
    binary = bool(flags & Flag.BINARY)
    name = _TWO_NAMES[code][0 if binary else 1] if code in _TWO_NAMES else _NAMES.get(code)
    if name is None:
        return None
    kind = KINDS[name]
    unsigned = bool(flags & Flag.UNSIGNED) and kind not in _ALWAYS_UNSIGNED
    return SqlType(name, unsigned=unsigned, scale=_FRACTION if kind in _SECONDS else None)
