"""Compiled: which packets of the log a plan takes along, and which it can do without.

A changefeed of one table sees the transactions of all others go by. A plan that carried their rows
would be as large for each of fifty changefeeds as for one of all tables. What stays is what a
reader's clock needs: the begin and the end of every transaction, and all of those that have
captured rows but the rows of other tables.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from rowferry.flow.capture.binlog.frame.event_kernels import (
    is_quiet,
    is_rows,
    number_at,
    query_word,
)
from rowferry.flow.capture.binlog.frame.scan_kernels import find_map


@njit(cache=True, nogil=True)
def keep_needed(
    data: Any,
    begin: Any,
    behind: Any,
    tail: Any,
    map_keys: Any,
    map_slots: Any,
    slot_captured: Any,
    out: Any,
) -> Any:
    """Copy the packets of data[begin:behind] that a reader needs to `out`; returns how many bytes.

    `out` must have room for all of them. What is not understood is kept.
    """
    at, n = begin, np.int64(0)
    inside = np.int64(-1)  # where in `out` the open transaction goes on behind its begin
    needed = False  # whether it has something to read
    while at + 24 <= behind:
        size = number_at(data, at, 3)
        if size == 0xFFFFFF:
            break  # an event in several packets: far more than a plan takes along
        end = at + 4 + size
        if size < 20 + tail or end > behind:
            break
        h = at + 5
        body, stop = h + 19, end - tail
        code = data[h + 4]
        low = number_at(data, h + 13, 4)
        drop = False
        begins = code == 33 or code == 34 or code == 162
        if code == 19 or is_rows(code):
            known = False
            if stop - body >= 8:
                place = find_map(map_keys, number_at(data, body, 6))
                known = map_keys[place] != 0
            if known and slot_captured[map_slots[place]] == 0:
                drop = True
            else:
                needed = True
        elif is_quiet(code):
            drop = True
        elif code == 16 or (code == 2 and query_word(data, body, stop) == 2):
            if inside >= 0 and not needed:
                n = inside
            inside = np.int64(-1)
        elif not begins and not (code == 2 and query_word(data, body, stop) == 1):
            needed = True
        # Where events do not tell their ends (MariaDB), their lengths are counted instead; the
        # next transaction begins with a place of its own.
        if not drop or low == 0:
            for i in range(at, end):
                out[n] = data[i]
                n += 1
        if begins:
            inside, needed = n, False
        at = end
    for i in range(at, behind):
        out[n] = data[i]
        n += 1
    return n


def warm() -> None:
    """Compile the kernel on a tiny input."""
    from rowferry.flow.capture.binlog.frame.scan import Maps

    maps, data = Maps(), np.zeros(32, np.uint8)
    zero, size = np.int64(0), np.int64(len(data))
    keep_needed(
        data, zero, size, np.int64(4), maps.keys, maps.slots, maps.captured, np.zeros(32, np.uint8)
    )
