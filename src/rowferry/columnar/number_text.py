"""Numbers as text inside kernels: integers, and floating-point numbers with their shortest digits.

Arrow turns numbers into their shortest digits, many at once; a kernel brings these into the form
that the database writes.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rowferry.columnar.packed import Bytes, Longs, compiled, frozen, i64, u64

DOUBLE_ROOM: Final = 40  # bytes that a double's text can need


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
def fill_holes(
    text: Bytes,
    holes: Longs,
    digits: Bytes,
    digits_at: Longs,
    offsets: Longs,
    out: Bytes,
    tenths: bool,
) -> None:
    """Copy the documents, with the doubles' digits in their places; moves `offsets` along."""
    p, q, row = i64(0), i64(0), 0
    for k in range(len(holes) + 1):
        stop = holes[k] if k < len(holes) else i64(len(text))
        while row < len(offsets) and offsets[row] <= stop:
            offsets[row] += q - p
            row += 1
        for i in range(stop - p):
            out[q + i] = text[p + i]
        q += stop - p
        if k < len(holes):
            q = put_float(digits, digits_at[k], digits_at[k + 1], True, out, q, tenths)
            p = stop + 1
