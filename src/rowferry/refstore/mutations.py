"""What a transaction writes to one range, between its wire form and its columns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rowferry.refstore import kernels
from rowferry.refstore.kernels import Places
from rowferry.refstore.meta import Fault, RangeMeta, Refused
from rowferry.refstore.pairs import Pairs, as_bytes
from rowferry.wire import store_pb2 as wire

OP_PUT, OP_INSERT, OP_UPDATE, OP_DELETE = 0, 1, 2, 3


@dataclass(frozen=True, slots=True)
class Change:
    """Ascending pairs, and what must be true of each key before."""

    pairs: Pairs
    ops: npt.NDArray[np.uint8]


def read_mutations(form: wire.Mutations, meta: RangeMeta) -> Change:
    """Read and check the wire form.

    Raises:
        Refused: BAD_REQUEST for malformed columns, keys out of order or outside the range.
    """
    key_ends, value_ends = _ends(form.key_ends, form.keys), _ends(form.value_ends, form.values)
    ops = np.frombuffer(form.ops, np.uint8)
    if not (key_ends.size == value_ends.size == ops.size) or not ops.size or ops.max() > OP_DELETE:
        raise Refused(Fault.BAD_REQUEST, "mutations: columns of different lengths, or a bad op")
    key_len, value_len = _lengths(key_ends), _lengths(value_ends)
    blob = as_bytes(form.keys + form.values)
    value_at = value_ends - value_len + len(form.keys)
    pairs = Pairs.make(
        blob, key_ends - key_len, key_len, value_at, np.where(ops == OP_DELETE, -1, value_len)
    )
    if kernels.not_ascending(pairs.blob, pairs.key_at, pairs.key_len) >= 0:
        raise Refused(Fault.BAD_REQUEST, "mutations: keys must ascend")
    if not (meta.holds(pairs.key(0)) and meta.holds(pairs.key(len(pairs) - 1))):
        raise Refused(Fault.BAD_REQUEST, f"mutations: a key lies outside range {meta.range_id}")
    return Change(pairs, ops)


def _ends(raw: bytes, content: bytes) -> Places:
    if len(raw) % 8:
        raise Refused(Fault.BAD_REQUEST, "mutations: ends must be 8-byte integers")
    ends: Places = np.frombuffer(raw, "<i8")
    sound = ends.size and ends[0] >= 0 and ends[-1] == len(content) and (np.diff(ends) >= 0).all()
    if not sound:
        raise Refused(Fault.BAD_REQUEST, "mutations: ends do not fit the bytes")
    return ends


def _lengths(ends: Places) -> Places:
    return np.diff(ends, prepend=0)


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
