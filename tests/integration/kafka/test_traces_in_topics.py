"""Changes of one row, traced to the messages that hold them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kafka_feed_kit import NAME, KafkaFeed, Scene, scene_of

from rowferry.control.operator.operations import Operations
from rowferry.control.operator.trace.forms import TraceRequest, trace_form
from rowferry.downstream.trace import topics
from rowferry.errors import BadTrace
from rowferry.testing.servers import Kafka, SchemaRegistryServer, Server

BY_KEY = "[sink]\ndispatchers = [{matcher = ['*.*'], partition = 'index-value'}]\n"
BY_TS = "[sink]\ndispatchers = [{matcher = ['*.*'], partition = 'ts'}]\n"
# Protocols, and how a feed of each finds partitions.
FEEDS = {
    "canal-json&enable-tidb-extension=true": BY_KEY,
    "open-protocol": BY_TS,
    "simple": "",
    "debezium&enable-tidb-extension=true": BY_KEY,
}


@pytest.fixture
def scene(
    source_server: Server, kafka_broker: Kafka, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Scene]:
    with scene_of(source_server, kafka_broker, tmp_path, request.node.name) as found:  # type: ignore[arg-type]
        yield found


def traced(feed: KafkaFeed, scene: Scene, key: str, **more: Any) -> dict[str, Any]:
    request = TraceRequest(f"{scene.database}.t", (("id", key),), **more)
    return trace_form(Operations(feed.store).trace_values(NAME, request))


def test_each_change_has_its_message_and_its_transaction(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.sql(
        "CREATE TABLE t (id bigint PRIMARY KEY, v varchar(40))",
        "INSERT INTO t VALUES (4, 'x'), (5, 'one'), (55, 'x')",
    )
    feeds = [
        scene.feed(f"protocol={words}&partition-num=3", config, topic=f"{scene.database}_{n}")
        for n, (words, config) in enumerate(FEEDS.items())
    ]
    for statement in (
        "UPDATE t SET v = 'two' WHERE id = 5",
        "UPDATE t SET id = 6 WHERE id = 5",
        "UPDATE t SET v = 'not it' WHERE id = 4",
        "INSERT INTO t VALUES (5, 'three')",
        "DELETE FROM t WHERE id = 5",
    ):
        for feed in feeds:
            feed.catch_up()
        scene.sql(statement)
    monkeypatch.setattr(topics, "_FIRST_STRETCH", 4)  # several stretches, from the end on
    for feed in feeds:
        feed.catch_up()
        answer = traced(feed, scene, "5", log=True)
        changes = answer["changes"]
        ops = ["snapshot", "update", "delete", "insert", "delete"]
        assert [one["op"] for one in changes] == ops, feed.sink_uri
        assert (answer["complete"], answer["notes"]) == (True, [])
        rows = {(int(r.where.container), r.where.number, r.key): r for r in feed.rows()}
        for one in changes:
            place = one["place"]
            row = rows[place["partition"], place["offset"], (5,)]
            assert place["topic"] == feed.topic
            assert row.commit_ts == one["commit_ts"]
            assert one["after"] == row.after
        for one in changes[1:]:
            words = scene.server.execute(
                f"SHOW BINLOG EVENTS IN '{one['log']['file']}' FROM {one['log']['offset']} LIMIT 1"
            )[0]
            assert one["log"]["gtid"] in str(words[5])
        batches = [one["micro_batch"] for one in changes]
        assert all(b["first"] == b["last"] for b in batches)
        assert len({b["first"] for b in batches}) == 5
        since = str(changes[3]["commit_ts"])
        later = traced(feed, scene, "5", since=since)["changes"]
        assert [one["op"] for one in later] == ["insert", "delete"]
    by_key, by_ts = (traced(feed, scene, "5")["looked"]["messages"] for feed in feeds[:2])
    assert by_key < by_ts  # only the partition that holds the key


def test_messages_that_tell_the_millisecond_get_the_rest_from_the_log(scene: Scene) -> None:
    scene.sql("CREATE TABLE t (id bigint PRIMARY KEY, v int)")
    feeds = [
        scene.feed(f"protocol={name}&partition-num=2", BY_KEY, topic=f"{scene.database}_{name}")
        for name in ("canal-json", "debezium")
    ]
    for feed in feeds:
        feed.catch_up()
    scene.sql("INSERT INTO t VALUES (5, 1)", "UPDATE t SET v = 2")
    for feed in feeds:
        feed.catch_up()
        plain = traced(feed, scene, "5")["changes"]
        assert [one["op"] for one in plain] == ["insert", "update"]
        assert {one["commit_ts"] for one in plain} == {None}
        known = traced(feed, scene, "5", log=True)["changes"]
        for one, before in zip(known, plain, strict=True):
            assert one["commit_ts"] >> 18 == before["committed_at"]
            assert one["log"]["gtid"]


def test_a_topic_that_is_not_there_is_told(scene: Scene) -> None:
    scene.sql("CREATE TABLE t (id bigint PRIMARY KEY)")
    feed = scene.feed("protocol=open-protocol&partition-num=1")
    feed.catch_up()
    feed.stop()
    assert traced(feed, scene, "1")["changes"] == []
    scene.broker.delete_topic(feed.topic)
    with pytest.raises(BadTrace, match="is not there"):
        traced(feed, scene, "1")


def test_binary_and_compressed_messages_are_read(
    scene: Scene, schema_registry: SchemaRegistryServer
) -> None:
    scene.sql("CREATE TABLE t (id bigint PRIMARY KEY, v varchar(400))")
    registry = f"schema-registry={schema_registry.url}"
    extension = "enable-tidb-extension=true"
    large = "[sink.kafka-config.large-message-handle]\nlarge-message-handle-compression = 'lz4'\n"
    queries = (
        (f"protocol=avro&{registry}&{extension}", ""),
        (f"protocol=canal-json&{extension}&compression=zstd", ""),
        (f"protocol=canal-json&{extension}", large),
    )
    feeds = [
        scene.feed(f"{query}&partition-num=2", config, topic=f"{scene.database}_{number}")
        for number, (query, config) in enumerate(queries)
    ]
    for feed in feeds:
        feed.catch_up()
    scene.sql(
        "INSERT INTO t VALUES (4, 'x'), (5, 'one')",
        "UPDATE t SET v = repeat('two', 100) WHERE id = 5",
        "DELETE FROM t WHERE id = 5",
    )
    for feed, (query, _) in zip(feeds, queries, strict=True):
        feed.catch_up()
        answer = traced(feed, scene, "5", log=True)
        assert [one["op"] for one in answer["changes"]] == ["insert", "update", "delete"], query
        assert answer["complete"], query
        assert [one["after"] and one["after"]["v"] for one in answer["changes"]] == [
            *("one", "two" * 100, None)
        ]
        known = [one for one in answer["changes"] if one["commit_ts"]]
        assert all(one["log"]["gtid"] for one in known)
        if "avro" in query:  # a delete is a message without a value
            assert [one["op"] for one in known] == ["insert", "update"]
            assert answer["notes"] == [
                "1 changes are messages that carry no commit-ts, such as deletes"
            ]
        else:
            assert (len(known), answer["notes"]) == (3, []), query
