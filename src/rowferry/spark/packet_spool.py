"""Packets in files of this machine: the shuffle then carries only where each of them lies.

What a task wrote is read by tasks of the same job. A payload is either the packet itself or, behind
a mark, the file and the bytes of it. Files end with their job: `clear` removes them, and so does
Spark with the folder when it ends.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import IO, Final

import pyarrow as pa

_SPOOLED: Final = b"rowferry-spooled:"  # no packet begins with it: those begin with 4 bytes 0xff


class PacketSpool:
    """Takes the packets of one segment; without a file, gives them back as they are."""

    def __init__(self, file: IO[bytes] | None = None) -> None:
        self._file, self._end = file, 0

    def put(self, content: pa.Buffer) -> pa.Buffer:
        """Return the payload that stands for this packet."""
        if self._file is None:
            return content
        self._file.write(content)
        place = [self._file.name, self._end, content.size]
        self._end += content.size
        return pa.py_buffer(_SPOOLED + json.dumps(place).encode())


@contextmanager
def spooling(folder: str | None) -> Iterator[PacketSpool]:
    """Open a spool in a folder (None: keep packets in the shuffle)."""
    if folder is None:
        yield PacketSpool()
        return
    # A second attempt at the same segment writes a file of its own.
    with tempfile.NamedTemporaryFile(dir=folder, suffix=".packets", delete=False) as file:
        yield PacketSpool(file.file)


def fetch(payload: pa.Buffer) -> pa.Buffer:
    """Return the packet that a payload stands for."""
    start = payload.slice(0, min(len(_SPOOLED), payload.size)).to_pybytes()
    if start != _SPOOLED:
        return payload
    name, offset, size = json.loads(payload.slice(len(_SPOOLED)).to_pybytes())
    with pa.memory_map(name) as file:
        file.seek(offset)
        return file.read_buffer(size)  # the mapping lives as long as the buffer


def clear(folder: str | None) -> None:
    """Remove the files of a job that has ended; a folder that is gone has none."""
    if folder is None:
        return
    # Whoever finds Java dead takes its folders away, also those of jobs that end at this moment.
    with suppress(FileNotFoundError):
        for entry in os.scandir(folder):
            os.unlink(entry.path)
