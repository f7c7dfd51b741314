"""What a transaction writes, as its client puts it together."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rowferry.wire import store_pb2 as wire


@dataclass(frozen=True, slots=True)
class Writes:
    """Rows to write, ascending by key, as Arrow columns; a null value deletes the row."""

    keys: pa.LargeBinaryArray
    values: pa.LargeBinaryArray
    ops: npt.NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.keys)

    @classmethod
    def sorted_from(cls, keys: pa.Array, values: pa.Array, ops: npt.NDArray[np.uint8]) -> Writes:
        """Put rows in key order."""
        order = pc.array_sort_indices(keys)
        return cls(keys.take(order), values.take(order), ops[order.to_numpy()])

    def slice(self, start: int, end: int) -> Writes:
        """Return some rows."""
        length = end - start
        return Writes(
            self.keys.slice(start, length), self.values.slice(start, length), self.ops[start:end]
        )

    def lower_bound(self, key: bytes) -> int:
        """Return the first place whose key is not below `key`."""
        low, high = 0, len(self)
        while low < high:
            middle = (low + high) // 2
            if self.keys[middle].as_py() < key:
                low = middle + 1
            else:
                high = middle
        return low

    def form(self) -> wire.Mutations:
        """Return the wire form."""
        keys, key_ends = _column(self.keys)
        values, value_ends = _column(self.values.fill_null(b""))
        return wire.Mutations(
            keys=keys,
            key_ends=key_ends,
            values=values,
            value_ends=value_ends,
            ops=self.ops.tobytes(),
        )


def _column(array: pa.LargeBinaryArray) -> tuple[bytes, bytes]:
    """Return an array's bytes and, as little-endian integers, where each value ends."""
    _, offsets, data = array.buffers()
    bounds = np.frombuffer(offsets, np.int64)[array.offset : array.offset + len(array) + 1]
    start, end = int(bounds[0]), int(bounds[-1])
    raw = data[start:end].to_pybytes() if end > start else b""
    return raw, (bounds[1:] - start).astype("<i8").tobytes()
