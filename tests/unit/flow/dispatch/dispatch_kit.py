"""Rules, tables and chunks for the tests of this folder, and the row hash in plain Python."""

from __future__ import annotations

import zlib
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

from rowferry.change.chunk import Op, Rows, make_rows
from rowferry.change.plan import Output, Segment, TableSlice, Topic
from rowferry.change.sqltype import Kind, SqlType
from rowferry.change.table import Column, TableSchema
from rowferry.flow.dispatch.rules import DispatchRules
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.uri import Uri

Image = dict[str, Any] | None


def spec(*rules: dict[str, Any], **top: Any) -> ChangefeedSpec:
    """`rules` are `[sink] dispatchers`; one without a matcher is for all tables."""
    written = [{"matcher": ["*.*"], **rule} for rule in rules]
    return ChangefeedSpec(
        "feed",
        Uri.parse("range://store", "source"),
        Uri.parse("kafka://broker/topic", "sink"),
        {"sink": {"dispatchers": written}, **top},
    )


def rules(*written: dict[str, Any], one_table: bool = False, **top: Any) -> DispatchRules:
    return DispatchRules(spec(*written, **top), "fallback", one_table)


def chunk(
    table: TableSchema, *changes: tuple[Op, Image, Image], first_ts: int = 1, **images: pa.DataType
) -> Rows:
    """Changes as (op, before, after), with commit-ts from `first_ts` on."""
    return make_rows(
        table,
        pa.array([int(op) for op, _, _ in changes], pa.int8()),
        pa.array([first_ts + i for i in range(len(changes))], pa.uint64()),
        pa.array(range(len(changes)), pa.int64()),
        pa.array([before for _, before, _ in changes], images.get("before", table.image)),
        pa.array([after for _, _, after in changes], images.get("after", table.image)),
    )


def inserts(table: TableSchema, *values: tuple[Any, ...]) -> Rows:
    names = [c.name for c in table.columns]
    return chunk(table, *((Op.INSERT, None, dict(zip(names, v, strict=True))) for v in values))


def topic(partitions: int, name: str = "fallback") -> Topic:
    return Topic(name, partitions, 1 << 20)


def segment_of(*tables: TableSchema) -> Segment:
    slices = tuple(TableSlice(t.id, t.table_id, t.version) for t in tables)
    return Segment(0, {}, slices, 1, 1)


def outputs_of(segment: Segment, *topics: Topic) -> tuple[Output, ...]:
    return tuple(Output(segment.ordinal, i, t.to_json()) for i, t in enumerate(topics))


# --- the hash, one row at a time -----------------------------------------------------------------


def hashed_text(kind: SqlType, value: Any) -> bytes:
    """Return the bytes of a value that are hashed; a zero has no sign."""
    if kind.kind in (Kind.FLOAT, Kind.DOUBLE):
        value = value + 0.0
    if kind.kind is Kind.FLOAT:
        return np.format_float_positional(np.float32(value), trim="-").encode()
    if kind.kind is Kind.DOUBLE:
        return format(Decimal(repr(value)), "f").removesuffix(".0").encode()
    return value if isinstance(value, bytes) else str(value).encode()


def plain_hash(table: TableSchema, columns: list[Column], image: dict[str, Any]) -> int:
    found = zlib.crc32(f"{table.id.database}{table.id.table}".encode())
    for column in columns:
        value = image.get(column.name)
        if value is not None:
            found ^= zlib.crc32(column.name.encode() + hashed_text(column.type, value))
    return found


def plain_hashes(rows: Rows, columns: list[Column]) -> list[int]:
    images = zip(rows.op, rows.before.to_pylist(), rows.after.to_pylist(), strict=True)
    return [
        plain_hash(rows.table, columns, before if op == Op.DELETE else after)
        for op, before, after in images
    ]
