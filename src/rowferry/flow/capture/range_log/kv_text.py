"""Strings and bytes out of located bytes, and the validity of a column."""

from __future__ import annotations

import numpy as np

from rowferry.columnar.packed import Bytes, Longs, compiled, i64
from rowferry.flow.capture.range_log.kv_bytes import ABSENT, GROUP, KEY, VALUE


@compiled
def validity(form: Bytes, bitmap: Bytes) -> tuple[int, int]:
    """Set the bits of the rows that have a value; return how many are NULL and how many absent."""
    nulls = absent = 0
    for row in range(len(form)):
        if form[row] == VALUE or form[row] == KEY:
            bitmap[row >> 3] |= np.uint8(1 << (row & 7))
        elif form[row] == ABSENT:
            absent += 1
        else:
            nulls += 1
    return nulls, absent


@compiled
def string_offsets(raw: Bytes, at: Longs, size: Longs, form: Bytes, offsets: Longs) -> None:
    """Fill `offsets` with where each row's string will begin."""
    q = i64(0)
    for row in range(len(at)):
        offsets[row] = q
        if form[row] == VALUE:
            q += size[row]
        elif form[row] == KEY:
            marker = i64(raw[at[row] + size[row] - 1])
            q += size[row] // (GROUP + 1) * GROUP - (0xFF - marker)
    offsets[len(at)] = q


@compiled
def strings(raw: Bytes, at: Longs, form: Bytes, offsets: Longs, out: Bytes) -> None:
    """Copy one column's strings to the places that `string_offsets` found."""
    for row in range(len(at)):
        if form[row] == VALUE:
            room = out[offsets[row] : offsets[row + 1]]
            source = raw[at[row] : at[row] + len(room)]
            for i in range(len(room)):
                room[i] = source[i]
        elif form[row] == KEY:
            p, q = at[row], offsets[row]
            for i in range(offsets[row + 1] - q):
                out[q + i] = raw[p + i + i // GROUP]
