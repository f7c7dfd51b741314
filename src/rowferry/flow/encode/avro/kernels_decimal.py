"""Compiled: decimal texts become unscaled numbers as Avro's `decimal` holds them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rowferry.columnar.memory import Bytes, Ints, compiled, frozen
from rowferry.columnar.render import text_buffers
from rowferry.errors import EncodeError

_LIMBS = 8  # of 32 bits
_MOST_DIGITS = 76  # that certainly fit into them
_MOST_BYTES = 4 * _LIMBS + 1
_LOW, _BITS, _TEN = np.uint64(0xFFFFFFFF), np.uint64(32), np.uint64(10)
_U0, _U1 = np.uint64(0), np.uint64(1)


@compiled
def _read(data: Bytes, start: int, stop: int, scale: int, limbs: Any) -> Any:
    """Read a text without its sign into `limbs`, the lowest first; return False if it is none."""
    limbs[:] = _U0
    digits, after, used = 0, -1, 1  # after: digits behind the point, -1 before it
    i = start
    while i < stop or after < scale:
        byte = np.uint64(0)
        if i < stop and data[i] == 46 and after < 0:
            after = 0
            i += 1
            continue
        if i < stop:
            if data[i] < 48 or data[i] > 57:
                return False
            byte = np.uint64(data[i] - 48)
            i += 1
            digits += 1
        elif after < 0:  # the text ends without a point
            after = 0
            continue
        if after >= 0:
            after += 1
            if after > scale:
                return False
        carry = byte
        for k in range(used):
            carry += limbs[k] * _TEN
            limbs[k] = carry & _LOW
            carry >>= _BITS
        if carry != _U0:
            if used == len(limbs):
                return False
            limbs[used] = carry
            used += 1
    return 0 < digits <= _MOST_DIGITS


@compiled
def _bit_length(limbs: Any) -> int:
    for k in range(len(limbs) - 1, -1, -1):
        if limbs[k] != _U0:
            bits, rest = 0, limbs[k]
            while rest != _U0:
                rest >>= _U1
                bits += 1
            return 32 * k + bits
    return 0


@compiled
def _minus_one(limbs: Any) -> None:
    for k in range(len(limbs)):
        if limbs[k] != _U0:
            limbs[k] -= _U1
            return
        limbs[k] = _LOW


@compiled
def _decimals(offsets: Ints, data: Bytes, valid: Any, scale: int, places: Ints, out: Bytes) -> int:
    """Write two's complements, the highest byte first; return a row that is no number, or -1."""
    limbs = np.zeros(_LIMBS, np.uint64)
    to = 0
    for row in range(len(valid)):
        places[row] = to
        if not valid[row]:
            continue
        start, stop = offsets[row], offsets[row + 1]
        negative = start < stop and data[start] == 45
        if not _read(data, start + (1 if negative else 0), stop, scale, limbs):
            return row
        flip = np.uint64(0)
        if negative and _bit_length(limbs) > 0:
            _minus_one(limbs)  # the complement of n - 1 is -n
            flip = np.uint64(255)
        size = _bit_length(limbs) // 8 + 1
        for k in range(size):
            at = size - 1 - k
            limb = limbs[at >> 2] if at >> 2 < _LIMBS else _U0
            byte = limb >> np.uint64(8 * (at & 3)) & np.uint64(255)
            out[to] = np.uint8(byte ^ flip)
            to += 1
    places[len(valid)] = to
    return -1


def decimal_bytes(values: pa.LargeStringArray, scale: int) -> pa.LargeBinaryArray:
    """Return the unscaled number of each decimal text; NULL places are empty, not NULL.

    Raises:
        EncodeError: a text is no number, or has more digits than the scale or Avro can hold.
    """
    offsets, data = text_buffers(values)
    valid = frozen(np.asarray(pc.is_valid(values).to_numpy(zero_copy_only=False)))
    places = np.zeros(len(valid) + 1, np.int64)
    out = np.empty(len(valid) * _MOST_BYTES, np.uint8)
    wrong = _decimals(offsets, data, valid, scale, places, out)
    if wrong >= 0:
        shown = bytes(data[offsets[wrong] : offsets[wrong + 1]][:40]).decode("utf-8", "replace")
        raise EncodeError(f"{shown!r} is no decimal number with {scale} digits after the point")
    return pa.LargeBinaryArray.from_buffers(
        pa.large_binary(), len(valid), [None, pa.py_buffer(places), pa.py_buffer(out[: places[-1]])]
    )


def warm() -> None:
    """Compile every kernel of this module."""
    decimal_bytes(pa.array(["-1.5"], pa.large_utf8()), 1)
