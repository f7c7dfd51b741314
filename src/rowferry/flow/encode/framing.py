"""Texts of rows, one for each change, on their way to frames: what codecs of frames share."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rowferry.change.table import TableSchema
from rowferry.flow.encode.contract import Encoded
from rowferry.flow.encode.sql_rows.frame import RowFrame


@dataclass(frozen=True, slots=True)
class RowTexts(Encoded):
    """Texts of a chunk: `values` are rows, null for deletes; `keys` name them."""

    table: TableSchema | None = None
    op: npt.NDArray[np.int8] | None = None
    commit_ts: npt.NDArray[np.uint64] | None = None
    seq: npt.NDArray[np.int64] | None = None


def framed(messages: Encoded) -> Encoded:
    """Join the rows of each partition to one frame; anything but `RowTexts` stays as it is."""
    if not isinstance(messages, RowTexts) or messages.table is None or messages.keys is None:
        return messages
    op, commit_ts, seq = messages.op, messages.commit_ts, messages.seq
    if op is None or commit_ts is None or seq is None or not len(op):
        return Encoded(pa.array([], pa.large_binary()), rows=0, partitions=messages.partitions)
    whole = RowFrame(messages.table, op, commit_ts, seq, messages.keys, messages.values)
    if messages.partitions is None:
        return _joined([whole], None)
    numbers, counts = np.unique(messages.partitions, return_counts=True)
    if len(numbers) == 1:
        return _joined([whole], numbers)
    together = whole.take(np.argsort(messages.partitions, kind="stable"))
    ends = np.cumsum(counts)
    parts = [together.slice(end - n, end) for end, n in zip(ends, counts, strict=True)]
    return _joined(parts, numbers)


def _joined(frames: list[RowFrame], partitions: npt.NDArray[np.int32] | None) -> Encoded:
    """Return frames as messages; each is copied once, to its place."""
    parts = [np.frombuffer(part, np.uint8) for frame in frames for part in frame.to_parts()]
    ends = np.cumsum([0, *map(len, parts)])
    values = np.concatenate(parts)
    bounds = pa.py_buffer(np.ascontiguousarray(ends[::2]))  # each frame has two parts
    head = frames[0].head
    return Encoded(
        pa.LargeBinaryArray.from_buffers(
            pa.large_binary(), len(frames), [None, bounds, pa.py_buffer(values)]
        ),
        pa.array([head] * len(frames), pa.large_binary()),
        rows=sum(len(frame) for frame in frames),
        partitions=partitions,
    )
