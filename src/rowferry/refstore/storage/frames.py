"""Files of checked frames: appended to, never changed in place, read back after a crash.

A frame is a mark, the payload's length, its CRC-32 and the payload. What a crash can leave is an
incomplete last frame: it is cut off at open. A bad frame with a good one after it is damage.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from rowferry.errors import StoreDamaged, StoreError

MARK = b"\xf5RFr"
_HEAD = struct.Struct("<4sII")
HEAD_BYTES = _HEAD.size
_MOST_PARTS = 512  # of one writev call


def frame_head(payload: Sequence[bytes]) -> bytes:
    """Return the bytes that stand before a payload given in parts."""
    crc = 0
    for part in payload:
        crc = zlib.crc32(part, crc)
    return _HEAD.pack(MARK, sum(map(len, payload)), crc)


def read_frame(data: memoryview, at: int) -> memoryview | None:
    """Return the payload of the frame at a place, or None if no whole, sound frame is there."""
    if at + HEAD_BYTES > len(data):
        return None
    mark, length, crc = _HEAD.unpack_from(data, at)
    end = at + HEAD_BYTES + length
    if mark != MARK or end > len(data):
        return None
    payload = data[at + HEAD_BYTES : end]
    return payload if zlib.crc32(payload) == crc else None


def read_frames(data: bytes, start: int, path: Path) -> Iterator[tuple[int, memoryview]]:
    """Yield (place of the payload, payload) of every frame up to a torn tail.

    Raises:
        StoreDamaged: a frame is bad although a good one follows it.
    """
    view = memoryview(data)
    at = start
    while at < len(data):
        payload = read_frame(view, at)
        if payload is None:
            _check_torn(data, at, path)
            return
        yield at + HEAD_BYTES, payload
        at += HEAD_BYTES + len(payload)


def _check_torn(data: bytes, at: int, path: Path) -> None:
    mark_at = data.find(MARK, at + 1)
    while mark_at >= 0:
        if read_frame(memoryview(data), mark_at) is not None:
            raise StoreDamaged(
                f"{path.name} of range folder {path.parent.name} is damaged at byte {at}: sound "
                f"data follows at byte {mark_at}; restore the file from a copy"
            )
        mark_at = data.find(MARK, mark_at + 1)


class FrameFile:
    """An append-only file of frames. With `fsync`, a write is on the disk when it returns.

    Without it a write survives the death of the process, but not that of the machine.
    """

    def __init__(self, path: Path, fsync: bool) -> None:
        self.path = path
        self._fsync = fsync
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self.size = os.fstat(self._fd).st_size
        self.broken = False

    def content(self) -> bytes:
        """Return the whole file."""
        return self.read(0, self.size)

    def read(self, at: int, length: int) -> bytes:
        """Return bytes from a place; fewer only at the end of the file."""
        parts = []
        while length > 0:
            part = os.pread(self._fd, length, at)
            if not part:
                break
            parts.append(part)
            at, length = at + len(part), length - len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def cut(self, size: int) -> None:
        """Drop everything after a place."""
        if size != self.size:
            os.ftruncate(self._fd, size)
            self.size = size

    def append(self, parts: Sequence[bytes]) -> int:
        """Append bytes given in parts; returns where they begin.

        On raise nothing more can be appended: the file may end in half a frame, which the next
        open cuts off.
        """
        if self.broken:
            raise StoreError(f"{self.path.name} had a failed write; restart the data server")
        start = at = self.size
        try:
            for first in range(0, len(parts), _MOST_PARTS):
                at = self._write(parts[first : first + _MOST_PARTS], at)
            if self._fsync:
                os.fdatasync(self._fd)
        except OSError as err:
            self.broken = True
            raise StoreError(f"cannot write {self.path.name}: {err.strerror}") from err
        self.size = at
        return start

    def _write(self, parts: Sequence[bytes], at: int) -> int:
        wanted = sum(map(len, parts))
        done = os.pwritev(self._fd, parts, at)
        if done < wanted:  # a signal, or the system's limit for one call
            rest = memoryview(b"".join(parts))
            while done < wanted:
                done += os.pwrite(self._fd, rest[done:], at + done)
        return at + wanted

    def close(self) -> None:
        """Let the file go."""
        os.close(self._fd)


def replace_file(path: Path, parts: Sequence[bytes], fsync: bool) -> None:
    """Put a file in place of another in one step: a crash leaves the old or the new one."""
    temporary = path.with_name(path.name + ".new")
    with open(temporary, "wb") as out:
        out.writelines(parts)
        if fsync:
            out.flush()
            os.fsync(out.fileno())
    os.replace(temporary, path)
    if fsync:
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
