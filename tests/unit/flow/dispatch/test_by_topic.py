"""Rows of a chunk to places, topics and partitions."""

from __future__ import annotations

import zlib
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from dispatch_kit import chunk, inserts, outputs_of, plain_hashes, rules, segment_of, topic

from rowferry.change.chunk import Op, Rows
from rowferry.change.table import TableId, TableSchema
from rowferry.errors import BadDispatchRule, TableVersionUnknown
from rowferry.flow.dispatch.by_topic import ByKey, ByTopic
from rowferry.mysql.ddl.statement import parse_create

TABLE = parse_create("CREATE TABLE test.t1 (a int PRIMARY KEY, b int, UNIQUE KEY Two (b, a))").at(1)
KEYLESS = replace(parse_create("CREATE TABLE test.log (a int, b int)").at(1), table_id=9)
ROWS = inserts(TABLE, *((i, i % 3 or None) for i in range(40)))
COUNT = 16


def partitions(rows: Rows, count: int = COUNT, **rule: Any) -> list[int]:
    segment = segment_of(rows.table)
    outputs = outputs_of(segment, topic(count))
    (routed,) = ByTopic(rules(rule)).route(segment, outputs, rows)
    assert routed.rows is rows and routed.place == 0
    assert routed.topic == topic(count)
    assert routed.partitions is not None and routed.partitions.dtype == np.int32
    return [int(p) for p in routed.partitions]


def by(table: TableSchema, *names: str, rows: Rows = ROWS, count: int = COUNT) -> list[int]:
    return [h % count for h in plain_hashes(rows, [table.column(n) for n in names])]


def test_rules() -> None:
    table = zlib.crc32(b"testt1") % COUNT
    assert partitions(ROWS, partition="table") == [table] * 40
    assert partitions(ROWS) == [table] * 40
    assert partitions(ROWS, partition="ts") == [i % COUNT for i in range(1, 41)]
    assert partitions(ROWS, partition="pk") == by(TABLE, "a")
    assert partitions(ROWS, partition="index-value", index="TWO") == by(TABLE, "a", "b")
    assert partitions(ROWS, partition="[B]") == by(TABLE, "b")
    assert partitions(ROWS, partition="columns", columns=["b", "gone"]) == by(TABLE, "b")
    assert partitions(ROWS, partition=15) == [15] * 40
    assert len(set(partitions(ROWS, partition="pk"))) > 8
    assert partitions(ROWS, count=1, partition="pk") == [0] * 40


def test_none_of_the_columns_is_partition_zero() -> None:
    assert zlib.crc32(b"testt1") % COUNT != 0
    assert partitions(ROWS, partition="[gone, v]") == [0] * 40
    assert partitions(ROWS, partition="columns", columns=["gone"]) == [0] * 40


def test_large_hashes_and_timestamps_are_unsigned() -> None:
    late = chunk(TABLE, (Op.INSERT, None, {"a": 1, "b": 1}), first_ts=(1 << 64) - 1)
    assert partitions(late, count=10, partition="ts") == [((1 << 64) - 1) % 10]
    assert all(0 <= p < 7 for p in partitions(ROWS, count=7, partition="pk"))
    assert partitions(ROWS, count=7, partition="pk") == by(TABLE, "a", count=7)


def test_the_new_row_counts_and_for_a_delete_the_old_one() -> None:
    rows = chunk(
        TABLE,
        (Op.UPDATE, {"a": 1, "b": 1}, {"a": 2, "b": 1}),
        (Op.DELETE, {"a": 1, "b": 1}, None),
        (Op.INSERT, None, {"a": 1, "b": 1}),
    )
    moved, gone, back = partitions(rows, partition="rowid")
    assert gone == back
    assert [moved, gone, back] == by(TABLE, "a", rows=rows)
    assert moved == partitions(inserts(TABLE, (2, None)), partition="rowid")[0]


def test_rules_and_hashes_go_by_the_names_of_the_source() -> None:
    routed = replace(TABLE, target=TableId("else", "where"))
    rows = Rows(routed, ROWS.batch)
    assert partitions(rows, matcher=["test.t1"], partition="pk") == by(TABLE, "a")
    assert partitions(rows, matcher=["else.where"], partition="pk") == partitions(ROWS)


def test_a_keyless_table_stays_together() -> None:
    rows = inserts(KEYLESS, (1, 2), (3, 4))
    assert partitions(rows, partition="pk") == [zlib.crc32(b"testlog") % COUNT] * 2


def test_each_slice_has_its_own_topic() -> None:
    segment = segment_of(KEYLESS, TABLE)
    first, second = topic(3, "log"), topic(COUNT, "t1")
    outputs = outputs_of(segment, first, second)
    for dispatch in (ByTopic(rules({"partition": "pk"})), ByKey()):
        (routed,) = dispatch.route(segment, outputs, ROWS)
        assert (routed.place, routed.topic) == (1, second)
        assert routed.partitions is not None
        assert routed.partitions.tolist() == by(TABLE, "a")
        rows = inserts(KEYLESS, (1, 2))
        (routed,) = dispatch.route(segment, outputs, rows)
        assert (routed.place, routed.topic) == (0, first)
        assert routed.partitions is not None
        assert routed.partitions.tolist() == [zlib.crc32(b"testlog") % 3]


def test_what_stops_the_feed() -> None:
    with pytest.raises(BadDispatchRule, match=r"test\.t1 to partition 4, but topic fallback has 4"):
        partitions(ROWS, count=4, partition=4)
    with pytest.raises(BadDispatchRule, match=r"test\.t1 has no index 'gone'.*Two, PRIMARY"):
        partitions(ROWS, partition="index-value", index="gone")
    segment = segment_of(KEYLESS)
    with pytest.raises(TableVersionUnknown):
        list(ByKey().route(segment, outputs_of(segment, topic(1)), ROWS))
