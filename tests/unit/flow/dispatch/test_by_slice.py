"""Each slice of a segment has its place, also where two segments take turns."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest

from rowferry.change.chunk import Rows
from rowferry.change.plan import Segment, TableSlice
from rowferry.errors import TableVersionUnknown
from rowferry.flow.dispatch.by_slice import place_of
from rowferry.mysql.ddl.statement import parse_create

TABLES = [
    replace(parse_create(f"CREATE TABLE d.t{n} (id int PRIMARY KEY)"), table_id=n).at(10)
    for n in range(4)
]
EMPTY = pa.RecordBatch.from_pylist([])


def segment(*wanted: tuple[int, int | None]) -> Segment:
    slices = tuple(TableSlice(TABLES[n].id, n, 10, partition) for n, partition in wanted)
    return Segment(0, {}, slices, 1, 1)


def test_places() -> None:
    one, other = segment((0, None), (2, None), (2, 7)), segment((2, 7), (0, None))
    for _ in range(2):
        assert place_of(one, Rows(TABLES[2], EMPTY)) == 1
        assert place_of(other, Rows(TABLES[2], EMPTY, 7)) == 0
        assert place_of(one, Rows(TABLES[2], EMPTY, 7)) == 2
    with pytest.raises(TableVersionUnknown, match="no output for d.t2 version 10, partition None"):
        place_of(other, Rows(TABLES[2], EMPTY))
    with pytest.raises(TableVersionUnknown, match="version 11"):
        place_of(one, Rows(TABLES[0].at(11), EMPTY))
