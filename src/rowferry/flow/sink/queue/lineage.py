"""Lineages: under which name a run's messages are known, so that a queue knows repeats.

A plan is recorded with the lineage under which its messages are sent. Whoever carries it out again
sends the same messages under the same name; what is planned anew has another one.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

from rowferry.change.plan import Again, Plan, Receipt, Stretch, TableSlice, Topic
from rowferry.change.table import TableSchema
from rowferry.flow.sink.contract import Owner
from rowferry.flow.sink.queue.topic_sink import TopicSink

OLDEST: Final = 1 << 24  # micro-batches after which a lineage is renewed
_KEY: Final = "lineage"


class SendLineage(NamedTuple):
    """The name under which the plans of one run are known, and the micro-batch before its first.

    A new run, and a plan that is made anew, has another one: so ids never go back, and content that
    differs never has ids that are known.
    """

    token: str
    origin: int

    @classmethod
    def parse(cls, text: str) -> SendLineage:
        """Read what `str` wrote."""
        token, _, origin = text.partition(".")
        return cls(token, int(origin))

    @classmethod
    def new(cls, origin: int) -> SendLineage:
        """Return one that nobody has used."""
        return cls(secrets.token_hex(8), origin)

    def __str__(self) -> str:
        return f"{self.token}.{self.origin}"


class LineageSink(TopicSink):
    """A sink with topics that sends under the lineage of each plan."""

    _lineage = SendLineage("", 0)

    def open(self, owner: Owner, state: dict[str, Any] | None) -> None:
        """Connect, and make topics that are missing.

        What this run plans has a lineage of its own: an earlier one's ids say nothing about it.

        Raises:
            TargetLost: a topic that got something is gone, or was made again.
        """
        self._lineage = SendLineage.new(owner.micro_batch)
        super().open(owner, state)

    def publish(
        self, plan: Plan, receipts: Sequence[Receipt], tables: Mapping[TableSlice, TableSchema]
    ) -> None:
        """Send the schema changes in order, then the watermark; on return they are durable."""
        super().publish(plan, receipts, tables)
        if plan.micro_batch - self._lineage.origin > OLDEST:
            self._lineage = SendLineage.new(plan.micro_batch)

    def discard(self, plan: Plan) -> bool:
        """What was sent stays. What is planned instead is other content, under another name."""
        self._lineage = SendLineage.new(self._lineage.origin)
        return super().discard(plan)

    def _target(self, topic: Topic, stretch: Stretch) -> Topic:
        if is_exact(stretch):
            return replace(topic, lineage=str(self._lineage))
        return replace(topic, exact=False)

    def _own_state(self) -> dict[str, Any]:
        return {_KEY: str(self._lineage)}

    def _known_by(self, plan: Plan) -> str:
        """Return the lineage under which a plan's messages are known; "": repeats are not."""
        state = plan.sink_state or self._state or {}
        return str(state.get(_KEY, "")) if is_exact(plan.stretch) else ""


def is_exact(stretch: Stretch) -> bool:
    """Return whether the same plan gives the same messages each time that it is carried out."""
    return all(segment.again is Again.SAME for segment in stretch.segments)
