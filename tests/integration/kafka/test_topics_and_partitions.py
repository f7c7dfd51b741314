"""Topics that are made, refused or lost, and how many of their partitions are written."""

from __future__ import annotations

from collections import Counter

import pytest
from kafka_feed_kit import KafkaFeed, Scene

from patience import until_it_fails
from rowferry.errors import BadDispatchRule, SinkUnavailable, TopicRefused, Verdict
from rowferry.testing.servers import SchemaRegistryServer

BY_KEY = "[sink]\ndispatchers = [{matcher = ['*.*'], partition = 'pk'}]\n"
OWN_TOPICS = (
    "[sink]\ndispatchers = [{matcher = ['*.*'], partition = 'pk', topic = '%s_{schema}_{table}'}]\n"
)
CANAL = "protocol=canal-json&enable-tidb-extension=true"


def numbers(first: int, count: int = 20) -> str:
    return "INSERT INTO t VALUES " + ", ".join(f"({first + i})" for i in range(count))


def in_use(feed: KafkaFeed, topic: str = "") -> set[int]:
    """Return the partitions that hold rows."""
    return {int(row.where.container) for row in feed.rows(topic)}


def written(feed: KafkaFeed, topic: str = "") -> set[int]:
    """Return the partitions that hold anything, watermarks too."""
    return {int(one.where.container) for one in feed.read(topic)}


@pytest.fixture
def table(scene: Scene) -> Scene:
    scene.sql("CREATE TABLE t (id INT PRIMARY KEY)", numbers(0))
    return scene


def test_more_partitions_than_the_topic_has(table: Scene) -> None:
    table.broker.create_topic(table.database, 2)
    with pytest.raises(TopicRefused) as refused:
        table.feed(f"{CANAL}&partition-num=3")
    assert refused.value.verdict is Verdict.STOP
    assert (
        "number of partition (3) specified in sink-uri is more than that of actual topic (2)"
        in (str(refused.value))
    )
    assert table.broker.read_all(table.database) == []
    # The same for a topic that only a rule leads to.
    table.broker.create_topic(f"x_{table.database}_t", 2)
    with pytest.raises(TopicRefused, match=rf"actual topic \(2\): x_{table.database}_t"):
        table.feed(f"{CANAL}&partition-num=3", OWN_TOPICS % "x", topic=f"{table.database}-more")
    assert f"{table.database}-more" not in table.topics()


def test_as_many_partitions_or_fewer_and_growth(table: Scene) -> None:
    """Asked for or not: what a topic had at first stays in use, whatever is added later."""
    counts = {"equal": (2, 2), "fewer": (3, 2), "unsaid": (2, None)}
    feeds = {}
    for name, (there, asked) in counts.items():
        topic = f"{table.database}-{name}"
        table.broker.create_topic(topic, there)
        query = f"{CANAL}&partition-num={asked}" if asked else CANAL
        feeds[name] = table.feed(query, BY_KEY, topic=topic)
        feeds[name].catch_up()
        assert in_use(feeds[name]) == written(feeds[name]) == {0, 1}
    homes = {name: {r.key: r.where.container for r in f.rows()} for name, f in feeds.items()}
    for feed in feeds.values():
        table.broker.add_partitions(feed.topic, 5)
        feed.stop()
    table.sql(numbers(100), "UPDATE t SET id = id + 1000 WHERE id < 10", "DELETE FROM t")
    for name, feed in feeds.items():
        feed.run()
        feed.catch_up()
        assert written(feed) == {0, 1}
        for row in feed.rows():
            assert homes[name].setdefault(row.key, row.where.container) == row.where.container
        assert Counter(r.key for r in feed.rows())[(115,)] == 2


def test_topics_of_tables_are_made(scene: Scene) -> None:
    scene.sql(
        "CREATE TABLE t (id INT PRIMARY KEY)",
        "CREATE TABLE `ü b.c-d` (id INT PRIMARY KEY)",
        "INSERT INTO t VALUES (1)",
        "INSERT INTO `ü b.c-d` VALUES (2)",
    )
    feed = scene.feed(f"{CANAL}&partition-num=2", OWN_TOPICS % "x")
    assert scene.topics() == {}, "the probe makes nothing"
    feed.catch_up()
    first, second = f"x_{scene.database}_t", f"x_{scene.database}___b.c-d"
    assert scene.topics() == {scene.database: 2, first: 2, second: 2}
    assert [r.key for r in feed.rows(first)] == [(1,)]
    assert [r.key for r in feed.rows(second)] == [(2,)]
    # A table that comes later, and a process that ends between the record and the publishing.
    third = f"x_{scene.database}_later"
    scene.sql("CREATE TABLE later (id INT PRIMARY KEY)", "INSERT INTO later VALUES (3)")

    def crash(plan: object) -> None:
        raise SinkUnavailable("the process ends here")

    feed.runner.after = crash
    until_it_fails(feed, "the process ends here")
    feed.runner.after = lambda plan: None
    feed.run()
    feed.catch_up()
    assert {r.key for r in feed.rows(third)} == {(3,)}
    assert written(feed, third) == {0, 1}
    assert feed.rows() == []
    # The default topic has the statements that belong to no table, and the watermarks.
    assert written(feed) == {0, 1}


def test_no_topic_is_made_where_that_is_forbidden(table: Scene) -> None:
    query = f"{CANAL}&auto-create-topic=false"
    lead = "`auto-create-topic` is false, and"
    with pytest.raises(TopicRefused, match=f"{lead} {table.database} not found"):
        table.feed(query)
    table.broker.create_topic(table.database, 1)
    with pytest.raises(TopicRefused, match=f"{lead} x_{table.database}_t not found"):
        table.feed(query, OWN_TOPICS % "x")
    table.broker.create_topic(f"x_{table.database}_t", 1)
    feed = table.feed(query, OWN_TOPICS % "x")
    feed.catch_up()
    assert len(feed.rows(f"x_{table.database}_t")) == 20
    table.sql("CREATE TABLE later (id INT PRIMARY KEY)", "INSERT INTO later VALUES (1)")
    with pytest.raises(TopicRefused, match=f"{lead} x_{table.database}_later not found"):
        feed.catch_up()
    table.broker.create_topic(f"x_{table.database}_later", 1)
    feed.run()
    feed.catch_up()
    assert len(feed.rows(f"x_{table.database}_later")) == 1


def test_what_the_broker_refuses_is_told_at_creation(table: Scene) -> None:
    with pytest.raises(TopicRefused, match="cannot be created: .*replication factor") as refused:
        table.feed(f"{CANAL}&replication-factor=2")
    assert refused.value.verdict is Verdict.STOP
    assert "\n" not in str(refused.value)
    assert table.topics() == {}


def test_avro_has_one_table_in_a_topic(scene: Scene, schema_registry: SchemaRegistryServer) -> None:
    query = f"protocol=avro&schema-registry={schema_registry.url}"
    scene.sql("CREATE TABLE t (id INT PRIMARY KEY)", "CREATE TABLE u (id INT PRIMARY KEY)")
    with pytest.raises(TopicRefused, match=f"would hold {scene.database}.t and {scene.database}.u"):
        scene.feed(query)
    for topic in ("x", "{schema}", "x_{table}"):
        config = f"[sink]\ndispatchers = [{{matcher = ['*.*'], topic = '{topic}'}}]\n"
        with pytest.raises(BadDispatchRule, match="must contain {schema} and {table}"):
            scene.feed(query, config)
    assert scene.topics() == {}
    scene.sql("DROP TABLE u", "INSERT INTO t VALUES (1)")
    feed = scene.feed(query)
    feed.catch_up()
    assert feed.images() == [{"id": 1}]
    scene.sql("CREATE TABLE u (id INT PRIMARY KEY)", "INSERT INTO u VALUES (2)")
    with pytest.raises(TopicRefused, match="needs a topic for each table"):
        feed.catch_up()
    assert feed.images() == [{"id": 1}]
