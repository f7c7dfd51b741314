"""Replicas: follow, wait, promote, come back."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rowferry.errors import SourceUnavailable, SourceUnsupported
from rowferry.testing.servers import MariaDb, MySql, Server, promote, replicate, wait_for
from rowferry.testing.servers.replication import _status

Pair = tuple[Server, Server]
KINDS = [MySql, MariaDb]


@contextmanager
def following(kind: type[Server], folder: Path) -> Iterator[Pair]:
    """A source with a row, and a replica that follows it."""
    with kind.start(folder / "a", 1) as source, kind.start(folder / "b", 2) as replica:
        source.script("CREATE DATABASE d", "CREATE TABLE d.t (a INT PRIMARY KEY)")
        source.script("INSERT INTO d.t VALUES (1)")
        replicate(source, replica)
        yield source, replica


@pytest.fixture(params=KINDS, ids=lambda kind: kind.__name__)
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Pair]:
    with following(request.param, tmp_path) as found:
        yield found


@pytest.fixture(scope="module", params=KINDS, ids=lambda kind: kind.__name__)
def lasting_pair(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Pair]:
    """The same for tests after which the replica still follows."""
    with following(request.param, tmp_path_factory.mktemp("pair")) as found:
        yield found


def ids(server: Server) -> list[int]:
    return [int(a or 0) for (a,) in server.execute("SELECT a FROM d.t ORDER BY a")]


def test_a_replica_has_what_was_there_and_what_comes(lasting_pair: Pair) -> None:
    source, replica = lasting_pair
    source.script(*(f"INSERT INTO d.t VALUES ({a})" for a in range(2, 50)))
    wait_for(replica, source)
    assert ids(replica) == list(range(1, 50))


def test_a_replica_writes_what_it_applies_to_its_own_log(lasting_pair: Pair) -> None:
    source, replica = lasting_pair
    wait_for(replica, source)
    name = "gtid_executed" if isinstance(source, MySql) else "gtid_binlog_pos"
    ask = f"SELECT @@GLOBAL.{name}"
    assert replica.execute(ask) == source.execute(ask) != [("",)]


def test_a_promoted_replica_has_all_that_it_received(pair: Pair) -> None:
    source, replica = pair
    source.script(*(f"INSERT INTO d.t VALUES ({a})" for a in range(2, 50)))
    wait_for(replica, source)
    source.kill()
    promote(replica)
    replica.script("INSERT INTO d.t VALUES (50)")
    assert ids(replica) == list(range(1, 51))
    assert replica.execute("SHOW REPLICA STATUS") == []


def test_promoting_applies_what_lies_unapplied(pair: Pair) -> None:
    source, replica = pair
    wait_for(replica, source)
    replica.execute("STOP REPLICA SQL_THREAD")
    source.script(*(f"INSERT INTO d.t VALUES ({a})" for a in range(2, 200)))
    received(replica, source)
    source.kill()
    assert ids(replica) == [1]
    replica.execute("START REPLICA SQL_THREAD")
    promote(replica)
    assert ids(replica) == list(range(1, 200))


def received(replica: Server, source: Server) -> None:
    """Return when all of the source's log has come to the replica, applied or not."""
    if isinstance(source, MySql):
        (at,) = source.execute("SHOW BINARY LOG STATUS")
    else:
        (at,) = source.execute("SHOW MASTER STATUS")
    deadline = time.monotonic() + 120
    while True:
        status = _status(replica)
        read = (
            (status.get("Source_Log_File") or status["Master_Log_File"]),
            (status.get("Read_Source_Log_Pos") or status["Read_Master_Log_Pos"]),
        )
        if read == at[:2]:
            return
        assert time.monotonic() < deadline, (read, at)
        time.sleep(0.02)


def purge(server: Server) -> None:
    """Leave only the newest file of the log; MariaDB keeps one that is in use, and says nothing."""
    deadline = time.monotonic() + 120
    while len(logs := server.execute("SHOW BINARY LOGS")) > 1:
        server.execute("PURGE BINARY LOGS TO %s", logs[-1][0])
        assert time.monotonic() < deadline, logs
        time.sleep(0.02)


def test_an_old_source_comes_back_as_a_replica(pair: Pair) -> None:
    source, replica = pair
    wait_for(replica, source)
    source.kill()
    promote(replica)
    replica.script("FLUSH BINARY LOGS", "INSERT INTO d.t VALUES (2)")
    purge(replica)  # what the old source has it must not ask for
    source.restart()
    replicate(replica, source)
    replica.script("INSERT INTO d.t VALUES (3)")
    wait_for(source, replica)
    assert ids(source) == [1, 2, 3]


def test_a_replica_cannot_be_written_by_users(pair: Pair) -> None:
    _, replica = pair
    assert replica.execute("SELECT @@GLOBAL.read_only") == [("1",)]
    promote(replica)
    assert replica.execute("SELECT @@GLOBAL.read_only") == [("0",)]


def test_broken_replication_is_said(pair: Pair) -> None:
    source, replica = pair
    wait_for(replica, source)
    replica.script(
        "SET GLOBAL read_only = OFF", "SET sql_log_bin = 0", "INSERT INTO d.t VALUES (7)"
    )
    source.script("INSERT INTO d.t VALUES (7)")
    with pytest.raises(SourceUnavailable, match="replication broke: .+"):
        wait_for(replica, source)


def test_flavours_do_not_follow_each_other(mysql_server: MySql, mariadb_server: MariaDb) -> None:
    with pytest.raises(SourceUnsupported, match="mariadb does not follow mysql"):
        replicate(mysql_server, mariadb_server)
