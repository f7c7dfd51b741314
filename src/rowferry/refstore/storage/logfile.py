"""The log of one range: committed transactions in commit-ts order, ready to be sent.

A record holds its index, the transaction's start-ts and commit-ts, and CDC entries as CdcPullLog
sends them, so that a pull copies bytes and builds no row. A large transaction is several records
with one commit-ts, all but the last marked MORE; an open that finds the last one missing cuts the
others off too.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rowferry.errors import StoreDamaged
from rowferry.refstore.storage import kernels
from rowferry.refstore.storage.frames import (
    HEAD_BYTES,
    FrameFile,
    frame_head,
    read_frames,
    replace_file,
)
from rowferry.refstore.storage.kernels import Places, frozen
from rowferry.refstore.storage.pairs import Entries, as_bytes, read_entries

NAME = "log"
MORE = 1  # the transaction continues in the next record
PRIMARY = 2  # this range decides the fate of a transaction over several ranges
RECORD_BYTES = 256 << 10
_BASE = struct.Struct("<8sQQ")  # the file's first frame: what came before its first record
_BASE_MARK = b"RFLOG\x00\x00\x01"
_RECORD = struct.Struct("<QQQII")  # index, start-ts, commit-ts, entries, flags
_ROW = np.dtype(
    [
        ("at", np.int64),  # of the entries in the file
        ("size", np.int64),
        ("start_ts", np.uint64),
        ("commit_ts", np.uint64),
        ("entries", np.int64),  # all entries up to and including this record
        ("bytes", np.int64),  # likewise
        ("flags", np.int64),
    ]
)


@dataclass(frozen=True, slots=True)
class Figures:
    """About a stretch of the log: its size, and marks (index, commit-ts, bytes so far)."""

    bytes: int
    entries: int
    marks: list[tuple[int, int, int]]


def base_frame(base_index: int, base_ts: int) -> list[bytes]:
    """Return the first frame of a log whose first record has index base_index + 1."""
    payload = _BASE.pack(_BASE_MARK, base_index, base_ts)
    return [frame_head([payload]), payload]


def record_frame(
    index: int, start_ts: int, commit_ts: int, count: int, flags: int, entries: bytes
) -> list[bytes]:
    """Return one record as a frame, in parts."""
    head = _RECORD.pack(index, start_ts, commit_ts, count, flags)
    return [frame_head([head, entries]), head, entries]


class LogFile:
    """One range's log. Not thread-safe: the range's lock guards it."""

    def __init__(self, folder: Path, fsync: bool) -> None:
        """Open the log, making an empty one where there is none; a torn tail is cut off.

        Raises:
            StoreDamaged: the file is damaged before its tail.
        """
        self._folder = folder
        self._fsync = fsync
        self._load()

    def _load(self) -> None:
        self._file = FrameFile(self._folder / NAME, self._fsync)
        self.base_index = self.base_ts = 0
        self._rows = np.zeros(1024, _ROW)
        self._count = 0
        data = self._file.content()
        whole = 0  # the end of the last complete transaction
        kept = 0
        for at, payload in read_frames(data, 0, self._file.path):
            if whole == 0:
                self._read_base(payload)
                whole = at + len(payload)
                continue
            index, start_ts, commit_ts, count, flags = _RECORD.unpack_from(payload)
            if index != self.last_index + 1:
                raise StoreDamaged(
                    f"log of range folder {self._folder.name}: record {index} follows "
                    f"{self.last_index} at byte {at}; restore the file from a copy"
                )
            size = len(payload) - _RECORD.size
            self._note(at + _RECORD.size, size, start_ts, commit_ts, count, flags)
            if not flags & MORE:
                whole, kept = at + len(payload), self._count
        self._count = kept
        self._file.cut(whole)
        if whole == 0:
            self._file.append(base_frame(0, 0))

    def _read_base(self, payload: memoryview) -> None:
        if len(payload) != _BASE.size or bytes(payload[:8]) != _BASE_MARK:
            raise StoreDamaged(
                f"log of range folder {self._folder.name} does not begin as a log of this version"
            )
        _, self.base_index, self.base_ts = _BASE.unpack(payload)

    def _note(
        self, at: int, size: int, start_ts: int, commit_ts: int, count: int, flags: int
    ) -> None:
        n = self._count
        if n == self._rows.size:
            self._rows = np.concatenate([self._rows, np.zeros(n, _ROW)])
        before = self._rows[n - 1] if n else np.zeros((), _ROW)
        entries, total = int(before["entries"]) + count, int(before["bytes"]) + size
        self._rows[n] = (at, size, start_ts, commit_ts, entries, total, flags)
        self._count = n + 1

    def _column(self, name: str) -> npt.NDArray[Any]:
        return self._rows[name][: self._count]

    @property
    def last_index(self) -> int:
        """The index of the last record."""
        return self.base_index + self._count

    @property
    def last_ts(self) -> int:
        """The commit-ts of the last record; 0 for a log that never had one."""
        return int(self._rows["commit_ts"][self._count - 1]) if self._count else self.base_ts

    def append(
        self, start_ts: int, commit_ts: int, flags: int, entries: bytes, ends: Places
    ) -> None:
        """Append one transaction; on return it is durable as `fsync` promises."""
        parts: list[bytes] = []
        notes = []
        at, done, index = self._file.size, 0, self.last_index
        for last in _cuts(ends):
            begin, end = (int(ends[done - 1]) if done else 0), (int(ends[last - 1]) if last else 0)
            index += 1
            more = MORE if last < ends.size else 0
            piece = entries if not done and not more else entries[begin:end]
            parts += record_frame(index, start_ts, commit_ts, last - done, flags | more, piece)
            at += HEAD_BYTES + _RECORD.size
            notes.append((at, end - begin, start_ts, commit_ts, last - done, flags | more))
            at, done = at + end - begin, last
        self._file.append(parts)
        for note in notes:
            self._note(*note)

    def ts_at(self, index: int) -> int:
        """Return the commit-ts of a record."""
        return int(self._rows["commit_ts"][index - self.base_index - 1])

    def index_at(self, ts: int) -> int:
        """Return the last index whose commit-ts is at or below `ts`."""
        column = self._column("commit_ts")
        return self.base_index + int(np.searchsorted(column, np.uint64(ts), side="right"))

    def commit_of(self, start_ts: int) -> int:
        """Return the commit-ts of a transaction in the log, 0 if it is not there."""
        # A commit-ts is above its start-ts, so only the tail can hold it.
        first = self.index_at(start_ts) - self.base_index
        hits = np.flatnonzero(self._column("start_ts")[first:] == np.uint64(start_ts))
        return int(self._column("commit_ts")[first + int(hits[0])]) if hits.size else 0

    def decided(self, up_to_index: int) -> list[tuple[int, int]]:
        """Return (start-ts, commit-ts) of the records up to an index that decided a transaction."""
        rows = self._rows[: max(up_to_index - self.base_index, 0)]
        rows = rows[(rows["flags"] & PRIMARY) != 0]
        return list(zip(rows["start_ts"].tolist(), rows["commit_ts"].tolist(), strict=True))

    def pull(self, after: int, until: int, max_bytes: int) -> tuple[bytes, int]:
        """Return the entries in (after, until], about `max_bytes` of them, and the last index.

        At least one record is returned where there is one.
        """
        first, last = after - self.base_index, min(until, self.last_index) - self.base_index
        if last <= first:
            return b"", after
        sums = self._column("bytes")
        limit = (int(sums[first - 1]) if first else 0) + max_bytes
        fit = int(np.searchsorted(sums[:last], limit, side="right"))
        last = min(last, max(fit, first + 1))
        return self._entries(first, last), last + self.base_index

    def _entries(self, first: int, last: int) -> bytes:
        at, size = self._column("at")[first:last], self._column("size")[first:last]
        start = int(at[0])
        raw = self._file.read(start, int(at[-1] + size[-1]) - start)
        if last - first == 1:
            return raw
        out = np.empty(int(size.sum()), np.uint8)
        kernels.copy_spans(
            as_bytes(raw), frozen(at - start), frozen(size), out, frozen(np.cumsum(size) - size)
        )
        return out.tobytes()

    def figures(self, after: int, until: int, mark_bytes: int) -> Figures:
        """Return size, row changes and marks of the stretch (after, until]."""
        first, last = after - self.base_index, until - self.base_index
        if last <= first:
            return Figures(0, 0, [])
        sums, entries = self._column("bytes"), self._column("entries")
        from_bytes = int(sums[first - 1]) if first else 0
        from_entries = int(entries[first - 1]) if first else 0
        size = int(sums[last - 1]) - from_bytes
        marks = []
        if mark_bytes:
            wanted = np.arange(from_bytes + mark_bytes, from_bytes + size, mark_bytes)
            for row in np.unique(np.searchsorted(sums[:last], wanted)).tolist():
                index = self.base_index + row + 1
                marks.append((index, self.ts_at(index), int(sums[row]) - from_bytes))
        return Figures(size, int(entries[last - 1]) - from_entries, marks)

    def replay(self, after: int, max_bytes: int = 16 << 20) -> Iterator[Entries]:
        """Yield all entries after an index, in log order, in pieces."""
        while after < self.last_index:
            raw, after = self.pull(after, self.last_index, max_bytes)
            yield read_entries(as_bytes(raw), f"log of range folder {self._folder.name}")

    def drop_through(self, index: int) -> None:
        """Drop the records up to and including an index; the rest keep their indexes."""
        index = min(max(index, self.base_index), self.last_index)
        base_ts = self.ts_at(index) if index > self.base_index else self.base_ts
        row = self._rows[index - self.base_index] if index < self.last_index else None
        start = int(row["at"]) - HEAD_BYTES - _RECORD.size if row is not None else self._file.size
        rest = self._file.read(start, self._file.size - start)
        replace_file(self._folder / NAME, [*base_frame(index, base_ts), rest], self._fsync)
        self._file.close()
        self._load()

    def write_span(self, folder: Path, start: bytes, end: bytes) -> None:
        """Write a log with the same records, but only the entries with start <= key < end."""
        parts = base_frame(self.base_index, self.base_ts)
        for n in range(self._count):
            row = self._rows[n]
            raw = self._file.read(int(row["at"]), int(row["size"]))
            entries, count = _within(raw, start, end, self._folder.name)
            parts += record_frame(
                self.base_index + n + 1,
                int(row["start_ts"]),
                int(row["commit_ts"]),
                count,
                int(row["flags"]),
                entries,
            )
        replace_file(folder / NAME, parts, self._fsync)

    def close(self) -> None:
        """Let the file go."""
        self._file.close()


def _cuts(ends: Places) -> Iterator[int]:
    """Yield after how many entries each record of a transaction ends."""
    if not ends.size:
        yield 0
    done = 0
    while done < ends.size:
        begin = int(ends[done - 1]) if done else 0
        fit = int(np.searchsorted(ends, begin + RECORD_BYTES, side="right"))
        done = max(fit, done + 1)
        yield done


def _within(raw: bytes, start: bytes, end: bytes, folder: str) -> tuple[bytes, int]:
    """Return the entries whose keys lie in [start, end), and their number."""
    entries = read_entries(as_bytes(raw), f"log of range folder {folder}")
    pairs = entries.pairs  # a transaction's entries ascend by key
    first = pairs.lower_bound(start)
    last = pairs.lower_bound(end) if end else len(pairs)
    if first >= last:
        return b"", 0
    begin = int(entries.at[first])
    return raw[begin : int(entries.at[last - 1] + entries.length[last - 1])], last - first
