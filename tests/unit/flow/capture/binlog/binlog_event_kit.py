"""Makes TABLE_MAP bodies and rows events by hand."""

from __future__ import annotations

import numpy as np

from rowferry.change.table import TableId
from rowferry.flow.capture.binlog.decode.rows_events import RowEvents
from rowferry.flow.capture.binlog.decode.table_map import MappedColumn, MappedTable
from rowferry.testing.slow_binlog import packed


def table_map(
    codes: list[tuple[int, bytes]],
    metadata: dict[int, bytes] | None = None,
    nullable: int = 0,
    database: str = "db",
    table: str = "t",
) -> bytes:
    """Write a TABLE_MAP body: type codes with their metadata, then optional metadata."""
    body = (77).to_bytes(6, "little") + b"\1\0"
    for name in (database, table):
        body += bytes([len(name.encode())]) + name.encode() + b"\0"
    metas = b"".join(meta for _, meta in codes)
    body += packed(len(codes)) + bytes(code for code, _ in codes) + packed(len(metas)) + metas
    body += nullable.to_bytes((len(codes) + 7) // 8, "little")
    for kind, value in (metadata or {}).items():
        body += bytes([kind]) + packed(len(value)) + value
    return body


def names(*given: str) -> bytes:
    """Write the metadata of column names."""
    return b"".join(packed(len(n.encode())) + n.encode() for n in given)


def mapped(*columns: MappedColumn) -> MappedTable:
    """Return a table of these columns, named c0, c1, …"""
    named = tuple(
        MappedColumn(
            c.name or f"c{i}",
            c.code,
            c.meta,
            c.unsigned,
            c.nullable,
            c.collation,
            c.elements,
            vector_dimensions=c.vector_dimensions,
        )
        for i, c in enumerate(columns)
    )
    return MappedTable(77, TableId("db", "t"), named)


def row_events(*events: tuple[int, bytes]) -> RowEvents:
    """Put events' bodies into one buffer; commit-ts 1, 2, …, room for 1000 rows each."""
    end = np.cumsum([len(body) for _, body in events], dtype=np.int64)
    return RowEvents(
        data=np.frombuffer(b"".join(body for _, body in events), np.uint8),
        start=np.concatenate((np.zeros(1, np.int64), end[:-1])),
        end=end,
        code=np.array([code for code, _ in events], np.uint8),
        commit_ts=np.arange(1, len(events) + 1, dtype=np.uint64),
        seq=np.arange(len(events), dtype=np.int64) * 1000,
    )
