"""Keys stay in their partitions, whatever becomes of the topic while nobody sends to it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "integration" / "kafka"))  # its kit is used here

from kafka_feed_kit import NAME, KafkaFeed, Scene, scene_of

from rowferry.change.plan import Plan
from rowferry.errors import TargetLost
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
    scene.sql("UPDATE t SET v = 1", "UPDATE t SET v = 2", "UPDATE t SET v = 3")
    feed.run()
    feed.catch_up()
    assert [key for key, places in homes(feed).items() if len(places) > 1] == []
    values: dict[object, list[int]] = {}
    for row in feed.rows():
        assert row.after is not None
        values.setdefault(row.key, []).append(row.after["v"])
    assert list(values.values()) == 12 * [[0, 1, 2, 3]]  # each key's changes in their order


def test_partition_zero_by_its_old_name(scene: Scene) -> None:
    tables = [f"t{number}" for number in range(6)]  # by their names they would go to both
    scene.sql(*(f"CREATE TABLE {table} LIKE t" for table in tables))
    scene.sql(*(f"INSERT INTO {table} VALUES (1, 1)" for table in tables))
    feed = scene.feed(CANAL, "[sink]\ndispatchers = [{matcher = ['*.*'], dispatcher = 0}]\n")
    feed.catch_up()
    assert len(feed.rows()) == 18
    assert set().union(*homes(feed).values()) == {"0"}


def test_a_topic_that_is_gone_while_rows_are_sent(scene: Scene) -> None:
    feed = scene.feed(CANAL)
    feed.catch_up()
    before = feed.store.state(NAME).micro_batch
    scene.sql("UPDATE t SET v = 1")

    def lose(plan: Plan) -> None:
        scene.broker.delete_topic(feed.topic)
        feed.runner.before = lambda plan: None

    feed.runner.before = lose
    with pytest.raises(TargetLost):
        feed.catch_up()
    assert feed.store.state(NAME).micro_batch == before  # nothing counts as sent
