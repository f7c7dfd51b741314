"""The sql-rows codec: each change as the SQL texts that a statement is joined of.

It is the format between the tasks that read and those that write a SQL database; users never see
it. A text literal has its quotes doubled; one with a backslash is written in hexadecimal, so that
it means the same in every sql_mode.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rowferry.change.chunk import Change, Op, Rows, SchemaChange, Watermark
from rowferry.change.plan import Topic
from rowferry.change.sqltype import Kind
from rowferry.change.table import TableSchema
from rowferry.columnar import float_text as kernels_float
from rowferry.columnar import render as kernels_render
from rowferry.columnar.fields import Field, ImagePresence, element_text, fields, float_text
from rowferry.errors import DecodeError, EncodeError
from rowferry.flow.encode.contract import CodecTraits, Encoded, MessageCodec
from rowferry.flow.encode.framing import RowTexts, framed
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
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.option import OptionTable
from rowferry.spec.sink_traits import SinkTraits

_QUOTE: Final = ord("'")
_BARE: Final = frozenset({Kind.INTEGER, Kind.YEAR, Kind.BIT})
_FLOATS: Final = frozenset({Kind.FLOAT, Kind.DOUBLE})
_WORDS: Final = frozenset({Kind.TEXT, Kind.JSON, Kind.ENUM, Kind.SET})


class SqlRows(MessageCodec):
    """Row changes as SQL texts; schema changes and watermarks have no form here."""

    TRAITS: ClassVar = CodecTraits(
        file_suffix="",
        schema_change_goes_to="nowhere",
        carries_before_image=False,
        can_omit_columns=False,
    )
    TABLES: ClassVar[tuple[OptionTable, ...]] = ()

    def __init__(self, spec: ChangefeedSpec, sink: SinkTraits) -> None:
        self._calls_vector = spec.sink.scheme in sink.vector_call_schemes

    def encode_rows(self, rows: Rows, planned_at_ms: int, topic: Topic | None = None) -> Encoded:
        """Encode a chunk: `values` are rows, null for deletes; `keys` name them.

        Raises:
            EncodeError: a column is absent, or a keyless table's update lacks its old row.
        """
        table, images = rows.table, ImagePresence.of(rows)
        deletes = images.op == Op.DELETE
        if table.handle_key:
            keys = self._keys(rows, deletes)
        else:
            keys = self._old_rows(rows, images)
        return RowTexts(
            self._new_rows(rows, deletes),
            keys,
            table=table,
            op=images.op,
            commit_ts=rows.commit_ts,
            seq=rows.batch.column("seq").to_numpy(),
        )

    def batch(self, messages: Encoded, topic: Topic) -> Encoded:
        """Join the rows of each partition to one frame."""
        return framed(messages)

    def encode_schema_change(self, change: SchemaChange, planned_at_ms: int) -> Encoded | None:
        """Return None: the sink runs the statement itself."""
        return None

    def encode_watermark(self, mark: Watermark, planned_at_ms: int) -> Encoded | None:
        """Return None: watermarks are not sent."""
        return None

    def decode(self, data: bytes, table: TableSchema) -> Iterator[Change]:
        """Refuse: frames are messages."""
        raise DecodeError("sql-rows is a format of messages, not of files")

    def decode_message(self, key: bytes | None, value: bytes | None) -> Iterator[Change]:
        """Read one frame back. A delete has its key's columns only, an update no old row."""
        yield read_frame(RowFrame.from_message(key, value))

    # --- texts ------------------------------------------------------------------------------------

    def _new_rows(self, rows: Rows, deletes: npt.NDArray[np.bool_]) -> pa.LargeBinaryArray:
        """Return `(v,…),` for each row; null for deletes."""
        layout, parts = Layout(), list[Part]()
        if not deletes.all():
            wanted = written_columns(rows.table)
            for field in _fields(rows.table, rows.after, wanted):
                parts += [b"," if parts else b"(", self._cell(layout, rows.table, field)]
            parts.append(b")" + ROW_END)
        layout.program(parts)
        layout.program([])
        texts = layout.run(deletes.astype(np.int8))
        if not deletes.any():
            return texts
        valid = pa.py_buffer(np.packbits(~deletes, bitorder="little"))
        buffers = [valid, *texts.buffers()[1:]]
        return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(texts), buffers)

    def _keys(self, rows: Rows, deletes: npt.NDArray[np.bool_]) -> pa.LargeBinaryArray:
        """Return `v,` for each row, or `(a=v AND b=v) OR ` for a key of several columns."""
        table, layout = rows.table, Layout()
        for image, needed in ((rows.after, not deletes.all()), (rows.before, bool(deletes.any()))):
            parts: list[Part] = []
            own_fields = _fields(table, image, table.handle_key) if needed else []
            for field in own_fields:
                cell = self._cell(layout, table, field, compared=True)
                if len(own_fields) == 1:
                    parts.append(cell)
                else:
                    lead = b" AND " if parts else b"("
                    parts += [lead + quoted(field.column.name).encode() + b"=", cell]
            if len(own_fields) > 1:
                parts.append(b")")
            layout.program([*parts, key_end(table)] if needed else [])
        return layout.run(deletes.astype(np.int8))

    def _old_rows(self, rows: Rows, images: ImagePresence) -> pa.LargeBinaryArray:
        """Return `(a<=>v AND …) OR ` with all columns of each old row; empty for inserts."""
        table, layout, parts = rows.table, Layout(), list[Part]()
        old = images.op != Op.INSERT
        if (old & ~images.has_before).any():
            raise EncodeError(f"{table.id}: has no key, and the source does not give old rows")
        if old.any():
            for field in _fields(table, rows.before, written_columns(table)):
                if field.column.type.kind is Kind.VECTOR:
                    continue  # servers differ in how they could be compared
                name = quoted(field.column.name).encode()
                cell = self._cell(layout, table, field, compared=True)
                lead = b" AND " if parts else b"("
                if field.column.type.kind in _WORDS:
                    # Rows that differ in case, accents or spaces at the end are others.
                    name = b"CAST(CONVERT(%s USING utf8mb4) AS BINARY)" % name
                    parts += [lead + name + b"<=>CAST(", cell, b" AS BINARY)"]
                else:
                    parts += [lead + name + b"<=>", cell]
            parts.append(b")" + key_end(table))
        layout.program([])
        layout.program(parts)
        return layout.run(old.astype(np.int8))

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
            words = float_text(values.cast(pa.float64()), kernels_float.GENERAL)
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
                words = _literals(words)
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


def _literals(words: pa.Array) -> pa.LargeStringArray:
    """Return texts in quotes, those with a backslash in hexadecimal."""
    texts = words.cast(pa.large_utf8())
    quoted_texts = _called("'", pc.replace_substring(texts, "'", "''"), "'")
    packed = kernels_render.hex_text(texts.cast(pa.large_binary()))
    risky = pc.match_substring(texts, "\\")
    return pc.if_else(risky, _called("_utf8mb4 x'", packed, "'"), quoted_texts)


def _called(lead: str, words: pa.Array, end: str) -> pa.LargeStringArray:
    """Return texts with something before and after each."""
    kind = pa.large_utf8()
    ends = (pa.scalar(lead, kind), pa.scalar(end, kind), pa.scalar("", kind))
    return pc.binary_join_element_wise(ends[0], words, *ends[1:])


def _fields(table: TableSchema, image: pa.StructArray, wanted: tuple[str, ...]) -> list[Field]:
    """Return these columns of an image, in table order.

    Raises:
        EncodeError: one of them is absent.
    """
    chosen = [f for f in fields(table, image) if f.column.name in wanted]
    missing = [name for name in wanted if name not in {f.column.name for f in chosen}]
    if missing or not chosen:
        lost = ", ".join(missing) or "all"
        raise EncodeError(f"{table.id}: columns cannot be left out here; missing: {lost}")
    return chosen


def warm() -> None:
    """Compile every kernel that this codec uses."""
    for module in (kernels, kernels_float, kernels_render):
        module.warm()
