"""The canal codec: Canal's own messages, protocol buffers in packets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rowferry.change.chunk import Change, Op, Rows, SchemaChange, Watermark
from rowferry.change.plan import Topic
from rowferry.change.position import PHYSICAL_SHIFT, physical_ms
from rowferry.change.sqltype import Kind
from rowferry.change.table import TableSchema
from rowferry.columnar import float_text as kernels_float
from rowferry.columnar.fields import Field, ImagePresence, fields, float_text
from rowferry.errors import DecodeError, EncodeError, OptionsConflict
from rowferry.flow.encode.canal import wire
from rowferry.flow.encode.canal.reader import EVENT_TYPES, MESSAGES, ROW_DATA, read_packet
from rowferry.flow.encode.canal_json.codec import ddl_type, mysql_type, sql_type, wider_type
from rowferry.flow.encode.contract import CodecTraits, CommitTime, Encoded, MessageCodec
from rowferry.flow.encode.large_message import (
    LargeMessageOptions,
    check_large_messages,
    refuse_compression,
    refuse_large,
)
from rowferry.flow.encode.options import CodecOptions, delete_only_handle_key
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.option import OptionTable
from rowferry.spec.sink_traits import SinkTraits

NAME: Final = "canal"
_VERSION: Final = wire.number_field(1, 1)
_ENCODING: Final = wire.text_field(5, "UTF-8")
_MYSQL: Final = wire.number_field(7, 2)
_PACKET: Final = wire.number_field(2, 1) + wire.number_field(3, MESSAGES)
_ENTRY_TYPE: Final = wire.number_field(2, ROW_DATA)
_ONE_ROW: Final = wire.bytes_field(12, wire.text_field(1, "rowsCount") + wire.text_field(2, "1"))
_OVERHEAD: Final = 36  # what a queue counts beside key and value
_TEXT: Final = pa.large_utf8()
_NUMBERS: Final = frozenset({Kind.INTEGER, Kind.YEAR, Kind.BIT, Kind.ENUM, Kind.SET})
_EVENTS: Final = {Op.INSERT: "INSERT", Op.UPDATE: "UPDATE", Op.DELETE: "DELETE"}


class Canal(MessageCodec):
    """Row changes and schema changes as Canal's packets."""

    TRAITS: ClassVar = CodecTraits(
        file_suffix="",
        schema_change_goes_to="partition-0",
        carries_before_image=True,
        can_omit_columns=True,
    )
    TABLES: ClassVar[tuple[OptionTable, ...]] = (CodecOptions.TABLE, LargeMessageOptions.TABLE)

    def __init__(self, spec: ChangefeedSpec, sink: SinkTraits) -> None:
        """Read the settings.

        Raises:
            OptionsConflict: the sink writes files, or another form for large rows is asked for.
        """
        if sink.takes_files:
            raise OptionsConflict(
                f"protocol {NAME} makes binary messages, which {spec.sink.scheme} files have no "
                "ends for; use protocol=canal-json or protocol=csv"
            )
        large = spec.options(LargeMessageOptions)
        check_large_messages(large, NAME, None, extension=False)
        refuse_compression(large, NAME)
        self._full_types = spec.options(CodecOptions).content_compatible
        self._delete_handle_only = delete_only_handle_key(spec)

    # --- writing ----------------------------------------------------------------------------------

    def encode_rows(self, rows: Rows, planned_at_ms: int, topic: Topic | None = None) -> Encoded:
        """Encode a chunk, a packet for each row.

        Raises:
            MessageTooLarge: a row is longer than the topic takes.
        """
        images = ImagePresence.of(rows)
        deletes = pa.array(images.op == Op.DELETE)
        before = self._image(rows, 1, images.has_before, deletes)
        after = self._image(rows, 2, images.op != Op.DELETE, deletes)
        events = self._events(images.op)
        change = wire.joined(
            b"\x10", events, b"\x50\x00", wire.message_field(12, wire.joined(before, after))
        )
        header = wire.joined(
            _VERSION + _ENCODING + b"\x30",
            wire.varints(rows.commit_ts >> np.uint64(PHYSICAL_SHIFT)),
            _MYSQL + _name(*rows.table.written_as) + b"\x58",
            events,
            _ONE_ROW,
        )
        entry = wire.joined(
            wire.message_field(1, header), _ENTRY_TYPE, wire.message_field(3, change)
        )
        encoded = Encoded(wire.joined(_PACKET, wire.message_field(5, wire.message_field(2, entry))))
        if topic is not None:
            refuse_large(rows.table.id, encoded, topic, _OVERHEAD, NAME)
        return encoded

    def encode_schema_change(self, change: SchemaChange, planned_at_ms: int) -> Encoded | None:
        """Encode a DDL as a packet."""
        name, kind = change.written_as, EVENT_TYPES[ddl_type(change.kind)]
        header = _VERSION + _ENCODING + wire.number_field(6, physical_ms(change.commit_ts))
        header += _MYSQL + _name(*name) + wire.number_field(11, kind)
        body = wire.number_field(2, kind) + wire.number_field(10, 1)
        body += wire.text_field(11, change.query) + wire.text_field(14, name.database)
        entry = wire.bytes_field(1, header) + _ENTRY_TYPE + wire.bytes_field(3, body)
        packet = _PACKET + wire.bytes_field(5, wire.bytes_field(2, entry))
        return Encoded(pa.array([packet], wire.BINARY))

    def encode_watermark(self, mark: Watermark, planned_at_ms: int) -> Encoded | None:
        """Send none: Canal has no such message."""
        return None

    def _events(self, op: Any) -> pa.Array:
        codes = pa.array([bytes([EVENT_TYPES[_EVENTS[Op(o)]]]) for o in range(3)], wire.BINARY)
        return codes.take(pa.array(op))

    def _image(self, rows: Rows, number: int, there: Any, deletes: pa.Array) -> pa.Array:
        """Return one image of each row, as fields of that number; empty where a row has none."""
        image = rows.before if number == 1 else rows.after
        written = fields(rows.table, image) if there.any() else []
        keep = rows.table.written_key
        key_only = self._delete_handle_only and bool(pc.any(deletes).as_py())
        if there.any() and (not written or (key_only and not keep)):
            raise EncodeError(f"{rows.table.id}: a change has no column to write")
        nothing = pa.scalar(b"", wire.BINARY)
        have, parts = pa.array(there), []
        for field in written:
            shown = have
            if key_only and field.column.name not in keep:
                shown = pc.and_not(have, deletes)
            made = wire.message_field(number, self._column(rows.table, field, deletes))
            parts.append(pc.if_else(shown, made, nothing))
        if not parts:
            return pa.array([b""] * len(rows), wire.BINARY) if len(rows) else _none()
        return wire.joined(*parts)

    def _column(self, table: TableSchema, field: Field, deletes: pa.Array) -> pa.Array:
        column, values = field.column, field.values
        is_null = pc.is_null(values)
        text = pc.fill_null(_text_of(field).cast(wire.BINARY), b"")
        text = pc.if_else(is_null, pa.scalar(b"", wire.BINARY), text)
        empty = pc.equal(pc.binary_length(text), 0)
        value = pc.if_else(empty, pa.scalar(b"", wire.BINARY), wire.message_field(8, text))
        keys = {name.lower() for name in table.primary_key}
        head = wire.text_field(3, column.name)
        head += wire.number_field(4, 1) if column.name.lower() in keys else b""
        changed = pc.if_else(deletes, pa.scalar(b""), pa.scalar(wire.number_field(5, 1)))
        null = pc.if_else(is_null, pa.scalar(b"\x30\x01"), pa.scalar(b"\x30\x00"))
        return wire.joined(
            self._sql_type(field),
            head,
            changed.cast(wire.BINARY),
            null.cast(wire.BINARY),
            value,
            wire.text_field(10, mysql_type(column.type, self._full_types)),
        )

    def _sql_type(self, field: Field) -> Any:
        """Return the column's number of java.sql.Types, a larger one where the value needs it."""
        usual = wire.number_field(2, sql_type(field.column.type))
        wider = wider_type(field.column.type)
        if wider is None:
            return usual
        limit, larger = wider
        beyond = pc.fill_null(pc.greater(field.values, pa.scalar(limit, pa.uint64())), False)
        high = pa.scalar(wire.number_field(2, larger), wire.BINARY)
        return pc.if_else(beyond, high, pa.scalar(usual, wire.BINARY))

    # --- reading ----------------------------------------------------------------------------------

    def decode(self, data: bytes, table: TableSchema) -> Iterator[Change]:
        """Refuse: this is a format of messages, which `decode_message` reads."""
        raise DecodeError(f"{NAME} is a format of messages; there are no files of it")

    @property
    def commit_time(self) -> CommitTime:
        """Always the millisecond: packets have no place for more."""
        return CommitTime("millisecond", f"{NAME} tells the millisecond of a commit only")

    def decode_message(self, key: bytes | None, value: bytes | None) -> Iterator[Change]:
        """Read one packet; a commit-ts is its millisecond shifted up."""
        return read_packet(value or b"")


def _none() -> pa.Array:
    return pa.array([], wire.BINARY)


def _name(database: str, table: str) -> bytes:
    return wire.text_field(8, database) + wire.text_field(9, table)


def _text_of(field: Field) -> pa.Array:
    kind, values = field.column.type.kind, field.values
    if kind in _NUMBERS:
        return pc.cast(values, _TEXT)
    if kind in (Kind.FLOAT, Kind.DOUBLE):
        return float_text(values, kernels_float.PLAIN)
    return wire.latin1_text(values) if kind is Kind.BINARY else values


def warm() -> None:
    """Compile every kernel that this codec uses."""
    kernels_float.warm()
    wire.warm()
