"""The sql-rows codec: each change as the SQL texts that a statement is joined of.

It is the format between the tasks that read and those that write a SQL database; users never see
it. A text literal has its quotes doubled; one with a backslash is written in hexadecimal, so that
it means the same in every sql_mode.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Final

import pyarrow as pa
import pyarrow.compute as pc

from rowferry.change.chunk import Rows
from rowferry.change.sqltype import Kind
from rowferry.change.table import TableSchema
from rowferry.columnar import float_text as kernels_float
from rowferry.columnar import render as kernels_render
from rowferry.columnar.fields import Field, element_text, float_text, one_zero
from rowferry.flow.encode.contract import CodecTraits
from rowferry.flow.encode.framed_rows import DatabaseCodec
from rowferry.flow.encode.kernels import row_writer as kernels
from rowferry.flow.encode.layout import Cell, Layout, Part
from rowferry.flow.encode.sql_rows.frame import (
    ROW_END,
    RowFrame,
    key_end,
    quoted,
    written_columns,
)
from rowferry.flow.encode.sql_rows.reader import read_frame
from rowferry.mysql.type_facts import same_value
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.option import OptionTable
from rowferry.spec.sink_traits import SinkTraits

_QUOTE: Final = ord("'")
_BARE: Final = frozenset({Kind.INTEGER, Kind.YEAR, Kind.BIT})
_FLOATS: Final = frozenset({Kind.FLOAT, Kind.DOUBLE})


class SqlRows(DatabaseCodec):
    """Row changes as SQL texts; schema changes and watermarks have no form here."""

    protocol = "sql-rows"
    TRAITS: ClassVar = CodecTraits(
        file_suffix="",
        schema_change_goes_to="nowhere",
        carries_before_image=False,
        can_omit_columns=False,
    )
    TABLES: ClassVar[tuple[OptionTable, ...]] = ()

    def __init__(self, spec: ChangefeedSpec, sink: SinkTraits) -> None:
        self._calls_vector = spec.sink.scheme in sink.vector_call_schemes

    def _read(self, frame: RowFrame) -> Rows:
        return read_frame(frame)

    # --- texts ------------------------------------------------------------------------------------

    def _layout(self) -> Layout:
        return Layout()

    def _written(self, table: TableSchema) -> Sequence[str]:
        return written_columns(table)

    def _row(self, layout: Layout, table: TableSchema, own: Sequence[Field]) -> list[Part]:
        """Return the parts of `(v,…),`."""
        parts: list[Part] = []
        for field in own:
            parts += [b"," if parts else b"(", self._cell(layout, table, field)]
        return [*parts, b")" + ROW_END]

    def _key(self, layout: Layout, table: TableSchema, own: Sequence[Field]) -> list[Part]:
        """Return the parts of `v,`, or of `(a=v AND b=v) OR ` for a key of several columns."""
        parts: list[Part] = []
        for field in own:
            cell = self._cell(layout, table, field, compared=True)
            if len(own) == 1:
                parts.append(cell)
            else:
                lead = b" AND " if parts else b"("
                parts += [lead + quoted(field.column.name).encode() + b"=", cell]
        if len(own) > 1:
            parts.append(b")")
        return [*parts, key_end(table)]

    def _old_row(self, layout: Layout, table: TableSchema, own: Sequence[Field]) -> list[Part]:
        """Return the parts of `(a<=>v AND …) OR ` with all columns that can be compared."""
        parts: list[Part] = []
        for field in own:
            same = same_value(field.column.type.kind, quoted(field.column.name))
            if same is None:
                continue
            lead, end = (part.encode() for part in same)
            cell = self._cell(layout, table, field, compared=True)
            parts += [(b" AND " if parts else b"(") + lead, cell, *([end] if end else [])]
        return [*parts, b")" + key_end(table)]

    def _cell(
        self, layout: Layout, table: TableSchema, field: Field, compared: bool = False
    ) -> Part:
        kind, values = field.column.type.kind, field.values
        if kind in _BARE:
            return Cell(layout.slot(values, kernels.RAW, null=b"NULL"))
        words, wrap = values, 0
        if kind in _FLOATS:
            # A FLOAT is read and compared as a DOUBLE: its own shortest text is another number,
            # which may even be out of range.
            plain = values.cast(pa.float64())
            words = float_text(one_zero(plain) if compared else plain, kernels_float.GENERAL)
            # `-0` is the integer 0 to SQL, and has no sign
            words = pc.if_else(pc.equal(words, "-0"), pa.scalar("-0e0", words.type), words)
        elif kind is Kind.BINARY:
            words = _called("x'", kernels_render.hex_text(values), "'")
        elif kind is Kind.VECTOR and self._calls_vector and not compared:
            words = _called("STRING_TO_VECTOR('", values, "')")
        elif kind is Kind.ENUM and pc.any(pc.equal(values, 0)).as_py():
            words = _enum_words(values, element_text(table, field))
        elif kind is not Kind.DECIMAL:  # as text it would be compared as a DOUBLE
            words = element_text(table, field) if kind in (Kind.ENUM, Kind.SET) else values
            if _has_backslash(words):
                words = _literals(words, converted=not compared)
            else:
                wrap = _QUOTE
        mode = kernels.DOUBLED if wrap else kernels.RAW
        return Cell(layout.slot(words, mode, wrap, b"NULL", valid=values))


def _enum_words(values: pa.Array, names: pa.Array) -> pa.LargeStringArray:
    """Return elements in quotes, and the error value as its number.

    It is shown as an empty text, which may be an element's name as well.
    """
    return pc.if_else(pc.equal(values, 0), "0", _literals(names))


def _has_backslash(words: pa.Array) -> bool:
    return bool(pc.any(pc.match_substring(words, "\\")).as_py())


def _literals(words: pa.Array, converted: bool = False) -> pa.LargeStringArray:
    """Return texts in quotes, those with a backslash in hexadecimal.

    `converted`: TiDB makes no document of the latter unless it is told their character set twice.
    Not for what is compared with a column: texts that are converted have a collation of their own.
    """
    texts = words.cast(pa.large_utf8())
    quoted_texts = _called("'", pc.replace_substring(texts, "'", "''"), "'")
    packed = kernels_render.hex_text(texts.cast(pa.large_binary()))
    risky = pc.match_substring(texts, "\\")
    lead, end = ("CONVERT(", " USING utf8mb4)") if converted else ("", "")
    return pc.if_else(risky, _called(f"{lead}_utf8mb4 x'", packed, f"'{end}"), quoted_texts)


def _called(lead: str, words: pa.Array, end: str) -> pa.LargeStringArray:
    """Return texts with something before and after each."""
    kind = pa.large_utf8()
    ends = (pa.scalar(lead, kind), pa.scalar(end, kind), pa.scalar("", kind))
    return pc.binary_join_element_wise(ends[0], words, *ends[1:])


def warm() -> None:
    """Compile every kernel that this codec uses."""
    for module in (kernels, kernels_float, kernels_render):
        module.warm()
