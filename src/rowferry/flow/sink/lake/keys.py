"""Keys of rows as numbers of 64 bits, by which they are sorted and found.

A key of one whole number is its own code, so that keys which grow stand together. Any other key has
the hash of its bytes, and the bytes stand beside it: two keys with one hash are told apart.

DECIMAL(20,0) has the lake's type of BIGINT UNSIGNED: keys of it have the first form as long as all
of them are such numbers, else the second. Where both forms meet, the first becomes the second.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rowferry.flow.sink.lake.key_hash import hash_keys

_SIGN: Final = np.uint64(1 << 63)
Codes = npt.NDArray[np.uint64]
Places = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Keys:
    """Codes of keys and, unless a code is the whole key, their bytes."""

    codes: Codes
    texts: pa.LargeBinaryArray | None = None

    def __len__(self) -> int:
        return len(self.codes)

    def take(self, places: npt.NDArray[Any]) -> Keys:
        """Return the keys at these places, in this order."""
        texts = None if self.texts is None else self.texts.take(pa.array(places))
        return Keys(self.codes[places], texts)

    def spelled(self) -> Keys:
        """Return keys of DECIMAL(20,0) in the second form, whichever they have."""
        if self.texts is not None:
            return self
        texts = _bytes_of(pa.array(self.codes).cast(pa.string()))
        return Keys(_hashed(texts), texts)

    def order(self) -> Places:
        """Return the places in the order in which rows are stored: that of the key."""
        if self.texts is None:
            return np.argsort(self.codes, kind="stable")
        places: Places = pc.sort_indices(self.texts).to_numpy().astype(np.int64)
        return places

    def last_places(self) -> Places:
        """Return the last place of each key that occurs, in no special order."""
        if self.texts is None:
            numbers: npt.NDArray[Any] = self.codes
        else:
            numbers = self.texts.dictionary_encode().indices.to_numpy()
        order = np.argsort(numbers, kind="stable")
        sorted_ = numbers[order]
        last = np.ones(len(order), np.bool_)
        last[:-1] = sorted_[1:] != sorted_[:-1]
        return order[last].astype(np.int64)


def keys_of(columns: Sequence[pa.Array]) -> Keys:
    """Return the keys of rows whose key has these columns, as a lake's table holds them."""
    if len(columns) == 1 and pa.types.is_int64(columns[0].type):
        plain = columns[0].to_numpy(zero_copy_only=False)
        return Keys(np.ascontiguousarray(plain).view(np.uint64) ^ _SIGN)
    if len(columns) == 1 and columns[0].type == pa.decimal128(20, 0) and _are_codes(columns[0]):
        return Keys(columns[0].cast(pa.uint64()).to_numpy(zero_copy_only=False).copy())
    pieces: list[pa.Array] = []
    for values in columns:
        bytes_ = _bytes_of(values)
        if len(columns) > 1:
            pieces.append(_fixed(pc.binary_length(bytes_).to_numpy().astype("<i8")))
        pieces.append(bytes_)
    joined = pieces[0]
    if len(pieces) > 1:
        joined = pc.binary_join_element_wise(*pieces, pa.scalar(b"", pa.large_binary()))
    return Keys(_hashed(joined), joined)


def joined(parts: Sequence[Keys]) -> Keys:
    """Return the keys of all parts, one part behind the other."""
    if any(p.texts is not None for p in parts):
        parts = [p.spelled() for p in parts]
    codes = np.concatenate([p.codes for p in parts])
    texts = [p.texts for p in parts if p.texts is not None]
    return Keys(codes, pa.concat_arrays(texts) if texts else None)


def _are_codes(numbers: pa.Array) -> bool:
    """Return whether each number has 64 bits and no sign."""
    limits = pc.min_max(numbers).as_py()
    return limits["min"] is None or (limits["min"] >= 0 and limits["max"] < 1 << 64)


def _hashed(texts: pa.LargeBinaryArray) -> Codes:
    if not len(texts):
        return np.zeros(0, np.uint64)
    _, offsets, data = texts.buffers()
    places = np.frombuffer(offsets, np.int64)[texts.offset : texts.offset + len(texts) + 1]
    raw = np.frombuffer(data, np.uint8) if data is not None else np.zeros(0, np.uint8)
    return hash_keys(raw, places)


def _bytes_of(values: pa.Array) -> pa.LargeBinaryArray:
    kind = values.type
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return values.cast(pa.large_string()).cast(pa.large_binary())
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return values.cast(pa.large_binary())
    if pa.types.is_decimal(kind):
        return values.cast(pa.string()).cast(pa.large_string()).cast(pa.large_binary())
    if pa.types.is_floating(kind):
        # Zero has one key, whichever sign it has.
        plain = values.to_numpy(zero_copy_only=False).astype(np.float64) + 0.0
        return _fixed(plain.view("<i8"))
    width = pa.int32() if pa.types.is_date32(kind) else pa.int64()
    return _fixed(values.view(width).to_numpy(zero_copy_only=False).astype("<i8"))


def _fixed(numbers: npt.NDArray[Any]) -> pa.LargeBinaryArray:
    """Return each number as its eight bytes."""
    offsets = pa.py_buffer(np.arange(len(numbers) + 1, dtype=np.int64) * 8)
    data = pa.py_buffer(np.ascontiguousarray(numbers))
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(numbers), [None, offsets, data])
