"""Shortest decimal digits of floats, compiled: the fewest digits that read back as the same value.

Of several shortest ones the nearest is taken (round half to even on a tie), as Go and Python do.
The method is to scale the rounding interval by a power of ten held to 126 bits, with sticky
rounding.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rowferry.columnar.memory import Bytes, Ints, compiled, frozen, multiply_high

PLAIN = 0  # never an exponent
GENERAL = 1  # an exponent below 1e-4 and from 1e21
NUMBER = 2  # an exponent below 1e-6 and from 1e21

_LOWEST, _HIGHEST = -324, 292  # powers of ten that doubles and floats can ask for


def _scale(k: int) -> int:
    """Return 10^-k as a 126-bit integer, rounded up."""
    if k > 0:
        tens: int = 10**k
        scaled = (1 << 126 + tens.bit_length()) // tens
        return (scaled >> (scaled.bit_length() - 126)) + 1
    power: int = 10**-k
    extra = power.bit_length() - 126
    return ((power >> extra) if extra > 0 else (power << -extra)) + 1


_SCALES = [_scale(k) for k in range(_LOWEST, _HIGHEST + 1)]
_UPPER = np.array([g >> 63 for g in _SCALES], np.uint64)
_LOWER = np.array([g & ((1 << 63) - 1) for g in _SCALES], np.uint64)
_U0, _U1, _U2, _U10, _U63 = (np.uint64(v) for v in (0, 1, 2, 10, 63))
_LOW63 = np.uint64((1 << 63) - 1)
_ZERO, _NINE = np.uint64(0), np.uint64(9)


@compiled
def _times(upper: Any, lower: Any, factor: Any) -> Any:
    """Return scale × factor / 2^127, rounded to odd so that later comparisons stay exact."""
    low = (upper * factor >> _U1) + multiply_high(lower, factor)
    high = multiply_high(upper, factor) + (low >> _U63)
    return high | (((low & _LOW63) + _LOW63) >> _U63)


@compiled
def _shortest(mantissa: Any, exponent: Any, uneven: Any) -> Any:
    """Return (digits, power of ten) of mantissa × 2^exponent, with trailing zeros cut.

    `uneven`: the value below is nearer than the value above (mantissa is a power of two).
    """
    # floor(log10(2^e)) and floor(log10(3/4 × 2^e)), by multiplication
    power = (exponent * 661971961083 - (274743187321 if uneven else 0)) >> 41
    shift = np.uint64(exponent + ((-power * 913124641741) >> 38) + 2)
    upper, lower = _UPPER[power - _LOWEST], _LOWER[power - _LOWEST]
    outside = mantissa & _U1  # an odd mantissa does not own the ends of its interval
    middle = mantissa << _U2
    value = _times(upper, lower, middle << shift)
    below = _times(upper, lower, (middle - (_U1 if uneven else _U2)) << shift) + outside
    above = _times(upper, lower, (middle + _U2) << shift) - outside
    floor = value >> _U2
    tens = floor // _U10 * _U10
    digits = floor
    low_fits = tens > _ZERO and below <= tens << _U2
    high_fits = (tens + _U10) << _U2 <= above
    if low_fits != high_fits:
        digits = tens if low_fits else tens + _U10
    else:
        low_fits = below <= floor << _U2
        high_fits = (floor + _U1) << _U2 <= above
        if low_fits != high_fits:
            digits = floor if low_fits else floor + _U1
        else:
            half = (floor << _U2) + _U2
            if value > half or (value == half and floor & _U1 == _U1):
                digits = floor + _U1
    while digits % _U10 == _ZERO:
        digits //= _U10
        power += 1
    return digits, power


@compiled
def _count(digits: Any) -> int:
    count = 1
    while digits > _NINE:
        digits //= _U10
        count += 1
    return count


@compiled
def _has_exponent(point: int, style: int) -> bool:
    if style == PLAIN:
        return False
    return bool(point - 1 < (-4 if style == GENERAL else -6) or point - 1 >= 21)


@compiled
def _size(negative: bool, count: int, power: Any, style: int) -> Any:
    """Return the length of the text that `_write` makes."""
    point = count + power  # digits before the point
    if _has_exponent(point, style):
        exponent = abs(point - 1)
        size = count + (1 if count > 1 else 0) + 2 + (3 if exponent > 99 else 2)
    elif power >= 0:
        size = count + power
    elif point > 0:
        size = count + 1
    else:
        size = 2 - point + count
    return size + (1 if negative else 0)


@compiled
def _write(
    out: Bytes, at: int, negative: bool, digits: Any, count: int, power: int, style: int
) -> None:
    if negative:
        out[at] = 45
        at += 1
    point = count + power
    if _has_exponent(point, style):
        end = at + count + (1 if count > 1 else 0)
        out[end] = 101
        out[end + 1] = 45 if point < 1 else 43
        rest = abs(point - 1)
        if rest > 99:
            out[end + 2] = 48 + rest // 100
            end += 1
        out[end + 2] = 48 + rest // 10 % 10
        out[end + 3] = 48 + rest % 10
        point = 1
    elif power >= 0:
        for i in range(at + count, at + count + power):
            out[i] = 48
        point = count
    elif point <= 0:
        for i in range(at, at + 2 - point):
            out[i] = 48
        out[at + 1] = 46
        at += 2 - point
        point = count
    last = at + count - (0 if point < count else 1)
    for i in range(count - 1, -1, -1):
        if i == point - 1 and point < count:
            out[last] = 46
            last -= 1
        out[last] = np.uint8(48) + np.uint8(digits % _U10)
        digits //= _U10
        last -= 1


@compiled
def _digits64(bits: Any, digits: Any, powers: Ints, offsets: Ints, style: int) -> None:
    for i in range(len(bits)):
        word = bits[i]
        fraction = word & np.uint64((1 << 52) - 1)
        exponent = np.int64((word >> np.uint64(52)) & np.uint64(2047))
        negative = word >> _U63 == _U1
        significand, power = _U0, np.int64(0)
        if exponent == 2047:
            negative = False  # NaN and infinities have no decimal text: 0
        elif exponent != 0:
            uneven = fraction == _ZERO and exponent > 1
            significand, power = _shortest(fraction | np.uint64(1 << 52), exponent - 1075, uneven)
        elif fraction != _ZERO:
            significand, power = _shortest(fraction, -1074, False)
        digits[i], powers[i] = significand, power
        offsets[i + 1] = offsets[i] + _size(negative, _count(significand), power, style)


@compiled
def _digits32(bits: Any, digits: Any, powers: Ints, offsets: Ints, style: int) -> None:
    for i in range(len(bits)):
        word = np.uint64(bits[i])
        fraction = word & np.uint64((1 << 23) - 1)
        exponent = np.int64((word >> np.uint64(23)) & np.uint64(255))
        negative = word >> np.uint64(31) == _U1
        significand, power = _U0, np.int64(0)
        if exponent == 255:
            negative = False
        elif exponent != 0:
            uneven = fraction == _ZERO and exponent > 1
            significand, power = _shortest(fraction | np.uint64(1 << 23), exponent - 150, uneven)
        elif fraction != _ZERO:
            significand, power = _shortest(fraction, -149, False)
        digits[i], powers[i] = significand, power
        offsets[i + 1] = offsets[i] + _size(negative, _count(significand), power, style)


@compiled
def _write_all(
    negative: Any, digits: Any, powers: Ints, offsets: Ints, out: Bytes, style: int
) -> None:
    for i in range(len(digits)):
        # a sign without digits of its own: "0" was sized for NaN, "-0" for a negative zero
        signed = negative[i] and offsets[i + 1] - offsets[i] == _size(
            True, _count(digits[i]), powers[i], style
        )
        _write(out, offsets[i], signed, digits[i], _count(digits[i]), powers[i], style)


def float_text(values: npt.NDArray[Any], style: int) -> pa.LargeStringArray:
    """Return the shortest text of each float32 or float64; NaN and infinities are `0`.

    Args:
        values: floats; whatever stands at NULL places is rendered too and must not be read.
        style: `PLAIN` or `GENERAL`.
    """
    count = len(values)
    digits, powers = np.empty(count, np.uint64), np.empty(count, np.int64)
    offsets = np.zeros(count + 1, np.int64)
    if values.dtype == np.float32:
        _digits32(frozen(values.view(np.uint32)), digits, powers, offsets, style)
    else:
        _digits64(frozen(values.view(np.uint64)), digits, powers, offsets, style)
    out = np.empty(int(offsets[-1]), np.uint8)
    _write_all(np.signbit(values), digits, powers, offsets, out, style)
    return pa.LargeStringArray.from_buffers(count, pa.py_buffer(offsets), pa.py_buffer(out))


def warm() -> None:
    """Compile every kernel of this module."""
    for kind in (np.float32, np.float64):
        float_text(np.array([1.5], kind), PLAIN)
