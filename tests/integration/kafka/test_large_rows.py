"""Rows that are larger than their topic takes, and topics that take little."""

from __future__ import annotations

from pathlib import Path

import pytest
from kafka_feed_kit import Scene

from rowferry.errors import MessageTooLarge, Verdict

LIMIT = 3000
CANAL, OPEN = "protocol=canal-json&enable-tidb-extension=true", "protocol=open-protocol"
TABLE = "CREATE TABLE t (id INT PRIMARY KEY, note TEXT)"
# Random text: no compression makes it small.
BIG = (
    "INSERT INTO t SELECT %d, GROUP_CONCAT(SHA2(CONCAT(RAND(), n), 256) SEPARATOR '') FROM "
    "(WITH RECURSIVE s(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM s WHERE n < 90) "
    "SELECT n FROM s) AS numbers"
)


@pytest.fixture
def small(scene: Scene) -> Scene:
    """A topic that takes little, whatever `max-message-bytes` says."""
    scene.sql(TABLE)
    scene.broker.create_topic(scene.database, 2, {"max.message.bytes": str(LIMIT)})
    return scene


def handling(**settings: str) -> str:
    lines = [f"{key.replace('_', '-')} = '{value}'" for key, value in settings.items()]
    return "[sink.kafka-config.large-message-handle]\n" + "\n".join(lines)


@pytest.mark.parametrize("query", [CANAL, OPEN])
def test_by_default_the_feed_stops_and_names_the_row(small: Scene, query: str) -> None:
    feed = small.feed(query)
    feed.catch_up()
    small.sql("SET SESSION group_concat_max_len = 100000", BIG % 7)
    with pytest.raises(MessageTooLarge) as caught:
        feed.catch_up()
    assert caught.value.verdict is Verdict.STOP
    words = str(caught.value)
    assert f"{small.database}.t (id = 7)" in words
    assert f"topic {small.database} takes {LIMIT - 128}" in words
    assert "handle-key-only" in words
    assert feed.rows() == []


def test_the_option_counts_where_it_is_smaller(scene: Scene) -> None:
    scene.sql(TABLE, "INSERT INTO t VALUES (1, REPEAT('x', 900))")
    feed = scene.feed(f"{CANAL}&max-message-bytes=800")
    with pytest.raises(MessageTooLarge, match="takes 800"):
        feed.catch_up()


@pytest.mark.parametrize(
    ("query", "option", "compression"),
    [
        (CANAL, "handle-key-only", "none"),
        (OPEN, "handle-key-only", "snappy"),
        (CANAL, "claim-check", "lz4"),
        (OPEN, "claim-check", "none"),
    ],
)
def test_other_ways(
    small: Scene, tmp_path: Path, query: str, option: str, compression: str
) -> None:
    config = handling(
        large_message_handle_option=option,
        large_message_handle_compression=compression,
        claim_check_storage_uri=f"file://{tmp_path}/claims",
    )
    feed = small.feed(query, config)
    feed.catch_up()
    small.sql("SET SESSION group_concat_max_len = 100000", BIG % 7, "INSERT INTO t VALUES (8, 's')")
    small.sql("UPDATE t SET note = CONCAT(note, '!') WHERE id = 7", "DELETE FROM t WHERE id = 7")
    source = small.server.execute(f"SELECT id, note FROM {small.database}.t")
    assert source == [("8", "s")]
    feed.catch_up()
    assert feed.faults == []
    raw = small.broker.read_all(feed.topic)
    assert max(len(m.value or b"") for m in raw) < LIMIT
    rows = sorted(feed.rows(), key=lambda row: row.commit_ts)
    assert [(row.op.name, row.key) for row in rows] == [
        ("INSERT", (7,)),
        ("INSERT", (8,)),
        ("UPDATE", (7,)),
        ("DELETE", (7,)),
    ]
    first, small_row, update, _ = rows
    assert small_row.after == {"id": 8, "note": "s"}
    assert not small_row.key_only
    if option == "handle-key-only":
        assert first.key_only
        assert first.after == {"id": 7}
        assert list(tmp_path.glob("claims/*")) == []
    else:
        assert len((first.after or {})["note"]) == 90 * 64
        assert (update.after or {})["note"] == (first.after or {})["note"] + "!"
        assert len(list(tmp_path.glob("claims/*"))) == 3


@pytest.mark.parametrize(("query", "compression"), [(CANAL, "none"), (OPEN, "gzip")])
def test_many_small_rows_never_make_a_batch_that_is_too_large(
    small: Scene, query: str, compression: str
) -> None:
    count = 3000
    values = ", ".join(f"({n}, '{n * 7919 % 100003}')" for n in range(count))
    small.sql(f"INSERT INTO t VALUES {values}")
    feed = small.feed(f"{query}&compression={compression}")
    feed.catch_up()
    assert feed.faults == []
    assert [row.key[0] for row in feed.rows()] == list(range(count))
