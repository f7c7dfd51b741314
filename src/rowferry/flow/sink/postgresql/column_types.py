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
_WIDTHS: Final = {"tinyint": 1, "smallint": 2, "mediumint": 3, "int": 4, "bigint": 8}
_WIDER_HERE: Final = frozenset({"tinyint", "mediumint"})
_DIGITS: Final = {"tinyint": 3, "smallint": 5, "mediumint": 8, "int": 10, "bigint": 20}
_MOST_BYTES: Final = {"tiny": 1 << 8, "": 1 << 16, "medium": 1 << 24, "long": 1 << 32}
_MOST_TEXT: Final = 10_485_760  # the longest varchar that can be declared
_TEXTS: Final = frozenset({Kind.TEXT, Kind.ENUM, Kind.SET, Kind.VECTOR})
_NUMBERS: Final = frozenset({Kind.INTEGER, Kind.DECIMAL, Kind.YEAR})
_FLOATS: Final = frozenset({Kind.FLOAT, Kind.DOUBLE})
_SECONDS: Final = frozenset({Kind.DATETIME, Kind.TIMESTAMP, Kind.TIME})
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
    # Of fewer digits of a second MariaDB cuts the others off, MySQL rounds a half up, PostgreSQL
    # away from the year 2000. (A DECIMAL is rounded by all alike: a half goes away from zero.)
    if before is after and before in _SECONDS and new.fraction_digits < old.fraction_digits:
        return None
    if after in _FLOATS and new.scale is not None and not _keeps_digits(old, new):
        return None
    if was == now and before is after:
        return ""
    if after is Kind.YEAR:
        return None
    if before in _NUMBERS and after in (Kind.INTEGER, Kind.DECIMAL):
        return "" if was == now else plain
    if before in _NUMBERS and after is Kind.DOUBLE:
        return plain
    if before is Kind.YEAR and after in _TEXTS:  # the year 0 is 0000
        return f"{plain} USING lpad({column}::text, 4, '0')"
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


def condition(old: SqlType, new: SqlType, column: str) -> str:
    """Return what holds for all values unless the source has bent some to an altered column.

    Without strict mode it takes the nearest value that fits, or the beginning of it. Types here may
    be wider than the source's, so that nothing would be refused. Empty: they refuse by themselves.
    """
    if new.kind is Kind.INTEGER and (new.unsigned or new.name in _WIDER_HERE):
        least, most = _bounds(new)
        if old.kind is not Kind.INTEGER or _bounds(old)[0] < least or _bounds(old)[1] > most:
            return f"{column} BETWEEN {least} AND {most}"
    if new.kind in (Kind.DECIMAL, *_FLOATS) and new.unsigned and not old.unsigned:
        return f"{column} >= 0"
    if new.kind is old.kind is Kind.BINARY and _most_bytes(new) < _most_bytes(old):
        return f"octet_length({column}) <= {_most_bytes(new)}"
    if new.kind is Kind.TEXT and old.kind in _TEXTS and _most_bytes(new) < _most_bytes(old):
        # Of other character sets most take a byte for each.
        measure = "octet_length" if new.charset.startswith("utf8") else "char_length"
        return f"{measure}({column}::text) <= {_most_bytes(new)}"
    return ""


def _bounds(kind: SqlType) -> tuple[int, int]:
    """Return the smallest and the largest number of a type of whole numbers."""
    bits = 8 * _WIDTHS[kind.name]
    return (0, (1 << bits) - 1) if kind.unsigned else (-(1 << bits - 1), (1 << bits - 1) - 1)


def _most_bytes(kind: SqlType) -> int:
    """Return how many bytes a value may have at most; of texts with a width, as many as any."""
    if kind.name == "varbinary":
        return kind.size or 0
    size, of_bytes, rest = kind.name.partition("text" if kind.kind is Kind.TEXT else "blob")
    return _MOST_BYTES[size] - 1 if of_bytes and not rest else _MOST_BYTES["long"] - 1


def _keeps_digits(old: SqlType, new: SqlType) -> bool:
    """Return whether a FLOAT or DOUBLE that is rounded to some digits takes values as they are."""
    if old.kind is Kind.INTEGER:
        whole, behind = _DIGITS[old.name], 0
    elif old.kind is Kind.DECIMAL or (old.kind in _FLOATS and old.scale is not None):
        whole, behind = (old.size or 0) - old.fraction_digits, old.fraction_digits
    else:
        return False
    if (old.kind, new.kind) == (Kind.FLOAT, Kind.DOUBLE):  # more digits come to light
        return False
    return whole <= (new.size or 0) - new.fraction_digits and behind <= new.fraction_digits


def _begins_with(elements: tuple[str, ...], former: tuple[str, ...]) -> bool:
    return elements[: len(former)] == former
