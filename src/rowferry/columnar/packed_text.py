"""Digits, dates, clocks and decimals as MySQL's text, written at addresses.

Each writer writes to the address `q`, where there is room, and returns the address after the text.
Addresses, because arrays as arguments cost more than the writing.
"""

from __future__ import annotations

import numpy as np

from rowferry.columnar.addresses import (
    BAD_DECIMAL,
    big_endian,
    compiled,
    i64,
    load_u8,
    store_8,
    store_16,
)
from rowferry.columnar.packed import decimal_bytes

POWERS = np.array([10**i for i in range(10)], np.int64)
_PAIRS = np.frombuffer("".join(f"{i:02}" for i in range(100)).encode(), np.uint16)


@compiled
def put_pair(q: int, number: int) -> int:
    """Write two digits."""
    store_16(q, i64(_PAIRS[number]))
    return q + 2


@compiled
def put_digits(q: int, number: int, digits: int) -> int:
    """Write a number with leading zeros."""
    left = digits
    while left > 1:
        left -= 2
        put_pair(q + left, number % 100)
        number //= 100
    if left:
        store_8(q, 48 + number)
    return q + digits


@compiled
def put_date(q: int, year: int, month: int, day: int) -> int:
    """Write YYYY-MM-DD."""
    put_pair(q, year // 100)
    put_pair(q + 2, year % 100)
    store_8(q + 4, 45)
    put_pair(q + 5, month)
    store_8(q + 7, 45)
    return put_pair(q + 8, day)


@compiled
def put_clock(q: int, hour: int, minute: int, second: int, micro: int, digits: int) -> int:
    """Write hh:mm:ss and `digits` of a fraction; hours may have three digits."""
    if hour > 99:
        store_8(q, 48 + hour // 100)
        q += 1
        hour %= 100
    put_pair(q, hour)
    store_8(q + 2, 58)
    put_pair(q + 3, minute)
    store_8(q + 5, 58)
    q = put_pair(q + 6, second)
    if digits:
        store_8(q, 46)
        q = put_digits(q + 1, micro // POWERS[6 - digits], digits)
    return q


@compiled
def _group(p: int, digits: int, mask: int) -> int:
    """Read up to nine digits; -1: the bytes hold more."""
    size = decimal_bytes(digits)
    number = big_endian(p, size) ^ (mask & ((i64(1) << (8 * size)) - 1))
    return number if number < POWERS[digits] else i64(-1)


@compiled
def put_decimal(p: int, precision: int, scale: int, q: int) -> int:
    """Write a DECIMAL with exactly `scale` digits after the point."""
    negative = not load_u8(p) & 0x80
    mask = i64(0xFFFFFFFF) if negative else i64(0)
    begin = q
    store_8(q, 45)
    q += 1 if negative else 0
    digits_at, zero = q, True
    left, lead = precision - scale, True
    sign = i64(0x80)  # the very first bit; it is flipped
    while left > 0:
        take = left % 9 if left % 9 else i64(9)
        size = decimal_bytes(take)
        group = _group(p, take, mask ^ sign << (8 * (size - 1)))
        if group < 0:
            return -BAD_DECIMAL
        sign = i64(0)
        zero = zero and group == 0
        if not lead:
            q = put_digits(q, group, take)
        elif group:
            digits = i64(1)
            while digits < take and group >= POWERS[digits]:
                digits += 1
            q = put_digits(q, group, digits)
            lead = False
        p += size
        left -= take
    if q == digits_at:
        store_8(q, 48)
        q += 1
    if scale:
        store_8(q, 46)
        q += 1
        left = scale
        while left > 0:
            take = min(left, i64(9))
            size = decimal_bytes(take)
            group = _group(p, take, mask ^ sign << (8 * (size - 1)))
            if group < 0:
                return -BAD_DECIMAL
            sign = i64(0)
            zero = zero and group == 0
            q = put_digits(q, group, take)
            p += size
            left -= take
    if zero and negative:  # no server writes it; numbers have one zero
        for i in range(begin, q - 1):
            store_8(i, load_u8(i + 1))
        q -= 1
    return q
