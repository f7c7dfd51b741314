"""CSV files: op, table, database, optional columns, then the table's columns."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rowferry.downstream.storage_check.expected import ExpectedLayout
from rowferry.downstream.storage_check.file_kind import FileKind
from rowferry.downstream.storage_check.layout import TableFiles
from rowferry.downstream.storage_check.lines import Lines, RowFault
from rowferry.downstream.storage_check.rules import Rule
from rowferry.downstream.storage_check.schema import TableForm
from rowferry.downstream.storage_check.values import Mask, first_wrong

_BLOCK_BYTES = 4 << 20
_ESCAPES = re.compile(rb"\\(.)", re.DOTALL)
_OPS = (b"I", b"U", b"D")
_HINT = "does the changefeed's configuration say more? Give it with --config"


def csv_lines(
    data: bytes, table: TableFiles, form: TableForm, expected: ExpectedLayout
) -> Iterator[Lines]:
    """Yield the rows of a file in blocks, with what is wrong with them."""
    reader = _Reader(table, form, expected)
    at = len(reader.head) if expected.header else 0
    if expected.header and not data.startswith(reader.head):
        yield Lines(
            1, 0, faults=[RowFault(Rule.ROW_FIT, 1, "the file has no line of column names")]
        )
        at = 0
    row = 1
    while at < len(data):
        end = reader.block_end(data, at)
        lines = reader.block(data[at:end], row)
        yield lines
        if lines.count == 0:
            return
        at, row = end, row + lines.count


class _Reader:
    def __init__(self, table: TableFiles, form: TableForm, expected: ExpectedLayout) -> None:
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
        self._token = re.compile(rb"(?:%b)(?:%b|%b)" % (field, delimiter, end), re.DOTALL)

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
        while (next_end := data.find(end, look)) >= 0:
            look = next_end + len(end)
            # Inside a quoted text the number of quotes so far is odd.
            if not mark or data.count(mark, at, look) % 2 == 0:
                return look
        return len(data)

    def block(self, data: bytes, row: int) -> Lines:
        """Read whole rows."""
        # Whole matches, not groups: tuples by the million keep the garbage collector busy.
        texts = self._token.findall(data)
        tokens = pa.array(texts, pa.large_binary())
        ends: Mask = pc.ends_with(tokens, self._expected.terminator).to_numpy(zero_copy_only=False)
        rows = int(ends.sum())
        if sum(map(len, texts)) != len(data):
            words = "malformed, or without its terminator"
            return Lines(row, 0, faults=[RowFault(Rule.ROW_FIT, row + rows, words)])
        wanted = np.zeros(len(ends), bool)
        wanted[self._width - 1 :: self._width] = True
        if len(ends) % self._width or (ends != wanted).any():
            return Lines(row, 0, faults=[self._wrong_width(ends, row)])
        return self._rows(tokens, row, rows)

    def _wrong_width(self, ends: Mask, row: int) -> RowFault:
        widths = np.diff(np.flatnonzero(ends), prepend=-1)
        place = int(np.argmax(widths != self._width)) if len(widths) else 0
        width = int(widths[place]) if len(widths) else len(ends)
        words = f"{width} fields; {self._meta} and {len(self._form.columns)} columns expected"
        return RowFault(Rule.ROW_FIT, row + place, f"{words} ({_HINT})")

    def _rows(self, tokens: pa.LargeBinaryArray, row: int, count: int) -> Lines:
        lines = Lines(row, count)
        places = np.arange(count) * self._width
        ends = [self._expected.delimiter] * (self._width - 1) + [self._expected.terminator]
        columns = [
            pc.binary_slice(tokens.take(pa.array(places + n)), 0, -len(end))
            for n, end in enumerate(ends)
        ]

        def only(place: int, allowed: Sequence[bytes], rule: Rule, words: str) -> None:
            odd = ~_is_in(columns[place], allowed)
            if odd.any():
                at = int(np.argmax(odd))
                text = f"{words} {_show(columns[place][at].as_py())}"
                lines.faults.append(RowFault(rule, row + at, text))

        only(0, [self._string(op) for op in _OPS], Rule.ROW_FIT, "the operation is")
        only(1, [self._string(self._table.table.encode())], Rule.ROW_NAMES, "the table is")
        only(2, [self._string(self._table.database.encode())], Rule.ROW_NAMES, "the database is")
        if self._expected.old_value:
            only(self._meta - 1, [b"true", b"false"], Rule.ROW_FIT, "is-update is")
        lines.inserts = _equal(columns[0], self._string(b"I"))
        if self._expected.carries_commit_ts:
            self._stamps(columns[3], lines)
        for column, raw in zip(self._form.columns, columns[self._meta :], strict=True):
            values, quoted = self._values(raw)
            wrong = first_wrong(column, values, quoted, FileKind.CSV, self._expected.packing)
            if wrong is not None:
                words = f"column {column.name!r}: {wrong[1]}"
                lines.faults.append(RowFault(Rule.ROW_FIT, row + wrong[0], words))
        return lines

    def _stamps(self, texts: pa.LargeBinaryArray, lines: Lines) -> None:
        odd = [not (t.isdigit() and int(t) < 1 << 64) for t in texts.to_pylist()]
        if any(odd):
            place = odd.index(True)
            words = f"commit-ts is {_show(texts[place].as_py())}"
            lines.faults.append(RowFault(Rule.ROW_FIT, lines.first_row + place, words))
            return
        lines.commit_ts = texts.cast(pa.large_utf8()).cast(pa.uint64()).to_numpy()

    def _values(self, raw: pa.LargeBinaryArray) -> tuple[pa.LargeBinaryArray, Mask | None]:
        """Return a column's values without quotes and escapes, and which were quoted."""
        null, mark = pa.scalar(None, pa.large_binary()), self._expected.quote
        is_null = pc.equal(raw, pa.scalar(self._expected.null, pa.large_binary()))
        if not mark:
            values = raw
            if pc.any(pc.match_substring(raw, b"\\")).as_py():
                plain = [_ESCAPES.sub(_unescaped, text) for text in raw.to_pylist()]
                values = pa.array(plain, pa.large_binary())
            return pc.if_else(is_null, null, values), None
        quoted = pc.starts_with(raw, mark)
        inner = pc.replace_substring(pc.binary_slice(raw, 1, -1), mark + mark, mark)
        values = pc.if_else(is_null, null, pc.if_else(quoted, inner, raw))
        return values, quoted.to_numpy(zero_copy_only=False)

    def _string(self, text: bytes) -> bytes:
        """Return a text as a field."""
        mark = self._expected.quote
        if mark:
            return mark + text.replace(mark, mark + mark) + mark
        escaped = text.replace(b"\\", b"\\\\").replace(b"\r", b"\\r").replace(b"\n", b"\\n")
        delimiter = self._expected.delimiter
        return escaped.replace(delimiter, b"".join(b"\\" + bytes([b]) for b in delimiter))


def _equal(values: pa.Array, wanted: bytes) -> Mask:
    return _is_in(values, [wanted])


def _is_in(values: pa.Array, wanted: Sequence[bytes]) -> Mask:
    mask: Mask = pc.is_in(values, value_set=pa.array(wanted, pa.large_binary())).to_numpy(
        zero_copy_only=False
    )
    return mask


def _unescaped(match: re.Match[bytes]) -> bytes:
    return {b"r": b"\r", b"n": b"\n"}.get(match[1], match[1])


def _show(text: bytes) -> str:
    return repr(text[:40].decode("utf-8", "replace"))
