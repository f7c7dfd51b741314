"""Dates and times out of packed numbers, as MySQL's text.

A packed date-time is ((year * 13 + month) << 5 | day) << 17 | hour << 12 | minute << 6 | second,
shifted left by 24 for the microseconds; the zero date is 0. A TIME is a signed number of
nanoseconds.
"""

from __future__ import annotations

import numpy as np

from rowferry.columnar.packed import Bytes, Longs, Words, compiled, i64, u64
from rowferry.flow.capture.range_log.kv_bytes import (
    BAD_TIME,
    KEY,
    MAX_TIME_SECONDS,
    NANOS,
    VALUE,
    fault,
)


@compiled
def put_number(out: Bytes, q: int, number: int, digits: int) -> int:
    """Write a number with leading zeros; return the place after it."""
    for i in range(digits - 1, -1, -1):
        out[q + i] = np.uint8(48 + number % 10)
        number //= 10
    return q + digits


@compiled
def put_date(out: Bytes, q: int, year: int, month: int, day: int) -> int:
    """Write YYYY-MM-DD."""
    q = put_number(out, q, year, 4)
    out[q] = 45
    q = put_number(out, q + 1, month, 2)
    out[q] = 45
    return put_number(out, q + 1, day, 2)


@compiled
def put_clock(
    out: Bytes, q: int, hour: int, minute: int, second: int, micro: int, fraction: int
) -> int:
    """Write hh:mm:ss and `fraction` digits; hours may have three digits. Further digits are cut."""
    q = put_number(out, q, hour, 3 if hour > 99 else 2)
    out[q] = 58
    q = put_number(out, q + 1, minute, 2)
    out[q] = 58
    q = put_number(out, q + 1, second, 2)
    if fraction:
        out[q] = 46
        q = put_number(out, q + 1, micro // 10 ** (6 - fraction), fraction)
    return q


@compiled
def put_duration(out: Bytes, q: int, nanos: int, fraction: int) -> int:
    """Write a TIME; return the place after it, or -1 if it is outside MySQL's range."""
    if nanos < -(MAX_TIME_SECONDS + 1) * NANOS or nanos > (MAX_TIME_SECONDS + 1) * NANOS:
        return -1
    if nanos < 0:
        out[q] = 45
        q += 1
        nanos = -nanos
    seconds = nanos // NANOS
    if seconds > MAX_TIME_SECONDS:
        return -1
    micro = nanos % NANOS // 1000
    return put_clock(out, q, seconds // 3600, seconds // 60 % 60, seconds % 60, micro, fraction)


@compiled
def date_times(
    packed: Words, form: Bytes, date_only: bool, fraction: int, offsets: Longs, out: Bytes
) -> int:
    """Write one column's packed dates as text; `out` must have room for 26 bytes a row."""
    q = i64(0)
    for row in range(len(packed)):
        offsets[row] = q
        if form[row] != VALUE and form[row] != KEY:
            continue
        bits = packed[row]
        if bits >> u64(63):
            return fault(row, BAD_TIME)
        number = i64(bits)
        micro, clock, day = number & 0xFFFFFF, number >> 24 & 0x1FFFF, number >> 41
        months, day = day >> 5, day & 31
        year, month = months // 13, months % 13
        hour, minute, second = clock >> 12, clock >> 6 & 63, clock & 63
        if year > 9999 or hour > 23 or minute > 59 or second > 59 or micro > 999_999:
            return fault(row, BAD_TIME)
        q = put_date(out, q, year, month, day)
        if not date_only:
            out[q] = 32
            q = put_clock(out, q + 1, hour, minute, second, micro, fraction)
    offsets[len(packed)] = q
    return 0


@compiled
def durations(nanos: Longs, form: Bytes, fraction: int, offsets: Longs, out: Bytes) -> int:
    """Write one column's TIME values as text; `out` must have room for 17 bytes a row."""
    q = i64(0)
    for row in range(len(nanos)):
        offsets[row] = q
        if form[row] != VALUE and form[row] != KEY:
            continue
        q = put_duration(out, q, nanos[row], fraction)
        if q < 0:
            return fault(row, BAD_TIME)
    offsets[len(nanos)] = q
    return 0
