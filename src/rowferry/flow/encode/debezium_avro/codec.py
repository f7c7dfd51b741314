"""The debezium-avro codec: Debezium's events as Connect's Avro converters write them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from math import inf
from typing import Any, ClassVar, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rowferry.change.chunk import Change, Op, Rows, SchemaChange, Watermark
from rowferry.change.plan import Topic
from rowferry.change.position import PHYSICAL_SHIFT, physical_ms
from rowferry.change.remembered import Remembered
from rowferry.change.sqltype import Kind
from rowferry.change.table import TableId, TableSchema
from rowferry.columnar import render as kernels_render
from rowferry.columnar.fields import Field, ImagePresence, fields
from rowferry.errors import DecodeError, EncodeError, OptionsConflict
from rowferry.flow.encode.avro import kernels, kernels_decimal
from rowferry.flow.encode.avro.datum import AvroSchema, long_bytes, text_bytes
from rowferry.flow.encode.avro.messages import head_of, split_head
from rowferry.flow.encode.avro.options import (
    AvroOptions,
    RecordOptions,
    RegistryOptions,
    refuse_other_messages,
    registry_address,
)
from rowferry.flow.encode.avro.registry import SchemaRegistry
from rowferry.flow.encode.avro.writer import AvroCell, Part, write_rows
from rowferry.flow.encode.contract import CodecTraits, CommitTime, Encoded, MessageCodec
from rowferry.flow.encode.debezium import ddl, schema
from rowferry.flow.encode.debezium import kernels as kernels_debezium
from rowferry.flow.encode.debezium.codec import CONNECTOR, VERSION, with_tombstones
from rowferry.flow.encode.debezium.options import DebeziumOptions, EventOptions, ValueModes
from rowferry.flow.encode.debezium.reader import event_changes
from rowferry.flow.encode.debezium_avro.schema import (
    full_name,
    payload_of,
    to_avro,
    to_connect,
)
from rowferry.flow.encode.debezium_avro.values import cells_of
from rowferry.flow.encode.large_message import LargeMessageOptions, refuse_large
from rowferry.flow.encode.options import CODEC_SECTION, EXTENSION, ExtensionOptions
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.option import OptionTable
from rowferry.spec.sink_traits import SinkTraits

PROTOCOL: Final = "debezium-avro"
_OVERHEAD: Final = 36  # what a queue counts beside key and value
_OPS: Final = {Op.INSERT: b"\2c", Op.UPDATE: b"\2u", Op.DELETE: b"\2d"}
_NULL, _THERE = b"\0", b"\2"  # the branches of an optional value without a default

_Known = tuple[AvroSchema, schema.Schema]


class AvroEventOptions(RecordOptions, section="sink"):
    """What TiCDC has for both protocols in the section of the sink."""

    debezium_include_start_ts = EventOptions.debezium_include_start_ts


class AvroNoteOptions(ExtensionOptions, section=CODEC_SECTION):
    """Which messages there are beside those of rows."""

    avro_enable_watermark = AvroOptions.avro_enable_watermark


class DebeziumAvro(MessageCodec):
    """Row changes as Debezium's events, with their schemas in a registry.

    Schemas are registered as the avro codec does it. Without a topic (nothing is sent) the schema
    id is 0 and nothing is registered.
    """

    TRAITS: ClassVar = CodecTraits(
        file_suffix="",
        schema_change_goes_to="all-partitions",
        carries_before_image=True,
        can_omit_columns=False,
        one_table_per_topic=True,
        kinds=frozenset(Kind),
        binary_keys=True,
    )
    TABLES: ClassVar[tuple[OptionTable, ...]] = (
        AvroEventOptions.TABLE,
        DebeziumOptions.TABLE,
        RegistryOptions.TABLE,
        AvroNoteOptions.TABLE,
        LargeMessageOptions.TABLE,
    )

    def __init__(self, spec: ChangefeedSpec, sink: SinkTraits) -> None:
        """Read the settings.

        Raises:
            BadOption: no schema registry is named.
            OptionsConflict: options that exclude each other, or a sink of files.
        """
        refuse_other_messages(spec, sink, PROTOCOL)
        own, there = spec.options(DebeziumOptions), spec.options(AvroNoteOptions)
        section = spec.options(AvroEventOptions)
        self._extension = section.enable_tidb_extension or there.enable_tidb_extension
        self._notes = there.avro_enable_watermark
        if self._notes and not self._extension:
            raise OptionsConflict(
                f"{AvroNoteOptions.avro_enable_watermark.key} needs {EXTENSION} = true as well"
            )
        self._old_value = own.output_old_value
        self._tombstones = own.tombstones and sink.has_topics
        self._name = own.name or spec.changefeed_id
        self._modes = ValueModes.of(spec, self._extension)
        self._registry = SchemaRegistry(registry_address(spec, PROTOCOL))
        self._ids: Remembered[tuple[str, TableId, int, int], tuple[TableSchema, tuple[int, int]]]
        self._ids = Remembered(kept_s=inf)  # each costs calls of the registry
        self._known: Remembered[int, _Known] = Remembered()

    def probe(self) -> None:
        """Ask whether the schema registry is there and lets us in; registers nothing."""
        self._registry.probe()

    # --- rows -------------------------------------------------------------------------------------

    def encode_rows(self, rows: Rows, planned_at_ms: int, topic: Topic | None = None) -> Encoded:
        """Encode a chunk: a key of the handle key's columns, a value with both images.

        Raises:
            EncodeError: a column is absent, or NULL although it is NOT NULL.
            MessageTooLarge: a row is longer than the topic takes.
            SchemaRefused, SinkUnavailable, SinkUnwritable: from the schema registry.
        """
        images, table = ImagePresence.of(rows), rows.table
        deletes = images.op == Op.DELETE
        with_old = deletes | ((images.op == Op.UPDATE) & images.has_before & self._old_value)
        old_fields = fields(table, rows.before) if with_old.any() else []
        new_fields = fields(table, rows.after) if not deletes.all() else []
        key_id, value_id = self._registered(table, topic)
        before, after = self._image(table, old_fields), self._image(table, new_fields)
        source, programs = self._source(rows), []
        forms = ((Op.INSERT, False), (Op.UPDATE, False), (Op.UPDATE, True), (Op.DELETE, True))
        for op, shows_old in forms:
            parts: list[Part] = [head_of(value_id)]
            parts += [_THERE, *before] if shows_old else [_NULL]
            parts += [_NULL] if op is Op.DELETE else [_THERE, *after]
            programs.append([*parts, *source, _NULL, _OPS[op], *_stamps(planned_at_ms)])
        which = np.array([0, 1, 3], np.int8)[images.op]
        which += ((images.op == Op.UPDATE) & with_old).astype(np.int8)
        encoded = Encoded(
            write_rows(programs, which), self._keys(table, new_fields, old_fields, deletes, key_id)
        )
        if topic is not None:
            refuse_large(table.id, encoded, topic, _OVERHEAD, PROTOCOL)
        wanted = self._tombstones and encoded.keys is not None
        return replace(encoded, tombstones=deletes if wanted else None)

    def batch(self, messages: Encoded, topic: Topic) -> Encoded:
        """Put a message without a value behind each delete, where tombstones are wanted."""
        return with_tombstones(messages)

    def _image(self, table: TableSchema, image: list[Field]) -> list[AvroCell]:
        if not image:
            return []
        there = {f.column.name for f in image}
        _refuse_missing(table, [c.name for c in table.visible if c.name not in there])
        return self._cells(table, image)

    def _cells(self, table: TableSchema, image: list[Field]) -> list[AvroCell]:
        try:
            return [cell for field in image for cell in cells_of(field, self._modes)]
        except EncodeError as err:
            raise EncodeError(f"{table.id}, {err.words}") from None

    def _keys(
        self,
        table: TableSchema,
        new: list[Field],
        old: list[Field],
        deletes: npt.NDArray[np.bool_],
        key_id: int,
    ) -> pa.LargeBinaryArray | None:
        """Return the keys; None for a table that has none."""
        wanted = schema.key_columns(table)
        if not wanted:
            return None
        programs: list[list[Part]] = []
        for image in (new, old):
            by_name = {f.column.name: f for f in image}
            if image:
                _refuse_missing(table, [c.name for c in wanted if c.name not in by_name])
            keyed = [by_name[c.name] for c in wanted] if image else []
            programs.append([head_of(key_id), *self._cells(table, keyed)])
        return write_rows(programs, deletes.astype(np.int8))

    def _source(self, rows: Rows) -> list[Part]:
        database, table = rows.table.written_as
        ms = (rows.commit_ts >> np.uint64(PHYSICAL_SHIFT)).astype(np.int64)
        who = b"".join(map(text_bytes, (VERSION, CONNECTOR, self._name)))
        middle = b"\0" + text_bytes("false") + text_bytes(database) + _NULL + _THERE
        # server_id, gtid, file, pos, row, thread, query
        rest = long_bytes(0) + _NULL + text_bytes("") + long_bytes(0) * 2 + _NULL * 2
        parts: list[Part] = [who, _long(ms), middle, _long(ms * 1000), _THERE, _long(ms * 10**6)]
        parts.append(_THERE + text_bytes(table) + rest)
        if self._extension:
            parts += [_long(rows.commit_ts), text_bytes(self._name)]
        return parts

    # --- schemas ----------------------------------------------------------------------------------

    def _registered(self, table: TableSchema, topic: Topic | None) -> tuple[int, int]:
        """Return the ids of the key's and the value's schema."""
        name = topic.name if topic else ""
        key = (name, table.written_as, table.table_id, table.version)
        known = self._ids.get(key)
        # After a reset, another version may begin at the same commit-ts.
        if known is not None and known[0] is table:
            return known[1]
        schemas = self.schemas(table)
        ids = [
            self._registry.register(f"{name}-{which}", json.dumps(made)) if name and made else 0
            for which, made in zip(("key", "value"), schemas, strict=True)
        ]
        self._ids[key] = (table, (ids[0], ids[1]))
        return ids[0], ids[1]

    def schemas(self, table: TableSchema) -> tuple[Any, Any]:
        """Return the Avro schemas of a table's keys (None: it has no key) and values.

        Raises:
            SchemaRefused: two columns have one name in Avro.
        """
        name = ".".join((self._name, *table.written_as))
        columns = list(table.visible)
        value = schema.envelope_schema(columns, name, self._modes, self._extension)
        key = schema.key_schema(table, name, self._modes) if schema.key_columns(table) else None
        return (to_avro(key) if key else None), to_avro(value)

    # --- what is no row ---------------------------------------------------------------------------

    def encode_schema_change(self, change: SchemaChange, planned_at_ms: int) -> Encoded | None:
        """Encode a DDL as an event of Debezium's schema change topic.

        None without `avro-enable-watermark`: a topic's subject has the schema of rows.
        """
        if not self._notes:
            return None
        source = self._note_source(*change.written_as, change.commit_ts)
        value = ddl.payload(change, source, planned_at_ms)
        key = {"databaseName": change.written_as.database}
        return self._note((ddl.KEY_SCHEMA, key), (ddl.value_schema(self._extension), value))

    def encode_watermark(self, mark: Watermark, planned_at_ms: int) -> Encoded | None:
        """Encode a watermark; None without `avro-enable-watermark`."""
        if not self._notes:
            return None
        source = self._note_source("", "", mark.commit_ts)
        value = {"source": source, "ts_ms": planned_at_ms, "op": "m"}
        key = schema.struct([], f"{self._name}.watermark.Key")
        return self._note((key, {}), (schema.watermark_schema(self._name, True), value))

    def _note_source(self, database: str, table: str, commit_ts: int) -> dict[str, Any]:
        ms = physical_ms(commit_ts)
        who = {"version": VERSION, "connector": CONNECTOR, "name": self._name, "db": database}
        times = {"ts_ms": ms, "ts_us": ms * 1000, "ts_ns": ms * 10**6, "commit_ts": commit_ts}
        rest = {"snapshot": "false", "table": table, "server_id": 0, "file": "", "pos": 0, "row": 0}
        return {**who, **times, **rest, "cluster_id": self._name}

    def _note(self, *pair: tuple[schema.Schema, dict[str, Any]]) -> Encoded:
        """Return one message; its schemas are registered under their own names."""
        parts = []
        for made, payload in pair:
            avro = to_avro(made)
            number = self._registry.register(full_name(made["name"]), json.dumps(avro))
            parts.append(head_of(number) + AvroSchema(avro).encode(payload))
        key, value = (pa.array([part], pa.large_binary()) for part in parts)
        return Encoded(value, key)

    # --- reading ----------------------------------------------------------------------------------

    def decode(self, data: bytes, table: TableSchema) -> Iterator[Change]:
        """Refuse: this is a format of messages, which `decode_message` reads."""
        raise DecodeError(f"{PROTOCOL} is a format of messages, not of files")

    @property
    def commit_time(self) -> CommitTime:
        """Exact with the extension; else the millisecond."""
        if self._extension:
            return CommitTime("exact")
        why = f"without {EXTENSION} the millisecond of a commit is told only"
        return CommitTime("millisecond", why)

    def decode_message(self, key: bytes | None, value: bytes | None) -> Iterator[Change]:
        """Read one message, its schemas from the registry; a tombstone is nothing.

        Without the extension a commit-ts is its millisecond shifted up.
        """
        if value is None and key is None:
            raise DecodeError("a message without key and value is none of this format")
        _, key_payload = self._event(key, "key") if key else ({}, {})
        if value is not None:
            yield from event_changes(key_payload, *self._event(value, "value"))

    def _event(self, message: bytes, what: str) -> tuple[schema.Schema, dict[str, Any]]:
        """Return the Connect schema and the payload of a key or value."""
        number, binary = split_head(message, what)
        avro, connect = self._schema(number)
        try:
            payload = payload_of(connect, avro.decode(binary))
        except (ArithmeticError, KeyError, RecursionError, TypeError, ValueError) as err:
            raise DecodeError(f"the {what} is no event of Debezium ({err})") from None
        if not isinstance(payload, dict):
            raise DecodeError(f"the {what} is no record")
        return connect, payload

    def _schema(self, number: int) -> _Known:
        if number not in self._known:
            text = self._registry.schema(number)
            try:
                avro = AvroSchema(json.loads(text))
                self._known[number] = (avro, to_connect(avro))
            except (
                ArithmeticError,
                AttributeError,
                KeyError,
                RecursionError,
                TypeError,
                ValueError,
            ) as err:
                raise DecodeError(f"schema {number} is not one of this format: {err!r}") from None
        return self._known[number]


def _long(values: npt.NDArray[Any]) -> AvroCell:
    return AvroCell(kernels.LONG, pa.array(values))


def _stamps(planned_at_ms: int) -> list[Part]:
    """Return when the plan was made, in the three units that an event ends with."""
    return [_THERE + long_bytes(planned_at_ms * unit) for unit in (1, 1000, 10**6)]


def _refuse_missing(table: TableSchema, lost: list[str]) -> None:
    if lost:
        names = ", ".join(lost)
        raise EncodeError(f"{table.id}: {PROTOCOL} cannot leave columns out; missing: {names}")


def warm() -> None:
    """Compile every kernel that this codec uses."""
    for module in (kernels, kernels_decimal, kernels_render, kernels_debezium):
        module.warm()
