"""Compiled loops over keys and values: sorted search, merging, and the CDC entry framing.

Keys and values are spans (`at`, `length`) of one byte buffer; a length of -1 means "no value". An
*entry* is one protobuf field holding a CdcChangeData, byte for byte as CdcPullLog sends it. Every
kernel that reads foreign bytes checks lengths first and reports the position of the fault.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar, cast

import numba
import numpy as np
import numpy.typing as npt

Bytes: TypeAlias = npt.NDArray[np.uint8]
Places: TypeAlias = npt.NDArray[np.int64]
Stamps: TypeAlias = npt.NDArray[np.uint64]
T = TypeVar("T", bound=np.generic)
F = TypeVar("F", bound=Callable[..., Any])

LOG_TAG = 0x12  # CdcPullLogResponse.log_data
SNAPSHOT_TAG = 0x1A  # CdcPullSnapshotResponse.snapshot_data


def _compiled(function: F) -> F:
    return cast(F, numba.njit(cache=True, nogil=True)(function))


def frozen(array: npt.NDArray[T]) -> npt.NDArray[T]:
    """Return a contiguous read-only view: kernels are compiled once, for read-only input."""
    view = np.ascontiguousarray(array).view()
    view.flags.writeable = False
    return view


@_compiled
def _compare(a: Bytes, a_at: int, a_len: int, b: Bytes, b_at: int, b_len: int) -> int:
    n = min(a_len, b_len)
    for i in range(n):
        x = a[a_at + i]
        y = b[b_at + i]
        if x != y:
            return -1 if x < y else 1
    return 0 if a_len == b_len else (-1 if a_len < b_len else 1)


@_compiled
def not_ascending(blob: Bytes, at: Places, length: Places) -> int:
    """Return the first place whose key is not above the one before it, or -1."""
    for i in range(1, at.size):
        if _compare(blob, at[i - 1], length[i - 1], blob, at[i], length[i]) >= 0:
            return i
    return -1


@_compiled
def lower_bound(blob: Bytes, at: Places, length: Places, key: Bytes) -> int:
    """Return the first place whose key is not below `key`; keys are ascending."""
    low, high = 0, at.size
    while low < high:
        middle = (low + high) // 2
        if _compare(blob, at[middle], length[middle], key, 0, key.size) < 0:
            low = middle + 1
        else:
            high = middle
    return low


@_compiled
def find(
    blob: Bytes, at: Places, length: Places, q_blob: Bytes, q_at: Places, q_length: Places
) -> Places:
    """Return, for each asked key, its place among the ascending keys, or -1. Both are ascending."""
    places = np.full(q_at.size, -1, np.int64)
    low = 0
    for i in range(q_at.size):
        high = at.size
        while low < high:
            middle = (low + high) // 2
            if _compare(blob, at[middle], length[middle], q_blob, q_at[i], q_length[i]) < 0:
                low = middle + 1
            else:
                high = middle
        if low < at.size:
            if _compare(blob, at[low], length[low], q_blob, q_at[i], q_length[i]) == 0:
                places[i] = low
    return places


@_compiled
def merge_order(
    a: Bytes, a_at: Places, a_len: Places, b: Bytes, b_at: Places, b_len: Places
) -> Places:
    """Return the union of two ascending key lists: place in b as n, place in a as -1 - n.

    Where both hold a key, b's stands alone: b is the newer one.
    """
    out = np.empty(a_at.size + b_at.size, np.int64)
    i = j = n = 0
    while i < a_at.size and j < b_at.size:
        order = _compare(a, a_at[i], a_len[i], b, b_at[j], b_len[j])
        if order < 0:
            out[n] = -1 - i
            i += 1
        else:
            out[n] = j
            j += 1
            if order == 0:
                i += 1
        n += 1
    while i < a_at.size:
        out[n] = -1 - i
        i += 1
        n += 1
    while j < b_at.size:
        out[n] = j
        j += 1
        n += 1
    return out[:n]


@_compiled
def sort_order(blob: Bytes, at: Places, length: Places) -> Places:
    """Return the places in key order; equal keys keep their order."""
    order = np.arange(at.size)
    other = np.empty(at.size, np.int64)
    width = 1
    while width < at.size:
        for start in range(0, at.size, 2 * width):
            i, middle = start, min(start + width, at.size)
            j, end = middle, min(start + 2 * width, at.size)
            for k in range(start, end):
                if j >= end:
                    left = True
                elif i >= middle:
                    left = False
                else:
                    a, b = order[i], order[j]
                    left = _compare(blob, at[a], length[a], blob, at[b], length[b]) <= 0
                if left:
                    other[k] = order[i]
                    i += 1
                else:
                    other[k] = order[j]
                    j += 1
        order, other = other, order
        width *= 2
    return order


@_compiled
def last_of_equal(blob: Bytes, at: Places, length: Places) -> npt.NDArray[np.bool_]:
    """Mark the last of each group of equal neighbours; equal keys must stand side by side."""
    keep = np.ones(at.size, np.bool_)
    for i in range(at.size - 1):
        keep[i] = _compare(blob, at[i], length[i], blob, at[i + 1], length[i + 1]) != 0
    return keep


@_compiled
def copy_spans(source: Bytes, at: Places, length: Places, out: Bytes, out_at: Places) -> None:
    """Copy spans to their places in `out`; a negative length copies nothing."""
    for i in range(at.size):
        if length[i] > 0:
            a = at[i]
            o = out_at[i]
            for k in range(length[i]):
                out[o + k] = source[a + k]


# --- entries -------------------------------------------------------------------------------------


@_compiled
def _varint_size(value: int) -> int:
    left = np.uint64(value)
    size = 1
    while left >= np.uint64(128):
        left >>= np.uint64(7)
        size += 1
    return size


@_compiled
def _put_varint(out: Bytes, at: int, value: int) -> int:
    left = np.uint64(value)
    while left >= np.uint64(128):
        out[at] = np.uint8((left & np.uint64(127)) | np.uint64(128))
        left >>= np.uint64(7)
        at += 1
    out[at] = np.uint8(left)
    return at + 1


@_compiled
def _put_bytes(out: Bytes, at: int, tag: int, source: Bytes, start: int, length: int) -> int:
    out[at] = tag
    at = _put_varint(out, at + 1, length)
    for k in range(length):
        out[at + k] = source[start + k]
    return at + length


@_compiled
def entry_bodies(key_len: Places, value_len: Places, old_len: Places, ts: Stamps) -> Places:
    """Return the size of each CdcChangeData, without its tag and length."""
    size = np.empty(key_len.size, np.int64)
    for i in range(key_len.size):
        n = 1 + _varint_size(key_len[i]) + key_len[i] + 1 + _varint_size(ts[i])
        if value_len[i] < 0:
            n += 2
        else:
            n += 1 + _varint_size(value_len[i]) + value_len[i]
        if old_len[i] >= 0:
            n += 1 + _varint_size(old_len[i]) + old_len[i]
        size[i] = n
    return size


@_compiled
def entry_ends(body: Places) -> Places:
    """Return where each entry ends, tag and length included."""
    ends = np.empty(body.size, np.int64)
    at = 0
    for i in range(body.size):
        at += 1 + _varint_size(body[i]) + body[i]
        ends[i] = at
    return ends


@_compiled
def write_entries(
    tag: int,
    blob: Bytes,
    key_at: Places,
    key_len: Places,
    value_at: Places,
    value_len: Places,
    old: Bytes,
    old_at: Places,
    old_len: Places,
    ts: Stamps,
    body: Places,
    out: Bytes,
) -> None:
    """Write the entries one after another; `out` has the size that `entry_ends` gave."""
    at = 0
    for i in range(key_at.size):
        out[at] = tag
        at = _put_varint(out, at + 1, body[i])
        if value_len[i] < 0:
            out[at] = 0x08
            out[at + 1] = 1
            at += 2
        at = _put_bytes(out, at, 0x12, blob, key_at[i], key_len[i])
        if value_len[i] >= 0:
            at = _put_bytes(out, at, 0x1A, blob, value_at[i], value_len[i])
        out[at] = 0x20
        at = _put_varint(out, at + 1, ts[i])
        if old_len[i] >= 0:
            at = _put_bytes(out, at, 0x2A, old, old_at[i], old_len[i])


@_compiled
def _varint(raw: Bytes, at: int, end: int) -> tuple[np.uint64, int]:
    """Return (value, place after it); the place is -1 when the number does not end in time."""
    value = np.uint64(0)
    for k in range(10):
        if at + k >= end:
            return value, -1
        byte = np.uint64(raw[at + k])
        value |= (byte & np.uint64(127)) << np.uint64(7 * k)
        if byte < np.uint64(128):
            return value, at + k + 1
    return value, -1


@_compiled
def _signed(value: Any) -> Any:
    return np.int64(value)


@_compiled
def count_entries(raw: Bytes, tag: int) -> tuple[int, int]:
    """Return (entries, place of the first fault or -1); other top-level fields are passed over."""
    n = 0
    at = 0
    while at < raw.size:
        start = at
        field = raw[at]
        length, at = _varint(raw, at + 1, raw.size)
        if at < 0:
            return n, start
        if field & 7 == 2:
            if length > np.uint64(raw.size - at):
                return n, start
            at += _signed(length)
        elif field & 7 != 0:
            return n, start
        if field == tag:
            n += 1
    return n, -1


@_compiled
def read_entries(raw: Bytes, tag: int, spans: npt.NDArray[np.int64], ts: Stamps) -> int:
    """Fill `spans` (entry at, length, key at, length, value at, length) and `ts`, one per entry.

    A deleted row has value length -1. Returns the place of the first fault, or -1. `count_entries`
    must have passed over the same bytes.
    """
    at = 0
    n = 0
    while at < raw.size:
        start = at
        field = raw[at]
        length, at = _varint(raw, at + 1, raw.size)
        if field & 7 == 0:
            continue
        end = at + _signed(length)
        if field != tag:
            at = end
            continue
        spans[n, 0] = start
        spans[n, 1] = end - start
        spans[n, 2:5] = end
        spans[n, 3] = spans[n, 5] = 0
        ts[n] = np.uint64(0)
        deleted = False
        while at < end:
            inner = raw[at]
            value, at = _varint(raw, at + 1, end)
            if at < 0:
                return start
            if inner & 7 == 2:
                if value > np.uint64(end - at):
                    return start
                if inner == 0x12:
                    spans[n, 2] = at
                    spans[n, 3] = _signed(value)
                elif inner == 0x1A:
                    spans[n, 4] = at
                    spans[n, 5] = _signed(value)
                at += _signed(value)
            elif inner == 0x08:
                deleted = value == np.uint64(1)
            elif inner == 0x20:
                ts[n] = value
            elif inner & 7 != 0:
                return start
        if deleted:
            spans[n, 5] = -1
        n += 1
    return -1


def warm() -> None:
    """Compile every kernel on tiny input, so that later calls find them in the on-disk cache."""
    blob = frozen(np.frombuffer(b"k1v1k2", np.uint8))
    key_at, key_len = frozen(np.array([0, 4])), frozen(np.array([2, 2]))
    value_at, value_len = frozen(np.array([2, 6])), frozen(np.array([2, -1]))
    ts = frozen(np.array([7, 8], np.uint64))
    not_ascending(blob, key_at, key_len)
    lower_bound(blob, key_at, key_len, blob[:2])
    find(blob, key_at, key_len, blob, key_at, key_len)
    merge_order(blob, key_at, key_len, blob, key_at, key_len)
    last_of_equal(blob, key_at, key_len)
    sort_order(blob, key_at, key_len)
    body = frozen(entry_bodies(key_len, value_len, value_len, ts))
    out = np.empty(int(entry_ends(body)[-1]), np.uint8)
    write_entries(
        LOG_TAG,
        blob,
        key_at,
        key_len,
        value_at,
        value_len,
        blob,
        value_at,
        value_len,
        ts,
        body,
        out,
    )
    raw = frozen(out)
    copy_spans(raw, key_at, key_len, np.empty(6, np.uint8), key_at)
    n, _ = count_entries(raw, LOG_TAG)
    read_entries(raw, LOG_TAG, np.empty((n, 6), np.int64), np.empty(n, np.uint64))
