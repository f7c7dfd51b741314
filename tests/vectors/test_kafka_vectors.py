"""Parameters of the Kafka sink, and how many partitions are in use.

Ours are kept in `kafka/`; published ones join them where they are at hand.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from change_file import spec_of
from outside import cases

from codec_kit import codec_for
from rowferry.change.plan import Stretch
from rowferry.errors import BadInput, TopicRefused
from rowferry.flow.encode.open_protocol.codec import OpenProtocol
from rowferry.flow.sink.contract import Owner
from rowferry.flow.sink.kafka import sink
from rowferry.flow.sink.kafka.options import (
    KafkaOptions,
    read_settings,
    uses_tls,
)


def vectors(area: str) -> list[Any]:
    kept = Path(__file__).parent / "kafka" / f"{area}.json"
    rows = {r["id"]: r for r in json.loads(kept.read_text("utf-8"))}
    rows |= {r["id"]: r for r in cases(area)}
    return [pytest.param(r["input"], r["expected"], id=i) for i, r in sorted(rows.items())]


@pytest.mark.parametrize(("given", "expected"), vectors("kafka-uri"))
def test_sink_uri(given: dict[str, Any], expected: dict[str, Any]) -> None:
    spec = spec_of(given["sink_uri"])
    if "error_contains" in expected:
        with pytest.raises(BadInput, match=re.escape(expected["error_contains"])):
            read_settings(spec)
        return
    options = spec.options(KafkaOptions)
    found = {
        "max_retry": options.max_retry,
        "compression": options.compression,
        "enable_tls": uses_tls(spec, options),  # with files that need not be here
    }
    assert {key: found[key] for key in expected} == expected


class Broker:
    """As much of a broker as tells partition counts and makes topics."""

    def __init__(self, counts: dict[str, int]) -> None:
        self.counts = counts
        self.cluster = ""

    def ids(self, topics: dict[str, int]) -> dict[str, str]:
        return dict.fromkeys(topics, "")

    def partition_counts(self) -> dict[str, int]:
        return dict(self.counts)

    def create(self, wanted: dict[str, int]) -> None:
        self.counts |= wanted

    def least_in_sync(self) -> int:
        return 1

    def largest_messages(self, topics: dict[str, int]) -> dict[str, int]:
        return dict.fromkeys(topics, 1000)


@pytest.mark.parametrize(("given", "expected"), vectors("partition-count"))
def test_partition_count(
    given: dict[str, Any], expected: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    there = given["topic_partitions"]
    broker = Broker({"t": there} if there else {})
    monkeypatch.setattr(sink, "Topics", lambda settings: broker)
    asked = given["partition_num"]
    spec = spec_of(f"kafka://b/t?partition-num={asked}" if asked else "kafka://b/t")
    kafka = sink.KafkaSink(spec, codec_for(OpenProtocol, spec))

    def count() -> int:
        kafka.open(Owner("feed", 1), None)
        state = kafka.allocate(Stretch((), (), {}), {})[1]
        assert state is not None
        return int(state["topics"]["t"])

    if "error_contains" in expected:
        with pytest.raises(TopicRefused, match=re.escape(expected["error_contains"])):
            count()
    else:
        assert count() == expected["partition_num"]
