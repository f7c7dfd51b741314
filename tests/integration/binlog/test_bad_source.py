"""What can be wrong with a source while a feed runs: one clear line, and after the cure it goes on.

What can be wrong at the beginning is checked before a changefeed is made; see the preflight.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from feed_kit import Feed, Scene, keep_nothing, scene_of

from rowferry.errors import (
    CorruptLog,
    LoginRefused,
    ReplicaIdTaken,
    RowferryError,
    SourceMismatch,
    SourceUnavailable,
    SourceUnsupported,
    Verdict,
)
from rowferry.flow.capture.binlog.frame import segment_cutter
from rowferry.testing.servers import MariaDb, MySql, Server

PLAIN_TABLE = "CREATE TABLE t (id int PRIMARY KEY, v varchar(300))"


@pytest.fixture(scope="module", params=[MySql, MariaDb], ids=["mysql", "mariadb"])
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """A server of this file's own: its settings and its files are changed."""
    kind: type[Server] = request.param
    with kind.start(tmp_path_factory.mktemp("server"), server_id=31) as started:
        yield started


@pytest.fixture
def scene(server: Server, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Scene]:
    with scene_of(server, tmp_path, request.node.name) as found:
        found.sql(PLAIN_TABLE, "INSERT INTO t VALUES (1, 'one')")
        yield found


def started(scene: Scene, **settings: str) -> Feed:
    feed = scene.feed(**settings)
    feed.catch_up()
    return feed


def ids(feed: Feed) -> list[int]:
    return [(c.after or c.before or {})["id"] for c in feed.changes("t")]


def one_line(error: RowferryError) -> str:
    text = str(error)
    assert "\n" not in text and len(text) < 600
    assert error.verdict is Verdict.STOP
    return text


# --- users ---------------------------------------------------------------------------------------

GRANTS = {
    "mysql": "SELECT, REPLICATION SLAVE, REPLICATION CLIENT",
    "mariadb": "SELECT, REPLICATION SLAVE, BINLOG MONITOR",
}


@pytest.fixture
def user(server: Server) -> Iterator[str]:
    """A user with the privileges that a feed needs, and no others."""
    server.script(
        "DROP USER IF EXISTS 'cdc'@'%'",
        "CREATE USER 'cdc'@'%' IDENTIFIED BY 'first-secret'",
        f"GRANT {GRANTS[server.flavour.value]} ON *.* TO 'cdc'@'%'",
    )
    yield "cdc:first-secret"
    server.script("DROP USER 'cdc'@'%'")


def test_a_wrong_password(scene: Scene, user: str) -> None:
    with pytest.raises(LoginRefused, match="check user, password") as refused:
        scene.feed(account="cdc:wrong-secret")
    assert "secret" not in one_line(refused.value)


def test_the_password_is_changed(scene: Scene, user: str) -> None:
    """The feed stops; run with the new one, it goes on, also with what it had planned before."""
    feed = started(scene, account=user)
    feed.stop()
    scene.server.script("ALTER USER 'cdc'@'%' IDENTIFIED BY 'second-secret'")
    with pytest.raises(LoginRefused) as refused:
        feed.run()
    assert "secret" not in one_line(refused.value)
    scene.sql("INSERT INTO t VALUES (2, 'two')")
    feed.account = "cdc:second-secret"
    feed.run()
    feed.catch_up()
    assert ids(feed) == [1, 2]


def test_the_password_is_changed_while_a_plan_waits(
    scene: Scene, user: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep_nothing(monkeypatch)
    feed = started(scene, account=user)
    scene.sql("INSERT INTO t VALUES (2, 'two')")

    def change(plan: object) -> None:
        feed.runner.before = lambda plan: None
        scene.server.script("ALTER USER 'cdc'@'%' IDENTIFIED BY 'second-secret'")

    feed.runner.before = change
    with pytest.raises(LoginRefused):
        feed.catch_up()
    assert feed.store.pending("feed") is not None
    feed.account = "cdc:second-secret"
    feed.run()
    feed.catch_up()
    assert ids(feed) == [1, 2]


def test_a_privilege_is_taken_away(scene: Scene, user: str) -> None:
    feed = started(scene, account=user)
    feed.stop()
    scene.server.script("REVOKE REPLICATION SLAVE ON *.* FROM 'cdc'@'%'")
    scene.sql("INSERT INTO t VALUES (2, 'two')")
    with pytest.raises(LoginRefused, match="GRANT REPLICATION SLAVE ON") as refused:
        feed.run()
    one_line(refused.value)
    scene.server.script("GRANT REPLICATION SLAVE ON *.* TO 'cdc'@'%'")
    feed.run()
    feed.catch_up()
    assert ids(feed) == [1, 2]


def test_an_address_without_a_server(scene: Scene) -> None:
    """It is tried again by verdict: a server may be away for a while."""
    feed = started(scene)
    scene.server.kill()
    for _ in range(3):
        assert feed.step() is None
    assert all(isinstance(f, SourceUnavailable) for f in feed.faults)
    scene.server.restart()
    scene.sql("INSERT INTO t VALUES (2, 'two')")
    feed.catch_up()
    assert ids(feed) == [1, 2]


# --- settings ------------------------------------------------------------------------------------


def test_rows_are_not_logged_any_more(scene: Scene) -> None:
    feed = started(scene)
    feed.stop()
    scene.server.execute("SET GLOBAL binlog_format = 'STATEMENT'")
    try:
        with pytest.raises(SourceUnsupported, match="run: SET GLOBAL binlog_format = ROW"):
            feed.run()
    finally:
        scene.server.execute("SET GLOBAL binlog_format = 'ROW'")
    scene.sql("INSERT INTO t VALUES (2, 'two')")
    feed.run()
    feed.catch_up()
    assert ids(feed) == [1, 2]


def test_columns_are_not_named_any_more(scene: Scene) -> None:
    """After the cure all is read by the version in force: nothing that was written is lost."""
    table = "CREATE TABLE many (id bigint unsigned PRIMARY KEY, e enum('x', 'y'), d decimal(9,3), "
    scene.sql(table + "l varchar(20) CHARACTER SET latin1, j json, b bit(9), t timestamp(2) NULL)")
    feed = started(scene)
    scene.server.execute("SET GLOBAL binlog_row_metadata = 'MINIMAL'")
    try:
        scene.sql("INSERT INTO t VALUES (2, 'two')")
        scene.sql(
            "INSERT INTO many VALUES (18446744073709551615, 'y', -1.5, 'Grüße', '{\"a\": 1}', "
            "257, '2024-02-29 12:00:00.25')"
        )
        words = r"does not name the columns of .*\.t; run: SET GLOBAL binlog_row_metadata = FULL"
        for _ in range(2):
            with pytest.raises(SourceUnsupported, match=words):
                feed.catch_up()
        with pytest.raises(SourceUnsupported, match="binlog_row_metadata is MINIMAL; run: SET"):
            feed.run()
    finally:
        scene.server.execute("SET GLOBAL binlog_row_metadata = 'FULL'")
    scene.sql("INSERT INTO t VALUES (3, 'three')")
    feed.run()
    feed.catch_up()
    assert ids(feed) == [1, 2, 3]
    assert feed.differences() == ""


def test_columns_that_were_never_named(scene: Scene) -> None:
    """A table that was altered meanwhile is followed by the text of its DDL."""
    feed = started(scene)
    feed.stop()
    scene.server.execute("SET GLOBAL binlog_row_metadata = 'MINIMAL'")
    try:
        scene.sql(
            "INSERT INTO t VALUES (2, 'two')",
            "ALTER TABLE t ADD COLUMN n int FIRST",
            "INSERT INTO t VALUES (3, 3, 'three')",
            "CREATE TABLE fresh (id int PRIMARY KEY)",
            "INSERT INTO fresh VALUES (1)",
        )
    finally:
        scene.server.execute("SET GLOBAL binlog_row_metadata = 'FULL'")
    feed.run()
    feed.catch_up()
    assert feed.differences() == ""
    assert ids(feed) == [1, 2, 3]


def test_a_server_id_that_another_reader_has(scene: Scene) -> None:
    """Who is thrown out is told, and stops; nobody throws the other out again and again.

    MySQL does not mind: it tells readers apart by their uuid.
    """
    same = "server-id=424242"
    feeds = [scene.feed(source=same) for _ in range(2)]
    feeds[0].catch_up()
    feeds[1].catch_up()
    with pytest.raises(ReplicaIdTaken, match="server-id 424242 is used by"):
        scene.feed(source=same)
    scene.sql("INSERT INTO t VALUES (2, 'two')")
    told = []
    for feed in feeds:
        try:
            feed.catch_up()
        except ReplicaIdTaken as err:
            told.append(feed)
            assert "choose another server-id" in one_line(err)
    assert len(told) == (1 if scene.server.flavour.value == "mariadb" else 0)
    for feed in told:
        feed.run(source="server-id=0")
    for feed in feeds:
        feed.catch_up()
        assert ids(feed) == [1, 2]


# --- damaged logs --------------------------------------------------------------------------------


class LogFile:
    """The file of the log that holds what a test writes, closed by the server afterwards."""

    def __init__(self, server: Server) -> None:
        self._server = server
        server.execute("FLUSH BINARY LOGS")
        self.name = str(server.execute("SHOW BINARY LOGS")[-1][0])
        self._path = server.datadir / self.name

    def close(self) -> None:
        self._server.execute("FLUSH BINARY LOGS")
        self.content = self._path.read_bytes()

    def write(self, content: bytes) -> None:
        with open(self._path, "r+b") as file:
            file.write(content)
            file.truncate()

    def event_around(self, place: int) -> int:
        """Return where the event that holds a byte begins."""
        at = 4
        while True:
            size = int.from_bytes(self.content[at + 9 : at + 13], "little")
            if at + size > place:
                return at
            at += size


@pytest.fixture(params=["carried", "kept", "fetched"])
def damaged(
    scene: Scene, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> tuple[Feed, LogFile]:
    """A stopped feed, and a closed file with rows that it has not read."""
    if request.param == "kept":
        monkeypatch.setattr(segment_cutter, "CARRY_BYTES", 0)
    if request.param == "fetched":
        keep_nothing(monkeypatch)
    feed = started(scene)
    feed.stop()
    log = LogFile(scene.server)
    scene.sql("INSERT INTO t VALUES (2, 'two')", "INSERT INTO t VALUES (3, 'PRECIOUS')")
    log.close()
    feed.run()
    return feed, log


def test_a_damaged_row(damaged: tuple[Feed, LogFile]) -> None:
    """The checksum tells; the line names file and offset. Restored, the log is read to its end."""
    feed, log = damaged
    place = log.content.rindex(b"PRECIOUS")
    event = log.event_around(place)
    broken = bytearray(log.content)
    broken[place] ^= 1
    log.write(bytes(broken))
    with pytest.raises(CorruptLog, match=rf"checksum .*{log.name}:{event} ") as found:
        feed.catch_up()
    one_line(found.value)
    log.write(log.content)
    feed.run()
    feed.catch_up()
    assert ids(feed) == [1, 2, 3]


def test_a_damaged_description(damaged: tuple[Feed, LogFile], scene: Scene) -> None:
    feed, log = damaged
    place = log.content.rindex(scene.database.encode() + bytes([0, 1]) + b"t")
    event = log.event_around(place)
    broken = bytearray(log.content)
    broken[place] ^= 1
    log.write(bytes(broken))
    with pytest.raises(CorruptLog, match=rf"checksum .*{log.name}:\d+ ") as found:
        feed.catch_up()
    named = int(re.findall(rf"{log.name}:(\d+)", str(found.value))[0])
    assert named in (event, log.event_around(event - 1))  # MariaDB's text of the statement is first
    log.write(log.content)
    feed.run()
    feed.catch_up()
    assert ids(feed) == [1, 2, 3]


def test_a_log_that_is_cut_off(damaged: tuple[Feed, LogFile]) -> None:
    """It ends in the middle of an event, where the server itself stumbles."""
    feed, log = damaged
    log.write(log.content[: log.content.rindex(b"PRECIOUS") + 3])
    with pytest.raises(RowferryError) as found:
        feed.catch_up()
    assert "error 1236" in one_line(found.value)
    log.write(log.content)
    feed.run()
    feed.catch_up()
    assert ids(feed) == [1, 2, 3]


def test_a_log_that_ends_in_a_transaction(damaged: tuple[Feed, LogFile], scene: Scene) -> None:
    """So a server leaves it that is killed while it writes; it has rolled the transaction back."""
    feed, log = damaged
    event = log.event_around(log.content.rindex(b"PRECIOUS"))
    size = int.from_bytes(log.content[event + 9 : event + 13], "little")
    log.write(log.content[: event + size])
    scene.sql("INSERT INTO t VALUES (4, 'four')")
    feed.catch_up()
    assert ids(feed) == [1, 2, 4]
    feed.run()
    scene.sql("INSERT INTO t VALUES (5, 'five')")
    feed.catch_up()
    assert ids(feed) == [1, 2, 4, 5]


def test_a_log_that_was_reset(scene: Scene) -> None:
    """What it holds now has nothing to do with what was read: the feed says so, and stops."""
    feed = started(scene)
    scene.sql("INSERT INTO t VALUES (2, 'two')")
    feed.catch_up()
    feed.stop()
    mysql = scene.server.flavour.value == "mysql"
    scene.server.execute("RESET BINARY LOGS AND GTIDS" if mysql else "RESET MASTER")
    feed.run()
    with pytest.raises(SourceMismatch, match="reset") as found:
        feed.catch_up()
    one_line(found.value)


def test_a_table_that_begins_to_keep_its_past(mariadb_server: MariaDb, tmp_path: Path) -> None:
    """Old rows stand in the log as inserts then: the feed stops before the first of them."""
    with scene_of(mariadb_server, tmp_path, "keeps_its_past") as scene:
        scene.sql(PLAIN_TABLE, "INSERT INTO t VALUES (1, 'one')")
        feed = started(scene)
        scene.sql("ALTER TABLE t ADD SYSTEM VERSIONING")
        with pytest.raises(SourceUnsupported, match="system-versioned") as stopped:
            feed.catch_up()
        assert stopped.value.verdict is Verdict.STOP and "filter.rules" in one_line(stopped.value)
        scene.sql("ALTER TABLE t DROP SYSTEM VERSIONING", "INSERT INTO t VALUES (2, 'two')")
        feed.run()
        feed.catch_up()
        assert ids(feed) == [1, 2]
        assert feed.differences() == ""
