"""The image of every column type in PostgreSQL, and how values of one become those of another."""

from __future__ import annotations

from typing import Final

from rowferry.change.sqltype import Kind, SqlType

_WHOLE: Final = {"tinyint": 0, "smallint": 0, "mediumint": 1, "int": 1, "bigint": 2}
_WHOLE_IMAGES: Final = ("smallint", "integer", "bigint", "numeric(20)")
_UNSIGNED_IMAGES: Final = {
    "tinyint": "smallint",
    "smallint": "integer",
    "mediumint": "integer",
    "int": "bigint",
    "bigint": "numeric(20)",
}
_MOST_TEXT: Final = 10_485_760  # the longest varchar that can be declared
_TEXTS: Final = frozenset({Kind.TEXT, Kind.ENUM, Kind.SET, Kind.VECTOR})
_NUMBERS: Final = frozenset({Kind.INTEGER, Kind.DECIMAL, Kind.YEAR})
_NOT_TEXT_NAMES: Final = frozenset({"uuid", "inet4", "inet6"})


def image_of(kind: SqlType, json_type: str = "jsonb") -> str:
    """Return the type that a column has downstream."""
    match kind.kind:
        case Kind.INTEGER:
            if kind.unsigned:
                return _UNSIGNED_IMAGES[kind.name]
            return _WHOLE_IMAGES[_WHOLE[kind.name]]
        case Kind.YEAR:
            return "smallint"
        case Kind.FLOAT:
            return "real"
        case Kind.DOUBLE:
            return "double precision"
        case Kind.DECIMAL:
            return f"numeric({kind.size},{kind.fraction_digits})"
        case Kind.NUMERIC:
            return "numeric"
        case Kind.BIT:
            return f"bit({kind.size})"
        case Kind.BINARY:
            return "bytea"
        case Kind.DATE:
            return "date"
        case Kind.DATETIME:
            return f"timestamp({kind.fraction_digits})"
        case Kind.TIMESTAMP:
            return f"timestamp({kind.fraction_digits}) with time zone"
        case Kind.TIME:
            return f"interval({kind.fraction_digits})"
        case Kind.JSON:
            return json_type
        case _:
            return _text_image(kind)


def _text_image(kind: SqlType) -> str:
    if kind.name == "uuid":
        return "uuid"
    limited = kind.name in ("char", "varchar") and 0 < (kind.size or 0) <= _MOST_TEXT
    return f"varchar({kind.size})" if limited else "text"


def conversion(old: SqlType, new: SqlType, column: str, json_type: str) -> str | None:
    """Return how stored values become those of an altered column, as MySQL converts them.

    That is what stands behind `ALTER COLUMN … TYPE`; empty: the type stays. None: PostgreSQL would
    make other values of them than the source has now. `column` is the column's name in quotes.
    """
    was, now = image_of(old, json_type), image_of(new, json_type)
    before, after = old.kind, new.kind
    plain = f"TYPE {now}"
    if after in (Kind.ENUM, Kind.SET):
        # What is no element becomes another value at the source, and a SET's order is that of its
        # elements.
        return "" if before is after and _begins_with(new.elements, old.elements) else None
    if after is Kind.BINARY:
        # A BINARY of another length is filled up with zero bytes at the source.
        same = before is Kind.BINARY and (new.name != "binary" or old.written() == new.written())
        return "" if same else None
    if before in _TEXTS and after in _TEXTS and old.name not in _NOT_TEXT_NAMES:
        if new.name in _NOT_TEXT_NAMES:
            return "" if was == now else f"{plain} USING {column}::{now}"
        if new.name == "char" and old.name != "char":  # whose spaces at the end do not count
            return f"{plain} USING rtrim({column}, ' ')"
        return "" if was == now else plain
    if before is after and before is Kind.BIT:
        if (new.size or 1) < (old.size or 1):
            return None
        return "" if was == now else f"{plain} USING lpad({column}::text, {new.size}, '0')::{now}"
    if was == now and before is after:
        return ""
    if after is Kind.YEAR:
        return None
    if before in _NUMBERS and after in (Kind.INTEGER, Kind.DECIMAL):
        return "" if was == now else plain
    if before in _NUMBERS and after is Kind.DOUBLE:
        return plain
    if before in _NUMBERS and after in _TEXTS and not old.zerofill:
        return plain
    pairs = {
        (Kind.FLOAT, Kind.DOUBLE),
        (Kind.DOUBLE, Kind.FLOAT),
        (Kind.DATE, Kind.DATETIME),
        (Kind.DATETIME, Kind.DATETIME),
        (Kind.TIMESTAMP, Kind.TIMESTAMP),
        (Kind.TIME, Kind.TIME),
    }
    if (before, after) in pairs:
        return plain
    if before is Kind.TEXT and after is Kind.JSON and old.name not in _NOT_TEXT_NAMES:
        return f"{plain} USING {column}::{now}"
    return None


def _begins_with(elements: tuple[str, ...], former: tuple[str, ...]) -> bool:
    return elements[: len(former)] == former
