"""The compiled row writer: runs a layout (literals and cells, in order) over the rows of a chunk.

`layout.py` builds what it runs. It writes into a buffer of given size and stops before a row that
might not fit, so that the caller can enlarge the buffer and go on. Every text cell's place is
checked against its buffer before it is read.
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

# What a slot holds.
SIGNED, UNSIGNED, TEXT = 0, 1, 2
# How text is written.
RAW, JSON, LATIN1, DOUBLED, ESCAPED = 0, 1, 2, 3, 4
GROWTH = np.array([1, 6, 6, 2, 2], np.int64)  # the most bytes that one byte becomes, by mode
DIGITS = 20  # the longest integer text, sign included
# Columns of the slot table.
KIND, MODE, VALUES, DATA, SIZE, VALID, BIT, WRAP, NULL_FROM, NULL_TO = range(10)
# Instructions: LITERAL from to · CELL slot · PICK slot limit from to from to ·
# CHANGED slot other from to close
LITERAL, CELL, PICK, CHANGED = 0, 1, 2, 3
# How a run ended.
DONE, FULL, BAD_TEXT = 0, 1, 2

_HEX = np.frombuffer(b"0123456789abcdef", np.uint8).copy()
_PAIRS = np.frombuffer("".join(f"{i:02d}" for i in range(100)).encode(), np.uint8).copy()


def _byte_classes() -> Bytes:
    """JSON: 0 as it is, 1 four hex digits, 2 high (UTF-8), else the letter after a backslash."""
    classes = np.zeros(256, np.uint8)
    classes[:32] = 1
    classes[[ord(c) for c in "<>&"]] = 1
    classes[128:] = 2
    for byte, letter in ((9, "t"), (10, "n"), (13, "r"), (34, '"'), (92, "\\")):
        classes[byte] = ord(letter)
    return classes


_CLASS = _byte_classes()
_ONES = np.uint64(0x0101010101010101)
_TOPS = np.uint64(0x8080808080808080)
_U0, _U100, _U10 = np.uint64(0), np.uint64(100), np.uint64(10)
_X20, _X22, _X26, _X3E, _X5C, _X02, _X04 = (
    np.uint64(v * 0x0101010101010101) for v in (0x20, 0x22, 0x26, 0x3E, 0x5C, 0x02, 0x04)
)


@compiled
def _special(word: Any) -> Any:
    """Return non-zero if one of eight bytes is not plain in JSON."""
    quote_or_and = (word | _X04) ^ _X26
    angle = (word | _X02) ^ _X3E
    backslash = word ^ _X5C
    special = (word - _X20) & ~word
    special |= (quote_or_and - _ONES) & ~quote_or_and
    special |= (angle - _ONES) & ~angle
    special |= (backslash - _ONES) & ~backslash
    return (special | word) & _TOPS


@compiled
def _write_unsigned(to: int, value: Any) -> int:
    count, rest = 1, value
    while rest >= _U10:
        rest //= _U10
        count += 1
    at = to + count
    while value >= _U100:
        pair = np.int64(value % _U100) * 2
        value //= _U100
        at -= 2
        store_byte(at, _PAIRS[pair])
        store_byte(at + 1, _PAIRS[pair + 1])
    pair = np.int64(value) * 2
    store_byte(at - 1, _PAIRS[pair + 1])
    if value >= _U10:
        store_byte(at - 2, _PAIRS[pair])
    return to + count


@compiled
def _write_signed(to: int, value: int) -> int:
    if value < 0:
        store_byte(to, 45)
        return _write_unsigned(to + 1, ~np.uint64(value) + np.uint64(1))
    return _write_unsigned(to, np.uint64(value))


@compiled
def rune_size(source: int, left: int) -> int:
    """Return the length of the UTF-8 character at `source`, or 0 if it is not one."""
    first = load_byte(source)
    if 0xC2 <= first <= 0xDF:
        return 2 if left > 1 and load_byte(source + 1) & 0xC0 == 0x80 else 0
    if 0xE0 <= first <= 0xEF:
        if left < 3 or load_byte(source + 2) & 0xC0 != 0x80:
            return 0
        second = load_byte(source + 1)
        least = 0xA0 if first == 0xE0 else 0x80
        most = 0x9F if first == 0xED else 0xBF
        return 3 if least <= second <= most else 0
    if 0xF0 <= first <= 0xF4:
        if left < 4 or load_byte(source + 2) & 0xC0 != 0x80 or load_byte(source + 3) & 0xC0 != 0x80:
            return 0
        second = load_byte(source + 1)
        least = 0x90 if first == 0xF0 else 0x80
        most = 0x8F if first == 0xF4 else 0xBF
        return 4 if least <= second <= most else 0
    return 0


@compiled
def _write_unicode(to: int, b0: int, b1: int, b2: int, b3: int) -> int:
    """Write a backslash, `u` and four bytes."""
    store_byte(to, 92)
    store_byte(to + 1, 117)
    store_byte(to + 2, b0)
    store_byte(to + 3, b1)
    store_byte(to + 4, b2)
    store_byte(to + 5, b3)
    return to + 6


@compiled
def _write_high(to: int, source: int, left: int) -> Any:
    """Write the character at a byte ≥ 0x80; return the new place and the bytes read."""
    size = rune_size(source, left)
    if size == 0:
        return _write_unicode(to, 102, 102, 102, 100), 1  # U+FFFD for each invalid byte
    if size == 3 and load_byte(source) == 0xE2 and load_byte(source + 1) == 0x80:
        last = load_byte(source + 2)
        if last == 0xA8 or last == 0xA9:  # line and paragraph separators
            return _write_unicode(to, 50, 48, 50, 56 + (last & 1)), 3
    for i in range(size):
        store_byte(to + i, load_byte(source + i))
    return to + size, size


@compiled
def _write_json(to: int, source: int, size: int, latin: bool) -> int:
    i = 0
    while i < size:
        while i + 8 <= size:
            word = load_word(source + i)
            if _special(word) != _U0:
                break
            store_word(to, word)
            to += 8
            i += 8
        stop = min(i + 8, size)
        while i < stop:
            byte = load_byte(source + i)
            kind = _CLASS[byte]
            if kind == 0:
                store_byte(to, byte)
                to += 1
                i += 1
            elif kind == 1:
                to = _write_unicode(to, 48, 48, _HEX[byte >> 4], _HEX[byte & 15])
                i += 1
            elif kind != 2:
                store_byte(to, 92)
                store_byte(to + 1, kind)
                to += 2
                i += 1
            elif latin:
                store_byte(to, 0xC0 | byte >> 6)
                store_byte(to + 1, 0x80 | byte & 0x3F)
                to += 2
                i += 1
            else:
                to, used = _write_high(to, source + i, size - i)
                i += used
    return to


@compiled
def _write_doubled(to: int, source: int, size: int, mark: int) -> int:
    """Copy, doubling each byte `mark`."""
    ones = np.uint64(mark) * _ONES
    i = 0
    while i < size:
        while i + 8 <= size:
            word = load_word(source + i)
            other = word ^ ones
            if (other - _ONES) & ~other & _TOPS != _U0:
                break
            store_word(to, word)
            to += 8
            i += 8
        stop = min(i + 8, size)
        while i < stop:
            byte = load_byte(source + i)
            store_byte(to, byte)
            to += 1
            i += 1
            if byte == mark:
                store_byte(to, byte)
                to += 1
    return to


@compiled
def _joins_mark(source: int, size: int, mark: Bytes) -> bool:
    """Return whether these last bytes of a text make a `mark` with the one behind the text."""
    for k in range(len(mark)):
        byte = load_byte(source + k) if k < size else mark[k - size]
        if byte != mark[k]:
            return False
    return True


@compiled
def _write_escaped(to: int, source: int, size: int, mark: Bytes) -> int:
    """Copy, a backslash before each backslash, CR, LF and byte of an occurrence of `mark`.

    A byte gets one, too, where an occurrence begins that the `mark` behind the text would complete.
    """
    i = 0
    while i < size:
        byte = load_byte(source + i)
        width = len(mark) if i + len(mark) <= size else 0
        for k in range(width):
            if load_byte(source + i + k) != mark[k]:
                width = 0
                break
        if width > 0:
            for k in range(width):
                store_byte(to, 92)
                store_byte(to + 1, mark[k])
                to += 2
            i += width
            continue
        joins = size - i < len(mark) and _joins_mark(source + i, size - i, mark)
        if byte == 92 or byte == 13 or byte == 10 or joins:
            store_byte(to, 92)
            to += 1
            byte = np.uint8(114) if byte == 13 else (np.uint8(110) if byte == 10 else byte)
        store_byte(to, byte)
        to += 1
        i += 1
    return to


@compiled
def _is_null(slot: Ints, row: int) -> Any:
    if slot[VALID] == 0:
        return False
    bit = slot[BIT] + row
    return load_byte(slot[VALID] + (bit >> 3)) >> np.uint8(bit & 7) & 1 == 0


@compiled
def _differs(a: Ints, b: Ints, row: int) -> Any:
    """Return whether two cells of the same kind would be written differently."""
    null = _is_null(a, row)
    if null or _is_null(b, row):
        return null != _is_null(b, row)
    here, there = a[VALUES] + row * 8, b[VALUES] + row * 8
    if a[KIND] != TEXT:
        return load_int(here) != load_int(there)
    size = load_int(here + 8) - load_int(here)
    if size != load_int(there + 8) - load_int(there):
        return True
    one, two = a[DATA] + load_int(here), b[DATA] + load_int(there)
    for i in range(size):
        if load_byte(one + i) != load_byte(two + i):
            return True
    return False


@compiled
def _text_fits(slot: Ints, row: int) -> Any:
    """Return whether the text of this row lies inside its buffer."""
    start = load_int(slot[VALUES] + row * 8)
    stop = load_int(slot[VALUES] + row * 8 + 8)
    return 0 <= start <= stop <= slot[SIZE]


@compiled
def _write_cell(to: int, slot: Ints, row: int, pool: int, mark: Bytes) -> Any:
    if _is_null(slot, row):
        size = slot[NULL_TO] - slot[NULL_FROM]
        copy_bytes(to, pool + slot[NULL_FROM], size)
        return to + size
    wrap = slot[WRAP]
    if wrap != 0:
        store_byte(to, wrap)
        to += 1
    place = slot[VALUES] + row * 8
    if slot[KIND] == SIGNED:
        to = _write_signed(to, load_int(place))
    elif slot[KIND] == UNSIGNED:
        to = _write_unsigned(to, load_word(place))
    else:
        start = load_int(place)
        size = load_int(place + 8) - start
        source = slot[DATA] + start
        mode = slot[MODE]
        if mode == RAW:
            copy_bytes(to, source, size)
            to += size
        elif mode == JSON or mode == LATIN1:
            to = _write_json(to, source, size, mode == LATIN1)
        elif mode == DOUBLED:
            to = _write_doubled(to, source, size, wrap)
        else:
            to = _write_escaped(to, source, size, mark)
    if wrap != 0:
        store_byte(to, wrap)
        to += 1
    return to


@compiled
def write_rows(
    first: int,
    which: Any,
    code: Ints,
    bounds: Ints,
    reserve: Ints,
    slots: Ints,
    literals: Bytes,
    mark: Bytes,
    out: Bytes,
    offsets: Ints,
) -> Any:
    """Write rows from `first` on; return (the next row, how it ended).

    `which` names each row's program; `code` holds the instructions of all programs, each
    beginning at its `bounds`, and `reserve` the most bytes that each writes beside text cells.
    `mark` is the byte sequence that `ESCAPED` text protects. `offsets` says where each row begins
    in `out`: that of row `first` is given, later ones are filled in.
    """
    base, pool, limit = out.ctypes.data, literals.ctypes.data, out.ctypes.data + len(out)
    for row in range(first, len(which)):
        program = which[row]
        need = reserve[program]
        to = base + offsets[row]
        if to + need > limit:
            return row, FULL
        virgin = True  # no CHANGED cell was written since the last literal
        for i in range(bounds[program], bounds[program + 1]):
            kind = code[i, 0]
            if kind == LITERAL:
                size = code[i, 2] - code[i, 1]
                copy_bytes(to, pool + code[i, 1], size)
                to += size
                virgin = True
                continue
            slot = slots[code[i, 1]]
            if kind == PICK:
                place = slot[VALUES] + row * 8
                above = not _is_null(slot, row) and load_word(place) > np.uint64(code[i, 2])
                k = 5 if above else 3
                size = code[i, k + 1] - code[i, k]
                copy_bytes(to, pool + code[i, k], size)
                to += size
                continue
            if slot[KIND] == TEXT:
                if not _text_fits(slot, row):
                    return row, BAD_TEXT
                place = slot[VALUES] + row * 8
                size = load_int(place + 8) - load_int(place)
                if to + size * GROWTH[slot[MODE]] + need > limit:
                    return row, FULL
            if kind == CHANGED:
                other = slots[code[i, 2]]
                if other[KIND] == TEXT and not _text_fits(other, row):
                    return row, BAD_TEXT
                if not _differs(slot, other, row):
                    continue
                if not virgin:
                    store_byte(to, 44)
                    to += 1
                virgin = False
                size = code[i, 4] - code[i, 3]
                copy_bytes(to, pool + code[i, 3], size)
                to = _write_cell(to + size, slot, row, pool, mark)
                if code[i, 5] != 0:
                    store_byte(to, code[i, 5])
                    to += 1
                continue
            to = _write_cell(to, slot, row, pool, mark)
        offsets[row + 1] = to - base
    return len(which), DONE


def warm() -> None:
    """Compile every kernel of this module."""
    none = frozen(np.zeros(1, np.uint8))
    code, slots = np.zeros((1, 7), np.int64), np.zeros((1, 10), np.int64)
    bounds, one = np.zeros(2, np.int64), np.zeros(1, np.int64)
    which, out = frozen(np.zeros(0, np.int8)), np.zeros(1, np.uint8)
    write_rows(0, which, code, bounds, one, slots, none, none, out, one)
