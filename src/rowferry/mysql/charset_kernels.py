"""Strings of any character set as UTF-8, a column at a time.

Comes in: the strings' bytes in one array, and where each begins and the last one ends. Goes out:
the same in UTF-8. A character that cannot be is written as `?`.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from rowferry.columnar.addresses import (
    Bytes,
    Ints,
    Longs,
    address_of,
    compiled,
    frozen,
    i64,
    load_64,
)

# Entries of a code table that are no code points.
STRAY: Final = -1  # not the beginning of a character: `?` for this byte
UNMAPPED: Final = -2  # a whole character without a code point: `?` for it
LEAD: Final = -3  # the first byte of a character of two bytes
LEAD_3: Final = -4  # the first byte of a character of three bytes
LEAD_4: Final = -5  # the first byte of a character of two or four bytes

_QUESTION: Final = 63
_HIGH_BITS: Final = -0x7F7F7F7F7F7F7F80
_GB_BMP: Final = 39420  # four-byte codes of GB 18030 below this one are in the table
_GB_PLANES: Final = 189000  # from this one on they are the planes above the first


@compiled
def is_ascii(data: Bytes) -> bool:
    """Return whether no byte is above 127."""
    begin, size = address_of(data), i64(len(data))
    words = size >> 3
    seen = i64(0)
    for i in range(words):
        seen |= load_64(begin + (i << 3))
    for i in range(words << 3, size):
        if data[i] > 127:
            return False
    return seen & _HIGH_BITS == 0


@compiled
def _utf8_size(data: Bytes, p: int, end: int) -> int:
    """Return the bytes of the well-formed character at `p`; 0 if there is none."""
    first = i64(data[p])
    if first < 0x80:
        return 1
    size = i64(2) if first < 0xE0 else i64(3) if first < 0xF0 else i64(4)
    if first < 0xC2 or first > 0xF4 or p + size > end:
        return 0
    second = i64(data[p + 1])
    if second & 0xC0 != 0x80:
        return 0
    if (first == 0xE0 and second < 0xA0) or (first == 0xED and second > 0x9F):
        return 0  # a longer form than needed; half of a surrogate pair
    if (first == 0xF0 and second < 0x90) or (first == 0xF4 and second > 0x8F):
        return 0  # a longer form than needed; beyond the last code point
    for i in range(2, size):
        if data[p + i] & 0xC0 != 0x80:
            return 0
    return size


@compiled
def is_utf8(data: Bytes, offsets: Longs) -> bool:
    """Return whether every string is well-formed UTF-8 by itself."""
    for row in range(len(offsets) - 1):
        p, end = offsets[row], offsets[row + 1]
        while p < end:
            size = _utf8_size(data, p, end)
            if size == 0:
                return False
            p += size
    return True


@compiled
def repair_utf8(data: Bytes, offsets: Longs, ascii_only: bool, out: Bytes, begins: Longs) -> None:
    """Copy strings, with `?` for each byte that is part of no character; never longer."""
    q = i64(0)
    for row in range(len(offsets) - 1):
        begins[row] = q
        p, end = offsets[row], offsets[row + 1]
        while p < end:
            size = _utf8_size(data, p, end)
            if size == 0 or (ascii_only and size > 1):
                out[q] = _QUESTION
                p += 1
                q += 1
                continue
            for i in range(size):
                out[q + i] = data[p + i]
            p += size
            q += size
    begins[len(offsets) - 1] = q


@compiled
def _put(code: int, out: Bytes, q: int) -> int:
    """Write a code point as UTF-8; return the place after it."""
    if code < 0x80:
        out[q] = code
        return q + 1
    if code < 0x800:
        out[q] = 0xC0 | code >> 6
        out[q + 1] = 0x80 | code & 0x3F
        return q + 2
    if 0xD800 <= code < 0xE000 or code > 0x10FFFF:
        out[q] = _QUESTION
        return q + 1
    if code < 0x10000:
        out[q] = 0xE0 | code >> 12
        out[q + 1] = 0x80 | code >> 6 & 0x3F
        out[q + 2] = 0x80 | code & 0x3F
        return q + 3
    out[q] = 0xF0 | code >> 18
    out[q + 1] = 0x80 | code >> 12 & 0x3F
    out[q + 2] = 0x80 | code >> 6 & 0x3F
    out[q + 3] = 0x80 | code & 0x3F
    return q + 4


@compiled
def _four_bytes(data: Bytes, p: int, four: Ints) -> int:
    """Return the code point of four bytes of GB 18030; the first is a lead, and they are there."""
    a, b = i64(data[p]) - 0x81, i64(data[p + 1]) - 0x30
    c, d = i64(data[p + 2]) - 0x81, i64(data[p + 3]) - 0x30
    if b > 9 or c < 0 or c > 125 or d < 0 or d > 9:
        return STRAY
    place = ((a * 10 + b) * 126 + c) * 10 + d
    if place < _GB_BMP:
        return i64(four[place])
    code = place - _GB_PLANES + 0x10000
    return code if 0x10000 <= code <= 0x10FFFF else UNMAPPED


@compiled
def by_table(
    data: Bytes,
    offsets: Longs,
    one: Ints,
    two: Ints,
    three: Ints,
    four: Ints,
    out: Bytes,
    begins: Longs,
) -> None:
    """Convert strings by code tables; `out` must have three bytes for each one of `data`.

    `one` has an entry for each byte; `two` for each pair, `three` for each pair after a LEAD_3
    byte, `four` for the first four-byte codes; those that no entry of `one` asks for may be empty.
    """
    q = i64(0)
    for row in range(len(offsets) - 1):
        begins[row] = q
        p, end = offsets[row], offsets[row + 1]
        while p < end:
            code, size = i64(one[data[p]]), 1
            if code <= LEAD:
                kind, code = code, i64(STRAY)
                if kind == LEAD_3:
                    if p + 2 < end:
                        code, size = i64(three[i64(data[p + 1]) << 8 | i64(data[p + 2])]), 3
                elif p + 1 < end:
                    second = i64(data[p + 1])
                    if kind == LEAD_4 and 0x30 <= second <= 0x39:
                        if p + 3 < end:
                            code, size = _four_bytes(data, p, four), 4
                    else:
                        code, size = i64(two[i64(data[p]) << 8 | second]), 2
                if code == STRAY:
                    size = 1
            if code < 0:
                out[q] = _QUESTION
                q += 1
            else:
                q = _put(code, out, q)
            p += size
    begins[len(offsets) - 1] = q


@compiled
def from_wide(
    data: Bytes, offsets: Longs, unit: int, low_first: bool, out: Bytes, begins: Longs
) -> None:
    """Convert UTF-16 (`unit` 2) or UTF-32 (4); `out` must have two bytes for each one of `data`."""
    q = i64(0)
    for row in range(len(offsets) - 1):
        begins[row] = q
        p, end = offsets[row], offsets[row + 1]
        while p + unit <= end:
            code = _unit(data, p, unit, low_first)
            p += unit
            if unit == 2 and code & 0xFC00 == 0xD800 and p + 2 <= end:
                low = _unit(data, p, 2, low_first)
                if low & 0xFC00 == 0xDC00:
                    code = 0x10000 + ((code & 0x3FF) << 10) + (low & 0x3FF)
                    p += 2
            q = _put(code, out, q)
        if p < end:
            out[q] = _QUESTION
            q += 1
    begins[len(offsets) - 1] = q


@compiled
def _unit(data: Bytes, p: int, unit: int, low_first: bool) -> int:
    code = i64(0)
    for i in range(unit):
        code = code << 8 | i64(data[p + (unit - 1 - i if low_first else i)])
    return code


def warm() -> None:
    """Compile every kernel."""
    data, offsets = frozen(np.zeros(0, np.uint8)), frozen(np.zeros(1, np.int64))
    codes = frozen(np.zeros(0, np.int32))
    out, begins = np.zeros(0, np.uint8), np.zeros(1, np.int64)
    is_ascii(data)
    is_utf8(data, offsets)
    repair_utf8(data, offsets, False, out, begins)
    by_table(data, offsets, codes, codes, codes, codes, out, begins)
    from_wide(data, offsets, 2, False, out, begins)
