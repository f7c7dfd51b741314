"""The plain JSON codec: one object for each row change, with values as a program would want them.

`{"op":"update","database":…,"table":…,"commitTs":…,"key":{…},"before":{…},"after":{…}}`
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import ClassVar, Final

import numpy as np
import pyarrow as pa

from rowferry.change.chunk import Change, Op, Rows, SchemaChange, Watermark
from rowferry.change.plan import Topic
from rowferry.change.sqltype import Kind
from rowferry.change.table import Column, TableSchema
from rowferry.columnar import float_text as kernels_float
from rowferry.columnar import render as kernels_render
from rowferry.columnar.fields import Field, ImagePresence, element_text, fields, float_text
from rowferry.errors import EncodeError, MessageTooLarge
from rowferry.flow.encode.canal_json.codec import Slots, json_text, object_of
from rowferry.flow.encode.contract import CodecTraits, Encoded, MessageCodec, TextBody
from rowferry.flow.encode.kernels import row_writer as kernels
from rowferry.flow.encode.kernels import spans as kernels_spans
from rowferry.flow.encode.layout import Cell, Layout, Part
from rowferry.flow.encode.options import CodecOptions
from rowferry.flow.encode.plain_json import tokenizer as kernels_plain_json
from rowferry.flow.encode.plain_json.reader import read_message, read_messages
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.option import OptionTable, Section, one_of, option
from rowferry.spec.sink_traits import SinkTraits

_QUOTE: Final = ord('"')
_NUMBERS: Final = frozenset({Kind.INTEGER, Kind.YEAR, Kind.BIT})
_OPS: Final = {Op.INSERT: b"insert", Op.UPDATE: b"update", Op.DELETE: b"delete"}
_KEY_SHOWN: Final = 100  # characters of a key in an error


class LineOptions(Section, section="sink"):
    """What ends messages in files."""

    terminator = CodecOptions.terminator


class JsonOptions(Section, section="sink.json"):
    """How values are written."""

    json_columns = option(
        one_of("value", "text"),
        "value",
        "How JSON columns are written: `value`, as a part of the message, or `text`, as a string. "
        "Only the string tells the JSON value `null` from NULL.",
        uri=True,
    )


class PlainJson(MessageCodec):
    """Row changes, schema changes and watermarks as plain JSON objects."""

    TRAITS: ClassVar = CodecTraits(
        file_suffix=".json",
        schema_change_goes_to="partition-0",
        carries_before_image=True,
        can_omit_columns=True,
        kinds=frozenset(Kind),
        body=TextBody("application/json", b"[", b",", b"]"),
    )
    TABLES: ClassVar[tuple[OptionTable, ...]] = (LineOptions.TABLE, JsonOptions.TABLE)

    def __init__(self, spec: ChangefeedSpec, sink: SinkTraits) -> None:
        self._embeds = spec.options(JsonOptions).json_columns == "value"
        terminator = spec.options(LineOptions).terminator
        self._terminator = terminator.encode() if sink.takes_files else b""

    def encode_rows(self, rows: Rows, planned_at_ms: int, topic: Topic | None = None) -> Encoded:
        """Encode a chunk. An update without its old row has `before` null.

        Raises:
            MessageTooLarge: a row's message is longer than the topic takes.
        """
        images = ImagePresence.of(rows)
        layout = Layout()
        stamp = Cell(layout.slot(rows.batch.column("commit_ts"), kernels.RAW))
        has_after = images.op != Op.DELETE
        before = self._slots(layout, rows, rows.before) if images.has_before.any() else []
        after = self._slots(layout, rows, rows.after) if has_after.any() else []
        if (has_after.any() and not after) or (not has_after.all() and not before):
            raise EncodeError(f"{rows.table.id}: a change has no column to write")
        null: list[Part] = [b"null"]
        whole = (object_of(before), object_of(after))
        for op, old, new, keyed in (
            (Op.INSERT, null, whole[1], after),
            (Op.UPDATE, null, whole[1], after),
            (Op.UPDATE, whole[0], whole[1], after),
            (Op.DELETE, whole[0], null, before),
        ):
            key = _key(rows.table, keyed)
            head = _head(rows.table, op)
            parts: list[Part] = [head, stamp, b',"key":', *key, b',"before":', *old]
            layout.program([*parts, b',"after":', *new, b"}", self._terminator])
        which = np.array([0, 1, 3], np.int8)[images.op]
        which += ((images.op == Op.UPDATE) & images.has_before).astype(np.int8)
        values = layout.run(which)
        if topic is not None:
            _refuse_too_long(rows.table, values, topic)
        return Encoded(values)

    def encode_schema_change(self, change: SchemaChange, planned_at_ms: int) -> Encoded | None:
        """Encode a DDL as one message."""
        name = change.written_as
        return _note(
            b'{"type":"ddl","database":%s,"table":%s,"commitTs":%d,"kind":"%s","query":%s}'
            % (
                json_text(name.database),
                json_text(name.table),
                change.commit_ts,
                change.kind.name.lower().replace("_", " ").encode(),
                json_text(change.query),
            )
        )

    def encode_watermark(self, mark: Watermark, planned_at_ms: int) -> Encoded | None:
        """Encode a watermark as one message."""
        return _note(b'{"type":"watermark","commitTs":%d}' % mark.commit_ts)

    def plain_value(self, column: Column, text: str) -> bytes:
        """Return the column with its value; numbers have no quotes."""
        form = b":%s" if column.type.kind is Kind.INTEGER else b':"%s"'
        return json_text(column.name) + form % text.encode()

    def decode(self, data: bytes, table: TableSchema) -> Iterator[Change]:
        """Read messages back, also as one array; `seq` is the row number.

        With JSON columns as values, `null` in one that may be NULL is NULL.
        """
        return read_messages(data, table, self._terminator, self._embeds)

    def decode_message(self, key: bytes | None, value: bytes | None) -> Iterator[Change]:
        """Read one message without a table: types are guessed from the values."""
        return read_message(value)

    def _slots(self, layout: Layout, rows: Rows, image: pa.StructArray) -> Slots:
        own_fields = fields(rows.table, image)
        return [(field, self._slot(layout, rows.table, field)) for field in own_fields]

    def _slot(self, layout: Layout, table: TableSchema, field: Field) -> int:
        kind, values = field.column.type.kind, field.values
        if kind in _NUMBERS or kind is Kind.VECTOR or (kind is Kind.JSON and self._embeds):
            return layout.slot(values, kernels.RAW)
        if kind in (Kind.FLOAT, Kind.DOUBLE):
            words = float_text(values, kernels_float.GENERAL)
            return layout.slot(words, kernels.RAW, valid=values)
        if kind is Kind.BINARY:
            packed = kernels_render.base64_text(values)
            return layout.slot(packed, kernels.RAW, _QUOTE, valid=values)
        words = element_text(table, field) if kind in (Kind.ENUM, Kind.SET) else values
        return layout.slot(words, kernels.JSON, _QUOTE, valid=values)


def _head(table: TableSchema, op: Op) -> bytes:
    name = table.written_as
    return b'{"op":"%s","database":%s,"table":%s,"commitTs":' % (
        _OPS[op],
        json_text(name.database),
        json_text(name.table),
    )


def _key(table: TableSchema, shown: Slots) -> list[Part]:
    """Return the handle key's columns; null without any, or where not all of them are written."""
    wanted = set(table.handle_key)
    keyed = [(f, s) for f, s in shown if f.column.name in wanted]
    return object_of(keyed) if keyed and len(keyed) == len(wanted) else [b"null"]


def _note(text: bytes) -> Encoded:
    return Encoded(pa.array([text], pa.large_binary()))


def _refuse_too_long(table: TableSchema, values: pa.LargeBinaryArray, topic: Topic) -> None:
    sizes = np.diff(np.frombuffer(values.buffers()[1], np.int64, len(values) + 1))
    if not len(sizes) or sizes.max() <= topic.max_message_bytes:
        return
    row = int(np.argmax(sizes > topic.max_message_bytes))
    key = json.dumps(json.loads(values[row].as_py())["key"], ensure_ascii=False)
    raise MessageTooLarge(
        f"{table.id}: the message of the row with key {key[:_KEY_SHOWN]} has {sizes[row]} bytes, "
        f"more than the {topic.max_message_bytes} that fit; raise the sink's limit "
        "(max-batch-bytes of http, max-message-bytes of kafka), or leave the large column out "
        "with column-selectors"
    )


def warm() -> None:
    """Compile every kernel that this codec uses."""
    for module in (kernels, kernels_float, kernels_render, kernels_spans, kernels_plain_json):
        module.warm()
