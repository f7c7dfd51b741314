"""Each codec with the settings under which it carries most, and every column type's edges."""

from __future__ import annotations

import atexit
import json
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final

import pyarrow as pa

from codec_kit import codec_for
from rowferry.change.chunk import Change, Op, Rows, make_rows
from rowferry.change.plan import Topic
from rowferry.change.sqltype import Kind, SqlType
from rowferry.change.table import Column, Index, TableId, TableSchema
from rowferry.flow.encode.contract import Codec, Encoded
from rowferry.registry import CODECS
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.uri import Uri
from rowferry.testing.registry_stub import registry_stub

FILES, QUEUE = "file:///data", "kafka://127.0.0.1:9092/topic"
TOPIC = Topic("topic", 1, 1 << 30)
PLANNED_AT_MS = 1_700_000_000_123
_LONG_TEXT = "ß€\U0001f600" * 2000
_ALL_BYTES = bytes(range(256)) * 8


@dataclass(frozen=True, slots=True)
class TypeCase:
    """A column type with an ordinary value and its extremes."""

    type: SqlType
    value: Any
    least: Any
    most: Any


def _whole(name: str, bits: int) -> list[TypeCase]:
    return [
        TypeCase(SqlType(name), 7, -(1 << bits - 1), (1 << bits - 1) - 1),
        TypeCase(SqlType(name, unsigned=True), 7, 0, (1 << bits) - 1),
    ]


def _text(name: str, length: int | None = None) -> TypeCase:
    return TypeCase(SqlType(name, length=length), 'it\'s "so", \\N', "", _LONG_TEXT)


def _binary(name: str, length: int | None = None) -> TypeCase:
    return TypeCase(SqlType(name, length=length), b"\x00\xff'\"", b"", _ALL_BYTES)


def _moments(name: str, last: str) -> list[TypeCase]:
    return [
        TypeCase(SqlType(name), "2023-05-09 12:34:56", "0000-00-00 00:00:00", last),
        TypeCase(
            SqlType(name, scale=6),
            "2023-05-09 12:34:56.000001",
            "0000-00-00 00:00:00.000000",
            f"{last}.999999",
        ),
        TypeCase(
            SqlType(name, scale=3),
            "2023-05-09 12:34:56.120",
            "0000-00-00 00:00:00.000",
            f"{last}.999",
        ),
    ]


_SINGLE_MOST = 3.4028234663852886e38
_DOUBLE_MOST = 1.7976931348623157e308
_ENUM = SqlType("enum", elements=("a", "b,c", "d'e"))
_SET = SqlType("set", elements=tuple(f"e{i}" for i in range(64)))

TYPE_CASES: Final[list[TypeCase]] = [
    *_whole("tinyint", 8),
    *_whole("smallint", 16),
    *_whole("mediumint", 24),
    *_whole("int", 32),
    *_whole("bigint", 64),
    TypeCase(SqlType("float"), 0.5, -_SINGLE_MOST, _SINGLE_MOST),
    TypeCase(SqlType("double"), 0.1, -_DOUBLE_MOST, _DOUBLE_MOST),
    TypeCase(SqlType("double", length=10, scale=2), 12.25, 5e-324, 1e300),
    TypeCase(SqlType("decimal", length=10, scale=2), "1.50", "-99999999.99", "99999999.99"),
    TypeCase(
        SqlType("decimal", length=65, scale=30),
        f"0.{'1' * 30}",
        f"-{'9' * 35}.{'9' * 30}",
        f"{'9' * 35}.{'9' * 30}",
    ),
    TypeCase(SqlType("bit", length=1), 1, 0, 1),
    TypeCase(SqlType("bit", length=64), 5, 0, (1 << 64) - 1),
    _text("char", 20),
    _text("varchar", 20),
    _text("tinytext"),
    _text("text"),
    _text("mediumtext"),
    _text("longtext"),
    _binary("binary", 20),
    _binary("varbinary", 20),
    _binary("tinyblob"),
    _binary("blob"),
    _binary("mediumblob"),
    _binary("longblob"),
    _binary("geometry"),
    TypeCase(SqlType("date"), "2023-05-09", "0000-00-00", "9999-12-31"),
    *_moments("datetime", "9999-12-31 23:59:59"),
    *_moments("timestamp", "2038-01-19 03:14:07"),
    TypeCase(SqlType("time"), "12:34:56", "-838:59:59", "838:59:59"),
    TypeCase(SqlType("time", scale=6), "00:00:00.000001", "-838:59:59.000000", "838:59:59.000000"),
    TypeCase(SqlType("year"), 2023, 0, 2155),
    TypeCase(_ENUM, 2, 0, 3),
    TypeCase(_SET, 5, 0, (1 << 64) - 1),
    TypeCase(SqlType("json"), '{"a": [1, "ß\\n"]}', "null", f'"{"x" * 9000}"'),
    TypeCase(SqlType("vector"), "[1,2.5]", "[]", "[" + ",".join(["-3.4e+38"] * 500) + "]"),
    TypeCase(SqlType("inet4"), "192.0.2.1", "0.0.0.0", "255.255.255.255"),
    TypeCase(SqlType("inet6"), "2001:db8::1", "::", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff"),
    TypeCase(
        SqlType("uuid"),
        "123e4567-e89b-12d3-a456-426655440000",
        "00000000-0000-0000-0000-000000000000",
        "ffffffff-ffff-ffff-ffff-ffffffffffff",
    ),
]

Image = dict[str, Any] | None


def table_of(*types: SqlType) -> TableSchema:
    """A table with a key `id` and a nullable column of each type."""
    columns = [Column(1, "id", SqlType("bigint"), nullable=False)]
    columns += [Column(2 + i, f"c{i}", t) for i, t in enumerate(types)]
    primary = Index(1, "PRIMARY", ("id",), unique=True, primary=True)
    return TableSchema(TableId("shop", "orders"), 1, 100, tuple(columns), (primary,))


def rows_of(table: TableSchema, changes: list[tuple[Op, Image, Image]], image: Any = None) -> Rows:
    """Changes as (op, before, after); each has a commit-ts of its own."""
    kind = image or table.image
    return make_rows(
        table,
        pa.array([int(op) for op, _, _ in changes], pa.int8()),
        pa.array([(1_700_000_000_000 << 18) + i for i in range(len(changes))], pa.uint64()),
        pa.array(range(len(changes)), pa.int64()),
        pa.array([before for _, before, _ in changes], kind),
        pa.array([after for _, _, after in changes], kind),
    )


@dataclass(frozen=True)
class CodecHarness:
    """A codec by its registered name.

    Attributes:
        all_on: the `[sink]` section under which it carries all that it can.
        needs: what every `[sink]` section must hold for it.
        in_files: it is a format of files; else it is read message by message.
        carries_commit_ts, carries_update_before: what comes back under these settings.
        deletes_have_all: a delete has the whole old row, not only the handle key's columns.
        reads: what a reader gets of a value, where the format has no form for it.
    """

    name: str
    all_on: dict[str, Any] = field(default_factory=dict)
    carries_commit_ts: bool = True
    carries_update_before: bool = True
    deletes_have_all: bool = True
    in_files: bool = True
    needs: Callable[[], dict[str, Any]] = dict
    reads: Callable[[SqlType, Any], Any] = lambda kind, value: value

    def seen(self, table: TableSchema, image: Image) -> Image:
        """A row as a reader gets it."""
        if image is None:
            return None
        return {n: self.reads(table.column(n).type, v) for n, v in image.items()}

    def build(self, section: dict[str, Any] | None = None, sink: str = "") -> Codec:
        """The codec as a task builds it: from the spec's JSON form; `None` is `all_on`."""
        config = {"sink": {**self.needs(), **(self.all_on if section is None else section)}}
        source = Uri.parse("range://127.0.0.1:1", "source")
        target = Uri.parse(sink or (FILES if self.in_files else QUEUE), "sink")
        spec = ChangefeedSpec("feed", source, target, config)
        return codec_for(CODECS.load(self.name), ChangefeedSpec.from_json(spec.to_json()))

    def read_back(self, codec: Codec, table: TableSchema, *chunks: Rows) -> list[Rows]:
        """What a reader of these chunks gets: of one file, or of all their messages."""
        if self.in_files:
            data = codec.file_head(table)
            for rows in chunks:
                data += bytes(codec.encode_rows(rows, PLANNED_AT_MS).value_bytes())
            return [c for c in codec.decode(data, table) if isinstance(c, Rows)]
        sent = [codec.encode_rows(rows, PLANNED_AT_MS, TOPIC) for rows in chunks]
        found = [c for one in sent for c in read_messages(codec, codec.batch(one, TOPIC))]
        return [c for c in found if isinstance(c, Rows)]


def read_messages(codec: Codec, messages: Encoded) -> list[Change]:
    """What a reader of a queue finds in messages as they are sent."""
    return [change for pair in pairs(messages) for change in codec.decode_message(*pair)]


def pairs(encoded: Encoded) -> list[tuple[bytes | None, bytes | None]]:
    """Keys and values of messages."""
    keys = encoded.keys.to_pylist() if encoded.keys is not None else [None] * len(encoded.values)
    return list(zip(keys, encoded.values.to_pylist(), strict=True))


@cache
def _registry() -> str:
    """The address of a schema registry for all tests of this process."""
    stack = ExitStack()
    atexit.register(stack.close)
    return stack.enter_context(registry_stub()).url


def _as_debezium(kind: SqlType, value: Any) -> Any:
    """Debezium has no zero dates, counts fractions by three digits, and packs JSON."""
    if value is None:
        return None
    if kind.kind in (Kind.DATE, Kind.DATETIME) and value.startswith("0000-00-00"):
        return None
    if kind.kind is Kind.DATETIME:
        return value if kind.scale else f"{value}.000"
    if kind.kind is Kind.TIMESTAMP:
        return value.replace("0000-00-00", "1970-01-01")
    if kind.kind is Kind.TIME:
        return value if kind.scale else f"{value}.000000"
    if kind.kind is Kind.JSON:
        return json.dumps(json.loads(value), separators=(",", ":"), ensure_ascii=False)
    if kind.name == "geometry":
        return value or bytes(4)
    return value


def _as_documents(kind: SqlType, value: Any) -> Any:
    """Documents have no zero dates, and hold JSON as values."""
    if value is None:
        return None
    if kind.kind in (Kind.DATE, Kind.DATETIME, Kind.TIMESTAMP) and value[5:7] == "00":
        return None
    if kind.kind in (Kind.JSON, Kind.VECTOR):
        found = json.loads(value)
        return None if found is None else json.dumps(found, ensure_ascii=False)
    return value


CODEC_HARNESSES: dict[str, CodecHarness] = {
    "avro": CodecHarness(
        "avro",
        {
            "enable-tidb-extension": True,
            "kafka-config": {"codec-config": {"avro-enable-watermark": True}},
        },
        carries_update_before=False,
        deletes_have_all=False,
        in_files=False,
        needs=lambda: {"schema-registry": _registry()},
    ),
    "canal": CodecHarness("canal", carries_commit_ts=False, in_files=False),
    "canal-json": CodecHarness("canal-json", {"enable-tidb-extension": True}),
    "copy-rows": CodecHarness(
        "copy-rows", carries_update_before=False, deletes_have_all=False, in_files=False
    ),
    "csv": CodecHarness("csv", {"csv": {"include-commit-ts": True, "output-old-value": True}}),
    "debezium": CodecHarness(
        "debezium", {"enable-tidb-extension": True}, in_files=False, reads=_as_debezium
    ),
    "debezium-avro": CodecHarness(
        "debezium-avro",
        {
            "enable-tidb-extension": True,
            "kafka-config": {"codec-config": {"avro-enable-watermark": True}},
        },
        in_files=False,
        needs=lambda: {"schema-registry": _registry()},
        reads=_as_debezium,
    ),
    "json": CodecHarness("json", {"json": {"json-columns": "text"}}),
    "open-protocol": CodecHarness("open-protocol", in_files=False),
    "search-documents": CodecHarness(
        "search-documents",
        carries_update_before=False,
        deletes_have_all=False,
        in_files=False,
        reads=_as_documents,
    ),
    "simple": CodecHarness("simple", in_files=False),
    "simple+avro": CodecHarness(
        "simple",
        in_files=False,
        needs=lambda: {"kafka-config": {"codec-config": {"encoding-format": "avro"}}},
    ),
    "sql-rows": CodecHarness(
        "sql-rows", carries_update_before=False, deletes_have_all=False, in_files=False
    ),
}
