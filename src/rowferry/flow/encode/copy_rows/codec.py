"""The copy-rows codec: each change as a line of PostgreSQL's COPY in its text format.

It is the format between the tasks that read and those that write a PostgreSQL database; users never
see it. A row is a line of all its columns, what names it a line of its key's columns: both can be
streamed into a table as they are. Times are in UTC, and sessions that read the lines are, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rowferry.change.chunk import Rows
from rowferry.change.sqltype import Kind
from rowferry.change.table import TableSchema
from rowferry.columnar import float_text as kernels_float
from rowferry.columnar import render as kernels_render
from rowferry.columnar.fields import Field, element_text, float_text, numbers, one_zero
from rowferry.flow.encode.contract import CodecTraits
from rowferry.flow.encode.copy_rows.options import CopyOptions
from rowferry.flow.encode.copy_rows.reader import read_lines
from rowferry.flow.encode.framed_rows import DatabaseCodec
from rowferry.flow.encode.kernels import row_writer as kernels
from rowferry.flow.encode.layout import Cell, Layout, Part
from rowferry.flow.encode.sql_rows.frame import RowFrame
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.option import OptionTable
from rowferry.spec.sink_traits import SinkTraits

TAB: Final = b"\t"
NULL: Final = b"\\N"
LINE_END: Final = b"\n"
_BARE: Final = frozenset({Kind.INTEGER, Kind.YEAR})
_FLOATS: Final = frozenset({Kind.FLOAT, Kind.DOUBLE})
_DAYS: Final = frozenset({Kind.DATE, Kind.DATETIME, Kind.TIMESTAMP})
_ESCAPED: Final = frozenset({Kind.TEXT, Kind.JSON, Kind.VECTOR, Kind.ENUM, Kind.SET})
_MONTH_DAYS: Final = np.array([0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31], np.int64)
_DAY_WIDTH: Final = 10  # YYYY-MM-DD


class CopyRows(DatabaseCodec):
    """Row changes as lines of COPY; schema changes and watermarks have no form here."""

    protocol = "copy-rows"
    TRAITS: ClassVar = CodecTraits(
        file_suffix="",
        schema_change_goes_to="nowhere",
        carries_before_image=False,
        can_omit_columns=False,
        kinds=frozenset(Kind),
    )
    TABLES: ClassVar[tuple[OptionTable, ...]] = (CopyOptions.TABLE,)

    def __init__(self, spec: ChangefeedSpec, sink: SinkTraits) -> None:
        self._zero_is_null = spec.options(CopyOptions).zero_dates == "null"

    def _read(self, frame: RowFrame) -> Rows:
        return read_lines(frame)

    # --- lines ------------------------------------------------------------------------------------

    def _layout(self) -> Layout:
        return Layout(TAB)

    def _written(self, table: TableSchema) -> Sequence[str]:
        return [c.name for c in table.visible]

    def _row(self, layout: Layout, table: TableSchema, own: Sequence[Field]) -> list[Part]:
        return self._line(layout, table, own)

    def _key(self, layout: Layout, table: TableSchema, own: Sequence[Field]) -> list[Part]:
        return self._line(layout, table, own, in_key=True)

    def _old_row(self, layout: Layout, table: TableSchema, own: Sequence[Field]) -> list[Part]:
        return self._line(layout, table, own)

    def _line(
        self, layout: Layout, table: TableSchema, own: Sequence[Field], in_key: bool = False
    ) -> list[Part]:
        parts: list[Part] = []
        for field in own:
            parts += [TAB] if parts else []
            parts.append(self._cell(layout, table, field, in_key))
        return [*parts, LINE_END]

    def _cell(self, layout: Layout, table: TableSchema, field: Field, in_key: bool) -> Part:
        kind, values = field.column.type.kind, field.values
        words, valid = values, values
        if kind is Kind.BIT:
            words = bit_text(values, field.column.type.size or 1)
        elif kind in _FLOATS:
            words = float_text(one_zero(values) if in_key else values, kernels_float.GENERAL)
        elif kind is Kind.BINARY:
            lead, end = pa.scalar("\\\\x", pa.large_utf8()), pa.scalar("", pa.large_utf8())
            words = pc.binary_join_element_wise(lead, kernels_render.hex_text(values), end)
        elif kind in (Kind.ENUM, Kind.SET):
            words = element_text(table, field)
        elif kind in _DAYS and self._zero_is_null and not in_key:
            words = valid = pc.if_else(has_day(values), values, None)
        mode = kernels.ESCAPED if kind in _ESCAPED else kernels.RAW
        return Cell(layout.slot(words, mode, null=NULL, valid=valid))


def bit_text(values: pa.UInt64Array, width: int) -> pa.LargeStringArray:
    """Return numbers as texts of so many zeros and ones; places that are NULL hold some text."""
    whole = numbers(values).astype(np.uint64, copy=False)
    bits = np.unpackbits(whole.astype(">u8").view(np.uint8).reshape(-1, 8), axis=1)
    texts = np.ascontiguousarray(bits[:, 64 - width :] + np.uint8(ord("0")))
    ends = np.arange(len(whole) + 1, dtype=np.int64) * width
    buffers = [None, pa.py_buffer(ends), pa.py_buffer(texts)]
    return pa.LargeStringArray.from_buffers(len(whole), *buffers[1:])


def has_day(texts: pa.LargeStringArray) -> pa.BooleanArray:
    """Return which dates and times are of a day that a calendar has; NULL counts as one."""
    filled = pc.utf8_slice_codeunits(pc.fill_null(texts, "2000-01-01"), 0, _DAY_WIDTH)
    filled = pc.utf8_rpad(filled, _DAY_WIDTH, "0")
    if not len(filled):
        return pa.array([], pa.bool_())
    begin = int(np.frombuffer(filled.buffers()[1], np.int64)[filled.offset])
    data = np.frombuffer(filled.buffers()[2], np.uint8)[begin : begin + _DAY_WIDTH * len(filled)]
    digits = data.reshape(-1, _DAY_WIDTH).astype(np.int64) - ord("0")
    year = digits[:, 0:4] @ np.array([1000, 100, 10, 1])
    month, day = (digits[:, at : at + 2] @ np.array([10, 1]) for at in (5, 8))
    leap = (year % 4 == 0) & ((year % 100 != 0) | (year % 400 == 0)) & (month == 2)
    known = (year > 0) & (month > 0) & (month < 13)
    known &= (day > 0) & (day <= _MONTH_DAYS[np.where(known, month, 0)] + leap)
    return pa.array(known)


def warm() -> None:
    """Compile every kernel that this codec uses."""
    for module in (kernels, kernels_float, kernels_render):
        module.warm()
