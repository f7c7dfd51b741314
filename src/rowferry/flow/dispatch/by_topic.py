"""Dispatch for sinks with topics: each row goes to a partition of its slice's topic."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import assert_never

import numpy as np
import numpy.typing as npt

from rowferry.change.chunk import Rows
from rowferry.change.plan import Output, Segment, Topic
from rowferry.change.table import TableId
from rowferry.errors import BadDispatchRule
from rowferry.flow.dispatch.by_slice import place_of
from rowferry.flow.dispatch.contract import Routed
from rowferry.flow.dispatch.partition_rule import (
    ByColumns,
    ByCommitTs,
    ByIndex,
    ByTable,
    Fixed,
    PartitionRule,
    hashed_columns,
)
from rowferry.flow.dispatch.row_hash import row_hashes, table_hash
from rowferry.flow.dispatch.rules import DispatchRules


class ByTopic:
    """Sends rows to the partitions that the dispatch rules name."""

    def __init__(self, rules: DispatchRules) -> None:
        self._rules = rules

    def topic_of(self, table: TableId) -> str:
        """Return the topic of a table's rows."""
        return self._rules.topic_of(table)

    def route(self, segment: Segment, outputs: Sequence[Output], rows: Rows) -> Iterator[Routed]:
        """Yield the rows with their slice's topic and each row's partition.

        Raises:
            BadDispatchRule: the rule cannot be used for this version of the table.
        """
        yield _routed(segment, outputs, rows, self._rules.partition_rule(rows.table.id))


class ByKey:
    """Sends all changes of a key to one partition; of a keyless table, all changes of the table."""

    def route(self, segment: Segment, outputs: Sequence[Output], rows: Rows) -> Iterator[Routed]:
        """Yield the rows with their slice's topic and each row's partition."""
        yield _routed(segment, outputs, rows, ByIndex())


def _routed(segment: Segment, outputs: Sequence[Output], rows: Rows, rule: PartitionRule) -> Routed:
    place = place_of(segment, rows)
    topic = next(Topic.from_json(o.target) for o in outputs if o.slice == place)
    return Routed(place, rows, topic, partitions_of(rule, rows, topic))


def partitions_of(rule: PartitionRule, rows: Rows, topic: Topic) -> npt.NDArray[np.int32]:
    """Return each row's partition, from 0 to the number of partitions in use.

    Raises:
        BadDispatchRule: the table lacks the rule's index, or the topic lacks its partition.
    """
    match rule:
        case ByTable():
            return np.full(len(rows), table_hash(rows.table.id) % topic.partitions, np.int32)
        case ByCommitTs():
            return (rows.commit_ts % np.uint64(topic.partitions)).astype(np.int32)
        case ByIndex() | ByColumns():
            columns = hashed_columns(rule, rows.table)
            if columns is None:
                return np.zeros(len(rows), np.int32)
            return (row_hashes(rows, columns) % np.uint32(topic.partitions)).astype(np.int32)
        case Fixed(number):
            if number >= topic.partitions:
                raise BadDispatchRule(
                    f"sink.dispatchers send table {rows.table.id} to partition {number}, but topic "
                    f"{topic.name} has {topic.partitions} in use"
                )
            return np.full(len(rows), number, np.int32)
        case _:
            assert_never(rule)
