"""Whether each row is in the topic and partition that the dispatch rules say."""

from __future__ import annotations

import numpy as np

from rowferry.change.chunk import Rows
from rowferry.change.plan import Topic
from rowferry.downstream.consume.checks import ConsumeFindings
from rowferry.errors import RowferryError
from rowferry.flow.dispatch.by_topic import partitions_of
from rowferry.flow.dispatch.rules import DispatchRules
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.rules.dispatch import dispatch_rules


class PartitionCheck:
    """Judges rows by the rules of a configuration.

    A message may not tell all that a rule goes by: names from before table routing, an index, a
    column of a deleted row. Such rows are left unchecked, and `unchecked` says why.
    """

    def __init__(
        self, spec: ChangefeedSpec, rules: DispatchRules, findings: ConsumeFindings
    ) -> None:
        self._rules, self._findings = rules, findings
        self.unchecked: dict[str, int] = {}
        self._routed = any(r.target_schema or r.target_table for r in dispatch_rules(spec))

    def note(self, rows: Rows, topic: str, partition: int, partitions: int, offset: int) -> None:
        """Judge the rows of one message."""
        if self._routed:
            return self._leave("tables are renamed: messages do not tell their first names", rows)
        expected = self._rules.topic_of(rows.table.id)
        if expected != topic:
            words = f"{topic}[{partition}]@{offset}: {rows.table.id} belongs to topic {expected}"
            return self._findings.fault(words)
        rule = self._rules.partition_rule(rows.table.id)
        try:
            right_partitions = partitions_of(rule, rows, Topic(topic, partitions, 0))
        except RowferryError as err:
            return self._leave(err.words, rows)
        for number in np.flatnonzero(right_partitions != partition):
            self._findings.fault(
                f"{topic}[{partition}]@{offset}: a row of {rows.table.id} belongs to partition "
                f"{right_partitions[number]}"
            )

    def _leave(self, why: str, rows: Rows) -> None:
        self.unchecked[why] = self.unchecked.get(why, 0) + len(rows)
