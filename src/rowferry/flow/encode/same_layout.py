"""Chunks of tables of the same layout are encoded together: a call costs as much as many rows.

With a thousand tables a chunk has few rows, and most of its time would be the way to the compiled
writer. Where neighbours are parts of one batch, codecs that can write them with one call do so; the
names of the tables, in which alone they differ, become a column.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from rowferry.change.chunk import Rows
from rowferry.errors import EncodeError
from rowferry.flow.encode.contract import Codec, Encoded, JoiningCodec


def encoded_rows(
    codec: Codec, chunks: Iterable[tuple[int, Rows]], planned_at_ms: int
) -> Iterator[tuple[int, Encoded]]:
    """Yield each chunk encoded, with the place that came with it, in order."""
    if not isinstance(codec, JoiningCodec):
        for place, rows in chunks:
            yield place, codec.encode_rows(rows, planned_at_ms)
        return
    for group in _neighbours(chunks):
        parts = [rows for _, rows in group]
        for (place, _), done in zip(group, _encoded(codec, parts, planned_at_ms), strict=True):
            yield place, done


def _neighbours(chunks: Iterable[tuple[int, Rows]]) -> Iterator[list[tuple[int, Rows]]]:
    """Yield chunks in groups, each of parts that follow each other in one batch."""
    group: list[tuple[int, Rows]] = []
    for place, rows in chunks:
        if group and not _follows(group[-1][1], rows):
            yield group
            group = []
        group.append((place, rows))
    if group:
        yield group


def _follows(one: Rows, other: Rows) -> bool:
    a, b = one.cut, other.cut
    if a is None or b is None or a.whole is not b.whole:
        return False
    return b.first == a.first + len(one)


def _encoded(codec: JoiningCodec, parts: Sequence[Rows], planned_at_ms: int) -> list[Encoded]:
    if len(parts) > 1:
        try:
            return _apart(codec.encode_same_layout(whole(parts), parts, planned_at_ms), parts)
        except EncodeError:
            pass  # it names one of the tables; each by itself, it is the one at fault
    return [codec.encode_rows(rows, planned_at_ms) for rows in parts]


def whole(parts: Sequence[Rows]) -> Rows:
    """Return neighbours as one chunk, of the first one's table."""
    first, count = parts[0].cut, sum(len(rows) for rows in parts)
    if first is None:
        raise TypeError("chunks that are joined are parts of one batch")
    return Rows(parts[0].table, first.whole.slice(first.first, count))


def _apart(encoded: Encoded, parts: Sequence[Rows]) -> list[Encoded]:
    """Return what belongs to each part; no bytes are copied."""
    parts_encoded, begin = [], 0
    for rows in parts:
        parts_encoded.append(Encoded(encoded.values.slice(begin, len(rows))))
        begin += len(rows)
    return parts_encoded


def repeated(texts: Sequence[bytes], parts: Sequence[Rows]) -> pa.LargeBinaryArray:
    """Return a column that holds each part's text for each of its rows."""
    counts = np.array([len(rows) for rows in parts], np.int64)
    sizes = np.repeat(np.array([len(text) for text in texts], np.int64), counts)
    offsets = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=offsets[1:])
    data = b"".join(text * count for text, count in zip(texts, counts.tolist(), strict=True))
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(sizes), buffers)
