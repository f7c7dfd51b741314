"""Each slice of a segment has its place, also where two segments take turns."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest
from dispatch_kit import chunk

from rowferry.change.chunk import Op, Rows
from rowferry.change.plan import Segment, TableSlice
from rowferry.errors import TableVersionUnknown
from rowferry.flow.dispatch.by_slice import BySlice, place_of
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


@pytest.mark.parametrize("half", [Op.DELETE, Op.INSERT])
def test_rows_that_move_between_partitions(half: Op) -> None:
    """Each partition gets the half that is its own, of updates that were split and of others."""
    one, two, three = {"id": 1}, {"id": 2}, {"id": 3}
    changes = ((Op.DELETE, one, None), (Op.INSERT, None, two), (Op.UPDATE, two, three))
    rows = replace(chunk(TABLES[2], *changes), physical_id=7, half=half)
    (routed,) = BySlice().route(segment((2, 7)), (), rows)
    own = routed.rows
    assert set(own.op) == {half} and own.physical_id == 7
    kept = own.before if half is Op.DELETE else own.after
    gone = own.after if half is Op.DELETE else own.before
    assert kept.to_pylist() == ([one, two] if half is Op.DELETE else [two, three])
    assert gone.null_count == 2
    other = replace(chunk(TABLES[2], changes[half is Op.DELETE]), physical_id=7, half=half)
    assert list(BySlice().route(segment((2, 7)), (), other)) == []
