"""Answers of a range leader as columns: where each key and value lies in the raw bytes.

A pull answer holds many thousand small messages. Building an object for each would cost more than
everything that follows, so a compiled scan walks the protobuf bytes once and notes offsets; the few
other fields of the answer are copied out and parsed as usual.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from numba import njit

from rowferry.errors import CorruptLog

Bytes = npt.NDArray[np.uint8]
Places = npt.NDArray[np.int64]

DELETE = 1  # CdcChangeData.ChangeType
_CUT_BYTES: Final = 4 << 20  # of keys and values in a page that `recut` makes


@dataclass(frozen=True, slots=True)
class Page:
    """Row changes of one answer, in its order. `*_len` is -1 where a field is absent."""

    raw: Bytes
    kind: npt.NDArray[np.int8]
    commit_ts: npt.NDArray[np.uint64]
    key_at: Places
    key_len: Places
    value_at: Places
    value_len: Places
    old_at: Places
    old_len: Places

    def __len__(self) -> int:
        return len(self.kind)

    def key(self, place: int) -> bytes:
        """Return one key."""
        at, size = int(self.key_at[place]), int(self.key_len[place])
        return self.raw[at : at + size].tobytes()

    def value(self, place: int) -> bytes:
        """Return one value."""
        at, size = int(self.value_at[place]), int(self.value_len[place])
        return self.raw[at : at + max(size, 0)].tobytes()

    def slice(self, start: int, stop: int) -> Page:
        """Return the changes [start, stop), without copying the bytes."""
        return Page(self.raw, *(getattr(self, n)[start:stop] for n in _COLUMNS))

    def take(self, wanted: npt.NDArray[Any]) -> Page:
        """Return the changes at these places (or under this mask), in this order."""
        return Page(self.raw, *(getattr(self, n)[wanted] for n in _COLUMNS))

    def sizes(self) -> Places:
        """Return how many bytes each change has: its key and its values."""
        key, value, old = (np.maximum(getattr(self, name), 0) for name in _LENGTHS)
        sizes: Places = key + value + old
        return sizes

    def compact(self) -> Page:
        """Return the same changes without the bytes of others, where those are most."""
        sizes = np.concatenate([np.maximum(getattr(self, name), 0) for name in _LENGTHS])
        ends = np.cumsum(sizes)
        if not len(ends) or 2 * int(ends[-1]) >= len(self.raw):
            return self
        at = ends - sizes
        before = np.concatenate([getattr(self, name) for name in _PLACES])
        raw = self.raw[np.repeat(before - at, sizes) + np.arange(int(ends[-1]))]
        return replace(self, raw=raw, **dict(zip(_PLACES, np.split(at, 3), strict=True)))


_COLUMNS = tuple(n for n in Page.__slots__ if n != "raw")
_PLACES = ("key_at", "value_at", "old_at")
_LENGTHS = ("key_len", "value_len", "old_len")


def join_pages(pages: list[Page]) -> Page:
    """Put several pages one after the other."""
    if len(pages) == 1:
        return pages[0]
    shift = np.cumsum([0] + [len(p.raw) for p in pages[:-1]])
    columns = {}
    for name in _COLUMNS:
        parts = [getattr(p, name) for p in pages]
        if name in _PLACES:
            parts = [part + by for part, by in zip(parts, shift, strict=True)]
        columns[name] = np.concatenate(parts)
    return Page(np.concatenate([p.raw for p in pages]), **columns)


def recut(pages: Iterable[Page]) -> Iterator[Page]:
    """Yield the same changes in pages whose ends depend on nothing but them.

    As they come, pages end where ranges were split and where a leader had no more. Sinks that count
    messages, or know requests by their content, must get the same ones each time.
    """
    held: list[Page] = []
    size = 0
    for page in pages:
        while len(page):
            ends = np.cumsum(page.sizes()) + size
            cut = int(np.searchsorted(ends, _CUT_BYTES)) + 1
            if cut > len(page):
                held.append(page.compact())
                size = int(ends[-1])
                break
            head, page = page.slice(0, cut), page.slice(cut, len(page))
            yield join_pages([*held, head.compact()]) if held else head
            held, size = [], 0
    if held:
        yield join_pages(held)


def read_page(answer: bytes, field: int, where: str) -> tuple[Page, bytes]:
    """Scan a pull answer whose repeated row changes have field number `field`.

    Returns the page and the answer's other fields as protobuf bytes.

    Raises:
        CorruptLog: the bytes are no such message; names `where` and the byte.
    """
    raw = np.frombuffer(answer, np.uint8)
    count, rest_size, bad = _measure(raw, field)
    if bad >= 0:
        raise CorruptLog(f"{where}: malformed answer at byte {bad}")
    kind = np.zeros(count, np.int8)
    commit_ts = np.zeros(count, np.uint64)
    places = np.full((6, count), -1, np.int64)
    rest = np.empty(rest_size, np.uint8)
    bad = _scan(raw, field, kind, commit_ts, places, rest)
    if bad >= 0:
        raise CorruptLog(f"{where}: malformed row change at byte {bad}")
    return Page(raw, kind, commit_ts, *places), rest.tobytes()


@njit(cache=True, nogil=True)
def _varint(raw: Bytes, at: Any, end: Any) -> Any:
    """Return (value, next place); next place -1 when the bytes end or run over."""
    value = np.uint64(0)
    shift = np.uint64(0)
    while at < end and shift < 70:
        byte = raw[at]
        at += 1
        value |= np.uint64(byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += np.uint64(7)
    return value, -1


@njit(cache=True, nogil=True)
def _skip(raw: Bytes, at: Any, end: Any, wire_type: Any) -> Any:
    """Return the place after a field's value, or -1 when it is malformed."""
    if wire_type == 0:
        _, at = _varint(raw, at, end)
        return at
    if wire_type == 1:
        return at + 8 if at + 8 <= end else -1
    if wire_type == 5:
        return at + 4 if at + 4 <= end else -1
    if wire_type == 2:
        size, at = _varint(raw, at, end)
        if at < 0 or size > np.uint64(end - at):
            return -1
        return at + np.int64(size)
    return -1


@njit(cache=True, nogil=True)
def _measure(raw: Bytes, field: int) -> tuple[int, int, int]:
    """Count the row changes and the bytes of everything else; third: a bad place or -1."""
    at: Any = 0
    end, count, rest = len(raw), 0, 0
    while at < end:
        start = at
        tag, at = _varint(raw, at, end)
        if at < 0:
            return 0, 0, start
        wire_type = np.int64(tag & np.uint64(7))
        number = np.int64(tag >> np.uint64(3))
        at = _skip(raw, at, end, wire_type)
        if at < 0:
            return 0, 0, start
        if number == field and wire_type == 2:
            count += 1
        else:
            rest += at - start
    return count, rest, -1


@njit(cache=True, nogil=True)
def _scan(
    raw: Bytes,
    field: int,
    kind: npt.NDArray[np.int8],
    commit_ts: npt.NDArray[np.uint64],
    places: npt.NDArray[np.int64],
    rest: Bytes,
) -> Any:
    """Note where everything is; `_measure` checked the outer fields. Returns a bad place or -1."""
    at: Any = 0
    end, row, filled = len(raw), 0, 0
    while at < end:
        start = at
        tag, at = _varint(raw, at, end)
        wire_type = np.int64(tag & np.uint64(7))
        number = np.int64(tag >> np.uint64(3))
        if number != field or wire_type != 2:
            at = _skip(raw, at, end, wire_type)
            for i in range(start, at):
                rest[filled] = raw[i]
                filled += 1
            continue
        size, at = _varint(raw, at, end)
        stop = at + np.int64(size)
        # proto3 leaves empty fields out: a missing key or value is an empty one.
        places[0, row], places[1, row] = at, 0
        places[2, row], places[3, row] = at, 0
        while at < stop:
            inner, nxt = _varint(raw, at, stop)
            if nxt < 0:
                return at
            inner_type = np.int64(inner & np.uint64(7))
            inner_number = np.int64(inner >> np.uint64(3))
            if inner_type == 0:
                value, after = _varint(raw, nxt, stop)
                if after < 0:
                    return at
                if inner_number == 1:
                    kind[row] = np.int8(value)
                elif inner_number == 4:
                    commit_ts[row] = value
                at = after
            elif inner_type == 2:
                length, begin = _varint(raw, nxt, stop)
                if begin < 0 or length > np.uint64(stop - begin):
                    return at
                if inner_number == 2:
                    places[0, row], places[1, row] = begin, np.int64(length)
                elif inner_number == 3:
                    places[2, row], places[3, row] = begin, np.int64(length)
                elif inner_number == 5:
                    places[4, row], places[5, row] = begin, np.int64(length)
                at = begin + np.int64(length)
            else:
                after = _skip(raw, nxt, stop, inner_type)
                if after < 0:
                    return at
                at = after
        row += 1
    return -1


def warm() -> None:
    """Compile the kernels on a small answer, so that the on-disk cache holds them."""
    change = bytes([0x08, 1, 0x12, 1, 97, 0x1A, 1, 98, 0x20, 5, 0x2A, 1, 99])
    read_page(bytes([0x12, len(change)]) + change + bytes([0x18, 7]), 2, "warm-up")
