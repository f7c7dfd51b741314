"""Each codec with the settings under which it carries most, and every column type's edges."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import pyarrow as pa

from rowferry.change.chunk import Op, Rows, make_rows
from rowferry.change.sqltype import SqlType
from rowferry.change.table import Column, Index, TableId, TableSchema
from rowferry.flow.encode.contract import Codec
from rowferry.registry import CODECS
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.uri import Uri

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
        carries_commit_ts, carries_update_before: what comes back under these settings.
    """

    name: str
    all_on: dict[str, Any] = field(default_factory=dict)
    carries_commit_ts: bool = True
    carries_update_before: bool = True

    def build(self, section: dict[str, Any] | None = None, sink: str = "file:///data") -> Codec:
        """The codec as a task builds it: from the spec's JSON form; `None` is `all_on`."""
        config = {"sink": self.all_on if section is None else section}
        source = Uri.parse("range://127.0.0.1:1", "source")
        spec = ChangefeedSpec("feed", source, Uri.parse(sink, "sink"), config)
        return CODECS.load(self.name)(ChangefeedSpec.from_json(spec.to_json()))


CODEC_HARNESSES: dict[str, CodecHarness] = {
    "canal-json": CodecHarness("canal-json", {"enable-tidb-extension": True}),
    "csv": CodecHarness("csv", {"csv": {"include-commit-ts": True, "output-old-value": True}}),
}
