"""What others compressed, made plain without believing how long it becomes."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

LONGEST_ROW: Final = 1100 << 20  # bytes: a row may have 1 GiB in every database that is read
_PIECE: Final = 1 << 20


def inflated(data: bytes, kind: str, most: int) -> bytes:
    """Return the plain form of data that was compressed as `kind` says (gzip, lz4, zstd).

    Raises:
        ValueError: it has more than `most` bytes.
        OSError: it is damaged, or compressed in another way.
    """
    pieces, size = [], 0
    with pa.CompressedInputStream(pa.BufferReader(data), kind) as stream:
        # `read` never frees what it was to return where it fails; `read_buffer` does.
        while piece := stream.read_buffer(_PIECE):
            pieces.append(piece)
            size += len(piece)
            if size > most:
                raise ValueError(f"it grows to more than {most} bytes")
    return b"".join(pieces)
