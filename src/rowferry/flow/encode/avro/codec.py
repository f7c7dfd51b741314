"""The avro codec: key and value of each row as Avro, with their schemas in a registry."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf
from typing import ClassVar, Final

import numpy as np
import pyarrow as pa

from rowferry.change.chunk import Change, Op, Rows, SchemaChange, Watermark
from rowferry.change.plan import Topic
from rowferry.change.remembered import Remembered
from rowferry.change.table import TableId, TableSchema
from rowferry.columnar import render as kernels_render
from rowferry.columnar.fields import Field, ImagePresence, fields
from rowferry.errors import DecodeError, EncodeError
from rowferry.flow.encode.avro import kernels, kernels_decimal, messages
from rowferry.flow.encode.avro.options import (
    AvroOptions,
    AvroSettings,
    RecordOptions,
    RegistryOptions,
)
from rowferry.flow.encode.avro.reader import (
    BEFORE,
    RecordReader,
    record_reader,
    rows_of,
    table_of,
)
from rowferry.flow.encode.avro.registry import SchemaRegistry
from rowferry.flow.encode.avro.schema import (
    COMMIT_TS,
    OP,
    key_columns,
    key_schema,
    value_schema,
)
from rowferry.flow.encode.avro.writer import AvroCell, Part, cell_of, write_rows
from rowferry.flow.encode.contract import CodecTraits, CommitTime, Encoded, MessageCodec
from rowferry.flow.encode.large_message import LargeMessageOptions, refuse_large
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.option import OptionTable
from rowferry.spec.sink_traits import SinkTraits

_OVERHEAD: Final = 36  # bytes that a message has beside its key and value
_INSERTED, _UPDATED = b"\x02c", b"\x02u"
_TIME_BITS: Final = np.uint64(18)


class Avro(MessageCodec):
    """Rows as flat Avro records; a delete is its key with no value.

    Schemas are registered when rows of a table version are first written to a topic, once in this
    instance; a worker process keeps its instance. Without a topic (nothing is sent) the schema id
    is 0 and nothing is registered.
    """

    TRAITS: ClassVar = CodecTraits(
        file_suffix="",
        schema_change_goes_to="all-partitions",
        carries_before_image=False,
        can_omit_columns=False,
        one_table_per_topic=True,
        binary_keys=True,
    )
    TABLES: ClassVar[tuple[OptionTable, ...]] = (
        RecordOptions.TABLE,
        RegistryOptions.TABLE,
        AvroOptions.TABLE,
        LargeMessageOptions.TABLE,
    )

    def __init__(self, spec: ChangefeedSpec, sink: SinkTraits) -> None:
        settings = AvroSettings.of(spec, sink)
        self._modes = settings.modes
        self._extension = settings.extension
        self._watermark = settings.watermark
        self._registry = SchemaRegistry(settings.registry)
        self._ids: Remembered[tuple[str, TableId, int, int], tuple[TableSchema, tuple[int, int]]]
        self._ids = Remembered(kept_s=inf)  # each costs calls of the registry
        self._records: Remembered[tuple[int, bool], RecordReader] = Remembered()
        self._tables: Remembered[tuple[int | None, int | None], TableSchema] = Remembered()

    def probe(self) -> None:
        """Ask whether the schema registry is there and lets us in; registers nothing."""
        self._registry.probe()

    # --- writing ----------------------------------------------------------------------------------

    def encode_rows(self, rows: Rows, planned_at_ms: int, topic: Topic | None = None) -> Encoded:
        """Encode a chunk: keys of the handle key's columns, values of all columns.

        Raises:
            EncodeError: a column is absent, or NULL although it is NOT NULL.
            TableIneligible: the table has no handle key.
            MessageTooLarge: a row is longer than the topic takes.
            SchemaRefused, SinkUnavailable, SinkUnwritable: from the schema registry.
        """
        images, table = ImagePresence.of(rows), rows.table
        deletes = images.op == Op.DELETE
        key_id, value_id = self._registered(table, topic)
        after = None if deletes.all() else fields(table, rows.after)
        before = fields(table, rows.before) if deletes.any() else None
        head = messages.head_of(key_id)
        programs: list[list[Part]] = [
            [] if image is None else [head, *self._key(table, image)] for image in (after, before)
        ]
        keys = write_rows(programs, deletes.astype(np.int8))
        values = write_rows(
            self._values(rows, after, messages.head_of(value_id)),
            images.op,
            None if self._watermark else deletes,
        )
        encoded = Encoded(values, keys)
        if topic is not None:
            refuse_large(table.id, encoded, topic, _OVERHEAD, "avro")
        return encoded

    def encode_schema_change(self, change: SchemaChange, planned_at_ms: int) -> Encoded | None:
        """Encode a DDL; None without `avro-enable-watermark`."""
        return _single(messages.ddl_message(change)) if self._watermark else None

    def encode_watermark(self, mark: Watermark, planned_at_ms: int) -> Encoded | None:
        """Encode a watermark; None without `avro-enable-watermark`."""
        return _single(messages.watermark_message(mark)) if self._watermark else None

    def _registered(self, table: TableSchema, topic: Topic | None) -> tuple[int, int]:
        """Return the ids of the key's and the value's schema."""
        name = topic.name if topic else ""
        key = (name, table.written_as, table.table_id, table.version)
        known = self._ids.get(key)
        # After a reset, another version may begin at the same commit-ts.
        if known is not None and known[0] is table:
            return known[1]
        schemas = (
            ("key", key_schema(table, self._modes)),
            ("value", value_schema(table, self._modes, self._extension)),
        )
        # Readers look a topic's schemas up by its own name (TopicNameStrategy), dots and all.
        ids = [self._registry.register(f"{name}-{w}", s) if name else 0 for w, s in schemas]
        self._ids[key] = (table, (ids[0], ids[1]))
        return ids[0], ids[1]

    def _key(self, table: TableSchema, image: list[Field]) -> list[AvroCell]:
        by_name = {f.column.name: f for f in image}
        wanted = [c.name for c in key_columns(table)]
        _refuse_missing(table, [n for n in wanted if n not in by_name])
        return [cell_of(table, by_name[n], self._modes) for n in wanted]

    def _values(self, rows: Rows, after: list[Field] | None, head: bytes) -> list[list[Part]]:
        """Return how the value of an insert, an update and a delete is written."""
        table, commit_ts = rows.table, rows.commit_ts
        stamp = pa.array(commit_ts)
        delete: list[Part] = []
        if self._watermark:
            delete = [bytes([messages.DELETE]), AvroCell(kernels.WORD, stamp, width=8)]
        if after is None:
            return [[], [], delete]
        there = {f.column.name for f in after}
        _refuse_missing(table, [c.name for c in table.visible if c.name not in there])
        record: list[Part] = [head, *(cell_of(table, f, self._modes) for f in after)]
        if not self._extension:
            return [record, record, delete]
        stamps = [
            AvroCell(kernels.LONG, stamp),
            AvroCell(kernels.LONG, pa.array(commit_ts >> _TIME_BITS)),
        ]
        return [[*record, _INSERTED, *stamps], [*record, _UPDATED, *stamps], delete]

    # --- reading ----------------------------------------------------------------------------------

    def decode(self, data: bytes, table: TableSchema) -> Iterator[Change]:
        """Refuse: this is a format of messages, which `decode_message` reads."""
        raise DecodeError("avro is a format of messages, not of files")

    @property
    def commit_time(self) -> CommitTime:
        """Exact with the extension; else nothing is told."""
        if self._extension:
            return CommitTime("exact")
        return CommitTime("none", "messages tell them with enable-tidb-extension = true only")

    def decode_message(self, key: bytes | None, value: bytes | None) -> Iterator[Change]:
        """Read one message, its schemas from the registry.

        Without the extension every row that is no delete comes back as an insert with commit-ts 0.
        A delete has its key's columns only.
        """
        if value and value[0] in (messages.DDL, messages.WATERMARK):
            yield from messages.read_note(value)
            return
        if value is not None and value[:1] != bytes([messages.DELETE]):
            yield self._row(key, value)
            return
        if key is None:
            raise DecodeError("a message without key and value is none of this format")
        commit_ts = messages.read_number(value, "delete") if value else 0
        number, binary = messages.split_head(key, "key")
        before, _ = self._record(number, True).read_whole(binary)
        yield rows_of(self._table(number, None), [(Op.DELETE, commit_ts, before, None)])

    def _row(self, key: bytes | None, value: bytes) -> Rows:
        number, binary = messages.split_head(value, "value")
        key_number = messages.split_head(key, "key")[0] if key else None
        after, own = self._record(number, False).read_whole(binary)
        table = self._table(key_number, number)
        op, before = _op(own), own.get(BEFORE)
        # A delete with its old row has that row's values in all its columns.
        images = (before or after, None) if op is Op.DELETE else (before, after)
        commit_ts = own.get(COMMIT_TS, 0)
        if commit_ts < 0:
            raise DecodeError(f"a row of {table.id} has the commit-ts {commit_ts}")
        return rows_of(table, [(op, commit_ts, *images)])

    def _record(self, number: int, in_key: bool) -> RecordReader:
        if (number, in_key) not in self._records:
            reader = record_reader(self._registry.schema(number), in_key)
            self._records[number, in_key] = reader
        return self._records[number, in_key]

    def _table(self, key: int | None, value: int | None) -> TableSchema:
        """Return the table of a pair of schemas; the same pair gives the same object."""
        if (key, value) not in self._tables:
            keys = self._record(key, True) if key is not None else None
            values = self._record(value, False) if value is not None else keys
            if values is None:
                raise DecodeError("a message has neither a key nor a value")
            key_columns = keys.columns if keys else ()
            self._tables[key, value] = table_of(values.columns, values.name, key_columns)
        return self._tables[key, value]


def _single(value: bytes) -> Encoded:
    return Encoded(pa.array([value], pa.large_binary()))


def _op(own: dict[str, object]) -> Op:
    return {"u": Op.UPDATE, "d": Op.DELETE}.get(str(own.get(OP)), Op.INSERT)


def _refuse_missing(table: TableSchema, lost: list[str]) -> None:
    if lost:
        names = ", ".join(lost)
        raise EncodeError(f"{table.id}: avro cannot leave columns out; missing: {names}")


def warm() -> None:
    """Compile every kernel that this codec uses."""
    for module in (kernels, kernels_decimal, kernels_render):
        module.warm()
