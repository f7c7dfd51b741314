"""What exactly-once asks for, what it cannot be used with, and what stands in plans and ledgers."""

from __future__ import annotations

from typing import Any

import pytest

from rowferry.change.plan import Topic
from rowferry.errors import BadInput, BadOption, OptionsConflict
from rowferry.flow.sink.kafka.ledger import Committed, LaneRecord, OwnerRecord, PlanLineage
from rowferry.flow.sink.kafka.options import KafkaSettings, read_settings
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.uri import Uri


def settings(query: str = "", **own: Any) -> KafkaSettings:
    source = Uri.parse("range://127.0.0.1:1", "source")
    sink = Uri.parse(f"kafka://b1:1/topic?{query}", "sink")
    return read_settings(ChangefeedSpec("feed", source, sink, own))


def test_without_it_nothing_is_different() -> None:
    assert settings().ledger == ""
    assert settings("transaction-timeout=5s&ledger-topic=x").ledger == ""
    assert Topic("t", 3, 100).to_json() == {"topic": "t", "partitions": 3, "limit": 100}


def test_what_it_amounts_to() -> None:
    found = settings("exactly-once=true")
    assert (found.ledger, found.transaction_s) == ("__rowferry.feed", 60.0)
    assert found.options.transaction_lanes == 4
    assert settings("exactly-once=true&ledger-topic=a.b_c-1").ledger == "a.b_c-1"


@pytest.mark.parametrize(
    "query",
    [
        "transaction-timeout=999ms",
        "transaction-lanes=0",
        "transaction-lanes=65",
        "ledger-topic=a%20b",
        "exactly-once=perhaps",
    ],
)
def test_bad_values(query: str) -> None:
    with pytest.raises(BadOption, match=query.split("=")[0]):
        settings(f"exactly-once=true&{query}" if "exactly" not in query else query)


def test_what_it_cannot_be_used_with() -> None:
    for acks in ("0", "1"):
        with pytest.raises(OptionsConflict, match=f"required-acks = -1, and it is {acks}"):
            settings(f"exactly-once=true&required-acks={acks}")
    with pytest.raises(BadInput, match="on-bad-row = quarantine"):
        settings("exactly-once=true", **{"on-bad-row": "quarantine"})


def test_a_lane_does_not_depend_on_the_number_of_tasks() -> None:
    topic = Topic("orders", 12, 100, lanes=4)
    assert {topic.lane_of(n) for n in range(12)} == {0, 1, 2, 3}
    assert Topic.from_json(topic.to_json()) == topic
    free = Topic("orders", 12, 100)
    assert len({free.lane_of(n) for n in range(12)}) == 12


def test_records_are_read_as_they_were_written() -> None:
    lineage = PlanLineage(7, 2, "ab12")
    assert PlanLineage.parse(str(lineage)) == lineage
    done = {("a", 0): Committed(3), ("a", 11): Committed(4, 20), ("b.c", 0): Committed(0, 0)}
    lane = LaneRecord("feed", lineage, 5, done)
    assert LaneRecord.of(lane.to_bytes()) == lane
    owner = OwnerRecord("feed", 9, "cd34", (7, 3), lineage, 5)
    assert OwnerRecord.of(owner.to_bytes()) == owner
    assert PlanLineage(7, 10, "a").rank > lineage.rank > PlanLineage(6, 99, "z").rank
