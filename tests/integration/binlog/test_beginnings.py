"""Where a feed begins, and that it goes on where it stopped: no gap, no repeat."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from feed_kit import NAME, Feed, Scene, scene_of

from rowferry.change.plan import Plan
from rowferry.change.position import PHYSICAL_SHIFT, physical_ms
from rowferry.errors import BadOption, LogLost, SourceMismatch, SourceUnavailable
from rowferry.flow.capture.binlog.snapshot import snapshots as snapshot
from rowferry.flow.capture.binlog.source import BinlogSource
from rowferry.mysql.session import connected
from rowferry.mysql.snapshot_position import high_position
from rowferry.testing.servers import Server

PLAIN_TABLE = "CREATE TABLE t (id int PRIMARY KEY, v varchar(300))"


@pytest.fixture
def scene(source_server: Server, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Scene]:
    with scene_of(source_server, tmp_path, request.node.name) as found:
        found.sql(PLAIN_TABLE)
        yield found


def insert(scene: Scene, *ids: int) -> None:
    scene.sql(*(f"INSERT INTO t VALUES ({i}, 'row {i}')" for i in ids))


def ids(feed: Feed) -> list[int]:
    """Return the keys of all changes, in replay order."""
    return [(c.after or c.before or {})["id"] for c in feed.changes("t")]


def place(server: Server) -> tuple[str, int, str]:
    """Return the end of the log: file, offset and GTIDs."""
    with connected(server.login) as connection:
        found = high_position(connection, server.login, server.flavour)
    return found["file"], found["offset"], found["gtid"]


# --- the snapshot --------------------------------------------------------------------------------


def test_with_the_rows_that_are_there(scene: Scene) -> None:
    insert(scene, 1, 2)
    feed = scene.feed()
    feed.catch_up()
    insert(scene, 3)
    feed.catch_up()
    assert ids(feed) == [1, 2, 3]
    assert feed.differences() == ""


def test_without_them(scene: Scene) -> None:
    insert(scene, 1, 2)
    feed = scene.feed(source="snapshot=never")
    feed.catch_up()
    insert(scene, 3)
    feed.catch_up()
    assert ids(feed) == [3]
    assert feed.runner.segments("snapshot") == []


def test_only_with_them(scene: Scene) -> None:
    """The run ends by itself; what is written later is not delivered, also by another run."""
    insert(scene, *range(50))
    feed = scene.feed(source="snapshot=only")
    feed.step_until(lambda step: step.finished)
    insert(scene, 100)
    feed.run()
    assert feed.step_until(lambda step: True).finished
    assert sorted(ids(feed)) == list(range(50))


def test_only_with_them_while_they_change(scene: Scene) -> None:
    """As much of the log follows as makes the rows consistent."""
    insert(scene, *range(50))
    feed = scene.feed(source="snapshot=only")

    def write(plan: Plan) -> None:
        feed.runner.before = lambda plan: None
        scene.sql("BEGIN", "DELETE FROM t WHERE id < 10", "UPDATE t SET v = 'new'", "COMMIT")

    feed.runner.before = write
    feed.step_until(lambda step: step.finished)
    assert feed.differences() == ""


# --- places of the log ---------------------------------------------------------------------------


def test_at_a_place_of_the_log(scene: Scene) -> None:
    insert(scene, 1)
    file, offset, _ = place(scene.server)
    insert(scene, 2, 3)
    feed = scene.feed(source=f"start-position={file}:{offset}")
    feed.catch_up()
    assert ids(feed) == [2, 3]


def test_at_the_beginning_of_a_file(scene: Scene) -> None:
    insert(scene, 1)
    scene.server.execute("FLUSH BINARY LOGS")
    file = place(scene.server)[0]
    insert(scene, 2)
    feed = scene.feed(source=f"start-position={file}")
    feed.catch_up()
    feed.run()
    insert(scene, 3)
    feed.catch_up()
    assert ids(feed) == [2, 3]


def test_inside_a_transaction(scene: Scene) -> None:
    """It is refused with the nearest border, which serves."""
    insert(scene, 1)
    file, offset, _ = place(scene.server)
    insert(scene, 2)
    with pytest.raises(BadOption, match=rf"no transaction ends.* {file}:{offset}$"):
        scene.feed(source=f"start-position={file}:{offset + 20}").catch_up()
    feed = scene.feed(source=f"start-position={file}:{offset}")
    feed.catch_up()
    assert ids(feed) == [2]


def test_past_the_end_of_the_log(scene: Scene) -> None:
    file, offset, _ = place(scene.server)
    with pytest.raises(SourceMismatch, match=f"{file}:{offset + 9999} is past the end"):
        scene.feed(source=f"start-position={file}:{offset + 9999}").catch_up()
    with pytest.raises(SourceMismatch, match=r"has no binlog\.999999 yet"):
        scene.feed(source="start-position=binlog.999999:4").catch_up()


def test_behind_transactions(scene: Scene) -> None:
    insert(scene, 1)
    gtid = place(scene.server)[2]
    insert(scene, 2, 3)
    feed = scene.feed(source=f"start-gtid={gtid}")
    feed.catch_up()
    assert ids(feed) == [2, 3]


def test_behind_transactions_that_nobody_made(scene: Scene) -> None:
    later = {
        "mysql": "00000000-1111-2222-3333-444444444444:1-5",
        "mariadb": "7-7-999999",
    }[scene.server.flavour.value]
    with pytest.raises(SourceMismatch, match="does not have transactions that were seen"):
        scene.feed(source=f"start-gtid={later}").catch_up()


def test_behind_a_time(scene: Scene) -> None:
    """MariaDB's log has whole seconds only, so more than one must lie between."""
    insert(scene, 1)
    scene.server.execute("SELECT SLEEP(1.2)")
    clock = scene.server.execute("SELECT FLOOR(UNIX_TIMESTAMP(NOW(3)) * 1000)")[0][0]
    scene.server.execute("FLUSH BINARY LOGS")
    scene.server.execute("SELECT SLEEP(1.2)")
    insert(scene, 2, 3)
    feed = scene.feed(source=f"start-ts={int(str(clock)) << PHYSICAL_SHIFT}")
    feed.catch_up()
    assert ids(feed) == [2, 3]


def test_behind_a_time_with_rows_before_a_statement_on_their_table(scene: Scene) -> None:
    """The statement keeps the columns; rows before it have a version that is gone behind it."""
    insert(scene, 1)
    scene.server.execute("SELECT SLEEP(1.2)")
    clock = scene.server.execute("SELECT FLOOR(UNIX_TIMESTAMP(NOW(3)) * 1000)")[0][0]
    scene.server.execute("SELECT SLEEP(1.2)")
    insert(scene, 2)
    scene.sql("ALTER TABLE t ADD KEY (id)")
    insert(scene, 3)
    feed = scene.feed(source=f"start-ts={int(str(clock)) << PHYSICAL_SHIFT}")
    feed.catch_up()
    assert ids(feed) == [2, 3]


def test_behind_a_commit_ts_that_a_feed_gave(mysql_server: Server, tmp_path: Path) -> None:
    """MySQL's log has microseconds: a feed that begins behind a change gives the same ones."""
    with scene_of(mysql_server, tmp_path, "behind_a_commit_ts") as scene:
        scene.sql(PLAIN_TABLE)
        first = scene.feed(source="snapshot=never")
        first.catch_up()
        for i in range(1, 5):
            insert(scene, i)
            scene.server.execute("SELECT SLEEP(0.01)")
        first.catch_up()
        changes = first.changes("t")
        feed = scene.feed(source=f"start-ts={changes[1].commit_ts}")
        feed.catch_up()
        assert feed.changes("t") == changes[2:]


def test_behind_a_watermark_of_the_same_second(mariadb_server: Server, tmp_path: Path) -> None:
    """MariaDB's log has whole seconds, a watermark has milliseconds: nothing behind it is lost."""
    with scene_of(mariadb_server, tmp_path, "behind_a_watermark") as scene:
        scene.sql(PLAIN_TABLE)
        old = scene.feed(source="snapshot=never")
        while True:
            old.catch_up()
            record = old.store.feed(NAME)
            assert record is not None
            insert(scene, 1)
            scene.server.execute("FLUSH BINARY LOGS")  # the second may be in two files
            insert(scene, 2)
            clock = scene.server.execute("SELECT FLOOR(UNIX_TIMESTAMP(NOW(3)) * 1000)")[0][0]
            if int(str(clock)) // 1000 == physical_ms(record.watermark) // 1000:
                break
            scene.sql("DELETE FROM t")
        feed = scene.feed(source=f"start-ts={record.watermark}")
        feed.catch_up()
        assert ids(feed)[-2:] == [1, 2]
        assert all(change.commit_ts > record.watermark for change in feed.changes("t"))


def test_behind_the_transactions_of_another_feed(scene: Scene) -> None:
    """Just what that one has not delivered comes, above its watermark."""
    old = scene.feed(source="snapshot=never")
    insert(scene, 1)
    old.catch_up()
    record = old.store.feed(NAME)
    assert record is not None
    start = BinlogSource.start_at(old.store.position(NAME), record.watermark)
    insert(scene, 2, 3)
    feed = scene.feed(source=f"start-gtid={start['start-gtid']}&start-ts={record.watermark}")
    feed.catch_up()
    assert ids(feed) == [2, 3]
    assert all(change.commit_ts > record.watermark for change in feed.changes("t"))


def test_behind_all_transactions(scene: Scene) -> None:
    """A time at which nothing was written any more is as good as another."""
    insert(scene, 1)
    scene.server.execute("SELECT SLEEP(1.2)")
    clock = scene.server.execute("SELECT FLOOR(UNIX_TIMESTAMP(NOW(3)) * 1000)")[0][0]
    start_ts = int(str(clock)) << PHYSICAL_SHIFT
    feed = scene.feed(source=f"start-ts={start_ts}")
    feed.catch_up()
    insert(scene, 2)
    feed.catch_up()
    assert ids(feed) == [2]
    assert feed.changes("t")[0].commit_ts > start_ts


def test_behind_a_time_that_is_gone_or_to_come(scene: Scene) -> None:
    with pytest.raises(LogLost, match="start-ts .* before the oldest log file"):
        scene.feed(source="start-ts=1000").catch_up()
    with pytest.raises(BadOption, match="ahead of the source's clock"):
        scene.feed(source=f"start-ts={4_000_000_000_000 << PHYSICAL_SHIFT}").catch_up()


def test_two_beginnings(scene: Scene) -> None:
    with pytest.raises(BadOption, match="start-position and start-gtid name two beginnings"):
        scene.feed(source="start-position=binlog.000001&start-gtid=0-1-1")
    with pytest.raises(BadOption, match="start-ts and start-position name two beginnings"):
        scene.feed(source="start-ts=5&start-position=binlog.000001")
    with pytest.raises(BadOption, match="snapshot = only"):
        scene.feed(source="start-ts=5&snapshot=only")


def test_before_the_tables_were_altered(scene: Scene) -> None:
    """The server tells only what they are now; the log tells what they were."""
    insert(scene, 1)
    file, offset, _ = place(scene.server)
    scene.sql(
        "INSERT INTO t VALUES (2, 'two')",
        "ALTER TABLE t ADD COLUMN n int DEFAULT 7 FIRST",
        "INSERT INTO t VALUES (3, 3, 'three')",
        "ALTER TABLE t DROP COLUMN v",
        "INSERT INTO t VALUES (4, 4)",
    )
    feed = scene.feed(source=f"start-position={file}:{offset}")
    feed.catch_up()
    assert [c.after for c in feed.changes("t")] == [
        {"id": 2, "v": "two"},
        {"n": 3, "id": 3, "v": "three"},
        {"n": 4, "id": 4},
    ]


# --- going on ------------------------------------------------------------------------------------


def test_a_restart_after_every_step(scene: Scene) -> None:
    insert(scene, 1)
    feed = scene.feed()
    for i in range(2, 12):
        insert(scene, i)
        feed.step()
        feed.run()
        if i % 4 == 0:
            scene.server.execute("FLUSH BINARY LOGS")
    feed.catch_up()
    assert ids(feed) == list(range(1, 12))
    assert feed.differences() == ""


def test_a_restart_after_every_failure(scene: Scene) -> None:
    """Tasks die before or after they wrote; the recorded plan is carried out by the next run."""
    insert(scene, 1)
    feed = scene.feed()
    feed.catch_up()

    def fail(plan: Plan) -> None:
        feed.runner.before = feed.runner.after = lambda plan: None
        raise SourceUnavailable("the machine was switched off")

    for i in range(2, 8):
        insert(scene, i)
        if i % 2:
            feed.runner.before = fail
        else:
            feed.runner.after = fail
        while len(feed.faults) < i - 1:
            feed.step()
        feed.run()
    feed.catch_up()
    assert ids(feed) == list(range(1, 8))


def test_a_restart_inside_a_snapshot(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """It goes on behind the last part that was finished: each part is read once."""
    monkeypatch.setattr(snapshot, "MOST_SEGMENTS", 2)
    monkeypatch.setattr(snapshot, "_LEAST_ROWS", 100)
    monkeypatch.setattr(snapshot, "_MOST_ROWS", 100)
    rows = ", ".join(f"({i}, 'row {i}')" for i in range(1000))
    scene.sql(f"INSERT INTO t VALUES {rows}")
    feed = scene.feed()
    steps = 0
    while len(ids(feed)) < 1000:
        feed.step()
        feed.run()
        steps += 1
        scene.sql(f"UPDATE t SET v = 'changed' WHERE id = {steps}")
    assert steps >= 5
    feed.catch_up()
    parts = [str(read["chunk"]) for read in feed.runner.segments("snapshot")]
    assert len(parts) == len(set(parts)) >= 10
    assert feed.differences() == ""


def test_a_snapshot_is_told_of_from_its_plan_on_part_by_part(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot, "MOST_SEGMENTS", 3)
    monkeypatch.setattr(snapshot, "_LEAST_ROWS", 100)
    monkeypatch.setattr(snapshot, "_MOST_ROWS", 100)
    scene.sql("CREATE TABLE keyless (v INT)", "INSERT INTO keyless VALUES (1), (1)")
    rows = ", ".join(f"({i}, 'row {i}')" for i in range(1000))
    scene.sql(f"INSERT INTO t VALUES {rows}", "ANALYZE TABLE t, keyless")
    feed = scene.feed(config="force-replicate = true")
    feed.catch_up()
    own = [p for p in feed.told if p.snapshots]
    assert {p.unit for p in own} == {"rows"}
    first = {s.table.table: s for s in own[0].snapshots}
    assert own[0].rows == 0 and first["t"].done == 0  # planned: nothing was read yet
    assert 900 <= first["t"].total <= 1100 and first["keyless"].total >= 1
    assert len({p.micro_batch for p in own}) >= 4
    sums = [sum(s.done for s in p.snapshots) for p in own]
    assert sums == sorted(sums) and len(set(sums)) >= 10
    last = own[-1]
    assert all(s.done == s.total for s in last.snapshots) and len(last.snapshots) == 2
    assert feed.told[-1].snapshots == ()
    assert feed.differences() == ""


def test_texts_that_csv_readers_take_for_null_are_told_at_creation(scene: Scene) -> None:
    feed = scene.feed(config="[sink.csv]\nquote = ''\nnull = 'NULL'", protocol="csv")
    assert any("sink.csv.quote is empty" in words for words in feed.notices)
