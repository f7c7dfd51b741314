"""Compiled loops that turn columns into keys and values.

A column comes as bytes with a place and a size for each row, size -1 being NULL. The parsing loops
return the first row that does not fit, or -1.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from rowferry.columnar.packed import Bytes, Longs, Words, compiled, decimal_bytes, i64, u64
from rowferry.flow.capture.range_log.kv_bytes import (
    BYTES_FLAG,
    GROUP,
    LARGE,
    MAX_DECIMAL_DIGITS,
    MAX_TIME_SECONDS,
    NANOS,
    ROW_V2,
)

Flags = npt.NDArray[np.bool_]


# --- values --------------------------------------------------------------------------------------


@compiled
def integer_sizes(words: Words, signed: bool, size: Longs) -> None:
    """Set the size of each value that is not NULL: the fewest of 1, 2, 4, 8 bytes that hold it."""
    for row in range(len(words)):
        if size[row] < 0:
            continue
        bits = words[row]
        if signed:
            number = i64(bits)
            bits = u64(number if number >= 0 else ~number) << u64(1)
        size[row] = 8
        if bits < u64(1 << 8):
            size[row] = 1
        elif bits < u64(1 << 16):
            size[row] = 2
        elif bits < u64(1 << 32):
            size[row] = 4


@compiled
def tally(size: Longs, present: Longs, used: Longs) -> None:
    """Add one column to each row's number of values and of data bytes."""
    for row in range(len(size)):
        if size[row] >= 0:
            present[row] += 1
            used[row] += size[row]


@compiled
def put_headers(out: Bytes, offsets: Longs, large: Flags, present: Longs, columns: int) -> None:
    """Write version, flags and counts of each value."""
    for row in range(len(present)):
        q = offsets[row]
        nulls = columns - present[row]
        out[q] = ROW_V2
        out[q + 1] = LARGE if large[row] else 0
        out[q + 2] = present[row] & 0xFF
        out[q + 3] = present[row] >> 8
        out[q + 4] = nulls & 0xFF
        out[q + 5] = nulls >> 8


@compiled
def put_little(out: Bytes, q: int, number: int, size: int) -> None:
    """Write a little-endian number."""
    for i in range(size):
        out[q + i] = np.uint8(number >> (8 * i) & 0xFF)


@compiled
def put_column(
    out: Bytes,
    offsets: Longs,
    large: Flags,
    present: Longs,
    columns: int,
    column_id: int,
    place: int,
    data: Bytes,
    at: Longs,
    size: Longs,
    placed: Longs,
    used: Longs,
) -> None:
    """Write one column's ids, offsets and data; `placed` and `used` say what is there already.

    Columns must come in the order of their ids; `place` counts them.
    """
    for row in range(len(at)):
        id_size, offset_size = (4, 4) if large[row] else (1, 2)
        ids = offsets[row] + 6
        if size[row] < 0:
            put_little(
                out, ids + (present[row] + place - placed[row]) * id_size, column_id, id_size
            )
            continue
        put_little(out, ids + placed[row] * id_size, column_id, id_size)
        ends = ids + columns * id_size
        q = ends + present[row] * offset_size + used[row]
        room = out[q : q + size[row]]
        source = data[at[row] : at[row] + size[row]]
        for i in range(len(room)):
            room[i] = source[i]
        used[row] += size[row]
        put_little(out, ends + placed[row] * offset_size, used[row], offset_size)
        placed[row] += 1


# --- keys ----------------------------------------------------------------------------------------


@compiled
def group_sizes(size: Longs, total: Longs) -> None:
    """Add the length of strings in groups, with their flag, to each key's length."""
    for row in range(len(size)):
        total[row] += 1 + (size[row] // GROUP + 1) * (GROUP + 1)


@compiled
def put_prefix(out: Bytes, cursor: Longs, prefix: Bytes) -> None:
    """Write the same bytes to each key."""
    for row in range(len(cursor)):
        for i in range(len(prefix)):
            out[cursor[row] + i] = prefix[i]
        cursor[row] += len(prefix)


@compiled
def put_words(out: Bytes, cursor: Longs, flag: int, words: Words) -> None:
    """Write one 64-bit number to each key, big-endian, after its flag unless that is 0."""
    for row in range(len(cursor)):
        q = cursor[row]
        if flag:
            out[q] = flag
            q += 1
        for i in range(8):
            out[q + i] = np.uint8(words[row] >> u64(56 - 8 * i) & u64(0xFF))
        cursor[row] = q + 8


@compiled
def put_bytes(out: Bytes, cursor: Longs, flag: int, data: Bytes, at: Longs, size: Longs) -> None:
    """Write bytes as they are to each key, after their flag."""
    for row in range(len(cursor)):
        q = cursor[row]
        out[q] = flag
        for i in range(size[row]):
            out[q + 1 + i] = data[at[row] + i]
        cursor[row] = q + 1 + size[row]


@compiled
def put_groups(out: Bytes, cursor: Longs, data: Bytes, at: Longs, size: Longs) -> None:
    """Write strings to each key in groups of eight, each with a marker; `out` holds zeros."""
    for row in range(len(cursor)):
        q = cursor[row]
        out[q] = BYTES_FLAG
        q += 1
        done = 0
        while done <= size[row]:
            take = min(size[row] - done, GROUP)
            for i in range(take):
                out[q + i] = data[at[row] + done + i]
            out[q + GROUP] = np.uint8(0xFF - (GROUP - take))
            q += GROUP + 1
            done += GROUP
        cursor[row] = q


# --- text ----------------------------------------------------------------------------------------


@compiled
def _number(data: Bytes, p: int, end: int, digits: int) -> int:
    """Read exactly that many digits; -1 if they are not there."""
    if p + digits > end:
        return -1
    number = i64(0)
    for i in range(p, p + digits):
        if data[i] < 48 or data[i] > 57:
            return -1
        number = number * 10 + i64(data[i]) - 48
    return number


@compiled
def _micros(data: Bytes, p: int, end: int, fraction: int) -> int:
    """Read an optional fraction of seconds up to the end; -1 if it is none of `fraction` digits."""
    if p == end:
        return 0
    digits = end - p - 1
    if data[p] != 46 or digits < 1 or digits > fraction:
        return -1
    digits_read = _number(data, p + 1, end, digits)
    return digits_read * 10 ** (6 - digits) if digits_read >= 0 else -1


@compiled
def _clock(data: Bytes, p: int, end: int) -> int:
    """Read mm:ss after hours, from its colon on, as seconds; -1 if it is not that."""
    if p + 6 > end or data[p] != 58 or data[p + 3] != 58:
        return -1
    minute, second = _number(data, p + 1, end, 2), _number(data, p + 4, end, 2)
    if minute < 0 or minute > 59 or second < 0 or second > 59:
        return -1
    return minute * 60 + second


@compiled
def _days(year: int, month: int) -> int:
    """Return the last day of a month; 31 for month 0, because parts of a date may be zero."""
    if month == 2:
        return 29 if year % 4 == 0 and (year % 100 != 0 or year % 400 == 0) else 28
    return 30 if month == 4 or month == 6 or month == 9 or month == 11 else 31


@compiled
def _packed(data: Bytes, p: int, end: int, date_only: bool, fraction: int) -> int:
    """Read a date or a date with a time as a packed number; -1 if it is neither."""
    if p + 10 > end or data[p + 4] != 45 or data[p + 7] != 45:
        return -1
    year, month, day = (
        _number(data, p, end, 4),
        _number(data, p + 5, end, 2),
        _number(data, p + 8, end, 2),
    )
    if year < 0 or month < 0 or month > 12 or day < 0 or day > _days(year, month):
        return -1
    clock, micro = i64(0), i64(0)
    p += 10
    if p != end:
        if date_only or data[p] != 32:
            return -1
        hour, rest = _number(data, p + 1, end, 2), _clock(data, p + 3, end)
        if hour < 0 or hour > 23 or rest < 0:
            return -1
        micro = _micros(data, p + 9, end, fraction)
        if micro < 0:
            return -1
        clock = hour << 12 | rest // 60 << 6 | rest % 60
    return ((year * 13 + month) << 5 | day) << 41 | clock << 24 | micro


@compiled
def parse_date_times(
    data: Bytes,
    at: Longs,
    size: Longs,
    date_only: bool,
    fraction: int,
    first: int,
    last: int,
    out: Words,
) -> int:
    """Pack dates; other than the zero date they must lie between `first` and `last`."""
    for row in range(len(at)):
        out[row] = 0
        if size[row] < 0:
            continue
        packed = _packed(data, at[row], at[row] + size[row], date_only, fraction)
        if packed < 0 or (packed != 0 and (packed < first or packed > last)):
            return row
        out[row] = u64(packed)
    return -1


@compiled
def parse_durations(data: Bytes, at: Longs, size: Longs, fraction: int, out: Longs) -> int:
    """Turn TIME texts into nanoseconds."""
    for row in range(len(at)):
        out[row] = 0
        if size[row] < 0:
            continue
        p, end = at[row], at[row] + size[row]
        negative = p < end and data[p] == 45
        if negative:
            p += 1
        digits = 3 if p + 3 < end and data[p + 3] == 58 else 2
        hour, rest = _number(data, p, end, digits), _clock(data, p + digits, end)
        if hour < 0 or rest < 0:
            return row
        micro = _micros(data, p + digits + 6, end, fraction)
        if micro < 0:
            return row
        nanos = (hour * 3600 + rest) * NANOS + micro * 1000
        if nanos > MAX_TIME_SECONDS * NANOS:
            return row
        out[row] = -nanos if negative else nanos
    return -1


@compiled
def _digits(data: Bytes, p: int, end: int, precision: int, scale: int, digits: Bytes) -> int:
    """Spread a decimal's digits over `precision` places; 0 if they do not fit or are none."""
    point = p
    while point < end and data[point] != 46:
        point += 1
    if point == p or point == end - 1:
        return 0
    digits[:precision] = 0
    for i in range(p, end):
        if i == point:
            continue
        if data[i] < 48 or data[i] > 57:
            return 0
        place = precision - scale + (i - point if i < point else i - point - 1)
        if 0 <= place < precision:
            digits[place] = data[i] - 48
        elif data[i] != 48:
            return 0
    return 1


@compiled
def _pack_digits(digits: Bytes, first: int, count: int, odd_first: bool, out: Bytes, q: int) -> int:
    """Write one side of a decimal in groups of nine digits; return the place after it."""
    left = count
    while left > 0:
        take = min(left, 9)
        if odd_first and left % 9:
            take = left % 9
        number = i64(0)
        for i in range(take):
            number = number * 10 + i64(digits[first + count - left + i])
        wide = decimal_bytes(take)
        for i in range(wide):
            out[q + i] = np.uint8(number >> (8 * (wide - 1 - i)) & 0xFF)
        q += wide
        left -= take
    return q


@compiled
def pack_decimals(
    data: Bytes, at: Longs, size: Longs, precision: int, scale: int, unsigned: bool, out: Bytes
) -> int:
    """Write decimals, `out[row]` each: precision, scale, MySQL's binary form."""
    digits = np.zeros(MAX_DECIMAL_DIGITS, np.uint8)
    for row in range(len(at)):
        if size[row] < 0:
            continue
        p, end = at[row], at[row] + size[row]
        negative = p < end and data[p] == 45
        if negative:
            p += 1
        if not _digits(data, p, end, precision, scale, digits):
            return row
        negative = negative and digits[:precision].any()
        if negative and unsigned:
            return row
        room = out[row]
        room[0], room[1] = precision, scale
        q = _pack_digits(digits, 0, precision - scale, True, room, 2)
        q = _pack_digits(digits, precision - scale, scale, False, room, q)
        if negative:
            for i in range(2, q):
                room[i] = ~room[i]
        room[2] ^= 0x80
    return -1
