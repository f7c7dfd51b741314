"""Columns of values inside an expression, and MySQL's ways from one type to another.

A `Value` is a typed recipe: `run` gives an Arrow array (or a scalar, for a constant) for the rows
of one image. Which recipe is used is decided once for each table version, never for a row.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from enum import Enum
from typing import Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

Datum: TypeAlias = Any  # pa.Array | pa.Scalar
MOST_DIGITS: Final = 76


class ValueForm(Enum):
    """What kind of value an expression gives; the words are for errors."""

    NULL = "NULL"
    BOOL = "a truth value"
    INT = "a whole number"
    DEC = "a DECIMAL"
    DBL = "a DOUBLE"
    TEXT = "text"
    BYTES = "binary text"
    DATE = "a DATE"
    DATETIME = "a DATETIME"
    TIME = "a TIME"
    OPAQUE = "a JSON or VECTOR"


NUMBERS: Final = (ValueForm.BOOL, ValueForm.INT, ValueForm.DEC, ValueForm.DBL)
MOMENTS: Final = (ValueForm.DATE, ValueForm.DATETIME)


class ImageColumns:
    """The columns of some rows' images, each taken out once."""

    def __init__(self, image: pa.StructArray, wanted: pa.Array | None = None) -> None:
        self._image, self._wanted = image, wanted
        self._names = {field.name for field in image.type}
        self._columns: dict[str, pa.Array] = {}

    def __len__(self) -> int:
        return len(self._image) if self._wanted is None else len(self._wanted)

    def column(self, name: str) -> pa.Array | None:
        """Return a column of the wanted rows; None: the images do not have it."""
        if name not in self._names:
            return None
        if name not in self._columns:
            values = self._image.field(name)
            self._columns[name] = values if self._wanted is None else values.take(self._wanted)
        return self._columns[name]


@dataclass(frozen=True, slots=True)
class Value:
    """A typed piece of an expression.

    Attributes:
        literal: the constant, where it is one.
        sensitive: texts are compared with their case and accents.
        number: the same as a number, where that is not what its text says (ENUM, SET, hex).
        in_bits: its text would be its bits, not its digits (BIT).
        year: numbers of two digits beside it are years of this or the last century (YEAR).
        at: where it stands in the text of the expression.
    """

    form: ValueForm
    run: Callable[[ImageColumns], Datum]
    literal: Any = None
    sensitive: bool = False
    number: Value | None = None
    in_bits: bool = False
    year: bool = False
    at: int = 0


class Unfit(Exception):
    """Values that do not fit together; the words say why."""


# --- constants -----------------------------------------------------------------------------------


def constant(value: Any, at: int = 0) -> Value:
    """Return a literal as a value."""
    form, scalar = _scalar(value)
    return Value(form, lambda images: scalar, literal=value, at=at)


def _scalar(value: Any) -> tuple[ValueForm, pa.Scalar]:
    if value is None:
        return ValueForm.NULL, pa.scalar(None)
    if isinstance(value, bool):
        return ValueForm.BOOL, pa.scalar(value)
    if isinstance(value, int) and -(1 << 63) <= value < 1 << 63:
        return ValueForm.INT, pa.scalar(value, pa.int64())
    if isinstance(value, int | Decimal):
        exact = Decimal(value)
        scale = max(0, -int(exact.as_tuple().exponent))
        digits = max(len(exact.as_tuple().digits), scale, 1)
        if digits > MOST_DIGITS:
            raise Unfit(f"the number {value} has more than {MOST_DIGITS} digits")
        return ValueForm.DEC, pa.scalar(exact, pa.decimal256(digits, scale))
    if isinstance(value, float):
        return ValueForm.DBL, pa.scalar(value, pa.float64())
    if isinstance(value, bytes):
        return ValueForm.BYTES, pa.scalar(value, pa.large_binary())
    return ValueForm.TEXT, pa.scalar(value, pa.large_utf8())


_DATE = re.compile(
    r"\s*(\d{4})[-/.](\d{1,2})[-/.](\d{1,2})"
    r"(?:[T ]+(\d{1,2}):(\d{1,2})(?::(\d{1,2})(?:\.(\d{0,6}))?)?)?\s*"
)
_DATE_DIGITS = re.compile(r"\s*(\d{4})(\d\d)(\d\d)(?:(\d\d)(\d\d)(\d\d)(?:\.(\d{0,6}))?)?\s*")
_TIME = re.compile(r"\s*(-?)(\d{1,3}):(\d{1,2})(?::(\d{1,2})(?:\.(\d{0,6}))?)?\s*")


def moment_text(written: str) -> str:
    """Return a date literal in canonical form, with six fraction digits.

    Raises:
        Unfit: it is none.
    """
    match = _DATE.fullmatch(written) or _DATE_DIGITS.fullmatch(written)
    parts = [int(p or 0) for p in match.groups()[:6]] if match else [0, 13]
    if match is None or parts[1] > 12 or parts[2] > 31 or parts[3] > 23 or max(parts[4:6]) > 59:
        raise Unfit(f"{written!r} is not a date; write it as '2024-01-31 23:59:59'")
    fraction = (match[7] or "").ljust(6, "0")
    year, month, day, hour, minute, second = parts
    return f"{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}.{fraction}"


def time_micros(written: str) -> int:
    """Return a TIME literal in microseconds.

    Raises:
        Unfit: it is none.
    """
    match = _TIME.fullmatch(written)
    if match is None or int(match[3]) > 59 or int(match[4] or 0) > 59:
        raise Unfit(f"{written!r} is not a time; write it as '12:59:59'")
    seconds = (int(match[2]) * 60 + int(match[3])) * 60 + int(match[4] or 0)
    micros = seconds * 1_000_000 + int((match[5] or "").ljust(6, "0"))
    return -micros if match[1] else micros


# --- from one form to another --------------------------------------------------------------------


def mapped(value: Value, form: ValueForm, change: Callable[[Datum], Datum], **facts: Any) -> Value:
    """Return a value made from another one by a kernel."""
    run = value.run
    return replace(
        Value(form, lambda images: change(run(images)), at=value.at, sensitive=value.sensitive),
        **facts,
    )


_NUMBER_IN_TEXT = r"(?s)^\s*([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?).*$|^.*$"


def _leading_number(texts: Datum) -> Datum:
    """Return the number that texts begin with; 0 without one, as MySQL has it."""
    digits = pc.replace_substring_regex(texts, pattern=_NUMBER_IN_TEXT, replacement=r"\1")
    digits = pc.replace_substring_regex(digits, pattern=r"^\+", replacement="")
    digits = pc.if_else(pc.equal(digits, ""), "0", digits)
    return pc.cast(digits, pa.float64())


def as_number(value: Value) -> Value:
    """Return a value as a number of its own kind (text: DOUBLE).

    Raises:
        Unfit: a type that is not used as a number.
    """
    if value.number is not None:
        return value.number
    if value.form is ValueForm.NULL:
        return mapped(value, ValueForm.INT, lambda d: d.cast(pa.int64()))
    if value.form is ValueForm.BOOL:
        return mapped(value, ValueForm.INT, lambda d: pc.cast(d, pa.int64()))
    if value.form in NUMBERS:
        return value
    if value.form is ValueForm.TEXT:
        return mapped(value, ValueForm.DBL, _leading_number)
    raise Unfit(f"{value.form.value} cannot be used as a number")


def as_double(value: Value) -> Value:
    """Return a value as DOUBLE."""
    number = as_number(value)
    return number if number.form is ValueForm.DBL else mapped(number, ValueForm.DBL, _to_double)


def _to_double(data: Datum) -> Datum:
    if pa.types.is_decimal(data.type):
        # By its digits: the library's own way gives 0.30000000000000004 for 0.3.
        data = pc.cast(data, pa.large_utf8())
    return pc.cast(data, pa.float64(), safe=False)  # the nearest one, of numbers beyond 2**53


def as_decimal(value: Value) -> Value:
    """Return a value (not a DOUBLE) as a DECIMAL of the wide kind."""
    return mapped(as_number(value), ValueForm.DEC, _to_wide)


def _to_wide(data: Datum) -> Datum:
    kind = data.type
    if pa.types.is_decimal256(kind):
        return data
    if pa.types.is_decimal(kind):
        return pc.cast(data, pa.decimal256(kind.precision, kind.scale))
    return pc.cast(data, pa.decimal256(19, 0))


def with_room(data: Datum, more: int = 1) -> Datum:
    """Return DECIMALs with room for further digits, which 9.9 needs when it is rounded up."""
    kind = data.type
    if not pa.types.is_decimal(kind):
        return data
    return pc.cast(data, pa.decimal256(min(kind.precision + more, MOST_DIGITS), kind.scale))


def digit(number: int, kind: pa.DataType) -> pa.Scalar:
    """Return 0 or 1 so that it can be compared with numbers of a type."""
    if not pa.types.is_decimal(kind):
        return pa.scalar(number, kind)
    narrow = pa.decimal256 if pa.types.is_decimal256(kind) else pa.decimal128
    return pa.scalar(Decimal(number), narrow(1, 0))


def as_truth(value: Value) -> Value:
    """Return whether a value is true, as AND, OR, NOT and IF see it."""
    if value.form is ValueForm.BOOL:
        return value
    if value.form is ValueForm.NULL:
        return mapped(value, ValueForm.BOOL, lambda d: d.cast(pa.bool_()))
    return mapped(as_number(value), ValueForm.BOOL, lambda d: pc.not_equal(d, digit(0, d.type)))


def as_text(value: Value) -> Value:
    """Return a value as text.

    Raises:
        Unfit: a DOUBLE (servers do not agree on its digits) or JSON.
    """
    if value.form is ValueForm.TEXT:
        return value
    if value.form in (ValueForm.DBL, ValueForm.OPAQUE):
        raise Unfit(f"{value.form.value} cannot be used as text")
    if value.form is ValueForm.BYTES:
        raise Unfit("binary text cannot be used as characters")
    if value.in_bits:
        raise Unfit("a BIT cannot be used as text; compare it with a number")
    source = as_number(value) if value.form is ValueForm.BOOL else value
    return mapped(source, ValueForm.TEXT, lambda d: pc.cast(d, pa.large_utf8()))


def as_bytes(value: Value) -> Value:
    """Return a value as bytes, for comparing them one by one."""
    if value.form is ValueForm.BYTES:
        return value
    return mapped(as_text(value), ValueForm.BYTES, lambda d: pc.cast(d, pa.large_binary()))


def as_moment(value: Value) -> Value:
    """Return dates and date literals as `YYYY-MM-DD hh:mm:ss.ffffff`, which order as text does.

    Raises:
        Unfit: no date, and no literal that says one.
    """
    if value.form is ValueForm.NULL:
        return mapped(value, ValueForm.DATETIME, lambda d: d.cast(pa.large_utf8()))
    if value.literal is not None and value.form in (ValueForm.TEXT, ValueForm.INT, *MOMENTS):
        return replace(constant(moment_text(str(value.literal)), value.at), form=ValueForm.DATETIME)
    if value.form is ValueForm.DATE:
        return mapped(value, ValueForm.DATETIME, lambda d: _joined(d, " 00:00:00.000000"))
    if value.form is ValueForm.DATETIME:
        return mapped(value, ValueForm.DATETIME, _with_six_digits)
    raise Unfit(f"{value.form.value} cannot be compared with a date; write the date as a literal")


def _joined(texts: Datum, tail: str) -> Datum:
    empty = pa.scalar("", pa.large_utf8())
    return pc.binary_join_element_wise(texts, pa.scalar(tail, pa.large_utf8()), empty)


def _with_six_digits(texts: Datum) -> Datum:
    dotted = pc.if_else(pc.equal(pc.binary_length(texts), 19), _joined(texts, "."), texts)
    return pc.ascii_rpad(dotted, width=26, padding="0")


def as_micros(value: Value) -> Value:
    """Return a TIME, or a literal that says one, in microseconds."""
    if value.literal is not None and value.form in (ValueForm.TEXT, ValueForm.TIME):
        return constant(time_micros(str(value.literal)), value.at)
    if value.form is ValueForm.NULL:
        return mapped(value, ValueForm.INT, lambda d: d.cast(pa.int64()))
    if value.form is ValueForm.TIME:
        return mapped(value, ValueForm.INT, _micros)
    raise Unfit(f"{value.form.value} cannot be compared with a TIME; write it as a literal")


_TIME_PARTS = r"^(?P<sign>-?)(?P<h>[0-9]+):(?P<m>[0-9]+):(?P<s>[0-9]+)(?:\.(?P<f>[0-9]+))?$"


def _micros(texts: Datum) -> Datum:
    parts = pc.extract_regex(texts, pattern=_TIME_PARTS)

    def part(number: int) -> Datum:
        return pc.struct_field(parts, [number])

    hours, minutes, seconds = (pc.cast(part(n), pa.int64()) for n in (1, 2, 3))
    micros = pc.cast(pc.ascii_rpad(part(4), width=6, padding="0"), pa.int64())
    total = pc.add(pc.multiply(pc.add(pc.multiply(hours, 60), minutes), 60), seconds)
    total = pc.add(pc.multiply(total, 1_000_000), micros)
    return pc.if_else(pc.equal(part(0), "-"), pc.negate(total), total)


def time_part(texts: Datum, number: int) -> Datum:
    """Return hours (1), minutes (2) or seconds (3) of TIMEs, without their sign."""
    parts = pc.extract_regex(texts, pattern=_TIME_PARTS)
    return pc.cast(pc.struct_field(parts, [number]), pa.int64())


# --- texts ---------------------------------------------------------------------------------------


def folded(texts: Datum) -> Datum:
    """Return texts without the differences of case and accent, as `_ci` collations see them."""
    if _is_ascii(texts):
        return pc.ascii_upper(texts)
    bare = pc.replace_substring_regex(
        pc.utf8_normalize(texts, form="NFD"), pattern=r"\p{Mn}+", replacement=""
    )
    return pc.utf8_upper(bare)


def _is_ascii(texts: Datum) -> bool:
    if isinstance(texts, pa.Scalar):
        return texts.as_py() is None or texts.as_py().isascii()
    return pc.all(pc.string_is_ascii(texts)).as_py() is not False


def comparable(value: Value, sensitive: bool) -> Value:
    """Return texts so that equal bytes mean equal texts; trailing spaces do not count."""
    plain = as_text(value)

    def change(texts: Datum) -> Datum:
        trimmed = pc.ascii_rtrim(texts, characters=" ")
        return trimmed if sensitive else folded(trimmed)

    return mapped(plain, ValueForm.TEXT, change)


# --- one form for several values -----------------------------------------------------------------


def common_form(values: Sequence[Value]) -> tuple[ValueForm, Callable[[Value], Value]]:
    """Return the form that alternatives (of IF, CASE, COALESCE) share, and the way there."""
    forms = {v.form for v in values} - {ValueForm.NULL}
    if not forms or forms == {ValueForm.BOOL}:
        return ValueForm.BOOL, as_truth
    if forms <= set(NUMBERS):
        if ValueForm.DBL in forms:
            return ValueForm.DBL, as_double
        if ValueForm.DEC in forms:
            return ValueForm.DEC, as_decimal
        return ValueForm.INT, as_number
    if len(forms) == 1:
        form = forms.pop()
        kind = pa.large_binary() if form is ValueForm.BYTES else pa.large_utf8()
        return (
            form,
            lambda v: mapped(v, form, lambda d: d.cast(kind)) if v.form is ValueForm.NULL else v,
        )
    if forms == set(MOMENTS):
        return ValueForm.DATETIME, as_moment
    if ValueForm.BYTES in forms:
        return ValueForm.BYTES, as_bytes
    return ValueForm.TEXT, as_text


def same_scale(data: Sequence[Datum]) -> list[Datum]:
    """Return DECIMALs with one precision and scale, as kernels that choose need them."""
    kinds = [d.type for d in data]
    if not all(pa.types.is_decimal(k) for k in kinds):
        return list(data)
    scale = max(k.scale for k in kinds)
    whole = max(k.precision - k.scale for k in kinds)
    wide = pa.decimal256(whole + scale, scale)
    return [pc.cast(d, wide) for d in data]
