"""The open-protocol codec: rows as key and value JSON, several of them framed in one message."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Sequence
from typing import ClassVar, Final

import numpy as np
import pyarrow as pa

from rowferry.change.chunk import Change, Op, Rows, SchemaChange, Watermark
from rowferry.change.plan import Topic
from rowferry.change.sqltype import Kind
from rowferry.change.table import Column, TableSchema
from rowferry.columnar import float_text as kernels_float
from rowferry.columnar import render as kernels_render
from rowferry.columnar.fields import Field, ImagePresence, fields, float_text
from rowferry.errors import DecodeError, EncodeError, OptionsConflict
from rowferry.flow.encode.contract import CodecTraits, Encoded, LargeRows, MessageCodec
from rowferry.flow.encode.kernels import row_writer as kernels
from rowferry.flow.encode.large_message import LargeMessageOptions, LargeMessages
from rowferry.flow.encode.layout import Cell, ChangedCell, Layout, Part
from rowferry.flow.encode.open_protocol import kernels as kernels_open
from rowferry.flow.encode.open_protocol.column import PACKED, flags_of, type_code
from rowferry.flow.encode.open_protocol.reader import read_message
from rowferry.flow.encode.options import (
    CODEC_SECTION,
    CodecOptions,
    delete_only_handle_key,
)
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.option import OptionTable, Section, flag, option, whole
from rowferry.spec.sink_traits import SinkTraits

NAME: Final = "open-protocol"

_ROW, _DDL, _RESOLVED = 1, 2, 3
_OVERHEAD: Final = kernels_open.OVERHEAD + 16 + 8  # with both lengths and the version
_NUMBERS: Final = frozenset({Kind.INTEGER, Kind.YEAR, Kind.BIT, Kind.ENUM, Kind.SET})
_QUOTE: Final = ord('"')
_SPECIAL: Final = re.compile(r'[\x00-\x1f"\\]')
_SHORT: Final = {"\t": "\\t", "\n": "\\n", "\r": "\\r", '"': '\\"', "\\": "\\\\"}


def json_text(text: str) -> bytes:
    """Return a JSON string, escaped as the compiled kernel escapes values."""

    def escape(match: re.Match[str]) -> str:
        char = match.group()
        return _SHORT.get(char) or f"\\u{ord(char):04x}"

    return b'"' + _SPECIAL.sub(escape, text).encode("utf-8", "replace") + b'"'


def framed(key: bytes, value: bytes) -> tuple[bytes, bytes]:
    """Return the key and value of a message that holds this pair alone."""
    head = struct.pack(">QQ", kernels_open.VERSION, len(key))
    return head + key, struct.pack(">Q", len(value)) + value


class OpenOptions(Section, section="sink.open"):
    """What messages hold."""

    output_old_value = option(flag(), True, "An update holds the row's old values too.")


class BatchOptions(Section, section=CODEC_SECTION):
    """How much one message holds."""

    max_batch_size = option(
        whole(1), 16, "The most rows that one open-protocol message holds.", uri=True
    )


class OpenProtocol(MessageCodec):
    """Row changes, schema changes and watermarks as open-protocol messages."""

    TRAITS: ClassVar = CodecTraits(
        file_suffix="",
        schema_change_goes_to="all-partitions",
        carries_before_image=True,
        can_omit_columns=True,
        large_rows=LargeRows(needs_key=True),
        binary_keys=True,
    )
    TABLES: ClassVar[tuple[OptionTable, ...]] = (
        CodecOptions.TABLE,
        OpenOptions.TABLE,
        BatchOptions.TABLE,
        LargeMessageOptions.TABLE,
    )

    def __init__(self, spec: ChangefeedSpec, sink: SinkTraits) -> None:
        """Read the settings.

        Raises:
            OptionsConflict: the sink writes files, or large messages cannot be had as asked.
        """
        if sink.takes_files:
            raise OptionsConflict(
                f"protocol {NAME} makes messages with keys, which {spec.sink.scheme} files do not "
                "have; use protocol=canal-json or protocol=csv"
            )
        options = spec.options(CodecOptions)
        self._only_updated = options.only_output_updated_columns
        self._delete_handle_only = delete_only_handle_key(spec)
        self._old_value = spec.options(OpenOptions).output_old_value
        self._batch_rows = spec.options(BatchOptions).max_batch_size
        self._large = LargeMessages(spec, sink, NAME, self.TRAITS.large_rows, extension=False)

    def encode_rows(self, rows: Rows, planned_at_ms: int, topic: Topic | None = None) -> Encoded:
        """Encode a chunk: each row's key and value JSON, which `batch` puts into frames."""

        def shorten(part: Rows, locations: pa.Array | None) -> Encoded:
            return self._encode(part, key_only=True, locations=locations)

        encoded = self._encode(rows)
        if topic is None:
            return encoded
        return self._large.fit(rows, encoded, topic, _OVERHEAD, shorten, _stored_as)

    def batch(self, messages: Encoded, topic: Topic) -> Encoded:
        """Frame rows, as many of one partition together as `max-batch-size` and the topic allow."""
        if messages.keys is None:
            raise EncodeError("open-protocol rows without their keys")
        partitions = messages.partitions
        if partitions is None:
            partitions = np.zeros(len(messages.values), np.int32)
        most = min(self._batch_rows, len(messages.values))  # the option may be any number
        keys, values, places = kernels_open.frame(
            messages.keys, messages.values, partitions, most, topic.max_message_bytes
        )
        return Encoded(values, keys, rows=messages.row_count, partitions=places)

    def encode_schema_change(self, change: SchemaChange, planned_at_ms: int) -> Encoded | None:
        """Encode a DDL as one message."""
        database, table = map(json_text, change.written_as)
        key = b'{"ts":%d,"scm":%s,"tbl":%s,"t":%d}' % (change.commit_ts, database, table, _DDL)
        value = b'{"q":%s,"t":%d}' % (json_text(change.query), change.kind)
        (squeezed,) = self._large.compress(pa.array([value], pa.large_binary())).to_pylist()
        return _one(key, squeezed)

    def encode_watermark(self, mark: Watermark, planned_at_ms: int) -> Encoded | None:
        """Encode a watermark as one message, whose value is a length of zero."""
        return _one(b'{"ts":%d,"t":%d}' % (mark.commit_ts, _RESOLVED), b"")

    def plain_value(self, column: Column, text: str) -> bytes:
        """Return a whole number behind its name `v`; texts may be packed."""
        return b'"v":%s' % text.encode() if column.type.kind is Kind.INTEGER else b""

    def decode(self, data: bytes, table: TableSchema) -> Iterator[Change]:
        """Refuse: a value means nothing without its key."""
        raise DecodeError("open-protocol is a format of messages; there are no files of it")

    def decode_message(self, key: bytes | None, value: bytes | None) -> Iterator[Change]:
        """Read one message back; types tell no more than codes and flags do.

        Where only updated columns are written, the others of an old image are taken from the new
        one.
        """
        large = self._large
        return read_message(
            key or b"", value or b"", self._only_updated, large.decompress, large.fetch
        )

    def _encode(
        self, rows: Rows, key_only: bool = False, locations: pa.Array | None = None
    ) -> Encoded:
        values = self._large.compress(self._values(rows, key_only))
        return Encoded(values, _keys(rows, key_only, locations))

    def _values(self, rows: Rows, key_only: bool) -> pa.LargeBinaryArray:
        images, layout, table = ImagePresence.of(rows), Layout(), rows.table
        deletes = images.op == Op.DELETE
        with_old = (images.op == Op.UPDATE) & images.has_before & self._old_value
        handle = set(table.written_key) if key_only else None
        doomed_only = set(table.written_key) if self._delete_handle_only else handle
        before, after, doomed = _Shown(), _Shown(), _Shown()
        if (deletes | with_old).any():
            written = fields(table, rows.before)
            whole_before = _Shown.of(layout, table, written)
            before, doomed = whole_before.only(handle), whole_before.only(doomed_only)
        if not deletes.all():
            after = _Shown.of(layout, table, fields(table, rows.after)).only(handle)
        if (deletes.any() and not doomed) or (not deletes.all() and not after):
            raise EncodeError(f"{table.id}: a change has no column to write")
        old = before.changed(after) if self._only_updated else before.members()
        new = (b'{"u":{', *after.members(), b"}")
        layout.program((*new, b"}"))
        layout.program((*new, b',"p":{', *old, b"}}"))
        layout.program((b'{"d":{', *doomed.members(), b"}}"))
        which = np.where(deletes, 2, with_old).astype(np.int8)
        return layout.run(which)


class _Shown(list[tuple[Field, bytes, int]]):
    """Columns of an image: what stands before the value, and the value's slot."""

    @classmethod
    def of(cls, layout: Layout, table: TableSchema, image: Sequence[Field]) -> _Shown:
        return cls((field, _head(table, field), _slot(layout, field)) for field in image)

    def only(self, keep: set[str] | None) -> _Shown:
        """Return the columns of these names; None: all."""
        if keep is None:
            return self
        return _Shown(one for one in self if one[0].column.name in keep)

    def members(self) -> list[Part]:
        parts: list[Part] = []
        for i, (field, head, slot) in enumerate(self):
            lead = (b"," if i else b"") + _opening(field)
            parts += [lead + head, Cell(slot), b"}"]
        return parts

    def changed(self, after: _Shown) -> list[Part]:
        """Return the columns that differ from `after`.

        TiCDC leaves out the name and braces of one that has become NULL, on which its own reader
        fails; here it keeps them.
        """
        now = {field.column.name: slot for field, _, slot in after}
        parts: list[Part] = []
        for field, head, slot in self:
            if (other := now.get(field.column.name)) is not None:
                parts.append(ChangedCell(slot, other, _opening(field) + head, b"}"))
        return parts


def _opening(field: Field) -> bytes:
    return json_text(field.column.name) + b":{"


def _head(table: TableSchema, field: Field) -> bytes:
    """Return what a column says before its value."""
    column = field.column
    handle = b',"h":true' if column.name in table.written_key else b""
    return b'"t":%d%s,"f":%d,"v":' % (type_code(column.type), handle, flags_of(table, column))


def _slot(layout: Layout, field: Field) -> int:
    """Add a column as open-protocol writes it."""
    kind, values = field.column.type.kind, field.values
    if kind in _NUMBERS:
        return layout.slot(values, kernels.RAW)
    if kind in (Kind.FLOAT, Kind.DOUBLE):
        return layout.slot(float_text(values, kernels_float.NUMBER), kernels.RAW, valid=values)
    if type_code(field.column.type) in PACKED:
        shown = kernels_render.base64_text(values)
    elif kind is Kind.BINARY:
        shown = kernels_open.quoted_bytes(values)
    else:
        shown = kernels_open.escaped_text(values)
    return layout.slot(shown, kernels.RAW, _QUOTE, valid=values)


def _keys(rows: Rows, key_only: bool, locations: pa.Array | None) -> pa.LargeBinaryArray:
    layout = Layout()
    commit_ts = Cell(layout.slot(pa.array(rows.commit_ts), kernels.RAW))
    database, table = map(json_text, rows.table.written_as)
    parts: list[Part] = [
        b'{"ts":',
        commit_ts,
        b',"scm":%s,"tbl":%s,"t":%d' % (database, table, _ROW),
    ]
    if key_only:
        parts.append(b',"ohk":true')
    if locations is not None:  # the format says both; readers take the last
        place = layout.slot(kernels_open.escaped_text(locations), kernels.RAW, _QUOTE)
        parts += [b',"ohk":false,"ccl":', Cell(place)]
    if rows.physical_id is not None:
        parts.append(b',"ptn":%d' % rows.physical_id)
    layout.program([*parts, b"}"])
    return layout.run(np.zeros(len(rows), np.int8))


def _stored_as(key: bytes | None, value: bytes) -> tuple[bytes, bytes]:
    return framed(key or b"", value)


def _one(key: bytes, value: bytes) -> Encoded:
    made = framed(key, value)
    return Encoded(pa.array([made[1]], pa.large_binary()), pa.array([made[0]], pa.large_binary()))
