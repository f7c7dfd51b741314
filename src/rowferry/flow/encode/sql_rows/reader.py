"""Reads frames of SQL texts back into rows: for tests and for people, not on the way of a row."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rowferry.change.chunk import Rows
from rowferry.change.sqltype import Kind
from rowferry.change.table import Column, TableSchema
from rowferry.errors import DecodeError
from rowferry.flow.encode.kernels.spans import DOUBLED, NULL
from rowferry.flow.encode.read_back import Spans, Style, read_column
from rowferry.flow.encode.read_frames import Places, images_of, rows_of
from rowferry.flow.encode.sql_rows.frame import ROW_END, RowFrame, key_end, quoted, written_columns

_LITERAL: Final = re.compile(rb"(NULL)|x'([0-9a-f]*)'|'((?:[^']|'')*)'|([^,()' ]+)")
_PACKED: Final = re.compile(
    rb"'(?:[^']|'')*'|(?:CONVERT\()?_utf8mb4 x'([0-9a-f]*)'(?: USING utf8mb4\))?"
)
_STYLE: Final = Style(text=DOUBLED, binary=DOUBLED, mark=ord("'"), names=True, packed="hex")


def read_frame(frame: RowFrame) -> Rows:
    """Return a frame's changes.

    A delete's `before` has the handle key's columns; an update has no `before`.

    Raises:
        DecodeError: a text is not what the codec writes.
    """
    table = frame.table
    written = [table.column(name) for name in written_columns(table)]
    return rows_of(
        frame,
        written,
        lambda texts, columns: _images(texts, columns, _row_leads(len(written))),
        lambda texts, columns: _images(texts, columns, _key_leads(table)),
    )


def _row_leads(columns: int) -> list[bytes]:
    return [b"(", *[b","] * (columns - 1), b")" + ROW_END]


def _key_leads(table: TableSchema) -> list[bytes]:
    """Return what stands before each value of a key, and after the last."""
    names = [quoted(name).encode() + b"=" for name in table.handle_key]
    if len(names) == 1:
        return [b"", key_end(table)]
    return [
        b"(" + names[0],
        *(b" AND " + n for n in names[1:]),
        b")" + key_end(table),
    ]


def _images(
    texts: pa.LargeBinaryArray, columns: Sequence[Column], leads: list[bytes]
) -> pa.StructArray:
    data = bytearray()
    places: list[Places] = [[] for _ in columns]
    for row, packed in enumerate(texts.to_pylist()):
        text = _PACKED.sub(_unpacked, packed) if b"_utf8mb4 x'" in packed else packed
        begin = len(data)
        data += text
        for at, span in zip(places, _literals(text, leads, row), strict=True):
            at.append((begin + span[0], begin + span[1]) if span[0] >= 0 else span)
    return images_of(data, columns, places, _read)


def _read(spans: Spans, column: Column) -> pa.Array:
    named = column.type.kind is Kind.ENUM
    return _elements(spans, column) if named else read_column(spans, column, _STYLE)


def _unpacked(match: re.Match[bytes]) -> bytes:
    """Return a text literal in quotes, whichever way it was written."""
    if match[1] is None:
        return match[0]
    return b"'%s'" % bytes.fromhex(match[1].decode()).replace(b"'", b"''")


def _elements(spans: Spans, column: Column) -> pa.UInt64Array:
    """Return an ENUM's values: an element's name is in quotes, the error value is a bare 0."""
    there = spans.starts >= 0
    bare = there & (spans.data[np.maximum(spans.starts, 1) - 1] != ord("'"))
    zero = (spans.data[np.maximum(spans.starts, 0)] == ord("0")) & (spans.ends - spans.starts == 1)
    if (wrong := np.flatnonzero(bare & ~zero)).size:
        raise spans.wrong(int(wrong[0]), column, "is neither an element in quotes nor 0")
    named = Spans(
        spans.data,
        np.where(bare, NULL, spans.starts),
        np.where(bare, NULL, spans.ends),
        spans.first_row,
    )
    zeros = pa.array(np.zeros(len(bare), np.uint64))
    return pc.if_else(pa.array(bare), zeros, read_column(named, column, _STYLE))


def _literals(text: bytes, leads: list[bytes], row: int) -> Places:
    places: Places = []
    here = 0
    for lead in leads[:-1]:
        match = _LITERAL.match(text, here + len(lead)) if text.startswith(lead, here) else None
        if match is None or match.lastindex is None:
            raise DecodeError(f"row {row + 1}: {text[here : here + 40]!r} is no SQL literal")
        places.append((NULL, NULL) if match.lastindex == 1 else match.span(match.lastindex))
        here = match.end()
    if text[here:] != leads[-1]:
        raise DecodeError(f"row {row + 1}: {text[here : here + 40]!r} follows the last value")
    return places
