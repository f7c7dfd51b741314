"""What sinks know of their tables behind a DROP DATABASE."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rowferry.change.chunk import DdlKind, SchemaChange
from rowferry.change.table import TableId
from rowferry.flow.sink.delivered_tables import DeliveredTables
from rowferry.flow.sink.queue.delivered import KEY, DeliveredTopics
from rowferry.flow.sink.search.delivered import DeliveredIndex, DeliveredIndexes

TABLE = TableId("all", "u")
DROP = SchemaChange(5, DdlKind.DROP_DATABASE, "DROP DATABASE `all`", TableId("all", ""))
ROUTED = replace(DROP, table=TableId("shop", ""), target=TableId("all", ""))
BESIDE = replace(DROP, query="")  # others are written to where it is
CASES = pytest.mark.parametrize(
    ("change", "goes"),
    [(DROP, True), (ROUTED, False), (BESIDE, False)],
    ids=["whole", "routed", "beside others"],
)


@CASES
def test_tables(change: SchemaChange, goes: bool) -> None:
    known = DeliveredTables(())
    known.publish(known.foresee([TABLE], ()))
    known.publish(known.foresee((), [change]))
    assert known.known == (frozenset() if goes else {TABLE})


@CASES
def test_topics(change: SchemaChange, goes: bool) -> None:
    known = DeliveredTopics("Kafka", "", ["default"])
    known.publish({KEY: known.foresee({"u": "7"}, {"u": [TABLE]}, ())})
    known.publish({KEY: known.foresee({}, {}, [change])})
    assert ("u" in known.known) is not goes


@CASES
def test_indexes(change: SchemaChange, goes: bool) -> None:
    known = DeliveredIndexes("{schema}.{table}")
    known.known = {"all.u": DeliveredIndex(TABLE, "7", "id")}
    known.follow(change)
    assert ("all.u" in known.known) is not goes
