"""Murmur3 with 32 bits, by which Iceberg puts values into buckets: compiled."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

_C1, _C2 = np.uint32(0xCC9E2D51), np.uint32(0x1B873593)
_ADD, _END1, _END2 = np.uint32(0xE6546B64), np.uint32(0x85EBCA6B), np.uint32(0xC2B2AE35)
_FIVE = np.uint32(5)


@njit(cache=True, nogil=True, inline="always")
def _turned(word: Any, by: Any) -> Any:
    return np.uint32((word << np.uint32(by)) | (word >> np.uint32(32 - by)))


@njit(cache=True, nogil=True)
def _hash_values(data: Any, offsets: Any, hashes: Any) -> None:
    for row in range(min(len(hashes), len(offsets) - 1)):
        here, stop = max(0, offsets[row]), min(len(data), offsets[row + 1])
        size = max(0, stop - here)
        state = np.uint32(0)
        while here + 4 <= stop:
            word = np.uint32(0)
            for place in range(here + 3, here - 1, -1):
                word = np.uint32((word << np.uint32(8)) | np.uint32(data[place]))
            word = np.uint32(_turned(np.uint32(word * _C1), 15) * _C2)
            state = np.uint32(_turned(np.uint32(state ^ word), 13) * _FIVE + _ADD)
            here += 4
        word = np.uint32(0)
        for place in range(stop - 1, here - 1, -1):
            word = np.uint32((word << np.uint32(8)) | np.uint32(data[place]))
        if here < stop:
            state = np.uint32(state ^ np.uint32(_turned(np.uint32(word * _C1), 15) * _C2))
        state = np.uint32(state ^ np.uint32(size))
        state = np.uint32((state ^ (state >> np.uint32(16))) * _END1)
        state = np.uint32((state ^ (state >> np.uint32(13))) * _END2)
        hashes[row] = np.uint32(state ^ (state >> np.uint32(16)))


@njit(cache=True, nogil=True)
def _shortest(data: Any, count: Any, ends: Any, texts: Any) -> None:
    """Write numbers of 16 bytes, the least byte first, as their fewest bytes, the least last."""
    at = 0
    for row in range(count):
        first = row * 16
        top = 15
        while top > 0:
            high, next_ = data[first + top], data[first + top - 1]
            if (high == 0 and next_ < 128) or (high == 255 and next_ >= 128):
                top -= 1
            else:
                break
        for place in range(top, -1, -1):
            texts[at] = data[first + place]
            at += 1
        ends[row + 1] = at


def hash_values(
    data: npt.NDArray[np.uint8], offsets: npt.NDArray[np.int64]
) -> npt.NDArray[np.uint32]:
    """Return the hash of each value; value i is `data[offsets[i]:offsets[i + 1]]`."""
    hashes = np.zeros(max(0, len(offsets) - 1), np.uint32)
    _hash_values(data, offsets, hashes)
    return hashes


def hash_decimals(data: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint32]:
    """Return the hash of each decimal, given the numbers without their point, 16 bytes each."""
    count = len(data) // 16
    ends, texts = np.zeros(count + 1, np.int64), np.zeros(len(data), np.uint8)
    _shortest(data, count, ends, texts)
    return hash_values(texts, ends)


def warm() -> None:
    """Compile the kernels."""
    hash_values(np.zeros(1, np.uint8), np.array([0, 1], np.int64))
    hash_decimals(np.zeros(16, np.uint8))
