"""Content that waits for its upload: as much as fits in memory, the rest in a nameless file."""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, TypeAlias

_IN_MEMORY: Final = 64 << 20
_PIECE: Final = 8 << 20

Place: TypeAlias = tuple[int, int]  # from, to in the file


class UploadSpool:
    """Room for all contents of one task.

    The file has no name, so that nothing stays on the disk whatever happens, and is one for all, so
    that thousands of contents need one handle.
    """

    def __init__(self, in_memory: int = _IN_MEMORY) -> None:
        self._free = in_memory
        self._handle = -1
        self._end = 0
        self._users = 0
        self._guard = threading.Lock()

    def content(self) -> SpooledContent:
        """Begin an empty content."""
        with self._guard:
            self._users += 1
        return SpooledContent(self)

    def keep(self, data: memoryview) -> bytes | Place:
        """Keep bytes; return them, or where in the file they are."""
        with self._guard:
            if len(data) <= self._free:
                self._free -= len(data)
                return bytes(data)
            if self._handle < 0:
                with tempfile.TemporaryFile(prefix="rowferry-") as file:
                    self._handle = os.dup(file.fileno())
            begin = self._end
            while len(data):
                written = os.pwrite(self._handle, data, self._end)
                data, self._end = data[written:], self._end + written
            return begin, self._end

    def read(self, begin: int, end: int) -> bytes:
        """Return bytes from the file."""
        content = os.pread(self._handle, end - begin, begin)
        if len(content) != end - begin:
            raise OSError(f"the spool file ends at {begin + len(content)}, not at {end}")
        return content

    def leave(self, in_memory: int) -> None:
        """Give a content's room back; the file goes with the last one."""
        with self._guard:
            self._free += in_memory
            self._users -= 1
            if self._users == 0 and self._handle >= 0:
                os.close(self._handle)
                self._handle, self._end = -1, 0


class SpooledContent:
    """Bytes that grow at the end and are read any number of times."""

    def __init__(self, spool: UploadSpool) -> None:
        self._spool: UploadSpool | None = spool
        self._kept: list[bytes | Place] = []
        self.size = 0

    def append(self, data: bytes | memoryview) -> None:
        """Add bytes at the end."""
        view = memoryview(data).cast("B")
        if self._spool is not None and len(view):
            self._kept.append(self._spool.keep(view))
            self.size += len(view)

    def pieces(self) -> Iterator[bytes]:
        """Yield the bytes in pieces, those from the file of bounded length."""
        for kept in self._kept:
            if isinstance(kept, bytes):
                yield kept
            elif self._spool is not None:
                for begin in range(*kept, _PIECE):
                    yield self._spool.read(begin, min(begin + _PIECE, kept[1]))

    def whole(self) -> bytes:
        """Return all bytes."""
        pieces = list(self.pieces())
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def drop(self) -> None:
        """Give the room back. On repeat: nothing."""
        spool, self._spool = self._spool, None
        if spool is not None:
            spool.leave(sum(len(kept) for kept in self._kept if isinstance(kept, bytes)))
            self._kept = []


class Budget:
    """Bytes that may be held at once; who wants more than all of them gets all."""

    def __init__(self, total: int) -> None:
        self._total = self._free = total
        self._changed = threading.Condition()

    @contextmanager
    def taking(self, wanted: int) -> Iterator[None]:
        """Wait until so many are free, and hold them."""
        taken = min(wanted, self._total)
        with self._changed:
            self._changed.wait_for(lambda: self._free >= taken)
            self._free -= taken
        try:
            yield
        finally:
            with self._changed:
                self._free += taken
                self._changed.notify_all()
