"""The compiled canal-json tokenizer: where each column's value of each message stands.

Keys may come in any order, with space between tokens; unknown keys are passed over. Columns are
found by their unescaped name.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rowferry.columnar.memory import Bytes, Ints, compiled, frozen
from rowferry.flow.encode.kernels.spans import MISSING, NULL, unescape_json

OK, OTHER, MALFORMED, NO_END, NO_IMAGE = range(5)
WORDS = {
    MALFORMED: "it is not a canal-json object",
    NO_END: "it does not end with the terminator (is the file cut short?)",
    NO_IMAGE: "it has no data",
}
# The facts of a message: op (0 insert, 1 update, 2 delete), es, commit-ts, whether `old` is there.
OP, ES, COMMIT_TS, HAS_OLD = range(4)

_KEYS = b"type\0es\0data\0old\0_tidb\0commitTs\0INSERT\0UPDATE\0DELETE\0"
_TYPE, _ES, _DATA, _OLD, _TIDB, _COMMIT_TS, _INSERT, _UPDATE, _DELETE = range(9)
_POOL = np.frombuffer(_KEYS, np.uint8).copy()
_BOUNDS = np.array([0] + [i + 1 for i, b in enumerate(_KEYS) if b == 0], np.int64)


@compiled
def word_at(data: Bytes, start: int, end: int, pool: Bytes, bounds: Ints) -> int:
    """Return which word of a pool stands there, or -1; each word ends with a zero byte."""
    for k in range(len(bounds) - 1):
        size = bounds[k + 1] - bounds[k] - 1
        if size != end - start:
            continue
        same = True
        for i in range(size):
            if data[start + i] != pool[bounds[k] + i]:
                same = False
                break
        if same:
            return k
    return -1


@compiled
def skip_space(data: Bytes, at: int) -> int:
    """Return the next place from `at` on that holds no space."""
    while at < len(data) and (data[at] == 32 or data[at] == 9 or data[at] == 10 or data[at] == 13):
        at += 1
    return at


@compiled
def _string_end(data: Bytes, at: int) -> int:
    """Return where the closing quote of a string is whose inside begins at `at`, or -1."""
    while at < len(data):
        if data[at] == 34:
            return at
        at += 2 if data[at] == 92 else 1
    return -1


@compiled
def value_end(data: Bytes, at: int) -> int:
    """Return the place after the value that begins at `at`, or -1."""
    depth = 0
    while at < len(data):
        byte = data[at]
        if byte == 34:
            at = _string_end(data, at + 1)
            if at < 0:
                return -1
        elif byte == 123 or byte == 91:
            depth += 1
        elif byte == 125 or byte == 93:
            depth -= 1
            if depth < 0:
                return -1
        elif depth == 0:
            start = at
            while at < len(data) and data[at] not in (44, 125, 93, 32, 9, 10, 13):
                at += 1
            return at if at > start else -1
        at += 1
        if depth == 0:
            return at
    return -1


@compiled
def is_null(data: Bytes, at: int, end: int) -> bool:
    """Return whether the value is the word `null`."""
    if end - at != 4 or data[at] != 110 or data[at + 1] != 117:
        return False
    return bool(data[at + 2] == 108 and data[at + 3] == 108)


@compiled
def read_key(data: Bytes, at: int) -> Any:
    """Read `"key" :`; return (start, end of the inside, place of the value), or start -1."""
    at = skip_space(data, at)
    if at >= len(data) or data[at] != 34:
        return -1, -1, at
    end = _string_end(data, at + 1)
    if end < 0:
        return -1, -1, at
    colon = skip_space(data, end + 1)
    if colon >= len(data) or data[colon] != 58:
        return -1, -1, at
    return at + 1, end, skip_space(data, colon + 1)


@compiled
def after_member(data: Bytes, at: int) -> Any:
    """Read `,` or `}` after a member; return (next place or -1, whether more follows)."""
    at = skip_space(data, at)
    if at >= len(data) or (data[at] != 44 and data[at] != 125):
        return -1, False
    return at + 1, data[at] == 44


@compiled
def read_number(data: Bytes, at: int) -> Any:
    """Return (the whole number below 2^63 at `at`, place after it), or place -1."""
    value, start = np.uint64(0), at
    while at < len(data) and 48 <= data[at] <= 57:
        value = value * np.uint64(10) + np.uint64(data[at] - 48)
        at += 1
    fits = 0 < at - start < 20 and value >> np.uint64(63) == np.uint64(0)
    return np.int64(value), (at if fits else -1)


@compiled
def column_of(
    data: Bytes, start: int, end: int, names: Bytes, bounds: Ints, guess: int, scratch: Bytes
) -> int:
    """Return the number of the column of that name, or -1; looks at `guess` first."""
    source = data
    if end - start <= len(scratch):
        for i in range(start, end):
            if data[i] == 92:
                end = unescape_json(data, start, end, scratch, 0, False)
                source, start = scratch, 0
                break
    columns = len(bounds) - 1
    for k in range(columns):
        c = (guess + k) % columns
        size = bounds[c + 1] - bounds[c]
        if size != end - start:
            continue
        same = True
        for i in range(size):
            if source[start + i] != names[bounds[c] + i]:
                same = False
                break
        if same:
            return c
    return -1


@compiled
def _image(
    data: Bytes,
    at: int,
    row: int,
    names: Bytes,
    bounds: Ints,
    scratch: Bytes,
    starts: Ints,
    ends: Ints,
) -> Any:
    """Read `null` or `[{…}]`; return (place after it or -1, whether an object was there)."""
    if at < len(data) and data[at] != 91:
        end = value_end(data, at)
        return (end if is_null(data, at, end) else -1), False
    at = skip_space(data, at + 1)
    if at >= len(data) or data[at] != 123:
        return -1, False
    at, guess, more = skip_space(data, at + 1), 0, True
    if at < len(data) and data[at] == 125:
        at, more = at + 1, False
    while more:
        start, end, at = read_key(data, at)
        if start < 0 or at >= len(data):
            return -1, False
        stop = value_end(data, at)
        if stop < 0:
            return -1, False
        column = column_of(data, start, end, names, bounds, guess, scratch)
        if column >= 0:
            guess = column + 1
            if data[at] == 34:
                starts[column, row], ends[column, row] = at + 1, stop - 1
            elif is_null(data, at, stop):
                starts[column, row], ends[column, row] = NULL, NULL
            elif data[at] == 123 or data[at] == 91:
                return -1, False
            else:
                starts[column, row], ends[column, row] = at, stop
        at, more = after_member(data, stop)
        if at < 0:
            return -1, False
    at = skip_space(data, at)
    if at >= len(data) or data[at] != 93:
        return -1, False
    return at + 1, True


@compiled
def _commit_ts(data: Bytes, at: int, facts: Ints, row: int) -> int:
    """Read the `_tidb` object; return the place after it, or -1."""
    if at >= len(data) or data[at] != 123:
        return value_end(data, at)
    at, more = skip_space(data, at + 1), True
    if at < len(data) and data[at] == 125:
        return at + 1
    while more:
        start, end, at = read_key(data, at)
        if start < 0:
            return -1
        if word_at(data, start, end, _POOL, _BOUNDS) == _COMMIT_TS:
            facts[COMMIT_TS, row], at = read_number(data, at)
        else:
            at = value_end(data, at)
        if at < 0:
            return -1
        at, more = after_member(data, at)
        if at < 0:
            return -1
    return at


@compiled
def _message(
    data: Bytes,
    at: int,
    row: int,
    names: Bytes,
    bounds: Ints,
    scratch: Bytes,
    facts: Ints,
    new: Any,
    old: Any,
) -> Any:
    """Read one object; return (place after it, whether it has data), or place -1."""
    if at >= len(data) or data[at] != 123:
        return -1, False
    at, more, has_data = at + 1, True, False
    while more:
        start, end, at = read_key(data, at)
        if start < 0 or at >= len(data):
            return -1, False
        word = word_at(data, start, end, _POOL, _BOUNDS)
        if word == _DATA:
            at, has_data = _image(data, at, row, names, bounds, scratch, new[0], new[1])
        elif word == _OLD:
            at, has_old = _image(data, at, row, names, bounds, scratch, old[0], old[1])
            facts[HAS_OLD, row] = has_old
        elif word == _ES:
            facts[ES, row], at = read_number(data, at)
        elif word == _TIDB:
            at = _commit_ts(data, at, facts, row)
        else:
            stop = value_end(data, at)
            if word == _TYPE and data[at] == 34:
                facts[OP, row] = word_at(data, at + 1, stop - 1, _POOL, _BOUNDS) - _INSERT
            at = stop
        if at < 0:
            return -1, False
        at, more = after_member(data, at)
        if at < 0:
            return -1, False
    return at, has_data


@compiled
def tokenize(
    data: Bytes,
    at: int,
    names: Bytes,
    bounds: Ints,
    end: Bytes,
    scratch: Bytes,
    facts: Ints,
    new: Any,
    old: Any,
) -> Any:
    """Find the values of messages from `at` on, as many as there is room for.

    `names` holds the columns' names one after the other, each beginning at its `bounds`;
    `scratch` is room for the longest. `end` is the terminator after each message, empty for none.
    Filled in: the `facts` of each message; in `new` and `old`, starts and ends by column and
    message.

    Returns:
        (messages found, the next place, status, end). Status OTHER: a message that is no row change
        begins at that place and ends at `end`; not OK: the message after those found is wrong.
    """
    row = 0
    while row < facts.shape[1] and at < len(data):
        facts[OP, row], facts[ES, row], facts[COMMIT_TS, row], facts[HAS_OLD, row] = -1, 0, -1, 0
        new[0][:, row] = MISSING
        old[0][:, row] = MISSING
        stop, has_data = _message(data, at, row, names, bounds, scratch, facts, new, old)
        if stop < 0:
            return row, at, MALFORMED, at
        if stop + len(end) > len(data):
            return row, at, NO_END, at
        for k in range(len(end)):
            if data[stop + k] != end[k]:
                return row, at, NO_END, at
        if facts[OP, row] < 0 or facts[OP, row] > 2:
            return row, at, OTHER, stop
        if not has_data:
            return row, at, NO_IMAGE, at
        at = stop + len(end)
        row += 1
    return row, at, OK, at


def warm() -> None:
    """Compile every kernel of this module."""
    none, spans = frozen(np.zeros(1, np.uint8)), np.zeros((1, 1), np.int64)
    bounds, facts, pair = np.zeros(2, np.int64), np.zeros((4, 1), np.int64), (spans, spans.copy())
    tokenize(none, 0, none, bounds, none, np.zeros(1, np.uint8), facts, pair, pair)
