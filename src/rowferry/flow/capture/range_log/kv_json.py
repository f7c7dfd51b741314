"""Binary JSON and vectors as text.

A document is a type byte and a value. An object or array begins with its count and size; its
entries hold offsets from there, so a damaged one could point anywhere, also at itself: depth and
length of the text are limited by what a whole document of that size can need.

Shortest texts of floating-point numbers come from Arrow: a first pass collects the numbers and
finds how much room the text needs, Arrow turns all of them into digits at once, a second pass
writes.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rowferry.flow.capture.range_log.kv_bytes import (
    BAD_JSON,
    BAD_VECTOR,
    JSON_TOO_DEEP,
    VALUE,
    Bytes,
    Longs,
    compiled,
    fault,
    frozen,
    i64,
    le16,
    le32,
    le64,
    u64,
)
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
_DOUBLE_ROOM: Final = 40
_FLOAT_ROOM: Final = 64
_BASE64 = np.frombuffer(
    b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", np.uint8
)
_LITERAL_TEXT = np.frombuffer(LITERALS, np.uint8)
_OPAQUE_TEXT = np.frombuffer(b'"base64:type', np.uint8)


import numba
@numba.njit(inline="always",nogil=True)
def _put(out: Bytes, q: int, byte: int, writing: bool) -> int:
    if writing:
        out[q] = byte
    return q + 1


@compiled
def _put_string(raw: Bytes, p: int, size: int, out: Bytes, q: int, writing: bool) -> int:
    """Write a quoted string with JSON's escapes."""
    q = _put(out, q, 34, writing)
    i, end = p, p + size
    while i < end:
        byte = i64(raw[i])
        escape = 0
        if byte == 34 or byte == 92:
            escape = byte
        elif byte == 10:
            escape = 110
        elif byte == 13:
            escape = 114
        elif byte == 9:
            escape = 116
        elif byte == 8:
            escape = 98
        elif byte == 12:
            escape = 102
        if escape:
            q = _put(out, q, 92, writing)
            q = _put(out, q, escape, writing)
            i += 1
            continue
        code = -1
        if byte < 32:
            code = byte
        elif byte == 0xE2 and i + 2 < end and raw[i + 1] == 0x80 and raw[i + 2] & 0xFE == 0xA8:
            code = 0x2028 + (i64(raw[i + 2]) & 1)
            i += 2
        if code < 0:
            q = _put(out, q, byte, writing)
        else:
            q = _put(out, q, 92, writing)
            q = _put(out, q, 117, writing)
            for shift in range(12, -4, -4):
                digit = code >> shift & 15
                q = _put(out, q, 48 + digit if digit < 10 else 87 + digit, writing)
        i += 1
    return _put(out, q, 34, writing)


@compiled
def _put_integer(bits: int, signed: bool, out: Bytes, q: int, writing: bool) -> int:
    """Write an integer in decimal."""
    if signed and bits >> u64(63):
        q = _put(out, q, 45, writing)
        bits = ~bits + u64(1)
    digits, rest = 1, bits // u64(10)
    while rest:
        digits += 1
        rest //= u64(10)
    if writing:
        for i in range(digits - 1, -1, -1):
            out[q + i] = np.uint8(u64(48) + bits % u64(10))
            bits //= u64(10)
    return q + digits


@compiled
def _put_opaque(raw: Bytes, kind: int, p: int, size: int, out: Bytes, q: int, writing: bool) -> int:
    """Write bytes as "base64:typeN:..."."""
    for byte in _OPAQUE_TEXT:
        q = _put(out, q, byte, writing)
    q = _put_integer(u64(kind), False, out, q, writing)
    q = _put(out, q, 58, writing)
    for i in range(0, size, 3):
        left = min(size - i, 3)
        word = i64(0)
        for j in range(3):
            word = word << 8 | (i64(raw[p + i + j]) if j < left else 0)
        for j in range(4):
            sextet = word >> (18 - 6 * j) & 63
            q = _put(out, q, i64(_BASE64[sextet]) if j <= left else 61, writing)
    return _put(out, q, 34, writing)


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
def _put_moment(raw: Bytes, kind: int, p: int, out: Bytes, q: int, writing: bool) -> int:
    """Write a date or time inside a document: its fields stand in one 64-bit number."""
    room = out[q + 1 :] if writing else np.empty(32, np.uint8)
    bits = i64(le64(raw, p))
    if kind == DURATION:
        size = put_duration(room, 0, bits, 6)
        if size < 0:
            return -1
    else:
        year, month, day = bits >> 50 & 0x3FFF, bits >> 46 & 15, bits >> 41 & 31
        hour, minute, second = bits >> 36 & 31, bits >> 30 & 63, bits >> 24 & 63
        micro = bits >> 4 & 0xFFFFF
        if year > 9999 or month > 12 or hour > 23 or minute > 59 or second > 59:
            return -1
        if micro > 999_999:
            return -1
        size = put_date(room, 0, year, month, day)
        if kind != DATE:
            room[size] = 32
            size = put_clock(room, size + 1, hour, minute, second, micro, 6)
    q = _put(out, q, 34, writing) + size
    return _put(out, q, 34, writing)


@compiled
def _put_scalar(raw: Bytes, kind: int, p: int, end: int, out: Bytes, q: int, writing: bool) -> int:
    """Write any scalar but a double; return the place after it, or -1."""
    if kind == LITERAL:
        if p >= end or raw[p] > 2:
            return -1
        first = i64(raw[p]) * 4
        for i in range(first, first + (5 if first == 8 else 4)):
            q = _put(out, q, i64(_LITERAL_TEXT[i]), writing)
        return q
    if kind == STRING:
        size, p = _length(raw, p, end)
        return -1 if size < 0 else _put_string(raw, p, size, out, q, writing)
    if kind == OPAQUE:
        size, after = _length(raw, p + 1, end)
        return -1 if size < 0 else _put_opaque(raw, i64(raw[p]), after, size, out, q, writing)
    if p > end - (12 if kind == DURATION else 8):
        return -1
    if kind == INT64 or kind == UINT64:
        return _put_integer(le64(raw, p), kind == INT64, out, q, writing)
    if kind == DATE or kind == DATETIME or kind == TIMESTAMP or kind == DURATION:
        return _put_moment(raw, kind, p, out, q, writing)
    return -1


@compiled
def _put_float(text: Bytes, begin: int, end: int, exponents: bool, out: Bytes, q: int) -> int:
    """Write a number, given its shortest digits in any notation.

    With `exponents` as MySQL writes a JSON double (an exponent below 1e-15 and from 1e15, else at
    least one digit after the point), without as a plain number.
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
    scientific = exponents and count > 0 and (scale > 15 or scale < -14)
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
        q = _put_integer(u64(abs(scale - 1)), False, out, q, True)
    return q


@compiled
def _put_document(
    raw: Bytes,
    at: int,
    size: int,
    stack: Longs,
    numbers: npt.NDArray[np.float64],
    k: int,
    digits: Bytes,
    digits_at: Longs,
    out: Bytes,
    q: int,
    writing: bool,
) -> tuple[int, int]:
    """Write one document; return the places after it in `out` and in `numbers`, or (-reason, k)."""
    if size < 2:
        return -BAD_JSON, k
    limit = q + 12 * size + 64  # no whole document needs more, see the module's words
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
            q = _put(out, q, 123 if kind == OBJECT else 91, writing)
        elif kind == DOUBLE:
            if p > end - 8 or k >= len(numbers):
                return -BAD_JSON, k
            if writing:
                q = _put_float(digits, digits_at[k], digits_at[k + 1], True, out, q)
            else:
                numbers.view(np.uint64)[k] = le64(raw, p)
                if not np.isfinite(numbers[k]):
                    return -BAD_JSON, k
                q += _DOUBLE_ROOM
            k += 1
        else:
            q = _put_scalar(raw, kind, p, end, out, q, writing)
            if q < 0:
                return -BAD_JSON, k
        if q > limit:
            return -BAD_JSON, k
        while depth and stack[depth - 1, 4] == stack[depth - 1, 3]:
            depth -= 1
            q = _put(out, q, 125 if stack[depth, 0] == OBJECT else 93, writing)
        if depth == 0:
            return q, k
        top = depth - 1
        i, base, end = stack[top, 4], stack[top, 1], stack[top, 2]
        stack[top, 4] = i + 1
        if i:
            q = _put(out, q, 44, writing)
            q = _put(out, q, 32, writing)
        entry = base + 8 + 5 * i
        if stack[top, 0] == OBJECT:
            name, name_size = base + le32(raw, base + 8 + 6 * i), le16(raw, base + 12 + 6 * i)
            if name + name_size > end:
                return -BAD_JSON, k
            q = _put_string(raw, name, name_size, out, q, writing)
            q = _put(out, q, 58, writing)
            q = _put(out, q, 32, writing)
            entry += 6 * stack[top, 3]
        kind = i64(raw[entry])
        p = entry + 1 if kind == LITERAL else base + le32(raw, entry + 1)


@compiled
def _documents(
    raw: Bytes,
    at: Longs,
    size: Longs,
    form: Bytes,
    numbers: npt.NDArray[np.float64],
    digits: Bytes,
    digits_at: Longs,
    offsets: Longs,
    out: Bytes,
    writing: bool,
) -> tuple[int, int]:
    """Go over one column's documents; return a fault and how many doubles they hold."""
    stack = np.empty((MAX_DEPTH, 5), np.int64)
    q, k = i64(0), i64(0)
    for row in range(len(at)):
        offsets[row] = q
        if form[row] != VALUE:
            continue
        q, k = _put_document(
            raw, at[row], size[row], stack, numbers, k, digits, digits_at, out, q, writing
        )
        if q < 0:
            return fault(row, -q), k
    offsets[len(at)] = q
    return 0, k


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
            q = _put_float(digits, digits_at[k], digits_at[k + 1], False, out, q)
            k += 1
        out[q] = 93
        q += 1
    offsets[len(size)] = q


def _shortest(numbers: npt.NDArray[Any]) -> tuple[Bytes, Longs]:
    """Return the numbers' shortest digits: the texts' bytes and where each begins."""
    text = pa.array(numbers).cast(pa.large_string())
    _, offsets, digits = text.buffers()
    return (
        frozen(np.frombuffer(digits or b"", np.uint8)),
        frozen(np.frombuffer(offsets, np.int64, len(numbers) + 1)),
    )


def json_texts(
    raw: Bytes, at: Longs, size: Longs, form: Bytes, offsets: Longs
) -> tuple[int, Bytes]:
    """Return a fault or 0, and the texts that `offsets` then points into."""
    room = int(size[form == VALUE].sum())
    numbers = np.empty(room // 5 + 1, np.float64)  # a double inside a document takes 13 bytes
    no_digits = _shortest(numbers[:0])
    found, count = _documents(
        raw, at, size, form, numbers, *no_digits, offsets, np.empty(0, np.uint8), False
    )
    if found:
        return found, np.empty(0, np.uint8)
    digits = _shortest(numbers[:count])
    out = np.empty(offsets[-1], np.uint8)
    found, _ = _documents(raw, at, size, form, numbers, *digits, offsets, out, True)
    return found, out


def vector_texts(
    raw: Bytes, at: Longs, size: Longs, form: Bytes, offsets: Longs
) -> tuple[int, Bytes]:
    """Return a fault or 0, and the texts that `offsets` then points into."""
    numbers = np.empty(int(size[form == VALUE].sum()) // 4 + 1, np.uint32)
    found, count = _vector_numbers(raw, at, size, form, numbers)
    if found:
        return found, np.empty(0, np.uint8)
    digits = _shortest(numbers[:count].view(np.float32))
    out = np.empty(int(count) * _FLOAT_ROOM + 2 * len(at), np.uint8)
    _vectors(size, form, *digits, offsets, out)
    return 0, out
