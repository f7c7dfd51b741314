"""Data files one after the other, uncompressed; the next ones come while one is read.

A file of a directory is mapped, not read. An object of a bucket is held as the store gives it. What
either is uncompressed goes to local space, unless it is small.
"""

from __future__ import annotations

import mmap
import tempfile
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import IO, Final, cast

import pyarrow as pa

from rowferry.errors import SinkDamaged, SinkUnavailable
from rowferry.flow.sink.storage.files import Files
from rowferry.flow.sink.storage.local_files import LocalFiles

_SMALL: Final = 1 << 20  # up to here content is kept in memory
_PIECE: Final = 1 << 20
_HELD_BYTES: Final = 64 << 20  # of objects that wait to be read
_KINDS: Final = {"gz": "gzip", "zst": "zstd"}


class _Mapped(mmap.mmap):
    """A file's bytes, brought into memory by the page; all that decoders ask of bytes."""

    def startswith(self, head: bytes) -> bool:
        return self[: len(head)] == head


def contents(files: Files, paths: Sequence[str], held_bytes: int = _HELD_BYTES) -> Iterator[bytes]:
    """Yield the content of each path, uncompressed; each can be used until the next is asked for.

    Args:
        files: the storage.
        paths: data files, in the order in which they are wanted.
        held_bytes: as many objects come ahead as fit in here, by the longest so far; at least one.

    Raises:
        SinkDamaged: a file is gone, or not compressed as its name says.
        SinkUnavailable, SinkUnwritable: the storage does not give it.
    """
    if isinstance(files, LocalFiles):
        for path in paths:
            yield from _of_file(files, path)
    else:
        for path, data in zip(paths, _fetched(files, paths, held_bytes), strict=True):
            yield from _of_object(files, path, data)


def _fetched(files: Files, paths: Sequence[str], held_bytes: int) -> Iterator[bytes]:
    """Yield whole objects, with some requests under way ahead of the reader."""
    waiting: deque[Future[bytes]] = deque()
    longest = sent = 0
    with ThreadPoolExecutor(files.parallel, thread_name_prefix="fetch") as pool:
        try:
            for _ in paths:
                ahead = max(1, min(files.parallel, held_bytes // longest)) if longest else 1
                for path in paths[sent : sent + ahead + 1 - len(waiting)]:
                    waiting.append(pool.submit(_whole, files, path))
                    sent += 1
                data = waiting.popleft().result()
                longest = max(longest, len(data), 1)
                yield data
        finally:
            for future in waiting:
                future.cancel()


def _whole(files: Files, path: str) -> bytes:
    content = files.get(path)
    if content is None:
        raise SinkDamaged(f"{files.shown(path)} is gone; restore it from a copy")
    return content.data


def _of_object(files: Files, path: str, data: bytes) -> Iterator[bytes]:
    kind = _KINDS.get(path.rpartition(".")[2])
    if kind is None:
        yield data
    else:
        yield from _mapped(_uncompressed(pa.BufferReader(data), kind, files.shown(path)))


def _of_file(files: LocalFiles, path: str) -> Iterator[bytes]:
    shown, kind = files.shown(path), _KINDS.get(path.rpartition(".")[2])
    try:
        if kind is None:
            yield from _mapped(open(shown, "rb"))
        else:
            yield from _mapped(_uncompressed(pa.OSFile(shown), kind, shown))
    except FileNotFoundError:
        raise SinkDamaged(f"{shown} is gone; restore it from a copy") from None
    except OSError as err:
        raise SinkUnavailable(f"{shown}: {err}") from None


def _uncompressed(source: pa.NativeFile, kind: str, shown: str) -> IO[bytes]:
    whole = cast("IO[bytes]", tempfile.SpooledTemporaryFile(_SMALL, prefix="rowferry-"))
    try:
        with source, pa.CompressedInputStream(source, kind) as stream:
            while piece := stream.read(_PIECE):
                whole.write(piece)
    except OSError as err:
        whole.close()
        raise SinkDamaged(f"{shown} is not {kind} ({err}); restore it from a copy") from None
    whole.seek(0)
    return whole


def _mapped(file: IO[bytes]) -> Iterator[bytes]:
    """Yield a file's content, and close it."""
    with file:
        begin = file.read(_SMALL)
        if len(begin) < _SMALL:
            yield begin
        else:
            del begin
            # Pages go when nobody looks at them; what decoders made of them is their own.
            yield cast("bytes", _Mapped(file.fileno(), 0, access=mmap.ACCESS_READ))
