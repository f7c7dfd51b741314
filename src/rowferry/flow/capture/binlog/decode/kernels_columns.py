"""The second pass over rows events: values from their places into columns.

Values of fixed width become 64-bit words; all others become bytes, each column's in a stretch of
one array. A block of rows is taken column by column, so that it stays in the processor's cache and
the type is asked once for a column of a block, not for each value.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from rowferry.columnar.addresses import (
    BAD_LENGTH,
    Bytes,
    Longs,
    address_of,
    compiled,
    copy_bytes,
    frozen,
    i64,
    length_at,
    load_64,
    load_i8,
    load_i16,
    load_i32,
    load_u8,
    load_u16,
    load_u32,
)
from rowferry.columnar.packed_text import put_decimal
from rowferry.flow.capture.binlog.decode.kernels_text import (
    put_old_date_time,
    put_old_time,
    put_packed_date,
    put_packed_date_time,
    put_packed_time,
    put_timestamp,
)

# How a column's values are read; `first` and `second` are what each needs to know.
SIGNED: Final = 0  # little-endian, `first` bytes
UNSIGNED: Final = 1  # little-endian, `first` bytes
BIG_ENDIAN: Final = 2  # `first` bytes
YEAR: Final = 3  # `first` is what zero means
FIXED_ACTIONS: Final = 4  # those below give words
STRING: Final = 4  # `first` bytes of length, then as many bytes
PADDED: Final = 5  # the same, filled up with zeros to `second` bytes
DECIMAL: Final = 6  # `first` digits, `second` after the point
DATE: Final = 7
OLD_TIME: Final = 8
OLD_DATE_TIME: Final = 9
OLD_TIMESTAMP: Final = 10
TIME: Final = 11  # `first` fraction digits; so below
DATE_TIME: Final = 12
TIMESTAMP: Final = 13


@compiled
def _words(
    base: int, at: Longs, j: int, lo: int, hi: int, size: int, signed: bool, out: Longs
) -> None:
    """Read little-endian integers; rows without a value get 0."""
    if size == 4 and signed:
        for row in range(lo, hi):
            p = at[row, j]
            out[row] = load_i32(base + p) if p >= 0 else 0
        return
    if size == 8:
        for row in range(lo, hi):
            p = at[row, j]
            out[row] = load_64(base + p) if p >= 0 else 0
        return
    for row in range(lo, hi):
        p = at[row, j]
        if p < 0:
            out[row] = 0
            continue
        p += base
        if size == 1:
            out[row] = load_i8(p) if signed else load_u8(p)
        elif size == 2:
            out[row] = load_i16(p) if signed else load_u16(p)
        elif size == 3:
            high = load_i8(p + 2) if signed else load_u8(p + 2)
            out[row] = load_u16(p) | high << 16
        elif size == 4:
            out[row] = load_u32(p)
        else:
            word = i64(0)
            for i in range(size):
                word |= load_u8(p + i) << (8 * i)
            out[row] = word


@compiled
def _big_endian(base: int, at: Longs, j: int, lo: int, hi: int, size: int, out: Longs) -> None:
    for row in range(lo, hi):
        p, number = at[row, j], i64(0)
        if p >= 0:
            for i in range(size):
                number = number << 8 | load_u8(base + p + i)
        out[row] = number


@compiled
def _years(base: int, at: Longs, j: int, lo: int, hi: int, zero: int, out: Longs) -> None:
    for row in range(lo, hi):
        p = at[row, j]
        short = load_u8(base + p) if p >= 0 else i64(0)
        out[row] = short + 1900 if short else zero


@compiled
def _strings(
    base: int, at: Longs, j: int, lo: int, hi: int, head: int, offsets: Longs, out: Bytes
) -> None:
    q, to = offsets[lo], address_of(out)
    for row in range(lo, hi):
        p = at[row, j]
        if p >= 0:
            size = length_at(base + p, head)
            copy_bytes(to + q, base + p + head, size)
            q += size
        offsets[row + 1] = q


@compiled
def _padded(
    base: int, at: Longs, j: int, lo: int, hi: int, head: int, full: int, offsets: Longs, out: Bytes
) -> int:
    """Copy strings and fill them up; return the row of one that is too long, or -1."""
    q, to = offsets[lo], address_of(out)
    for row in range(lo, hi):
        p = at[row, j]
        if p >= 0:
            size = length_at(base + p, head)
            if size > full:
                return row
            copy_bytes(to + q, base + p + head, size)
            for i in range(q + size, q + full):
                out[i] = 0
            q += full
        offsets[row + 1] = q
    return -1


@compiled
def _texts(
    base: int,
    at: Longs,
    j: int,
    lo: int,
    hi: int,
    action: int,
    first: int,
    second: int,
    offsets: Longs,
    out: Bytes,
) -> tuple[int, int]:
    """Write numbers and times as text; return the row of one that cannot be and why, or (-1, 0)."""
    to = address_of(out)
    q = to + offsets[lo]
    for row in range(lo, hi):
        p = at[row, j]
        if p >= 0:
            p += base
            if action == DECIMAL:
                q = put_decimal(p, first, second, q)
            elif action == DATE:
                q = put_packed_date(p, q)
            elif action == DATE_TIME:
                q = put_packed_date_time(p, first, q)
            elif action == TIMESTAMP or action == OLD_TIMESTAMP:
                q = put_timestamp(p, first, action == OLD_TIMESTAMP, q)
            elif action == TIME:
                q = put_packed_time(p, first, q)
            elif action == OLD_TIME:
                q = put_old_time(p, q)
            else:
                q = put_old_date_time(p, q)
            if q < 0:
                return row, -q
        offsets[row + 1] = q - to
    return -1, 0


@compiled
def _validity(at: Longs, j: int, lo: int, hi: int, bitmap: Bytes) -> None:
    """Set the bits of rows that have a value; `lo` is a multiple of 8."""
    for first in range(lo, hi, 8):
        byte = 0
        for i in range(min(8, hi - first)):
            if at[first + i, j] >= 0:
                byte |= 1 << i
        bitmap[first >> 3] = byte


@compiled
def fill(
    raw: Bytes,
    at: Longs,
    rows: int,
    block: int,
    columns: npt.NDArray[np.int16],
    action: Longs,
    first: Longs,
    second: Longs,
    slot: Longs,
    words: Longs,
    offsets: Longs,
    begin: Longs,
    out: Bytes,
    bitmap_slot: Longs,
    bitmaps: Bytes,
) -> tuple[int, int, int]:
    """Read the images of one side; return (row, j, why) of a value that cannot be, or (-1, 0, 0).

    Args:
        raw: holds the events.
        at: [row, j] places of values, as the first pass found them.
        rows: how many.
        block: rows that are taken together; a multiple of 8.
        columns: the column of each j.
        action: how each column's values are read.
        first: what the action needs to know.
        second: what else it needs to know.
        slot: [j] row of `words` or of `offsets` for the column.
        words: [slot, row] gets values of fixed width.
        offsets: [slot, row] gets where in the column's stretch each value begins.
        begin: [slot] where the column's stretch of `out` begins, and after the last one ends.
        out: gets all other values; the stretches must be long enough.
        bitmap_slot: [j] row of `bitmaps` for the column; -1: all its values are there.
        bitmaps: [slot, byte] gets which rows have a value.
    """
    base = address_of(raw)
    for k in range(len(offsets)):
        offsets[k, 0] = 0
    for lo in range(0, rows, block):
        hi = min(rows, lo + block)
        for j in range(len(slot)):
            c, k = columns[j], slot[j]
            what, a, b = action[c], first[c], second[c]
            if bitmap_slot[j] >= 0:
                _validity(at, j, lo, hi, bitmaps[bitmap_slot[j]])
            if what == SIGNED or what == UNSIGNED:
                _words(base, at, j, lo, hi, a, what == SIGNED, words[k])
            elif what == BIG_ENDIAN:
                _big_endian(base, at, j, lo, hi, a, words[k])
            elif what == YEAR:
                _years(base, at, j, lo, hi, a, words[k])
            else:
                room = out[begin[k] : begin[k + 1]]
                if what == STRING:
                    _strings(base, at, j, lo, hi, a, offsets[k], room)
                elif what == PADDED:
                    row = _padded(base, at, j, lo, hi, a, b, offsets[k], room)
                    if row >= 0:
                        return row, j, BAD_LENGTH
                else:
                    row, why = _texts(base, at, j, lo, hi, what, a, b, offsets[k], room)
                    if row >= 0:
                        return row, j, why
    return -1, 0, 0


def warm() -> None:
    """Compile the pass."""
    longs = frozen(np.zeros(0, np.int64))
    fill(
        frozen(np.zeros(0, np.uint8)),
        np.zeros((2, 1, 1), np.int64)[0],
        0,
        8,
        np.zeros((2, 1), np.int16)[0],
        longs,
        longs,
        longs,
        longs,
        np.zeros((1, 1), np.int64),
        np.zeros((1, 1), np.int64),
        longs,
        np.zeros(0, np.uint8),
        longs,
        np.zeros((1, 1), np.uint8),
    )
