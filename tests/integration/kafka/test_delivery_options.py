"""Acknowledgements, compression, names and columns: what a reader finds in the messages."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import cast

import pyarrow as pa
import pytest
from kafka_feed_kit import Scene, Statement

from rowferry.change.plan import Topic
from rowferry.flow.assemble import assemble, option_tables, sink_traits
from rowferry.flow.encode.contract import Encoded
from rowferry.flow.sink.contract import LaneSink, Owner, Packet
from rowferry.spec.build import build_spec
from rowferry.testing.servers import Kafka

CODECS = {"none": 0, "gzip": 1, "snappy": 2, "lz4": 3, "zstd": 4}
WORDS = [f"word {n}".encode() * 20 for n in range(500)]


def deliver(broker: Kafka, topic: str, query: str, words: Sequence[bytes | None]) -> None:
    uri = f"kafka://{broker.bootstrap}/{topic}?protocol=open-protocol&partition-num=1&{query}"
    spec, _ = build_spec("range://h:1", uri, tables=option_tables, sinks=sink_traits)
    sink = cast(LaneSink, assemble(spec).sink)
    sink.open(Owner("feed", 1), None)
    keys = pa.array([b"k%d" % n for n in range(len(words))], pa.large_binary())
    messages = Encoded(pa.array(words, pa.large_binary()), keys)
    sink.deliver(iter([Packet(0, 0, Topic(topic, 1, 1 << 20), 0, messages)]))
    sink.close()


@pytest.mark.parametrize("compression", list(CODECS))
def test_compression(kafka_broker: Kafka, compression: str) -> None:
    topic = f"compression-{compression}"
    deliver(kafka_broker, topic, f"compression={compression}", WORDS)
    assert [m.value for m in kafka_broker.read_all(topic)] == WORDS
    assert codec_of(kafka_broker.folder / "data" / f"{topic}-0") == CODECS[compression]


def codec_of(log: Path) -> int:
    """Return how the first batch of a partition is compressed, as its attributes say."""
    head = (log / f"{0:020}.log").read_bytes()[:23]
    return int.from_bytes(head[21:23], "big") & 7


@pytest.mark.parametrize("acks", [-1, 0, 1])
def test_acknowledgements(kafka_broker: Kafka, acks: int) -> None:
    topic = f"acks{acks}"
    deliver(kafka_broker, topic, f"required-acks={acks}", [*WORDS, None])
    found = kafka_broker.read_all(topic)
    assert [m.value for m in found] == [*WORDS, None]
    assert [m.key for m in found] == [b"k%d" % n for n in range(len(found))]


def test_names_columns_and_filters_are_seen_in_messages(scene: Scene) -> None:
    scene.sql("CREATE TABLE t (id INT PRIMARY KEY, kept INT, secret INT)")
    database = scene.database
    feed = scene.feed(
        "protocol=canal-json&enable-tidb-extension=true&partition-num=4",
        f"""[[sink.dispatchers]]
matcher = ['{database}.t']
partition = 'pk'
topic = '{database}-{{table}}'
target-schema = 'far_{{schema}}'
target-table = 'away'
[[sink.column-selectors]]
matcher = ['{database}.t']
columns = ['*', '!secret']
[filter]
[[filter.event-filters]]
matcher = ['{database}.t']
ignore-event = ['delete']
ignore-insert-value-expr = 'secret > 5'
""",
    )
    feed.catch_up()
    scene.sql(
        "INSERT INTO t VALUES (1, 10, 1), (2, 20, 9), (3, 30, 3)",
        "UPDATE t SET kept = 11 WHERE id = 1",
        "DELETE FROM t WHERE id = 3",
        "ALTER TABLE t ADD COLUMN more INT",
    )
    feed.catch_up()
    topic = f"{database}-t"  # by the source's name, as partitions are
    rows = sorted(feed.rows(topic), key=lambda row: (row.commit_ts, row.key))
    assert [(row.op.name, row.after) for row in rows] == [
        ("INSERT", {"id": 1, "kept": 10}),
        ("INSERT", {"id": 3, "kept": 30}),
        ("UPDATE", {"id": 1, "kept": 11}),
    ]
    assert {str(row.table.id) for row in rows} == {f"far_{database}.away"}
    homes = {row.key: row.where.container for row in rows[:2]}
    assert homes[rows[2].key] == rows[2].where.container
    (statement,) = (s for s in feed.read(topic) if isinstance(s, Statement))
    assert str(statement.change.table) == f"far_{database}.away"
    assert "away" in statement.change.query
    assert "secret" not in b"".join(m.value or b"" for m in scene.broker.read_all(topic)).decode()
