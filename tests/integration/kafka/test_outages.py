"""Brokers and registries that go away in the middle of things: nothing is lost, order is kept."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient
from kafka_feed_kit import KafkaFeed, Scene, scene_of

from rowferry.downstream.consume.consumer import ConsumeOutcome, ConsumeRequest, consume
from rowferry.errors import SinkUnavailable, Verdict
from rowferry.flow.capture.binlog.frame import segment_cutter
from rowferry.flow.sink.kafka.sender import Sender
from rowferry.testing.registry_stub import registry_stub
from rowferry.testing.servers import Kafka, MySql

OWN_TOPICS = "[[sink.dispatchers]]\nmatcher = ['*.*']\npartition = 'pk'\n"


def judged(feed: KafkaFeed, folder: Path) -> ConsumeOutcome:
    """Return what a consumer finds wrong: order, watermarks, partitions."""
    config = folder / "judge.toml"
    config.write_text(feed.config)
    request = ConsumeRequest(feed.sink_uri, config, until_end=True)
    return consume(request, lambda findings: [], threading.Event())


def test_a_broker_dies_in_the_middle_of_a_micro_batch(
    mysql_server: MySql, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segment_cutter, "SEGMENT_BYTES", 3_000)
    with (
        Kafka.start(tmp_path / "broker") as broker,
        scene_of(mysql_server, broker, tmp_path, "broker_dies") as scene,
    ):
        scene.sql("CREATE TABLE t (id INT PRIMARY KEY, n INT)")
        query = "protocol=open-protocol&partition-num=3&write-timeout=200ms"
        feed = scene.feed(query, OWN_TOPICS)
        feed.catch_up()
        values = ", ".join(f"({n}, 0)" for n in range(300))
        scene.sql(f"INSERT INTO t VALUES {values}", *["UPDATE t SET n = n + 1"] * 5)
        monkeypatch.setattr(Sender, "send", after(5, broker.kill, Sender.send))
        while not feed.faults:
            feed.step()
        monkeypatch.undo()
        (fault,) = feed.faults
        assert isinstance(fault, SinkUnavailable)
        assert fault.verdict is Verdict.RETRY
        assert broker.bootstrap in str(fault)
        broker.restart()
        feed.catch_up()  # with the same clients
        rows = feed.rows()
        assert {(row.key[0], (row.after or {})["n"]) for row in rows} == {
            (key, n) for key in range(300) for n in range(6)
        }
        outcome = judged(feed, tmp_path)
        assert outcome.findings.samples == []
        assert outcome.findings.rows == len(rows)
        assert outcome.waiting == 0


def test_a_broker_that_is_slow_to_make_a_topic(
    mysql_server: MySql, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is asked again, when a feed is prepared and when it runs; then the feed tries again."""
    with (
        Kafka.start(tmp_path / "broker") as broker,
        scene_of(mysql_server, broker, tmp_path, "slow_topic") as scene,
    ):
        scene.sql("CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (1)")
        whole, silent = AdminClient.create_topics, iter([True, False])

        def asked(self: AdminClient, *args: Any, **more: Any) -> Any:
            os.kill(broker.pid, signal.SIGSTOP if next(silent, True) else signal.SIGCONT)
            return whole(self, *args, **more)

        monkeypatch.setattr(AdminClient, "create_topics", asked)
        feed = scene.feed("protocol=canal-json&partition-num=2&read-timeout=3s")
        silent = iter([False])
        feed.step()
        assert feed.faults == []
        assert scene.topics() == {feed.topic: 2}
        # One of a new table: it takes longer than it is asked for, and is made by then.
        feed.config = "[[sink.dispatchers]]\nmatcher = ['*.*']\ntopic = 'x_{schema}_{table}'\n"
        feed.catch_up()
        silent = iter([])
        feed.run()
        scene.sql("CREATE TABLE u (id INT PRIMARY KEY)", "INSERT INTO u VALUES (2)")
        while not feed.faults:
            feed.step()
        assert {type(fault) for fault in feed.faults} == {SinkUnavailable}
        assert "creating topic" in str(feed.faults[0])
        os.kill(broker.pid, signal.SIGCONT)
        monkeypatch.undo()
        feed.catch_up()
        assert feed.images(f"x_{scene.database}_u") == [{"id": 2}]


def after(count: int, act: Callable[[], None], call: Callable[..., Any]) -> Callable[..., Any]:
    """Return the call, before whose n-th time something happens."""
    calls = 0

    def wrapped(*args: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == count:
            act()
        return call(*args)

    return wrapped


def test_a_registry_that_is_away(scene: Scene) -> None:
    scene.sql("CREATE TABLE t (id INT PRIMARY KEY, n INT)")
    with registry_stub() as registry:
        feed = scene.feed(
            f"protocol=avro&schema-registry={registry.url}&partition-num=2", OWN_TOPICS
        )
        scene.sql("INSERT INTO t VALUES (1, 0), (2, 0), (3, 0)")
        feed.catch_up()
        # Schemas that are known need no registry: only a new one does.
        registry.faults.extend([(503, b"away")] * 40)
        scene.sql("UPDATE t SET n = n + 1")
        feed.catch_up()
        assert feed.faults == []
        scene.sql("ALTER TABLE t ADD COLUMN more INT", "UPDATE t SET n = n + 1, more = 7")
        while not feed.faults:
            feed.step()
        assert feed.faults[0].verdict is Verdict.RETRY
        assert "503" in str(feed.faults[0])
        registry.faults.clear()
        feed.catch_up()
        found: dict[int, list[int]] = {}
        for image in feed.images():
            found.setdefault(image["id"], []).append(image["n"])
        assert found == {key: [0, 1, 2] for key in (1, 2, 3)}
        assert [i["more"] for i in feed.images() if i["n"] == 2] == [7, 7, 7]
