"""Comparisons and arithmetic of MySQL over columns of values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rowferry.flow.decide.expression_values import (
    MOMENTS,
    NUMBERS,
    Datum,
    ImageColumns,
    Unfit,
    Value,
    ValueForm,
    as_bytes,
    as_decimal,
    as_double,
    as_micros,
    as_moment,
    as_number,
    common_form,
    comparable,
    constant,
    digit,
    mapped,
    same_scale,
    with_room,
)

_TIMES: Final = frozenset({*MOMENTS, ValueForm.TIME})
_KERNELS: Final[dict[str, Any]] = {
    "=": pc.equal,
    "<>": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}


def compare(operator: str, one: Value, other: Value) -> Value:
    """Return the comparison of two values, by MySQL's rules for their types.

    Raises:
        Unfit: the two cannot be compared here.
    """
    left, right = comparable_pair(one, other)
    kernel = _null_safe if operator == "<=>" else _KERNELS[operator]
    return joined(ValueForm.BOOL, lambda a, b: kernel(a, b), left, right, at=one.at)


def comparable_pair(one: Value, other: Value) -> tuple[Value, Value]:
    """Return both values in the one form in which they are compared."""
    one, other = _whole_year(one, other), _whole_year(other, one)
    forms = {one.form, other.form}
    if ValueForm.OPAQUE in forms:
        raise Unfit("JSON and VECTOR columns can only be tested with IS NULL")
    if forms & set(MOMENTS):
        return as_moment(one), as_moment(other)
    if ValueForm.TIME in forms:
        return as_micros(one), as_micros(other)
    if ValueForm.NULL in forms:
        _, change = common_form([one, other])
        return change(one), change(other)
    if not forms & set(NUMBERS):
        if ValueForm.BYTES in forms:
            return as_bytes(one), as_bytes(other)
        sensitive = one.sensitive or other.sensitive
        return comparable(one, sensitive), comparable(other, sensitive)
    return _numbers(_whole_literal(one, other), _whole_literal(other, one))


def _whole_year(value: Value, other: Value) -> Value:
    """Return a constant of two digits beside a YEAR as the year that it means."""
    if not other.year or value.literal is None or value.form in (ValueForm.DEC, ValueForm.BYTES):
        return value
    try:
        number = int(value.literal)
    except ValueError:
        return value
    if not 1 <= number <= 99:
        return value
    return constant(number + (2000 if number < 70 else 1900), value.at)


def _whole_literal(value: Value, other: Value) -> Value:
    """Return a text like '12' as a number beside a whole one, so that no digit is lost."""
    if (
        value.form is ValueForm.TEXT
        and isinstance(value.literal, str)
        and other.form is ValueForm.INT
    ):
        digits = value.literal.strip()
        if digits.removeprefix("-").isdecimal() and digits.isascii():
            return constant(int(digits), value.at)
    return value


def _numbers(one: Value, other: Value) -> tuple[Value, Value]:
    left, right = as_number(one), as_number(other)
    forms = {left.form, right.form}
    if ValueForm.DBL in forms:
        return as_double(left), as_double(right)
    if ValueForm.DEC in forms:
        return as_decimal(left), as_decimal(right)
    return left, right


def _null_safe(one: Datum, other: Datum) -> Datum:
    same = pc.fill_null(pc.equal(one, other), False)
    return pc.or_(same, pc.and_(pc.is_null(one), pc.is_null(other)))


def joined(form: ValueForm, kernel: Callable[..., Datum], *values: Value, at: int = 0) -> Value:
    """Return a value made from several by a kernel."""
    runs = [v.run for v in values]

    def run(images: ImageColumns) -> Datum:
        return kernel(*(r(images) for r in runs))

    return Value(form, run, at=at, sensitive=any(v.sensitive for v in values))


def is_among(value: Value, options: Sequence[Value]) -> Value:
    """Return `value IN (options)`: NULL where no option fits and one of them is NULL."""
    equalities = [compare("=", value, option) for option in options]
    if len(equalities) > 8 and (quick := _among_constants(value, options)):
        return quick
    result = equalities[0]
    for one in equalities[1:]:
        result = joined(ValueForm.BOOL, pc.or_kleene, result, one, at=value.at)
    return result


def _among_constants(value: Value, options: Sequence[Value]) -> Value | None:
    """Return one look-up for many constants, where all are compared in the same form."""
    pairs = [comparable_pair(value, option) for option in options]
    forms = {(left.form, right.form) for left, right in pairs}
    if any(o.literal is None for o in options) or len(forms) > 1:
        return None
    left = pairs[0][0]
    if left.form not in (ValueForm.INT, ValueForm.TEXT, ValueForm.BYTES, ValueForm.DATETIME):
        return None
    nothing = ImageColumns(pa.array([], pa.struct([])))
    known = pa.array([right.run(nothing).as_py() for _, right in pairs], _arrow(left.form))

    def look_up(data: Datum) -> Datum:
        return pc.if_else(pc.is_null(data), pa.scalar(None, pa.bool_()), pc.is_in(data, known))

    return mapped(left, ValueForm.BOOL, look_up)


def _arrow(form: ValueForm) -> pa.DataType:
    kinds = {ValueForm.INT: pa.int64(), ValueForm.BYTES: pa.large_binary()}
    return kinds.get(form, pa.large_utf8())


def is_between(value: Value, low: Value, high: Value) -> Value:
    """Return `value BETWEEN low AND high`: with a number among them, texts count as numbers."""
    every = (value, low, high)
    forms = {v.form for v in every}
    if forms & set(NUMBERS) and forms & {ValueForm.TEXT, ValueForm.BYTES} and not forms & _TIMES:
        value, low, high = (as_double(v) for v in every)
    elif ValueForm.BYTES in forms and forms <= {ValueForm.TEXT, ValueForm.BYTES}:
        value, low, high = (as_bytes(v) for v in every)
    above, below = compare(">=", value, low), compare("<=", value, high)
    return joined(ValueForm.BOOL, pc.and_kleene, above, below, at=value.at)


# --- bits ----------------------------------------------------------------------------------------


def bitwise(operator: str, *operands: Value) -> Value:
    """Return the result of a bit operator: a whole number of 64 bits without a sign.

    Raises:
        Unfit: the operands are no whole numbers.
    """
    return joined(
        ValueForm.DEC,
        lambda *data: pc.cast(_BITS[operator](*data), pa.decimal128(20, 0)),
        *(_as_bits(one) for one in operands),
    )


def _as_bits(value: Value) -> Value:
    number = as_number(value)
    if number.form not in (ValueForm.INT, ValueForm.DEC):
        raise Unfit(f"bit operators need whole numbers, not {value.form.value}")
    return mapped(number, ValueForm.INT, _bits)


def _bits(data: Datum) -> Datum:
    if pa.types.is_integer(data.type):
        return pc.cast(data, pa.uint64(), safe=False)  # a negative number has its own bits
    whole = pc.round(with_room(data), round_mode="half_towards_infinity")
    zero = pa.scalar(Decimal(0), whole.type)
    below = pc.less(whole, zero)
    above = pc.cast(pc.if_else(below, zero, whole), pa.uint64())
    return pc.if_else(below, _bits(pc.cast(pc.if_else(below, whole, zero), pa.int64())), above)


def _shifted(kernel: Callable[[Datum, Datum], Datum]) -> Callable[[Datum, Datum], Datum]:
    most = pa.scalar(63, pa.uint64())

    def shift(one: Datum, places: Datum) -> Datum:
        shifted = kernel(one, pc.min_element_wise(places, most, skip_nulls=False))
        return pc.if_else(pc.greater(places, most), pa.scalar(0, pa.uint64()), shifted)

    return shift


_BITS: Final[dict[str, Callable[..., Datum]]] = {
    "|": lambda a, b: pc.bit_wise_or(a, b),
    "&": lambda a, b: pc.bit_wise_and(a, b),
    "^": lambda a, b: pc.bit_wise_xor(a, b),
    "~": lambda a: pc.bit_wise_not(a),
    "<<": _shifted(lambda a, b: pc.shift_left(a, b)),
    ">>": _shifted(lambda a, b: pc.shift_right(a, b)),
}
BIT_OPERATORS: Final = frozenset(_BITS)


# --- arithmetic ----------------------------------------------------------------------------------


def calculate(operator: str, one: Value, other: Value) -> Value:
    """Return the result of an arithmetic operator; a division by zero gives NULL.

    Raises:
        Unfit: the operands are no numbers.
    """
    left, right = _numbers(one, other)
    if operator in ("/", "div") and left.form is ValueForm.INT:
        if operator == "div":
            return joined(
                ValueForm.INT, lambda a, b: pc.divide_checked(a, _nonzero(b)), left, right
            )
        left, right = as_decimal(left), as_decimal(right)
    if operator == "div":
        return joined(ValueForm.INT, _whole_quotient, left, right)
    return joined(left.form, _ARITHMETIC[operator], left, right)


def negative(value: Value) -> Value:
    """Return `-value`."""
    number = as_number(value)
    return mapped(number, number.form, lambda d: pc.negate_checked(d))


def _nonzero(data: Datum) -> Datum:
    return pc.if_else(pc.equal(data, digit(0, data.type)), pa.scalar(None, data.type), data)


def _divide(one: Datum, other: Datum) -> Datum:
    if pa.types.is_decimal(one.type):
        return _divide_decimals(one, _nonzero(other))
    return pc.divide(one, _nonzero(other))


def _divide_decimals(one: Datum, other: Datum) -> Datum:
    """Divide as MySQL does: four digits more than the dividend has, rounded half up."""
    scale = one.type.scale
    digits = scale + 4
    # Arrow's quotient has the dividend's scale and the divisor's whole digits and one, cut off.
    if (lack := 4 - other.type.precision + other.type.scale) > 0:
        one = pc.cast(one, pa.decimal256(one.type.precision + lack, scale + lack))
    quotient = pc.divide(one, other)
    quotient = with_room(quotient)
    rounded = pc.round(quotient, ndigits=digits, round_mode="half_towards_infinity")
    excess = quotient.type.scale - digits
    return pc.cast(rounded, pa.decimal256(quotient.type.precision - excess, digits))


def _whole_quotient(one: Datum, other: Datum) -> Datum:
    return pc.cast(pc.trunc(pc.divide(one, _nonzero(other))), pa.int64())


def _remainder(one: Datum, other: Datum) -> Datum:
    """Return the remainder with the dividend's sign."""
    divisor = _nonzero(other)
    if pa.types.is_floating(one.type):
        return _float_remainder(one, divisor)
    if pa.types.is_integer(one.type):
        return pc.subtract(one, pc.multiply(pc.divide(one, divisor), divisor))
    one, divisor = same_scale([one, divisor])
    # With one scale, the quotient of the digits is the quotient of the numbers.
    times = pc.trunc(pc.divide(one, divisor))
    times = pc.cast(times, pa.decimal256(times.type.precision - times.type.scale, 0))
    return pc.subtract(one, pc.multiply(times, divisor))


def _float_remainder(one: Datum, other: Datum) -> Datum:
    zero = pa.scalar(0.0)
    null = pc.or_(pc.is_null(one), pc.is_null(other))
    left, right = pc.fill_null(one, zero), pc.fill_null(other, pa.scalar(1.0))
    remainder = np.fmod(_numpy(left), _numpy(right))
    plain = pa.scalar(float(remainder)) if remainder.ndim == 0 else pa.array(remainder)
    return pc.if_else(null, pa.scalar(None, pa.float64()), plain)


def _numpy(data: Datum) -> Any:
    return np.float64(data.as_py()) if isinstance(data, pa.Scalar) else data.to_numpy(False)


_ARITHMETIC: Final[dict[str, Callable[[Datum, Datum], Datum]]] = {
    "+": lambda a, b: pc.add_checked(a, b),
    "-": lambda a, b: pc.subtract_checked(a, b),
    "*": lambda a, b: pc.multiply_checked(a, b),
    "/": _divide,
    "%": _remainder,
}
