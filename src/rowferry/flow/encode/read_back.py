"""From spans to canonical column values: what decoders share.

Errors name the row of the file (the first is 1) and the column.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rowferry.change.sqltype import Kind
from rowferry.change.table import Column, TableSchema
from rowferry.columnar.memory import Bytes, Ints
from rowferry.errors import DecodeError
from rowferry.flow.encode.kernels import spans as kernels_spans

Flags = npt.NDArray[np.bool_]

_WHOLE = frozenset({Kind.INTEGER, Kind.YEAR, Kind.BIT})
_ELEMENTS = frozenset({Kind.ENUM, Kind.SET})


@dataclass(frozen=True, slots=True)
class Style:
    """How a format writes values.

    Attributes:
        text: how text stands in the data, of `kernels_spans`.
        binary: the same for binary values.
        mark: the quote that `DOUBLED` text doubles.
        names: ENUM and SET stand as element names, not as numbers.
        packed: binary values are "base64" or "hex" text; "" for neither.
    """

    text: int
    binary: int
    mark: int = 0
    names: bool = False
    packed: str = ""


@dataclass(frozen=True, slots=True)
class Spans:
    """One column's places in the data; `first_row` is the file row of the first of them."""

    data: Bytes
    starts: Ints
    ends: Ints
    first_row: int

    def wrong(self, row: int, column: Column, why: str) -> DecodeError:
        """Return the error for one value."""
        shown = bytes(self.data[self.starts[row] : self.ends[row]][:40]).decode("utf-8", "replace")
        where = f"row {self.first_row + row}, column {column.name!r}"
        return DecodeError(f"{where}: {shown!r} {why}")


@dataclass(frozen=True, slots=True)
class ImageSpans:
    """One image of some rows: where each column's values are in the data.

    Attributes:
        starts, ends: a line for each visible column, with the place in each row.
        have: which rows have the image.
        first_row: the file row of the first of them.
    """

    data: Bytes
    table: TableSchema
    starts: Ints
    ends: Ints
    have: Flags
    first_row: int

    def read(self, style_of: Callable[[int], Style]) -> pa.StructArray:
        """Return the image with the columns that the first of the rows has.

        Raises:
            DecodeError: as `read_column`.
        """
        arrays, kinds = [], []
        first = int(np.argmax(self.have))
        for i, column in enumerate(self.table.visible):
            if self.have.any() and self.starts[i, first] == kernels_spans.MISSING:
                continue
            starts = np.where(self.have, self.starts[i], kernels_spans.NULL)
            spans = Spans(self.data, starts, np.ascontiguousarray(self.ends[i]), self.first_row)
            arrays.append(read_column(spans, column, style_of(i)))
            kinds.append(pa.field(column.name, column.type.arrow))
        return pa.StructArray.from_arrays(arrays, fields=kinds, mask=pa.array(~self.have))


def refuse_empty(table: TableSchema, starts: Ints, have: Flags, first_row: int) -> None:
    """Refuse rows none of whose columns is a column of the table."""
    empty = have & (starts == kernels_spans.MISSING).all(axis=0)
    if empty.any():
        row = first_row + int(np.argmax(empty))
        raise DecodeError(f"row {row}: it has no column of table {table.id}")


def column_cuts(starts: Ints, have: Flags) -> Flags:
    """Return where the columns that an image has differ from the image before it."""
    is_cut = np.zeros(len(have), np.bool_)
    rows = np.flatnonzero(have)
    there = starts[:, rows] != kernels_spans.MISSING
    is_cut[rows[1:]] = (there[:, 1:] != there[:, :-1]).any(axis=0)
    return is_cut


def read_column(spans: Spans, column: Column, style: Style) -> pa.Array:
    """Return a column's canonical values.

    Raises:
        DecodeError: a value that the column's type cannot have.
    """
    kind = column.type.kind
    if kind in _WHOLE or (kind in _ELEMENTS and not style.names):
        return _whole(spans, column)
    if kind is Kind.BINARY:
        return _binary(spans, column, style)
    text = _text(spans, column, style)
    if kind in (Kind.FLOAT, Kind.DOUBLE):
        return _floats(spans, column, text)
    if kind is Kind.ENUM:
        return _enum(spans, column, text)
    if kind is Kind.SET:
        return _set(spans, column, text)
    if kind in (Kind.DATETIME, Kind.TIMESTAMP):
        digits = column.type.fraction_digits
        return pc.utf8_slice_codeunits(text, 0, 20 + digits if digits else 19)
    return text


def _whole(spans: Spans, column: Column) -> pa.Array:
    signed = column.type.arrow == pa.int64()
    values, wrong = kernels_spans.read_whole(spans.data, spans.starts, spans.ends, signed)
    if wrong >= 0:
        raise spans.wrong(wrong, column, f"is no whole number of {column.type.sql}")
    buffers = [kernels_spans.validity(spans.starts), pa.py_buffer(values)]
    return pa.Array.from_buffers(column.type.arrow, len(values), buffers)


def _array(spans: Spans, kind: pa.DataType, offsets: Ints, data: Bytes) -> pa.Array:
    buffers = [kernels_spans.validity(spans.starts), pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(kind, len(offsets) - 1, buffers)


def _text(spans: Spans, column: Column, style: Style) -> pa.LargeStringArray:
    args = (spans.data, spans.starts, spans.ends, style.text, style.mark)
    offsets, data, wrong = kernels_spans.read_text(*args)
    if wrong >= 0:
        raise spans.wrong(wrong, column, "has a malformed escape")
    texts = _array(spans, pa.large_utf8(), offsets, data)
    try:
        texts.validate(full=True)
    except pa.ArrowInvalid:
        raise _not_utf8(spans, column, texts) from None
    return texts


def _not_utf8(spans: Spans, column: Column, texts: pa.Array) -> DecodeError:
    for row, value in enumerate(texts.view(pa.large_binary())):
        try:
            (value.as_py() or b"").decode()
        except UnicodeDecodeError:
            return spans.wrong(row, column, "is not UTF-8")
    return spans.wrong(0, column, "cannot be read as text")


def _binary(spans: Spans, column: Column, style: Style) -> pa.LargeBinaryArray:
    mode = style.text if style.packed else style.binary
    args = (spans.data, spans.starts, spans.ends, mode, style.mark)
    offsets, data, wrong = kernels_spans.read_text(*args)
    if wrong < 0 and style.packed:
        offsets, data, wrong = kernels_spans.read_packed(offsets, data, style.packed == "base64")
    if wrong >= 0:
        raise spans.wrong(wrong, column, f"is no {style.packed or 'latin-1'} text")
    return _array(spans, pa.large_binary(), offsets, data)


def _floats(spans: Spans, column: Column, text: pa.LargeStringArray) -> pa.Array:
    try:
        return text.cast(column.type.arrow)
    except pa.ArrowInvalid:
        row = next(i for i, v in enumerate(text) if not _is_float(v, column.type.arrow))
        raise spans.wrong(row, column, "is no number") from None


def _is_float(value: pa.Scalar, kind: pa.DataType) -> bool:
    try:
        value.cast(kind)
    except pa.ArrowInvalid:
        return False
    return True


def _enum(spans: Spans, column: Column, text: pa.LargeStringArray) -> pa.UInt64Array:
    names = pa.array(column.type.elements, pa.large_utf8())
    index = pc.add(pc.index_in(text, value_set=names).cast(pa.int64()), 1)
    known = pc.if_else(pc.equal(text, ""), pc.coalesce(index, 0), index)
    lost = pc.and_(pc.is_null(known), pc.is_valid(text))
    if pc.any(lost).as_py():
        raise spans.wrong(pc.index(lost, True).as_py(), column, f"is not in {column.type.sql}")
    return known.cast(pa.uint64())


def _set(spans: Spans, column: Column, text: pa.LargeStringArray) -> pa.UInt64Array:
    lists = pc.split_pattern(text, ",")
    filled = pc.fill_null(text, "")
    sizes = np.where(
        pc.equal(filled, "").to_numpy(zero_copy_only=False),
        0,
        pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False),
    )
    parts = pc.list_flatten(lists.filter(pa.array(sizes > 0)))
    names = pa.array(column.type.elements, pa.large_utf8())
    index = pc.index_in(parts, value_set=names)
    owner = np.repeat(np.arange(len(text)), sizes)
    if index.null_count:
        lost = pc.index(pc.is_null(index), True).as_py()
        raise spans.wrong(int(owner[lost]), column, f"is not in {column.type.sql}")
    masks = np.zeros(len(text), np.uint64)
    bits = np.uint64(1) << index.to_numpy(zero_copy_only=False).astype(np.uint64)
    np.bitwise_or.at(masks, owner, bits)
    buffers = [kernels_spans.validity(spans.starts), pa.py_buffer(masks)]
    return pa.Array.from_buffers(pa.uint64(), len(masks), buffers)
