"""Feeds from MySQL to a real Pulsar broker: order, repeats, lost topics, and every promise."""

from __future__ import annotations

import json
import random
import time
from collections import Counter, defaultdict
from pathlib import Path

import pytest
from kafka_feed_kit import NAME, Mark, Statement
from pulsar_feed_kit import PulsarScene
from test_kafka_promises import BY_KEY, FACTS, judge, read

from rowferry.change.chunk import Rows
from rowferry.change.table import TableId
from rowferry.errors import SinkUnavailable, TargetLost, Verdict
from rowferry.testing.harness import RunProcess, wait_for
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
OWN_TOPICS = (
    "[sink]\ndispatchers = [{matcher = ['*.*'], partition = 'pk', "
    "topic = 'persistent://public/default/x_{schema}_{table}'}]\n"
)


def test_rows_by_key_schema_changes_and_watermarks(scene: PulsarScene) -> None:
    scene.sql("CREATE TABLE t (id INT PRIMARY KEY, v INT)", "INSERT INTO t VALUES (1, 0), (2, 0)")
    feed = scene.feed(CANAL, OWN_TOPICS)
    feed.catch_up()
    scene.sql(*(f"INSERT INTO t VALUES ({i}, 0)" for i in range(3, 30)))
    scene.sql("UPDATE t SET v = v + 1", "ALTER TABLE t ADD COLUMN w INT", "UPDATE t SET w = 7")
    scene.sql("DELETE FROM t WHERE id = 9")
    feed.catch_up()
    topic = f"x_{scene.database}_t"
    assert scene.topics()[topic] == 3
    lanes: dict[int, set[str]] = defaultdict(set)
    counts: Counter[int] = Counter()
    for row in feed.rows(topic):
        lanes[row.key[0]].add(row.where.container)
        counts[row.key[0]] += 1
    assert all(len(found) == 1 for found in lanes.values())  # a key has one partition
    assert len({place for found in lanes.values() for place in found}) == 3
    assert {count for key, count in counts.items() if key > 2 and key != 9} == {3}
    arrived = feed.read(topic)
    assert {s.where.container for s in arrived if isinstance(s, Statement)} >= {"0"}
    assert {m.where.container for m in arrived if isinstance(m, Mark)} == {"0", "1", "2"}
    assert scene.repeats(topic) == {}


def test_several_segments_in_one_micro_batch(scene: PulsarScene) -> None:
    """Each begins a new log file; a lane's sequence ids go on over all of them."""
    scene.sql("CREATE TABLE t (id INT PRIMARY KEY, v INT)")
    feed = scene.feed(CANAL, OWN_TOPICS)
    feed.catch_up()
    segments: list[int] = []
    feed.runner.after = lambda plan: segments.append(len(plan.stretch.segments))
    for first in range(0, 90, 30):
        scene.sql(*(f"INSERT INTO t VALUES ({i}, 0)" for i in range(first, first + 30)))
        scene.server.execute("FLUSH BINARY LOGS")
    feed.catch_up()
    assert max(segments) > 1, segments
    keys = [row.key[0] for row in feed.rows(f"x_{scene.database}_t")]
    assert sorted(keys) == list(range(90))


def test_a_replay_adds_nothing(scene: PulsarScene) -> None:
    """After all rows were sent, and after a part of what follows them was."""
    scene.sql("CREATE TABLE t (id INT PRIMARY KEY, v INT)")
    feed = scene.feed(f"{CANAL}&batching-max-messages=7", BY_KEY)
    feed.catch_up()
    faults = iter([True, True, False, True, False])

    def stumble(plan: object) -> None:
        if plan.stretch.segments and next(faults, False):  # type: ignore[attr-defined]
            raise SinkUnavailable("the answer was lost")

    feed.runner.after = stumble
    for turn in range(3):
        scene.sql(
            *(f"INSERT INTO t (id, v) VALUES ({i}, 0)" for i in range(40 * turn, 40 * turn + 40))
        )
        scene.sql(f"ALTER TABLE t ADD COLUMN c{turn} INT")
        feed.catch_up()
        feed.run()
    assert len(feed.faults) == 3
    assert sorted(row.key[0] for row in feed.rows()) == list(range(120))
    assert scene.repeats() == {}


def test_a_topic_that_is_deleted(scene: PulsarScene) -> None:
    scene.sql("CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (1), (2)")
    feed = scene.feed(f"{CANAL}&send-timeout=3s")
    feed.catch_up()
    scene.pulsar.delete_topic(feed.topic)
    scene.sql("INSERT INTO t VALUES (3)")
    name = f"persistent://public/default/{feed.topic}"
    for _ in range(2):
        with pytest.raises(TargetLost, match=f"topic {name} is gone, .*reset --snapshot") as said:
            feed.catch_up()
        assert said.value.verdict is Verdict.STOP
        with pytest.raises(TargetLost, match="is gone"):
            feed.run()
            feed.catch_up()
    scene.pulsar.create_topic(feed.topic, 3)  # by somebody else
    with pytest.raises(TargetLost, match=f"topic {name} was deleted and made again"):
        feed.run()
        feed.catch_up()


def test_every_promise(scene: PulsarScene, seed: int) -> None:
    """A random workload with faults in between: the validators pass, and the log has no repeat."""
    server, database = scene.server, scene.database
    server.execute(f"DROP DATABASE {database}")
    make_tables(server, database, 50)
    feed = scene.feed(f"{CANAL}&partition-num=3&batching-max-messages=20", BY_KEY)
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
        while len(writers.acknowledged) < 120 or not feed.faults:
            step = feed.step()
            first_mark = first_mark or (step.watermark if step else 0)
            if dice.random() < 0.05:
                feed.run()
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
    later = [
        (lane, raw)
        for lane, _, change, raw in messages
        if isinstance(change, Rows) and not lows & set(change.commit_ts.tolist())
    ]
    assert len({(lane, *raw) for lane, raw in later}) == len(later)


def test_a_run_that_is_killed(scene: PulsarScene, tmp_path: Path) -> None:
    """`rowferry run` in the middle of sending, with -9: a reader sees each change once."""
    # A row that comes while the snapshot begins may be in it and in the log: this one is there.
    scene.sql(
        "CREATE TABLE t (id INT PRIMARY KEY AUTO_INCREMENT, v VARCHAR(200))",
        "INSERT INTO t (v) VALUES ('first')",
    )
    config = tmp_path / "feed.toml"
    config.write_text(f"[filter]\nrules = ['{scene.database}.*']\n{BY_KEY}")
    web = f"web-service-url={scene.pulsar.web_url}&deduplication=required"
    place = f"pulsar://{scene.pulsar.address}/{scene.database}"
    uri = f"{place}?protocol=canal-json&{web}&batching-max-messages=2"
    arguments = ["--source", scene.server.uri, "--sink-uri", uri, "--config", str(config)]
    arguments += ["--changefeed-id", "killed"]
    rows = "(" + "), (".join(["REPEAT('x', 150)"] * 2000) + ")"
    with RunProcess(arguments, tmp_path / "work") as process:
        begun = "its beginning is delivered"
        wait_for(lambda: not process.alive or scene.topics(), begun, 600, 0.1)
        wait_for(lambda: not process.alive or scene.stored() > 0, begun, 600, 0.1)
        scene.sql(*[f"INSERT INTO t (v) VALUES {rows}"] * 2)
        wait_for(lambda: not process.alive or scene.stored() > 20, "rows", 600, 0.0)
        assert process.alive, process.printed()[-2000:]
    assert scene.stored() < 4001
    with RunProcess([*arguments, "--until", "caught-up"], tmp_path / "work") as process:
        assert process.wait(600) == 0, process.printed()[-2000:]
    values = [json.loads(m.value or b"{}") for m in scene.pulsar.read_all(scene.database)]
    ids = [v["data"][0]["id"] for v in values if v["type"] == "INSERT"]
    assert len(ids) == len(set(ids)) == 4001
