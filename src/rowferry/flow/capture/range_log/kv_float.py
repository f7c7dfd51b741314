"""Floating-point numbers as their shortest text, and vectors, which are made of them.

Arrow turns numbers into their shortest digits, many at once; a kernel brings these into the form
that the database writes.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rowferry.flow.capture.range_log.kv_bytes import (
    BAD_VECTOR,
    VALUE,
    Bytes,
    Longs,
    compiled,
    fault,
    frozen,
    i64,
    le32,
    u64,
)

DOUBLE_ROOM: Final = 40  # bytes that a double's text can need
_FLOAT_ROOM: Final = 64  # the same of a float without exponent, and a comma


@compiled
def put_integer(bits: int, signed: bool, out: Bytes, q: int) -> int:
    """Write the 64 bits of an integer in decimal."""
    if signed and bits >> u64(63):
        out[q] = 45
        q += 1
        bits = ~bits + u64(1)
    digits, rest = 1, bits // u64(10)
    while rest:
        digits += 1
        rest //= u64(10)
    for i in range(digits - 1, -1, -1):
        out[q + i] = np.uint8(u64(48) + bits % u64(10))
        bits //= u64(10)
    return q + digits


@compiled
def put_float(
    text: Bytes,
    begin: int,
    end: int,
    exponents: bool,
    out: Bytes,
    q: int,
    tenths: bool = False,
) -> int:
    """Write a number, given its shortest digits in any notation.

    With `exponents` as TiDB writes a JSON double (an exponent below 1e-15 and from 1e15, else at
    least one digit after the point), without as a plain number. With `tenths` as MySQL does: a
    number from 1e15 that is not whole has no exponent either.
    """
    if text[begin] == 45:
        out[q] = 45
        begin, q = begin + 1, q + 1
    point, exponent, stop = -1, 0, end
    for i in range(begin, end):
        if text[i] == 46:
            point = i
        elif text[i] == 101:
            stop = i
            for j in range(i + 1, end):
                if text[j] >= 48:
                    exponent = exponent * 10 + i64(text[j]) - 48
            if text[i + 1] == 45:
                exponent = -exponent
    whole = (stop if point < 0 else point) - begin
    first = begin
    while first < stop and (text[first] == 48 or text[first] == 46):
        first += 1
    last = stop
    while last > first and (text[last - 1] == 48 or text[last - 1] == 46):
        last -= 1
    # The number is 0.DIGITS * 10**scale, DIGITS being text[first:last] without the point.
    count = last - first
    scale = whole + exponent - (first - begin)
    if point >= 0 and first > point:
        scale += 1
    if first < point < last:
        count -= 1
    if count == 0:
        scale = 1
    large = scale > 15 and not (tenths and count > scale)
    scientific = exponents and count > 0 and (large or scale < -14)
    before = 1 if scientific else max(scale, 1)  # digits before the point
    taken = first
    for _ in range(before):
        digit = 48
        if scale > 0 or scientific:
            if taken == point:
                taken += 1
            if taken < last:
                digit = i64(text[taken])
                taken += 1
        out[q] = digit
        q += 1
    if taken < last or (exponents and not scientific):
        out[q] = 46
        q += 1
        if taken >= last:
            out[q] = 48
            q += 1
        if not scientific:
            for _ in range(-scale):
                out[q] = 48
                q += 1
        for i in range(taken, last):
            if i != point:
                out[q] = text[i]
                q += 1
    if scientific:
        out[q] = 101
        q += 1
        if scale < 1:
            out[q] = 45
            q += 1
        q = put_integer(u64(abs(scale - 1)), False, out, q)
    return q


def shortest(numbers: npt.NDArray[Any]) -> tuple[Bytes, Longs]:
    """Return the numbers' shortest digits: the texts' bytes and where each begins."""
    text = pa.array(numbers).cast(pa.large_string())
    _, offsets, digits = text.buffers()
    return (
        frozen(np.frombuffer(digits or b"", np.uint8)),
        frozen(np.frombuffer(offsets, np.int64, len(numbers) + 1)),
    )


@compiled
def _vector_numbers(
    raw: Bytes, at: Longs, size: Longs, form: Bytes, out: npt.NDArray[np.uint32]
) -> tuple[int, int]:
    """Collect all vectors' elements; return a fault and how many they are."""
    k = i64(0)
    for row in range(len(at)):
        if form[row] != VALUE:
            continue
        p = at[row]
        if size[row] < 4 or size[row] != 4 + 4 * le32(raw, p):
            return fault(row, BAD_VECTOR), k
        for i in range(4, size[row], 4):
            bits = le32(raw, p + i)
            if bits >> 23 & 0xFF == 0xFF:
                return fault(row, BAD_VECTOR), k
            out[k] = bits
            k += 1
    return 0, k


@compiled
def _vectors(
    size: Longs, form: Bytes, digits: Bytes, digits_at: Longs, offsets: Longs, out: Bytes
) -> None:
    """Write the vectors' texts from their elements' digits."""
    q, k = i64(0), i64(0)
    for row in range(len(size)):
        offsets[row] = q
        if form[row] != VALUE:
            continue
        out[q] = 91
        q += 1
        for i in range(size[row] // 4 - 1):
            if i:
                out[q] = 44
                q += 1
            q = put_float(digits, digits_at[k], digits_at[k + 1], False, out, q)
            k += 1
        out[q] = 93
        q += 1
    offsets[len(size)] = q


def vector_texts(
    raw: Bytes, at: Longs, size: Longs, form: Bytes, offsets: Longs
) -> tuple[int, Bytes]:
    """Return a fault or 0, and the texts that `offsets` then points into."""
    numbers = np.empty(int(size[form == VALUE].sum()) // 4 + 1, np.uint32)
    found, count = _vector_numbers(raw, at, size, form, numbers)
    if found:
        return found, np.empty(0, np.uint8)
    digits = shortest(numbers[:count].view(np.float32))
    out = np.empty(int(count) * _FLOAT_ROOM + 2 * len(at), np.uint8)
    _vectors(size, form, *digits, offsets, out)
    return 0, out
