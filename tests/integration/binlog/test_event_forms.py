"""Every form in which the log can hold a change: what is committed arrives, and nothing else."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pymysql
import pytest
from binlog_file_kit import logged
from feed_kit import NAME, Feed, Scene, Session, keep_nothing, scene_of

from rowferry.change.chunk import DdlKind, Op
from rowferry.change.position import physical_ms
from rowferry.control.feed import service
from rowferry.errors import (
    CorruptLog,
    EventUnknown,
    OptionsConflict,
    SourceUnsupported,
)
from rowferry.flow.assemble import tables_of
from rowferry.flow.capture.binlog import read
from rowferry.flow.capture.binlog.frame import events as ev
from rowferry.flow.capture.binlog.frame import scanner, segment_cutter, segment_join
from rowferry.flow.capture.binlog.snapshot import joining
from rowferry.mysql.session import connected
from rowferry.mysql.snapshot_position import high_position
from rowferry.testing.servers import MariaDb, MariaDb11, MySql, Server

PARTIAL_UPDATE, WRITE_COMPRESSED = 39, 166
PLAIN_TABLE = "CREATE TABLE t (id int PRIMARY KEY, v varchar(300))"


@pytest.fixture(scope="module")
def mysql(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with MySql.start(tmp_path_factory.mktemp("mysql"), server_id=11) as started:
        yield started


@pytest.fixture(scope="module")
def mariadb(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with MariaDb.start(tmp_path_factory.mktemp("mariadb"), server_id=12) as started:
        yield started


@pytest.fixture(scope="module")
def mariadb11(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with MariaDb11.start(tmp_path_factory.mktemp("mariadb11"), server_id=13) as started:
        yield started


@pytest.fixture(scope="module", params=["mysql", "mariadb", "mariadb11"])
def server(request: pytest.FixtureRequest) -> Server:
    """A server of this file's own: its global settings are changed."""
    found: Server = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def scene(server: Server, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Scene]:
    with scene_of(server, tmp_path, request.node.name) as found:
        yield found


@pytest.fixture
def on_mysql(mysql: Server, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Scene]:
    with scene_of(mysql, tmp_path, request.node.name) as found:
        yield found


@pytest.fixture(params=["mariadb", "mariadb11"])
def on_mariadb(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Scene]:
    server: Server = request.getfixturevalue(request.param)
    with scene_of(server, tmp_path, request.node.name) as found:
        yield found


@pytest.fixture(params=["mysql", "mariadb"])
def with_whole_images(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Scene]:
    """Servers whose FULL row images hold generated columns, too."""
    server: Server = request.getfixturevalue(request.param)
    with scene_of(server, tmp_path, request.node.name) as found:
        yield found


@pytest.fixture
def tiny_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments are cut every few KB, in the middle of transactions, and tasks fetch them."""
    monkeypatch.setattr(segment_cutter, "SEGMENT_BYTES", 20_000)
    monkeypatch.setattr(scanner, "HUGE_TXN", 8_000)
    keep_nothing(monkeypatch)


@contextmanager
def setting(server: Server, name: str, value: str) -> Iterator[None]:
    """Change a global setting while the block runs."""
    before = server.execute(f"SELECT @@GLOBAL.{name}")[0][0]
    server.execute(f"SET GLOBAL {name} = {value}")
    try:
        yield
    finally:
        server.execute(f"SET GLOBAL {name} = %s", _as_number(str(before)))


def _as_number(text: str) -> object:
    return int(text) if text.isdecimal() else text


def started(scene: Scene, *tables: str, **settings: str) -> Feed:
    """Make tables and a feed of them that has delivered them."""
    scene.sql(*(tables or (PLAIN_TABLE,)))
    feed = scene.feed(**settings)
    feed.catch_up()
    return feed


def ids(feed: Feed, table: str = "t") -> list[int]:
    """Return the keys of a table's changes, in replay order."""
    return [(c.after or c.before or {})["id"] for c in feed.changes(table)]


def end_xa(session: Session, statement: str) -> None:
    """End a prepared transaction of a session that has just gone."""
    until = time.monotonic() + 120
    while True:
        try:
            session(statement)
        except pymysql.err.MySQLError:
            assert time.monotonic() < until, "the server never let the transaction go"
            time.sleep(0.02)
        else:
            return


def many(first: int, count: int, letter: str = "y") -> str:
    """Return VALUES of rows of growing length."""
    rows = (f"({first + j}, '{letter * (j * 3 % 300)}')" for j in range(count))
    return f"INSERT INTO t VALUES {', '.join(rows)}"


# --- XA ------------------------------------------------------------------------------------------


def prepare_xa(session: Session, xid: str, *statements: str) -> None:
    session(f"XA START {xid}", *statements, f"XA END {xid}", f"XA PREPARE {xid}")


def test_xa_is_delivered_when_it_is_committed(scene: Scene) -> None:
    """Its commit-ts is that of XA COMMIT, whoever runs it: another row came first."""
    feed = started(scene)
    first = scene.session()
    prepare_xa(first, "'a','b',7", "INSERT INTO t VALUES (1, 'prepared')")
    feed.catch_up()
    scene.sql("INSERT INTO t VALUES (2, 'between')")
    feed.catch_up()
    assert ids(feed) == [2]
    first.close()
    end_xa(scene.session(), "XA COMMIT 'a','b',7")
    feed.catch_up()
    assert ids(feed) == [2, 1]
    between, prepared = feed.changes("t")
    assert prepared.commit_ts > between.commit_ts
    assert feed.differences() == ""


def test_xa_is_remembered_by_the_position(scene: Scene) -> None:
    """A process that was started after XA PREPARE finds the rows of it at XA COMMIT."""
    feed = started(scene)
    session = scene.session()
    prepare_xa(session, "'kept'", "INSERT INTO t VALUES (1, 'x')", many(10, 50))
    feed.catch_up()
    feed.run()
    scene.sql("FLUSH BINARY LOGS", "INSERT INTO t VALUES (2, 'in the next file')")
    feed.catch_up()
    feed.run()
    assert ids(feed) == [2]
    session("XA COMMIT 'kept'")
    feed.catch_up()
    assert feed.differences() == ""
    assert feed.repeated("t") == []


def test_xa_rolled_back(scene: Scene) -> None:
    feed = started(scene)
    session = scene.session()
    prepare_xa(session, "'gone'", "INSERT INTO t VALUES (1, 'x')")
    feed.catch_up()
    session("XA ROLLBACK 'gone'")
    prepare_xa(session, "'gone too'", "INSERT INTO t VALUES (2, 'x')")
    session("XA ROLLBACK 'gone too'", "INSERT INTO t VALUES (3, 'stays')")
    feed.catch_up()
    assert ids(feed) == [3]
    assert feed.differences() == ""


def test_xa_in_one_phase(scene: Scene) -> None:
    feed = started(scene)
    scene.sql("XA START 'one'", many(1, 20), "XA END 'one'", "XA COMMIT 'one' ONE PHASE")
    feed.catch_up()
    assert ids(feed) == list(range(1, 21))
    assert feed.differences() == ""


def test_several_xa_at_once(scene: Scene, tiny_segments: None) -> None:
    """They have several segments each, end in another order, and one is rolled back."""
    feed = started(scene)
    sessions = [scene.session() for _ in range(3)]
    for number, session in enumerate(sessions):
        rows = [many(1_000 * number + 100 * i, 100, "xyz"[number]) for i in range(4)]
        prepare_xa(session, f"'x{number}'", *rows)
        scene.sql(f"INSERT INTO t VALUES ({9_000 + number}, 'between')")
        feed.catch_up()
    sessions[2]("XA COMMIT 'x2'")
    feed.catch_up()
    sessions[1]("XA ROLLBACK 'x1'")
    sessions[0]("XA COMMIT 'x0'")
    feed.catch_up()
    assert len(feed.runner.segments("log")) > 5
    assert feed.differences() == ""
    assert ids(feed)[3:] == [*range(2_000, 2_400), *range(400)]


def test_xa_prepared_before_the_beginning(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """A snapshot waits for a moment without any; a feed without one names it at its COMMIT."""
    monkeypatch.setattr(joining, "_TRIES", 3)
    scene.sql(PLAIN_TABLE)
    session = scene.session()
    prepare_xa(session, "'early'", "INSERT INTO t VALUES (1, 'x')")
    with pytest.raises(SourceUnsupported, match="XA RECOVER"):
        scene.feed().catch_up()
    late = scene.feed(source="snapshot=never")
    late.catch_up()
    session("XA COMMIT 'early'")
    with pytest.raises(EventUnknown, match="XA COMMIT .* was prepared before"):
        late.catch_up()
    feed = scene.feed()
    feed.catch_up()
    assert feed.differences() == ""


def test_xa_prepared_before_the_filter_keeps_its_table(scene: Scene) -> None:
    """Without snapshots the rows would be missing: they are named, and others go on."""
    scene.sql(PLAIN_TABLE, "CREATE TABLE late (id int PRIMARY KEY)")
    feed = scene.feed([f"{scene.database}.t"], "snapshot=never")
    feed.catch_up()
    sessions = [scene.session() for _ in range(2)]
    prepare_xa(
        sessions[0], "'both'", "INSERT INTO t VALUES (1, 'x')", "INSERT INTO late VALUES (1)"
    )
    prepare_xa(sessions[1], "'one'", "INSERT INTO t VALUES (2, 'x')")
    feed.catch_up()
    feed.run(rules=[f"{scene.database}.*"])
    sessions[1]("XA COMMIT 'one'", "INSERT INTO late VALUES (2)")
    feed.catch_up()
    sessions[0]("XA COMMIT 'both'")
    with pytest.raises(EventUnknown, match=r"while .*\.late was not captured"):
        feed.catch_up()
    feed.run(rules=[f"{scene.database}.t"])
    feed.catch_up()
    assert ids(feed) == [2, 1]


def test_xa_prepared_before_its_table_joins_with_a_snapshot(scene: Scene) -> None:
    """The snapshot waits until it has ended, and shows its rows."""
    scene.sql(PLAIN_TABLE, "CREATE TABLE late (id int PRIMARY KEY)")
    feed = scene.feed([f"{scene.database}.t"])
    feed.catch_up()
    session = scene.session()
    prepare_xa(session, "'both'", "INSERT INTO t VALUES (1, 'x')", "INSERT INTO late VALUES (1)")
    feed.catch_up()
    feed.run(rules=[f"{scene.database}.*"])
    for _ in range(3):
        feed.step()
    session("XA COMMIT 'both'")
    feed.catch_up()
    assert feed.differences() == ""
    assert feed.repeated("late") == feed.repeated("t") == []


def log_end(scene: Scene) -> str:
    """Return the end of the log as `start-position` names it."""
    with connected(scene.server.login) as connection:
        place = high_position(connection, scene.server.login, scene.server.flavour)
    return f"{place['file']}:{place['offset']}"


def test_xa_prepared_before_a_place_of_the_log(scene: Scene) -> None:
    """Its rows lie before the place: a feed that begins there names it at its COMMIT."""
    scene.sql(PLAIN_TABLE)
    session = scene.session()
    prepare_xa(session, "'early'", "INSERT INTO t VALUES (1, 'x')")
    feed = scene.feed(source=f"start-position={log_end(scene)}")
    feed.catch_up()
    session("XA COMMIT 'early'", "INSERT INTO t VALUES (2, 'behind it')")
    with pytest.raises(EventUnknown, match="XA COMMIT .* was prepared before"):
        feed.catch_up()
    assert ids(feed) == []


def test_xa_ended_before_a_place_of_the_log(scene: Scene) -> None:
    """It is nothing to a feed that begins behind it, in whichever file it was prepared."""
    scene.sql(PLAIN_TABLE)
    session = scene.session()
    prepare_xa(session, "'over'", "INSERT INTO t VALUES (1, 'x')")
    scene.sql("FLUSH BINARY LOGS")
    session("XA COMMIT 'over'")
    feed = scene.feed(source=f"start-position={log_end(scene)}")
    scene.sql("INSERT INTO t VALUES (2, 'behind it')")
    feed.catch_up()
    assert ids(feed) == [2]


def test_xa_in_compressed_transactions(on_mysql: Scene, tiny_segments: None) -> None:
    """All of it, XA PREPARE too, is inside the payload; only what ends it is not."""
    feed = started(on_mysql)
    sessions = [on_mysql.session() for _ in range(3)]
    for number, session in enumerate(sessions):
        session("SET SESSION binlog_transaction_compression = ON")
        prepare_xa(session, f"'z{number}'", *(many(1_000 * number + 100 * i, 100) for i in (0, 1)))
        on_mysql.sql(f"INSERT INTO t VALUES ({9_000 + number}, 'between')")
        feed.catch_up()
    assert ids(feed) == [9_000, 9_001, 9_002]
    sessions[2]("XA COMMIT 'z2'")
    sessions[1]("XA ROLLBACK 'z1'")
    sessions[0]("XA COMMIT 'z0'", "XA START 'one'", many(5_000, 20), "XA END 'one'")
    sessions[0]("XA COMMIT 'one' ONE PHASE")
    feed.catch_up()
    assert feed.differences() == ""
    assert ids(feed)[3:] == [*range(2_000, 2_200), *range(200), *range(5_000, 5_020)]


# --- transactions --------------------------------------------------------------------------------


def test_savepoints(scene: Scene) -> None:
    feed = started(scene)
    scene.sql(
        "BEGIN",
        "INSERT INTO t VALUES (1, 'stays')",
        "SAVEPOINT s",
        "INSERT INTO t VALUES (2, 'goes')",
        "ROLLBACK TO s",
        "INSERT INTO t VALUES (3, 'stays')",
        "RELEASE SAVEPOINT s",
        "COMMIT",
    )
    feed.catch_up()
    assert ids(feed) == [1, 3]
    assert feed.differences() == ""


def test_joined_segments_hold_the_same_rows(
    scene: Scene, tiny_segments: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of many tables, neighbours are read as one segment."""
    monkeypatch.setattr(segment_join, "MANY", 2)
    monkeypatch.setattr(segment_join.os, "cpu_count", lambda: 2)
    other = "CREATE TABLE other (id int PRIMARY KEY, n int)"
    feed = started(scene, PLAIN_TABLE, other)
    session = scene.session()
    for i in range(20):
        session("BEGIN", many(300 * i, 300), f"INSERT INTO other VALUES ({i}, {i})", "COMMIT")
    feed.catch_up()
    segments = feed.runner.segments("log")
    assert max(s["to"] - s["from"] for s in segments) > 1.5 * segment_cutter.SEGMENT_BYTES
    assert ids(feed) == [*range(6000)]
    assert feed.differences() == ""


def test_a_plan_takes_no_other_rows_along(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of tables that are not captured are not kept with plans; all else reads the same.

    What is stored of a plan has no row at all.
    """
    scene.sql(PLAIN_TABLE, "CREATE TABLE other (id int PRIMARY KEY, v varchar(300))")
    feed = scene.feed(rules=[f"{scene.database}.t"])
    feed.catch_up()
    session = scene.session()
    for i in range(40):
        foreign = many(100 * i, 100).replace("INTO t", "INTO other")
        session("BEGIN", foreign, *([] if i % 4 else [many(2 * i, 2)]), "COMMIT")
        session(f"UPDATE other SET v = '{i}' WHERE id = {100 * i}")
    session("BEGIN", "SAVEPOINT s", "DELETE FROM other WHERE id < 9", "UPDATE t SET v = 'both'")
    session("COMMIT")
    feed.catch_up()
    assert feed.differences() == ""
    versions = {(v.table_id, v.version): v for v in feed.store.state(NAME).versions}
    carried, fetched = [], []
    taken = logged = 0  # of all: where the log ends is up to the machine, and so what a plan holds
    for plan in feed.runner.plans:
        tables = tables_of(plan, versions)
        for segment in plan.stretch.segments:
            if segment.read["kind"] == "log":
                assert segment.bytes_here and "near" not in segment.to_json()
                taken, logged = taken + segment.bytes_here, logged + segment.log_bytes
                fetched += feed.read(replace(segment, near=()), tables)
                with monkeypatch.context() as patch:
                    patch.delattr(read, "LogStream")
                    carried += feed.read(segment, tables)
    assert taken < logged / 2
    assert len(carried) == 40
    assert carried == fetched


def test_rows_split_over_segments(scene: Scene, tiny_segments: None) -> None:
    """A transaction of many segments has one commit-ts, and its rows stay in order."""
    other = "CREATE TABLE other (id int PRIMARY KEY, n int)"
    feed = started(scene, PLAIN_TABLE, other)
    session = scene.session()
    session("BEGIN")
    for i in range(30):
        session(many(100 * i, 100), f"INSERT INTO other VALUES ({i}, {i})")
    session("UPDATE t SET v = 'changed' WHERE id % 7 = 0", "DELETE FROM t WHERE id % 5 = 0")
    session("COMMIT", "INSERT INTO t VALUES (-1, 'after')")
    feed.catch_up()
    assert len(feed.runner.segments("log")) > 10
    assert all(not s.near for p in feed.runner.plans for s in p.stretch.segments)
    changes = feed.changes("t")
    assert len({c.commit_ts for c in changes}) == 2
    assert [c.after["id"] for c in changes if c.op is Op.INSERT and c.after] == [*range(3000), -1]
    assert feed.differences() == ""


def test_two_tables_in_one_statement(scene: Scene) -> None:
    feed = started(
        scene,
        "CREATE TABLE a (id int PRIMARY KEY, v int)",
        "CREATE TABLE b (id int PRIMARY KEY, v int)",
        "INSERT INTO a VALUES (1, 1), (2, 2), (3, 3)",
        "INSERT INTO b VALUES (2, 20), (3, 30), (4, 40)",
    )
    scene.sql(
        "UPDATE a JOIN b USING (id) SET a.v = b.v, b.v = b.v + 1",
        "DELETE a, b FROM a JOIN b USING (id) WHERE a.id = 3",
    )
    feed.catch_up()
    assert feed.differences() == ""
    assert [r["v"] for r in feed.rows("a")] == [1, 20]


def test_insert_or_change(scene: Scene) -> None:
    table = "CREATE TABLE t (id int PRIMARY KEY, u int UNIQUE, v varchar(20))"
    feed = started(scene, table, "INSERT INTO t VALUES (1, 10, 'a'), (2, 20, 'b'), (3, 30, 'c')")
    scene.sql(
        "INSERT INTO t VALUES (1, 11, 'x'), (4, 40, 'new') ON DUPLICATE KEY UPDATE v = 'again'",
        "REPLACE INTO t VALUES (2, 21, 'replaced'), (5, 30, 'takes the place of 3')",
        "INSERT IGNORE INTO t VALUES (1, 99, 'nothing happens'), (6, 60, 'six')",
        "UPDATE t SET id = id + 100 WHERE id >= 5",
        "UPDATE t SET v = v",
    )
    feed.catch_up()
    assert feed.differences() == ""
    assert [r["id"] for r in feed.rows("t")] == [1, 105, 106, 2, 4]


def test_triggers(scene: Scene) -> None:
    """What the server changes by itself stands in the log like the rest."""
    feed = started(
        scene,
        "CREATE TABLE t (id int PRIMARY KEY, v int)",
        "CREATE TABLE audit (n int AUTO_INCREMENT PRIMARY KEY, what varchar(50))",
        "CREATE TRIGGER seen AFTER UPDATE ON t FOR EACH ROW "
        "INSERT INTO audit (what) VALUES (CONCAT(OLD.v, ' to ', NEW.v))",
        "INSERT INTO t VALUES (1, 1), (2, 2), (3, 3)",
    )
    scene.sql("UPDATE t SET v = v * 10")
    feed.catch_up()
    assert [r["what"] for r in feed.rows("audit")] == ["1 to 10", "2 to 20", "3 to 30"]
    assert feed.differences() == ""


def test_cascades(on_mysql: Scene) -> None:
    """MySQL 9.6 and later run them where the log sees them."""
    feed = started(
        on_mysql,
        "CREATE TABLE parent (id int PRIMARY KEY)",
        "CREATE TABLE child (id int PRIMARY KEY, p int, FOREIGN KEY (p) REFERENCES parent (id) "
        "ON DELETE CASCADE ON UPDATE CASCADE)",
        "INSERT INTO parent VALUES (1), (2), (3)",
        "INSERT INTO child VALUES (10, 1), (11, 1), (20, 2), (30, 3)",
    )
    on_mysql.sql("UPDATE parent SET id = 7 WHERE id = 3", "DELETE FROM parent WHERE id = 1")
    feed.catch_up()
    assert feed.differences() == ""
    assert feed.rows("child") == [{"id": 20, "p": 2}, {"id": 30, "p": 7}]


def test_load_data(scene: Scene, tmp_path: Path) -> None:
    feed = started(scene)
    file = tmp_path / "rows.tsv"
    file.write_text("".join(f"{i}\tline {i} é\n" for i in range(5_000)))
    scene.sql(f"LOAD DATA INFILE '{file}' INTO TABLE t CHARACTER SET utf8mb4")
    feed.catch_up()
    assert feed.differences() == ""
    assert len(feed.rows("t")) == 5_000


def test_engines_without_transactions(scene: Scene) -> None:
    """Each statement is a transaction; one that fails half way keeps its first rows."""
    engine = "MyISAM" if scene.server.flavour.value == "mysql" else "Aria TRANSACTIONAL=0"
    feed = started(scene, f"CREATE TABLE t (id int PRIMARY KEY, v varchar(300)) ENGINE={engine}")
    session = scene.session()
    session(many(1, 50), "BEGIN", "INSERT INTO t VALUES (100, 'stays')", "ROLLBACK")
    with pytest.raises(pymysql.err.IntegrityError):
        session("INSERT INTO t VALUES (200, 'stays'), (1, 'is there')")
    session("UPDATE t SET v = 'u' WHERE id < 5", "DELETE FROM t WHERE id = 7")
    feed.catch_up()
    assert feed.differences() == ""
    assert {100, 200} <= {r["id"] for r in feed.rows("t")}


KEPT = (
    "CREATE TABLE t (id int PRIMARY KEY, n int, kept int GENERATED ALWAYS AS (n * 2) STORED, "
    "hidden int INVISIBLE DEFAULT 5, last varchar(10))",
    "INSERT INTO t (id, n, last) VALUES (1, 1, 'a')",
)


def test_generated_and_invisible_columns(with_whole_images: Scene) -> None:
    feed = started(with_whole_images, *KEPT)
    with_whole_images.sql(
        "INSERT INTO t (id, n, hidden, last) VALUES (2, 2, 6, 'b'), (3, NULL, NULL, 'c')",
        "UPDATE t SET n = 10 WHERE id = 1",
    )
    feed.catch_up()
    assert feed.differences() == ""
    last = {"id": 1, "n": 10, "kept": 20, "hidden": 5, "last": "a"}
    assert feed.changes("t")[-1].after == last


def test_generated_columns_that_the_server_leaves_out(mariadb11: Server, tmp_path: Path) -> None:
    """A changed row lacks them, whatever binlog_row_image says: stored ones count as virtual."""
    with scene_of(mariadb11, tmp_path, "generated_columns_left_out") as scene:
        made = "made int GENERATED ALWAYS AS (n + 1) VIRTUAL"
        feed = started(scene, KEPT[0].replace("last", f"{made}, last"), *KEPT[1:])
        scene.sql(
            "INSERT INTO t (id, n) VALUES (2, 2), (3, 3)",
            "UPDATE t SET n = 10 WHERE id = 1",
            "UPDATE t SET id = 5 WHERE id = 2",
            "DELETE FROM t WHERE id = 3",
            "ALTER TABLE t ADD COLUMN more int AS (`n` * 3) STORED FIRST",
            "UPDATE t SET n = 11 WHERE id = 1",
            "CREATE TABLE u (id int PRIMARY KEY, g bigint AS (`id` * 2) STORED, v int)",
            "INSERT INTO u (id) VALUES (1)",
            "UPDATE u SET v = 1",
        )
        feed.catch_up()
        assert feed.differences() == ""
        assert feed.stale() == []
        assert feed.warnings == []
        assert {"id": 1, "n": 11, "hidden": 5, "last": "a"} in feed.rows("t")
        assert feed.rows("u") == [{"id": 1, "v": 1}]
        assert not any('"kept"' in line or '"made"' in line for line in file_lines(feed))


def test_virtual_columns(scene: Scene) -> None:
    """They stand in the log, in the middle of the others, and protocols leave them out."""
    feed = started(
        scene,
        "CREATE TABLE t (id int PRIMARY KEY, made int GENERATED ALWAYS AS (n + 1) VIRTUAL, n int)",
        "INSERT INTO t (id, n) VALUES (1, 1)",
    )
    scene.sql("INSERT INTO t (id, n) VALUES (2, 2)", "UPDATE t SET n = 10 WHERE id = 1")
    feed.catch_up()
    after = [c.after for c in feed.changes("t") if c.after]
    found = [{k: v for k, v in row.items() if k != "made"} for row in after]
    assert found == [{"id": 1, "n": 1}, {"id": 2, "n": 2}, {"id": 1, "n": 10}]


def test_tables_without_a_key(scene: Scene) -> None:
    """They are bags: equal rows come as often as they are there."""
    feed = started(
        scene,
        "CREATE TABLE bag (a int, b varchar(10))",
        "INSERT INTO bag VALUES (1, 'a'), (1, 'a'), (2, NULL), (NULL, NULL), (NULL, NULL)",
        config="force-replicate = true",
    )
    scene.sql(
        "INSERT INTO bag VALUES (5, 'z'), (5, 'z'), (5, 'z')",
        "DELETE FROM bag WHERE a = 5 LIMIT 1",
        "UPDATE bag SET b = 'q' WHERE a = 1 LIMIT 1",
        "DELETE FROM bag WHERE a IS NULL LIMIT 1",
    )
    feed.catch_up()
    assert feed.differences() == ""
    assert len(feed.rows("bag")) == 6


def test_sequences(on_mariadb: Scene) -> None:
    """Their state is logged as rows, of what is no table."""
    on_mariadb.sql("CREATE SEQUENCE early")
    feed = started(on_mariadb, config="force-replicate = true")
    on_mariadb.sql(
        "CREATE SEQUENCE late",
        "INSERT INTO t VALUES (NEXT VALUE FOR early, 'x'), (NEXT VALUE FOR late + 1, 'y')",
        "ALTER SEQUENCE late RESTART 50",
        "INSERT INTO t VALUES (NEXT VALUE FOR late, 'z')",
        "DROP SEQUENCE early",
    )
    feed.catch_up()
    assert ids(feed) == [1, 2, 50]
    assert [r.table for r in feed.store.state(NAME).ranges] == ["t"]


def test_partitioned_tables(on_mysql: Scene) -> None:
    """MySQL tells the partition of every row: each has its own directory."""
    table = "CREATE TABLE p (id int PRIMARY KEY, v int) PARTITION BY HASH (id) PARTITIONS 4"
    feed = started(
        on_mysql,
        table,
        "INSERT INTO p VALUES (1, 1)",
        config="[sink]\nenable-partition-separator = true",
    )
    on_mysql.sql(
        "INSERT INTO p VALUES (2, 2), (3, 3), (4, 4), (5, 5), (8, 8)",
        "UPDATE p SET v = v + 1",
        "UPDATE p SET id = id + 101 WHERE id = 4",
        "DELETE FROM p WHERE id = 3",
    )
    feed.catch_up()
    assert feed.differences() == ""
    slices = {
        one.physical_id
        for plan in feed.runner.plans
        for segment in plan.stretch.segments
        for one in segment.slices
        if not segment.snapshot
    }
    assert slices == {0, 1, 2, 3}


@pytest.mark.parametrize("raw", ["false", "true"])
@pytest.mark.parametrize("separated", ["true", "false"])
def test_rows_that_move_between_partitions(on_mysql: Scene, separated: str, raw: str) -> None:
    """Who reads one directory after the other, file by file, ends with the rows of the source."""
    table = "CREATE TABLE p (id int PRIMARY KEY, v int) PARTITION BY HASH (id) PARTITIONS 4"
    feed = started(
        on_mysql,
        table,
        config=f"[sink]\nenable-partition-separator = {separated}\n"
        f"[sink.cloud-storage-config]\noutput-raw-change-event = {raw}",
    )
    on_mysql.sql(
        "INSERT INTO p VALUES (3, 1), (1, 1), (6, 1)",
        "UPDATE p SET id = 4 WHERE id = 3",
        "UPDATE p SET id = 2, v = 2 WHERE id = 1",
        "UPDATE p SET id = 1, v = 3 WHERE id = 2",
        "UPDATE p SET id = id + 1 WHERE id IN (4, 6) ORDER BY id DESC",
    )
    feed.catch_up()
    kept = {}
    changes = feed.changes("p")
    for change in changes:
        if change.before is not None:
            kept.pop(change.before["id"], None)
        if change.after is not None:
            kept[change.after["id"]] = change.after["v"]
    assert kept == {1: 3, 5: 1, 7: 1}
    if separated == "false":
        assert changes == sorted(changes, key=lambda change: change.commit_ts)
    else:
        assert {change.op for change in changes} == {Op.INSERT, Op.DELETE}
    assert feed.differences() == ""


def test_partitions_that_the_log_does_not_tell(on_mariadb: Scene) -> None:
    table = "CREATE TABLE p (id int PRIMARY KEY, v int) PARTITION BY HASH (id) PARTITIONS 4"
    on_mariadb.sql(table, "INSERT INTO p VALUES (1, 1)")
    with pytest.raises(OptionsConflict, match="enable-partition-separator = false"):
        on_mariadb.feed()
    feed = on_mariadb.feed(config="[sink]\nenable-partition-separator = false")
    feed.catch_up()
    on_mariadb.sql("INSERT INTO p VALUES (2, 2), (3, 3)", "UPDATE p SET id = id + 101")
    feed.catch_up()
    assert feed.differences() == ""


# --- compression, checksums, sizes ---------------------------------------------------------------


def test_compressed_events(on_mariadb: Scene, tiny_segments: None) -> None:
    feed = started(on_mariadb)
    server = on_mariadb.server
    with (
        setting(server, "log_bin_compress", "ON"),
        setting(server, "log_bin_compress_min_len", "10"),
        logged(server) as events,
    ):
        on_mariadb.sql(
            "BEGIN",
            *(many(100 * i, 100) for i in range(10)),
            "UPDATE t SET v = CONCAT(v, 'x') WHERE id < 100",
            "DELETE FROM t WHERE id BETWEEN 20 AND 60",
            "COMMIT",
            f"CREATE TABLE more (id int PRIMARY KEY) COMMENT '{'long ' * 100}'",
            "INSERT INTO more VALUES (1)",
        )
    assert {WRITE_COMPRESSED, WRITE_COMPRESSED + 1, WRITE_COMPRESSED + 2} <= events.codes()
    assert ev.QUERY_COMPRESSED in events.codes()
    feed.catch_up()
    assert feed.differences() == ""
    assert ids(feed, "more") == [1]


@pytest.mark.parametrize("scope", ["GLOBAL", "SESSION"])
@pytest.mark.parametrize("small", [False, True])
def test_compressed_transactions(
    on_mysql: Scene, scope: str, small: bool, request: pytest.FixtureRequest
) -> None:
    """Compressed and plain ones side by side, with savepoints and several tables inside."""
    if small:
        request.getfixturevalue("tiny_segments")
    feed = started(on_mysql, PLAIN_TABLE, "CREATE TABLE p (id int PRIMARY KEY, v int)")
    server = on_mysql.server
    if scope == "GLOBAL":
        server.execute("SET GLOBAL binlog_transaction_compression = ON")
    try:
        session = on_mysql.session()
        if scope == "SESSION":
            session("SET SESSION binlog_transaction_compression = ON")
        with logged(server) as events:
            session("BEGIN", *(many(100 * i, 100) for i in range(20)))
            session("SAVEPOINT s", "INSERT INTO t VALUES (-1, 'goes')", "ROLLBACK TO s")
            session("INSERT INTO p VALUES (1, 1), (2, 2)", "COMMIT")
            session("SET SESSION binlog_transaction_compression = OFF")
            session("INSERT INTO t VALUES (-2, 'plain')")
            session("SET SESSION binlog_transaction_compression = ON")
            session("UPDATE t SET v = 'again' WHERE id < 10", "UPDATE p SET v = v + 1")
    finally:
        server.execute("SET GLOBAL binlog_transaction_compression = OFF")
    assert ev.TRANSACTION_PAYLOAD in events.codes()
    feed.catch_up()
    assert feed.differences() == ""
    assert len(feed.changes("t")) == 2012


def test_tagged_gtids(on_mysql: Scene) -> None:
    """The position holds them too: a restart behind one repeats nothing."""
    feed = started(on_mysql)
    session = on_mysql.session()
    session("SET gtid_next = 'automatic:mytag'", "INSERT INTO t VALUES (1, 'tagged')", "COMMIT")
    session("SET gtid_next = 'automatic'", "INSERT INTO t VALUES (2, 'plain')")
    feed.catch_up()
    feed.run()
    session("SET gtid_next = 'automatic:other'", "INSERT INTO t VALUES (3, 'x')", "COMMIT")
    session("SET gtid_next = 'automatic'")
    feed.catch_up()
    assert ids(feed) == [1, 2, 3]
    log = feed.store.state("feed").position["log"]
    assert "mytag" in log["gtids"] and "other" in log["gtids"]


def test_alter_in_two_phases(on_mariadb: Scene) -> None:
    """It stands in the log where it begins and where it ends, also one that fails."""
    feed = started(on_mariadb)
    session = on_mariadb.session()
    session("SET SESSION binlog_alter_two_phase = ON", "INSERT INTO t VALUES (1, 'x'), (2, 'x')")
    with logged(on_mariadb.server) as events:
        session("ALTER TABLE t ADD a int DEFAULT 7", "INSERT INTO t VALUES (3, 'y', 8)")
        with pytest.raises(pymysql.err.IntegrityError):
            session("ALTER TABLE t ADD b int, ADD UNIQUE (v), ALGORITHM = COPY")
        session("INSERT INTO t VALUES (4, 'z', 9)", "ALTER TABLE t DROP a, ALGORITHM = COPY")
    texts = [ev.parse_query(body).sql for code, body in events.events if code == ev.QUERY]
    assert sum(text.startswith("ALTER") for text in texts) == 6
    feed.catch_up()
    assert feed.differences() == ""
    assert feed.stale() == []
    assert [kind for kind, _ in feed.ddl("t")] == [DdlKind.ADD_COLUMN, DdlKind.DROP_COLUMN]


def test_a_row_of_many_packets(scene: Scene) -> None:
    """More than 16 MB do not fit one packet; the bytes around such a row stay in order."""
    feed = started(scene, "CREATE TABLE big (id int PRIMARY KEY, v longtext)")
    scene.sql(
        "INSERT INTO big VALUES (1, 'small')",
        "INSERT INTO big VALUES (2, REPEAT('abcdefgh', 5 << 19))",
        "INSERT INTO big VALUES (3, 'small')",
        "UPDATE big SET v = CONCAT(v, 'x') WHERE id = 2",
    )
    feed.catch_up()
    assert feed.differences() == ""
    assert [len(c.after["v"]) for c in feed.changes("big") if c.after][1:] == [
        5 << 22,
        5,
        (5 << 22) + 1,
    ]


def test_a_row_of_exactly_one_packet(scene: Scene) -> None:
    """Events whose packets end just before, at and behind the border of 16 MB."""
    feed = started(scene, "CREATE TABLE big (id int PRIMARY KEY, v longblob)")
    with logged(scene.server) as events:
        scene.sql("INSERT INTO big VALUES (1, '')")
    rows = next(body for code, body in events.plain() if code in (23, 30))
    around = 1 + 19 + len(rows) + 4  # the packet's own first byte, header, checksum
    edge = 0xFFFFFF - around
    for i, size in enumerate(range(edge - 1, edge + 2), start=2):
        scene.sql(f"INSERT INTO big VALUES ({i}, REPEAT('x', {size}))")
    feed.catch_up()
    assert feed.differences() == ""


def test_checksums_go_and_come(scene: Scene) -> None:
    """A server that changes its mind begins a new file; both forms are read, also after restart."""
    feed = started(scene)
    scene.sql("INSERT INTO t VALUES (1, 'before')")
    with setting(scene.server, "binlog_checksum", "'NONE'"):
        scene.sql("INSERT INTO t VALUES (2, 'none')")
        feed.catch_up()
        scene.sql("INSERT INTO t VALUES (3, 'none')")
        feed.run()
        feed.catch_up()
        scene.sql(many(100, 100))
    scene.sql("INSERT INTO t VALUES (4, 'again')")
    feed.catch_up()
    assert feed.differences() == ""
    assert feed.repeated("t") == []


def test_segments_of_files_without_checksums(scene: Scene, tiny_segments: None) -> None:
    """Tasks read old files, whose events end otherwise than those that are written now."""
    feed = started(scene)
    with setting(scene.server, "binlog_checksum", "'NONE'"):
        scene.sql("BEGIN", *(many(100 * i, 100) for i in range(5)), "COMMIT")
    scene.sql("BEGIN", *(many(10_000 + 100 * i, 100) for i in range(5)), "COMMIT")
    feed.catch_up()
    assert feed.differences() == ""


# --- what is not read ----------------------------------------------------------------------------


def test_a_statement_instead_of_rows(scene: Scene) -> None:
    feed = started(scene, PLAIN_TABLE)
    session = scene.session()
    session("SET SESSION binlog_format = STATEMENT", "INSERT INTO t VALUES (1, 'not a row')")
    with pytest.raises(EventUnknown, match=rf"{scene.database}\.t as a statement.*ROW") as stopped:
        feed.catch_up()
    assert "binlog.0" in str(stopped.value)
    assert feed.changes("t") == []


def test_a_statement_about_another_table(scene: Scene, tmp_path: Path) -> None:
    scene.sql(PLAIN_TABLE, "CREATE TABLE aside (id int PRIMARY KEY, v varchar(10))")
    feed = scene.feed([f"{scene.database}.t"])
    feed.catch_up()
    file = tmp_path / "rows.tsv"
    file.write_text("8\tloaded\n9\tloaded\n")
    scene.sql(
        "INSERT INTO t VALUES (0, 'a row before')",
        "SET SESSION binlog_format = STATEMENT",
        "INSERT INTO aside VALUES (1, 'not a row'), (2, 'nor this')",
        "/* by a mapper */ UPDATE aside SET v = 'x'",
        f"LOAD DATA INFILE '{file}' INTO TABLE aside",
        "SET SESSION binlog_format = ROW",
        "INSERT INTO t VALUES (1, 'a row')",
    )
    feed.catch_up()
    assert ids(feed) == [0, 1]
    assert feed.differences() == ""


def test_a_client_with_another_character_set(scene: Scene) -> None:
    """Statements come in the client's character set, those that the server makes itself do not."""
    feed = started(scene)
    connection = scene.server.connect(scene.database)
    connection.set_character_set("latin1")
    with connection, connection.cursor() as cursor:
        for sql in (
            "CREATE TABLE `été` (id int PRIMARY KEY, `naïve` varchar(9) COMMENT 'ça')",
            "INSERT INTO `été` VALUES (1, 'é')",
            "ALTER TABLE `été` CHANGE `naïve` `sûr` varchar(9)",
            "CREATE TABLE `août` (id int PRIMARY KEY) SELECT id, `sûr` FROM `été`",
            "UPDATE `août` SET `sûr` = 'à'",
            "CREATE TABLE gone (`où` int PRIMARY KEY)",
            "RENAME TABLE gone TO `allé`",
            "DROP TABLE `allé`",
        ):
            cursor.execute(sql)
        connection.commit()
    feed.catch_up()
    assert feed.differences() == ""
    assert feed.stale() == []
    assert feed.rows("août") == [{"id": 1, "sûr": "à"}]
    assert "'ça'" in feed.ddl("été")[0][1]
    assert [kind for kind, _ in feed.ddl("allé")] == [DdlKind.RENAME_TABLE, DdlKind.DROP_TABLE]


def test_an_image_that_lacks_columns(scene: Scene) -> None:
    feed = started(scene, PLAIN_TABLE, "INSERT INTO t VALUES (1, 'a')")
    scene.sql(
        "SET SESSION binlog_row_image = MINIMAL",
        "UPDATE t SET v = 'b'",
    )
    with pytest.raises(CorruptLog, match=rf"{scene.database}\.t.*(?i:binlog_row_image)"):
        feed.catch_up()
    assert [c.op for c in feed.changes("t")] == [Op.INSERT]


@pytest.mark.parametrize("image", ["MINIMAL", "NOBLOB"])
def test_images_that_may_lack_columns(scene: Scene, image: str) -> None:
    """What no image of a change holds is left out of the text; it is not null."""
    table = "CREATE TABLE t (w int, id int PRIMARY KEY, v varchar(20), b blob, k varchar(9) UNIQUE)"
    rows = "INSERT INTO t VALUES (1, 1, 'a', 'x', 'k1'), (2, 2, 'b', 'y', 'k2')"
    feed = started(scene, table, rows, source="partial-row-image=allow")
    scene.sql(
        f"SET SESSION binlog_row_image = {image}",
        "UPDATE t SET v = 'c' WHERE id = 1",
        "UPDATE t SET b = NULL WHERE id = 1",
        "UPDATE t SET id = 4, w = NULL WHERE id = 1",
        "DELETE FROM t WHERE id = 2",
        "INSERT INTO t (id, v) VALUES (3, 'd')",
    )
    feed.catch_up()
    found = [json.loads(line) for line in file_lines(feed)[2:]]
    data = [one["data"][0] for one in found]
    if image == "MINIMAL":
        assert data[:2] == [{"id": "1", "v": "c"}, {"id": "1", "b": None}]
        assert {"id": "4", "w": None} in data
        assert data[-2:] == [{"id": "2"}, {"id": "3", "v": "d"}]
    else:
        whole = {"w": "1", "id": "1", "v": "c", "k": "k1"}
        assert data[:2] == [whole, {**whole, "b": None}]
        assert {**whole, "id": "4", "w": None} in data
        assert data[-2] == {"w": "2", "id": "2", "v": "b", "k": "k2"}
        assert data[-1]["id"] == "3" and data[-1]["v"] == "d"
    assert feed.warnings == []


def test_images_of_rows_without_a_key(scene: Scene) -> None:
    """The image before has all columns, the one after it what changed, an insert what was given."""
    settings = {"source": "partial-row-image=allow", "config": "force-replicate = true"}
    feed = started(scene, "CREATE TABLE t (a int, v varchar(9))", **settings)
    scene.sql(
        "SET SESSION binlog_row_image = MINIMAL",
        "BEGIN",
        "INSERT INTO t (v) VALUES ('x')",
        "UPDATE t SET v = 'y'",
        "INSERT INTO t (v) VALUES ('z')",
        "DELETE FROM t WHERE v = 'y'",
        "COMMIT",
    )
    feed.catch_up()
    found = [json.loads(line) for line in file_lines(feed)]
    inserted = [one["data"][0] for one in found if one["type"] == "INSERT"]
    (update,) = (one["data"][0] for one in found if one["type"] == "UPDATE")
    (delete,) = (one["data"][0] for one in found if one["type"] == "DELETE")
    assert [row["v"] for row in inserted] == ["x", "z"]
    assert inserted[0].get("a") is None
    assert update == delete == {"a": None, "v": "y"}


@pytest.mark.parametrize("protocol", ["csv", "avro"])
def test_images_that_may_lack_columns_where_a_protocol_cannot(
    scene: Scene, protocol: str, tmp_path: Path
) -> None:
    """Lines of CSV have all columns, and so have Avro's records: refused when it is created."""
    scene.sql(PLAIN_TABLE)
    source = f"{scene.server.uri}?partial-row-image=allow"
    sink = f"file://{tmp_path}/out?protocol=csv"
    if protocol == "avro":
        sink = "kafka://127.0.0.1:1/t?protocol=avro&schema-registry=http://127.0.0.1:1"
    config = tmp_path / "feed.toml"
    config.write_text(f"[filter]\nrules = ['{scene.database}.*']\n")
    with pytest.raises(OptionsConflict, match=f"protocol {protocol} needs whole rows"):
        service.prepare(source, sink, config, "feed")
    assert not (tmp_path / "out").exists()


def test_images_that_may_lack_columns_where_a_sink_cannot(scene: Scene, tmp_path: Path) -> None:
    scene.sql(PLAIN_TABLE)
    config = tmp_path / "feed.toml"
    config.write_text(f"[filter]\nrules = ['{scene.database}.*']\n")
    source = f"{scene.server.uri}?partial-row-image=allow"
    with pytest.raises(OptionsConflict, match="a mysql sink needs whole rows"):
        service.prepare(source, "mysql://nobody@127.0.0.1:1/", config, "feed")


def test_a_rollback_that_does_not_undo_all(on_mariadb: Scene) -> None:
    """Rows of an engine without transactions stay, and have a transaction of their own."""
    plain = "CREATE TABLE plain (id int PRIMARY KEY) ENGINE=MyISAM"
    feed = started(on_mariadb, PLAIN_TABLE, plain, "INSERT INTO t VALUES (1, 'a')")
    session = on_mariadb.session()
    session("BEGIN", "INSERT INTO t VALUES (2, 'goes')", "INSERT INTO plain VALUES (1)", "ROLLBACK")
    session("BEGIN", "DELETE FROM t", "UPDATE plain, t SET plain.id = 2, t.v = 'x'", "ROLLBACK")
    feed.catch_up()
    assert feed.differences() == ""
    assert feed.rows("plain")


def test_a_rollback_that_is_logged(on_mariadb: Scene) -> None:
    """It is, behind the rows, where a transaction made a temporary table: that is not read."""
    feed = started(on_mariadb)
    on_mariadb.sql(
        "BEGIN",
        "INSERT INTO t VALUES (1, 'goes')",
        "CREATE TEMPORARY TABLE own (a int)",
        "ROLLBACK",
    )
    with pytest.raises(EventUnknown, match="rolls rows back"):
        feed.catch_up()
    assert feed.changes("t") == []


def file_lines(feed: Feed) -> list[str]:
    """Return the lines of the data files, in order."""
    files = sorted(feed.root.glob("**/CDC*.json"))
    return [line for f in files for line in f.read_text().splitlines()]


def test_changes_inside_documents(on_mysql: Scene) -> None:
    """PARTIAL_JSON: the new document is the old one with the change applied."""
    table = "CREATE TABLE j (id int PRIMARY KEY, d json, e json)"
    document = """'{"a": 1, "b": [1, 2, 3], "c": "long enough to matter"}'"""
    feed = started(on_mysql, table, f"INSERT INTO j VALUES (1, {document}, NULL)")
    with logged(on_mysql.server) as events:
        on_mysql.sql(
            "SET SESSION binlog_row_value_options = PARTIAL_JSON",
            "UPDATE j SET d = JSON_SET(d, '$.a', 2)",
            "UPDATE j SET d = JSON_REPLACE(d, '$.c', 'short'), e = '[]'",
            "UPDATE j SET d = JSON_REMOVE(d, '$.b[1]')",
            "UPDATE j SET d = JSON_SET(d, '$.b[last]', 9, '$.b[last-1]', 8, '$.a[0]', 7)",
        )
    assert PARTIAL_UPDATE in events.codes()
    feed.catch_up()
    assert feed.rows("j")[0]["d"] == '{"a": 7, "b": [8, 9], "c": "short"}'
    assert feed.differences() == ""


# --- clocks --------------------------------------------------------------------------------------


def test_sessions_with_another_clock(scene: Scene) -> None:
    """No session's clock moves the feed's: not ten years ahead, and not back."""
    feed = started(scene)
    began = time.time() * 1000
    scene.sql(
        "SET timestamp = 2000000000",
        "INSERT INTO t VALUES (1, 'future')",
        "SET timestamp = DEFAULT",
        "INSERT INTO t VALUES (2, 'now')",
        "SET timestamp = 1000000000",
        "INSERT INTO t VALUES (3, 'past')",
    )
    feed.catch_up()
    stamps = [c.commit_ts for c in feed.changes("t")]
    assert stamps == sorted(set(stamps))
    ended = time.time() * 1000
    assert all(began - 2_000 <= physical_ms(t) <= ended + 2_000 for t in stamps)
    if scene.server.flavour.value == "mariadb":  # MySQL logs the real time beside the session's
        assert any("SET timestamp" in words for words in feed.warnings)
