"""Binary JSON as the server's text: MySQL's own, and TiDB's, which differs in scalars.

A document is a type byte and a value. Objects and arrays begin with a count and a size; their
entries hold offsets from there, so a damaged one could point anywhere, also at itself: depth and
length of the text are limited by what a whole document of that size can need.

Shortest texts of floating-point numbers come from Arrow: the walk over the documents collects the
numbers, Arrow turns all of them into digits at once, and a second pass puts these in their places.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from rowferry.columnar.addresses import (
    BAD_JSON,
    JSON_TOO_DEEP,
    Bytes,
    Longs,
    address_of,
    compiled,
    frozen,
    i64,
    u64,
)
from rowferry.columnar.number_text import DOUBLE_ROOM, fill_holes, put_integer, shortest
from rowferry.columnar.packed import decimal_bytes, le16, le32, le64
from rowferry.columnar.packed_text import put_clock, put_date, put_decimal

MYSQL: Final = 0
TIDB: Final = 1  # no small forms; dates and times have kinds of their own

SMALL_OBJECT: Final = 0
LARGE_OBJECT: Final = 1
SMALL_ARRAY: Final = 2
LARGE_ARRAY: Final = 3
LITERAL: Final = 4
INT16: Final = 5
UINT16: Final = 6
INT32: Final = 7
UINT32: Final = 8
INT64: Final = 9
UINT64: Final = 10
DOUBLE: Final = 11
STRING: Final = 12
OPAQUE: Final = 15
# Kinds that TiDB has instead of the last one.
TIDB_OPAQUE: Final = 13
TIDB_DATE: Final = 14
TIDB_DATETIME: Final = 15
TIDB_TIMESTAMP: Final = 16
TIDB_DURATION: Final = 17
MAX_DEPTH: Final = 100

# Column types of opaque values that have a text of their own.
_TIMESTAMP, _DATE, _TIME, _DATETIME, _DECIMAL = 7, 10, 11, 12, 246
_LITERALS = np.frombuffer(b"nulltruefalse", np.uint8)
_ESCAPES = np.frombuffer(b"btn_fr", np.uint8)  # of the bytes 8 to 13
_OPAQUE = np.frombuffer(b'"base64:type', np.uint8)
_BASE64 = np.frombuffer(
    b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", np.uint8
)
_LINE: Final = 57  # bytes in a line of base64
_MAX_SECONDS: Final = 838 * 3600 + 59 * 60 + 59
_NANOS: Final = 1_000_000_000


@compiled
def _put_escape(code: int, out: Bytes, q: int) -> int:
    """Write a character as JSON escapes it; return the place after it."""
    out[q] = 92
    if 32 <= code < 128:
        out[q + 1] = code
        return q + 2
    if 8 <= code <= 13 and code != 11:
        out[q + 1] = _ESCAPES[code - 8]
        return q + 2
    out[q + 1] = 117
    for j in range(4):
        digit = code >> (12 - 4 * j) & 15
        out[q + 2 + j] = 48 + digit if digit < 10 else 87 + digit
    return q + 6


@compiled
def _put_tidb_string(raw: Bytes, p: int, size: int, out: Bytes, q: int) -> int:
    """Write one as TiDB does: it also escapes separators that JavaScript takes for line ends."""
    out[q] = 34
    q += 1
    i, end = p, p + size
    while i < end:
        byte = i64(raw[i])
        i += 1
        if byte < 32 or byte == 34 or byte == 92:
            q = _put_escape(byte, out, q)
        elif byte == 0xE2 and i + 1 < end and raw[i] == 0x80 and raw[i + 1] & 0xFE == 0xA8:
            q = _put_escape(0x2028 + (i64(raw[i + 1]) & 1), out, q)
            i += 2
        else:
            out[q] = byte
            q += 1
    out[q] = 34
    return q + 1


@compiled
def _put_string(raw: Bytes, dialect: int, p: int, size: int, out: Bytes, q: int) -> int:
    """Write a quoted string with JSON's escapes: at most six bytes for each, and two."""
    if dialect == TIDB:
        return _put_tidb_string(raw, p, size, out, q)
    out[q] = 34
    q += 1
    for i in range(p, p + size):
        byte = i64(raw[i])
        if byte >= 32 and byte != 34 and byte != 92:
            out[q] = byte
            q += 1
        else:
            q = _put_escape(byte, out, q)
    out[q] = 34
    return q + 1


@compiled
def _length(raw: Bytes, p: int, end: int) -> tuple[int, int]:
    """Read a length of 1-5 bytes; return it and the place after it, or (-1, p)."""
    length = i64(0)
    for i in range(5):
        if p + i >= end:
            return -1, p
        length |= (i64(raw[p + i]) & 127) << (7 * i)
        if raw[p + i] < 128:
            after = p + i + 1
            return (length, after) if length <= end - after else (-1, p)
    return -1, p


@compiled
def _put_moment(raw: Bytes, kind: int, p: int, out: Bytes, q: int) -> int:
    """Write a quoted date or time: its fields stand in one 64-bit number, microseconds lowest."""
    bits = i64(le64(raw, p))
    out[q] = 34
    q += 1
    if kind == _TIME and bits < 0:
        out[q] = 45
        q += 1
        bits = -bits
    micro, clock, day = bits & 0xFFFFFF, bits >> 24 & 0x1FFFF, bits >> 41
    hour, minute, second = clock >> 12, clock >> 6 & 63, clock & 63
    if kind == _TIME:
        hour, day = bits >> 36 & 0x3FF, i64(0)
    if day < 0 or day >> 5 >= 130_000 or hour > (838 if kind == _TIME else 23):
        return -1
    if minute > 59 or second > 59 or micro > 999_999:
        return -1
    base = address_of(out)
    if kind != _TIME:
        q = put_date(base + q, (day >> 5) // 13, (day >> 5) % 13, day & 31) - base
    if kind == _DATETIME or kind == _TIMESTAMP:
        out[q] = 32
        q += 1
    if kind != _DATE:
        q = put_clock(base + q, hour, minute, second, micro, 6) - base
    out[q] = 34
    return q + 1


@compiled
def _put_base64(raw: Bytes, kind: int, line: int, p: int, size: int, out: Bytes, q: int) -> int:
    """Write bytes as "base64:typeN:…", with an escaped line feed after each `line` bytes."""
    for i in range(len(_OPAQUE)):
        out[q + i] = _OPAQUE[i]
    q = put_integer(u64(kind), False, out, q + len(_OPAQUE))
    out[q] = 58
    q += 1
    for i in range(0, size, 3):
        if i and line and i % line == 0:
            out[q], out[q + 1] = 92, 110
            q += 2
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
def _put_opaque(raw: Bytes, p: int, end: int, out: Bytes, q: int) -> int:
    """Write a value of a column type that JSON lacks; return the place after it, or -1."""
    if p >= end:
        return -1
    kind = i64(raw[p])
    size, p = _length(raw, p + 1, end)
    if size < 0:
        return -1
    if kind == _DECIMAL:
        if size < 3:
            return -1
        digits, scale = i64(raw[p]), i64(raw[p + 1])
        if digits < 1 or digits > 65 or scale > digits:
            return -1
        if size != 2 + decimal_bytes(digits - scale) + decimal_bytes(scale):
            return -1
        base = address_of(out)
        after = put_decimal(address_of(raw) + p + 2, digits, scale, base + q)
        return after - base if after > 0 else -1
    if kind == _DATE or kind == _TIME or kind == _DATETIME or kind == _TIMESTAMP:
        return _put_moment(raw, kind, p, out, q) if size == 8 else -1
    return _put_base64(raw, kind, _LINE, p, size, out, q)


@compiled
def _put_tidb(raw: Bytes, kind: int, p: int, end: int, out: Bytes, q: int) -> int:
    """Write a value of one of the kinds that only TiDB has; return the place after it, or -1."""
    if kind == TIDB_OPAQUE:
        size, after = _length(raw, p + 1, end)
        return -1 if size < 0 else _put_base64(raw, i64(raw[p]), 0, after, size, out, q)
    if kind < TIDB_DATE or kind > TIDB_DURATION or p > end - (12 if kind == TIDB_DURATION else 8):
        return -1
    bits = i64(le64(raw, p))
    base = address_of(out)
    out[q] = 34
    q += 1
    if kind == TIDB_DURATION:  # nanoseconds, then the number of digits
        if bits <= -(_MAX_SECONDS + 1) * _NANOS or bits >= (_MAX_SECONDS + 1) * _NANOS:
            return -1
        if bits < 0:
            out[q] = 45
            q += 1
            bits = -bits
        second, micro = bits // _NANOS, bits % _NANOS // 1000
        q = put_clock(base + q, second // 3600, second // 60 % 60, second % 60, micro, 6) - base
    else:  # the fields stand in one number
        year, month, day = bits >> 50 & 0x3FFF, bits >> 46 & 15, bits >> 41 & 31
        hour, minute, second = bits >> 36 & 31, bits >> 30 & 63, bits >> 24 & 63
        micro = bits >> 4 & 0xFFFFF
        if year > 9999 or month > 12 or hour > 23 or minute > 59 or second > 59:
            return -1
        if micro > 999_999:
            return -1
        q = put_date(base + q, year, month, day) - base
        if kind != TIDB_DATE:
            out[q] = 32
            q = put_clock(base + q + 1, hour, minute, second, micro, 6) - base
    out[q] = 34
    return q + 1


@compiled
def _put_scalar(raw: Bytes, dialect: int, kind: int, p: int, end: int, out: Bytes, q: int) -> int:
    """Write any scalar but a double; return the place after it, or a negative number."""
    if kind == LITERAL:
        if p >= end or raw[p] > 2:
            return -1
        first, size = i64(raw[p]) * 4, 5 if raw[p] == 2 else 4
        for i in range(size):
            out[q + i] = _LITERALS[first + i]
        return q + size
    if kind == STRING:
        size, p = _length(raw, p, end)
        return -1 if size < 0 else _put_string(raw, dialect, p, size, out, q)
    if kind > UINT64 and dialect == TIDB:
        return _put_tidb(raw, kind, p, end, out, q)
    if kind == OPAQUE:
        return _put_opaque(raw, p, end, out, q)
    if kind < INT16 or kind > UINT64 or (dialect == TIDB and kind < INT64):
        return -1
    size = 2 if kind <= UINT16 else 4 if kind <= UINT32 else 8
    if p + size > end:
        return -1
    if size == 8:
        return put_integer(le64(raw, p), kind == INT64, out, q)
    number = le16(raw, p) if size == 2 else le32(raw, p)
    if kind == INT16 and number > 0x7FFF:
        number -= 1 << 16
    elif kind == INT32 and number > 0x7FFFFFFF:
        number -= 1 << 32
    return put_integer(u64(number), True, out, q)


@compiled
def _is_inline(kind: int, large: bool) -> bool:
    """Return whether a value stands in its entry."""
    return kind == LITERAL or kind == INT16 or kind == UINT16 or (large and INT32 <= kind <= UINT32)


@compiled
def _open(raw: Bytes, kind: int, p: int, end: int, frame: Longs) -> bool:
    """Note an object or array in `frame`; return whether its entries fit it."""
    large = kind == LARGE_OBJECT or kind == LARGE_ARRAY
    wide = 4 if large else 2
    if p + 2 * wide > end:
        return False
    count = le32(raw, p) if large else le16(raw, p)
    size = le32(raw, p + wide) if large else le16(raw, p + wide)
    entry = 1 + wide + (2 + wide if kind <= LARGE_OBJECT else 0)
    if size > end - p or 2 * wide + count * entry > size:
        return False
    frame[0], frame[1], frame[2], frame[3], frame[4] = kind, p, p + size, count, 0
    return True


@compiled
def _put_document(
    raw: Bytes,
    dialect: int,
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
    limit = q + 12 * size + 64
    kind, p, end, depth = i64(raw[at]), at + 1, at + size, 0
    while True:
        if kind <= LARGE_ARRAY:
            if dialect == TIDB and kind != LARGE_OBJECT and kind != LARGE_ARRAY:
                return -BAD_JSON, k
            if depth == MAX_DEPTH:
                return -JSON_TOO_DEEP, k
            if not _open(raw, kind, p, end, stack[depth]):
                return -BAD_JSON, k
            depth += 1
            out[q] = 123 if kind <= LARGE_OBJECT else 91
            q += 1
        elif kind == DOUBLE:
            if p + 8 > end or k >= len(numbers):
                return -BAD_JSON, k
            numbers.view(np.uint64)[k] = le64(raw, p)
            if not np.isfinite(numbers[k]):
                return -BAD_JSON, k
            holes[k] = q
            k += 1
            q += 1
        else:
            q = _put_scalar(raw, dialect, kind, p, end, out, q)
            if q < 0:
                return -BAD_JSON, k
        while depth and stack[depth - 1, 4] == stack[depth - 1, 3]:
            depth -= 1
            out[q] = 125 if stack[depth, 0] <= LARGE_OBJECT else 93
            q += 1
        if q > limit:
            return -BAD_JSON, k
        if depth == 0:
            return q, k
        top = depth - 1
        parent, base, end = stack[top, 0], stack[top, 1], stack[top, 2]
        count, i = stack[top, 3], stack[top, 4]
        stack[top, 4] = i + 1
        if i:
            out[q], out[q + 1] = 44, 32
            q += 2
        large = parent == LARGE_OBJECT or parent == LARGE_ARRAY
        wide = 4 if large else 2
        entry = base + 2 * wide
        if parent <= LARGE_OBJECT:
            name_at = entry + i * (2 + wide)
            name = base + (le32(raw, name_at) if large else le16(raw, name_at))
            name_size = le16(raw, name_at + wide)
            if name + name_size > end:
                return -BAD_JSON, k
            q = _put_string(raw, dialect, name, name_size, out, q)
            out[q], out[q + 1] = 58, 32
            q += 2
            if q > limit:
                return -BAD_JSON, k
            entry += count * (2 + wide)
        entry += i * (1 + wide)
        kind = i64(raw[entry])
        if _is_inline(kind, large):
            p = entry + 1
        else:
            p = base + (le32(raw, entry + 1) if large else le16(raw, entry + 1))


@compiled
def _room(size: int) -> int:
    """Return how many bytes a document may touch: its limit, one more string, and brackets."""
    return 18 * size + 512


@compiled
def _documents(
    raw: Bytes,
    dialect: int,
    at: Longs,
    sizes: Longs,
    present: npt.NDArray[np.bool_],
    numbers: npt.NDArray[np.float64],
    holes: Longs,
    offsets: Longs,
    out: Bytes,
    row: int,
    k: int,
) -> tuple[int, int, int]:
    """Write documents from `row` on; return a reason, the row where it stopped, the doubles."""
    stack = np.empty((MAX_DEPTH, 5), np.int64)
    while row < len(present):
        q, size = offsets[row], sizes[row]
        if present[row]:
            if len(out) - q < _room(size):
                break
            if size == 0 and dialect == MYSQL:
                for i in range(4):  # what an INSERT IGNORE leaves for one that it could not make
                    out[q + i] = _LITERALS[i]
                q += 4
            elif size == 0:
                return BAD_JSON, row, k
            else:
                q, k = _put_document(raw, dialect, at[row], size, stack, numbers, holes, k, out, q)
                if q < 0:
                    return -q, row, k
        row += 1
        offsets[row] = q
    return 0, row, k


def json_texts(
    dialect: int, raw: Bytes, at: Longs, sizes: Longs, present: npt.NDArray[np.bool_]
) -> tuple[Bytes, Longs, int, int]:
    """Write a column of documents as text.

    Args:
        dialect: `MYSQL` or `TIDB`.
        raw: the documents' bytes.
        at: where each begins.
        sizes: how many bytes each has.
        present: rows that have one.

    Returns:
        The texts' bytes and where each begins; then the row of a document that cannot be read, and
        why (0: all could). The texts are UTF-8 only as far as the documents' strings are.
    """
    raw, at, sizes, present = frozen(raw), frozen(at), frozen(sizes), frozen(present)
    rows, of_present = len(present), sizes[present]
    total, largest = int(of_present.sum()), int(of_present.max(initial=0))
    numbers = np.empty(total // 5 + 1, np.float64)  # a double in an array or object takes 11 bytes
    holes = np.empty(len(numbers), np.int64)
    out = np.empty(2 * total + _room(largest), np.uint8)
    offsets = np.zeros(rows + 1, np.int64)
    row = count = 0
    while row < rows:
        why, row, count = _documents(
            raw, dialect, at, sizes, present, numbers, holes, offsets, out, row, count
        )
        if why:
            return out, offsets, int(row), int(why)
        if row < rows:
            out = np.concatenate((out, np.empty(len(out), np.uint8)))
    if not count:
        return out, offsets, 0, 0
    text = out[: offsets[-1]]
    out = np.empty(len(text) + DOUBLE_ROOM * count, np.uint8)
    digits, digits_at = shortest(numbers[:count])
    fill_holes(text, holes[:count], digits, digits_at, offsets, out, dialect == MYSQL)
    return out, offsets, 0, 0


def warm() -> None:
    """Compile every kernel: one document that is a double takes all the ways."""
    raw = np.array([DOUBLE, 0, 0, 0, 0, 0, 0, 0, 0], np.uint8)
    nothing, sizes = np.zeros(1, np.int64), np.full(1, len(raw))
    json_texts(MYSQL, raw, nothing, sizes, np.ones(1, np.bool_))
