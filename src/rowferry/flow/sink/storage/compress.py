"""Data files as gzip or zstd, in blocks of a fixed length that are compressed each on its own.

Both formats allow that a file is many compressed streams one after the other. So the bytes depend
on the content only, and not on the pieces in which it came, as a replay needs.
"""

from __future__ import annotations

import zlib
from typing import Final

import pyarrow as pa

from rowferry.columnar.inflate import inflated
from rowferry.errors import SinkDamaged
from rowferry.flow.sink.storage.files import Staged

SUFFIXES: Final = {"none": "", "gzip": ".gz", "zstd": ".zst"}
MOST_FILE: Final = 2 << 30  # bytes; data files have 512 MiB at most, and a row
_BLOCK: Final = 1 << 20
_GZIP: Final = 16 + zlib.MAX_WBITS  # zlib's word for a gzip header; its time is 0
_LEVEL: Final = 6


class DataContent:
    """A data file's content on its way to the storage; `kind` is a key of `SUFFIXES`.

    Attributes:
        staged: what the storage gets.
        size: how many bytes that are.
    """

    def __init__(self, staged: Staged, kind: str) -> None:
        self.staged = staged
        self.size = 0
        self._kind = kind
        self._waiting = bytearray()

    def add(self, data: memoryview) -> None:
        """Add uncompressed bytes."""
        if self._kind == "none":
            self._append(data)
            return
        self._waiting += data
        whole = len(self._waiting) // _BLOCK * _BLOCK
        for begin in range(0, whole, _BLOCK):
            self._append(_block(self._kind, self._waiting[begin : begin + _BLOCK]))
        del self._waiting[:whole]

    def put(self, data: bytes) -> None:
        """Add bytes, as `add` does."""
        self.add(memoryview(data))

    def finish(self) -> Staged:
        """End the content; an empty one is a whole stream, too, as readers refuse none at all."""
        if self._kind != "none" and (self._waiting or not self.size):
            self._append(_block(self._kind, self._waiting))
            self._waiting = bytearray()
        return self.staged

    def _append(self, data: bytes | memoryview) -> None:
        if len(data):
            self.staged.append(data)
            self.size += len(data)


def nothing(kind: str, head: bytes = b"") -> bytes:
    """Return the content of a data file without rows, which begins as every other one."""
    return head if kind == "none" else _block(kind, head)


def _block(kind: str, data: bytes | bytearray) -> bytes:
    if kind == "gzip":
        stream = zlib.compressobj(_LEVEL, zlib.DEFLATED, _GZIP)
        return stream.compress(data) + stream.flush()
    return bytes(pa.Codec("zstd").compress(bytes(data), asbytes=True))


def uncompressed(extension: str, data: bytes, shown: str) -> bytes:
    """Return the content of a data file with that extension; `shown` names it in the error.

    Raises:
        SinkDamaged: it is not what the extension says.
    """
    kind = {"gz": "gzip", "zst": "zstd"}.get(extension.rpartition(".")[2])
    if kind is None:
        return data
    try:
        return inflated(data, kind, MOST_FILE)
    except (OSError, ValueError) as err:
        raise SinkDamaged(f"{shown} is not {kind} ({err}); restore it from a copy") from None
