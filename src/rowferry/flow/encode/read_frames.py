"""Reads frames of texts back into rows: for tests and for people, not on the way of a row."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rowferry.change.chunk import Op, Rows, make_rows
from rowferry.change.table import Column
from rowferry.errors import DecodeError
from rowferry.flow.encode.read_back import Spans
from rowferry.flow.encode.sql_rows.frame import RowFrame

Read = Callable[[pa.LargeBinaryArray, Sequence[Column]], pa.StructArray]
Places = list[tuple[int, int]]


def rows_of(frame: RowFrame, written: Sequence[Column], row: Read, key: Read) -> Rows:
    """Return a frame's changes; `row` and `key` read texts of rows and of their keys.

    A delete's `before` has the handle key's columns; an update has no `before`.

    Raises:
        DecodeError: a text is not what the codec writes.
    """
    table, deletes = frame.table, frame.op == Op.DELETE
    if not table.handle_key:
        raise DecodeError(f"{table.written_as} has no key: its old rows cannot be read back")
    keyed = [table.column(name) for name in table.handle_key]
    after = row(frame.rows.filter(pa.array(~deletes)), written)
    before = key(frame.keys.filter(pa.array(deletes)), keyed)
    return make_rows(
        table,
        pa.array(frame.op),
        pa.array(frame.commit_ts),
        pa.array(np.arange(len(frame))),
        _spread(before, deletes),
        _spread(after, ~deletes),
    )


def images_of(
    data: bytes | bytearray,
    columns: Sequence[Column],
    places: Sequence[Places],
    read: Callable[[Spans, Column], pa.Array],
) -> pa.StructArray:
    """Return images whose values are in `data`, at the places of each column."""
    view = np.frombuffer(bytes(data) or b"\0", np.uint8)
    arrays = []
    for column, spans in zip(columns, places, strict=True):
        bounds = np.array(spans, np.int64).reshape(-1, 2)
        where = Spans(view, bounds[:, 0].copy(), bounds[:, 1].copy(), 1)
        arrays.append(read(where, column))
    kinds = [pa.field(c.name, c.type.arrow) for c in columns]
    return pa.StructArray.from_arrays(arrays, fields=kinds)


def _spread(images: pa.StructArray, there: npt.NDArray[np.bool_]) -> pa.Array:
    """Return images at the rows that have one; null at the others."""
    return images.take(pa.array(np.cumsum(there) - 1, mask=~there))
