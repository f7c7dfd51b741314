"""Binary JSON as text.

A document is a type byte and a value. An object or array begins with its count and size; its
entries hold offsets from there, so a damaged one could point anywhere, also at itself: depth and
length of the text are limited by what a whole document of that size can need.

Shortest texts of floating-point numbers come from Arrow: the walk over the documents collects the
numbers, Arrow turns all of them into digits at once, and a second pass puts these in their places.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from rowferry.columnar.number_text import DOUBLE_ROOM, fill_holes, put_integer, shortest
from rowferry.columnar.packed import Bytes, Longs, compiled, frozen, i64, le16, le32, le64, u64
from rowferry.flow.capture.range_log.kv_bytes import BAD_JSON, JSON_TOO_DEEP, VALUE, fault
from rowferry.flow.capture.range_log.kv_time import put_clock, put_date, put_duration

OBJECT: Final = 0x01
ARRAY: Final = 0x03
LITERAL: Final = 0x04
INT64: Final = 0x09
UINT64: Final = 0x0A
DOUBLE: Final = 0x0B
STRING: Final = 0x0C
OPAQUE: Final = 0x0D
DATE: Final = 0x0E
DATETIME: Final = 0x0F
TIMESTAMP: Final = 0x10
DURATION: Final = 0x11
LITERALS: Final = b"nulltruefalse"

MAX_DEPTH: Final = 100
_BASE64 = np.frombuffer(
    b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", np.uint8
)
_LITERAL_TEXT = np.frombuffer(LITERALS, np.uint8)
_ESCAPES = np.frombuffer(b"btn_fr", np.uint8)  # of the bytes 8 to 13
_OPAQUE_TEXT = np.frombuffer(b'"base64:type', np.uint8)


@compiled
def _put_string(raw: Bytes, p: int, size: int, out: Bytes, q: int) -> int:
    """Write a quoted string with JSON's escapes: at most six bytes for each, and two."""
    out[q] = 34
    q += 1
    i, end = p, p + size
    while i < end:
        byte = i64(raw[i])
        i += 1
        code = -1
        if byte < 32:
            code = byte
        elif byte == 34 or byte == 92:
            out[q] = 92
            q += 1
        elif byte == 0xE2 and i + 1 < end and raw[i] == 0x80 and raw[i + 1] & 0xFE == 0xA8:
            code = 0x2028 + (i64(raw[i + 1]) & 1)  # separators that JavaScript takes for line ends
            i += 2
        if code < 0:
            out[q] = byte
            q += 1
            continue
        out[q] = 92
        if 8 <= code <= 13 and code != 11:
            out[q + 1] = _ESCAPES[code - 8]
            q += 2
            continue
        out[q + 1] = 117
        for j in range(4):
            digit = code >> (12 - 4 * j) & 15
            out[q + 2 + j] = 48 + digit if digit < 10 else 87 + digit
        q += 6
    out[q] = 34
    return q + 1


@compiled
def _put_opaque(raw: Bytes, kind: int, p: int, size: int, out: Bytes, q: int) -> int:
    """Write bytes as "base64:typeN:..."."""
    for i in range(len(_OPAQUE_TEXT)):
        out[q + i] = _OPAQUE_TEXT[i]
    q = put_integer(u64(kind), False, out, q + len(_OPAQUE_TEXT))
    out[q] = 58
    q += 1
    for i in range(0, size, 3):
        left = min(size - i, 3)
        word = i64(0)
        for j in range(3):
            word = word << 8 | (i64(raw[p + i + j]) if j < left else 0)
        for j in range(4):
            out[q + j] = _BASE64[word >> (18 - 6 * j) & 63] if j <= left else 61
        q += 4
    out[q] = 34
    return q + 1


@compiled
def _length(raw: Bytes, p: int, end: int) -> tuple[int, int]:
    """Read a length of 1-5 bytes; return it and the place after it, or (-1, p)."""
    found = i64(0)
    for i in range(5):
        if p + i >= end:
            return -1, p
        found |= (i64(raw[p + i]) & 127) << (7 * i)
        if raw[p + i] < 128:
            after = p + i + 1
            return (found, after) if found <= end - after else (-1, p)
    return -1, p


@compiled
def _put_moment(raw: Bytes, kind: int, p: int, out: Bytes, q: int) -> int:
    """Write a date or time inside a document: its fields stand in one 64-bit number."""
    bits = i64(le64(raw, p))
    out[q] = 34
    q += 1
    if kind == DURATION:
        q = put_duration(out, q, bits, 6)
        if q < 0:
            return -1
    else:
        year, month, day = bits >> 50 & 0x3FFF, bits >> 46 & 15, bits >> 41 & 31
        hour, minute, second = bits >> 36 & 31, bits >> 30 & 63, bits >> 24 & 63
        micro = bits >> 4 & 0xFFFFF
        if year > 9999 or month > 12 or hour > 23 or minute > 59 or second > 59:
            return -1
        if micro > 999_999:
            return -1
        q = put_date(out, q, year, month, day)
        if kind != DATE:
            out[q] = 32
            q = put_clock(out, q + 1, hour, minute, second, micro, 6)
    out[q] = 34
    return q + 1


@compiled
def _put_scalar(raw: Bytes, kind: int, p: int, end: int, out: Bytes, q: int) -> int:
    """Write any scalar but a double; return the place after it, or -1."""
    if kind == LITERAL:
        if p >= end or raw[p] > 2:
            return -1
        first, size = i64(raw[p]) * 4, 5 if raw[p] == 2 else 4
        for i in range(size):
            out[q + i] = _LITERAL_TEXT[first + i]
        return q + size
    if kind == STRING:
        size, p = _length(raw, p, end)
        return -1 if size < 0 else _put_string(raw, p, size, out, q)
    if kind == OPAQUE:
        size, after = _length(raw, p + 1, end)
        return -1 if size < 0 else _put_opaque(raw, i64(raw[p]), after, size, out, q)
    if p > end - (12 if kind == DURATION else 8):
        return -1
    if kind == INT64 or kind == UINT64:
        return put_integer(le64(raw, p), kind == INT64, out, q)
    if kind == DATE or kind == DATETIME or kind == TIMESTAMP or kind == DURATION:
        return _put_moment(raw, kind, p, out, q)
    return -1


@compiled
def _put_document(
    raw: Bytes,
    at: int,
    size: int,
    stack: Longs,
    numbers: npt.NDArray[np.float64],
    holes: Longs,
    k: int,
    out: Bytes,
    q: int,
) -> tuple[int, int]:
    """Write one document; `out` must have `_room(size)` bytes left.

    A double goes to `numbers`, and a byte in the text holds its place. Returns the places after
    the document in `out` and in `numbers`, or (-reason, k).
    """
    if size < 2:
        return -BAD_JSON, k
    limit = q + 12 * size + 64
    kind, p, end, depth = i64(raw[at]), at + 1, at + size, 0
    while True:
        if kind == OBJECT or kind == ARRAY:
            if p > end - 8:
                return -BAD_JSON, k
            count, length = le32(raw, p), le32(raw, p + 4)
            if length > end - p or 8 + count * (11 if kind == OBJECT else 5) > length:
                return -BAD_JSON, k
            if depth == MAX_DEPTH:
                return -JSON_TOO_DEEP, k
            stack[depth, 0], stack[depth, 1], stack[depth, 2] = kind, p, p + length
            stack[depth, 3], stack[depth, 4] = count, 0
            depth += 1
            out[q] = 123 if kind == OBJECT else 91
            q += 1
        elif kind == DOUBLE:
            if p > end - 8 or k >= len(numbers):
                return -BAD_JSON, k
            numbers.view(np.uint64)[k] = le64(raw, p)
            if not np.isfinite(numbers[k]):
                return -BAD_JSON, k
            holes[k] = q
            k += 1
            q += 1
        else:
            q = _put_scalar(raw, kind, p, end, out, q)
            if q < 0:
                return -BAD_JSON, k
        while depth and stack[depth - 1, 4] == stack[depth - 1, 3]:
            depth -= 1
            out[q] = 125 if stack[depth, 0] == OBJECT else 93
            q += 1
        if q > limit:
            return -BAD_JSON, k
        if depth == 0:
            return q, k
        top = depth - 1
        i, base, end = stack[top, 4], stack[top, 1], stack[top, 2]
        stack[top, 4] = i + 1
        if i:
            out[q], out[q + 1] = 44, 32
            q += 2
        entry = base + 8 + 5 * i
        if stack[top, 0] == OBJECT:
            name, name_size = base + le32(raw, base + 8 + 6 * i), le16(raw, base + 12 + 6 * i)
            if name + name_size > end:
                return -BAD_JSON, k
            q = _put_string(raw, name, name_size, out, q)
            out[q], out[q + 1] = 58, 32
            q += 2
            if q > limit:
                return -BAD_JSON, k
            entry += 6 * stack[top, 3]
        kind = i64(raw[entry])
        p = entry + 1 if kind == LITERAL else base + le32(raw, entry + 1)


@compiled
def _room(size: int) -> int:
    """Return how many bytes a document may touch: its limit, one more string, and brackets."""
    return 18 * size + 512


@compiled
def _documents(
    raw: Bytes,
    at: Longs,
    size: Longs,
    form: Bytes,
    numbers: npt.NDArray[np.float64],
    holes: Longs,
    offsets: Longs,
    out: Bytes,
    row: int,
    k: int,
) -> tuple[int, int, int]:
    """Write documents from `row` on; return a fault, the row where `out` is full, the doubles."""
    stack = np.empty((MAX_DEPTH, 5), np.int64)
    while row < len(at):
        q = offsets[row]
        if form[row] == VALUE:
            if len(out) - q < _room(size[row]):
                break
            q, k = _put_document(raw, at[row], size[row], stack, numbers, holes, k, out, q)
            if q < 0:
                return fault(row, -q), row, k
        row += 1
        offsets[row] = q
    return 0, row, k


def json_texts(
    raw: Bytes, at: Longs, size: Longs, form: Bytes, offsets: Longs
) -> tuple[int, Bytes]:
    """Return a fault or 0, and the texts that `offsets` then points into."""
    sizes = size[form == VALUE]
    total, largest = int(sizes.sum()), int(sizes.max(initial=0))
    numbers = np.empty(total // 5 + 1, np.float64)  # a double in an array or object takes 13 bytes
    holes = np.empty(len(numbers), np.int64)
    out = np.empty(2 * total + _room(largest), np.uint8)
    offsets[0] = row = count = 0
    while row < len(at):
        found, row, count = _documents(
            raw, at, size, form, numbers, holes, offsets, out, row, count
        )
        if found:
            return found, out
        if row < len(at):
            out = np.concatenate((out, np.empty(len(out), np.uint8)))
    if not count:
        return 0, out
    text = out[: offsets[-1]]
    out = np.empty(len(text) + DOUBLE_ROOM * count, np.uint8)
    fill_holes(text, holes[:count], *shortest(numbers[:count]), offsets, out, False)
    return 0, out


def warm() -> None:
    """Compile every kernel: one document that is a double takes all the ways."""
    raw = frozen(np.array([DOUBLE, 0, 0, 0, 0, 0, 0, 0, 0], np.uint8))
    at, size = np.zeros(1, np.int64), np.full(1, len(raw))
    json_texts(raw, at, size, np.full(1, VALUE, np.uint8), np.empty(2, np.int64))
