"""Reads lines of COPY back into rows: for tests and for people, not on the way of a row."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from rowferry.change.chunk import Op, Rows, make_rows
from rowferry.change.sqltype import Kind
from rowferry.change.table import Column
from rowferry.errors import DecodeError
from rowferry.flow.encode.kernels.spans import ESCAPED, NULL
from rowferry.flow.encode.read_back import Spans, Style, read_column
from rowferry.flow.encode.sql_rows.frame import RowFrame

_CELL: Final = re.compile(rb"(\\N(?=[\t\n]))|((?:[^\t\n\\]|\\[^\n])*)")
_STYLE: Final = Style(text=ESCAPED, binary=ESCAPED, names=True, packed="hex")
_HEX_LEAD: Final = b"\\\\x"


def read_lines(frame: RowFrame) -> Rows:
    """Return a frame's changes.

    A delete's `before` has the handle key's columns; an update has no `before`.

    Raises:
        DecodeError: a text is not what the codec writes.
    """
    table, deletes = frame.table, frame.op == Op.DELETE
    if not table.handle_key:
        raise DecodeError(f"{table.written_as} has no key: its old rows cannot be read back")
    keyed = [table.column(name) for name in table.handle_key]
    after = read_images(frame.rows.filter(pa.array(~deletes)), table.visible)
    before = read_images(frame.keys.filter(pa.array(deletes)), keyed)
    return make_rows(
        table,
        pa.array(frame.op),
        pa.array(frame.commit_ts),
        pa.array(np.arange(len(frame))),
        _spread(before, deletes),
        _spread(after, ~deletes),
    )


def read_images(lines: pa.LargeBinaryArray, columns: Sequence[Column]) -> pa.StructArray:
    """Return what lines of these columns hold.

    Raises:
        DecodeError: a line is malformed.
    """
    data = bytearray()
    places: list[list[tuple[int, int]]] = [[] for _ in columns]
    for row, line in enumerate(lines.to_pylist()):
        begin = len(data)
        data += line
        for at, column, span in zip(places, columns, _cells(line, len(columns), row), strict=True):
            start, end = span
            if start < 0:
                at.append((NULL, NULL))
            elif column.type.kind is Kind.BINARY:
                at.append((begin + start + len(_HEX_LEAD), begin + end))
            else:
                at.append((begin + start, begin + end))
    view = np.frombuffer(bytes(data) or b"\0", np.uint8)
    arrays = []
    for column, spans in zip(columns, places, strict=True):
        bounds = np.array(spans, np.int64).reshape(-1, 2)
        where = Spans(view, bounds[:, 0].copy(), bounds[:, 1].copy(), 1)
        arrays.append(
            _bits(where, column)
            if column.type.kind is Kind.BIT
            else read_column(where, column, _STYLE)
        )
    kinds = [pa.field(c.name, c.type.arrow) for c in columns]
    return pa.StructArray.from_arrays(arrays, fields=kinds)


def _cells(line: bytes, count: int, row: int) -> list[tuple[int, int]]:
    cells: list[tuple[int, int]] = []
    here = 0
    while len(cells) < count:
        match = _CELL.match(line, here)
        if match is None or match.lastindex is None:
            break
        cells.append((NULL, NULL) if match.lastindex == 1 else match.span(2))
        here = match.end() + 1
        if line[match.end() : here] != b"\t":
            break
    if len(cells) != count or here != len(line) or not line.endswith(b"\n"):
        raise DecodeError(f"row {row + 1}: {line[:40]!r} is no line of {count} columns")
    return cells


def _bits(spans: Spans, column: Column) -> pa.UInt64Array:
    numbers: list[int | None] = []
    for row, (start, end) in enumerate(zip(spans.starts, spans.ends, strict=True)):
        if start < 0:
            numbers.append(None)
            continue
        text = bytes(spans.data[start:end])
        if not text or text.strip(b"01"):
            raise spans.wrong(row, column, "is no text of zeros and ones")
        numbers.append(int(text, 2))
    return pa.array(numbers, pa.uint64())


def _spread(images: pa.StructArray, there: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> pa.Array:
    """Return images at the rows that have one; null at the others."""
    places = np.cumsum(there) - 1
    return images.take(pa.array(places, mask=~there))
