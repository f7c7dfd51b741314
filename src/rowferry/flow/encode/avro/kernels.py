"""The compiled Avro writer: runs a program (literals and cells, in order) over rows of a chunk.

`writer.py` builds what it runs. Text is copied as it is, so the caller can give a buffer that
always suffices; still every place is checked before it is read or written.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rowferry.columnar.memory import (
    Bytes,
    Ints,
    compiled,
    copy_bytes,
    frozen,
    load_byte,
    load_int,
    load_word,
    store_byte,
    store_word,
)

# What an entry of a program writes.
LITERAL, LONG, DOUBLE, TEXT, BITS, WORD, RAW = range(7)
# Columns of the entry table. LITERAL: DATA and SIZE are its place in the pool. BRANCH and NULL are
# the bytes of a union's two branches, -1 without a union. WIDTH: bytes of a BITS or WORD value.
# RAW is text without its length.
KIND, VALUES, DATA, SIZE, VALID, BIT, BRANCH, NULL, WIDTH = range(9)
COLUMNS = 9
LONGEST = 10  # bytes of the longest integer, or of a length
NOTHING = -2  # as the branch of NULL: it is written by an entry before
# How a run ended.
DONE, NO_ROOM, BAD_TEXT, NOT_NULLABLE = range(4)

_U1, _U7F, _U80 = np.uint64(1), np.uint64(0x7F), np.uint64(0x80)
_SEVEN, _SIGN = np.uint64(7), np.int64(63)


@compiled
def _write_long(to: int, value: int) -> int:
    """Write a zig-zag integer of variable length."""
    rest = np.uint64((value << np.int64(1)) ^ (value >> _SIGN))
    while rest >= _U80:
        store_byte(to, np.uint8(rest & _U7F | _U80))
        rest >>= _SEVEN
        to += 1
    store_byte(to, np.uint8(rest))
    return to + 1


@compiled
def _is_null(entry: Ints, row: int) -> Any:
    if entry[VALID] == 0:
        return False
    bit = entry[BIT] + row
    return load_byte(entry[VALID] + (bit >> 3)) >> np.uint8(bit & 7) & 1 == 0


@compiled
def _write_bytes(to: int, value: Any, width: int) -> int:
    """Write a number as `width` bytes, the highest first."""
    for i in range(width):
        store_byte(to + i, np.uint8(value >> np.uint64(8 * (width - 1 - i)) & np.uint64(255)))
    return to + width


@compiled
def write(
    which: Any, bounds: Ints, reserve: Ints, entries: Ints, pool: Bytes, out: Bytes, offsets: Ints
) -> Any:
    """Write all rows; return (how it ended, the row, the entry) that it ended at.

    `which` names each row's program: the entries from its `bounds` to the next. `reserve` is the
    most bytes that each program writes beside text. `offsets` gets where each row begins in `out`.
    """
    base, words, limit = out.ctypes.data, pool.ctypes.data, out.ctypes.data + len(out)
    to = base
    for row in range(len(which)):
        program = which[row]
        need = reserve[program]
        if to + need > limit:
            return NO_ROOM, row, 0
        for i in range(bounds[program], bounds[program + 1]):
            entry = entries[i]
            kind = entry[KIND]
            if kind == LITERAL:
                copy_bytes(to, words + entry[DATA], entry[SIZE])
                to += entry[SIZE]
                continue
            if _is_null(entry, row):
                if entry[NULL] == NOTHING:
                    continue
                if entry[NULL] < 0:
                    return NOT_NULLABLE, row, i
                store_byte(to, entry[NULL])
                to += 1
                continue
            if entry[BRANCH] >= 0:
                store_byte(to, entry[BRANCH])
                to += 1
            place = entry[VALUES] + row * 8
            if kind == LONG:
                to = _write_long(to, load_int(place))
            elif kind == DOUBLE:
                store_word(to, load_word(place))
                to += 8
            elif kind == BITS:
                to = _write_long(to, entry[WIDTH])
                to = _write_bytes(to, load_word(place), entry[WIDTH])
            elif kind == WORD:
                to = _write_bytes(to, load_word(place), entry[WIDTH])
            else:
                start = load_int(place)
                stop = load_int(place + 8)
                if not 0 <= start <= stop <= entry[SIZE]:
                    return BAD_TEXT, row, i
                if to + stop - start + need > limit:
                    return NO_ROOM, row, i
                if kind == TEXT:
                    to = _write_long(to, stop - start)
                copy_bytes(to, entry[DATA] + start, stop - start)
                to += stop - start
        offsets[row + 1] = to - base
    return DONE, len(which), 0


def warm() -> None:
    """Compile every kernel of this module."""
    one, entries = np.zeros(1, np.int64), np.zeros((1, COLUMNS), np.int64)
    none, which = frozen(np.zeros(1, np.uint8)), frozen(np.zeros(0, np.int8))
    write(which, np.zeros(2, np.int64), one, entries, none, np.zeros(1, np.uint8), one)
