"""HMAC-SHA-256 of a column of texts, in hexadecimal digits: many values side by side, compiled.

Values are independent of each other, so each step of the function is done for a group of them at
once, which the compiler turns into instructions over several numbers. Values of about the same
length share a group: a group takes as many blocks as its longest value.
"""

from __future__ import annotations

import hashlib
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rowferry.columnar.memory import compiled, frozen

_LANES: Final = 64
_BLOCK: Final = 64
DIGITS: Final = 64  # of a result


def _primes(count: int) -> list[int]:
    primes: list[int] = []
    number = 2
    while len(primes) < count:
        if all(number % p for p in primes):
            primes.append(number)
        number += 1
    return primes


def _fraction(prime: int, root: int) -> int:
    """Return the first 32 bits of the fraction of a prime's square or cube root."""
    wanted = prime << 32 * root
    rooted = int(wanted ** (1 / root))
    while rooted**root > wanted:
        rooted -= 1
    while (rooted + 1) ** root <= wanted:
        rooted += 1
    return rooted & 0xFFFFFFFF


_K: Final = np.array([_fraction(p, 3) for p in _primes(64)], np.uint32)
_START: Final = np.array([_fraction(p, 2) for p in _primes(8)], np.uint32)
_HEX: Final = np.frombuffer(b"0123456789abcdef", np.uint8)


@compiled
def _compress(state: Any, w: Any, v: Any, active: Any) -> None:
    """Add a block to the state of each lane that is active; `w` has it in its first 16 rows."""
    for t in range(16, 64):
        for lane in range(_LANES):
            x = np.uint32(w[t - 15, lane])
            y = np.uint32(w[t - 2, lane])
            low = (x >> 7 | x << 25) ^ (x >> 18 | x << 14) ^ (x >> 3)
            high = (y >> 17 | y << 15) ^ (y >> 19 | y << 13) ^ (y >> 10)
            w[t, lane] = np.uint32(w[t - 16, lane] + low + w[t - 7, lane] + high)
    for i in range(8):
        for lane in range(_LANES):
            v[i, lane] = state[i, lane]
    for t in range(64):
        # The eight variables change places by their numbers: nothing is moved.
        ia, ib, ic, id_ = (64 - t) & 7, (65 - t) & 7, (66 - t) & 7, (67 - t) & 7
        ie, if_, ig, ih = (68 - t) & 7, (69 - t) & 7, (70 - t) & 7, (71 - t) & 7
        k = _K[t]
        for lane in range(_LANES):
            e = np.uint32(v[ie, lane])
            a = np.uint32(v[ia, lane])
            b, c = v[ib, lane], v[ic, lane]
            turned = (e >> 6 | e << 26) ^ (e >> 11 | e << 21) ^ (e >> 25 | e << 7)
            chosen = (e & v[if_, lane]) ^ (~e & v[ig, lane])
            one = np.uint32(v[ih, lane] + turned + chosen + k + w[t, lane])
            other = (a >> 2 | a << 30) ^ (a >> 13 | a << 19) ^ (a >> 22 | a << 10)
            most = (a & b) ^ (a & c) ^ (b & c)
            v[id_, lane] = np.uint32(v[id_, lane] + one)
            v[ih, lane] = np.uint32(one + other + most)
    for i in range(8):
        for lane in range(_LANES):
            state[i, lane] = np.uint32(state[i, lane] + v[i, lane] * active[lane])


@compiled
def _message_byte(data: Any, begin: int, size: int, at: int, last: int) -> Any:
    """Return a byte of a padded message: its own, the mark behind it, zeros, or its length."""
    if at < size:
        return data[begin + at]
    if at == size:
        return np.uint8(0x80)
    if at >= last - 8:
        bits = (size + _BLOCK) * 8  # the key's block is in front of it
        return np.uint8(bits >> 8 * (last - 1 - at) & 255)
    return np.uint8(0)


@compiled
def _hex_hmacs(
    begins: Any, sizes: Any, data: Any, order: Any, inner: Any, outer: Any, out: Any
) -> None:
    """Write the digits of each value's HMAC; the places were checked by the caller."""
    w = np.zeros((64, _LANES), np.uint32)
    v = np.zeros((8, _LANES), np.uint32)
    state = np.zeros((8, _LANES), np.uint32)
    active = np.zeros(_LANES, np.uint32)
    count = len(order)
    for first in range(0, count, _LANES):
        lanes = min(_LANES, count - first)
        blocks = 0
        for lane in range(lanes):
            blocks = max(blocks, (sizes[order[first + lane]] + 9 + _BLOCK - 1) // _BLOCK)
        for i in range(8):
            for lane in range(_LANES):
                state[i, lane] = inner[i]
        for block in range(blocks):
            for lane in range(lanes):
                row = order[first + lane]
                size = sizes[row]
                last = (size + 9 + _BLOCK - 1) // _BLOCK * _BLOCK
                active[lane] = 1 if block * _BLOCK < last else 0
                if active[lane]:
                    for i in range(16):
                        word = np.uint32(0)
                        for j in range(4):
                            at = block * _BLOCK + i * 4 + j
                            byte = _message_byte(data, begins[row], size, at, last)
                            word = np.uint32(word << 8 | byte)
                        w[i, lane] = word
            _compress(state, w, v, active)
        for lane in range(_LANES):
            active[lane] = 1
            for i in range(8):
                w[i, lane] = state[i, lane]
            w[8, lane] = np.uint32(0x80000000)
            for i in range(9, 15):
                w[i, lane] = 0
            w[15, lane] = np.uint32((_BLOCK + 32) * 8)
        for i in range(8):
            for lane in range(_LANES):
                state[i, lane] = outer[i]
        _compress(state, w, v, active)
        for lane in range(lanes):
            place = order[first + lane] * DIGITS
            for i in range(8):
                word = state[i, lane]
                for j in range(8):
                    out[place + i * 8 + j] = _HEX[word >> (28 - 4 * j) & 15]


class HexHmac:
    """HMAC-SHA-256 with one key."""

    def __init__(self, key: bytes) -> None:
        """Take the key in: it stands in front of each value as one block."""
        block = (hashlib.sha256(key).digest() if len(key) > _BLOCK else key).ljust(_BLOCK, b"\0")
        self._inner = _state_behind(bytes(b ^ 0x36 for b in block))
        self._outer = _state_behind(bytes(b ^ 0x5C for b in block))

    def __repr__(self) -> str:
        return "HexHmac(***)"

    def of(self, values: pa.LargeBinaryArray) -> pa.LargeStringArray:
        """Return 64 lower-case digits for each value; NULL for NULL."""
        count = len(values)
        if not count:
            return pa.array([], pa.large_utf8())
        places = np.frombuffer(values.buffers()[1], np.int64)
        places = places[values.offset : values.offset + count + 1]
        content = values.buffers()[2]
        data = np.frombuffer(content if content is not None else b"", np.uint8)
        sizes = np.diff(places)
        if len(places) != count + 1 or places[0] < 0 or (sizes < 0).any() or places[-1] > len(data):
            raise ValueError("a column's texts lie outside of its data")
        valid = None
        if values.null_count:
            sizes = np.where(values.is_valid().to_numpy(zero_copy_only=False), sizes, 0)
            valid = pa.array(values.is_valid()).buffers()[1]
        order = np.arange(count)
        if sizes.max() + 9 > _BLOCK:
            order = np.argsort((sizes + 9 + _BLOCK - 1) // _BLOCK, kind="stable")
        out = np.empty(count * DIGITS, np.uint8)
        data = data if len(data) else np.zeros(1, np.uint8)
        begins, lengths, text, turns = map(frozen, (places[:-1], sizes, data, order))
        inner, outer = frozen(self._inner), frozen(self._outer)
        _hex_hmacs(begins, lengths, text, turns, inner, outer, out)
        ends = np.arange(0, (count + 1) * DIGITS, DIGITS, dtype=np.int64)
        return pa.LargeStringArray.from_buffers(
            count, pa.py_buffer(ends), pa.py_buffer(out), valid, values.null_count
        )


def _state_behind(block: bytes) -> npt.NDArray[np.uint32]:
    """Return the function's state behind one block, from its beginning."""
    state = np.repeat(_START[:, None], _LANES, axis=1)
    w = np.zeros((64, _LANES), np.uint32)
    w[:16] = np.frombuffer(block, ">u4").astype(np.uint32)[:, None]
    _compress(state, w, np.zeros((8, _LANES), np.uint32), np.ones(_LANES, np.uint32))
    return np.ascontiguousarray(state[:, 0])


def warm() -> None:
    """Compile the kernels."""
    HexHmac(b"key").of(pa.array([b"value", b"x" * 70, None], pa.large_binary()))
