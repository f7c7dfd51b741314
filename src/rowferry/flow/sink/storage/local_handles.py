"""Files of this machine by handle: read whole, compared, brought to disk. Errors are OSError."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

_PIECE = 1 << 20


def sync(place: str) -> None:
    """Bring one file or directory to disk."""
    handle = os.open(place, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_file_system(root: Path) -> None:
    """Bring all of the file system to disk that a directory is in."""
    syncfs = getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None)
    if syncfs is None:  # not Linux
        os.sync()
        return
    handle = os.open(root, os.O_RDONLY | os.O_CLOEXEC)
    try:
        if syncfs(handle) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    finally:
        os.close(handle)


def read_all(handle: int, size: int) -> bytes:
    """Return all bytes of an open file, which has about that size."""
    pieces = [os.read(handle, size + 1)]
    while pieces[-1]:
        pieces.append(os.read(handle, _PIECE))
    return b"".join(pieces)


def tag_of(stat: os.stat_result) -> str:
    """Return a file's identity; it changes when another file takes the name."""
    return f"{stat.st_ino}-{stat.st_mtime_ns}-{stat.st_size}"


def same_bytes(one: str, other: str) -> bool:
    """Return whether two files have the same content."""
    with open(one, "rb") as left, open(other, "rb") as right:
        if os.fstat(left.fileno()).st_size != os.fstat(right.fileno()).st_size:
            return False
        while True:
            piece = left.read(_PIECE)
            if piece != right.read(_PIECE):
                return False
            if not piece:
                return True
