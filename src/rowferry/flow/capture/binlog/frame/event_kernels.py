"""Compiled: what single events of the log say, at checked places.

Callers have compared the event's length with the bytes at hand; what lies behind its header is
compared here.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt
from numba import njit


def _crc_tables() -> npt.NDArray[np.uint32]:
    """Return the tables of CRC-32, for eight bytes at once."""
    table = np.zeros((8, 256), np.uint32)
    c = np.arange(256, dtype=np.uint32)
    for _ in range(8):
        c = np.where(c & 1, np.uint32(0xEDB88320) ^ (c >> 1), c >> 1).astype(np.uint32)
    for k in range(8):
        table[k] = c
        c = table[0][c & 0xFF] ^ (c >> np.uint32(8))
    return table


CRC_TABLES: Final = _crc_tables()


@njit(cache=True, nogil=True)
def crc32(data: Any, start: Any, end: Any, tables: Any) -> Any:
    """Return the CRC-32 of data[start:end], eight bytes a step."""
    c = np.uint32(0xFFFFFFFF)
    p = start
    while p + 8 <= end:
        a = c ^ (
            np.uint32(data[p])
            | np.uint32(data[p + 1]) << np.uint32(8)
            | np.uint32(data[p + 2]) << np.uint32(16)
            | np.uint32(data[p + 3]) << np.uint32(24)
        )
        c = (
            tables[7, a & np.uint32(0xFF)]
            ^ tables[6, (a >> np.uint32(8)) & np.uint32(0xFF)]
            ^ tables[5, (a >> np.uint32(16)) & np.uint32(0xFF)]
            ^ tables[4, a >> np.uint32(24)]
            ^ tables[3, data[p + 4]]
            ^ tables[2, data[p + 5]]
            ^ tables[1, data[p + 6]]
            ^ tables[0, data[p + 7]]
        )
        p += 8
    while p < end:
        c = tables[0, (c ^ np.uint32(data[p])) & np.uint32(0xFF)] ^ (c >> np.uint32(8))
        p += 1
    return c ^ np.uint32(0xFFFFFFFF)


@njit(cache=True, nogil=True, inline="always")
def number_at(data: Any, p: Any, size: Any) -> Any:
    """Read a little-endian number of up to 8 bytes."""
    number = np.int64(0)
    for i in range(size):
        number |= np.int64(data[p + i]) << np.int64(8 * i)
    return number


@njit(cache=True, nogil=True, inline="always")
def is_rows(code: Any) -> Any:
    """Return whether an event holds rows."""
    return (23 <= code <= 25) or (30 <= code <= 32) or code == 39 or (166 <= code <= 171)


@njit(cache=True, nogil=True, inline="always")
def is_quiet(code: Any) -> Any:
    """Return whether an event says nothing about rows, tables or transactions."""
    return (
        code == 27
        or code == 41
        or code == 3
        or code == 5
        or code == 9  # what a file holds that a statement loads; so 11 and 17
        or code == 11
        or code == 13
        or code == 14
        or code == 17
        or code == 28
        or code == 29
        or code == 36
        or code == 37
        or code == 160
        or code == 161
        or code == 164
    )


@njit(cache=True, nogil=True, inline="always")
def is_inside(code: Any, flags: Any) -> Any:
    """Return whether an event without an end position is one of a transaction (MariaDB 11.4).

    Others are not in the file: the server made them up for the stream.
    """
    return (
        not flags & 0x20
        and code != 4
        and code != 15
        and code != 27
        and code != 41
        and code != 163
        and code != 164
    )


@njit(cache=True, nogil=True)
def query_word(data: Any, p: Any, end: Any) -> Any:
    """Return 1 for BEGIN, 2 for COMMIT, 0 for every other statement of a QUERY body."""
    if p + 13 > end:
        return 0
    at = p + 13 + number_at(data, p + 11, 2) + np.int64(data[p + 8]) + 1
    size = end - at
    if size == 5:
        if (
            data[at] == 66
            and data[at + 1] == 69
            and data[at + 2] == 71
            and data[at + 3] == 73
            and data[at + 4] == 78
        ):
            return 1
    elif size == 6:
        if (
            data[at] == 67
            and data[at + 1] == 79
            and data[at + 2] == 77
            and data[at + 3] == 77
            and data[at + 4] == 73
            and data[at + 5] == 84
        ):
            return 2
    return 0


@njit(cache=True, nogil=True)
def begin_time(data: Any, p: Any, end: Any, code: Any, seconds: Any) -> Any:
    """Return the milliseconds at which a transaction was committed at its origin."""
    if code == 33 or code == 34:
        at = p + 42  # flags, uuid, number, type code, two logical clocks
        if end >= at + 7 and data[p + 25] == 2:
            immediate = number_at(data, at, 7)
            if immediate >> np.int64(55) & np.int64(1):
                if end >= at + 14:
                    original = number_at(data, at + 7, 7)
                    return original // 1000
            return (immediate & ((np.int64(1) << np.int64(55)) - 1)) // 1000
    return seconds * 1000


@njit(cache=True, nogil=True)
def is_half(data: Any, p: Any, end: Any, flags: Any) -> Any:
    """Return whether MariaDB's ALTER in two phases begins with this GTID, or ends in vain.

    Its text stands in the log twice then; only behind a GTID that commits it, it counts.
    """
    at = p + 13 + (8 if flags & 2 else 0)  # a number of the group commit may come first
    return not flags & 0xC0 and at < end and data[at] & 0x0A != 0


@njit(cache=True, nogil=True)
def partition_of(data: Any, p: Any, end: Any, code: Any) -> Any:
    """Return the partition + 1 that a version-2 rows event names; 0: none; -1: too short."""
    if code != 30 and code != 31 and code != 32 and code != 39:
        return 0
    if p + 10 > end:
        return -1
    size = number_at(data, p + 8, 2)
    at = p + 10
    stop = p + 8 + size
    if stop > end:
        return -1
    if at + 3 <= stop and data[at] == 1:
        return number_at(data, at + 1, 2) + 1
    return 0


@njit(cache=True, nogil=True)
def left_partition_of(data: Any, p: Any, code: Any) -> Any:
    """Return the partition + 1 that the rows of an update were in before; 0: it does not tell.

    Only for events of which `partition_of` has told a partition.
    """
    if code != 31 and code != 39:
        return 0
    at = p + 10
    if at + 5 > p + 8 + number_at(data, p + 8, 2):
        return 0
    return number_at(data, at + 3, 2) + 1
