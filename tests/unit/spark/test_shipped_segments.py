"""What tasks of a query on a table are given of its segments, without Spark."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql.types import StructType

from rowferry.change.plan import Segment, TableSlice
from rowferry.change.sqltype import SqlType
from rowferry.change.table import Column, TableId, TableSchema
from rowferry.flow.capture.binlog.frame.kept_log import KeptBytes
from rowferry.spark import datasource
from rowferry.spark.datasource import SegmentReader
from rowferry.spark.table_request import read_request

TABLE = TableSchema(TableId("d", "t"), 7, 1, (Column(1, "id", SqlType("int")),))
SLICE = TableSlice(TABLE.id, 7, 1)


class Source:
    """Notes the segments that it is to read."""

    def __init__(self) -> None:
        self.read_segments: list[Segment] = []

    def read(self, segment: Segment, tables: Any) -> Iterator[Any]:
        self.read_segments.append(segment)
        yield from ()


@pytest.mark.parametrize("kept", [True, False], ids=["carried", "asked for"])
def test_bytes_that_were_read_ahead_go_along(kept: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else every task of a small micro-batch connects to the source."""
    source = Source()
    monkeypatch.setattr(datasource, "_source_of", lambda settings: source)
    near = (KeptBytes(4, 9, data=b"rows"),) if kept else (KeptBytes(4, 9, path="/x", size=4),)
    segment = Segment(0, {"kind": "log"}, (SLICE,), 1, 2, near=near)
    reader = SegmentReader({}, StructType([]))
    request = read_request({"source": "mysql://u@db:3306/", "table": "d.t"}, "spark-1")
    (partition,) = reader._partitions(request, [(segment, [TABLE])])
    assert list(reader.read(pickle.loads(pickle.dumps(partition)))) == []
    (found,) = source.read_segments
    assert found == segment
    assert found.near == (near if kept else ())
