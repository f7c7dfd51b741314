"""Hashes of rows, column by column, and sums of them by bucket: compiled loops.

A hash has 64 bits; each column is mixed into the state that the columns before it left, so that
values which change places give another hash. It is the same on every machine.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

START = np.uint64(0x9E3779B97F4A7C15)
_ONE = np.uint64(0xBF58476D1CE4E5B9)
_TWO = np.uint64(0x94D049BB133111EB)
_NULL = np.uint64(0xD6E8FEB86659FD93)
_S27, _S30, _S31, _S8 = np.uint64(27), np.uint64(30), np.uint64(31), np.uint64(8)


@njit(cache=True, nogil=True, inline="always")
def _mix(state: Any, word: Any) -> Any:
    mixed = state * _ONE + word
    mixed = (mixed ^ (mixed >> _S30)) * _ONE
    mixed = (mixed ^ (mixed >> _S27)) * _TWO
    return mixed ^ (mixed >> _S31)


@njit(cache=True, nogil=True)
def add_words(words: Any, valid: Any, states: Any) -> None:
    """Mix a column of 64-bit values into the states of its rows."""
    for row in range(min(len(words), len(valid), len(states))):
        states[row] = _mix(states[row], words[row] if valid[row] else _NULL)
        if not valid[row]:
            states[row] = _mix(states[row], _NULL)


@njit(cache=True, nogil=True)
def add_texts(data: Any, ends: Any, valid: Any, states: Any) -> None:
    """Mix a column of bytes into the states of its rows; row i is `data[ends[i]:ends[i + 1]]`."""
    for row in range(min(len(ends) - 1, len(valid), len(states))):
        state = states[row]
        if not valid[row]:
            states[row] = _mix(_mix(state, _NULL), _NULL)
            continue
        start = max(0, ends[row])
        stop = min(len(data), ends[row + 1])
        state = _mix(state, np.uint64(max(0, stop - start)))
        here = start
        while here < stop:
            word = np.uint64(0)
            last = min(here + 8, stop)
            for place in range(last - 1, here - 1, -1):
                word = (word << _S8) | np.uint64(data[place])
            state = _mix(state, word)
            here = last
        states[row] = state


@njit(cache=True, nogil=True)
def add_sums(keys: Any, hashes: Any, counts: Any, sums: Any, mixed: Any) -> None:
    """Count rows, and sum up their hashes, in the buckets of their keys.

    The number of buckets must be a power of two.
    """
    mask = np.uint64(len(counts) - 1)
    for row in range(min(len(keys), len(hashes))):
        bucket = np.int64(keys[row] & mask)
        counts[bucket] += 1
        sums[bucket] += hashes[row]
        mixed[bucket] += _mix(START, hashes[row])


def warm() -> None:
    """Compile every kernel."""
    words, valid = np.zeros(1, np.uint64), np.ones(1, np.bool_)
    add_words(words, valid, words.copy())
    add_texts(np.zeros(1, np.uint8), np.zeros(2, np.int64), valid, words.copy())
    add_sums(words, words, np.zeros(1, np.int64), words.copy(), words.copy())
