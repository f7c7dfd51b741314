"""A promoted replica takes the source's place; and logs that are gone before they were read."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from feed_kit import Feed, Scene, scene_of

from patience import until_it_fails
from rowferry.change.chunk import DdlKind
from rowferry.change.plan import Plan
from rowferry.errors import (
    EventUnknown,
    LogLost,
    SourceMismatch,
    SourceMoved,
    SourceUnavailable,
)
from rowferry.flow.capture.binlog.snapshot import snapshots as snapshot
from rowferry.moment import watched
from rowferry.testing.servers import MariaDb, MySql, Relay, Server
from rowferry.testing.servers.replication import promote, replicate, wait_for

PLAIN_TABLE = "CREATE TABLE t (id int PRIMARY KEY, v varchar(300))"


@dataclass
class Pair:
    """A source with a database and feeds of it, and a replica that follows it."""

    scene: Scene
    replica: Server

    def fail_over(self) -> None:
        """Let the replica take over with all that the source has; the source is dead."""
        wait_for(self.replica, self.scene.server)
        self.scene.server.kill()
        promote(self.replica)

    def write(self, *statements: str) -> None:
        """Run statements on the new source."""
        self.replica.script(f"USE {self.scene.database}", *statements)


@pytest.fixture(params=[MySql, MariaDb], ids=["mysql", "mariadb"])
def pair(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Pair]:
    kind: type[Server] = request.param
    folders = [tmp_path_factory.mktemp(name) for name in ("source", "replica", "feeds")]
    with (
        kind.start(folders[0], server_id=21) as source,
        kind.start(folders[1], server_id=22) as replica,
    ):
        replica.script("FLUSH BINARY LOGS", "FLUSH BINARY LOGS")  # its files have other names
        replicate(source, replica)
        with scene_of(source, folders[2], "shop") as scene:
            scene.sql(PLAIN_TABLE)
            yield Pair(scene, replica)


def many(first: int, count: int) -> str:
    return f"INSERT INTO t VALUES {', '.join(f'({i}, {i})' for i in range(first, first + count))}"


def ids(feed: Feed) -> list[int]:
    return [(c.after or c.before or {})["id"] for c in feed.changes("t")]


def failing(feed: Feed) -> Callable[[Plan], None]:
    """Return what ends the next run of a plan."""

    def fail(plan: Plan) -> None:
        feed.runner.before = feed.runner.after = lambda plan: None
        raise SourceUnavailable("the machine was switched off")

    return fail


def take_address(server: Server, of: Server) -> None:
    """Let a server answer at the port, and to the login, of one that is gone."""
    password = of.login.password
    server.script(f"ALTER USER '{server.login.user}'@'%' IDENTIFIED BY '{password}'")
    server.stop()
    server.port, server._password = of.port, password
    server.restart()


def test_the_feed_goes_on_at_the_replica(pair: Pair) -> None:
    """With every row once: those before, those that nobody had read yet, and those after."""
    pair.scene.sql(many(0, 10))
    feed = pair.scene.feed()
    feed.catch_up()
    pair.scene.sql(many(10, 10), "UPDATE t SET v = 'x' WHERE id < 3", "FLUSH BINARY LOGS")
    feed.catch_up()
    pair.scene.sql(many(20, 10), "ALTER TABLE t ADD COLUMN n int", "DELETE FROM t WHERE id = 5")
    pair.fail_over()
    pair.write("INSERT INTO t VALUES (100, 'after', 1)", "UPDATE t SET n = 2 WHERE id = 20")
    feed.run(server=pair.replica)
    feed.catch_up()
    assert feed.differences() == ""
    assert feed.repeated("t") == []
    assert ids(feed) == [*range(20), 0, 1, 2, *range(20, 30), 5, 100, 20]
    assert any("going on by GTID" in words for words in feed.warnings)


def test_nothing_comes_again_where_nobody_writes_yet(pair: Pair) -> None:
    """The new server has not said how much of its log the feeds know, and they share it."""
    pair.scene.sql(many(0, 10))
    feeds = [pair.scene.feed(), pair.scene.feed()]
    for feed in feeds:
        feed.catch_up()
    pair.fail_over()
    for _ in range(2):
        for feed in feeds:
            feed.run(server=pair.replica)
        for _ in range(3):
            for feed in feeds:
                feed.step()
    pair.write("INSERT INTO t VALUES (100, 'after')")
    for feed in feeds:
        feed.catch_up()
        assert feed.differences() == ""
        assert ids(feed) == [*range(10), 100]


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_plan_that_was_not_carried_out(pair: Pair, when: str) -> None:
    """It is of a server that is gone: it is discarded, its files too, and planned anew by GTID."""
    pair.scene.sql(many(0, 10))
    feed = pair.scene.feed()
    feed.catch_up()
    pair.scene.sql(many(10, 10), many(20, 10))
    setattr(feed.runner, when, failing(feed))
    until_it_fails(feed, "the machine was switched off")
    assert feed.store.pending("feed") is not None
    pair.fail_over()
    pair.write("INSERT INTO t VALUES (100, 'after')")
    feed.run(server=pair.replica)
    feed.catch_up()
    assert feed.differences() == ""
    assert ids(feed) == [*range(30), 100]


def test_another_server_at_the_same_address(pair: Pair) -> None:
    """Nobody tells the feed that it moved: it finds out, and discards what it had planned.

    No byte of the log is stored with a plan, however short it is: those of another server's files
    would be other ones.
    """
    pair.scene.sql(many(0, 10))
    feed = pair.scene.feed()
    feed.catch_up()
    pair.scene.sql(many(10, 10))
    feed.runner.before = failing(feed)
    until_it_fails(feed, "the machine was switched off")
    old, new = pair.scene.server, pair.replica
    wait_for(new, old)
    old.kill()
    promote(new)
    take_address(new, old)
    pair.write("INSERT INTO t VALUES (100, 'after')")
    feed.run(server=new)
    feed.catch_up()
    assert any(isinstance(fault, SourceMoved) for fault in feed.faults)
    assert feed.differences() == ""
    assert ids(feed) == [*range(20), 100]


def test_in_the_middle_of_a_snapshot(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot, "MOST_SEGMENTS", 1)
    monkeypatch.setattr(snapshot, "_LEAST_ROWS", 100)
    monkeypatch.setattr(snapshot, "_MOST_ROWS", 100)
    pair.scene.sql(many(0, 500))
    feed = pair.scene.feed()
    feed.step_until(lambda step: step.rows > 0)
    pair.scene.sql("UPDATE t SET v = 'changed' WHERE id % 3 = 0", "DELETE FROM t WHERE id % 7 = 0")
    feed.step()
    pair.fail_over()
    pair.write("DELETE FROM t WHERE id % 5 = 0", "INSERT INTO t VALUES (1000, 'after')")
    feed.run(server=pair.replica)
    feed.catch_up()
    assert feed.differences() == ""


def test_parts_of_transactions_that_were_lost(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """The source died with what the replica never got, and parts of the snapshot have shown it."""
    monkeypatch.setattr(snapshot, "MOST_SEGMENTS", 1)
    monkeypatch.setattr(snapshot, "_LEAST_ROWS", 100)
    monkeypatch.setattr(snapshot, "_MOST_ROWS", 100)
    pair.scene.sql(many(0, 300))
    feed = pair.scene.feed()
    feed.step_until(lambda step: step.rows > 0)
    wait_for(pair.replica, pair.scene.server)
    pair.replica.execute("STOP REPLICA")
    pair.scene.sql("UPDATE t SET v = 'lost'", "INSERT INTO t VALUES (101000, 'lost')")
    feed.step_until(lambda step: step.rows > 0)
    assert any((change.after or {})["v"] == "lost" for change in feed.changes("t"))
    pair.scene.server.kill()
    pair.replica.script("RESET REPLICA ALL", "SET GLOBAL read_only = OFF")
    pair.write("INSERT INTO t VALUES (1000, 'after')")
    feed.run(server=pair.replica)
    feed.catch_up()
    assert feed.differences() == ""


def test_a_replica_that_is_behind_a_snapshot(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its rows are older than the place that the snapshot has: it is not read on there."""
    monkeypatch.setattr(snapshot, "MOST_SEGMENTS", 1)
    monkeypatch.setattr(snapshot, "_LEAST_ROWS", 100)
    monkeypatch.setattr(snapshot, "_MOST_ROWS", 100)
    pair.scene.sql(many(0, 300))
    wait_for(pair.replica, pair.scene.server)
    pair.replica.execute("STOP REPLICA")
    pair.scene.sql("UPDATE t SET v = 'changed'")
    feed = pair.scene.feed()
    feed.step_until(lambda step: step.rows > 0)
    feed.run(server=pair.replica)
    with pytest.raises(SourceMismatch, match="a replica that is behind"):
        feed.catch_up()
    pair.replica.execute("START REPLICA")
    pair.fail_over()
    feed.run()
    feed.catch_up()
    assert feed.differences() == ""


@dataclass
class OneAddress:
    """An address that leads new connections to the source, or to the replica."""

    pair: Pair
    relay: Relay
    server: Server

    def lead_to(self, server: Server) -> None:
        """Let new connections go to a server; the others stay where they are."""
        self.relay.server_port = server.port

    def feed(self, config: str = "") -> Feed:
        """Make a feed that knows this address."""
        scene = self.pair.scene
        real, scene.server = scene.server, self.server
        try:
            return scene.feed(config=config)
        finally:
            scene.server = real


@pytest.fixture
def address(pair: Pair) -> Iterator[OneAddress]:
    """Both servers know the same login there."""
    source, replica = pair.scene.server, pair.replica
    admin = replica.connect()
    with admin, admin.cursor() as cursor:
        if isinstance(replica, MySql):
            cursor.execute("SET GLOBAL super_read_only = OFF")
        cursor.execute("SET SESSION sql_log_bin = 0")
        password = source.login.password
        cursor.execute(f"ALTER USER '{replica.login.user}'@'%' IDENTIFIED BY '{password}'")
    replica._password = password
    with Relay(source.port) as relay:
        server = copy.copy(source)
        server.port = relay.port
        yield OneAddress(pair, relay, server)


def test_the_log_of_another_server(address: OneAddress) -> None:
    """A connection leads to the source, and the next one to a replica, whose files are others."""
    source, replica = address.pair.scene.server, address.pair.replica
    address.pair.scene.sql(many(0, 10))
    feed = address.feed()
    feed.catch_up()
    address.pair.scene.sql(many(10, 10), "FLUSH BINARY LOGS", many(20, 10))
    feed.catch_up()
    feed.stop()
    address.pair.scene.sql(many(30, 10))
    wait_for(replica, source)

    def lead_away(name: str) -> None:
        if name == "open log":
            address.lead_to(replica)

    feed.run()
    with watched(lead_away):
        while not feed.faults:
            feed.step()
    assert isinstance(feed.faults[0], SourceMoved)
    feed.catch_up()
    assert any("going on by GTID" in words for words in feed.warnings)
    assert feed.differences() == ""
    assert ids(feed) == list(range(40))


@pytest.mark.parametrize("table", [PLAIN_TABLE, "CREATE TABLE t (id int, v varchar(300))"])
def test_rows_of_another_server(address: OneAddress, table: str) -> None:
    """The place in the log is the source's, and rows come from a replica that is behind it."""
    source, replica = address.pair.scene.server, address.pair.replica
    address.pair.scene.sql("DROP TABLE t", table, many(0, 10))
    wait_for(replica, source)
    replica.execute("STOP REPLICA")
    address.pair.scene.sql("UPDATE t SET v = 'changed'")
    feed = address.feed("force-replicate = true")
    feed.runner.before = lambda plan: address.lead_to(replica)
    while not (feed.runner.plans or feed.faults):
        feed.step()
    assert isinstance(feed.faults[0], SourceMoved)
    feed.runner.before = lambda plan: None
    address.lead_to(source)
    feed.catch_up()
    assert feed.differences() == ""


def test_an_xa_transaction_prepared_before(pair: Pair) -> None:
    """Where its rows lie in the new server's log is not known: the feed stops at its COMMIT."""
    feed = pair.scene.feed()
    feed.catch_up()
    session = pair.scene.session()
    session("XA START 'moved'", many(0, 10), "XA END 'moved'", "XA PREPARE 'moved'")
    feed.catch_up()
    pair.fail_over()
    pair.write("INSERT INTO t VALUES (100, 'after')")
    feed.run(server=pair.replica)
    feed.catch_up()
    pair.write("XA COMMIT 'moved'")
    with pytest.raises(EventUnknown, match="XA COMMIT .* was prepared on .* before the failover"):
        feed.catch_up()
    assert ids(feed) == [100]


def deliver_create(pair: Pair, feed: Feed) -> None:
    """Run a CREATE TABLE … SELECT of which the feed delivers the statement, and no row."""
    pair.scene.sql("CREATE TABLE made (PRIMARY KEY (id)) SELECT id, CONCAT(v, '!') AS w FROM t")
    feed.step_until(lambda step: bool(feed.store.position("feed")["log"]["txn_ts"]))
    feed.stop()


def test_behind_the_statement_of_a_create_table_select(pair: Pair) -> None:
    """The new server sends all of it: the statement is told once, and its rows come once."""
    pair.scene.sql(many(0, 10))
    feed = pair.scene.feed()
    feed.catch_up()
    deliver_create(pair, feed)
    assert feed.changes("made") == []
    pair.fail_over()
    pair.write("INSERT INTO made VALUES (100, 'after')")
    feed.run(server=pair.replica)
    feed.catch_up()
    assert feed.differences() == ""
    assert [kind for kind, _ in feed.ddl("made")] == [DdlKind.CREATE_TABLE]
    assert [c.after["id"] for c in feed.changes("made") if c.after] == [*range(10), 100]


def test_a_create_table_select_that_was_gone_on_with(pair: Pair) -> None:
    """Its GTID is among those that were read, though the feed began between its two halves."""
    pair.scene.sql(many(0, 10))
    feed = pair.scene.feed()
    feed.catch_up()
    deliver_create(pair, feed)
    feed.run()
    feed.catch_up()
    pair.scene.sql("INSERT INTO made VALUES (100, 'behind it')")
    feed.catch_up()
    feed.stop()
    pair.fail_over()
    pair.write("INSERT INTO made VALUES (200, 'after')")
    feed.run(server=pair.replica)
    feed.catch_up()
    assert feed.differences() == ""
    assert [kind for kind, _ in feed.ddl("made")] == [DdlKind.CREATE_TABLE]
    assert [c.after["id"] for c in feed.changes("made") if c.after] == [*range(10), 100, 200]


def test_another_table_in_the_place_of_the_create_table_select(pair: Pair) -> None:
    """It is not taken for the one whose statement was delivered."""
    pair.scene.sql(many(0, 10))
    feed = pair.scene.feed()
    feed.catch_up()
    wait_for(pair.replica, pair.scene.server)
    pair.replica.execute("STOP REPLICA")
    deliver_create(pair, feed)
    pair.scene.server.kill()
    pair.replica.script("RESET REPLICA ALL", "SET GLOBAL read_only = OFF")
    pair.write("CREATE TABLE another (PRIMARY KEY (id)) SELECT id FROM t")
    feed.run(server=pair.replica)
    with pytest.raises(SourceMismatch, match="not the CREATE TABLE … SELECT .* was delivered"):
        feed.catch_up()
    assert feed.changes("another") == []


def test_a_replica_without_the_create_table_select(pair: Pair) -> None:
    """Its statement was delivered, and the feed does not guess what became of it: it says so."""
    pair.scene.sql(many(0, 10))
    feed = pair.scene.feed()
    feed.catch_up()
    wait_for(pair.replica, pair.scene.server)
    pair.replica.execute("STOP REPLICA")
    deliver_create(pair, feed)
    pair.scene.server.kill()
    pair.replica.script("RESET REPLICA ALL", "SET GLOBAL read_only = OFF")
    pair.write("INSERT INTO t VALUES (100, 'after')")
    feed.run(server=pair.replica)
    with pytest.raises(SourceMismatch, match="not the CREATE TABLE … SELECT .* was delivered"):
        feed.catch_up()
    assert ids(feed) == list(range(10))


def test_a_replica_that_is_behind(pair: Pair) -> None:
    """It lacks what was delivered already: the feed says so, and goes on when it does not."""
    feed = pair.scene.feed()
    feed.catch_up()
    wait_for(pair.replica, pair.scene.server)
    pair.replica.execute("STOP REPLICA")
    pair.scene.sql(many(0, 10))
    feed.catch_up()
    feed.run(server=pair.replica)
    with pytest.raises(SourceMismatch, match="a replica that is behind"):
        feed.catch_up()
    pair.replica.execute("START REPLICA")
    pair.fail_over()
    pair.write("INSERT INTO t VALUES (100, 'after')")
    feed.run()
    feed.catch_up()
    assert feed.differences() == ""
    assert ids(feed) == [*range(10), 100]


# --- logs that are gone --------------------------------------------------------------------------


@pytest.fixture
def scene(source_server: Server, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Scene]:
    with scene_of(source_server, tmp_path, request.node.name) as found:
        found.sql(PLAIN_TABLE)
        yield found


def purge(server: Server) -> str:
    """Remove all files of the log but the newest one, and return that; readers may still go."""
    until = time.monotonic() + 120
    while True:
        files = [str(row[0]) for row in server.execute("SHOW BINARY LOGS")]
        if len(files) == 1:
            return files[0]
        assert time.monotonic() < until, "the server keeps its log"
        server.execute(f"PURGE BINARY LOGS TO '{files[-1]}'")


def test_a_log_that_was_purged(scene: Scene) -> None:
    """Nothing is skipped: the feed stops, and says what is gone and what is left."""
    feed = scene.feed()
    feed.catch_up()
    feed.stop()
    scene.sql(many(0, 10))
    scene.server.execute("FLUSH BINARY LOGS")
    left = purge(scene.server)
    feed.run()
    with pytest.raises(LogLost, match=rf"has removed .*{left}.*begun .*; create the changefeed"):
        feed.catch_up()
    assert feed.changes("t") == []


def test_a_log_that_is_purged_where_it_is_not_needed(scene: Scene) -> None:
    feed = scene.feed()
    feed.catch_up()
    scene.sql(many(0, 10))
    feed.catch_up()
    scene.server.execute("FLUSH BINARY LOGS")
    scene.sql(many(10, 10))
    feed.catch_up()
    feed.stop()
    purge(scene.server)
    feed.run()
    scene.sql(many(20, 10))
    feed.catch_up()
    assert ids(feed) == list(range(30))


def test_a_warning_before_it_is_purged(scene: Scene) -> None:
    """The server keeps its log for a month, and who is to be warned so long before is warned."""
    feed = scene.feed(source="retention-warning=9000h")
    feed.catch_up()
    feed.stop()
    scene.sql(many(0, 10))
    scene.server.execute("FLUSH BINARY LOGS")
    before = scene.server.execute("SELECT @@GLOBAL.binlog_expire_logs_seconds")[0][0]
    scene.server.execute("SET GLOBAL binlog_expire_logs_seconds = 2592000")
    try:
        feed.run()
        feed.catch_up()
    finally:
        scene.server.execute(f"SET GLOBAL binlog_expire_logs_seconds = {before!s}")
    assert any("may remove binlog.0" in words for words in feed.warnings)
    assert ids(feed) == list(range(10))
