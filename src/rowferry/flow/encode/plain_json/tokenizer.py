"""The compiled tokenizer of plain JSON: where each column's value of each message stands.

Keys may come in any order, with space between tokens; unknown keys are passed over.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from rowferry.columnar.memory import Bytes, Ints, compiled, frozen
from rowferry.flow.encode.canal_json.tokenizer import (
    after_member,
    column_of,
    is_null,
    read_key,
    read_number,
    skip_space,
    value_end,
    word_at,
)
from rowferry.flow.encode.kernels.spans import MISSING, NULL

OK, OTHER, MALFORMED, NO_END, NO_IMAGE = range(5)
WORDS = {
    MALFORMED: "it is not an object of a row change",
    NO_END: "it does not end as it should (is it cut short?)",
    NO_IMAGE: "it lacks the row image that its op needs",
}
# The facts of a message: op (0 insert, 1 update, 2 delete), commit-ts, which images are there.
OP, COMMIT_TS, HAS_BEFORE, HAS_AFTER = range(4)
# How a column stands in a message: a scalar; any JSON value; the same, where `null` is a value too.
SCALAR, ANY, ANY_OR_NULL = range(3)

_KEYS = b"op\0commitTs\0before\0after\0insert\0update\0delete\0"
_OP, _COMMIT_TS, _BEFORE, _AFTER, _INSERT, _UPDATE, _DELETE = range(7)
_POOL = np.frombuffer(_KEYS, np.uint8).copy()
_BOUNDS = np.array([0] + [i + 1 for i, b in enumerate(_KEYS) if b == 0], np.int64)


@compiled
def _value(
    data: Bytes, at: int, stop: int, form: int, column: int, row: int, starts: Ints, ends: Ints
) -> Any:
    """Note where a column's value stands; return whether it may have that form."""
    starts[column, row], ends[column, row] = at, stop
    if form != ANY_OR_NULL and is_null(data, at, stop):
        starts[column, row], ends[column, row] = NULL, NULL
    elif form == SCALAR and data[at] == 34:
        starts[column, row], ends[column, row] = at + 1, stop - 1
    elif form == SCALAR and (data[at] == 123 or data[at] == 91):
        return False
    return True


@compiled
def _image(
    data: Bytes,
    at: int,
    row: int,
    names: Bytes,
    bounds: Ints,
    forms: Ints,
    scratch: Bytes,
    starts: Ints,
    ends: Ints,
) -> Any:
    """Read `null` or `{…}`; return (place after it or -1, whether an object was there)."""
    if data[at] != 123:
        end = value_end(data, at)
        return (end if end >= 0 and is_null(data, at, end) else -1), False
    at, guess, more = skip_space(data, at + 1), 0, True
    if at < len(data) and data[at] == 125:
        return at + 1, True
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
            if not _value(data, at, stop, forms[column], column, row, starts, ends):
                return -1, False
        at, more = after_member(data, stop)
        if at < 0:
            return -1, False
    return at, True


@compiled
def _message(
    data: Bytes,
    at: int,
    row: int,
    names: Bytes,
    bounds: Ints,
    forms: Ints,
    scratch: Bytes,
    facts: Ints,
    before: Any,
    after: Any,
) -> int:
    """Read one object; return the place after it, or -1."""
    if at >= len(data) or data[at] != 123:
        return -1
    at, more = at + 1, True
    while more:
        start, end, at = read_key(data, at)
        if start < 0 or at >= len(data):
            return -1
        word = word_at(data, start, end, _POOL, _BOUNDS)
        if word == _BEFORE or word == _AFTER:
            image = before if word == _BEFORE else after
            at, present = _image(data, at, row, names, bounds, forms, scratch, image[0], image[1])
            facts[HAS_BEFORE if word == _BEFORE else HAS_AFTER, row] = present
        elif word == _COMMIT_TS:
            facts[COMMIT_TS, row], at = read_number(data, at)
        else:
            stop = value_end(data, at)
            if word == _OP and stop > 0 and data[at] == 34:
                facts[OP, row] = word_at(data, at + 1, stop - 1, _POOL, _BOUNDS) - _INSERT
            at = stop
        if at < 0:
            return -1
        at, more = after_member(data, at)
        if at < 0:
            return -1
    return at


@compiled
def tokenize(
    data: Bytes,
    at: int,
    names: Bytes,
    bounds: Ints,
    forms: Ints,
    end: Bytes,
    scratch: Bytes,
    facts: Ints,
    before: Any,
    after: Any,
) -> Any:
    """Find the values of messages from `at` on, as many as there is room for.

    `names` holds the columns' names one after the other, each beginning at its `bounds`; `forms`
    says how each stands in a message; `scratch` is room for the longest name. `end` is what
    follows each message, empty for nothing. Filled in: the `facts` of each message; in `before` and
    `after`, starts and ends by column and message.

    Returns:
        (messages found, the next place, status, end). Status OTHER: a message that is no row change
        begins at that place and ends at `end`; not OK: the message after those found is wrong.
    """
    row = 0
    while row < facts.shape[1] and at < len(data):
        facts[:, row] = 0
        facts[OP, row] = -1
        before[0][:, row] = MISSING
        after[0][:, row] = MISSING
        stop = _message(data, at, row, names, bounds, forms, scratch, facts, before, after)
        if stop < 0:
            return row, at, MALFORMED, at
        if stop + len(end) > len(data):
            return row, at, NO_END, at
        for k in range(len(end)):
            if data[stop + k] != end[k]:
                return row, at, NO_END, at
        op = facts[OP, row]
        if op < 0 or op > 2:
            return row, at, OTHER, stop
        if facts[HAS_BEFORE if op == 2 else HAS_AFTER, row] == 0:
            return row, at, NO_IMAGE, at
        at = stop + len(end)
        row += 1
    return row, at, OK, at


def warm() -> None:
    """Compile every kernel of this module."""
    none, spans = frozen(np.zeros(1, np.uint8)), np.zeros((1, 1), np.int64)
    bounds, forms, facts = np.zeros(2, np.int64), np.zeros(1, np.int64), np.zeros((4, 1), np.int64)
    pair = (spans, spans.copy())
    tokenize(none, 0, none, bounds, forms, none, np.zeros(1, np.uint8), facts, pair, pair)
