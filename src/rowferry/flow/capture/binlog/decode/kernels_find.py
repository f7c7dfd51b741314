"""The first pass over rows events: find where each row image has each column's bytes.

Images of one chunk have the same columns. `at[side, row, j]` is the place of the value of the j-th
of these columns in the image before (side 0) or after (side 1) the row's change; -1: NULL, or no
such image.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from rowferry.columnar.addresses import (
    BAD_COLUMN_COUNT,
    BAD_OPTIONS,
    CUT_SHORT,
    EMPTY_IMAGE,
    PARTIAL_IMAGE,
    Bytes,
    Longs,
    address_of,
    compiled,
    frozen,
    i64,
    length_at,
    load_u8,
    packed_length,
)

BEFORE: Final = 0
AFTER: Final = 1
INSERT: Final = 0
UPDATE: Final = 1
DELETE: Final = 2
PARTIAL_UPDATE: Final = 39
_PARTIAL_JSON: Final = 1

# What `state` holds.
EVENT: Final = 0  # the event that is read next
PLACE: Final = 1  # the next row in it; 0: its beginning
FAULT: Final = 2  # why the pass stopped for good
FAULT_AT: Final = 3  # the place of the fault
FAULT_COLUMN: Final = 4  # the column of the fault; -1: none
BYTES: Final = 5  # how many bytes the chunk's rows have
STATE_SIZE: Final = 6


@compiled
def _op_of(code: int) -> int:
    """Return what an event with plain rows does."""
    if code == PARTIAL_UPDATE:
        return UPDATE
    return code - 23 if code < 30 else code - 30


@compiled
def _is_v2(code: int) -> bool:
    return code >= 30


@compiled
def _fail(state: Longs, why: int, at: int, column: int) -> None:
    state[FAULT], state[FAULT_AT], state[FAULT_COLUMN] = why, at, column


@compiled
def _note_shape(
    raw: Bytes, p: int, count: int, shape: npt.NDArray[np.int16], shaped: Longs, side: int
) -> None:
    """Note which columns the images of a side have."""
    n = i64(0)
    for c in range(count):
        if raw[p + (c >> 3)] >> (c & 7) & 1:
            shape[n] = c
            n += 1
    shaped[side] = n


@compiled
def _has_shape(raw: Bytes, p: int, count: int, shape: npt.NDArray[np.int16], columns: int) -> bool:
    """Return whether images have the columns that were noted."""
    n = i64(0)
    for c in range(count):
        if raw[p + (c >> 3)] >> (c & 7) & 1:
            if n >= columns or shape[n] != c:
                return False
            n += 1
    return n == columns


@compiled
def _image(
    raw: Bytes,
    p: int,
    end: int,
    side: int,
    row: int,
    n: int,
    shape: npt.NDArray[np.int16],
    width: Longs,
    at: Longs,
    sizes: Longs,
    nulls: Longs,
    state: Longs,
) -> int:
    """Find the columns of one image; return the place after it, or -1."""
    base = address_of(raw)
    bitmap = p
    p += (n + 7) >> 3
    if p > end:
        _fail(state, CUT_SHORT, bitmap, -1)
        return -1
    for j in range(n):
        if load_u8(base + bitmap + (j >> 3)) >> (j & 7) & 1:
            at[side, row, j] = -1
            nulls[side, j] += 1
            continue
        at[side, row, j] = p
        size = width[shape[side, j]]
        if size < 0:
            head = -size
            if p + head > end:
                _fail(state, CUT_SHORT, p, i64(shape[side, j]))
                return -1
            size = length_at(base + p, head)
            sizes[side, j] += size
            p += head
        p += size
        if p > end:
            _fail(state, CUT_SHORT, at[side, row, j], i64(shape[side, j]))
            return -1
    return p


@compiled
def _partial_bits(
    raw: Bytes, p: int, end: int, documents: int, row: int, partial: Bytes, state: Longs
) -> int:
    """Read which documents of an image hold changes only; return the place after that, or -1."""
    begin = p
    options, p = packed_length(raw, p, end)
    if options < 0 or options > _PARTIAL_JSON:
        _fail(state, CUT_SHORT if options < 0 else BAD_OPTIONS, begin, -1)
        return -1
    for k in range(documents):
        partial[row, k] = 0
    if options == 0:
        return p
    if p + ((documents + 7) >> 3) > end:
        _fail(state, CUT_SHORT, p, -1)
        return -1
    for k in range(documents):
        partial[row, k] = raw[p + (k >> 3)] >> (k & 7) & 1
    return p + ((documents + 7) >> 3)


@compiled
def _header(raw: Bytes, p: int, end: int, v2: bool, columns: int, state: Longs) -> int:
    """Read an event's header and column count; return the place after them, or -1."""
    begin = p
    p += 8  # table number, flags
    if v2 and p + 2 <= end:
        extra = i64(raw[p]) | i64(raw[p + 1]) << 8
        if extra < 2:
            _fail(state, CUT_SHORT, p, -1)
            return -1
        p += extra
    elif v2:
        p = end + 1
    if p >= end:
        _fail(state, CUT_SHORT, begin, -1)
        return -1
    begin = p
    count, p = packed_length(raw, p, end)
    if count != columns:
        _fail(state, CUT_SHORT if count < 0 else BAD_COLUMN_COUNT, begin, -1)
        return -1
    return p


@compiled
def walk(
    raw: Bytes,
    start: Longs,
    stop: Longs,
    code: Bytes,
    width: Longs,
    documents: int,
    allow_partial: bool,
    max_bytes: int,
    at: Longs,
    op: npt.NDArray[np.int8],
    event: npt.NDArray[np.int32],
    partial: Bytes,
    shape: npt.NDArray[np.int16],
    shaped: Longs,
    sizes: Longs,
    nulls: Longs,
    state: Longs,
) -> int:
    """Find the rows of one chunk, from where `state` stands; return how many they are.

    Ends when `op` or `at` is full, after `max_bytes` of rows, before an event whose images have
    other columns, at a fault (in `state`; its row is not counted), or with the last event.

    Args:
        raw: holds the events.
        start: their first bytes after the header.
        stop: the first bytes after them, without checksum.
        code: their type codes, of plain events only.
        width: bytes of each column's values; negative: bytes of the length in front of them.
        documents: how many JSON columns the table has, for events with partial ones.
        allow_partial: images may lack columns.
        max_bytes: of rows, in one chunk.
        at: [side, row, column] gets the values' places.
        op: gets what happened to each row.
        event: gets each row's event.
        partial: [row, document] gets whether the document holds changes only; may have no rows
            unless there is an event with partial ones.
        shape: [side, n] gets the columns of the images.
        shaped: [side] gets how many they are; -1: there is no such image.
        sizes: [side, column] gets the bytes of the values with a length in front.
        nulls: [side, column] gets how many values are NULL.
        state: where the pass stands.
    """
    rows, count = i64(0), i64(len(width))
    room, bitmap = i64(len(op)), (count + 7) >> 3
    for side in range(2):
        shaped[side] = -1
    state[BYTES] = 0
    while state[EVENT] < len(start):
        e = state[EVENT]
        p, end, kind = start[e], stop[e], i64(code[e])
        what = _op_of(kind)
        if p < 0 or end > len(raw) or p > end:
            _fail(state, CUT_SHORT, p, -1)
            return rows
        p = _header(raw, p, end, _is_v2(kind), count, state)
        if p < 0:
            return rows
        if p + bitmap * (2 if what == UPDATE else 1) > end:
            _fail(state, CUT_SHORT, p, -1)
            return rows
        columns = i64(0)
        for side in range(2):
            if what == (INSERT if side == BEFORE else DELETE):
                continue
            if shaped[side] < 0:
                _note_shape(raw, p, count, shape[side], shaped, side)
                for row in range(rows):  # rows so far have no such image
                    for j in range(shaped[side]):
                        at[side, row, j] = -1
                for j in range(shaped[side]):
                    nulls[side, j] += rows
            elif not _has_shape(raw, p, count, shape[side], shaped[side]):
                return rows
            if shaped[side] < count and not allow_partial:
                _fail(state, PARTIAL_IMAGE, p, -1)
                return rows
            p += bitmap
            columns += shaped[side]
        if columns == 0 and p < end:
            _fail(state, EMPTY_IMAGE, p, -1)
            return rows
        p = max(p, state[PLACE])
        while p < end:
            if rows == room or state[BYTES] >= max_bytes:
                state[PLACE] = p
                return rows
            first = p
            for side in range(2):
                if what == (INSERT if side == BEFORE else DELETE):
                    for j in range(shaped[side]):
                        at[side, rows, j] = -1
                        nulls[side, j] += 1
                    continue
                if side == AFTER and kind == PARTIAL_UPDATE:
                    p = _partial_bits(raw, p, end, documents, rows, partial, state)
                    if p < 0:
                        return rows
                n = shaped[side]
                p = _image(raw, p, end, side, rows, n, shape, width, at, sizes, nulls, state)
                if p < 0:
                    return rows
            op[rows] = what
            event[rows] = e
            rows += 1
            state[BYTES] += p - first
        state[EVENT] += 1
        state[PLACE] = 0
    return rows


def warm() -> None:
    """Compile the pass."""
    nothing, longs = frozen(np.zeros(0, np.uint8)), frozen(np.zeros(0, np.int64))
    walk(
        nothing,
        longs,
        longs,
        nothing,
        longs,
        0,
        False,
        1,
        np.zeros((2, 1, 1), np.int64),
        np.zeros(1, np.int8),
        np.zeros(1, np.int32),
        np.zeros((0, 1), np.uint8),
        np.zeros((2, 1), np.int16),
        np.zeros(2, np.int64),
        np.zeros((2, 1), np.int64),
        np.zeros((2, 1), np.int64),
        np.zeros(STATE_SIZE, np.int64),
    )
