"""HMAC-SHA-256 of a column of texts, in hexadecimal digits: many values side by side, compiled.

Values are independent of each other, so each step of the function is done for a group of them at
once. Values of about the same length share a group: a group takes as many blocks as its longest
value.
"""

from __future__ import annotations

import hashlib
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rowferry.columnar.memory import compiled, copy_bytes, frozen, load_word, store_byte, store_word
from rowferry.flow.decide.sha256_lanes import LANES, START, compress

_BLOCK: Final = 64
DIGITS: Final = 64  # of a result
_ALL: Final = np.uint32(0xFFFFFFFF)
_EVERY_BYTE: Final = np.uint64(0x0101010101010101)
_BYTES: Final = np.uint64(0x00FF00FF00FF00FF)
_NIBBLES: Final = np.uint64(0x000F000F000F000F)
_PAIRS: Final = np.uint64(0x0000FFFF0000FFFF)


@compiled
def _turned(word: Any) -> Any:
    """Return the bytes of a number in the other order."""
    x = np.uint64(word)
    x = (x >> np.uint64(8)) & _BYTES | (x & _BYTES) << np.uint64(8)
    x = (x >> np.uint64(16)) & _PAIRS | (x & _PAIRS) << np.uint64(16)
    return x >> np.uint64(32) | x << np.uint64(32)


@compiled
def _digits(number: Any) -> Any:
    """Return the eight hexadecimal digits of 32 bits, the first in the lowest byte."""
    x = _turned(np.uint64(number)) >> np.uint64(32)
    x = (x | x << np.uint64(16)) & _PAIRS
    x = (x | x << np.uint64(8)) & _BYTES
    x = (x >> np.uint64(4)) & _NIBBLES | (x & _NIBBLES) << np.uint64(8)
    letters = (x + _EVERY_BYTE * np.uint64(6)) >> np.uint64(4) & _EVERY_BYTE
    return x + _EVERY_BYTE * np.uint64(0x30) + letters * np.uint64(0x27)


@compiled
def _put_block(address: int, words: Any, lane: int) -> None:
    """Put 64 bytes at an address into the words of a lane."""
    for i in range(8):
        pair = _turned(load_word(address + 8 * i))
        words[2 * i, lane] = np.uint32(pair >> np.uint64(32))
        words[2 * i + 1, lane] = np.uint32(pair & np.uint64(0xFFFFFFFF))


@compiled
def _put_end(address: int, left: int, size: int, part: int, words: Any, lane: int) -> None:
    """Put the block into a lane that holds the last `left` bytes of a message, by way of `part`."""
    for i in range(8):
        store_word(part + 8 * i, np.uint64(0))
    copy_bytes(part, address, left)
    store_byte(part + left, np.uint8(0x80))
    _put_block(part, words, lane)
    if left + 9 <= _BLOCK:
        _put_length(size, words, lane)


@compiled
def _put_length(size: int, words: Any, lane: int) -> None:
    bits = np.uint64((size + _BLOCK) * 8)  # the key's block is in front of it
    words[14, lane] = np.uint32(bits >> np.uint64(32))
    words[15, lane] = np.uint32(bits & np.uint64(0xFFFFFFFF))


@compiled
def _put_mark(size: int, words: Any, lane: int) -> None:
    """Put the block into a lane that follows a message, and holds nothing of it."""
    words[0, lane] = np.uint32(0x80000000) if size % _BLOCK == 0 else np.uint32(0)
    for i in range(1, 14):
        words[i, lane] = np.uint32(0)
    _put_length(size, words, lane)


@compiled
def _hex_hmacs(
    begins: Any,
    sizes: Any,
    data: int,
    order: Any,
    inner: Any,
    outer: Any,
    out: int,
) -> None:
    """Write the digits of each value's HMAC; the places were checked by the caller."""
    words = np.zeros((16, LANES), np.uint32)
    state = np.zeros((8, LANES), np.uint32)
    active = np.zeros(LANES, np.uint32)
    scratch = np.zeros(_BLOCK, np.uint8)
    part = scratch.ctypes.data
    count = len(order)
    for first in range(0, count, LANES):
        lanes = min(LANES, count - first)
        blocks = 0
        for lane in range(lanes):
            blocks = max(blocks, (sizes[order[first + lane]] + 9 + _BLOCK - 1) // _BLOCK)
        for i in range(8):
            state[i, :] = inner[i]
        active[:] = 0
        for block in range(blocks):
            at = block * _BLOCK
            for lane in range(lanes):
                row = order[first + lane]
                size = sizes[row]
                if size - at >= _BLOCK:
                    active[lane] = _ALL
                    _put_block(data + begins[row] + at, words, lane)
                elif size > at:
                    active[lane] = _ALL
                    _put_end(data + begins[row] + at, size - at, size, part, words, lane)
                elif size + 9 > at:
                    active[lane] = _ALL
                    _put_mark(size, words, lane)
                else:
                    active[lane] = 0
            compress(state.ctypes.data, words.ctypes.data, active.ctypes.data)
        active[:] = _ALL
        words[:8, :] = state
        words[8, :] = np.uint32(0x80000000)
        words[9:15, :] = np.uint32(0)
        words[15, :] = np.uint32((_BLOCK + 32) * 8)
        for i in range(8):
            state[i, :] = outer[i]
        compress(state.ctypes.data, words.ctypes.data, active.ctypes.data)
        for lane in range(lanes):
            place = out + order[first + lane] * DIGITS
            for i in range(8):
                store_word(place + 8 * i, _digits(state[i, lane]))


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
        order, valid = np.arange(count), None
        if values.null_count:
            order = np.flatnonzero(values.is_valid().to_numpy(zero_copy_only=False))
            valid = pa.array(values.is_valid()).buffers()[1]
        blocks = (sizes[order] + 9 + _BLOCK - 1) // _BLOCK
        if len(order) and blocks.min() != blocks.max():
            order = order[np.argsort(blocks, kind="stable")]
        out = np.zeros(count * DIGITS, np.uint8)
        begins, lengths, turns = map(frozen, (places[:-1], sizes, order))
        inner, outer = frozen(self._inner), frozen(self._outer)
        _hex_hmacs(begins, lengths, data.ctypes.data, turns, inner, outer, out.ctypes.data)
        ends = np.arange(0, (count + 1) * DIGITS, DIGITS, dtype=np.int64)
        return pa.LargeStringArray.from_buffers(
            count, pa.py_buffer(ends), pa.py_buffer(out), valid, values.null_count
        )


@compiled
def _compressed(state: Any, words: Any, active: Any) -> None:
    compress(state.ctypes.data, words.ctypes.data, active.ctypes.data)


def _state_behind(block: bytes) -> npt.NDArray[np.uint32]:
    """Return the function's state behind one block, from its beginning."""
    state = np.repeat(START[:, None], LANES, axis=1)
    numbers = np.frombuffer(block, ">u4").astype(np.uint32)
    words = np.repeat(numbers[:, None], LANES, axis=1)
    _compressed(state, words, np.full(LANES, _ALL))
    return np.ascontiguousarray(state[:, 0])


def warm() -> None:
    """Compile the kernels."""
    HexHmac(b"key").of(pa.array([b"value", b"x" * 70, None], pa.large_binary()))
