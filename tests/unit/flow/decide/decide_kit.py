"""Decisions from a configuration, and small chunks to decide on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from rowferry.change.chunk import Op, Rows, make_rows
from rowferry.change.table import TableSchema
from rowferry.flow.assemble import decisions_of
from rowferry.flow.decide.decisions import Decisions
from rowferry.mysql.ddl.statement import parse_create
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.uri import Uri

STORAGE = "file:///out?protocol=csv"
KAFKA = "kafka://h:1/t?protocol=canal-json"
Image = dict[str, Any] | None


def decisions(
    config: dict[str, Any] | None = None, sink: str = STORAGE, source: str = "range://h"
) -> Decisions:
    begin, target = Uri.parse(source, "source"), Uri.parse(sink, "sink")
    return decisions_of(ChangefeedSpec("f", begin, target, config or {}))


def made(sql: str, database: str = "shop") -> TableSchema:
    return parse_create(sql, database)


def chunk(table: TableSchema, *changes: tuple[Op, Image, Image]) -> Rows:
    """Return rows; an image lists some columns, the others are NULL."""
    count = len(changes)
    return make_rows(
        table,
        pa.array([int(op) for op, _, _ in changes], pa.int8()),
        pa.array([1] * count, pa.uint64()),
        pa.array(range(count), pa.int64()),
        pa.array([before for _, before, _ in changes], table.image),
        pa.array([after for _, _, after in changes], table.image),
    )


def inserts(table: TableSchema, images: Sequence[dict[str, Any]]) -> Rows:
    return chunk(table, *((Op.INSERT, None, image) for image in images))


def decided(found: Decisions, rows: Rows) -> list[tuple[Op, Image, Image]]:
    return [
        (Op(o), b, a)
        for part in found.rows(rows)
        for o, b, a in zip(
            part.op.tolist(), part.before.to_pylist(), part.after.to_pylist(), strict=True
        )
    ]
