"""CSV files: op, table, database, optional columns, then the table's columns."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from rowferry.storage_check.expected import Expected
from rowferry.storage_check.layout import TableFiles
from rowferry.storage_check.lines import Fault, Lines
from rowferry.storage_check.rules import Rule
from rowferry.storage_check.schema import TableForm
from rowferry.storage_check.values import Mask, first_wrong

_BLOCK_BYTES = 4 << 20
_ESCAPES = re.compile(rb"\\(.)", re.DOTALL)
_OPS = (b"I", b"U", b"D")
_HINT = "does the changefeed's configuration say more? Give it with --config"


def csv_lines(
    data: bytes, table: TableFiles, form: TableForm, expected: Expected
) -> Iterator[Lines]:
    """Yield the rows of a file in blocks, with what is wrong with them."""
    reader = _Reader(table, form, expected)
    at = len(reader.head) if expected.header else 0
    if expected.header and not data.startswith(reader.head):
        yield Lines(1, 0, faults=[Fault(Rule.ROW_FIT, 1, "the file has no line of column names")])
        at = 0
    row = 1
    while at < len(data):
        end = reader.block_end(data, at)
        lines = reader.block(data[at:end], row)
        yield lines
        if lines.count == 0:
            return
        at, row = end, row + lines.count


@dataclass(frozen=True, slots=True)
class _Field:
    text: bytes | None
    quoted: bool


class _Reader:
    def __init__(self, table: TableFiles, form: TableForm, expected: Expected) -> None:
        self._table, self._form, self._expected = table, form, expected
        self._meta = 3 + expected.carries_commit_ts + expected.old_value
        self._width = self._meta + len(form.columns)
        delimiter, end = re.escape(expected.delimiter), re.escape(expected.terminator)
        mark = re.escape(expected.quote)
        if mark:
            field = rb"%b[^%b]*(?:%b%b[^%b]*)*%b" % (mark, mark, mark, mark, mark, mark)
            bare = rb"(?:(?!%b|%b)[^%b])*" % (delimiter, end, mark)
            field = rb"%b|%b" % (field, bare)
        else:
            field = rb"(?:\\.|(?!%b|%b)[^\\])*" % (delimiter, end)
        self._token = re.compile(rb"(%b)(%b|%b)" % (field, delimiter, end), re.DOTALL)

    @property
    def head(self) -> bytes:
        """The line of column names."""
        names = ["operation", "table", "schema"]
        names += ["commit-ts"] if self._expected.carries_commit_ts else []
        names += ["is-update"] if self._expected.old_value else []
        heads = [f"ticdc-meta${n}" for n in names] + [c.name for c in self._form.columns]
        return self._expected.delimiter.join(h.encode() for h in heads) + self._expected.terminator

    def block_end(self, data: bytes, at: int) -> int:
        """Return the end of a row some MB further, or the end of the file."""
        end, mark = self._expected.terminator, self._expected.quote
        look = at + _BLOCK_BYTES
        while (found := data.find(end, look)) >= 0:
            look = found + len(end)
            # Inside a quoted text the number of quotes so far is odd.
            if not mark or data.count(mark, at, look) % 2 == 0:
                return look
        return len(data)

    def block(self, data: bytes, row: int) -> Lines:
        """Read whole rows."""
        tokens = self._token.findall(data)
        ends = np.array([end == self._expected.terminator for _, end in tokens], bool)
        if sum(len(text) + len(end) for text, end in tokens) != len(data):
            place = row + int(ends.sum())
            words = "malformed, or without its terminator"
            return Lines(row, 0, faults=[Fault(Rule.ROW_FIT, place, words)])
        rows = int(ends.sum())
        wanted = np.zeros(len(ends), bool)
        wanted[self._width - 1 :: self._width] = True
        if len(ends) % self._width or (ends != wanted).any():
            return Lines(row, 0, faults=[self._wrong_width(ends, row)])
        return self._rows([text for text, _ in tokens], row, rows)

    def _wrong_width(self, ends: Mask, row: int) -> Fault:
        widths = np.diff(np.flatnonzero(ends), prepend=-1)
        place = int(np.argmax(widths != self._width)) if len(widths) else 0
        width = int(widths[place]) if len(widths) else len(ends)
        words = f"{width} fields; {self._meta} and {len(self._form.columns)} columns expected"
        return Fault(Rule.ROW_FIT, row + place, f"{words} ({_HINT})")

    def _rows(self, texts: list[bytes], row: int, count: int) -> Lines:
        found = Lines(row, count)
        columns = [texts[place :: self._width] for place in range(self._width)]
        for op in sorted({*columns[0]} - {self._string(o) for o in _OPS}):
            place = columns[0].index(op)
            found.faults.append(Fault(Rule.ROW_FIT, row + place, f"the operation is {_show(op)}"))
        for place, name in ((1, self._table.table), (2, self._table.database)):
            for other in {*columns[place]} - {self._string(name.encode())}:
                at = row + columns[place].index(other)
                found.faults.append(Fault(Rule.ROW_NAMES, at, f"{_show(other)}, not {name!r}"))
        found.inserts = np.array([c == self._string(b"I") for c in columns[0]], bool)
        if self._expected.carries_commit_ts:
            self._stamps(columns[3], found)
        if self._expected.old_value:
            for other in {*columns[self._meta - 1]} - {b"true", b"false"}:
                at = row + columns[self._meta - 1].index(other)
                found.faults.append(Fault(Rule.ROW_FIT, at, f"is-update is {_show(other)}"))
        for column, raw in zip(self._form.columns, columns[self._meta :], strict=True):
            fields = [self._field(text) for text in raw]
            values = pa.array([f.text for f in fields], pa.large_binary())
            quoted = np.array([f.quoted for f in fields], bool) if self._expected.quote else None
            wrong = first_wrong(column, values, quoted, "csv", self._expected.packing)
            if wrong is not None:
                words = f"column {column.name!r}: {wrong[1]}"
                found.faults.append(Fault(Rule.ROW_FIT, row + wrong[0], words))
        return found

    def _stamps(self, texts: list[bytes], found: Lines) -> None:
        try:
            found.commit_ts = np.array([int(t) for t in texts], np.uint64)
        except (ValueError, OverflowError):
            place = next(i for i, t in enumerate(texts) if not t.isdigit() or int(t) >= 1 << 64)
            words = f"commit-ts is {_show(texts[place])}"
            found.faults.append(Fault(Rule.ROW_FIT, found.first_row + place, words))

    def _field(self, text: bytes) -> _Field:
        mark = self._expected.quote
        if text == self._expected.null:
            return _Field(None, False)
        if mark and text.startswith(mark):
            return _Field(text[1:-1].replace(mark + mark, mark), True)
        return _Field(text if mark else _ESCAPES.sub(_unescaped, text), False)

    def _string(self, text: bytes) -> bytes:
        """Return a text as a field."""
        mark = self._expected.quote
        if mark:
            return mark + text.replace(mark, mark + mark) + mark
        found = text.replace(b"\\", b"\\\\").replace(b"\r", b"\\r").replace(b"\n", b"\\n")
        delimiter = self._expected.delimiter
        return found.replace(delimiter, b"".join(b"\\" + bytes([b]) for b in delimiter))


def _unescaped(found: re.Match[bytes]) -> bytes:
    return {b"r": b"\r", b"n": b"\n"}.get(found[1], found[1])


def _show(text: bytes) -> str:
    return repr(text[:40].decode("utf-8", "replace"))
