"""The 64-bit hash of a key's bytes: compiled, and the same on every machine."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from numba import njit

_START = np.uint64(0x9E3779B97F4A7C15)
_ONE = np.uint64(0xBF58476D1CE4E5B9)
_TWO = np.uint64(0x94D049BB133111EB)
_S8, _S27, _S31 = np.uint64(8), np.uint64(27), np.uint64(31)


@njit(cache=True, nogil=True)
def _hash_keys(data: Any, offsets: Any, hashes: Any) -> None:
    for row in range(min(len(hashes), len(offsets) - 1)):
        here, stop = max(0, offsets[row]), min(len(data), offsets[row + 1])
        state = _START ^ np.uint64(max(0, stop - here))
        while here < stop:
            word = np.uint64(0)
            last = min(here + 8, stop)
            for place in range(last - 1, here - 1, -1):
                word = (word << _S8) | np.uint64(data[place])
            state = (state ^ word) * _ONE
            state = (state ^ (state >> _S27)) * _TWO
            state = state ^ (state >> _S31)
            here = last
        hashes[row] = state


def hash_keys(
    data: npt.NDArray[np.uint8], offsets: npt.NDArray[np.int64]
) -> npt.NDArray[np.uint64]:
    """Return the hash of each key; key i is `data[offsets[i]:offsets[i + 1]]`."""
    hashes = np.zeros(max(0, len(offsets) - 1), np.uint64)
    _hash_keys(data, offsets, hashes)
    return hashes


def warm() -> None:
    """Compile the kernel."""
    hash_keys(np.zeros(1, np.uint8), np.array([0, 1], np.int64))
