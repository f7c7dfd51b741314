"""What a range has promised but not yet logged: prepared transactions and their ends.

A transaction over several ranges is written here when it is prepared, and again when it is
committed or rolled back; a committed one reaches the log only when no other can still get a smaller
commit-ts.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

from rowferry.refstore.storage.frames import FrameFile, frame_head, read_frames, replace_file
from rowferry.wire import store_pb2 as wire

NAME = "journal"
_NOTE = struct.Struct("<BQQ")
_LARGE = 4 << 20


class FrameKind(IntEnum):
    """What a journal frame says about a transaction."""

    PREPARED = 1  # ts: the commit-ts will be above it; the write request follows
    COMMITTED = 2  # ts: its commit-ts
    ROLLED_BACK = 3
    FENCE = 4  # transactions with a start-ts up to this one can no longer be prepared


@dataclass(frozen=True, slots=True)
class PreparedTransaction:
    """A transaction found prepared in the journal."""

    request: wire.WriteRequest
    floor: int


class Journal:
    """One range's journal. Not thread-safe: the range's lock guards it."""

    def __init__(self, folder: Path, fsync: bool) -> None:
        """Open and read the journal; a torn tail is cut off.

        Raises:
            StoreDamaged: the file is damaged before its tail.
        """
        self._folder = folder
        self._fsync = fsync
        self.prepared: dict[int, PreparedTransaction] = {}
        self.committed: dict[int, int] = {}
        self.rolled_back: set[int] = set()
        self.fence = 0
        self._file = FrameFile(folder / NAME, fsync)
        end = 0
        for at, payload in read_frames(self._file.content(), 0, self._file.path):
            self._read(payload)
            end = at + len(payload)
        self._file.cut(end)

    def _read(self, payload: memoryview) -> None:
        kind, start_ts, ts = _NOTE.unpack_from(payload)
        match FrameKind(kind):
            case FrameKind.PREPARED:
                request = wire.WriteRequest.FromString(bytes(payload[_NOTE.size :]))
                self.prepared[start_ts] = PreparedTransaction(request, ts)
            case FrameKind.COMMITTED:
                self.committed[start_ts] = ts
            case FrameKind.ROLLED_BACK:
                self.rolled_back.add(start_ts)
                self.prepared.pop(start_ts, None)
            case FrameKind.FENCE:
                self.fence = max(self.fence, start_ts)

    def _append(self, kind: FrameKind, start_ts: int, ts: int = 0, rest: bytes = b"") -> None:
        self._file.append(_frame(kind, start_ts, ts, rest))

    def prepare(self, request: wire.WriteRequest, floor: int) -> None:
        """Note a prepared transaction; on return it survives a restart."""
        self._append(FrameKind.PREPARED, request.start_ts, floor, request.SerializeToString())

    def commit(self, start_ts: int, commit_ts: int) -> None:
        """Note that a prepared transaction is committed."""
        self._append(FrameKind.COMMITTED, start_ts, commit_ts)

    def roll_back(self, start_ts: int) -> None:
        """Note that a transaction is rolled back, prepared before or not."""
        self._append(FrameKind.ROLLED_BACK, start_ts)
        self.rolled_back.add(start_ts)

    def refuses(self, start_ts: int) -> bool:
        """Return whether a transaction can no longer be prepared here."""
        return start_ts <= self.fence or start_ts in self.rolled_back

    @property
    def large(self) -> bool:
        """Whether it is time to rewrite it."""
        return self._file.size > _LARGE

    def rewrite(self, still_open: Iterable[tuple[wire.WriteRequest, int, int]]) -> None:
        """Keep only what is open: (request, floor, commit-ts or 0), and a fence for the rest."""
        self.fence = max([self.fence, *self.rolled_back])
        self.rolled_back = set()
        parts = _frame(FrameKind.FENCE, self.fence)
        for request, floor, commit_ts in still_open:
            parts += _frame(
                FrameKind.PREPARED, request.start_ts, floor, request.SerializeToString()
            )
            if commit_ts:
                parts += _frame(FrameKind.COMMITTED, request.start_ts, commit_ts)
        replace_file(self._folder / NAME, parts, self._fsync)
        self._file.close()
        self._file = FrameFile(self._folder / NAME, self._fsync)

    def write_fence(self, folder: Path) -> None:
        """Write a journal for a new range that refuses what this one refuses."""
        fence = max([self.fence, *self.rolled_back])
        replace_file(folder / NAME, _frame(FrameKind.FENCE, fence), self._fsync)

    def close(self) -> None:
        """Let the file go."""
        self._file.close()


def _frame(kind: FrameKind, start_ts: int, ts: int = 0, rest: bytes = b"") -> list[bytes]:
    note = _NOTE.pack(kind, start_ts, ts)
    return [frame_head([note, rest]), note, rest]
