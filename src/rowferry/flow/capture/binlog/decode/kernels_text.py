"""Dates and times out of the log's binary forms, as the server's text.

Each writer reads at the address `p`, whose bytes are there, writes to the address `q`, where there
is room, and returns the address after the text, or a fault as a negative number. The `…ROOM`s say
how many bytes a text can have. Addresses, because arrays as arguments cost more than the writing.
"""

from __future__ import annotations

from typing import Final

from rowferry.columnar.addresses import (
    BAD_TIME,
    big_endian,
    compiled,
    i64,
    load_64,
    load_u8,
    load_u16,
    load_u32,
    store_8,
)
from rowferry.columnar.packed_text import put_clock, put_date

DATE_ROOM: Final = 10
DATE_TIME_ROOM: Final = 26
TIME_ROOM: Final = 17
DECIMAL_ROOM: Final = 3  # sign, point and a zero in front of it; and its digits

_DAY: Final = 86400


@compiled
def put_packed_date(p: int, q: int) -> int:
    """Write a DATE: three bytes, low first; day 5 bits, month 4, then the year."""
    bits = load_u16(p) | load_u8(p + 2) << 16
    day, month, year = bits & 31, bits >> 5 & 15, bits >> 9
    if month > 12 or year > 9999:
        return -BAD_TIME
    return put_date(q, year, month, day)


@compiled
def _fraction(p: int, digits: int) -> int:
    """Read the microseconds behind a time, in one byte for each two digits."""
    size = (digits + 1) >> 1
    fraction = big_endian(p, size)
    for _ in range(3 - size):
        fraction *= 100
    return fraction


@compiled
def put_packed_date_time(p: int, digits: int, q: int) -> int:
    """Write a DATETIME: five bytes, high first, then the fraction."""
    bits = big_endian(p, 5) - (i64(1) << 39)
    micro = _fraction(p + 5, digits)
    months, day = bits >> 22, bits >> 17 & 31
    hour, minute, second = bits >> 12 & 31, bits >> 6 & 63, bits & 63
    if bits < 0 or months >= 130_000 or hour > 23 or minute > 59 or second > 59:
        return -BAD_TIME
    if micro > 999_999:
        return -BAD_TIME
    q = put_date(q, months // 13, months % 13, day)
    store_8(q, 32)
    return put_clock(q + 1, hour, minute, second, micro, digits)


@compiled
def put_timestamp(p: int, digits: int, low_first: bool, q: int) -> int:
    """Write a TIMESTAMP in UTC: seconds since 1970 in four bytes, then the fraction; 0: zero date.

    MariaDB's reach to the year 2106, so the seconds have no sign.
    """
    seconds, micro = big_endian(p, 4), _fraction(p + 4, digits)
    if low_first:
        seconds = load_u32(p)
    if micro > 999_999:
        return -BAD_TIME
    if seconds == 0 and micro == 0:
        q = put_date(q, 0, 0, 0)
        store_8(q, 32)
        return put_clock(q + 1, 0, 0, 0, 0, digits)
    # Days are counted from 1 March of the year 0, so that leap days come last.
    days, clock = seconds // _DAY + 719_468, seconds % _DAY
    era = days // 146_097
    of_era = days - era * 146_097
    year = (of_era - of_era // 1460 + of_era // 36_524 - of_era // 146_096) // 365
    of_year = of_era - (365 * year + year // 4 - year // 100)
    month = (5 * of_year + 2) // 153
    day = of_year - (153 * month + 2) // 5 + 1
    month = month + 3 if month < 10 else month - 9
    q = put_date(q, year + era * 400 + (1 if month <= 2 else 0), month, day)
    store_8(q, 32)
    return put_clock(q + 1, clock // 3600, clock // 60 % 60, clock % 60, micro, digits)


@compiled
def put_packed_time(p: int, digits: int, q: int) -> int:
    """Write a TIME: three bytes and the fraction are one number, high first, with an offset."""
    size = (digits + 1) >> 1
    bits = big_endian(p, 3 + size) - (i64(0x800000) << (8 * size))
    if bits < 0:
        store_8(q, 45)
        q += 1
        bits = -bits
    micro, clock = bits & ((i64(1) << (8 * size)) - 1), bits >> (8 * size)
    for _ in range(3 - size):
        micro *= 100
    hour, minute, second = clock >> 12, clock >> 6 & 63, clock & 63
    if hour > 838 or minute > 59 or second > 59 or micro > 999_999:
        return -BAD_TIME
    return put_clock(q, hour, minute, second, micro, digits)


@compiled
def put_old_time(p: int, q: int) -> int:
    """Write a TIME of the old form: hhmmss as a number of three bytes, low first."""
    number = load_u16(p) | load_u8(p + 2) << 16
    if number >= 1 << 23:
        number = (1 << 24) - number
        store_8(q, 45)
        q += 1
    hour, minute, second = number // 10_000, number // 100 % 100, number % 100
    if hour > 838 or minute > 59 or second > 59:
        return -BAD_TIME
    return put_clock(q, hour, minute, second, 0, 0)


@compiled
def put_old_date_time(p: int, q: int) -> int:
    """Write a DATETIME of the old form: YYYYMMDDhhmmss as a number of eight bytes, low first."""
    number = load_64(p)
    day, clock = number // 1_000_000, number % 1_000_000
    hour, minute, second = clock // 10_000, clock // 100 % 100, clock % 100
    if number < 0 or day >= 100_000_000 or hour > 23 or minute > 59 or second > 59:
        return -BAD_TIME
    if day // 100 % 100 > 12:
        return -BAD_TIME
    q = put_date(q, day // 10_000, day // 100 % 100, day % 100)
    store_8(q, 32)
    return put_clock(q + 1, hour, minute, second, 0, 0)
