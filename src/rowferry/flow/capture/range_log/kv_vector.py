"""Vectors as text."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from rowferry.columnar.number_text import put_float, shortest
from rowferry.columnar.packed import Bytes, Longs, compiled, i64, le32
from rowferry.flow.capture.range_log.kv_bytes import BAD_VECTOR, VALUE, fault

_FLOAT_ROOM: Final = 64  # the same of a float without exponent, and a comma


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
    bad, count = _vector_numbers(raw, at, size, form, numbers)
    if bad:
        return bad, np.empty(0, np.uint8)
    digits = shortest(numbers[:count].view(np.float32))
    out = np.empty(int(count) * _FLOAT_ROOM + 2 * len(at), np.uint8)
    _vectors(size, form, *digits, offsets, out)
    return 0, out
