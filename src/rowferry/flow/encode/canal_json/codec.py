"""The canal-json codec: one JSON object for each row change, as TiCDC's readers expect it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import ClassVar, Final

import numpy as np
import pyarrow as pa

from rowferry.change.chunk import Change, DdlKind, Op, Rows, SchemaChange, Watermark
from rowferry.change.plan import Topic
from rowferry.change.position import physical_ms
from rowferry.change.sqltype import Kind, SqlType
from rowferry.change.table import Column, TableSchema
from rowferry.columnar import float_text as kernels_float
from rowferry.columnar.fields import Field, ImagePresence, fields, float_text
from rowferry.errors import BadOption, EncodeError
from rowferry.flow.encode.canal_json import tokenizer as kernels_json
from rowferry.flow.encode.canal_json.column_type import full_type
from rowferry.flow.encode.canal_json.message import read_message
from rowferry.flow.encode.canal_json.reader import read_messages
from rowferry.flow.encode.contract import (
    CodecTraits,
    CommitTime,
    Encoded,
    LargeRows,
    MessageCodec,
    TextBody,
)
from rowferry.flow.encode.kernels import row_writer as kernels
from rowferry.flow.encode.kernels import spans as kernels_spans
from rowferry.flow.encode.large_message import LargeMessageOptions, LargeMessages
from rowferry.flow.encode.layout import Cell, ChangedCell, Layout, Part, Pick, ProgramMemory
from rowferry.flow.encode.options import (
    CODEC_SECTION,
    EXTENSION,
    CodecOptions,
    delete_only_handle_key,
    tidb_extension,
)
from rowferry.flow.encode.same_layout import repeated
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.option import OptionTable, Section, flag, option
from rowferry.spec.sink_traits import SinkTraits

NAME: Final = "canal-json"

_PLAIN = re.compile(r'[\x00-\x1f"\\<>&\u2028\u2029]')
_SHORT = {"\t": "\\t", "\n": "\\n", "\r": "\\r", '"': '\\"', "\\": "\\\\"}
_QUOTE: Final = ord('"')
_OVERHEAD: Final = 36  # what a queue adds to a message, at the most

# java.sql.Types by type name; unsigned integers beyond the limit take the next larger type.
_SQL_TYPE: Final = {
    "bit": -7,
    "tinyint": -6,
    "smallint": 5,
    "mediumint": 4,
    "int": 4,
    "bigint": -5,
    "float": 7,
    "double": 8,
    "decimal": 3,
    "char": 1,
    "varchar": 12,
    "date": 91,
    "time": 92,
    "datetime": 93,
    "timestamp": 93,
    "year": 12,
    "enum": 4,
    "set": -7,
    "json": 12,
    "vector": 12,
}
_CLOB, _BLOB = 2005, 2004
_BEYOND: Final = {
    "tinyint": (127, 5),
    "smallint": (32767, 4),
    "int": (2147483647, -5),
    "bigint": (9223372036854775807, 3),
}
# GEOMETRY is BLOB, INET6 and UUID are TEXT, as in every codec.
_WRITTEN_AS: Final = {"geometry": "blob", "inet4": "text", "inet6": "text", "uuid": "text"}
_NUMBERS: Final = frozenset({Kind.INTEGER, Kind.YEAR, Kind.BIT, Kind.ENUM, Kind.SET})

_DDL_TYPE: Final = {
    DdlKind.CREATE_TABLE: "CREATE",
    DdlKind.RENAME_TABLE: "RENAME",
    DdlKind.DROP_TABLE: "ERASE",
    DdlKind.TRUNCATE_TABLE: "TRUNCATE",
    **dict.fromkeys(
        (DdlKind.ADD_INDEX, DdlKind.ADD_FOREIGN_KEY, DdlKind.ADD_PRIMARY_KEY), "CINDEX"
    ),
    **dict.fromkeys(
        (DdlKind.DROP_INDEX, DdlKind.DROP_FOREIGN_KEY, DdlKind.DROP_PRIMARY_KEY), "DINDEX"
    ),
    **dict.fromkeys(
        (
            DdlKind.ADD_COLUMN,
            DdlKind.DROP_COLUMN,
            DdlKind.MODIFY_COLUMN,
            DdlKind.REBASE_AUTO_ID,
            DdlKind.SET_DEFAULT,
            DdlKind.TABLE_COMMENT,
            DdlKind.RENAME_INDEX,
            DdlKind.ADD_PARTITION,
            DdlKind.DROP_PARTITION,
            DdlKind.TRUNCATE_PARTITION,
            DdlKind.REORGANIZE_PARTITION,
            DdlKind.TABLE_CHARSET,
            DdlKind.INDEX_VISIBILITY,
            DdlKind.MULTI_SCHEMA_CHANGE,
            DdlKind.ALTER_PARTITIONING,
            DdlKind.REMOVE_PARTITIONING,
        ),
        "ALTER",
    ),
}


@lru_cache(maxsize=8192)
def json_text(text: str) -> bytes:
    """Return a JSON string, escaped as the compiled writer escapes values."""

    def escape(match: re.Match[str]) -> str:
        char = match.group()
        return _SHORT.get(char) or f"\\u{ord(char):04x}"

    return b'"' + _PLAIN.sub(escape, text).encode("utf-8", "replace") + b'"'


def ddl_type(kind: DdlKind) -> str:
    """Return the message type that a schema change has."""
    return _DDL_TYPE.get(kind, "QUERY")


def sql_type(kind: SqlType) -> int:
    """Return the java.sql.Types number of a column type."""
    code = _SQL_TYPE.get(kind.name)
    if code is None:
        code = _BLOB if kind.kind is Kind.BINARY else _CLOB
    return code


def wider_type(kind: SqlType) -> tuple[int, int] | None:
    """Return above which value an unsigned type has another number, and which."""
    return _BEYOND.get(kind.name) if kind.unsigned else None


def mysql_type(kind: SqlType, full: bool = False) -> str:
    """Return the type's name as canal-json gives it; `full`: with widths and elements."""
    name = _WRITTEN_AS.get(kind.name)
    if name is not None:
        return name
    if full:
        return full_type(kind)
    text = kind.name
    if kind.unsigned and kind.kind not in (Kind.BIT, Kind.YEAR):
        text += " unsigned"
    return text + (" zerofill" if kind.zerofill and kind.kind is not Kind.YEAR else "")


class CanalOptions(Section, section=CODEC_SECTION):
    """What messages hold, in the section of TiCDC's file for that."""

    output_row_key = option(
        flag(), False, "Not supported: the source's row key is not written.", uri=True
    )
    enable_tidb_extension = CodecOptions.enable_tidb_extension


class CanalJson(MessageCodec):
    """Row changes, schema changes and watermarks as canal-json."""

    TRAITS: ClassVar = CodecTraits(
        file_suffix=".json",
        schema_change_goes_to="partition-0",
        carries_before_image=True,
        can_omit_columns=True,
        body=TextBody("application/x-ndjson", b"", b"\n", b"\n"),
        large_rows=LargeRows(needs_extension=True),
    )
    TABLES: ClassVar[tuple[OptionTable, ...]] = (
        CodecOptions.TABLE,
        CanalOptions.TABLE,
        LargeMessageOptions.TABLE,
    )

    def __init__(self, spec: ChangefeedSpec, sink: SinkTraits) -> None:
        options = spec.options(CodecOptions)
        if spec.options(CanalOptions).output_row_key:
            raise BadOption(
                f"{CanalOptions.path(CanalOptions.output_row_key)} is not supported; remove it"
            )
        self._extension = tidb_extension(spec)
        self._full_types = options.content_compatible
        self._only_updated = options.only_output_updated_columns or self._full_types
        self._delete_handle_only = delete_only_handle_key(spec)
        self._terminator = options.terminator.encode() if sink.takes_files else b""
        self._large = LargeMessages(spec, sink, NAME, self.TRAITS.large_rows, self._extension)
        self._memory = ProgramMemory()

    @property
    def commit_time(self) -> CommitTime:
        """Exact with the extension; else the millisecond."""
        if self._extension:
            return CommitTime("exact")
        why = f"{NAME} without {EXTENSION} tells the millisecond of a commit only"
        return CommitTime("millisecond", why)

    @property
    def unseen_moves(self) -> str:
        """Nothing is unseen: an update has its old row."""
        return ""

    def encode_rows(self, rows: Rows, planned_at_ms: int, topic: Topic | None = None) -> Encoded:
        """Encode a chunk; `ts` is `planned_at_ms`. An update without its old row has `old` null."""

        def shorten(part: Rows, locations: pa.Array | None) -> Encoded:
            return self._encode(part, planned_at_ms, key_only=True, locations=locations)

        whole = self._encode(rows, planned_at_ms)
        if topic is None:
            return whole
        return self._large.fit(rows, whole, topic, _OVERHEAD, shorten)

    def encode_same_layout(self, whole: Rows, parts: Sequence[Rows], planned_at_ms: int) -> Encoded:
        """Encode chunks of tables that differ in their names only."""
        names = repeated([_names(part.table) for part in parts], parts)
        return self._encode(whole, planned_at_ms, names=names)

    def _encode(
        self,
        rows: Rows,
        planned_at_ms: int,
        key_only: bool = False,
        locations: pa.Array | None = None,
        names: pa.LargeBinaryArray | None = None,
    ) -> Encoded:
        """Encode rows, whole or with the handle key's columns only.

        `names` has a table's name for each row, where they are not all of one table.
        """
        images = ImagePresence.of(rows)
        which = np.array([0, 1, 3], np.int8)[images.op]
        which += ((images.op == Op.UPDATE) & images.has_before).astype(np.int8)
        needed = tuple(np.bincount(which, minlength=4) > 0)
        facts = (names is None, bool(images.has_before.any()), *needed)
        if key_only or not ImagePresence.is_whole(rows):
            facts = ()
        known = self._memory.recall(rows.table, facts, planned_at_ms) if facts else None
        layout = Layout(known=known)
        has_after = images.op != Op.DELETE
        before = _slots(layout, fields(rows.table, rows.before)) if images.has_before.any() else []
        after = _slots(layout, fields(rows.table, rows.after)) if has_after.any() else []
        keep = set(rows.table.written_key)
        if key_only:
            before, after = _only(before, keep), _only(after, keep)
        doomed = _only(before, keep) if self._delete_handle_only else before
        stamps = self._stamps(layout, rows, key_only, locations)
        name: Part = _names(rows.table)
        if names is not None:
            name = Cell(layout.slot(names, kernels.RAW))

        def program(place: int, kind: str, shown: Slots, old: Sequence[Part]) -> None:
            # What no row uses is not made: of small chunks that is most of the work.
            if not needed[place]:
                layout.program([])
                return
            layout.program(self._message(rows.table, name, kind, planned_at_ms, stamps, shown, old))

        if known is None:
            old = _changed(before, after) if self._only_updated else object_of(before)
            program(0, "INSERT", after, (b"null",))
            program(1, "UPDATE", after, (b"null",))
            program(2, "UPDATE", after, (b"[", *old, b"]"))
            program(3, "DELETE", doomed, (b"null",))
        if (has_after.any() and not after) or (not has_after.all() and not doomed):
            raise EncodeError(f"{rows.table.id}: a change has no column to write")
        if facts and known is None:
            self._memory.keep(rows.table, facts, layout.programs, planned_at_ms)
        return Encoded(self._large.compress(layout.run(which)))

    def _stamps(
        self, layout: Layout, rows: Rows, key_only: bool, locations: pa.Array | None
    ) -> tuple[Part, list[Part]]:
        """Return a message's millisecond, and its extension."""
        times = rows.commit_ts
        millisecond = Cell(layout.slot(pa.array(times >> np.uint64(18)), kernels.RAW))
        if not self._extension:
            return millisecond, []
        commit_ts = Cell(layout.slot(pa.array(times), kernels.RAW))
        parts: list[Part] = [b',"_tidb":{"commitTs":', commit_ts]
        if locations is not None:
            place = Cell(layout.slot(locations, kernels.JSON, _QUOTE))
            parts += [b',"claimCheckLocation":', place]
        elif key_only:
            parts.append(b',"onlyHandleKey":true')
        return millisecond, [*parts, b"}"]

    def encode_schema_change(self, change: SchemaChange, planned_at_ms: int) -> Encoded | None:
        """Encode a DDL as one message."""
        kind = ddl_type(change.kind)
        tail = b'{"commitTs":%d}' % change.commit_ts
        head = (*change.written_as, True, kind, change.query)
        return self._note(*head, change.commit_ts, planned_at_ms, tail)

    def encode_watermark(self, mark: Watermark, planned_at_ms: int) -> Encoded | None:
        """Encode a watermark; None without the extension, which is what carries it."""
        if not self._extension:
            return None
        tail = b'{"watermarkTs":%d}' % mark.commit_ts
        return self._note("", "", False, "TIDB_WATERMARK", "", mark.commit_ts, planned_at_ms, tail)

    def plain_value(self, column: Column, text: str) -> bytes:
        """Return the column with its value: all values of rows stand in quotes."""
        return json_text(column.name) + b':"%s"' % text.encode()

    def decode(self, data: bytes, table: TableSchema) -> Iterator[Change]:
        """Read messages back: rows as chunks, in the file's order, `seq` being the row number.

        Without the extension a row's commit-ts is its millisecond shifted up. Where only updated
        columns are written, the others of an old image are taken from the new one. Unknown
        columns are passed over. A schema change comes back with the kind that its message type
        tells.
        """
        return read_messages(data, table, self._terminator, fill_old=self._only_updated)

    def decode_message(self, key: bytes | None, value: bytes | None) -> Iterator[Change]:
        """Read one message back; its types tell no more than `mysqlType` does."""
        large = self._large

        def fetch(location: str) -> bytes:
            return large.decompress(large.fetch(location)[1])

        return read_message(large.decompress(value or b""), self._only_updated, fetch)

    def _message(
        self,
        table: TableSchema,
        name: Part,
        kind: str,
        planned_at_ms: int,
        stamps: tuple[Part, list[Part]],
        shown: Slots,
        old: Sequence[Part],
    ) -> list[Part]:
        keys = {name.lower() for name in table.primary_key}
        names = b",".join(json_text(c.name) for c in table.columns if c.name.lower() in keys)
        millisecond, extension = stamps
        parts: list[Part] = [
            b'{"id":0,',
            name,
            b',"pkNames":[%s],"isDdl":false,"type":"%s","es":' % (names, kind.encode()),
            millisecond,
            b',"ts":%d,"sql":"","sqlType":{' % planned_at_ms,
        ]
        for i, (field, slot) in enumerate(shown):
            parts.append((b"," if i else b"") + json_text(field.column.name) + b":")
            parts.append(_sql_type_part(field.column.type, slot))
        types = b",".join(
            json_text(f.column.name) + b":" + json_text(mysql_type(f.column.type, self._full_types))
            for f, _ in shown
        )
        parts += [b'},"mysqlType":{', types, b'},"old":', *old]
        parts += [b',"data":[', *object_of(shown), b"]"]
        return [*parts, *extension, b"}", self._terminator]

    def _note(
        self,
        database: str,
        table: str,
        is_ddl: bool,
        kind: str,
        query: str,
        commit_ts: int,
        planned_at_ms: int,
        extension: bytes,
    ) -> Encoded:
        """Return the one message of a DDL or watermark."""
        text = b'{"id":0,"database":%s,"table":%s,"pkNames":null,"isDdl":%s,"type":"%s"' % (
            json_text(database),
            json_text(table),
            b"true" if is_ddl else b"false",
            kind.encode(),
        )
        text += b',"es":%d,"ts":%d,"sql":%s' % (
            physical_ms(commit_ts),
            planned_at_ms,
            json_text(query),
        )
        text += b',"sqlType":null,"mysqlType":null,"data":null,"old":null'
        text += b',"_tidb":' + extension if self._extension else b""
        return Encoded(self._large.compress(pa.array([text + b"}"], pa.large_binary())))


def _names(table: TableSchema) -> bytes:
    """Return the fields that name a table."""
    return b'"database":%s,"table":%s' % tuple(map(json_text, table.written_as))


Slots = list[tuple[Field, int]]


def _slots(layout: Layout, image: list[Field]) -> Slots:
    return [(field, _slot(layout, field)) for field in image]


def _only(shown: Slots, keep: set[str]) -> Slots:
    return [(field, slot) for field, slot in shown if field.column.name in keep]


def _slot(layout: Layout, field: Field) -> int:
    """Add a column as canal-json writes it: every value is a string."""
    kind, values = field.column.type.kind, field.values
    if kind in _NUMBERS:
        return layout.slot(values, kernels.RAW, _QUOTE)
    if kind in (Kind.FLOAT, Kind.DOUBLE):
        text = float_text(values, kernels_float.PLAIN)
        return layout.slot(text, kernels.RAW, _QUOTE, valid=values)
    mode = kernels.LATIN1 if kind is Kind.BINARY else kernels.JSON
    return layout.slot(values, mode, _QUOTE)


def object_of(shown: Slots) -> list[Part]:
    """Return an object of columns, each under its name."""
    parts: list[Part] = [b"{"]
    for i, (field, slot) in enumerate(shown):
        parts += [(b"," if i else b"") + json_text(field.column.name) + b":", Cell(slot)]
    return [*parts, b"}"]


def _changed(before: Slots, after: Slots) -> list[Part]:
    now = {field.column.name: slot for field, slot in after}
    parts: list[Part] = [b"{"]
    for field, slot in before:
        name = field.column.name
        if name in now:
            parts.append(ChangedCell(slot, now[name], json_text(name) + b":"))
    return [*parts, b"}"]


def _sql_type_part(kind: SqlType, slot: int) -> Part:
    base = b"%d" % sql_type(kind)
    beyond = wider_type(kind)
    if beyond is None:
        return base
    limit, larger = beyond
    return Pick(slot, limit, base, b"%d" % larger)


def warm() -> None:
    """Compile every kernel that this codec uses."""
    kernels.warm()
    kernels_float.warm()
    kernels_spans.warm()
    kernels_json.warm()
