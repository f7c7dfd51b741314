"""The compiled CSV tokenizer: where each field of each row stands."""

from __future__ import annotations

from typing import Any

import numpy as np

from rowferry.columnar.memory import Bytes, Ints, compiled, frozen
from rowferry.flow.encode.kernels.spans import NULL

OK, TOO_FEW, TOO_MANY, UNCLOSED, NO_END, STRAY = range(6)
WORDS = {
    TOO_FEW: "it has fewer columns than the table",
    TOO_MANY: "it has more columns than the table",
    UNCLOSED: "a quoted field is not closed",
    NO_END: "it does not end with the terminator (is the file cut short?)",
    STRAY: "something follows a quoted field, or a line ends with another terminator",
}


@compiled
def _stands(data: Bytes, at: int, text: Bytes) -> bool:
    """Return whether `text` stands at this place."""
    if at + len(text) > len(data):
        return False
    for k in range(len(text)):
        if data[at + k] != text[k]:
            return False
    return True


@compiled
def _quoted_end(data: Bytes, at: int, quote: int) -> int:
    """Return where the closing quote is, or -1."""
    while at < len(data):
        if data[at] == quote:
            if at + 1 >= len(data) or data[at + 1] != quote:
                return at
            at += 1
        at += 1
    return -1


@compiled
def _bare_end(data: Bytes, at: int, delimiter: Bytes, end: Bytes, last: bool, escapes: bool) -> int:
    """Return where a field without quotes ends: at a delimiter, a line's end, or the data's.

    With escapes no field holds a line break.
    """
    while at < len(data):
        byte = data[at]
        if escapes and byte == 92:
            at += 2
            continue
        if byte == delimiter[0] and _stands(data, at, delimiter):
            return at
        if byte == end[0] and last and _stands(data, at, end):
            return at
        if (escapes or not last) and (byte == 10 or byte == 13):
            return at
        at += 1
    return len(data)


@compiled
def tokenize(
    data: Bytes,
    at: int,
    delimiter: Bytes,
    end: Bytes,
    quote: int,
    null: Bytes,
    may_be_null: Any,
    needs_end: bool,
    starts: Ints,
    ends: Ints,
    begins: Ints,
) -> Any:
    """Find the fields of rows from `at` on, as many as there is room for.

    `end` is the terminator, which also the last row has if `needs_end`. `quote` is the quote
    byte, or -1 for none (then backslashes escape). `may_be_null` says for each column whether a
    bare `null` text means NULL. Filled in: `starts` and `ends` by column and row, and where each
    row begins.

    Returns:
        (rows found, the next place, OK or what is wrong with the row after them).
    """
    columns, row = starts.shape[0], 0
    while row < starts.shape[1] and at < len(data):
        begins[row] = at
        for c in range(columns):
            last = c == columns - 1
            stop = at + len(null)
            if (
                may_be_null[c]
                and _stands(data, at, null)
                and (
                    _stands(data, stop, end if last else delimiter) or (last and stop == len(data))
                )
            ):
                starts[c, row], ends[c, row] = NULL, NULL
                at = stop
            elif quote >= 0 and at < len(data) and data[at] == quote:
                field_end = _quoted_end(data, at + 1, quote)
                if field_end < 0:
                    return row, at, UNCLOSED
                starts[c, row], ends[c, row] = at + 1, field_end
                at = field_end + 1
            else:
                field_end = min(_bare_end(data, at, delimiter, end, last, quote < 0), len(data))
                starts[c, row], ends[c, row] = at, field_end
                at = field_end
            if not last:
                if not _stands(data, at, delimiter):
                    few = at >= len(data) or data[at] == 10 or data[at] == 13
                    return row, at, (TOO_FEW if few else STRAY)
                at += len(delimiter)
            elif _stands(data, at, end):
                at += len(end)
            elif at < len(data):
                return row, at, (TOO_MANY if _stands(data, at, delimiter) else STRAY)
            elif needs_end:
                return row, at, NO_END
        row += 1
    return row, at, OK


def warm() -> None:
    """Compile every kernel of this module."""
    one, spans = frozen(np.frombuffer(b",", np.uint8)), np.zeros((1, 1), np.int64)
    flags, begins = np.zeros(1, np.bool_), np.zeros(1, np.int64)
    tokenize(one, 0, one, one, 34, one, flags, False, spans, spans.copy(), begins)
