"""The search-documents codec: each change as one item of a `_bulk` request.

It is the format between the tasks that read and those that write a search cluster; users never see
it. An item is a line that says what to do with which version of which document, and the document.
The version is the change's commit-ts.
"""

from __future__ import annotations

import json
from typing import ClassVar, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rowferry.change.chunk import Op, Rows
from rowferry.change.plan import Topic
from rowferry.change.sqltype import Kind
from rowferry.change.table import TableSchema
from rowferry.columnar import float_text as kernels_float
from rowferry.columnar import render as kernels_render
from rowferry.columnar.fields import Field, ImagePresence, element_text, fields, float_text
from rowferry.errors import EncodeError, MessageTooLarge
from rowferry.flow.encode.contract import CodecTraits, Encoded
from rowferry.flow.encode.framed_rows import FramedCodec
from rowferry.flow.encode.framing import RowTexts
from rowferry.flow.encode.kernels import row_writer as kernels
from rowferry.flow.encode.layout import Cell, Layout, Part
from rowferry.flow.encode.search_documents.document_id import document_ids
from rowferry.flow.encode.search_documents.mapping import field_name, fits_long
from rowferry.flow.encode.search_documents.options import DocumentOptions
from rowferry.flow.encode.search_documents.reader import read_items
from rowferry.flow.encode.sql_rows.frame import RowFrame
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.option import OptionTable
from rowferry.spec.sink_traits import SinkTraits

_QUOTE: Final = ord('"')
_TIMES: Final = frozenset({Kind.DATE, Kind.DATETIME, Kind.TIMESTAMP})
_NUMBERS: Final = frozenset({Kind.INTEGER, Kind.YEAR, Kind.BIT})
_NO_DAY: Final = "^....-(00|..-00)"  # zero dates, and dates without a month or a day
_KEY_SHOWN: Final = 100


class SearchDocuments(FramedCodec):
    """Row changes as items of a `_bulk` request; the topic's name is the index."""

    protocol = "search-documents"
    TRAITS: ClassVar = CodecTraits(
        file_suffix="",
        schema_change_goes_to="nowhere",
        carries_before_image=False,
        can_omit_columns=False,
        kinds=frozenset(Kind),
    )
    TABLES: ClassVar[tuple[OptionTable, ...]] = (DocumentOptions.TABLE,)

    def __init__(self, spec: ChangefeedSpec, sink: SinkTraits) -> None:
        self.options = spec.options(DocumentOptions)

    def encode_rows(self, rows: Rows, planned_at_ms: int, topic: Topic | None = None) -> Encoded:
        """Encode a chunk: `values` are items, `keys` the documents' ids.

        Raises:
            EncodeError: the table has no key, or a row lacks a column.
            MessageTooLarge: a document is longer than the topic takes.
        """
        images = ImagePresence.of(rows)
        deletes = images.op == Op.DELETE
        table, index = rows.table, topic.name if topic is not None else ""
        after = fields(table, rows.after) if not deletes.all() else []
        before = fields(table, rows.before) if deletes.any() else []
        if not deletes.all():
            _refuse_partial(table, after)
        ids = _ids(table, after, before, deletes)
        layout = Layout()
        id_cell = Cell(layout.slot(ids, kernels.JSON, _QUOTE))
        stamp = Cell(layout.slot(rows.batch.column("commit_ts"), kernels.RAW))
        for verb, own in (("index", after), ("delete", before)):
            head = json.dumps({verb: {"_index": index}}, ensure_ascii=False)[:-2]
            parts: list[Part] = [f'{head}, "_id":'.encode(), id_cell, b',"version":', stamp]
            parts.append(b',"version_type":"external_gte"')
            if self.options.routing_column and own:
                routed = _named(table, own, self.options.routing_column)
                parts += [b',"routing":', self._cell(layout, table, routed, as_text=True)]
            parts.append(b"}}\n")
            if verb == "index":
                parts += [*self._document(layout, table, own), b"\n"]
            layout.program(parts)
        values = layout.run(deletes.astype(np.int8))
        if topic is not None:
            _refuse_too_long(table, ids, values, topic)
        return RowTexts(
            values,
            ids.cast(pa.large_binary()),
            table=table,
            op=images.op,
            commit_ts=rows.commit_ts,
            seq=rows.batch.column("seq").to_numpy(),
        )

    def _read(self, frame: RowFrame) -> Rows:
        return read_items(frame)

    # --- texts ------------------------------------------------------------------------------------

    def _document(self, layout: Layout, table: TableSchema, own: list[Field]) -> list[Part]:
        parts: list[Part] = []
        for field in own:
            name = json.dumps(field_name(field.column.name), ensure_ascii=False).encode()
            parts += [(b"," if parts else b"{") + name + b":", self._cell(layout, table, field)]
        return [*parts, b"}"] if parts else [b"{}"]

    def _cell(
        self, layout: Layout, table: TableSchema, field: Field, as_text: bool = False
    ) -> Part:
        column, values = field.column, field.values
        kind = column.type.kind
        if kind in _NUMBERS:
            texts = self.options.unsigned_bigint == "keyword" and not fits_long(column.type)
            return Cell(layout.slot(values, kernels.RAW, _QUOTE if texts or as_text else 0))
        if kind is Kind.VECTOR:
            return Cell(layout.slot(values, kernels.RAW))
        if kind is Kind.JSON and self.options.json_columns != "keyword":
            return Cell(layout.slot(_on_one_line(values), kernels.RAW))
        if kind in (Kind.FLOAT, Kind.DOUBLE):
            words = float_text(values, kernels_float.GENERAL)
            return Cell(layout.slot(words, kernels.RAW, _QUOTE if as_text else 0, valid=values))
        if kind is Kind.BINARY:
            packed = kernels_render.base64_text(values)
            return Cell(layout.slot(packed, kernels.RAW, _QUOTE, valid=values))
        if kind in _TIMES:
            return Cell(layout.slot(_moments(values, kind), kernels.RAW, _QUOTE))
        if kind in (Kind.ENUM, Kind.SET):
            names = element_text(table, field)
            return Cell(layout.slot(names, kernels.JSON, _QUOTE, valid=values))
        return Cell(layout.slot(values, kernels.JSON, _QUOTE))


def _refuse_partial(table: TableSchema, own: list[Field]) -> None:
    """Refuse rows without some of their columns: a document is written as a whole."""
    there = {field.column.name for field in own}
    missing = [c.name for c in table.visible if c.name not in there]
    if missing:
        raise EncodeError(
            f"{table.id}: columns cannot be left out here; missing: {', '.join(missing)} (does the "
            "source log whole rows, binlog_row_image = FULL?)"
        )


def _ids(
    table: TableSchema, after: list[Field], before: list[Field], deletes: npt.NDArray[np.bool_]
) -> pa.LargeStringArray:
    """Return each row's id: of the old row for a delete, else of the new one."""
    if not table.handle_key:
        raise EncodeError(f"{table.id}: has no key, so that its documents have no id")
    if not len(deletes):
        return pa.array([], pa.large_utf8())
    if not deletes.any():
        return document_ids(table, _key(table, after))
    gone = document_ids(table, _key(table, before))
    if deletes.all():
        return gone
    return pc.if_else(pa.array(deletes), gone, document_ids(table, _key(table, after)))


def _key(table: TableSchema, own: list[Field]) -> list[Field]:
    return [_named(table, own, name) for name in table.handle_key]


def _named(table: TableSchema, own: list[Field], name: str) -> Field:
    for field in own:
        if field.column.name.lower() == name.lower():
            return field
    raise EncodeError(f"{table.id}: a change lacks the column {name}, which its document needs")


def _moments(values: pa.LargeStringArray, kind: Kind) -> pa.LargeStringArray:
    """Return times as ISO 8601 writes them; null where there is no such day."""
    zero = pc.match_substring_regex(values, _NO_DAY)
    if pc.any(zero).as_py():
        values = pc.if_else(zero, pa.scalar(None, values.type), values)
    if kind is Kind.DATE:
        return values
    words = pc.replace_substring(values, " ", "T", max_replacements=1)
    if kind is Kind.DATETIME:
        return words
    ends = pa.scalar("Z", words.type), pa.scalar("", words.type)
    return pc.binary_join_element_wise(words, *ends)


def _on_one_line(values: pa.LargeStringArray) -> pa.LargeStringArray:
    """Return JSON texts without line breaks: those end an item, and none is inside a string."""
    if not pc.any(pc.match_substring_regex(values, "[\r\n]")).as_py():
        return values
    return pc.replace_substring_regex(values, "[\r\n]", " ")


def _refuse_too_long(
    table: TableSchema, ids: pa.LargeStringArray, values: pa.LargeBinaryArray, topic: Topic
) -> None:
    sizes = np.diff(np.frombuffer(values.buffers()[1], np.int64, len(values) + 1))
    if not len(sizes) or sizes.max() <= topic.max_message_bytes:
        return
    row = int(np.argmax(sizes > topic.max_message_bytes))
    raise MessageTooLarge(
        f"{table.id}: the document of the row with key {ids[row].as_py()[:_KEY_SHOWN]!r} has "
        f"{sizes[row]} bytes, more than the {topic.max_message_bytes} of max-document-bytes; raise "
        "it, and the server's http.max_content_length, or leave the large column out with "
        "column-selectors"
    )


def warm() -> None:
    """Compile every kernel that this codec uses."""
    for module in (kernels, kernels_float, kernels_render):
        module.warm()
