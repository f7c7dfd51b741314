"""Compiled readers of spans: where values stand in a file's bytes becomes columns of values.

A span is a start and an end in the data; a start of `NULL` or `MISSING` has no bytes. Tokenizers
make spans that lie inside the data; the readers here only look between start and end.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rowferry.columnar.memory import Bytes, Ints, compiled, frozen

NULL, MISSING = -1, -2
# How text stands in the data: as it is, with doubled marks, with backslashes, as JSON, as JSON
# whose characters are bytes.
PLAIN, DOUBLED, ESCAPED, JSON, JSON_BYTES = 0, 1, 2, 3, 4
_U10 = np.uint64(10)
_TOP = np.uint64((1 << 64) - 1)
_TOP_TENTH = np.uint64(((1 << 64) - 1) // 10)


def _nibbles(alphabet: bytes) -> Bytes:
    nibbles = np.full(256, 255, np.uint8)
    for value, byte in enumerate(alphabet):
        nibbles[byte] = value
    return nibbles


_HEX = _nibbles(b"0123456789abcdef")
_HEX[[ord(c) for c in "ABCDEF"]] = range(10, 16)
_BASE64 = _nibbles(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/")


@compiled
def _hex4(data: Bytes, at: int, end: int) -> Any:
    """Return the code unit of four hexadecimal digits, or -1."""
    if at + 4 > end:
        return -1
    unit = np.int64(0)
    for i in range(at, at + 4):
        if _HEX[data[i]] == 255:
            return -1
        unit = unit << 4 | np.int64(_HEX[data[i]])
    return unit


@compiled
def _put(out: Bytes, to: int, point: int) -> int:
    """Write a code point as UTF-8."""
    if point < 0x80:
        out[to] = point
        return to + 1
    if point < 0x800:
        out[to] = 0xC0 | point >> 6
        out[to + 1] = 0x80 | point & 0x3F
        return to + 2
    if point < 0x10000:
        out[to] = 0xE0 | point >> 12
        out[to + 1] = 0x80 | point >> 6 & 0x3F
        out[to + 2] = 0x80 | point & 0x3F
        return to + 3
    out[to] = 0xF0 | point >> 18
    out[to + 1] = 0x80 | point >> 12 & 0x3F
    out[to + 2] = 0x80 | point >> 6 & 0x3F
    out[to + 3] = 0x80 | point & 0x3F
    return to + 4


@compiled
def _json_escape(data: Bytes, i: int, end: int) -> Any:
    """Read what follows a backslash at `i - 1`; return (code point or -1, the next place)."""
    if i >= end:
        return -1, i
    byte = data[i]
    if byte == 117:
        point = _hex4(data, i + 1, end)
        i += 5
        if 0xD800 <= point < 0xDC00 and i + 1 < end and data[i] == 92 and data[i + 1] == 117:
            low = _hex4(data, i + 2, end)
            if 0xDC00 <= low < 0xE000:
                return 0x10000 + ((point - 0xD800) << 10) + low - 0xDC00, i + 6
        return (0xFFFD if 0xD800 <= point < 0xE000 else point), i
    point = np.int64(-1)
    if byte == 34 or byte == 92 or byte == 47:
        point = np.int64(byte)
    elif byte == 98:
        point = np.int64(8)
    elif byte == 102:
        point = np.int64(12)
    elif byte == 110:
        point = np.int64(10)
    elif byte == 114:
        point = np.int64(13)
    elif byte == 116:
        point = np.int64(9)
    return point, i + 1


@compiled
def unescape_json(data: Bytes, i: int, end: int, out: Bytes, to: int, as_bytes: bool) -> int:
    """Write what a JSON string's inside stands for; return the new place, or -1 if it is malformed.

    The result is never longer than the inside. `as_bytes`: each character is a byte.
    """
    while i < end:
        byte = data[i]
        i += 1
        if byte == 92:
            point, i = _json_escape(data, i, end)
            if point < 0 or (as_bytes and point > 255):
                return -1
            if as_bytes:
                out[to] = point
                to += 1
            else:
                to = _put(out, to, point)
        elif as_bytes and byte >= 0x80:
            if (byte != 0xC2 and byte != 0xC3) or i >= end or data[i] & 0xC0 != 0x80:
                return -1
            out[to] = (byte & 3) << 6 | data[i] & 0x3F
            to += 1
            i += 1
        else:
            out[to] = byte
            to += 1
    return to


@compiled
def _unescape_csv(data: Bytes, i: int, end: int, out: Bytes, to: int) -> int:
    while i < end:
        byte = data[i]
        i += 1
        if byte == 92:
            if i >= end:
                return -1
            byte = data[i]
            i += 1
            byte = np.uint8(13) if byte == 114 else (np.uint8(10) if byte == 110 else byte)
        out[to] = byte
        to += 1
    return to


@compiled
def _gather(
    data: Bytes, starts: Ints, ends: Ints, mode: int, mark: int, offsets: Ints, out: Bytes
) -> int:
    """Fill `out`; return -1, or the first row that is malformed."""
    to = 0
    for row in range(len(starts)):
        i, end = starts[row], ends[row]
        if i < 0:
            offsets[row + 1] = to
            continue
        if mode == JSON or mode == JSON_BYTES:
            to = unescape_json(data, i, end, out, to, mode == JSON_BYTES)
        elif mode == ESCAPED:
            to = _unescape_csv(data, i, end, out, to)
        else:
            while i < end:
                out[to] = data[i]
                to += 1
                i += 2 if mode == DOUBLED and data[i] == mark else 1
        if to < 0:
            return row
        offsets[row + 1] = to
    return -1


@compiled
def _whole(data: Bytes, starts: Ints, ends: Ints, signed: bool, out: Any) -> int:
    """Parse integers; return -1, or the first row that is none or too large."""
    for row in range(len(starts)):
        i, end = starts[row], ends[row]
        out[row] = np.uint64(0)
        if i < 0:
            continue
        negative = signed and i < end and data[i] == 45
        if negative:
            i += 1
        if i >= end:
            return row
        value = np.uint64(0)
        while i < end:
            digit = np.uint64(data[i]) - np.uint64(48)
            if digit >= _U10 or value > _TOP_TENTH or value * _U10 > _TOP - digit:
                return row
            value = value * _U10 + digit
            i += 1
        if signed and value > np.uint64((1 << 63) - 1) + np.uint64(negative):
            return row
        out[row] = ~value + np.uint64(1) if negative else value
    return -1


@compiled
def _unhex(offsets: Ints, data: Bytes, places: Ints, out: Bytes) -> int:
    for row in range(len(offsets) - 1):
        size = offsets[row + 1] - offsets[row]
        if size % 2:
            return row
        places[row + 1] = places[row] + size // 2
        for k in range(size // 2):
            high = _HEX[data[offsets[row] + 2 * k]]
            low = _HEX[data[offsets[row] + 2 * k + 1]]
            if high == 255 or low == 255:
                return row
            out[places[row] + k] = high << 4 | low
    return -1


@compiled
def _unbase64(offsets: Ints, data: Bytes, places: Ints, out: Bytes) -> int:
    for row in range(len(offsets) - 1):
        start, end = offsets[row], offsets[row + 1]
        to = places[row]
        if (end - start) % 4:
            return row
        for i in range(start, end, 4):
            word, pad = np.int64(0), 0
            for k in range(4):
                byte = data[i + k]
                if byte == 61 and i + 4 == end and k >= 2:
                    pad += 1
                    word <<= 6
                    continue
                if _BASE64[byte] == 255 or pad:
                    return row
                word = word << 6 | np.int64(_BASE64[byte])
            for k in range(3 - pad):
                out[to] = word >> (16 - 8 * k) & 255
                to += 1
        places[row + 1] = to
    return -1


def read_text(
    data: Bytes, starts: Ints, ends: Ints, mode: int, mark: int = 0
) -> tuple[Ints, Bytes, int]:
    """Return offsets and bytes of the values, and -1 or the first malformed row."""
    room = int(np.where(starts < 0, 0, ends - starts).sum())
    offsets, out = np.zeros(len(starts) + 1, np.int64), np.empty(room, np.uint8)
    wrong = _gather(frozen(data), starts, ends, mode, mark, offsets, out)
    return offsets, out, wrong


def read_whole(
    data: Bytes, starts: Ints, ends: Ints, signed: bool
) -> tuple[npt.NDArray[np.int64] | npt.NDArray[np.uint64], int]:
    """Return the values (int64 if signed, else uint64), and -1 or the first malformed row."""
    out = np.empty(len(starts), np.uint64)
    wrong = _whole(frozen(data), starts, ends, signed, out)
    return (out.view(np.int64) if signed else out), wrong


def read_packed(offsets: Ints, data: Bytes, base64: bool) -> tuple[Ints, Bytes, int]:
    """Return offsets and bytes of base64 or hex texts, and -1 or the first malformed row."""
    places, out = np.zeros(len(offsets), np.int64), np.empty(len(data), np.uint8)
    wrong = (_unbase64 if base64 else _unhex)(offsets, frozen(data), places, out)
    return places, out, wrong


def validity(starts: Ints) -> pa.Buffer | None:
    """Return the bitmap of rows that have a value; None if all have."""
    have = starts >= 0
    return None if have.all() else pa.py_buffer(np.packbits(have, bitorder="little"))


def warm() -> None:
    """Compile every kernel of this module."""
    data, starts, ends = np.frombuffer(b"00", np.uint8), np.zeros(1, np.int64), np.ones(1, np.int64)
    read_text(data, starts, ends, PLAIN)
    read_whole(data, starts, ends, True)
    offsets = np.array([0, 2], np.int64)
    read_packed(offsets, data, False)
    read_packed(offsets, data, True)
