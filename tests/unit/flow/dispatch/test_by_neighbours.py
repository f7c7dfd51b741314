"""Rows to lanes: a key always meets itself, and mostly its neighbours."""

from __future__ import annotations

import numpy as np
from dispatch_kit import chunk, inserts, outputs_of, segment_of, topic

from rowferry.change.chunk import Op, Rows
from rowferry.flow.dispatch.by_neighbours import ByNeighbours
from rowferry.flow.dispatch.by_topic import ByKey
from rowferry.mysql.ddl.statement import parse_create

SIGNED = parse_create("CREATE TABLE test.t (a bigint PRIMARY KEY, b int)").at(1)
UNSIGNED = parse_create("CREATE TABLE test.u (a bigint unsigned PRIMARY KEY, b int)").at(1)
TEXT = parse_create("CREATE TABLE test.w (a varchar(9) PRIMARY KEY, b int)").at(1)
PAIR = parse_create("CREATE TABLE test.p (a int, b int, PRIMARY KEY (a, b))").at(1)


def lanes(rows: Rows, count: int = 16, dispatch: ByNeighbours | ByKey | None = None) -> list[int]:
    segment = segment_of(rows.table)
    outputs = outputs_of(segment, topic(count))
    (routed,) = (dispatch or ByNeighbours()).route(segment, outputs, rows)
    assert routed.rows is rows and routed.topic == topic(count)
    assert routed.partitions is not None and routed.partitions.dtype == np.int32
    assert all(0 <= lane < count for lane in routed.partitions)
    return [int(lane) for lane in routed.partitions]


def test_a_key_meets_itself_whatever_happens_to_it() -> None:
    for table, keys in ((SIGNED, (-(1 << 63), -1, 0, 5)), (UNSIGNED, (0, 7, (1 << 64) - 1))):
        for key in keys:
            row = {"a": key, "b": 1}
            changes = [(Op.INSERT, None, row), (Op.UPDATE, row, row), (Op.DELETE, row, None)]
            found = lanes(chunk(table, *changes))
            assert len(set(found)) == 1
            assert [lanes(chunk(table, one)) for one in changes] == [[n] for n in found]


def test_neighbours_meet_and_strides_do_not() -> None:
    assert len(set(lanes(inserts(SIGNED, *((n, 1) for n in range(1024)))))) == 1
    for stride in (1024, 1 << 14, 1 << 22, 1_000_003):
        found = lanes(inserts(SIGNED, *((n * stride, 1) for n in range(640))))
        assert min(found.count(lane) for lane in range(16)) > 10, stride


def test_other_keys_go_as_by_key() -> None:
    words = inserts(TEXT, *((f"k{n}", 1) for n in range(40)))
    pairs = inserts(PAIR, *((n, n) for n in range(40)))
    for rows in (words, pairs):
        assert lanes(rows) == lanes(rows, dispatch=ByKey())
    assert lanes(inserts(SIGNED, (5000, 1)), count=1) == [0]
