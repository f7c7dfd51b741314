"""What is stored in meta databases, and sent to tasks, keeps its form: byte for byte."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rowferry.change.chunk import DdlKind, SchemaChange
from rowferry.change.plan import Again, Output, Plan, Segment, Stretch, TableSlice, Topic
from rowferry.change.position import RangeProgress, Stage
from rowferry.change.published import PublishedBatch
from rowferry.change.sqltype import SqlType
from rowferry.change.table import (
    Column,
    Index,
    Partitioning,
    TableId,
    TablePartition,
    TableSchema,
)
from rowferry.control.feed.lease import Holder
from rowferry.flow.capture.binlog.position import LogPosition
from rowferry.mysql.key_ranges import Chunk
from rowferry.mysql.session import Flavour
from rowferry.refstore.meta import RangeMeta
from rowferry.spark.table_stretches import Offset
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.uri import Uri

STORED = Path(__file__).with_name("stored_forms.json")
ORDERS, OLD = TableId("shop", "orders"), TableId("shop", "old")
NUMBER = SqlType("bigint", unsigned=True, zerofill=True, length=20)
COLUMN = Column(
    2,
    "state",
    SqlType("enum", charset="latin1", elements=("a", "b'"), collation="latin1_bin"),
    nullable=False,
    default="a",
    generated="stored",
    comment="ü",
    invisible=True,
    auto_increment=True,
    expression="1 + 1",
    filled="b'",
)
PARTS = Partitioning("range", "id", (TablePartition(7, "p0", 10), TablePartition(8, "p1")))
PLAIN = TableSchema(OLD, 1, 2, (Column(1, "id", SqlType("decimal", length=10, scale=2)),))
TABLE = TableSchema(
    ORDERS,
    5,
    440_000_000_000_000_001,
    (Column(1, "id", NUMBER), COLUMN),
    (Index(1, "PRIMARY", ("id",), unique=True, primary=True), Index(2, "k", ("state", "id"))),
    partitioning=PARTS,
    charset="latin1",
    comment="all",
    inferred=True,
    dropped_column_id=3,
    target=OLD,
    is_active_active_table=True,
    is_soft_delete_table=True,
    collation="latin1_bin",
)
CHANGE = SchemaChange(
    9, DdlKind.ADD_PARTITION, "ALTER …", ORDERS, TABLE, OLD, 4, OLD, ORDERS, last_schema=PLAIN
)
PROGRESS = RangeProgress("shop", "orders", 5, 7, 11, "00", "ff", Stage.LOG, 1, 2, 3, 4, "0a", 5)
SEGMENT = Segment(
    0,
    {"file": "log.1", "from": [1, 2]},
    (TableSlice(ORDERS, 5, 2, 7), TableSlice(OLD, 1, 2)),
    8,
    9,
    log_bytes=100,
    snapshot=True,
    payload=b"\x00\xff",
    again=Again.NEVER,
)
STRETCH = Stretch((SEGMENT,), (CHANGE,), {"at": 9}, (PROGRESS,), (12,), 9, True, True)
PLAN = Plan(3, 2, 1000, STRETCH, (Output(0, 1, {"n": 1}),), {"k": None})
LOG = LogPosition(Flavour.MARIADB, "s", "log.1", 40, "0-1-2", 8, 7, {"x": [{"ordinal": 0}]})
SPEC = ChangefeedSpec(
    "feed",
    Uri.parse("mysql://root:a%40b@h:1/", "source"),
    Uri.parse("file:///out?protocol=csv", "sink"),
    {"filter": {"rules": ["a.*"]}},
    77,
)
EXAMPLES: dict[str, Any] = {
    "type": NUMBER,
    "column": COLUMN,
    "column-plain": Column(1, "id", SqlType("int")),
    "index": TABLE.indexes[0],
    "index-plain": TABLE.indexes[1],
    "partitioning": PARTS,
    "table": TABLE,
    "table-plain": PLAIN,
    "schema-change": CHANGE,
    "schema-change-plain": SchemaChange(9, DdlKind.ADD_PARTITION, "", ORDERS),
    "progress": PROGRESS,
    "slice": SEGMENT.slices[0],
    "segment": SEGMENT,
    "stretch": STRETCH,
    "topic": Topic("t", 3, 1 << 20, exact=False, last_segment=2),
    "topic-plain": Topic("t", 3, 1 << 20),
    "plan": PLAN,
    "published-batch": PublishedBatch.of(PLAN),
    "published-batches": PublishedBatch(9, 3, 0, 0, whole=False),
    "log-position": LOG,
    "log-position-inside": replace(LOG, txn_gtid="0-1-3"),
    "key-range": Chunk(("1", "'a'"), None, 5, "p0"),
    "holder": Holder("h", 1, "r", 2, "i"),
    "offset": Offset("f", "a", {"at": 1}, (PROGRESS,), (TABLE,), (SEGMENT,), "why"),
    "offset-begin": Offset(),
    "range": RangeMeta(1, b"\x00", b"\xff", 5, conf_ver=2, version=3, leader="h:1"),
    "spec": SPEC,
    "spec-plain": ChangefeedSpec("feed", SPEC.source, SPEC.sink),
}


def stored() -> dict[str, str]:
    found: dict[str, str] = json.loads(STORED.read_text())
    return found


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_forms_stay_as_they_are_stored(name: str) -> None:
    example, text = EXAMPLES[name], stored()[name]
    assert json.dumps(example.to_json()) == text
    assert type(example).from_json(json.loads(text)) == example


def test_forms_from_before_some_keys_were_added_are_read() -> None:
    segment = {k: v for k, v in SEGMENT.to_json().items() if k not in ("again", "snapshot")}
    assert Segment.from_json(segment).again is Again.SAME
    stretch = {k: v for k, v in STRETCH.to_json().items() if k != "finished"}
    assert Stretch.from_json(stretch).finished is False
    late = ("target", "previous_target", "last_schema")
    change = SchemaChange.from_json({k: v for k, v in CHANGE.to_json().items() if k not in late})
    assert (change.target, change.previous_target, change.last_schema) == (None, None, None)


def test_every_stored_form_has_its_example() -> None:
    assert sorted(stored()) == sorted(EXAMPLES)
