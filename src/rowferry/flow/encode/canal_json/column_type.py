"""Whole column types as canal-json names them: with the widths that a TiDB table has."""

from __future__ import annotations

from typing import Final

from rowferry.change.sqltype import Kind, SqlType
from rowferry.mysql.type_facts import display_width

_SECONDS: Final = frozenset({Kind.DATETIME, Kind.TIMESTAMP, Kind.TIME})
_SIZED: Final = frozenset({"char", "varchar", "binary", "varbinary"})
_ELEMENT: Final = str.maketrans({"'": "''", "\0": "\\0", "\n": "\\n", "\r": "\\r"})


def full_type(kind: SqlType) -> str:
    """Return a type with its width, also where the table's definition gives none.

    A default width is TiDB's: `int(11)`, `int(10) unsigned`, `decimal(10,0)`, `year(4)`.
    """
    text = kind.name + _suffix(kind)
    if kind.kind in (Kind.BIT, Kind.YEAR):
        return text
    return text + (" unsigned" if kind.unsigned else "") + (" zerofill" if kind.zerofill else "")


def _suffix(kind: SqlType) -> str:
    what = kind.kind
    if what in (Kind.ENUM, Kind.SET):
        return "('" + "','".join(e.translate(_ELEMENT) for e in kind.elements) + "')"
    if what in _SECONDS:
        return f"({kind.scale})" if kind.scale else ""
    if what in (Kind.FLOAT, Kind.DOUBLE):
        return f"({display_width(kind)},{kind.scale})" if kind.scale else ""
    if what is Kind.DECIMAL:
        return f"({display_width(kind)},{kind.fraction_digits})"
    if what in (Kind.INTEGER, Kind.BIT, Kind.YEAR) or kind.name in _SIZED:
        return f"({display_width(kind)})"
    return f"({kind.length})" if what is Kind.VECTOR and kind.length is not None else ""
