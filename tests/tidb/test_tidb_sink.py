"""Rows and DDLs in a real TiDB: types, sessions, the fence, roles of two-way replication, kills."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from mysql_sink_kit import Scene, scene_of
from test_tasks_side_by_side import assert_one_is_refused
from test_types_arrive import COLUMNS, KEYED, KEYS, without_a_key

from rowferry.errors import (
    Fenced,
    SchemaChangeRefused,
    SinkUnwritable,
    SourceUnsupported,
    TargetUnfit,
)
from rowferry.flow.sink.contract import Owner
from rowferry.flow.sink.mysql.ledger import Ledger
from rowferry.flow.sink.mysql.session import Session, StatementRefused, connect
from rowferry.flow.sink.sql.ledger import LaneNote, LanePlace
from rowferry.mysql.session import Flavour, Login, connected, facts
from rowferry.testing.servers import MariaDb, Server, TiDb

# TiDB has no shapes, and no negative zero: whatever is written, 0 is read.
TYPES = {
    kind: tuple("0" if value == "-0e0" else value for value in values)
    for kind, values in COLUMNS.items()
    if kind != "geometry"
}
MODE = "enable-active-active = true\nbdr-mode = true\n"
HIDDEN = (
    "_tidb_origin_ts BIGINT UNSIGNED, _tidb_softdelete_time TIMESTAMP(6) NULL, "
    "_tidb_commit_ts BIGINT UNSIGNED"
)


def login_of(server: Server) -> Login:
    return replace(server.login, ssl_mode="disabled")


@pytest.fixture
def session(tidb_server: TiDb) -> Iterator[Session]:
    found = connect(login_of(tidb_server), for_rows=True)
    yield found
    found.close()


def test_every_type_arrives(each_source: Scene) -> None:
    scene = each_source
    names = [f"c{i}" for i in range(len(TYPES))]
    shape = ", ".join(f"{n} {kind}" for n, kind in zip(names, TYPES, strict=True))
    scene.sql(
        "SET sql_mode = ''",
        f"CREATE TABLE wide (id int PRIMARY KEY, {shape})",
        *(f"CREATE TABLE {name} ({kind} PRIMARY KEY, n int)" for name, kind in KEYED.items()),
        "CREATE TABLE k_both (a char(1), b int, n int, PRIMARY KEY (b, a))",
    )
    rows = [", ".join(values[place] for values in TYPES.values()) for place in range(2)]
    scene.sql(f"INSERT INTO wide VALUES (1, {rows[0]}), (0, {rows[1]})")
    for name, values in KEYS.items():
        scene.sql(f"INSERT INTO {name} VALUES ({values[0]}, 1), ({values[1]}, 1)")
    feed = scene.feed("create-tables=true")
    feed.catch_up()
    assert scene.assert_same("wide", *KEYS) == 2 + 2 * len(KEYS)
    scene.sql("UPDATE wide SET c0 = 3 WHERE id = 1", "DELETE FROM wide WHERE id = 0")
    for name in KEYS:
        scene.sql(f"UPDATE {name} SET n = 2", f"DELETE FROM {name} LIMIT 1")
    feed.catch_up()
    assert scene.assert_same("wide", *KEYS) == 1 + len(KEYS)
    assert feed.faults == []


def test_documents_are_found_without_a_key(scene: Scene) -> None:
    without_a_key(scene)


def test_digits_of_seconds(each_source: Scene) -> None:
    """TiDB rounds them, as MySQL does; MariaDB cuts them off."""
    scene = each_source
    scene.sql("CREATE TABLE t (id INT PRIMARY KEY, at DATETIME(6), v INT)")
    scene.sql("INSERT INTO t VALUES (1, '2024-01-01 00:00:00.999999', 1)")
    feed = scene.feed("create-tables=true")
    feed.catch_up()
    scene.sql("ALTER TABLE t MODIFY v BIGINT", "ALTER TABLE t ADD COLUMN d DATETIME(3)")
    feed.catch_up()
    scene.sql("ALTER TABLE t MODIFY at DATETIME(3)")
    if isinstance(scene.source, MariaDb):
        with pytest.raises(SchemaChangeRefused, match="TiDB rounds and the source cut off"):
            feed.catch_up()
    else:
        feed.catch_up()
        assert scene.assert_same("t") == 1


def test_ddls_and_a_kill(scene: Scene, tidb_server: TiDb) -> None:
    scene.both("CREATE TABLE t (id INT PRIMARY KEY, v TEXT, u INT, UNIQUE KEY (u))")
    feed = scene.feed("worker-count=4")
    scene.sql("INSERT INTO t VALUES (1, 'a', 1), (2, 'b', 2), (3, 'c', 3)")
    feed.catch_up()
    lost = feed.lose_answers_of_schema_changes()
    scene.sql(
        "ALTER TABLE t ADD COLUMN w INT DEFAULT 5",
        "UPDATE t SET u = NULL WHERE id = 1",
        "UPDATE t SET u = 1 WHERE id = 2",  # a value of a unique key goes from row to row
        "CREATE TABLE n (id INT PRIMARY KEY, d DATETIME DEFAULT CURRENT_TIMESTAMP)",
        "INSERT INTO n VALUES (1, '2024-01-01')",
        "TRUNCATE TABLE n",
        "INSERT INTO n (id) VALUES (2)",
    )
    feed.catch_up()
    scene.sql("RENAME TABLE n TO m")
    feed.catch_up()
    assert lost() == 4
    assert scene.assert_same("t", "m") == 4
    tidb_server.kill()
    scene.sql("UPDATE t SET v = 'while it was down'", "INSERT INTO m (id) VALUES (3)")
    assert feed.step() is None and "RF-40" in str(feed.faults[-1])
    tidb_server.restart()
    feed.run()  # as another process would
    feed.catch_up()
    assert scene.assert_same("t", "m") == 5


def test_what_every_session_sets(session: Session, tidb_server: TiDb) -> None:
    asked = session.ask("SELECT @@tidb_cdc_write_source, @@tidb_txn_mode, @@transaction_isolation")
    assert asked == [("1", "pessimistic", "READ-COMMITTED")]
    plain = connect(login_of(tidb_server))
    assert plain.ask("SELECT @@tidb_cdc_write_source") == [("1",)]
    plain.close()


def test_tidb_is_told_whatever_version_it_shows(tidb_server: TiDb) -> None:
    """As one whose `server-version` is set says: nothing of TiDB is in it."""
    before = tidb_server.execute("SELECT @@version")[0][0]
    tidb_server.options += (f"--config={tidb_server.folder}/shown.toml",)
    (tidb_server.folder / "shown.toml").write_text('server-version = "8.0.36"\n')
    try:
        tidb_server.restart()
        assert tidb_server.execute("SELECT VERSION()") == [("8.0.36",)] != [(before,)]
        found = connect(login_of(tidb_server))
        assert found.facts.flavour is Flavour.TIDB
        assert found.facts.lock == "FOR UPDATE" and found.facts.fence_slots > 1
        found.close()
        with connected(tidb_server.login) as connection:
            assert facts(connection, tidb_server.login).flavour is Flavour.TIDB
    finally:
        tidb_server.options = ()
        tidb_server.restart()


def test_the_fence_holds_until_a_transaction_ends(session: Session, tidb_server: TiDb) -> None:
    ledger = Ledger("fence_meta", "feed")
    other = connect(login_of(tidb_server))
    try:
        ledger.claim(other, Owner("feed", 7))
        for slot in (0, 63):
            ledger.begin(session, 7, slot)
            done = threading.Event()

            def claim(epoch: int = 8 + slot, done: threading.Event = done) -> None:
                ledger.claim(other, Owner("feed", epoch))
                done.set()

            thread = threading.Thread(target=claim)
            thread.start()
            assert not done.wait(1.0)  # the claim waits for us
            session.run(b"COMMIT")
            thread.join(60)
            assert done.is_set()
            with pytest.raises(Fenced, match=f"belongs to epoch {8 + slot}"):
                ledger.begin(session, 7, slot)
            ledger.claim(other, Owner("feed", 100 + slot))
            session.run(b"UPDATE fence_meta.rowferry_fence SET epoch = 7")
    finally:
        other.close()


@pytest.fixture
def lane(tidb_server: TiDb) -> str:
    """A database for a table without a key."""
    tidb_server.script(
        "DROP DATABASE IF EXISTS lane", "DROP DATABASE IF EXISTS lane_meta", "CREATE DATABASE lane"
    )
    return "lane"


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK"])
def test_two_transactions_of_a_lane_at_once(
    tidb_server: TiDb, lane: str, end: str, is_first: bool
) -> None:
    assert_one_is_refused(tidb_server, lane, end, is_first, joined=True)


@pytest.mark.parametrize("since", [None, LanePlace(1, 0, 0, 5)])
def test_two_optimistic_transactions_of_a_lane_at_once(
    session: Session, tidb_server: TiDb, lane: str, since: LanePlace | None
) -> None:
    """As where a proxy has them so: none waits, and whoever ends later is refused."""
    ledger, insert = Ledger("lane_meta", "feed"), f"INSERT INTO {lane}.bare VALUES (1)".encode()
    note = LaneNote("lane", LanePlace(1, 0, 0, 10), since)
    with closing(connect(login_of(tidb_server), for_rows=True)) as other:
        ledger.claim(session, Owner("feed", 7))
        session.run(f"CREATE TABLE {lane}.bare (n int)".encode())
        if since is not None:
            session.run(*ledger.note_delivered(LaneNote("lane", since, None)))
        for one in (session, other):
            one.run(b"SET tidb_txn_mode = 'optimistic'")
        ledger.begin(session, 7)
        session.run(insert, *ledger.note_delivered(note))
        ledger.within(other, 7, 1, [insert], True, note)
        with pytest.raises(StatementRefused):
            session.run(b"COMMIT")
        assert other.ask(f"SELECT COUNT(*) FROM {lane}.bare") == [("1",)]


@pytest.mark.parametrize("role", ["PRIMARY", "SECONDARY"])
def test_ddls_pass_whatever_role_it_has(scene: Scene, tidb_server: TiDb, role: str) -> None:
    """A cluster of a two-way pair lets others' DDLs pass only where a changefeed runs them."""
    scene.both("CREATE TABLE t (id INT PRIMARY KEY, a INT)")
    scene.sql("CREATE TABLE made (id INT PRIMARY KEY)", "INSERT INTO made VALUES (1)")
    tidb_server.execute(f"ADMIN SET BDR ROLE {role}")
    try:
        feed = scene.feed("create-tables=true")
        scene.sql("INSERT INTO t VALUES (1, 1)")
        feed.catch_up()
        scene.sql("ALTER TABLE t ADD COLUMN v INT", "INSERT INTO t VALUES (2, 2, 2)")
        scene.sql("ALTER TABLE t DROP COLUMN v", "CREATE TABLE n (id INT PRIMARY KEY)")
        feed.catch_up()
        assert scene.assert_same("t", "n", "made") == 3
        with pytest.raises(Exception, match="8263"):
            scene.at_target("ALTER TABLE t DROP COLUMN a")
    finally:
        tidb_server.execute("ADMIN UNSET BDR ROLE")


def test_types_that_tidb_lacks(
    mariadb_server: MariaDb, tidb_server: TiDb, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    with scene_of(mariadb_server, tidb_server, tmp_path, request.node.name) as scene:
        made = {"geometry": "LONGBLOB", "uuid": "CHAR", "inet6": "VARCHAR", "inet4": "VARCHAR"}
        for kind, instead in made.items():
            scene.sql(f"CREATE TABLE t (id INT PRIMARY KEY, odd {kind})")
            feed = scene.feed("create-tables=true")
            words = rf"table \S+\.t cannot .*no type for column 'odd' .*with {instead}.* for it"
            with pytest.raises(TargetUnfit, match=words):
                feed.prepare()
            scene.sql("DROP TABLE t")
        scene.sql("CREATE TABLE t (id INT PRIMARY KEY, u UUID, i INET6)")
        scene.at_target("CREATE TABLE t (id INT PRIMARY KEY, u CHAR(36), i VARCHAR(45))")
        scene.sql("INSERT INTO t VALUES (1, '123e4567-e89b-12d3-a456-426655440000', '::1')")
        scene.feed().catch_up()
        assert scene.assert_same("t") == 1


def test_a_table_with_soft_delete_in_a_plain_copy(scene: Scene) -> None:
    time = "_tidb_softdelete_time"
    scene.both(f"CREATE TABLE t (id INT PRIMARY KEY, v TEXT, {time} TIMESTAMP(6) NULL)")
    scene.sql("INSERT INTO t (id, v) VALUES (1, 'a'), (2, 'b')")
    feed = scene.feed(config="soft-delete-tables = ['*.t']\n")
    feed.catch_up()
    scene.sql(f"UPDATE t SET {time} = NOW(6) WHERE id = 2", "UPDATE t SET v = 'x' WHERE id = 1")
    feed.catch_up()
    found = scene.target.execute(f"SELECT id, v FROM {scene.copy}.t")
    assert [tuple(map(str, row)) for row in found] == [("1", "x")]


def test_a_tidb_without_active_active_tables_is_refused(scene: Scene) -> None:
    scene.sql(f"CREATE TABLE t (id INT PRIMARY KEY, {HIDDEN}) COMMENT='rowferry:active-active'")
    feed = scene.feed("create-tables=true", MODE)
    with pytest.raises(SinkUnwritable, match="a TiDB without active-active tables"):
        feed.prepare()


def test_tidb_is_no_source(scene: Scene, tidb_server: TiDb) -> None:
    scene.source = tidb_server
    with pytest.raises(SourceUnsupported, match="is a TiDB server, which has no binary log"):
        scene.feed().prepare()
