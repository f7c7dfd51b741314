"""Reads lines of COPY back into rows: for tests and for people, not on the way of a row."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import pyarrow as pa

from rowferry.change.chunk import Rows
from rowferry.change.sqltype import Kind
from rowferry.change.table import Column
from rowferry.errors import DecodeError
from rowferry.flow.encode.kernels.spans import ESCAPED, NULL
from rowferry.flow.encode.read_back import Spans, Style, read_column
from rowferry.flow.encode.read_frames import Places, images_of, rows_of
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
    return rows_of(frame, frame.table.visible, read_images, read_images)


def read_images(lines: pa.LargeBinaryArray, columns: Sequence[Column]) -> pa.StructArray:
    """Return what lines of these columns hold.

    Raises:
        DecodeError: a line is malformed.
    """
    data = bytearray()
    places: list[Places] = [[] for _ in columns]
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
    return images_of(data, columns, places, _read)


def _read(spans: Spans, column: Column) -> pa.Array:
    bits = column.type.kind is Kind.BIT
    return _bits(spans, column) if bits else read_column(spans, column, _STYLE)


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
