"""Compiled parts of open-protocol: JSON text that escapes little, quoted bytes, framed batches."""

from __future__ import annotations

from functools import cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rowferry.columnar.memory import Bytes, Ints, compiled, copy_bytes, frozen
from rowferry.columnar.render import text_array, text_buffers
from rowferry.flow.encode.kernels.row_writer import rune_size

VERSION: Final = 1
OVERHEAD: Final = 36  # what a queue adds to a message's key and value, at the most
_HEX = np.frombuffer(b"0123456789abcdef", np.uint8).copy()
_MOST = 5  # bytes that one quoted byte becomes: two backslashes, x, two digits
_TAGS, _TAGS_END = 0xE0000, 0xE0200
_SCRIPTS_END = 0x323B0  # nothing printable stands between here and the tags, nor after those
# What Unicode 15 has and the oldest Python's 14 does not; the format's writers go by 15.
_NEWER: Final = (
    "cf3 ece 10efd-10eff 1123f-11241 11b00-11b09 11f00-11f10 11f12-11f3a 11f3e-11f59 1342f "
    "13440-13455 1b132 1b155 1d2c0-1d2d3 1df25-1df2a 1e030-1e06d 1e08f 1e4d0-1e4f9 1f6dc "
    "1f774-1f776 1f77b-1f77f 1f7d9 1fa75-1fa77 1fa87-1fa88 1faad-1faaf 1fabb-1fabd 1fabf "
    "1face-1facf 1fada-1fadb 1fae8 1faf7-1faf8 2b739 31350-323af"
)


def _letters(pairs: bytes) -> Bytes:
    """Return, for each byte, the letter that stands for it after a backslash; 0 for none."""
    letters = np.zeros(256, np.uint8)
    letters[list(pairs[::2])] = list(pairs[1::2])
    return letters


_SHORT = _letters(b'\tt\nn\rr""\\\\')
_QUOTED = _letters(b'\aa\bb\tt\nn\vv\ff\rr""\\\\')


@cache
def _printable() -> tuple[Bytes, Bytes]:
    """Return which characters are printable: of all scripts, and of the tags beyond them."""
    scripts, tags = range(_SCRIPTS_END), range(_TAGS, _TAGS_END)
    made = (np.array([chr(c).isprintable() for c in part], np.uint8) for part in (scripts, tags))
    one, other = made
    for part in _NEWER.split():
        first, _, last = part.partition("-")
        one[int(first, 16) : int(last or first, 16) + 1] = 1
    return frozen(one), frozen(other)


# --- text ----------------------------------------------------------------------------------------


@compiled
def _any_special(data: Bytes, start: int, stop: int) -> bool:
    any_special = 0
    for i in range(start, stop):
        byte = data[i]
        any_special |= (byte < 32) | (byte == 34) | (byte == 92)
    return any_special != 0


@compiled
def _escaped_sizes(offsets: Ints, data: Bytes, places: Ints) -> None:
    for row in range(len(offsets) - 1):
        size = offsets[row + 1] - offsets[row]
        for i in range(offsets[row], offsets[row + 1]):
            byte = data[i]
            if byte < 32 or byte == 34 or byte == 92:
                size += 1 if _SHORT[byte] != 0 else 5
        places[row + 1] = places[row] + size


@compiled
def _escape(offsets: Ints, data: Bytes, out: Bytes) -> None:
    at = 0
    for i in range(offsets[0], offsets[-1]):
        byte = data[i]
        if byte >= 32 and byte != 34 and byte != 92:
            out[at] = byte
            at += 1
            continue
        out[at] = 92
        if _SHORT[byte] != 0:
            out[at + 1] = _SHORT[byte]
            at += 2
            continue
        out[at + 1], out[at + 2], out[at + 3] = 117, 48, 48
        out[at + 4], out[at + 5] = _HEX[byte >> 4], _HEX[byte & 15]
        at += 6


def escaped_text(array: pa.Array) -> pa.Array:
    """Return each text as a JSON string's inside: only quotes, backslashes and controls escaped.

    The array itself where nothing needs it.
    """
    offsets, data = text_buffers(array)
    if not _any_special(data, offsets[0], offsets[-1]):
        return array
    places = np.zeros(len(offsets), np.int64)
    _escaped_sizes(offsets, data, places)
    out = np.empty(int(places[-1]), np.uint8)
    _escape(offsets, data, out)
    return text_array(places, out)


@compiled
def _point(data: Bytes, i: int, size: int) -> Any:
    """Return the code point of the character of that size at `i`."""
    if size == 1:
        return np.int64(data[i])
    point = np.int64(data[i]) & (0xFF >> (size + 1))
    for k in range(i + 1, i + size):
        point = point << 6 | (np.int64(data[k]) & 0x3F)
    return point


@compiled
def _put_hex(out: Bytes, at: int, letter: int, value: Any, digits: int) -> int:
    """Write two backslashes (one, escaped), a letter and a number."""
    out[at], out[at + 1], out[at + 2] = 92, 92, letter
    for k in range(digits):
        out[at + 3 + k] = _HEX[value >> 4 * (digits - 1 - k) & 15]
    return at + 3 + digits


@compiled
def _quote_ascii(out: Bytes, at: int, byte: Any) -> int:
    letter = _QUOTED[byte]
    if letter != 0:
        out[at], out[at + 1] = 92, 92
        at += 2
        if letter == 34 or letter == 92:
            out[at] = 92
            at += 1
        out[at] = letter
        return at + 1
    if byte < 32 or byte == 127:
        return _put_hex(out, at, 120, byte, 2)
    out[at] = byte
    return at + 1


@compiled
def _quote(
    offsets: Ints, data: Bytes, scripts: Bytes, tags: Bytes, places: Ints, out: Bytes
) -> None:
    base, at = data.ctypes.data, 0
    for row in range(len(offsets) - 1):
        i, stop = offsets[row], offsets[row + 1]
        while i < stop:
            byte = np.int64(data[i])
            if byte < 128:
                at = _quote_ascii(out, at, byte)
                i += 1
                continue
            size = rune_size(base + i, stop - i)
            if size == 0:
                at = _put_hex(out, at, 120, byte, 2)
                i += 1
                continue
            point = _point(data, i, size)
            shown = point < len(scripts) and scripts[point] != 0
            if _TAGS <= point < _TAGS + len(tags):
                shown = tags[point - _TAGS] != 0
            if shown:
                for k in range(size):
                    out[at + k] = data[i + k]
                at += size
            elif point < 0x10000:
                at = _put_hex(out, at, 117, point, 4)
            else:
                at = _put_hex(out, at, 85, point, 8)
            i += size
        places[row + 1] = at


def quoted_bytes(array: pa.LargeBinaryArray) -> pa.LargeStringArray:
    """Return each value as Go quotes it, without its quotes, as a JSON string's inside."""
    offsets, data = text_buffers(array)
    scripts, tags = _printable()
    places = np.zeros(len(offsets), np.int64)
    out = np.empty(_MOST * int(offsets[-1] - offsets[0]), np.uint8)
    _quote(offsets, data, scripts, tags, places, out)
    return text_array(places, out[: places[-1]])


# --- frames --------------------------------------------------------------------------------------


@compiled
def _assign(
    keys: Ints, values: Ints, partitions: Any, most: int, limit: int, sizes: Any, owner: Ints
) -> int:
    """Say to which message each row goes; fill in the messages' sizes; return their number.

    `sizes` has a message's key bytes, value bytes and partition.
    """
    lanes = 0
    for p in partitions:
        lanes = max(lanes, p + 1)
    latest, held = np.full(lanes, -1, np.int64), np.zeros(lanes, np.int64)
    count = 0
    for row in range(len(partitions)):
        lane = partitions[row]
        key, value = keys[row + 1] - keys[row], values[row + 1] - values[row]
        one = latest[lane]
        if one >= 0:
            now = sizes[0, one] + sizes[1, one] + OVERHEAD
            if held[lane] >= most or now + key + value + 16 > limit:
                one = -1
        if one < 0:
            one = count
            count += 1
            latest[lane], held[lane] = one, 0
            sizes[0, one], sizes[1, one], sizes[2, one] = 8, 0, lane
        held[lane] += 1
        sizes[0, one] += 8 + key
        sizes[1, one] += 8 + value
        owner[row] = one
    return count


@compiled
def _put_length(out: Bytes, at: int, value: int) -> int:
    for k in range(8):
        out[at + k] = value >> (56 - 8 * k) & 255
    return at + 8


@compiled
def _fill(offsets: Ints, data: Bytes, owner: Ints, places: Ints, head: int, out: Bytes) -> None:
    """Write each row's length and bytes into its message; `head` bytes of version begin each."""
    base, source = out.ctypes.data, data.ctypes.data
    cursor = places[:-1].copy()
    if head > 0:
        for one in range(len(cursor)):
            cursor[one] = _put_length(out, cursor[one], VERSION)
    for row in range(len(owner)):
        one = owner[row]
        size = offsets[row + 1] - offsets[row]
        at = _put_length(out, cursor[one], size)
        copy_bytes(base + at, source + offsets[row], size)
        cursor[one] = at + size


def _framed(offsets: Ints, data: Bytes, owner: Ints, sizes: Ints, head: int) -> pa.LargeBinaryArray:
    places = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=places[1:])
    out = np.empty(int(places[-1]), np.uint8)
    _fill(offsets, data, owner, places, head, out)
    buffers = [None, pa.py_buffer(places), pa.py_buffer(out)]
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(sizes), buffers)


def frame(
    keys: pa.LargeBinaryArray,
    values: pa.LargeBinaryArray,
    partitions: npt.NDArray[np.int32],
    most: int,
    limit: int,
) -> tuple[pa.LargeBinaryArray, pa.LargeBinaryArray, npt.NDArray[np.int32]]:
    """Put rows of the same partition together into messages.

    Args:
        keys: one for every row, without NULLs.
        values: the same.
        partitions: of each row; none is negative.
        most: rows in a message.
        limit: bytes of a message with more than one row.

    Returns:
        Keys, values and partitions of the messages, in the order of their first rows.
    """
    count = len(values)
    if len(keys) != count or len(partitions) != count or (count and partitions.min() < 0):
        raise ValueError("keys, values and partitions do not belong together")
    key_offsets, key_data = text_buffers(keys)
    value_offsets, value_data = text_buffers(values)
    sizes, owner = np.zeros((3, count), np.int64), np.zeros(count, np.int64)
    lanes = frozen(np.ascontiguousarray(partitions, np.int32))
    made = _assign(key_offsets, value_offsets, lanes, most, limit, sizes, owner)
    return (
        _framed(key_offsets, key_data, owner, sizes[0, :made], 8),
        _framed(value_offsets, value_data, owner, sizes[1, :made], 0),
        sizes[2, :made].astype(np.int32),
    )


def warm() -> None:
    """Compile every kernel of this module."""
    escaped_text(pa.array(['"'], pa.large_utf8()))
    one = pa.array([b"\xc3\xa9"], pa.large_binary())
    quoted_bytes(one)
    frame(one, one, np.zeros(1, np.int32), 1, 1)
