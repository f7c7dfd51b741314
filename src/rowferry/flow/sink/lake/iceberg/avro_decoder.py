"""Reads the bytes of Avro files for the Iceberg library, and never beyond their end.

The library's own decoder is compiled and takes every length in a file for granted: one that is
damaged shows what lies behind it in memory, or ends the process.
"""

from __future__ import annotations

import bz2
import zlib
from struct import Struct
from typing import Final

from pyiceberg.avro import file
from pyiceberg.avro.codecs import KNOWN_CODECS
from pyiceberg.avro.codecs.bzip2 import BZip2Codec
from pyiceberg.avro.codecs.deflate import DeflateCodec
from pyiceberg.avro.codecs.snappy_codec import SnappyCodec
from pyiceberg.avro.codecs.zstandard_codec import ZStandardCodec
from pyiceberg.avro.decoder import BinaryDecoder

from rowferry.columnar.inflate import inflated

_FLOAT: Final = Struct("<f")
_DOUBLE: Final = Struct("<d")
MOST_BLOCK_BYTES: Final = 256 << 20  # plain; those of real manifests have some megabytes
_LONGEST: Final = 63  # the bits before the last seven of a number


class CheckedDecoder(BinaryDecoder):
    """The values in some bytes, one after the other.

    All of its methods raise EOFError where a value would end behind the last byte, and ValueError
    where a length is negative.
    """

    __slots__ = ("_at", "_content", "_end")

    def __init__(self, content: bytes) -> None:
        self._content = content
        self._end = len(content)
        self._at = 0

    def tell(self) -> int:
        """Return how many bytes were read."""
        return self._at

    def read(self, n: int) -> bytes:
        """Return the next bytes."""
        start = self._at
        self.skip(n)
        return self._content[start : self._at]

    def skip(self, n: int) -> None:
        """Leave out the next bytes."""
        if n < 0:
            raise ValueError(f"{n} bytes")
        if n > self._end - self._at:
            raise EOFError(f"{n} bytes of {self._end - self._at}")
        self._at += n

    def read_boolean(self) -> bool:
        """Return a truth value."""
        return self.read(1) == b"\x01"

    def read_int(self) -> int:
        """Return a whole number of 64 bits at most: seven of them in a byte, the lowest first."""
        content, end, at = self._content, self._end, self._at
        number = shift = 0
        while at < end:
            byte = content[at]
            at += 1
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                self._at = at
                return (number >> 1) ^ -(number & 1)
            shift += 7
            if shift > _LONGEST:
                raise ValueError("a number of more than 64 bits")
        raise EOFError("amid a number")

    def read_ints(self, count: int) -> tuple[int, ...]:
        """Return whole numbers."""
        if count > self._end - self._at:  # each has a byte at least
            raise EOFError(f"{count} numbers in {self._end - self._at} bytes")
        return tuple(self.read_int() for _ in range(count))

    def read_int_bytes_dict(self, count: int, dest: dict[int, bytes]) -> None:
        """Put numbers, and the bytes for each, into a dict."""
        for _ in range(count):
            number = self.read_int()
            dest[number] = self._sized()

    def read_bytes(self) -> bytes:
        """Return bytes with their number before them."""
        return self._sized()

    def _sized(self) -> bytes:
        return self.read(self.read_int())

    def read_float(self) -> float:
        """Return a number of 32 bits."""
        return float(_FLOAT.unpack(self.read(4))[0])

    def read_double(self) -> float:
        """Return a number of 64 bits."""
        return float(_DOUBLE.unpack(self.read(8))[0])

    def read_utf8(self) -> str:
        """Return a text."""
        return self._sized().decode()

    def skip_int(self) -> None:
        """Leave out a whole number."""
        self.read_int()


class _Deflate(DeflateCodec):
    """Deflated blocks, which may not grow without end."""

    @staticmethod
    def decompress(data: bytes) -> bytes:
        return _bounded(zlib.decompressobj(-15).decompress(data, MOST_BLOCK_BYTES + 1))


class _BZip2(BZip2Codec):
    """Blocks of bzip2, which may not grow without end."""

    @staticmethod
    def decompress(data: bytes) -> bytes:
        return _bounded(bz2.BZ2Decompressor().decompress(data, MOST_BLOCK_BYTES + 1))


class _ZStandard(ZStandardCodec):
    """Blocks of Zstandard, which may not grow without end."""

    @staticmethod
    def decompress(data: bytes) -> bytes:
        return inflated(data, "zstd", MOST_BLOCK_BYTES)


class _Snappy(SnappyCodec):
    """Blocks of Snappy, which say how long they become."""

    @staticmethod
    def decompress(data: bytes) -> bytes:
        length = 0
        for place, byte in enumerate(data[:5]):
            length |= (byte & 0x7F) << (7 * place)
            if byte < 0x80:
                break
        if length > MOST_BLOCK_BYTES:
            raise ValueError(f"a block grows to more than {MOST_BLOCK_BYTES} bytes")
        return bytes(SnappyCodec.decompress(data))


def _bounded(plain: bytes) -> bytes:
    if len(plain) > MOST_BLOCK_BYTES:
        raise ValueError(f"a block grows to more than {MOST_BLOCK_BYTES} bytes")
    return plain


def use_checked_decoder() -> None:
    """Let the library read all Avro files of this process as above: bounded, byte by byte."""
    file.new_decoder = CheckedDecoder  # type: ignore[assignment,attr-defined]
    KNOWN_CODECS["deflate"], KNOWN_CODECS["bzip2"] = _Deflate, _BZip2
    KNOWN_CODECS["zstandard"], KNOWN_CODECS["snappy"] = _ZStandard, _Snappy
