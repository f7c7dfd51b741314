"""A topic to which this changefeed has sent is never made again in silence."""

from __future__ import annotations

import pytest
from kafka_feed_kit import KafkaFeed, Scene

from rowferry.control.lifecycle import Verb
from rowferry.control.operator.operations import Operations
from rowferry.errors import TargetLost, Verdict
from rowferry.flow.sink.queue import topic_sink

CANAL = "protocol=canal-json&enable-tidb-extension=true&write-timeout=300ms"
OWN_TOPICS = "[sink]\ndispatchers = [{matcher = ['*.*'], topic = 'x_{schema}_{table}'}]\n"


def stopped(feed: KafkaFeed, words: str) -> None:
    """A run, and another one after a resume, end with this error."""
    for _ in range(2):
        with pytest.raises(TargetLost, match=words) as said:
            feed.run()
            feed.catch_up()
        assert said.value.verdict is Verdict.STOP


def reset(feed: KafkaFeed) -> None:
    """Do what the error says: `rowferry changefeed reset --snapshot`."""
    feed.stop()
    feed.store.move("feed", Verb.PAUSE)
    Operations(feed.store).reset("feed", snapshot=True)
    feed.store.move("feed", Verb.RESUME)
    feed.run()


def test_a_topic_that_is_deleted(scene: Scene) -> None:
    scene.sql("CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (1), (2)")
    feed = scene.feed(CANAL)
    feed.catch_up()
    scene.broker.delete_topic(feed.topic)
    scene.sql("INSERT INTO t VALUES (3)")
    with pytest.raises(TargetLost, match=f"topic {feed.topic} is gone, .*reset --snapshot"):
        feed.catch_up()
    stopped(feed, f"topic {feed.topic} is gone")
    assert scene.topics() == {}
    reset(feed)
    feed.catch_up()
    assert {row.key[0] for row in feed.rows()} == {1, 2, 3}
    assert scene.topics() == {feed.topic: 3}


def test_a_topic_that_is_made_again(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """While it runs, while it is paused, and with fewer partitions than were written."""
    scene.sql("CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (1), (2)")
    feed = scene.feed(CANAL)
    feed.catch_up()
    feed.catch_up()
    scene.broker.delete_topic(feed.topic)
    scene.broker.create_topic(feed.topic, 3)
    monkeypatch.setattr(topic_sink, "_LOOK_S", 0.0)
    again = f"topic {feed.topic} was deleted and made again"
    with pytest.raises(TargetLost, match=again):
        feed.catch_up()
    stopped(feed, again)
    reset(feed)
    feed.catch_up()
    assert {row.key[0] for row in feed.rows()} == {1, 2}
    # From before ids were remembered, fewer partitions tell it, too.
    with feed.store.database.engine.begin() as connection:  # type: ignore[attr-defined]
        told = f'{{"topics": {{"{feed.topic}": 3}}, "owners": {{}}}}'
        connection.exec_driver_sql(f"UPDATE changefeeds SET sink_state = '{told}'")
    feed.run()
    feed.catch_up()
    scene.broker.delete_topic(feed.topic)
    scene.broker.create_topic(feed.topic, 1)
    stopped(feed, again)
    with feed.store.database.engine.begin() as connection:  # type: ignore[attr-defined]
        connection.exec_driver_sql(f"UPDATE changefeeds SET sink_state = '{told}'")
    stopped(feed, "has 1 partitions, and this changefeed has written to 3")


def test_the_topic_of_a_dropped_table_may_be_deleted(scene: Scene) -> None:
    scene.sql(
        "CREATE TABLE t (id INT PRIMARY KEY)",
        "CREATE TABLE u (id INT PRIMARY KEY)",
        "INSERT INTO t VALUES (1)",
        "INSERT INTO u VALUES (1)",
    )
    feed = scene.feed(CANAL, OWN_TOPICS)
    feed.catch_up()
    scene.sql("DROP TABLE u")
    feed.catch_up()
    kept, gone = f"x_{scene.database}_t", f"x_{scene.database}_u"
    scene.broker.delete_topic(gone)
    scene.sql("INSERT INTO t VALUES (2)")
    feed.catch_up()
    assert {fault.verdict for fault in feed.faults} <= {Verdict.RETRY}
    feed.run()
    scene.sql("INSERT INTO t VALUES (3)")
    feed.catch_up()
    assert {row.key[0] for row in feed.rows(kept)} == {1, 2, 3}
    assert gone not in scene.topics()
    scene.sql("CREATE TABLE u (id INT PRIMARY KEY)", "INSERT INTO u VALUES (7)")
    feed.catch_up()
    assert feed.images(gone) == [{"id": 7}]


def test_a_topic_that_was_deleted_after_its_table_is_made_again_for_the_next(scene: Scene) -> None:
    """Without a resume in between, and without anything else that is sent."""
    scene.sql("CREATE TABLE u (id INT PRIMARY KEY)", "INSERT INTO u VALUES (1)")
    feed = scene.feed(CANAL, OWN_TOPICS)
    feed.catch_up()
    scene.sql("DROP TABLE u")
    feed.catch_up()
    scene.broker.delete_topic(f"x_{scene.database}_u")
    scene.sql("CREATE TABLE u (id INT PRIMARY KEY)", "INSERT INTO u VALUES (7)")
    feed.catch_up()
    assert feed.images(f"x_{scene.database}_u") == [{"id": 7}]
    assert {fault.verdict for fault in feed.faults} <= {Verdict.RETRY}
