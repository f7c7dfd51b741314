"""Rows that are too large for their topic are parked; nothing overtakes them."""

from __future__ import annotations

import pytest
from kafka_feed_kit import NAME, KafkaFeed, Scene

from rowferry.change.quarantine import ParkedRow
from rowferry.errors import MessageTooLarge, OptionsConflict, QuarantineFull

LIMIT = 3000
CANAL = f"protocol=canal-json&enable-tidb-extension=true&max-message-bytes={LIMIT}"
OPEN = f"protocol=open-protocol&max-message-bytes={LIMIT}"
SIMPLE = f"protocol=simple&max-message-bytes={LIMIT}"
PARKS = "on-bad-row = 'quarantine'\n"
BIG = "REPEAT('x', 5000)"


@pytest.fixture
def small(scene: Scene) -> Scene:
    scene.sql("CREATE TABLE t (id INT PRIMARY KEY, note TEXT)")
    scene.broker.create_topic(scene.database, 2, {})
    return scene


def parked(feed: KafkaFeed) -> tuple[ParkedRow, ...]:
    return feed.store.parked(NAME)


def keys(feed: KafkaFeed) -> list[tuple[str, str]]:
    return [(row.key, row.op.name.lower()) for row in parked(feed)]


def retry(feed: KafkaFeed) -> None:
    feed.store.want_parked(NAME, {row.parked_key for row in parked(feed)})
    feed.catch_up()


def first_seen(feed: KafkaFeed) -> dict[int, list[tuple[str, int]]]:
    """The changes of each key in the order in which a reader first sees them, by note length."""
    found: dict[int, list[tuple[str, int]]] = {}
    for row in feed.rows():
        image = row.after or row.before or {}
        one = (row.op.name, len(image["note"]))
        mine = found.setdefault(image["id"], [])
        if one not in mine:
            mine.append(one)
    return found


@pytest.mark.parametrize("query", [CANAL, OPEN, SIMPLE])
def test_a_row_that_is_too_large_waits_with_what_follows_it(small: Scene, query: str) -> None:
    feed = small.feed(query, PARKS)
    feed.catch_up()
    small.sql(
        f"INSERT INTO t VALUES (7, 'a'), (8, 'b'), (9, {BIG})",
        f"UPDATE t SET note = {BIG} WHERE id = 7",
        "UPDATE t SET note = 'shorter' WHERE id = 7",
        "UPDATE t SET note = 'other' WHERE id = 8",
    )
    feed.catch_up()
    assert sorted(keys(feed)) == [
        ("7", "insert"),
        ("7", "update"),
        ("7", "update"),
        ("9", "insert"),
    ]
    assert "makes a message of" in next(row.cause for row in parked(feed) if row.key == "9")
    seen = first_seen(feed)
    assert seen[8] == [("INSERT", 1), ("UPDATE", 5)]
    assert 9 not in seen and seen.get(7, []) in ([], [("INSERT", 1)])
    small.sql("DELETE FROM t WHERE id = 7", "UPDATE t SET note = 'end' WHERE id = 8")
    feed.catch_up()
    assert keys(feed)[-1] == ("7", "delete")
    assert first_seen(feed)[8][-1] == ("UPDATE", 3)
    retry(feed)  # nothing was cured: all of it stays
    assert len(keys(feed)) == 5
    feed.sink_uri = feed.sink_uri.replace(f"bytes={LIMIT}", "bytes=100000")
    feed.run()
    retry(feed)
    assert keys(feed) == []
    seen = first_seen(feed)
    assert [op for op, _ in seen[7]] == ["INSERT", "UPDATE", "UPDATE", "DELETE"]
    assert [size for _, size in seen[7][:3]] == [1, 5000, 7]
    assert seen[9] == [("INSERT", 5000)]
    small.sql("INSERT INTO t VALUES (7, 'again')")
    feed.catch_up()
    assert first_seen(feed)[7][-1] == ("INSERT", 5)
    assert feed.faults == []


def test_a_kill_between_park_and_publish_parks_once(
    small: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed = small.feed(CANAL, PARKS)
    feed.catch_up()
    small.sql(f"INSERT INTO t VALUES (1, 'a'), (2, {BIG})", "ALTER TABLE t ADD COLUMN n INT")
    before: list[tuple[ParkedRow, ...]] = []

    def killed(*_: object) -> None:
        before.append(parked(feed))
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(type(feed.store), "publish", killed)
        with pytest.raises(KeyboardInterrupt):
            feed.catch_up()
    assert before[0] == ()  # parked, and shown to nobody before the micro-batch is published
    feed.run()
    feed.catch_up()
    assert [(row.key, "makes a message of" in row.cause) for row in parked(feed)] == [("2", True)]
    retry(feed)  # readers have been told of the new column: the old row cannot follow
    assert "altered since" in parked(feed)[0].cause


def test_without_it_and_with_too_many_the_feed_stops(small: Scene) -> None:
    feed = small.feed(CANAL, f"{PARKS}quarantine-limit = 1\n")
    feed.catch_up()
    small.sql(f"INSERT INTO t VALUES (1, {BIG}), (2, {BIG})")
    with pytest.raises(QuarantineFull, match="more than 1 rows"):
        feed.catch_up()
    feed.config = ""
    feed.run()  # what was decided for the recorded plan stays so; there is more room now
    feed.catch_up()
    assert keys(feed) == [("1", "insert"), ("2", "insert")]
    small.sql(f"INSERT INTO t VALUES (3, {BIG})")
    with pytest.raises(MessageTooLarge):
        feed.catch_up()
    with pytest.raises(OptionsConflict, match="output-raw-change-event"):
        small.feed(CANAL, f"{PARKS}[sink.kafka-config]\noutput-raw-change-event = true\n")
