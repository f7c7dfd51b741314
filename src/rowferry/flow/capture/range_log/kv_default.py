"""The value that a row has in a column that was added after the row was written."""

from __future__ import annotations

import decimal
import re
from typing import Any

from rowferry.change.sqltype import Kind
from rowferry.change.table import Column
from rowferry.errors import BadInput

_CLOCK = re.compile(r"(.*\d)(?:\.(\d+))?")


def default_of(column: Column) -> Any:
    """Return the default that the column was added with, in its canonical form; None: no fixed one.

    A default that is an expression (CURRENT_TIMESTAMP) has no value of its own.
    """
    given = column.filled
    if given is None or column.generated == "virtual":
        return None
    try:
        return _canonical(column, given)
    except (ValueError, ArithmeticError) as err:
        raise BadInput(
            f"column {column.name!r}: the default {given!r} is no {column.type.sql}"
        ) from err


def _canonical(column: Column, given: Any) -> Any:
    kind, elements = column.type.kind, column.type.elements
    match kind:
        case Kind.INTEGER | Kind.YEAR | Kind.BIT:
            return int(given)
        case Kind.FLOAT | Kind.DOUBLE:
            return float(given)
        case Kind.ENUM:
            return given if isinstance(given, int) else elements.index(given) + 1
        case Kind.SET:
            if isinstance(given, int):
                return given
            return sum(1 << elements.index(name) for name in given.split(",") if name)
        case Kind.DECIMAL:
            places = decimal.Decimal(1).scaleb(-column.type.fraction_digits)
            with decimal.localcontext(prec=100):
                return format(decimal.Decimal(str(given)).quantize(places), "f")
        case Kind.DATETIME | Kind.TIMESTAMP | Kind.TIME:
            return _with_fraction(str(given), column.type.fraction_digits)
        case Kind.BINARY:
            return given.encode() if isinstance(given, str) else given
    return str(given)


def _with_fraction(text: str, digits: int) -> str | None:
    match = _CLOCK.fullmatch(text)
    if match is None:
        return None
    fraction = (match[2] or "")[:digits].ljust(digits, "0")
    return f"{match[1]}.{fraction}" if digits else match[1]
