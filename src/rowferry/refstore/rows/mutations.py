"""What a transaction writes to one range, as its leader reads it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rowferry.refstore.meta import Fault, RangeMeta, RequestRefused
from rowferry.refstore.storage import kernels
from rowferry.refstore.storage.kernels import Places
from rowferry.refstore.storage.pairs import Pairs, as_bytes
from rowferry.wire import store_pb2 as wire

OP_PUT, OP_INSERT, OP_UPDATE, OP_DELETE = 0, 1, 2, 3


@dataclass(frozen=True, slots=True)
class KeyChanges:
    """Ascending pairs, and what must be true of each key before."""

    pairs: Pairs
    ops: npt.NDArray[np.uint8]


def read_mutations(form: wire.Mutations, meta: RangeMeta) -> KeyChanges:
    """Read and check the wire form.

    Raises:
        Refused: BAD_REQUEST for malformed columns, keys out of order or outside the range.
    """
    key_ends, value_ends = _ends(form.key_ends, form.keys), _ends(form.value_ends, form.values)
    ops = np.frombuffer(form.ops, np.uint8)
    if not (key_ends.size == value_ends.size == ops.size) or not ops.size or ops.max() > OP_DELETE:
        raise RequestRefused(
            Fault.BAD_REQUEST, "mutations: columns of different lengths, or a bad op"
        )
    key_len, value_len = _lengths(key_ends), _lengths(value_ends)
    blob = as_bytes(form.keys + form.values)
    value_at = value_ends - value_len + len(form.keys)
    pairs = Pairs.make(
        blob, key_ends - key_len, key_len, value_at, np.where(ops == OP_DELETE, -1, value_len)
    )
    if kernels.not_ascending(pairs.blob, pairs.key_at, pairs.key_len) >= 0:
        raise RequestRefused(Fault.BAD_REQUEST, "mutations: keys must ascend")
    if not (meta.holds(pairs.key(0)) and meta.holds(pairs.key(len(pairs) - 1))):
        raise RequestRefused(
            Fault.BAD_REQUEST, f"mutations: a key lies outside range {meta.range_id}"
        )
    return KeyChanges(pairs, ops)


def _ends(raw: bytes, content: bytes) -> Places:
    if len(raw) % 8:
        raise RequestRefused(Fault.BAD_REQUEST, "mutations: ends must be 8-byte integers")
    ends: Places = np.frombuffer(raw, "<i8")
    sound = ends.size and ends[0] >= 0 and ends[-1] == len(content) and (np.diff(ends) >= 0).all()
    if not sound:
        raise RequestRefused(Fault.BAD_REQUEST, "mutations: ends do not fit the bytes")
    return ends


def _lengths(ends: Places) -> Places:
    return np.diff(ends, prepend=0)
