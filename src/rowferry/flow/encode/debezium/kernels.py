"""Compiled: dates and times become numbers, and JSON documents lose their spaces."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rowferry.columnar.memory import Bytes, Ints, compiled, frozen
from rowferry.columnar.render import text_array, text_buffers
from rowferry.errors import EncodeError

_DAY_US = 86_400_000_000
_MONTH_ENDS = np.array([31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31], np.int64)
# What came of a text: a number, a date that no calendar has (zero, 30 February), not a date at all.
_FINE, _NO_DATE, _BROKEN = 0, 1, 2


@compiled
def _digits(data: Bytes, at: int, stop: int) -> Any:
    """Return (the number that begins here or -1, the place after it)."""
    number, first = np.int64(0), at
    while at < stop and 48 <= data[at] <= 57 and at - first < 9:
        number = number * 10 + np.int64(data[at] - 48)
        at += 1
    return (number if at > first else np.int64(-1)), at


@compiled
def _fraction(data: Bytes, at: int, stop: int) -> Any:
    """Return the microseconds of `.ffffff` up to the end, or -1."""
    if at == stop:
        return np.int64(0)
    if data[at] != 46:
        return np.int64(-1)
    fraction, end = _digits(data, at + 1, stop)
    count = end - at - 1
    if end != stop or fraction < 0 or count > 6:
        return np.int64(-1)
    for _ in range(6 - count):
        fraction *= 10
    return fraction


@compiled
def _clock(data: Bytes, at: int, stop: int) -> Any:
    """Return the microseconds of `hh:mm:ss[.f]` up to the end, or -1."""
    hours, at = _digits(data, at, stop)
    if hours < 0 or at >= stop or data[at] != 58:
        return np.int64(-1)
    minutes, at = _digits(data, at + 1, stop)
    if minutes < 0 or at >= stop or data[at] != 58:
        return np.int64(-1)
    seconds, at = _digits(data, at + 1, stop)
    micros = _fraction(data, at, stop)
    if seconds < 0 or micros < 0 or minutes > 59 or seconds > 59:
        return np.int64(-1)
    return ((hours * 60 + minutes) * 60 + seconds) * 1_000_000 + micros


@compiled
def _days(year: int, month: int, day: int) -> Any:
    """Return the days since 1970-01-01 of a date of the Gregorian calendar."""
    shifted = year - (1 if month <= 2 else 0)
    era = shifted // 400
    of_era = shifted - era * 400
    of_year = (153 * (month + (-3 if month > 2 else 9)) + 2) // 5 + day - 1
    return era * 146097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719468


@compiled
def _moment(data: Bytes, at: int, stop: int) -> Any:
    """Return (microseconds since 1970, what came of it); two-digit years are of 1970 to 2069."""
    year, at = _digits(data, at, stop)
    if year < 0 or at >= stop or data[at] != 45:
        return np.int64(0), _BROKEN
    month, at = _digits(data, at + 1, stop)
    if month < 0 or at >= stop or data[at] != 45:
        return np.int64(0), _BROKEN
    day, at = _digits(data, at + 1, stop)
    micros = np.int64(0)
    if at < stop:
        micros = _clock(data, at + 1, stop) if data[at] == 32 else np.int64(-1)
    if day < 0 or micros < 0:
        return np.int64(0), _BROKEN
    leap = year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
    if month < 1 or month > 12 or day < 1:
        return np.int64(0), _NO_DATE
    if day > _MONTH_ENDS[month - 1] + (1 if leap and month == 2 else 0):
        return np.int64(0), _NO_DATE
    if year < 70:
        year += 2000
    elif year < 100:
        year += 1900
    if month == 2 and day == 29 and not (year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)):
        day = np.int64(28)
    return _days(year, month, day) * _DAY_US + micros, _FINE


@compiled
def _moments(offsets: Ints, data: Bytes, valid: Any, out: Ints, there: Any) -> int:
    for row in range(len(valid)):
        there[row] = False
        if valid[row]:
            out[row], status = _moment(data, offsets[row], offsets[row + 1])
            if status == _BROKEN:
                return row
            there[row] = status == _FINE
    return -1


@compiled
def _durations(offsets: Ints, data: Bytes, valid: Any, out: Ints) -> int:
    for row in range(len(valid)):
        out[row] = 0
        if not valid[row]:
            continue
        start, stop = offsets[row], offsets[row + 1]
        negative = start < stop and data[start] == 45
        micros = _clock(data, start + (1 if negative else 0), stop)
        if micros < 0:
            return row
        out[row] = -micros if negative else micros
    return -1


@compiled
def _compact(offsets: Ints, data: Bytes, places: Ints, out: Bytes) -> None:
    at = 0
    for row in range(len(offsets) - 1):
        places[row] = at
        inside = False
        i = offsets[row]
        while i < offsets[row + 1]:
            byte = data[i]
            if inside and byte == 92 and i + 1 < offsets[row + 1]:
                out[at] = byte
                at += 1
                i += 1
                byte = data[i]
            elif byte == 34:
                inside = not inside
            elif not inside and (byte == 32 or byte == 9 or byte == 10 or byte == 13):
                i += 1
                continue
            out[at] = byte
            at += 1
            i += 1
    places[len(offsets) - 1] = at


def _valid(values: pa.Array) -> Any:
    return frozen(np.asarray(pc.is_valid(values).to_numpy(zero_copy_only=False)))


def _refuse(values: pa.Array, row: int, what: str) -> None:
    if row >= 0:
        shown = str(values[row].as_py())[:40]
        raise EncodeError(f"{shown!r} is no {what}")


def moments(values: pa.LargeStringArray) -> pa.Int64Array:
    """Return DATE or DATETIME texts as microseconds since 1970; NULL where the calendar has none.

    Years below 100 are those that MySQL takes two digits for.

    Raises:
        EncodeError: a text is no date.
    """
    offsets, data = text_buffers(values)
    out = np.zeros(len(values), np.int64)
    there = np.zeros(len(values), np.bool_)
    _refuse(values, _moments(offsets, data, _valid(values), out, there), "date")
    return pa.array(out, mask=~there)


def durations(values: pa.LargeStringArray) -> pa.Int64Array:
    """Return TIME texts as microseconds, which may be negative.

    Raises:
        EncodeError: a text is no time.
    """
    offsets, data = text_buffers(values)
    out, valid = np.zeros(len(values), np.int64), _valid(values)
    _refuse(values, _durations(offsets, data, valid, out), "time")
    return pa.array(out, mask=~valid)


def compact_json(values: pa.LargeStringArray) -> pa.LargeStringArray:
    """Return each JSON document without the spaces between its tokens."""
    offsets, data = text_buffers(values)
    places = np.zeros(len(offsets), np.int64)
    out = np.empty(int(offsets[-1] - offsets[0]), np.uint8)
    _compact(offsets, data, places, out)
    return text_array(places, out[: places[-1]])


def warm() -> None:
    """Compile every kernel of this module."""
    moments(pa.array(["2020-01-01 00:00:00.5", None], pa.large_utf8()))
    durations(pa.array(["-01:00:00", None], pa.large_utf8()))
    compact_json(pa.array(['{"a": 1}'], pa.large_utf8()))
