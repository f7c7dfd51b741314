"""Compiled renderers: a column of values becomes a column of text, before rows are written.

Each returns a large_utf8 array without NULLs; places that are NULL in the input hold some text that
nobody reads.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rowferry.columnar.memory import Bytes, Ints, compiled, frozen
from rowferry.errors import EncodeError

_BASE64 = np.frombuffer(
    b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", np.uint8
).copy()
_HEX = np.frombuffer(b"0123456789abcdef", np.uint8).copy()
_FRACTION = 6  # digits of a second that CSV writes
_U0, _U1 = np.uint64(0), np.uint64(1)


@compiled
def _sound(offsets: Ints, size: int) -> bool:
    """Return whether offsets never go back and stay inside `size` bytes."""
    if len(offsets) > 0 and (offsets[0] < 0 or offsets[-1] > size):
        return False
    for i in range(len(offsets) - 1):
        if offsets[i + 1] < offsets[i]:
            return False
    return True


@compiled
def _base64(offsets: Ints, data: Bytes, places: Ints, out: Bytes) -> None:
    for row in range(len(offsets) - 1):
        at, i, stop = places[row], offsets[row], offsets[row + 1]
        while i < stop:
            left = stop - i
            b0 = np.int64(data[i])
            b1 = np.int64(data[i + 1]) if left > 1 else 0
            b2 = np.int64(data[i + 2]) if left > 2 else 0
            out[at] = _BASE64[b0 >> 2]
            out[at + 1] = _BASE64[(b0 & 3) << 4 | b1 >> 4]
            out[at + 2] = _BASE64[(b1 & 15) << 2 | b2 >> 6] if left > 1 else 61
            out[at + 3] = _BASE64[b2 & 63] if left > 2 else 61
            at += 4
            i += 3


@compiled
def _hex(offsets: Ints, data: Bytes, out: Bytes) -> None:
    first = offsets[0]
    for i in range(first, offsets[-1]):
        out[2 * (i - first)] = _HEX[data[i] >> 4]
        out[2 * (i - first) + 1] = _HEX[data[i] & 15]


@compiled
def _set_sizes(masks: Any, bounds: Ints, offsets: Ints) -> None:
    for row in range(len(masks)):
        size = 0
        for e in range(len(bounds) - 1):
            if masks[row] >> np.uint64(e) & _U1 != _U0:
                size += bounds[e + 1] - bounds[e] + 1
        offsets[row + 1] = offsets[row] + max(size - 1, 0)


@compiled
def _set_names(masks: Any, bounds: Ints, names: Bytes, offsets: Ints, out: Bytes) -> None:
    for row in range(len(masks)):
        at, first = offsets[row], True
        for e in range(len(bounds) - 1):
            if masks[row] >> np.uint64(e) & _U1 == _U0:
                continue
            if not first:
                out[at] = 44
                at += 1
            first = False
            for i in range(bounds[e], bounds[e + 1]):
                out[at] = names[i]
                at += 1


@compiled
def _fraction_sizes(offsets: Ints, data: Bytes, places: Ints) -> None:
    for row in range(len(offsets) - 1):
        digits = -1  # no point yet
        for i in range(offsets[row], offsets[row + 1]):
            if digits >= 0:
                digits += 1
            elif data[i] == 46:
                digits = 0
        extra = _FRACTION + 1 if digits < 0 else max(_FRACTION - digits, 0)
        places[row + 1] = places[row] + offsets[row + 1] - offsets[row] + extra


@compiled
def _fractions(offsets: Ints, data: Bytes, places: Ints, out: Bytes) -> None:
    for row in range(len(offsets) - 1):
        at, pointed = places[row], False
        for i in range(offsets[row], offsets[row + 1]):
            out[at] = data[i]
            pointed |= data[i] == 46
            at += 1
        if not pointed:
            out[at] = 46
            at += 1
        for i in range(at, places[row + 1]):
            out[i] = 48


def text_buffers(array: pa.Array) -> tuple[Ints, Bytes]:
    """Return offsets and data of a large_utf8 or large_binary array, checked, without a copy."""
    if len(array) == 0:
        return frozen(np.zeros(1, np.int64)), frozen(np.zeros(0, np.uint8))
    _, where, what = array.buffers()
    offsets = np.frombuffer(where, np.int64)[array.offset : array.offset + len(array) + 1]
    offsets = frozen(offsets)
    data = frozen(np.frombuffer(what or b"", np.uint8))
    if len(offsets) != len(array) + 1 or not _sound(offsets, len(data)):
        raise EncodeError("a chunk's text lies outside its buffer")
    return offsets, data


def text_array(offsets: Ints, data: Bytes) -> pa.LargeStringArray:
    """Return offsets and data as a large_utf8 array, without a copy."""
    return pa.LargeStringArray.from_buffers(
        len(offsets) - 1, pa.py_buffer(offsets), pa.py_buffer(data)
    )


def _after(sizes: Ints) -> Ints:
    offsets = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=offsets[1:])
    return offsets


def base64_text(array: pa.LargeBinaryArray) -> pa.LargeStringArray:
    """Return standard padded base64 of each value."""
    offsets, data = text_buffers(array)
    places = _after((np.diff(offsets) + 2) // 3 * 4)
    out = np.empty(int(places[-1]), np.uint8)
    _base64(offsets, data, places, out)
    return text_array(places, out)


def hex_text(array: pa.LargeBinaryArray) -> pa.LargeStringArray:
    """Return lower-case hexadecimal of each value."""
    offsets, data = text_buffers(array)
    places = (offsets - offsets[0]) * 2
    out = np.empty(int(places[-1]), np.uint8)
    _hex(offsets, data, out)
    return text_array(places, out)


def set_text(masks: npt.NDArray[np.uint64], names: tuple[str, ...]) -> pa.LargeStringArray:
    """Return the names of each bitmask's elements, joined by commas."""
    encoded = [name.encode() for name in names]
    bounds = _after(np.array([len(e) for e in encoded], np.int64))
    pool = np.frombuffer(b"".join(encoded) or b"\0", np.uint8)
    masks, offsets = frozen(masks), np.zeros(len(masks) + 1, np.int64)
    _set_sizes(masks, bounds, offsets)
    out = np.empty(int(offsets[-1]), np.uint8)
    _set_names(masks, bounds, pool, offsets, out)
    return text_array(offsets, out)


def six_digit_text(array: pa.LargeStringArray) -> pa.LargeStringArray:
    """Return each date and time with six digits after the point."""
    offsets, data = text_buffers(array)
    places = np.zeros(len(offsets), np.int64)
    _fraction_sizes(offsets, data, places)
    out = np.empty(int(places[-1]), np.uint8)
    _fractions(offsets, data, places, out)
    return text_array(places, out)


def warm() -> None:
    """Compile every kernel of this module."""
    data = pa.array([b"ab"], pa.large_binary())
    base64_text(data)
    hex_text(data)
    set_text(np.array([3], np.uint64), ("a", "b"))
    six_digit_text(pa.array(["2020-01-01 00:00:00"], pa.large_utf8()))
