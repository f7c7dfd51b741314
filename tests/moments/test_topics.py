"""Keys stay in their partitions, whatever becomes of the topic while nobody sends to it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "integration" / "kafka"))  # its kit is used here

from kafka_feed_kit import KafkaFeed, Scene, scene_of

from rowferry.testing.servers import Kafka, MySql

CANAL = "protocol=canal-json&enable-tidb-extension=true"


@pytest.fixture
def scene(
    mysql_server: MySql, kafka_broker: Kafka, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Scene]:
    with scene_of(mysql_server, kafka_broker, tmp_path, request.node.name) as found:
        found.sql("CREATE TABLE t (id INT PRIMARY KEY, v INT)")
        found.sql(*(f"INSERT INTO t VALUES ({key}, 0)" for key in range(12)))
        found.broker.create_topic(found.database, 2)
        yield found


def homes(feed: KafkaFeed) -> dict[object, set[str]]:
    """Return the partitions of each key."""
    found: dict[object, set[str]] = {}
    for row in feed.rows():
        found.setdefault(row.key, set()).add(str(row.where.container))
    return found


def test_a_topic_that_grows(scene: Scene) -> None:
    rule = "[sink]\ndispatchers = [{matcher = ['*.*'], partition = 'index-value'}]\n"
    feed = scene.feed(CANAL, rule)
    feed.catch_up()
    feed.stop()
    scene.broker.add_partitions(feed.topic, 5)
    scene.sql("UPDATE t SET v = 1")
    feed.run()
    feed.catch_up()
    assert len(feed.rows()) == 24
    assert [key for key, places in homes(feed).items() if len(places) > 1] == []


def test_partition_zero_by_its_old_name(scene: Scene) -> None:
    feed = scene.feed(CANAL, "[sink]\ndispatchers = [{matcher = ['*.*'], dispatcher = 0}]\n")
    other = scene.feed(CANAL, "[sink]\ndispatchers = [{matcher = ['*.*'], dispatcher = 1}]\n")
    feed.catch_up()
    assert set().union(*homes(feed).values()) == {"0"}
    other.catch_up()
    assert set().union(*homes(other).values()) == {"0", "1"}  # both feeds' rows
