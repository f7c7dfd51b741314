"""Log bytes that were framed, kept in memory for who carries out the plan on the same machine.

The driver has all bytes of the log in its hands when it frames them. Without this each task would
ask the source for its own once more, and a task that reads a stretch for some of its tables for all
of it. No plan depends on what is kept: whoever does not find it asks the source.

The memory has a name only while its files are open here (`/proc`), so that nothing is left of it
when this process ends, however it ends. It is given back when the last segment that refers to it is
forgotten.
"""

from __future__ import annotations

import os
import secrets
import stat
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from mmap import ALLOCATIONGRANULARITY, MAP_PRIVATE, PROT_READ, PROT_WRITE, mmap
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from rowferry.flow.capture.binlog.frame.scan import NONE_JOINED
from rowferry.moment import moment

FILE_BYTES: Final = 64 << 20  # a file with so much is followed by another one
MOST_BYTES: Final = 512 << 20  # that all readers of a process keep, and no more than
_SHARE_OF_MEMORY: Final = 8
_LIMITS: Final = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
_TOKEN_BYTES: Final = 16


class _Room:
    """How much may be kept in this process, and is."""

    def __init__(self, most: int) -> None:
        self.most, self.used = most, 0
        # The collector may forget a file at any place, also while this thread takes room here.
        self._lock = threading.RLock()

    def take(self, size: int) -> bool:
        """Take so much, if it is there."""
        with self._lock:
            if self.used + size > self.most:
                return False
            self.used += size
            return True

    def give_back(self, size: int) -> None:
        """Give so much back."""
        with self._lock:
            self.used -= size


def _machine_bytes() -> int:
    """Return the memory of this machine, or what this process may have of it."""
    sizes = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for limit in _LIMITS:
        try:
            text = Path(limit).read_text().strip()
        except OSError:
            continue
        if text.isdigit():
            sizes.append(int(text))
    return min(sizes)


ROOM: Final = _Room(min(MOST_BYTES, _machine_bytes() // _SHARE_OF_MEMORY))


class _MemoryFile:
    """Memory that other processes of the same user find by a path; gone with its last reference."""

    def __init__(self) -> None:
        """Make an empty one.

        Raises:
            OSError: the system has no such thing, or no more of it.
        """
        if not hasattr(os, "memfd_create"):
            raise OSError("this system has no memory files")
        self._fd = os.memfd_create("rowferry-log")
        self.path = f"/proc/{os.getpid()}/fd/{self._fd}"
        # The number may be another file's one day: what is read there must begin with this.
        self.token = secrets.token_bytes(_TOKEN_BYTES)
        self._room, self._taken = ROOM, 0
        self.end = ALLOCATIONGRANULARITY
        os.pwrite(self._fd, self.token, 0)

    def append(self, data: memoryview) -> bool:
        """Keep bytes behind the others; False: there is no room."""
        size = len(data)
        if not self._room.take(size):
            return False
        self._taken += size
        try:
            while len(data):
                written = os.pwrite(self._fd, data, self.end)
                self.end += written
                data = data[written:]
        except OSError:  # no memory is left: nobody needs this to be kept
            return False
        return True

    def __del__(self) -> None:
        if hasattr(self, "_room"):
            os.close(self._fd)
            self._room.give_back(self._taken)


@dataclass(frozen=True, slots=True)
class KeptBytes:
    """Packets of a stretch of one log file, in the form in which they are walked over.

    Packets that no reader of captured rows needs may be missing.

    Attributes:
        start, to: the log's offsets.
        data: the bytes themselves, where they are few.
        path, token, begin, size: where they are otherwise.
        joined: (place, size) of the packets that were joined from several.
        file: keeps the memory, in the process that made it.
    """

    start: int
    to: int
    data: bytes = b""
    path: str = ""
    token: bytes = b""
    begin: int = 0
    size: int = 0
    joined: tuple[tuple[int, int], ...] = ()
    file: _MemoryFile | None = field(default=None, compare=False, repr=False)

    @property
    def nbytes(self) -> int:
        """How long they are."""
        return len(self.data) or self.size

    @property
    def travels(self) -> bool:
        """Whether it goes along to another machine."""
        return bool(self.data)

    def __reduce__(self) -> tuple[Any, ...]:
        where = (self.path, self.token, self.begin, self.size)
        return KeptBytes, (self.start, self.to, self.data, *where, self.joined)

    def packets(self) -> npt.NDArray[np.uint8] | None:
        """Return the bytes; None: they are not here, or not any more."""
        if self.data:
            return np.frombuffer(bytearray(self.data), np.uint8)
        moment("open kept log")
        try:
            handle = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError:
            return None
        try:
            facts = os.fstat(handle)
            if not stat.S_ISREG(facts.st_mode) or facts.st_size < self.begin + self.size:
                return None
            if os.pread(handle, _TOKEN_BYTES, 0) != self.token:
                return None
            skipped = self.begin % ALLOCATIONGRANULARITY
            # A copy on write: the kernels are compiled for arrays that can be written to.
            room = mmap(
                handle,
                skipped + self.size,
                flags=MAP_PRIVATE,
                prot=PROT_READ | PROT_WRITE,
                offset=self.begin - skipped,
            )
        except (OSError, ValueError):  # a length that cannot be mapped is none of ours
            return None
        finally:
            os.close(handle)
        return np.frombuffer(room, np.uint8)[skipped:]

    def joined_packets(self) -> npt.NDArray[np.int64]:
        """Return `joined` as the walk takes it."""
        return np.array(self.joined, np.int64) if self.joined else NONE_JOINED


class KeptRun:
    """The bytes of one segment while it is framed."""

    def __init__(self, file: _MemoryFile) -> None:
        self._file, self._begin = file, file.end
        self._joined: list[tuple[int, int]] = []

    def append(self, data: memoryview, joined: Iterable[tuple[int, int]] = ()) -> bool:
        """Keep more; `joined` has places in `data`. False: not all of it could be kept."""
        at = self._file.end - self._begin
        self._joined += [(at + place, size) for place, size in joined]
        return self._file.append(data)

    def finished(self, start: int, to: int) -> KeptBytes:
        """Return what was kept, as the bytes between two offsets of the log."""
        file = self._file
        return KeptBytes(
            start,
            to,
            path=file.path,
            token=file.token,
            begin=self._begin,
            size=file.end - self._begin,
            joined=tuple(self._joined),
            file=file,
        )


class LogKeeper:
    """Keeps the bytes of segments, one after the other. Not for use from several threads."""

    def __init__(self) -> None:
        self._file: _MemoryFile | None = None

    def begin(self) -> KeptRun | None:
        """Begin a segment; None: nothing can be kept."""
        if self._file is not None and self._file.end > FILE_BYTES:
            self._file = None
        try:
            self._file = self._file or _MemoryFile()
        except OSError:
            return None
        return KeptRun(self._file)

    def turn(self) -> None:
        """Keep what follows apart: what was kept up to now is given back together."""
        self._file = None


def joined_run(pieces: Iterable[KeptBytes]) -> tuple[KeptBytes, ...]:
    """Return pieces that follow each other in the log; nothing if something lies between them."""
    run = tuple(pieces)
    ends = [one.to for one in run[:-1]]
    return run if ends == [one.start for one in run[1:]] else ()
