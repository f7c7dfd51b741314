"""Numbers out of located bytes: integers, floats, decimals."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from rowferry.columnar.packed import (
    Bytes,
    Longs,
    Words,
    be64,
    compiled,
    decimal_bytes,
    i64,
    le16,
    le32,
    le64,
    u64,
)
from rowferry.flow.capture.range_log.kv_bytes import (
    BAD_DECIMAL,
    BAD_FLOAT,
    BAD_SIZE,
    KEY,
    MAX_DECIMAL_DIGITS,
    VALUE,
    fault,
)

SIGN = u64(1 << 63)


@compiled
def integers(
    raw: Bytes,
    at: Longs,
    size: Longs,
    form: Bytes,
    signed: bool,
    flipped: bool,
    out: Words,
) -> int:
    """Read one column's integers as 64-bit patterns; rows without a value get 0.

    `flipped`: keys hold them with the sign bit flipped.
    """
    for row in range(len(at)):
        p = at[row]
        if form[row] == KEY:
            bits = be64(raw, p)
            out[row] = bits ^ SIGN if flipped else bits
        elif form[row] != VALUE:
            out[row] = 0
        elif size[row] == 1:
            small = i64(raw[p])
            out[row] = u64(small - 256 if signed and small > 127 else small)
        elif size[row] == 2:
            small = le16(raw, p)
            out[row] = u64(small - 65536 if signed and small > 32767 else small)
        elif size[row] == 4:
            small = le32(raw, p)
            out[row] = u64(small - (1 << 32) if signed and small >= 1 << 31 else small)
        elif size[row] == 8:
            out[row] = le64(raw, p)
        else:
            return fault(row, BAD_SIZE)
    return 0


@compiled
def floats(raw: Bytes, at: Longs, size: Longs, form: Bytes, out: Words) -> int:
    """Read one column's numbers in the comparable form, as the bits of a double."""
    for row in range(len(at)):
        if form[row] != VALUE and form[row] != KEY:
            out[row] = 0
            continue
        if size[row] != 8:
            return fault(row, BAD_SIZE)
        bits = be64(raw, at[row])
        out[row] = bits ^ SIGN if bits & SIGN else ~bits
    return 0


@compiled
def narrow(wide: npt.NDArray[np.float64], out: npt.NDArray[np.float32]) -> int:
    """Turn doubles into floats; one that is too large for a float is a fault."""
    for row in range(len(wide)):
        out[row] = np.float32(wide[row])
        if np.isinf(out[row]) and not np.isinf(wide[row]):
            return fault(row, BAD_FLOAT)
    return 0


@compiled
def _unpack_decimal(raw: Bytes, p: int, size: int, out: Bytes) -> int:
    """Write all digits of a decimal to `out`, one a byte; return how many, or -1."""
    if size < 3:
        return -1
    precision, scale = i64(raw[p]), i64(raw[p + 1])
    if precision < 1 or precision > MAX_DECIMAL_DIGITS or scale > precision:
        return -1
    whole = precision - scale
    if size != 2 + decimal_bytes(whole) + decimal_bytes(scale):
        return -1
    p += 2
    mask = 0 if raw[p] & 0x80 else 0xFF
    first = 0x80
    q = i64(0)
    # The whole side has its odd group first, the fraction has it last; the very first bit is the
    # sign, so the first group is read with that bit flipped.
    for side in range(2):
        left = whole if side == 0 else scale
        while left > 0:
            take = i64(9)
            if side == 0 and left % 9:
                take = left % 9
            elif left < 9:
                take = left
            wide = decimal_bytes(take)
            flip = i64(mask)
            for _ in range(wide - 1):
                flip = flip << 8 | mask
            flip = flip ^ (i64(first) << (8 * (wide - 1)))
            first = 0
            number = i64(0)
            for i in range(wide):
                number = number << 8 | i64(raw[p + i])
            number = number ^ flip
            for i in range(take - 1, -1, -1):
                out[q + i] = np.uint8(number % 10)
                number //= 10
            if number != 0:
                return -1
            p += wide
            q += take
            left -= take
    return q


@compiled
def decimals(
    raw: Bytes,
    at: Longs,
    size: Longs,
    form: Bytes,
    precision: int,
    scale: int,
    offsets: Longs,
    out: Bytes,
) -> int:
    """Write one column's decimals as text with exactly `scale` digits after the point.

    `out` must have room for `precision + 3` bytes a row.
    """
    digits = np.empty(MAX_DECIMAL_DIGITS + 9, np.uint8)
    q = i64(0)
    for row in range(len(at)):
        offsets[row] = q
        if form[row] != VALUE and form[row] != KEY:
            continue
        p = at[row]
        count = _unpack_decimal(raw, p, size[row], digits)
        if count < 0:
            return fault(row, BAD_DECIMAL)
        stored = i64(raw[p + 1])
        whole = count - stored
        first = 0
        while first < whole and digits[first] == 0:
            first += 1
        if stored > scale or whole - first > precision - scale:
            return fault(row, BAD_DECIMAL)
        zero = True
        for i in range(first, count):
            zero = zero and digits[i] == 0
        if not raw[p + 2] & 0x80 and not zero:
            out[q] = 45
            q += 1
        if first == whole:
            out[q] = 48
            q += 1
        for i in range(first, whole):
            out[q] = 48 + digits[i]
            q += 1
        if scale:
            out[q] = 46
            q += 1
            for i in range(scale):
                out[q] = 48 + digits[whole + i] if i < stored else 48
                q += 1
    offsets[len(at)] = q
    return 0
