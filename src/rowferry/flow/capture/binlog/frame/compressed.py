"""Compressed parts of the log: MySQL's transaction payloads, MariaDB's compressed events.

A payload may be larger than memory: it is read piece by piece and given on in blocks of whole
events.
"""

from __future__ import annotations

import io
import zlib
from collections.abc import Iterable, Iterator
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rowferry.columnar.addresses import Bytes, compiled, frozen, i64
from rowferry.columnar.inflate import LONGEST_ROW
from rowferry.errors import CorruptLog, EventUnknown

_BLOCK: Final = 4 << 20
_HEADER: Final = 19
_NAME: Final = "a TRANSACTION_PAYLOAD_EVENT"

# Fields of a payload's header, and the two ways to compress.
_END, _SIZE, _METHOD, _PLAIN_SIZE = 0, 1, 2, 3
_ZSTD, _NONE = 0, 255
_LONG_FIELD: Final = 64  # fields hold one number each

# The first byte of MariaDB's compressed data: a mark, the method (0: zlib), bytes of the length.
_MARK: Final = 0x80
_METHOD_BITS: Final = 0x70
_LENGTH_BITS: Final = 0x07


def inflate_query(text: bytes) -> bytes:
    """Return the statement of a QUERY_COMPRESSED event, given what follows the database's name.

    Raises:
        CorruptLog: the bytes are damaged.
        EventUnknown: they are compressed in a way that is not known here.
    """
    return inflate_part(text, "a QUERY_COMPRESSED_EVENT")


def inflate_part(part: bytes, event: str) -> bytes:
    """Return the plain form of what MariaDB compressed inside an event; `event` names it.

    Raises:
        CorruptLog: the bytes are damaged, or their length is not the one announced.
        EventUnknown: they are compressed in a way that is not known here.
    """
    if not part or not part[0] & _MARK:
        raise CorruptLog(f"{event} holds no compressed data")
    if part[0] & _METHOD_BITS:
        method = (part[0] & _METHOD_BITS) >> 4
        raise EventUnknown(f"{event} is compressed with method {method}; known: 0 (zlib)")
    begin = 1 + (part[0] & _LENGTH_BITS)
    size = int.from_bytes(part[1:begin], "big")
    return inflate_exactly(part[begin:], size, event)


def inflate_exactly(part: bytes, size: int, what: str) -> bytes:
    """Return the plain form of a zlib stream that must have exactly `size` bytes.

    Raises:
        CorruptLog: it has not, or is damaged, or is longer than any event.
    """
    if size > LONGEST_ROW:
        raise CorruptLog(f"{what} announces {size} bytes; no event has more than {LONGEST_ROW}")
    stream = zlib.decompressobj()
    try:
        plain = stream.decompress(part, size + 1)  # one byte more, to see that there is none
    except zlib.error as err:
        raise CorruptLog(f"{what} cannot be decompressed: {err}") from None
    if len(plain) != size or not stream.eof:
        raise CorruptLog(f"{what} has not the {size} bytes that it announces")
    return plain


def inflate_payload(pieces: Iterable[bytes]) -> Iterator[npt.NDArray[np.uint8]]:
    """Give the events of a TRANSACTION_PAYLOAD event in blocks of a few megabytes.

    Args:
        pieces: the event's body in order, cut anywhere, its checksum removed.

    Yields:
        Whole events with their 19-byte headers and without checksums; a block is larger than usual
        only if one event is.

    Raises:
        CorruptLog: the payload is damaged, cut short, or of another size than it says.
        EventUnknown: it is compressed in a way that is not known here.
    """
    source = _Pieces(pieces)
    size, method, plain_size = _read_header(source)
    if method == _NONE:
        stream: io.RawIOBase | pa.NativeFile = source
    elif method == _ZSTD:
        stream = pa.CompressedInputStream(pa.PythonFile(source, mode="r"), "zstd")
    else:
        raise EventUnknown(f"{_NAME} is compressed with method {method}; known: 0 (zstd), 255")
    given = 0
    source.left = size
    for block in _whole_events(stream):
        given += len(block)
        yield block
    if given != plain_size or source.left or source.has_more():
        raise CorruptLog(f"{_NAME} has not the {plain_size} bytes of events that it announces")


class _Pieces(io.RawIOBase):
    """A file whose bytes arrive in pieces; it ends after `left` of them, once that is set."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = iter(pieces)
        self._piece = b""
        self._at = 0
        self.left: int | None = None

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1, /) -> bytes:
        """Return at most `size` bytes (at most a piece); nothing: this is the end."""
        if not self.has_more() or self.left == 0:
            return b""
        here = len(self._piece) - self._at
        take = min(size if size >= 0 else here, here)
        if self.left is not None:
            take = min(take, self.left)
            self.left -= take
        self._at += take
        return self._piece[self._at - take : self._at]

    def has_more(self) -> bool:
        """Return whether any bytes are there, also beyond the end that is set."""
        while self._at == len(self._piece):
            piece = next(self._pieces, None)
            if piece is None:
                return False
            self._piece, self._at = piece, 0
        return True


def _read_header(source: _Pieces) -> tuple[int, int, int]:
    """Return the payload's size, its compression method and its size without compression."""
    fields: dict[int, int] = {}
    while kind := _packed(source):
        length = _packed(source)
        if length > _LONG_FIELD:
            raise CorruptLog(f"{_NAME} has a header field {kind} of {length} bytes")
        value = _Pieces([_exactly(source, length)])
        if kind in (_SIZE, _METHOD, _PLAIN_SIZE):
            fields[kind] = _packed(value)
    if _SIZE not in fields or _METHOD not in fields:
        raise CorruptLog(f"{_NAME} lacks its size or its compression method")
    return fields[_SIZE], fields[_METHOD], fields.get(_PLAIN_SIZE, fields[_SIZE])


def _packed(source: _Pieces) -> int:
    first = _exactly(source, 1)[0]
    if first < 251:
        return first
    sizes = {252: 2, 253: 3, 254: 8}
    if first not in sizes:
        raise CorruptLog(f"{_NAME} has a header that cannot be read")
    return int.from_bytes(_exactly(source, sizes[first]), "little")


def _exactly(source: _Pieces, size: int) -> bytes:
    content = b""
    while len(content) < size:
        more = source.read(size - len(content))
        if not more:
            raise CorruptLog(f"{_NAME} ends inside its header")
        content += more
    return content


def _whole_events(stream: io.RawIOBase | pa.NativeFile) -> Iterator[Bytes]:
    """Cut a stream of events into blocks that end where an event ends."""
    # Arrow's `read` never frees what it was to return where it fails; `read_buffer` does.
    read = stream.read_buffer if isinstance(stream, pa.NativeFile) else stream.read
    held = b""
    need = _BLOCK
    while True:
        parts = [held]
        have = len(held)
        while have < need:
            try:
                more = read(need - have)
            except OSError as err:
                raise CorruptLog(f"{_NAME} cannot be decompressed: {err}") from None
            if not more:
                break
            parts.append(more)
            have += len(more)
        block = np.frombuffer(b"".join(parts), np.uint8)
        end, missing = last_border(frozen(block))
        if missing < 0:
            raise CorruptLog(f"{_NAME} holds an event shorter than its header at byte {end}")
        if missing > LONGEST_ROW:
            raise CorruptLog(f"{_NAME} holds an event of {missing} bytes; none has {LONGEST_ROW}")
        if have < need and end < have:
            raise CorruptLog(f"{_NAME} ends inside an event")
        if end:
            yield block[:end]
        if have < need:
            return
        held = block[end:].tobytes()
        need = max(_BLOCK, missing)


@compiled
def last_border(block: Bytes) -> tuple[int, int]:
    """Return where the last whole event ends, and the length of the one that is cut (0: none).

    A length that cannot be is given as -1, and its event's place as the border.
    """
    p = i64(0)
    while p + _HEADER <= len(block):
        size = i64(block[p + 9]) | i64(block[p + 10]) << 8
        size |= i64(block[p + 11]) << 16 | i64(block[p + 12]) << 24
        if size < _HEADER:
            return p, -1
        if size > len(block) - p:
            return p, size
        p += size
    return p, 0


def warm() -> None:
    """Compile the kernel."""
    last_border(frozen(np.zeros(0, np.uint8)))
