"""The simple codec: TiCDC's protocol whose rows are read by table definitions sent before them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, ClassVar, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rowferry.change.chunk import Change, Op, Rows, SchemaChange, Watermark
from rowferry.change.plan import Topic
from rowferry.change.remembered import Remembered
from rowferry.change.sqltype import Kind
from rowferry.change.table import TableId, TableSchema
from rowferry.columnar import float_text as kernels_float
from rowferry.columnar import render as kernels_render
from rowferry.columnar.fields import Field, ImagePresence, fields, float_text
from rowferry.errors import DecodeError, EncodeError, MessageTooLarge, OptionsConflict
from rowferry.flow.encode.avro import kernels as kernels_avro
from rowferry.flow.encode.avro.datum import long_bytes
from rowferry.flow.encode.avro.writer import AvroCell, write_rows
from rowferry.flow.encode.avro.writer import Part as AvroPart
from rowferry.flow.encode.canal_json.codec import ddl_type, json_text, object_of
from rowferry.flow.encode.contract import CodecTraits, Encoded, LargeRows, MessageCodec, TextBody
from rowferry.flow.encode.kernels import row_writer as kernels
from rowferry.flow.encode.large_message import (
    LargeMessageOptions,
    LargeMessages,
)
from rowferry.flow.encode.layout import Cell, Layout, Part
from rowferry.flow.encode.options import CODEC_SECTION, one_of_or_empty
from rowferry.flow.encode.simple import avro_form
from rowferry.flow.encode.simple.reader import SimpleReader
from rowferry.flow.encode.simple.schema import of_table
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.option import OptionTable, Section, flag, option, whole
from rowferry.spec.sink_traits import SinkTraits

NAME: Final = "simple"

_OVERHEAD: Final = 36  # what a queue counts beside key and value
_QUOTE: Final = ord('"')
_NUMBERS: Final = frozenset({Kind.INTEGER, Kind.YEAR, Kind.BIT, Kind.ENUM, Kind.SET})
_ZONE: Final = "UTC"  # of TIMESTAMP values
_SEGMENT_BITS: Final = 40  # below a segment's ordinal in `seq`


class EncodingOptions(Section, section=CODEC_SECTION):
    """How messages are written."""

    encoding_format = option(
        one_of_or_empty("json", "avro"),
        "json",
        "simple: how messages are written, as JSON or as Avro. Avro needs no schema registry: "
        "there is one schema for all messages.",
        uri=True,
    )


class BootstrapOptions(Section, section="sink"):
    """When definitions of tables are sent, and where to."""

    send_bootstrap_interval_in_sec = option(
        whole(),
        120,
        "simple: after how many seconds a table's definition is sent again, ahead of its next "
        "rows, at the latest; 0 or less: definitions are not sent.",
    )
    send_bootstrap_in_msg_count = option(
        whole(),
        10000,
        "simple: after how many rows a table's definition is sent again at the latest; 0 or less: "
        "definitions are not sent.",
    )
    send_bootstrap_to_all_partition = option(
        flag(),
        True,
        "simple: a table's definition goes to every partition of its topic, else to partition 0 "
        "alone.",
    )
    send_all_bootstrap_at_start = option(
        flag(),
        False,
        "simple: definitions of all tables at the start. A table's own always comes before its "
        "first row here, and no reader needs one before that: it changes nothing.",
    )


class Simple(MessageCodec):
    """Row changes, table definitions, schema changes and watermarks as simple messages."""

    TRAITS: ClassVar = CodecTraits(
        file_suffix="",
        schema_change_goes_to="all-partitions",
        carries_before_image=True,
        can_omit_columns=True,
        body=TextBody("application/x-ndjson", b"", b"\n", b"\n"),
        large_rows=LargeRows(),
        remembers=True,
    )
    TABLES: ClassVar[tuple[OptionTable, ...]] = (
        EncodingOptions.TABLE,
        BootstrapOptions.TABLE,
        LargeMessageOptions.TABLE,
    )

    def __init__(self, spec: ChangefeedSpec, sink: SinkTraits) -> None:
        """Read the settings.

        Raises:
            OptionsConflict: the sink writes files, or lines of text and Avro is asked for.
        """
        if sink.takes_files:
            raise OptionsConflict(
                f"protocol {NAME} sends table definitions between rows, which {spec.sink.scheme} "
                "files have no place for; use protocol=canal-json or protocol=csv"
            )
        self._avro = spec.options(EncodingOptions).encoding_format == "avro"
        if self._avro and not sink.has_topics:
            raise OptionsConflict(
                f"{EncodingOptions.encoding_format.key} = avro makes bytes, which a body of lines "
                f"over {spec.sink.scheme} cannot hold; set it to json"
            )
        section = spec.options(BootstrapOptions)
        self._interval_ms = section.send_bootstrap_interval_in_sec * 1000
        self._most = section.send_bootstrap_in_msg_count
        self._everywhere = section.send_bootstrap_to_all_partition
        self._large = LargeMessages(spec, sink, NAME, self.TRAITS.large_rows, extension=True)
        self._sent: Remembered[tuple[str, TableId], _Sent] = Remembered()
        self._same_again = not sink.has_topics  # bodies over HTTP are known by their content
        self._segment = (-1, -1)  # the last one: when it was planned, its ordinal
        self._begun: dict[tuple[str, TableId, int, int], int] = {}  # where its tables begin
        large = self._large
        self._reader = SimpleReader(
            lambda place: large.decompress(large.fetch(place)[1]),
            avro_form.read_message if self._avro else None,
        )

    # --- rows -------------------------------------------------------------------------------------

    def encode_rows(self, rows: Rows, planned_at_ms: int, topic: Topic | None = None) -> Encoded:
        """Encode a chunk; with a topic, its table's definition goes ahead where it is due."""

        def shorten(part: Rows, locations: pa.Array | None) -> Encoded:
            return self._encode(part, planned_at_ms, key_only=True, locations=locations)

        whole = self._encode(rows, planned_at_ms)
        if topic is None or not len(rows):
            return whole
        try:
            fitting = self._large.fit(rows, whole, topic, _OVERHEAD, shorten)
        except MessageTooLarge:  # the plan comes again, without the rows that may not go
            self._sent.pop((topic.name, rows.table.id), None)
            raise
        return replace(fitting, lead=self._bootstrap(rows, planned_at_ms, topic))

    def batch(self, messages: Encoded, topic: Topic) -> Encoded:
        """Put the table's definition before its rows, once in each partition that gets it."""
        lead = messages.lead
        if lead is None:
            return messages
        own = messages.partitions
        partitions = own if own is not None else np.zeros(len(messages.values), np.int32)
        count = topic.partitions if self._everywhere else 1
        ahead = pa.array([lead] * count, pa.large_binary())
        return Encoded(
            pa.concat_arrays([ahead, messages.values]),
            rows=messages.row_count,
            partitions=np.concatenate([np.arange(count, dtype=np.int32), partitions]),
        )

    def _bootstrap(self, rows: Rows, planned_at_ms: int, topic: Topic) -> bytes | None:
        """Return the message with the table's definition, where it is due."""
        if self._interval_ms <= 0 or self._most <= 0:
            return None
        is_due = self._begins_here if topic.lineage or self._same_again else self._is_time
        if not is_due(rows, planned_at_ms, topic):
            return None
        return self._note("BOOTSTRAP", 0, planned_at_ms, tableSchema=rows.table)

    def _is_time(self, rows: Rows, planned_at_ms: int, topic: Topic) -> bool:
        """Return whether this process has not sent a definition for long, or for many rows."""
        key, table = (topic.name, rows.table.id), rows.table
        seq = rows.batch.column("seq")
        last = (planned_at_ms, seq[-1].as_py())
        sent = self._sent.get(key)
        if (
            sent is not None
            and sent.table is table
            and sent.attempt == topic.attempt
            and planned_at_ms - sent.at_ms < self._interval_ms
            and sent.rows < self._most
            # Else a plan is carried out again, of whose first run nothing may have arrived.
            and (planned_at_ms, seq[0].as_py()) > sent.last
        ):
            sent.rows += len(rows)
            sent.last = last
            return False
        self._sent[key] = _Sent(table, topic.attempt, planned_at_ms, len(rows), last)
        return True

    def _begins_here(self, rows: Rows, planned_at_ms: int, topic: Topic) -> bool:
        """Return whether these are a table's first rows of a segment.

        Where repeats are known by their number or their content, whoever carries a plan out must
        send the same messages: what this process has sent before may not count.
        """
        table, first = rows.table, int(rows.batch.column("seq")[0].as_py())
        segment = (planned_at_ms, first >> _SEGMENT_BITS)
        if segment != self._segment:
            self._segment, self._begun = segment, {}
        one = (topic.name, table.id, table.table_id, table.version)
        return self._begun.setdefault(one, first) == first  # once more, if it is carried out again

    def _encode(
        self,
        rows: Rows,
        planned_at_ms: int,
        key_only: bool = False,
        locations: pa.Array | None = None,
    ) -> Encoded:
        images, table = ImagePresence.of(rows), rows.table
        deletes = images.op == Op.DELETE
        keep = set(table.written_key) if key_only else None
        old_fields, new_fields = (
            _sorted_fields(table, image, keep) if wanted else []
            for image, wanted in (
                (rows.before, images.has_before.any()),
                (rows.after, not deletes.all()),
            )
        )
        if (deletes.any() and not old_fields) or (not deletes.all() and not new_fields):
            raise EncodeError(f"{table.id}: a change has no column to write")
        which = np.array([0, 1, 3], np.int8)[images.op]
        which += ((images.op == Op.UPDATE) & images.has_before).astype(np.int8)
        if self._avro:
            middle_of = avro_form.row_middle(planned_at_ms, table.version, key_only, locations)
            made = write_rows(_avro_forms(rows, middle_of, old_fields, new_fields), which)
            return Encoded(self._large.compress(made))
        layout = Layout()
        before, after = (
            [(f, _slot(layout, f)) for f in image] for image in (old_fields, new_fields)
        )
        stamp = Cell(layout.slot(rows.batch.column("commit_ts"), kernels.RAW))
        head = self._head(rows)
        middle: list[Part] = [b',"buildTs":%d' % planned_at_ms]
        if table.version:
            middle.append(b',"schemaVersion":%d' % table.version)
        if locations is not None:
            place = layout.slot(locations, kernels.JSON, _QUOTE)
            middle += [b',"claimCheckLocation":', Cell(place)]
        if key_only:
            middle.append(b',"handleKeyOnly":true')
        data: list[Part] = [b',"data":', *object_of(after)]
        old: list[Part] = [b',"old":', *object_of(before)]
        forms: tuple[tuple[bytes, list[Part]], ...] = (
            (b"INSERT", data),
            (b"UPDATE", data),
            (b"UPDATE", [*data, *old]),
            (b"DELETE", old),
        )
        for kind, images_of in forms:
            lead = head + b',"type":"%s","commitTs":' % kind
            layout.program([lead, stamp, *middle, *images_of, b"}"])
        return Encoded(self._large.compress(layout.run(which)))

    def _head(self, rows: Rows) -> bytes:
        name = rows.table.written_as
        number = rows.table.table_id if rows.physical_id is None else rows.physical_id
        head = b'{"version":1,"database":%s,"table":%s' % tuple(map(json_text, name))
        return head + (b',"tableID":%d' % number if number else b"")

    # --- what is no row ---------------------------------------------------------------------------

    def encode_schema_change(self, change: SchemaChange, planned_at_ms: int) -> Encoded | None:
        """Encode a DDL with the table's definition after it, and a renamed table's old one."""
        schema = change.schema or change.last_schema
        more: dict[str, TableSchema] = {}
        if schema is not None:
            more["tableSchema"] = schema
            if change.previous is not None:
                old = change.previous_target or change.previous
                more["preTableSchema"] = replace(schema, target=old)
        kind = ddl_type(change.kind)
        return _single(self._note(kind, change.commit_ts, planned_at_ms, change.query, **more))

    def encode_watermark(self, mark: Watermark, planned_at_ms: int) -> Encoded | None:
        """Encode a watermark as one message."""
        return _single(self._note("WATERMARK", mark.commit_ts, planned_at_ms))

    def _note(
        self, kind: str, commit_ts: int, planned_at_ms: int, query: str = "", **more: TableSchema
    ) -> bytes:
        make = avro_form.note if self._avro else _json_note
        made = make(kind, commit_ts, planned_at_ms, query, **more)
        (compressed,) = self._large.compress(pa.array([made], pa.large_binary())).to_pylist()
        return bytes(compressed)

    # --- reading ----------------------------------------------------------------------------------

    def decode(self, data: bytes, table: TableSchema) -> Iterator[Change]:
        """Refuse: this is a format of messages, which `decode_message` reads."""
        raise DecodeError(f"{NAME} is a format of messages; there are no files of it")

    def decode_message(self, key: bytes | None, value: bytes | None) -> Iterator[Change]:
        """Read one message; a row is read by the definition of its table, which came before."""
        return self._reader.read(self._large.decompress(value or b""))


class _Sent:
    """When a table's definition was sent last, how many rows followed it, and the last's place.

    The place is the plan's `planned_at_ms` and the row's `seq`.
    """

    __slots__ = ("at_ms", "attempt", "last", "rows", "table")

    def __init__(
        self, table: TableSchema, attempt: str, at_ms: int, rows: int, last: tuple[int, int]
    ) -> None:
        self.table, self.attempt = table, attempt
        self.at_ms, self.rows, self.last = at_ms, rows, last


def _single(value: bytes) -> Encoded:
    return Encoded(pa.array([value], pa.large_binary()))


def _json_note(
    kind: str, commit_ts: int, planned_at_ms: int, query: str, **tables: TableSchema
) -> bytes:
    """Return the message of a watermark, a table's definition, or a DDL."""
    sql = b',"sql":%s' % json_text(query) if query else b""
    text = b'{"version":1,"type":"%s"%s,"commitTs":%d,"buildTs":%d' % (
        kind.encode(),
        sql,
        commit_ts,
        planned_at_ms,
    )
    for key, table in tables.items():
        text += b',"%s":%s' % (key.encode(), _escaped(of_table(table)))
    return text + b"}"


def _avro_forms(
    rows: Rows, middle: list[AvroPart], old: list[Field], new: list[Field]
) -> list[list[AvroPart]]:
    """Return how an insert, an update without and with its old row, and a delete are written."""
    stamp = AvroCell(kernels_avro.LONG, rows.batch.column("commit_ts"))
    name = rows.table.written_as
    number = rows.table.table_id if rows.physical_id is None else rows.physical_id
    head = avro_form.row_head(*name, number)
    data, before = avro_form.image_parts(new or None), avro_form.image_parts(old or None)
    none = avro_form.image_parts(None)
    forms = ((0, data, none), (1, data, none), (1, data, before), (2, none, before))
    return [[head + long_bytes(kind), stamp, *middle, *a, *b] for kind, a, b in forms]


def _escaped(value: Any) -> bytes:
    """Return JSON escaped as Go does it: what HTML would read stands as code points."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    for char in "<>&\u2028\u2029":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return text.encode("utf-8", "replace")


def _sorted_fields(table: TableSchema, image: pa.StructArray, keep: set[str] | None) -> list[Field]:
    """Return the columns of an image that are written, in the order of their names."""
    wanted = [f for f in fields(table, image) if keep is None or f.column.name in keep]
    return sorted(wanted, key=lambda f: f.column.name.encode())


def _slot(layout: Layout, field: Field) -> int:
    kind, values = field.column.type.kind, field.values
    if kind in _NUMBERS:
        return layout.slot(values, kernels.RAW, _QUOTE)
    if kind in (Kind.FLOAT, Kind.DOUBLE):
        words = float_text(values, kernels_float.PLAIN)
        return layout.slot(words, kernels.RAW, _QUOTE, valid=values)
    if kind is Kind.BINARY:
        packed = kernels_render.base64_text(values)
        return layout.slot(packed, kernels.RAW, _QUOTE, valid=values)
    if kind is Kind.TIMESTAMP:
        return layout.slot(_zoned(values), kernels.RAW, valid=values)
    return layout.slot(values, kernels.JSON, _QUOTE)


def _zoned(values: pa.Array) -> pa.Array:
    parts = [f'{{"location":"{_ZONE}","value":"', values, '"}']
    whole = [pa.scalar(p, pa.large_utf8()) if isinstance(p, str) else p for p in parts]
    return pc.binary_join_element_wise(*whole, pa.scalar("", pa.large_utf8()))


def warm() -> None:
    """Compile every kernel that this codec uses."""
    for module in (kernels, kernels_avro, kernels_float, kernels_render):
        module.warm()
