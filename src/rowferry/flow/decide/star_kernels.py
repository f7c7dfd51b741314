"""Texts of stars with their last characters as they are, compiled."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa

from rowferry.columnar.memory import compiled, frozen

_STAR: Final = np.uint8(ord("*"))


@compiled
def has_wide(data: Any, begin: int, end: int) -> Any:
    """Return whether any character has more than one byte."""
    seen = np.uint8(0)
    for byte in data[begin:end]:
        seen |= byte
    return seen >= 0x80


@compiled
def _measure(places: Any, data: Any, keep: int, stars: Any, tails: Any) -> None:
    """Write how many stars and how many bytes behind them each text becomes."""
    count = len(stars)
    if not has_wide(data, places[0], places[count]):
        for row in range(count):
            size = places[row + 1] - places[row]
            tails[row] = keep if size > keep else 0
            stars[row] = size - tails[row]
        return
    for row in range(count):
        begin, end = places[row], places[row + 1]
        characters = 0
        for at in range(begin, end):
            characters += (data[at] & 0xC0) != 0x80
        tail = end
        if characters > keep:
            left = keep
            while left > 0:
                tail -= 1
                left -= (data[tail] & 0xC0) != 0x80
            stars[row] = characters - keep
        else:
            stars[row] = characters
        tails[row] = end - tail


@compiled
def _put_tails(places: Any, data: Any, tails: Any, ends: Any, out: Any) -> None:
    """Copy the last bytes of each text over what stands there."""
    for row in range(len(tails)):
        tail = tails[row]
        source, target = places[row + 1] - tail, ends[row + 1] - tail
        for i in range(tail):
            out[target + i] = data[source + i]


def keep_last(texts: pa.LargeStringArray, keep: int) -> pa.LargeStringArray:
    """Return texts of stars with the last characters as they are; short ones are stars only."""
    count = len(texts)
    if not count:
        return pa.array([], pa.large_utf8())
    places = np.frombuffer(texts.buffers()[1], np.int64)[texts.offset : texts.offset + count + 1]
    content = texts.buffers()[2]
    data = np.frombuffer(content if content is not None else b"", np.uint8)
    if len(places) != count + 1 or places[0] < 0 or (np.diff(places) < 0).any():
        raise ValueError("a column's texts do not follow each other")
    if places[-1] > len(data):
        raise ValueError("a column's texts lie outside of its data")
    stars, tails = np.empty(count, np.int64), np.empty(count, np.int64)
    _measure(frozen(places), frozen(data), keep, stars, tails)
    valid = None
    if texts.null_count:  # what may lie below a NULL is nobody's
        nulls = texts.is_null().to_numpy(zero_copy_only=False)
        stars[nulls] = tails[nulls] = 0
        valid = pa.array(texts.is_valid()).buffers()[1]
    ends = np.zeros(count + 1, np.int64)
    np.cumsum(stars + tails, out=ends[1:])
    out = np.full(ends[-1], _STAR)
    _put_tails(frozen(places), frozen(data), frozen(tails), frozen(ends), out)
    return pa.LargeStringArray.from_buffers(
        count, pa.py_buffer(ends), pa.py_buffer(out), valid, texts.null_count
    )


def warm() -> None:
    """Compile the kernels."""
    keep_last(pa.array(["value", None], pa.large_utf8()), 2)
