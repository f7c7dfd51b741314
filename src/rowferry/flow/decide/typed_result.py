"""What an expression gives, as values of a column's type; and constants as such values.

Values come in the forms that chunks hold; see `change.sqltype`. A text that is too long is cut, as
CAST does; a number that does not fit is refused when it comes. Errors never tell a value.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Callable
from decimal import ROUND_HALF_UP, Decimal, InvalidOperation
from typing import Any, Final
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc

from rowferry.change.sqltype import Kind, SqlType
from rowferry.errors import BadStatement
from rowferry.flow.decide.expression_values import (
    Datum,
    Unfit,
    Value,
    ValueForm,
    as_bytes,
    as_decimal,
    as_double,
    as_moment,
    as_number,
    as_text,
    mapped,
    moment_text,
    time_micros,
    with_room,
)
from rowferry.mysql.ddl.statement import parse_create

_BITS: Final = {"tinyint": 8, "smallint": 16, "mediumint": 24, "int": 32, "bigint": 64}
_MADE: Final = frozenset(
    {
        Kind.INTEGER,
        Kind.FLOAT,
        Kind.DOUBLE,
        Kind.DECIMAL,
        Kind.TEXT,
        Kind.BINARY,
        Kind.DATE,
        Kind.DATETIME,
        Kind.TIMESTAMP,
        Kind.YEAR,
    }
)
_MOST_SCALE: Final = 6  # with more digits, kernels write small numbers as 1E-7
_ANY_TEXT: Final = ("utf8mb4", "utf8", "utf8mb3")  # character sets of nearly everything
_ADDRESSES: Final[dict[str, Callable[[str], Any]]] = {
    "inet4": ipaddress.IPv4Address,
    "inet6": ipaddress.IPv6Address,
    "uuid": UUID,
}


def read_type(text: str) -> SqlType:
    """Return a type as DDL writes it.

    Raises:
        Unfit: it is none that a column here can have.
    """
    try:
        columns = parse_create(f"CREATE TABLE a.b (c {text})").columns
    except BadStatement:
        columns = ()
    if len(columns) != 1 or columns[0].generated or columns[0].default is not None:
        raise Unfit(f"{text!r} is not a type; write it as in CREATE TABLE, such as varchar(20)")
    kind = columns[0].type
    _refuse_type(kind)
    return kind


def _refuse_type(kind: SqlType) -> None:
    if kind.kind not in _MADE or kind.name in ("geometry", *_ADDRESSES):
        raise Unfit(f"a {kind.name} cannot be made by an expression; declare another type")
    if kind.kind is Kind.DECIMAL and kind.fraction_digits > _MOST_SCALE:
        raise Unfit(f"a decimal of an expression has at most {_MOST_SCALE} digits after its point")


def text_limit(kind: SqlType) -> tuple[int | None, int | None]:
    """Return how many characters, and how many bytes, a text or binary column takes."""
    if kind.name in ("char", "varchar"):
        return kind.length or 1, None
    if kind.name in ("binary", "varbinary"):
        return None, kind.length or 1
    return None, kind.size


def cut_text(kind: SqlType, texts: Datum) -> Datum:
    """Return texts, or bytes, no longer than a column takes."""
    characters, size = text_limit(kind)
    if kind.kind is Kind.BINARY:
        most = size if size is not None else (1 << 31) - 1
        return _cut_bytes(texts, most)
    # A character has one to four bytes; only texts that could be too long are looked at.
    limit = size if size is not None else (1 << 32) - 1
    longest = pc.max(pc.binary_length(texts)).as_py()
    if longest is None or longest <= (limit if characters is None else characters):
        return texts
    if characters is not None:
        return pc.utf8_slice_codeunits(texts, start=0, stop=characters)
    return pc.if_else(
        pc.greater(pc.binary_length(texts), limit),
        pc.utf8_slice_codeunits(texts, start=0, stop=limit // 4),
        texts,
    )


def _cut_bytes(data: Datum, most: int) -> Datum:
    longest = pc.max(pc.binary_length(data)).as_py()
    return data if longest is None or longest <= most else pc.binary_slice(data, 0, most)


def keeps_text(old: SqlType, new: SqlType) -> bool:
    """Return whether every value of a column has the same text, or bytes, in another type."""
    match new.kind:
        case Kind.INTEGER:
            return old.kind in (Kind.INTEGER, Kind.YEAR, Kind.BIT)
        case Kind.DECIMAL:
            whole = old.kind in (Kind.INTEGER, Kind.DECIMAL)
            return whole and old.fraction_digits == new.fraction_digits
        case Kind.TEXT if new.name not in ("char", *_ADDRESSES):  # CHAR has no spaces at its end
            return old.kind is Kind.TEXT and old.name not in _ADDRESSES
        case Kind.BINARY if new.name not in ("binary", "geometry"):
            return old.kind is Kind.BINARY and old.name != "geometry"
        case Kind.BINARY:  # BINARY is filled up with zeros
            return (old.name, old.size) == (new.name, new.size)
        case Kind.ENUM | Kind.SET:
            begin = new.elements[: len(old.elements)]
            return old.kind is new.kind and begin == old.elements
        case Kind.DATETIME | Kind.TIMESTAMP | Kind.TIME:
            return (old.name, old.fraction_digits) == (new.name, new.fraction_digits)
    return old.name == new.name


def refuse_characters(kind: SqlType, text: str) -> None:
    """Refuse characters that a column's character set may lack.

    Raises:
        Unfit: there are such.
    """
    if kind.kind is Kind.TEXT and kind.charset not in _ANY_TEXT and not text.isascii():
        raise Unfit(f"it has characters that the character set {kind.charset} may lack")


# --- expressions ---------------------------------------------------------------------------------


def as_type(value: Value, kind: SqlType) -> Value:
    """Return a value in the form that a column of a type has inside a chunk.

    Its kernels raise ArrowInvalid where a number does not fit.

    Raises:
        Unfit: such a value never becomes one of the type.
    """
    _refuse_type(kind)
    if value.form is ValueForm.NULL:
        return mapped(value, value.form, lambda d: d.cast(kind.arrow))
    if isinstance(value.literal, str):
        refuse_characters(kind, value.literal)
    match kind.kind:
        case Kind.TEXT:
            return mapped(as_text(value), ValueForm.TEXT, lambda d: cut_text(kind, d))
        case Kind.BINARY:
            return mapped(as_bytes(value), ValueForm.BYTES, lambda d: cut_text(kind, d))
        case Kind.INTEGER | Kind.YEAR:
            return _whole(value, kind)
        case Kind.FLOAT | Kind.DOUBLE:
            return mapped(_number(value, as_double), ValueForm.DBL, lambda d: d.cast(kind.arrow))
        case Kind.DECIMAL:
            return _exact(value, kind)
        case Kind.DATE:
            if value.form is not ValueForm.DATE:
                raise Unfit(f"it gives {value.form.value}, not a DATE")
            return value
    moments = as_moment(value)
    stop = 19 if not kind.fraction_digits else 20 + kind.fraction_digits
    return mapped(moments, moments.form, lambda d: pc.utf8_slice_codeunits(d, start=0, stop=stop))


def _number(value: Value, change: Callable[[Value], Value]) -> Value:
    if value.form in (ValueForm.TEXT, ValueForm.BYTES) and value.number is None:
        raise Unfit(f"it gives {value.form.value}, not a number")
    return change(value)


def _whole(value: Value, kind: SqlType) -> Value:
    number = _number(value, as_number)
    if number.form is ValueForm.DBL:
        raise Unfit("it gives a DOUBLE, not a whole number")
    low, high = whole_range(kind)

    def change(data: Datum) -> Datum:
        if pa.types.is_decimal(data.type):
            data = pc.round(with_room(data), round_mode="half_towards_infinity")
        fitted = pc.cast(data, kind.arrow)
        ends = pc.min_max(pa.array([fitted.as_py()]) if isinstance(fitted, pa.Scalar) else fitted)
        least, most = ends["min"].as_py(), ends["max"].as_py()
        if least is not None and (least < low or most > high):
            raise pa.ArrowInvalid("out of range")
        return fitted

    return mapped(number, ValueForm.INT, change)


def whole_range(kind: SqlType) -> tuple[int, int]:
    """Return the least and the greatest number of a whole type."""
    if kind.kind is Kind.YEAR:
        return 0, 2155
    if kind.kind is Kind.BIT:
        return 0, (1 << (kind.length or 1)) - 1
    bits = _BITS[kind.name]
    return (0, (1 << bits) - 1) if kind.unsigned else (-(1 << bits - 1), (1 << bits - 1) - 1)


def _exact(value: Value, kind: SqlType) -> Value:
    number = _number(value, as_number)
    if number.form is ValueForm.DBL:
        raise Unfit("it gives a DOUBLE, not a DECIMAL")
    digits, scale = kind.size or 10, kind.fraction_digits

    def change(data: Datum) -> Datum:
        rounded = pc.round(with_room(data), ndigits=scale, round_mode="half_towards_infinity")
        return pc.cast(pc.cast(rounded, pa.decimal256(digits, scale)), pa.large_utf8())

    return mapped(as_decimal(number), ValueForm.TEXT, change)


def broadcast(data: Datum, count: int, kind: pa.DataType) -> pa.Array:
    """Return a column of `count` rows; a constant is repeated."""
    if isinstance(data, pa.Scalar):
        return pa.repeat(data.cast(kind), count)
    return data if data.type == kind else data.cast(kind)


# --- constants -----------------------------------------------------------------------------------


def constant_of(kind: SqlType, text: str) -> Any:
    """Return what a chunk holds for a constant of a type.

    Raises:
        Unfit: the text is no such value, or the type has none that could be written down.
    """
    try:
        return _constant(kind, text)
    except (ValueError, InvalidOperation, RecursionError):
        raise Unfit(f"{text!r} is not a value of {kind.sql}") from None


def _constant(kind: SqlType, text: str) -> Any:
    match kind.kind:
        case Kind.INTEGER | Kind.YEAR | Kind.BIT:
            low, high = whole_range(kind)
            number = int(text)
            if not low <= number <= high:
                raise ValueError
            return number
        case Kind.FLOAT | Kind.DOUBLE:
            return float(text)
        case Kind.DECIMAL:
            return _decimal_constant(kind, text)
        case Kind.DATE:
            return moment_text(text)[:10]
        case Kind.DATETIME | Kind.TIMESTAMP:
            digits = kind.fraction_digits
            return moment_text(text)[: 20 + digits if digits else 19]
        case Kind.TIME:
            return _time_constant(kind, text)
        case Kind.ENUM | Kind.SET:
            return _element_constant(kind, text)
        case Kind.JSON:
            return _json_text(json.loads(text))
        case Kind.TEXT | Kind.BINARY if kind.name != "geometry":
            return _text_constant(kind, text)
    raise Unfit(f"a {kind.name} takes no constant here; use action = null")


def _decimal_constant(kind: SqlType, text: str) -> str:
    number = Decimal(text).quantize(Decimal(1).scaleb(-kind.fraction_digits), ROUND_HALF_UP)
    whole = (kind.size or 10) - kind.fraction_digits
    if not number.is_finite() or abs(number) >= Decimal(10) ** whole:
        raise ValueError
    if number < 0 and kind.unsigned:
        raise ValueError
    return f"{number:f}"


def _time_constant(kind: SqlType, text: str) -> str:
    micros = time_micros(text)
    sign, micros = ("-", -micros) if micros < 0 else ("", micros)
    seconds, fraction = divmod(micros, 1_000_000)
    shown = f"{sign}{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    digits = kind.fraction_digits
    return shown + (f".{fraction:06}"[: 1 + digits] if digits else "")


def _element_constant(kind: SqlType, text: str) -> int:
    if kind.kind is Kind.ENUM:
        return kind.elements.index(text) + 1
    return sum(1 << kind.elements.index(name) for name in dict.fromkeys(text.split(",")) if name)


def _text_constant(kind: SqlType, text: str) -> str | bytes:
    if kind.name in _ADDRESSES:
        return str(_ADDRESSES[kind.name](text))
    refuse_characters(kind, text)
    characters, size = text_limit(kind)
    raw = text.encode()
    if characters is not None and len(text) > characters or size is not None and len(raw) > size:
        raise ValueError
    return raw if kind.kind is Kind.BINARY else text


def _json_text(value: Any) -> str:
    """Return a document as MySQL writes it: short keys first, a blank behind commas and colons."""
    if isinstance(value, list):
        return "[" + ", ".join(map(_json_text, value)) + "]"
    if isinstance(value, dict):
        keys = sorted(value, key=lambda k: (len(k.encode()), k.encode()))
        pairs = (f"{json.dumps(k, ensure_ascii=False)}: {_json_text(value[k])}" for k in keys)
        return "{" + ", ".join(pairs) + "}"
    return json.dumps(value, ensure_ascii=False)
