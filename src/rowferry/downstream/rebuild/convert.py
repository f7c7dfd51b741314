"""What MODIFY COLUMN makes of values, as far as every server makes the same of them.

Servers round or cut, and their settings decide whether they refuse, cut, or take a session's time
zone. No file tells these: such a value is refused here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from decimal import ROUND_HALF_EVEN, ROUND_HALF_UP, Decimal, localcontext
from typing import Any, Final

import pyarrow as pa

from rowferry.change.sqltype import Kind, SqlType

_DAYS: Final = (Kind.DATE, Kind.DATETIME)
_NUMBER = re.compile(r"[+-]?\d+(\.\d+)?", re.ASCII)
_DATE = re.compile(r"\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])", re.ASCII)
_DATETIME = re.compile(rf"{_DATE.pattern} ([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d{{1,6}})?", re.ASCII)
_BITS: Final = {"tinyint": 8, "smallint": 16, "mediumint": 24, "int": 32, "bigint": 64}
_MOST_BYTES: Final = {
    **dict.fromkeys(("tinytext", "tinyblob"), (1 << 8) - 1),
    **dict.fromkeys(("text", "blob"), (1 << 16) - 1),
    **dict.fromkeys(("mediumtext", "mediumblob"), (1 << 24) - 1),
}
_DIGITS: Final = 400  # of any number that a column can hold, a DOUBLE of 309 digits among them


def convert_value(value: Any, old: SqlType, new: SqlType) -> Any:
    """Return a canonical value of type `old` as MODIFY COLUMN to `new` leaves it on every server.

    Raises:
        ValueError: servers differ, or their settings decide, or they refuse or cut it.
    """
    if value is None or old == new:
        return value
    names = _names(value, old)
    if new.kind in (Kind.ENUM, Kind.SET):
        if old.kind is not new.kind and (old.kind, new.kind) != (Kind.TEXT, Kind.ENUM):
            raise ValueError("it depends on the server")
        if new.kind is Kind.SET:
            return sum(1 << new.elements.index(n) for n in names)
        return new.elements.index(names[0]) + 1 if names else 0
    if old.kind in (Kind.ENUM, Kind.SET):
        _fits(new.kind is Kind.TEXT)  # as a number it is its place, as other things its name
        value, old = ",".join(names), SqlType("longtext")
    return _CERTAIN[new.kind](value, old, new)


def _names(value: Any, kind: SqlType) -> list[str]:
    """Return the elements that an ENUM or SET names; a text is one."""
    if kind.kind is Kind.ENUM:
        return [kind.elements[value - 1]] if value else []
    if kind.kind is Kind.SET:
        return [n for i, n in enumerate(kind.elements) if value >> i & 1]
    return [str(value)]


def _only(old: SqlType, *kinds: Kind) -> None:
    """Refuse a value of another kind."""
    if old.kind not in kinds:
        raise ValueError("it depends on the server")


def _number(value: Any, old: SqlType, *kinds: Kind) -> Any:
    """Return a number, or a text that is nothing else than one."""
    _only(old, Kind.INTEGER, Kind.DECIMAL, Kind.TEXT, *kinds)
    if old.kind is Kind.TEXT and not _NUMBER.fullmatch(value):
        raise ValueError("it depends on the server")
    return value


def _fits(good: bool) -> None:
    if not good:
        raise ValueError("it does not fit")


def _to_whole(value: Any, old: SqlType, new: SqlType) -> int:
    number = _number(value, old, Kind.DOUBLE, Kind.FLOAT, Kind.BIT, Kind.YEAR)
    whole = int(rounded(number, 0))
    if old.kind is Kind.TEXT:  # one server rounds, the other cuts
        _fits(whole == int(Decimal(number)))
    bits = _BITS.get(new.name) or new.size or 1
    unsigned = new.unsigned or new.kind is Kind.BIT
    _fits(0 <= whole < 1 << bits if unsigned else -1 << bits - 1 <= whole < 1 << bits - 1)
    return whole


def _to_year(value: Any, old: SqlType, new: SqlType) -> int:
    _only(old, Kind.INTEGER)
    _fits(value == 0 or 1901 <= value <= 2155)
    return int(value)


def _to_decimal(value: Any, old: SqlType, new: SqlType) -> str:
    number = rounded(_number(value, old, Kind.DOUBLE), new.fraction_digits)
    _fits(abs(number) < Decimal(10) ** ((new.size or 10) - new.fraction_digits))
    _fits(not new.unsigned or number >= 0)
    return f"{number:f}"


def _to_float(value: Any, old: SqlType, new: SqlType) -> float:
    _fits(not new.scale)  # else it is rounded
    given = float(_number(value, old, Kind.DOUBLE, Kind.FLOAT))
    number: float = pa.scalar(given, new.arrow).as_py()
    _fits(math.isfinite(number) and not (new.unsigned and number < 0))
    return number


def _to_text(value: Any, old: SqlType, new: SqlType) -> str:
    if old.kind is Kind.BINARY:
        text: str = value.decode("ascii")
    else:
        _only(old, Kind.INTEGER, Kind.DECIMAL, Kind.TEXT, Kind.JSON, *_DAYS, Kind.TIME)
        _fits(not old.zerofill)
        text = str(value)
    _fits(new.name != "char" or not text.endswith(" "))
    _fits(len(text) <= new.size if new.name in ("char", "varchar") and new.size else True)
    _fits(len(text.encode()) <= _MOST_BYTES.get(new.name, 1 << 32))
    return text


def _to_binary(value: Any, old: SqlType, new: SqlType) -> bytes:
    if old.kind is not Kind.BINARY:
        _only(old, Kind.INTEGER, Kind.DECIMAL, Kind.TEXT)
    data = value if isinstance(value, bytes) else str(value).encode("ascii")
    _fits(new.name != "binary" or len(data) == new.size)
    _fits(len(data) <= new.size if new.name == "varbinary" and new.size else True)
    _fits(len(data) <= _MOST_BYTES.get(new.name, 1 << 32))
    return data


def _to_date(value: Any, old: SqlType, new: SqlType) -> str:
    _only(old, Kind.DATETIME, Kind.TEXT)
    if old.kind is Kind.TEXT:
        _fits(_DATE.fullmatch(value) is not None)
    return _with_digits(value, 0)[:10]


def _to_datetime(value: Any, old: SqlType, new: SqlType) -> str:
    _only(old, *_DAYS, Kind.TEXT)  # of a TIMESTAMP a session's time zone decides
    if old.kind is Kind.TEXT:
        _fits(_DATETIME.fullmatch(value) is not None)
    moment = f"{value} 00:00:00" if old.kind is Kind.DATE else value
    return _with_digits(moment, new.fraction_digits)


def _to_same(value: Any, old: SqlType, new: SqlType) -> str:
    _only(old, new.kind)
    return _with_digits(value, new.fraction_digits)


def _to_nothing(value: Any, old: SqlType, new: SqlType) -> Any:
    raise ValueError("it depends on the server")


def _with_digits(text: str, digits: int) -> str:
    """Return a time with so many digits of its second, where it is cut and rounded alike."""
    whole, _, fraction = text.partition(".")
    _fits(fraction[digits : digits + 1] < "5")
    return f"{whole}.{fraction[:digits].ljust(digits, '0')}" if digits else whole


_CERTAIN: Final[dict[Kind, Callable[[Any, SqlType, SqlType], Any]]] = {
    Kind.INTEGER: _to_whole,
    Kind.BIT: _to_whole,
    Kind.YEAR: _to_year,
    Kind.DECIMAL: _to_decimal,
    Kind.FLOAT: _to_float,
    Kind.DOUBLE: _to_float,
    Kind.TEXT: _to_text,
    Kind.BINARY: _to_binary,
    Kind.DATE: _to_date,
    Kind.DATETIME: _to_datetime,
    Kind.TIMESTAMP: _to_same,
    Kind.TIME: _to_same,
    Kind.JSON: _to_nothing,
    Kind.VECTOR: _to_nothing,
    Kind.NUMERIC: _to_nothing,
}


def convert_array(values: pa.Array, old: SqlType, new: SqlType) -> pa.Array:
    """Return `convert_value` of every value; each distinct value is converted once."""
    if old == new:
        return values
    coded = values.dictionary_encode()
    changed = [convert_value(v, old, new) for v in coded.dictionary.to_pylist()]
    return pa.array(changed, new.arrow).take(coded.indices)


def rounded(value: Any, digits: int) -> Decimal:
    """Round as the servers do: half away from zero, but a floating number to an even whole one."""
    number = Decimal(str(value).strip() or "0")
    to_even = isinstance(value, float) and not digits
    with localcontext(prec=_DIGITS, rounding=ROUND_HALF_EVEN if to_even else ROUND_HALF_UP):
        return number.quantize(Decimal(1).scaleb(-digits))
