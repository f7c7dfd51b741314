"""Changes as a vector's JSON gives them."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from rowferry.change.chunk import Op, Rows, make_rows
from rowferry.change.sqltype import Kind, SqlType
from rowferry.change.table import TableSchema
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.uri import Uri


def spec_of(sink: str = "file:///data", config: dict[str, Any] | None = None) -> ChangefeedSpec:
    return ChangefeedSpec(
        "feed", Uri.parse("range://store", "source"), Uri.parse(sink, "sink"), config or {}
    )


def value_of(kind: SqlType, value: Any) -> Any:
    """JSON has no bytes: binary values are hexadecimal text."""
    return bytes.fromhex(value) if kind.kind is Kind.BINARY and value is not None else value


def image_of(table: TableSchema, values: list[Any] | None) -> dict[str, Any] | None:
    if values is None:
        return None
    pairs = zip(table.columns, values, strict=True)
    return {c.name: value_of(c.type, v) for c, v in pairs}


def rows_of(table: TableSchema, changes: list[dict[str, Any]]) -> Rows:
    """Each change: op, commit_ts, before and after as lists of values in column order."""
    return make_rows(
        table,
        pa.array([Op[c["op"].upper()] for c in changes], pa.int8()),
        pa.array([c["commit_ts"] for c in changes], pa.uint64()),
        pa.array(range(len(changes)), pa.int64()),
        pa.array([image_of(table, c.get("before")) for c in changes], table.image),
        pa.array([image_of(table, c.get("after")) for c in changes], table.image),
    )
