"""Compiled row hash: CRC-32 (IEEE) of each column's name and value text, joined by XOR.

As XOR forgets the order, columns may come in any order. Every text's place is checked against its
buffer before it is read.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from rowferry.columnar.memory import (
    Ints,
    compiled,
    frozen,
    load_byte,
    load_int,
    load_word,
)

# What a slot holds.
ABSENT, SIGNED, UNSIGNED, TEXT = 0, 1, 2, 3
# Columns of the slot table.
KIND, VALUES, DATA, SIZE, VALID, BIT = range(6)
ENTRY = 6
DONE = -1

_POLYNOMIAL = 0xEDB88320


def _remainders() -> npt.NDArray[np.uint64]:
    """Return, for a byte followed by 0 to 7 zero bytes, what it adds to the remainder."""
    table = np.zeros((8, 256), np.uint64)
    for byte in range(256):
        rest = byte
        for _ in range(8):
            rest = rest >> 1 ^ (_POLYNOMIAL if rest & 1 else 0)
        table[0, byte] = rest
    for zeros in range(1, 8):
        before = table[zeros - 1]
        table[zeros] = before >> np.uint64(8) ^ table[0, before & np.uint64(255)]
    return table


_T0, _T1, _T2, _T3, _T4, _T5, _T6, _T7 = (np.ascontiguousarray(t) for t in _remainders())
_ONES = np.uint64(0xFFFFFFFF)
_BYTE = np.uint64(255)
_U0, _U8, _U10, _U16, _U24, _U32, _U40, _U48, _U56 = (
    np.uint64(v) for v in (0, 8, 10, 16, 24, 32, 40, 48, 56)
)
_DIGIT = np.uint64(48)
_EIGHT_DIGITS = np.uint64(10**8)


@compiled
def _add_byte(state: Any, byte: Any) -> Any:
    return _T0[(state ^ byte) & _BYTE] ^ state >> _U8


@compiled
def _add_word(state: Any, word: Any) -> Any:
    """Add eight bytes at once."""
    word ^= state
    return (
        _T7[word & _BYTE]
        ^ _T6[word >> _U8 & _BYTE]
        ^ _T5[word >> _U16 & _BYTE]
        ^ _T4[word >> _U24 & _BYTE]
        ^ _T3[word >> _U32 & _BYTE]
        ^ _T2[word >> _U40 & _BYTE]
        ^ _T1[word >> _U48 & _BYTE]
        ^ _T0[word >> _U56]
    )


@compiled
def _add_text(state: Any, at: int, size: int) -> Any:
    while size >= 8:
        state = _add_word(state, load_word(at))
        at += 8
        size -= 8
    for i in range(size):
        state = _add_byte(state, np.uint64(load_byte(at + i)))
    return state


@compiled
def _add_head(state: Any, value: Any) -> Any:
    """Add the digits of a value below 10^8, without leading zeros."""
    word, count = _DIGIT + value % _U10, 1
    value //= _U10
    while value > _U0:
        word = word << _U8 | _DIGIT + value % _U10
        value //= _U10
        count += 1
    if count == 8:
        return _add_word(state, word)
    for _ in range(count):
        state = _add_byte(state, word & _BYTE)
        word >>= _U8
    return state


@compiled
def _add_eight(state: Any, value: Any) -> Any:
    """Add exactly eight digits."""
    word = _U0
    for _ in range(8):
        word = word << _U8 | _DIGIT + value % _U10
        value //= _U10
    return _add_word(state, word)


@compiled
def _add_unsigned(state: Any, value: Any) -> Any:
    if value < _EIGHT_DIGITS:
        return _add_head(state, value)
    upper = value // _EIGHT_DIGITS
    if upper < _EIGHT_DIGITS:
        state = _add_head(state, upper)
    else:
        state = _add_head(state, upper // _EIGHT_DIGITS)
        state = _add_eight(state, upper % _EIGHT_DIGITS)
    return _add_eight(state, value % _EIGHT_DIGITS)


@compiled
def _add_signed(state: Any, value: int) -> Any:
    if value < 0:
        return _add_unsigned(_add_byte(state, np.uint64(45)), ~np.uint64(value) + np.uint64(1))
    return _add_unsigned(state, np.uint64(value))


@compiled
def _is_null(slot: Ints, row: int) -> Any:
    if slot[VALID] == 0:
        return False
    bit = slot[BIT] + row
    return load_byte(slot[VALID] + (bit >> 3)) >> np.uint8(bit & 7) & 1 == 0


@compiled
def hash_rows(start: Any, which: Any, slots: Ints, states: Any, out: Any) -> int:
    """Fill `out` with each row's hash; return DONE, or a row whose text is outside its buffer.

    Args:
        start: the hash of what all rows share.
        which: for each row, which half of `slots` has its image.
        slots: image × column × entry: where the values are.
        states: for each column, the running remainder behind its name.
        out: one uint32 for each row.
    """
    for row in range(len(out)):
        mixed = start
        image = which[row]
        for column in range(len(states)):
            slot = slots[image, column]
            kind = slot[KIND]
            if kind == ABSENT or _is_null(slot, row):
                continue
            place = slot[VALUES] + row * 8
            if kind == SIGNED:
                state = _add_signed(states[column], load_int(place))
            elif kind == UNSIGNED:
                state = _add_unsigned(states[column], load_word(place))
            else:
                first, last = load_int(place), load_int(place + 8)
                if not 0 <= first <= last <= slot[SIZE]:
                    return row
                state = _add_text(states[column], slot[DATA] + first, last - first)
            mixed ^= state ^ _ONES
        out[row] = mixed
    return DONE


def warm() -> None:
    """Compile every kernel of this module."""
    slots, states = np.zeros((2, 1, ENTRY), np.int64), np.zeros(1, np.uint64)
    hash_rows(_ONES, frozen(np.zeros(1, np.int8)), slots, states, np.zeros(1, np.uint32))
