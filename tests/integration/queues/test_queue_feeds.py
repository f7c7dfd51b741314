"""Feeds from MySQL to each queueing service: order, replays, lost topics, and every promise."""

from __future__ import annotations

import random
import time
from collections import Counter, defaultdict

import pytest
from kafka_feed_kit import NAME, Mark, Statement
from queue_feed_kit import LEAVES_REPEATS_OUT, QueueScene
from test_kafka_promises import BY_KEY, FACTS, judge, read

from rowferry.change.chunk import Rows
from rowferry.change.table import TableId
from rowferry.errors import SinkUnavailable, TargetLost, Verdict
from rowferry.spark.shared import DriverRunner
from rowferry.testing.mysql_history import (
    JOURNAL,
    MySqlWriters,
    broken_order,
    make_history,
    make_tables,
    read_rows,
    settled,
)
from rowferry.testing.rebuild import compare, rebuild_changes
from rowferry.testing.validators import DeliveryOracle, SnapshotWindow

CANAL = "protocol=canal-json&enable-tidb-extension=true"


def test_rows_by_key_and_a_replay(scene: QueueScene) -> None:
    """A key has one partition; what is sent again has the ids that it had."""
    scene.sql("CREATE TABLE t (id INT PRIMARY KEY, v INT)")
    feed = scene.feed(CANAL, BY_KEY)
    feed.catch_up()
    faults = iter([True, True, False])

    def stumble(plan: object) -> None:
        if plan.stretch.segments and next(faults, False):  # type: ignore[attr-defined]
            raise SinkUnavailable("the answer was lost")

    feed.runner.after = stumble
    for turn in range(2):
        first = 30 * turn
        scene.sql(*(f"INSERT INTO t (id, v) VALUES ({i}, 0)" for i in range(first, first + 30)))
        scene.sql(f"ALTER TABLE t ADD COLUMN c{turn} INT", f"DELETE FROM t WHERE id = {first}")
        feed.catch_up()
        feed.run()
    assert len(feed.faults) == 2
    lanes: dict[int, set[str]] = defaultdict(set)
    counts: Counter[int] = Counter()
    arrived = feed.read()
    for row in feed.rows():
        lanes[row.key[0]].add(row.where.container)
        counts[row.key[0]] += 1
    assert lanes.keys() == set(range(60))
    assert all(len(found) == 1 for found in lanes.values())
    assert len({place for found in lanes.values() for place in found}) == 3
    scene.check_ids()
    if scene.queue.kind in LEAVES_REPEATS_OUT:
        assert {count for key, count in counts.items() if key % 30} == {1}
    assert {s.where.container for s in arrived if isinstance(s, Statement)} >= {"0"}
    assert {m.where.container for m in arrived if isinstance(m, Mark)} == {"0", "1", "2"}


def test_several_segments_in_one_micro_batch(scene: QueueScene) -> None:
    """Each begins a new log file; a lane's messages are counted over all of them."""
    scene.sql("CREATE TABLE t (id INT PRIMARY KEY, v INT)")
    feed = scene.feed(CANAL, BY_KEY)
    feed.catch_up()
    segments: list[int] = []
    feed.runner.after = lambda plan: segments.append(len(plan.stretch.segments))

    def write(start: int) -> None:
        for first in range(start, start + 90, 30):
            scene.sql(*(f"INSERT INTO t VALUES ({i}, 0)" for i in range(first, first + 30)))
            scene.server.execute("FLUSH BINARY LOGS")

    write(0)
    feed.catch_up()
    assert max(segments) > 1, segments
    feed.runner = DriverRunner()  # type: ignore[assignment]
    feed.run()
    write(90)
    feed.catch_up()
    assert sorted(row.key[0] for row in feed.rows()) == list(range(180))
    scene.check_ids()


def test_a_topic_that_is_deleted(scene: QueueScene) -> None:
    scene.sql("CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (1), (2)")
    feed = scene.feed(f"{CANAL}&timeout=20s")
    feed.catch_up()
    scene.queue.server.delete_topic(feed.topic)
    scene.sql("INSERT INTO t VALUES (3)")
    wanted = f"topic {feed.topic} is gone, .*reset --snapshot"
    with pytest.raises(TargetLost, match=wanted) as said:
        feed.catch_up()
    assert said.value.verdict is Verdict.STOP
    with pytest.raises(TargetLost, match="is gone"):
        feed.run()
        feed.catch_up()


# What stands in for Amazon's services looks through all messages of a queue for each that comes.
@pytest.mark.parametrize("queue", ["redis", "nats", "rabbitmq"], indirect=True)
def test_every_promise_after_a_kill(scene: QueueScene, seed: int) -> None:
    """A random workload; a process is killed with -9 between two batches, another one goes on."""
    server, database = scene.server, scene.database
    server.execute(f"DROP DATABASE {database}")
    make_tables(server, database, 20)
    query = f"{CANAL}&partition-num=3"
    feed = scene.feed(query, BY_KEY)
    schemas = {t.id: t for t in feed.prepare().tables}
    first_rows = {t: list(read_rows(server, s).values()) for t, s in schemas.items()}
    writers = MySqlWriters(server, schemas, prepare=lambda cursor, dice: time.sleep(0.02))
    dice = random.Random(seed)
    first_mark = 0

    def stumble(plan: object) -> None:
        if dice.random() < 0.2:
            raise SinkUnavailable("the answer was lost")

    feed.runner.after = stumble
    writers.start(2, seed)
    try:
        while not first_mark:
            step = feed.step()
            first_mark = step.watermark if step else 0
        feed.stop()
        scene.killed_run(query, BY_KEY, dice.randrange(2, 12))
        feed.run()
        while len(writers.acknowledged) < 60 or not feed.faults:
            feed.step()
    finally:
        writers.stop()
    feed.catch_up()
    messages = list(read(feed, scene))
    commit_ts = {
        token: stamp
        for *_, change, _ in messages
        if isinstance(change, Rows) and change.table.id.table == JOURNAL
        for token, stamp in zip(
            change.after.field("token").to_pylist(), change.commit_ts.tolist(), strict=True
        )
    }
    windows = [
        SnapshotWindow(TableId(r.database, r.table), r.init_snapshot_ts, first_mark)
        for r in feed.store.state(NAME).ranges
        if r.init_snapshot_ts
    ]
    lows = {w.low for w in windows}
    dated = {token: stamp for token, stamp in commit_ts.items() if stamp not in lows}
    history = make_history(first_rows, schemas, settled(writers), dated)
    assert broken_order(history) == []
    assert judge(DeliveryOracle(history, FACTS, windows), messages) == []
    rebuilt = rebuild_changes(change for *_, change, _ in messages)
    source = {name: read_rows(server, schema) for name, schema in schemas.items()}
    found = compare(rebuilt, source)
    assert found.same, str(found)
    scene.check_ids()
