"""Small tables and chunks for the tests of this folder."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from rowferry.change.chunk import Op, Rows, make_rows
from rowferry.change.sqltype import SqlType
from rowferry.change.table import Column, Index, TableId, TableSchema
from rowferry.flow.encode.contract import Encoded
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.uri import Uri

Image = dict[str, Any] | None


def spec(sink: str = "file:///data", **config: Any) -> ChangefeedSpec:
    """`config` is the `[sink]` section."""
    return ChangefeedSpec(
        "feed", Uri.parse("range://store", "source"), Uri.parse(sink, "sink"), {"sink": config}
    )


def table(*kinds: SqlType, nullable: bool = True) -> TableSchema:
    """Columns a, b, c…; the first is the primary key."""
    columns = tuple(
        Column(i, chr(97 + i), kind, nullable=nullable and i > 0) for i, kind in enumerate(kinds)
    )
    return TableSchema(
        TableId("test", "t"), 1, 1, columns, (Index(1, "PRIMARY", ("a",), True, True),)
    )


INT_TEXT = table(SqlType("int"), SqlType("varchar", length=20))


def chunk(
    schema: TableSchema, *changes: tuple[Op, Image, Image], kind: pa.DataType | None = None
) -> Rows:
    """Changes as (op, before, after); commit-ts is 1 << 18 and up."""
    image = kind or schema.image
    return make_rows(
        schema,
        pa.array([int(op) for op, _, _ in changes], pa.int8()),
        pa.array([(1 << 18) + i for i in range(len(changes))], pa.uint64()),
        pa.array(range(len(changes)), pa.int64()),
        pa.array([before for _, before, _ in changes], image),
        pa.array([after for _, _, after in changes], image),
    )


def inserts(schema: TableSchema, *values: tuple[Any, ...]) -> Rows:
    names = [c.name for c in schema.columns]
    return chunk(schema, *((Op.INSERT, None, dict(zip(names, v, strict=True))) for v in values))


def text(encoded: Encoded) -> str:
    return bytes(encoded.value_bytes()).decode()
