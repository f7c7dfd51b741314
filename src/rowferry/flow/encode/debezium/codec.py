"""The debezium codec: the events of Debezium's MySQL connector as Kafka Connect's JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, ClassVar, Final

import numpy as np
import pyarrow as pa

from rowferry.change.chunk import Change, Op, Rows, SchemaChange, Watermark
from rowferry.change.plan import Topic
from rowferry.change.position import PHYSICAL_SHIFT, physical_ms
from rowferry.change.remembered import Remembered
from rowferry.change.sqltype import Kind
from rowferry.change.table import TableId, TableSchema
from rowferry.columnar import float_text as kernels_float
from rowferry.columnar import render as kernels_render
from rowferry.columnar.fields import Field, ImagePresence, fields
from rowferry.errors import DecodeError, EncodeError, OptionsConflict
from rowferry.flow.encode.avro import kernels_decimal
from rowferry.flow.encode.contract import CodecTraits, CommitTime, Encoded, MessageCodec, TextBody
from rowferry.flow.encode.debezium import ddl, schema
from rowferry.flow.encode.debezium import kernels as kernels_debezium
from rowferry.flow.encode.debezium.options import DebeziumOptions, EventOptions, ValueModes
from rowferry.flow.encode.debezium.reader import read_message
from rowferry.flow.encode.debezium.values import shown
from rowferry.flow.encode.kernels import row_writer as kernels
from rowferry.flow.encode.large_message import (
    LargeMessageOptions,
    LargeMessages,
    refuse_large,
)
from rowferry.flow.encode.layout import Cell, Layout, Part
from rowferry.flow.encode.open_protocol import kernels as kernels_open
from rowferry.flow.encode.open_protocol.codec import json_text
from rowferry.flow.encode.options import EXTENSION, ExtensionOptions
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.option import OptionTable
from rowferry.spec.sink_traits import SinkTraits

PROTOCOL: Final = "debezium"
VERSION: Final = "3.5.0.Final"  # of the connector whose events these are
CONNECTOR: Final = "rowferry"
_OVERHEAD: Final = 36  # what a queue counts beside key and value
_CURE: Final = f"leave columns out, or set {EventOptions.debezium_disable_schema.key}=true"
_OPS: Final = {Op.INSERT: b"c", Op.UPDATE: b"u", Op.DELETE: b"d"}

# Kinds of events, and whether each shows the old row.
_FORMS: Final = ((Op.INSERT, False), (Op.UPDATE, False), (Op.UPDATE, True), (Op.DELETE, True))

_Slots = list[tuple[Field, int]]


class Debezium(MessageCodec):
    """Row changes, schema changes and watermarks as Debezium's events."""

    TRAITS: ClassVar = CodecTraits(
        file_suffix="",
        schema_change_goes_to="all-partitions",
        carries_before_image=True,
        can_omit_columns=True,
        kinds=frozenset(Kind),
        body=TextBody("application/x-ndjson", b"", b"\n", b"\n"),
    )
    TABLES: ClassVar[tuple[OptionTable, ...]] = (
        EventOptions.TABLE,
        DebeziumOptions.TABLE,
        ExtensionOptions.TABLE,
        LargeMessageOptions.TABLE,
    )

    def __init__(self, spec: ChangefeedSpec, sink: SinkTraits) -> None:
        """Read the settings.

        Raises:
            OptionsConflict: the sink writes files, or another form for large rows is asked for.
        """
        if sink.takes_files:
            raise OptionsConflict(
                f"protocol {PROTOCOL} makes messages with keys, which {spec.sink.scheme} files do "
                "not have; use protocol=canal-json or protocol=csv"
            )
        self._large = LargeMessages(spec, sink, PROTOCOL, None, extension=False)
        section, own = spec.options(EventOptions), spec.options(DebeziumOptions)
        there = spec.options(ExtensionOptions)
        self._extension = section.enable_tidb_extension or there.enable_tidb_extension
        self._with_schema = not section.debezium_disable_schema
        self._old_value = own.output_old_value
        self._tombstones = own.tombstones and sink.has_topics
        self._name = own.name or spec.changefeed_id
        self._modes = ValueModes.of(spec, self._extension)
        self._heads: Remembered[tuple[TableId, tuple[str, ...]], tuple[TableSchema, bytes]]
        self._heads = Remembered()

    # --- rows -------------------------------------------------------------------------------------

    def encode_rows(self, rows: Rows, planned_at_ms: int, topic: Topic | None = None) -> Encoded:
        """Encode a chunk: a key of the handle key's columns, a value with both images.

        Raises:
            MessageTooLarge: a row is longer than the topic takes.
        """
        images, layout, table = ImagePresence.of(rows), Layout(), rows.table
        deletes = images.op == Op.DELETE
        with_old = deletes | ((images.op == Op.UPDATE) & images.has_before & self._old_value)
        old_fields = fields(table, rows.before) if images.has_before.any() else []
        new_fields = fields(table, rows.after) if not deletes.all() else []
        if (deletes.any() and not old_fields) or (not deletes.all() and not new_fields):
            raise EncodeError(f"{table.id}: a change has no column to write")
        before, after = (
            self._slots(layout, table, old_fields),
            self._slots(layout, table, new_fields),
        )
        source = self._source(layout, rows)
        for op, shows_old in _FORMS:
            image = before if op is Op.DELETE else after
            needed = bool(((images.op == op) & (with_old == shows_old)).any())
            layout.program(
                self._value(table, op, before if shows_old else None, image, source, planned_at_ms)
                if needed
                else []
            )
        which = np.array([0, 1, 3], np.int8)[images.op]
        which += ((images.op == Op.UPDATE) & with_old).astype(np.int8)
        values = layout.run(which)
        encoded = self._compressed(values, self._keys(rows, old_fields, new_fields, deletes))
        if topic is not None:
            refuse_large(table.id, encoded, topic, _OVERHEAD, PROTOCOL, _CURE)
        wanted = self._tombstones and encoded.keys is not None
        return replace(encoded, tombstones=deletes if wanted else None)

    def batch(self, messages: Encoded, topic: Topic) -> Encoded:
        """Put a message without a value behind each delete, where tombstones are wanted."""
        return with_tombstones(messages)

    def _slots(self, layout: Layout, table: TableSchema, image: list[Field]) -> _Slots:
        return [(field, self._slot(layout, table, field)) for field in image]

    def _slot(self, layout: Layout, table: TableSchema, field: Field) -> int:
        try:
            form = shown(field.column, field.values, self._modes)
        except EncodeError as err:
            raise EncodeError(f"{table.id}, {err.words}") from None
        null = schema.null_text(field.column, self._modes)
        return layout.slot(form.values, form.mode, form.wrap, null, valid=form.valid)

    def _value(
        self,
        table: TableSchema,
        op: Op,
        old: _Slots | None,
        image: _Slots,
        source: list[Part],
        planned_at_ms: int,
    ) -> list[Part]:
        parts: list[Part] = [self._head(table, image), b'{"before":']
        parts += [b"null"] if old is None else _object(old)
        parts.append(b',"after":')
        parts += [b"null"] if op is Op.DELETE else _object(image)
        parts += [b',"source":', *source, b',"transaction":null,"op":"%s"' % _OPS[op]]
        stamp = b',"ts_ms":%d,"ts_us":%d000,"ts_ns":%d000000}' % ((planned_at_ms,) * 3)
        return [*parts, stamp, *([b"}"] if self._with_schema else [])]

    def _head(self, table: TableSchema, image: _Slots) -> bytes:
        """Return what stands before a payload: the schema, where there is one."""
        if not self._with_schema:
            return b""
        names = tuple(f.column.name for f, _ in image)
        known, head = self._heads.get((table.id, names), (None, b""))
        if known is not table:
            columns = [f.column for f, _ in image]
            made = schema.envelope_schema(columns, self._root(table), self._modes, self._extension)
            head = b'{"schema":' + _dumped(made) + b',"payload":'
            self._heads[table.id, names] = (table, head)
        return head

    def _root(self, table: TableSchema) -> str:
        return ".".join((self._name, *table.written_as))

    def _source(self, layout: Layout, rows: Rows) -> list[Part]:
        times = rows.commit_ts
        ms = Cell(layout.slot(pa.array(times >> np.uint64(PHYSICAL_SHIFT)), kernels.RAW))
        commit_ts = Cell(layout.slot(pa.array(times), kernels.RAW))
        return self._source_parts(*rows.table.written_as, ms, commit_ts)

    def _source_parts(self, database: str, table: str, ms: Part, commit_ts: Part) -> list[Part]:
        name = json_text(self._name)
        head = b'{"version":"%s","connector":"%s","name":%s,"ts_ms":' % (
            VERSION.encode(),
            CONNECTOR.encode(),
            name,
        )
        parts: list[Part] = [head, ms, b',"snapshot":"false","db":', json_text(database)]
        parts += [b',"sequence":null,"ts_us":', ms, b'000,"ts_ns":', ms, b'000000,"table":']
        parts += [json_text(table), b',"server_id":0,"gtid":null,"file":"","pos":0,"row":0']
        parts.append(b',"thread":null,"query":null')
        if self._extension:
            parts += [b',"commit_ts":', commit_ts, b',"cluster_id":', name]
        return [*parts, b"}"]

    def _keys(
        self, rows: Rows, old: list[Field], new: list[Field], deletes: Any
    ) -> pa.LargeBinaryArray | None:
        """Return the keys; None for a table that has none."""
        wanted = schema.key_columns(rows.table)
        if not wanted:
            return None
        layout, programs = Layout(), []
        for image in (new, old):
            by_name = {f.column.name: f for f in image}
            keyed = [by_name[c.name] for c in wanted if c.name in by_name]
            programs.append(self._slots(layout, rows.table, keyed))
        lead, end = b"", b""
        if self._with_schema:
            made = schema.key_schema(rows.table, self._root(rows.table), self._modes)
            lead, end = b'{"schema":' + _dumped(made) + b',"payload":', b"}"
        for slots in programs:
            layout.program([lead, *_object(slots), end])
        return layout.run(deletes.astype(np.int8))

    # --- what is no row ---------------------------------------------------------------------------

    def encode_schema_change(self, change: SchemaChange, planned_at_ms: int) -> Encoded | None:
        """Encode a DDL as an event of Debezium's schema change topic."""
        source = self._note_source(*change.written_as, change.commit_ts)
        value = ddl.payload(change, source, planned_at_ms)
        key = {"databaseName": change.written_as.database}
        return self._note((ddl.KEY_SCHEMA, key), (ddl.value_schema(self._extension), value))

    def encode_watermark(self, mark: Watermark, planned_at_ms: int) -> Encoded | None:
        """Encode a watermark; None without the extension, which is what carries it."""
        if not self._extension:
            return None
        source = self._note_source("", "", mark.commit_ts)
        value = {"source": source, "ts_ms": planned_at_ms, "transaction": None, "op": "m"}
        key = schema.struct([], f"{self._name}.watermark.Key")
        return self._note((key, {}), (schema.watermark_schema(self._name, True), value))

    def _note_source(self, database: str, table: str, commit_ts: int) -> dict[str, Any]:
        parts = self._source_parts(
            database, table, b"%d" % physical_ms(commit_ts), b"%d" % commit_ts
        )
        text = b"".join(p for p in parts if isinstance(p, bytes))
        source: dict[str, Any] = json.loads(text)
        return source

    def _note(self, *pair: tuple[schema.Schema, dict[str, Any]]) -> Encoded:
        key, value = (
            _dumped({"schema": one, "payload": payload} if self._with_schema else payload)
            for one, payload in pair
        )
        return self._compressed(
            pa.array([value], pa.large_binary()), pa.array([key], pa.large_binary())
        )

    def _compressed(self, values: pa.LargeBinaryArray, keys: pa.LargeBinaryArray | None) -> Encoded:
        """Return messages as they are sent: key and value are compressed both, as TiCDC does it."""
        squeeze = self._large.compress
        return Encoded(squeeze(values), None if keys is None else squeeze(keys))

    # --- reading ----------------------------------------------------------------------------------

    def decode(self, data: bytes, table: TableSchema) -> Iterator[Change]:
        """Refuse: this is a format of messages, which `decode_message` reads."""
        raise DecodeError(f"{PROTOCOL} is a format of messages; there are no files of it")

    @property
    def commit_time(self) -> CommitTime:
        """Exact with the extension; else the millisecond."""
        if self._extension:
            return CommitTime("exact")
        why = f"without {EXTENSION} the millisecond of a commit is told only"
        return CommitTime("millisecond", why)

    def decode_message(self, key: bytes | None, value: bytes | None) -> Iterator[Change]:
        """Read one message; a tombstone is nothing.

        Types are those that the schema tells; without one they are guessed from the values.
        Without the extension a commit-ts is its millisecond shifted up.
        """
        open_ = self._large.decompress
        return read_message(
            None if key is None else open_(key), None if value is None else open_(value)
        )


def with_tombstones(messages: Encoded) -> Encoded:
    """Return messages with one without a value behind each that asks for it."""
    doomed = messages.tombstones
    if doomed is None or not doomed.any():
        return replace(messages, tombstones=None)
    order = np.repeat(np.arange(len(doomed)), 1 + doomed.astype(np.int64))
    is_tombstone = np.zeros(len(order), np.bool_)
    is_tombstone[1:] = order[1:] == order[:-1]
    wanted = pa.array(order)
    taken = messages.values.take(pa.array(order, mask=is_tombstone))
    keys = None if messages.keys is None else messages.keys.take(wanted)
    partitions = None if messages.partitions is None else messages.partitions[order]
    return Encoded(taken, keys, rows=messages.row_count, partitions=partitions)


def _object(slots: _Slots) -> list[Part]:
    parts: list[Part] = [b"{"]
    for i, (field, slot) in enumerate(slots):
        parts += [(b"," if i else b"") + json_text(field.column.name) + b":", Cell(slot)]
    return [*parts, b"}"]


def _dumped(what: Any) -> bytes:
    return json.dumps(what, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def warm() -> None:
    """Compile every kernel that this codec uses."""
    for module in (
        kernels,
        kernels_float,
        kernels_render,
        kernels_open,
        kernels_decimal,
        kernels_debezium,
    ):
        module.warm()
