"""Key-value pairs as columns: what a transaction writes, what a range holds, what the log says.

`Pairs` are spans of one buffer; `Run` adds the commit-ts of each pair and is ascending by key, so
it can be searched, merged and cut without touching a row in Python.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from rowferry.errors import StoreDamaged
from rowferry.refstore.storage import kernels
from rowferry.refstore.storage.kernels import LOG_TAG, Bytes, Places, Stamps, frozen

NO_BYTES: Bytes = frozen(np.empty(0, np.uint8))


def as_bytes(raw: bytes | bytearray | memoryview) -> Bytes:
    """Return bytes as a read-only array, without a copy."""
    return frozen(np.frombuffer(raw, np.uint8))


@dataclass(frozen=True, slots=True)
class Pairs:
    """Keys and values; a value length of -1 means that the row is deleted."""

    blob: Bytes
    key_at: Places
    key_len: Places
    value_at: Places
    value_len: Places

    def __len__(self) -> int:
        return int(self.key_at.size)

    @classmethod
    def of(cls, items: Sequence[tuple[bytes, bytes | None]]) -> Pairs:
        """Put pairs from Python values together, in the given order."""
        blob = b"".join(k + (v or b"") for k, v in items)
        key_len = np.fromiter((len(k) for k, _ in items), np.int64, len(items))
        stored = np.fromiter((len(v or b"") for _, v in items), np.int64, len(items))
        gone = np.fromiter((v is None for _, v in items), np.bool_, len(items))
        ends = np.cumsum(key_len + stored)
        key_at = ends - stored - key_len
        return cls.make(as_bytes(blob), key_at, key_len, ends - stored, np.where(gone, -1, stored))

    @classmethod
    def make(cls, blob: Bytes, key_at: Any, key_len: Any, value_at: Any, value_len: Any) -> Pairs:
        """Put columns together; they become read-only."""
        return cls(
            frozen(blob), frozen(key_at), frozen(key_len), frozen(value_at), frozen(value_len)
        )

    def key(self, i: int) -> bytes:
        """Return one key."""
        return self.blob[self.key_at[i] : self.key_at[i] + self.key_len[i]].tobytes()

    def value(self, i: int) -> bytes | None:
        """Return one value; None: deleted."""
        if self.value_len[i] < 0:
            return None
        return self.blob[self.value_at[i] : self.value_at[i] + self.value_len[i]].tobytes()

    def items(self) -> Iterable[tuple[bytes, bytes | None]]:
        """Return all pairs as Python values; for few rows."""
        return ((self.key(i), self.value(i)) for i in range(len(self)))

    def take(self, where: npt.NDArray[Any] | slice) -> Pairs:
        """Return the pairs at these places; the buffer is shared."""
        return Pairs.make(
            self.blob,
            self.key_at[where],
            self.key_len[where],
            self.value_at[where],
            self.value_len[where],
        )

    def lower_bound(self, key: bytes) -> int:
        """Return the first place whose key is not below `key`; pairs must be ascending."""
        return kernels.lower_bound(self.blob, self.key_at, self.key_len, as_bytes(key))

    def find(self, asked: Pairs) -> Places:
        """Return each asked key's place here, or -1; both must be ascending."""
        return kernels.find(
            self.blob, self.key_at, self.key_len, asked.blob, asked.key_at, asked.key_len
        )

    def common_key(self, other: Pairs) -> bytes | None:
        """Return a key that both hold, or None; both must be ascending."""
        few, many = (self, other) if len(self) <= len(other) else (other, self)
        hits = np.flatnonzero(many.find(few) >= 0)
        return few.key(int(hits[0])) if hits.size else None

    def compact(self) -> Pairs:
        """Return the same pairs in a buffer of their own: key, value, key, value."""
        stored = np.maximum(self.value_len, 0)
        ends = np.cumsum(self.key_len + stored)
        blob = np.empty(int(ends[-1]) if ends.size else 0, np.uint8)
        key_at, value_at = frozen(ends - stored - self.key_len), frozen(ends - stored)
        kernels.copy_spans(self.blob, self.key_at, self.key_len, blob, key_at)
        kernels.copy_spans(self.blob, self.value_at, self.value_len, blob, value_at)
        return Pairs.make(blob, key_at, self.key_len, value_at, self.value_len)

    def entries(
        self, tag: int, commit_ts: Stamps, old: tuple[Bytes, Places, Places] | None = None
    ) -> tuple[bytes, Places]:
        """Return the pairs as CDC entries, one after another, and where each ends.

        `old` holds the values before the change (a length of -1: there was none).
        """
        none = frozen(np.full(len(self), -1, np.int64))
        old_blob, old_at, old_len = old or (NO_BYTES, none, none)
        old_blob, old_at, old_len = frozen(old_blob), frozen(old_at), frozen(old_len)
        ts = frozen(commit_ts)
        body = frozen(kernels.entry_bodies(self.key_len, self.value_len, old_len, ts))
        ends = kernels.entry_ends(body)
        out = np.empty(int(ends[-1]) if ends.size else 0, np.uint8)
        kernels.write_entries(
            tag, self.blob, self.key_at, self.key_len, self.value_at, self.value_len,
            old_blob, old_at, old_len, ts, body, out,
        )  # fmt: skip
        return out.tobytes(), ends


NO_PAIRS = Pairs.of([])


@dataclass(frozen=True, slots=True)
class Entries:
    """CDC entries read back: where each stands, its pair and its commit-ts."""

    pairs: Pairs
    commit_ts: Stamps
    at: Places
    length: Places


def read_entries(raw: Bytes, what: str, tag: int = LOG_TAG) -> Entries:
    """Read entries from bytes; `what` names them in an error.

    Raises:
        StoreDamaged: the bytes are not entries; the text gives the position.
    """
    count, fault = kernels.count_entries(raw, tag)
    spans, ts = np.empty((count, 6), np.int64), np.empty(count, np.uint64)
    if fault < 0:
        fault = kernels.read_entries(raw, tag, spans, ts)
    if fault >= 0:
        raise StoreDamaged(f"{what}: malformed entry at byte {fault}; restore it from a copy")
    pairs = Pairs.make(raw, spans[:, 2], spans[:, 3], spans[:, 4], spans[:, 5])
    return Entries(pairs, frozen(ts), frozen(spans[:, 0]), frozen(spans[:, 1]))


@dataclass(frozen=True, slots=True)
class Run:
    """Ascending pairs with the commit-ts of each one's last write; never changes."""

    pairs: Pairs
    commit_ts: Stamps

    def __len__(self) -> int:
        return len(self.pairs)

    @classmethod
    def sorted_from(cls, pairs: Pairs, commit_ts: Stamps) -> Run:
        """Sort pairs that are in log order; the last one of equal keys wins."""
        order = kernels.sort_order(pairs.blob, pairs.key_at, pairs.key_len)
        placed = pairs.take(order)
        keep = kernels.last_of_equal(placed.blob, placed.key_at, placed.key_len)
        return cls(placed.take(keep).compact(), frozen(commit_ts[order][keep]))

    def slice(self, start: int, end: int) -> Run:
        """Return the pairs from place `start` up to `end`; the buffer is shared."""
        return Run(self.pairs.take(slice(start, end)), self.commit_ts[start:end])

    def between(self, start: bytes, end: bytes) -> Run:
        """Return the pairs with start <= key < end; an empty `end` means "to the end"."""
        last = self.pairs.lower_bound(end) if end else len(self)
        return self.slice(self.pairs.lower_bound(start), last)

    def merged(self, newer: Run) -> Run:
        """Return the union with a newer run, whose pairs win."""
        if not len(newer) or not len(self):
            return newer if len(newer) else self
        a, b = self.pairs, newer.pairs
        order = kernels.merge_order(a.blob, a.key_at, a.key_len, b.blob, b.key_at, b.key_len)
        from_b = order >= 0
        place = np.where(from_b, order, -1 - order)

        def pick(old: npt.NDArray[Any], new: npt.NDArray[Any]) -> npt.NDArray[Any]:
            out = np.empty(order.size, old.dtype)
            out[from_b] = new[place[from_b]]
            out[~from_b] = old[place[~from_b]]
            return out

        key_len, value_len = pick(a.key_len, b.key_len), pick(a.value_len, b.value_len)
        stored = np.maximum(value_len, 0)
        ends = np.cumsum(key_len + stored)
        blob = np.empty(int(ends[-1]), np.uint8)
        key_at, value_at = ends - stored - key_len, ends - stored
        for side, mine in ((a, ~from_b), (b, from_b)):
            part = side.take(place[mine])
            kernels.copy_spans(part.blob, part.key_at, part.key_len, blob, frozen(key_at[mine]))
            kernels.copy_spans(
                part.blob, part.value_at, part.value_len, blob, frozen(value_at[mine])
            )
        pairs = Pairs.make(blob, key_at, key_len, value_at, value_len)
        return Run(pairs, frozen(pick(self.commit_ts, newer.commit_ts)))

    def without_deleted(self, up_to_ts: int) -> Run:
        """Return the run without rows that were deleted at or before `up_to_ts`."""
        keep = (self.pairs.value_len >= 0) | (self.commit_ts > np.uint64(up_to_ts))
        return self if keep.all() else Run(self.pairs.take(keep), frozen(self.commit_ts[keep]))

    def cuts(self, part_bytes: int) -> list[bytes]:
        """Return keys that cut the run into parts of about that size."""
        sizes = np.cumsum(self.pairs.key_len + np.maximum(self.pairs.value_len, 0))
        if not sizes.size:
            return []
        wanted = np.arange(part_bytes, int(sizes[-1]), part_bytes)
        # A part ends where its size is reached; a sliver at the end joins the part before it.
        places = np.unique(np.searchsorted(sizes, wanted) + 1)
        return [self.pairs.key(int(i)) for i in places if 0 < i < len(self)]


EMPTY_RUN = Run(NO_PAIRS, frozen(np.empty(0, np.uint64)))
