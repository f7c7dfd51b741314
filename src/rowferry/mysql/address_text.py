"""Network addresses, UUIDs and vectors as text, a column at a time."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from rowferry.columnar.addresses import (
    Bytes,
    Longs,
    compiled,
    frozen,
    i64,
    u64,
)
from rowferry.columnar.number_text import put_float, put_integer, shortest
from rowferry.columnar.packed import le32

INET4: Final = 0
INET6: Final = 1
UUID: Final = 2
ADDRESS_ROOM: Final = 45  # the longest text of an address
_FLOAT_ROOM: Final = 64  # of a float without exponent, and a comma
_HEX = np.frombuffer(b"0123456789abcdef", np.uint8)


@compiled
def _put_inet4(raw: Bytes, p: int, out: Bytes, q: int) -> int:
    for i in range(4):
        if i:
            out[q] = 46
            q += 1
        q = put_integer(u64(raw[p + i]), False, out, q)
    return q


@compiled
def _put_group(number: int, out: Bytes, q: int) -> int:
    """Write up to four hexadecimal digits."""
    shift = i64(12)
    while shift and number >> shift == 0:
        shift -= 4
    while shift >= 0:
        out[q] = _HEX[number >> shift & 15]
        q += 1
        shift -= 4
    return q


@compiled
def _put_inet6(raw: Bytes, p: int, out: Bytes, q: int) -> int:
    """Write an IPv6 address: the first longest run of zeros is left out, IPv4 stays readable."""
    groups = np.empty(8, np.int64)
    for i in range(8):
        groups[i] = i64(raw[p + 2 * i]) << 8 | i64(raw[p + 2 * i + 1])
    gap, longest = i64(-1), i64(0)
    i = i64(0)
    while i < 8:
        run = i64(0)
        while i + run < 8 and groups[i + run] == 0:
            run += 1
        if run > longest:
            gap, longest = i, run
        i += run + 1
    mixed = gap == 0 and (longest == 6 or (longest == 5 and groups[5] == 0xFFFF))
    i = i64(0)
    while i < 8:
        if i == gap:
            out[q], out[q + 1] = 58, 58
            q += 2
            i += longest
            continue
        if i > 0 and i != gap + longest:
            out[q] = 58
            q += 1
        if mixed and i == 6:
            return _put_inet4(raw, p + 12, out, q)
        q = _put_group(groups[i], out, q)
        i += 1
    return q


@compiled
def _put_uuid(raw: Bytes, p: int, out: Bytes, q: int) -> int:
    for i in range(16):
        if i == 4 or i == 6 or i == 8 or i == 10:
            out[q] = 45
            q += 1
        byte = i64(raw[p + i])
        out[q], out[q + 1] = _HEX[byte >> 4], _HEX[byte & 15]
        q += 2
    return q


@compiled
def addresses(kind: int, raw: Bytes, at: Longs, offsets: Longs, out: Bytes) -> None:
    """Write a column of addresses; `out` must have `ADDRESS_ROOM` bytes for each value."""
    q, size = i64(0), 4 if kind == INET4 else 16
    for row in range(len(at) - 1):
        offsets[row] = q
        if at[row + 1] - at[row] != size:
            continue
        if kind == INET4:
            q = _put_inet4(raw, at[row], out, q)
        elif kind == INET6:
            q = _put_inet6(raw, at[row], out, q)
        else:
            q = _put_uuid(raw, at[row], out, q)
    offsets[len(at) - 1] = q


@compiled
def _vector_numbers(raw: Bytes, at: Longs, out: npt.NDArray[np.uint32]) -> int:
    """Collect all vectors' elements; return the row of one that cannot be, or -1."""
    k = i64(0)
    for row in range(len(at) - 1):
        if (at[row + 1] - at[row]) & 3:
            return row
        for p in range(at[row], at[row + 1], 4):
            bits = le32(raw, p)
            if bits >> 23 & 0xFF == 0xFF:  # no number
                return row
            out[k] = bits
            k += 1
    return -1


@compiled
def _vectors(
    at: Longs,
    present: npt.NDArray[np.bool_],
    digits: Bytes,
    digits_at: Longs,
    offsets: Longs,
    out: Bytes,
) -> None:
    """Write the vectors' texts from their elements' digits."""
    q, k = i64(0), i64(0)
    for row in range(len(present)):
        offsets[row] = q
        if not present[row]:
            continue
        out[q] = 91
        q += 1
        for i in range((at[row + 1] - at[row]) >> 2):
            if i:
                out[q] = 44
                q += 1
            q = put_float(digits, digits_at[k], digits_at[k + 1], False, out, q)
            k += 1
        out[q] = 93
        q += 1
    offsets[len(present)] = q


def vector_texts(raw: Bytes, at: Longs, present: npt.NDArray[np.bool_]) -> tuple[Bytes, Longs, int]:
    """Write a column of vectors (32-bit floats, low byte first) as text.

    Returns:
        The texts' bytes, where each begins, and the row of a vector that cannot be read, or -1.
    """
    count = int(at[-1]) // 4
    numbers = np.empty(count, np.uint32)
    offsets = np.zeros(len(at), np.int64)
    row = _vector_numbers(frozen(raw), frozen(at), numbers)
    if row >= 0:
        return np.empty(0, np.uint8), offsets, int(row)
    digits, digits_at = shortest(numbers.view(np.float32))
    out = np.empty(count * _FLOAT_ROOM + 2 * len(present), np.uint8)
    _vectors(frozen(at), frozen(present), digits, digits_at, offsets, out)
    return out, offsets, -1


def warm() -> None:
    """Compile every kernel."""
    raw, at = frozen(np.zeros(0, np.uint8)), frozen(np.zeros(1, np.int64))
    addresses(INET4, raw, at, np.zeros(1, np.int64), np.zeros(0, np.uint8))
    vector_texts(raw, at, np.zeros(0, np.bool_))
