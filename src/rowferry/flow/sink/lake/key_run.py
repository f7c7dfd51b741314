"""Key runs: where the keys of one data file are, sorted by code.

A run lies beside its data file and is derived from it: one that is missing is made anew. Its bytes:

    RFRUN001 | count u64 | bytes of keys u64 | length of the names u64 | names, padded to 8
    codes u64 × count, ascending | rows u32 × count, padded to 8
    ends of keys u64 × (count + 1) | keys          only where a code is not the whole key

The names are those of the key's columns in the data file, as JSON. A row of 2³²-1 means that the
micro-batch has deleted the key.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rowferry.flow.sink.lake.keys import Codes, Keys, Places

MAGIC: Final = b"RFRUN001"
GONE: Final = 0xFFFFFFFF
_HEAD: Final = struct.Struct("<8sQQQ")


@dataclass(frozen=True, slots=True)
class KeyRun:
    """The keys of one data file, ascending by code, and the row of each."""

    names: tuple[str, ...]
    keys: Keys
    rows: npt.NDArray[np.uint32]

    @classmethod
    def make(cls, names: Sequence[str], keys: Keys, rows: npt.NDArray[np.uint32]) -> KeyRun:
        """Sort keys by their codes."""
        order = np.argsort(keys.codes, kind="stable")
        return cls(tuple(names), keys.take(order), rows[order])

    def content(self) -> bytes:
        """Return the bytes of the run; `read` reads them."""
        names = json.dumps(self.names).encode()
        count = len(self.keys)
        parts = [np.ascontiguousarray(self.keys.codes, "<u8").tobytes()]
        parts.append(_padded(np.ascontiguousarray(self.rows, "<u4").tobytes()))
        size = 0
        if self.keys.texts is not None:
            ends, data = _raw(self.keys.texts)
            size = len(data)
            parts += [ends.astype("<u8").tobytes(), data.tobytes()]
        head = _HEAD.pack(MAGIC, count, size if self.keys.texts is not None else GONE, len(names))
        return b"".join([head, _padded(names), *parts])

    @classmethod
    def read(cls, data: npt.NDArray[np.uint8]) -> KeyRun | None:
        """Read a run without copying it; None: these are not the bytes of one."""
        if len(data) < _HEAD.size:
            return None
        magic, count, size, named = _HEAD.unpack(data[: _HEAD.size].tobytes())
        at = _HEAD.size + _up(named)
        ends_at = at + 8 * count + _up(4 * count)
        whole = ends_at if size == GONE else ends_at + 8 * (count + 1) + size
        if magic != MAGIC or whole != len(data):
            return None
        names = _names(data[_HEAD.size : _HEAD.size + named].tobytes())
        if names is None:
            return None
        codes = data[at : at + 8 * count].view("<u8")
        rows = data[at + 8 * count : at + 12 * count].view("<u4")
        texts = None
        if size != GONE:
            bounds = data[ends_at : ends_at + 8 * (count + 1)].view("<u8")
            # Whoever may write beside the data files must not have us read beyond the run's end.
            if bounds[0] or bounds[-1] > size or np.any(bounds[1:] < bounds[:-1]):
                return None
            ends = pa.py_buffer(bounds)
            body = pa.py_buffer(data[ends_at + 8 * (count + 1) :])
            texts = pa.LargeBinaryArray.from_buffers(pa.large_binary(), count, [None, ends, body])
        return cls(names, Keys(codes, texts), rows)

    def look_up(
        self, wanted: Keys, among: Places | None = None
    ) -> tuple[Places, npt.NDArray[np.uint32]]:
        """Return which of the wanted keys are here, and their rows; `wanted` is sorted by code.

        Each hit is compared with the real key. Of the wanted keys those at the places `among`,
        which ascend, are looked up; None: all.
        """
        codes = self.keys.codes
        if among is None:
            among = np.arange(len(wanted), dtype=np.int64)
        if not len(codes) or not len(among):
            return np.zeros(0, np.int64), np.zeros(0, np.uint32)
        if (self.keys.texts is None) != (wanted.texts is None):
            run = KeyRun.make(self.names, self.keys.spelled(), self.rows)
            others = wanted.take(among).spelled()
            order = np.argsort(others.codes, kind="stable")
            places, rows = run.look_up(others.take(order))
            return among[order[places]], rows
        # Only those between the least and the most that are here can be.
        needles: Codes = wanted.codes[among]
        first = int(np.searchsorted(needles, codes[0], "left"))
        last = int(np.searchsorted(needles, codes[-1], "right"))
        needles, among = needles[first:last], among[first:last]
        left = np.searchsorted(codes, needles, "left")
        left = np.minimum(left, len(codes) - 1)
        hit = np.flatnonzero(codes[left] == needles)
        if self.keys.texts is None or wanted.texts is None:
            return among[hit], np.asarray(self.rows[left[hit]])
        begin = left[hit]
        count = np.searchsorted(codes, needles[hit], "right") - begin
        which = np.repeat(among[hit], count)
        within = np.arange(len(which)) - np.repeat(np.cumsum(count) - count, count)
        place = np.repeat(begin, count) + within
        same = pc.equal(self.keys.texts.take(pa.array(place)), wanted.texts.take(pa.array(which)))
        real = same.to_numpy(zero_copy_only=False).astype(np.bool_)
        return which[real].astype(np.int64), np.asarray(self.rows[place[real]])


def _names(data: bytes) -> tuple[str, ...] | None:
    try:
        names = json.loads(data)
    except (ValueError, RecursionError):
        return None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        return None
    return tuple(names)


def _up(size: int) -> int:
    return (size + 7) // 8 * 8


def _padded(data: bytes) -> bytes:
    return data + b"\0" * (_up(len(data)) - len(data))


def _raw(texts: pa.LargeBinaryArray) -> tuple[npt.NDArray[np.int64], npt.NDArray[Any]]:
    """Return the ends of values from 0 on, and their bytes."""
    if not len(texts):
        return np.zeros(1, np.int64), np.zeros(0, np.uint8)
    _, offsets, data = texts.buffers()
    ends = np.frombuffer(offsets, np.int64)[texts.offset : texts.offset + len(texts) + 1]
    raw = np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)
    return ends - ends[0], raw[ends[0] : ends[-1]]
