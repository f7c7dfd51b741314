"""Starting, stopping, killing and restarting servers."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from process_kit import is_gone, listens, wait_gone

from rowferry.errors import SourceUnavailable
from rowferry.testing.servers import MariaDb, MariaDb11, MySql, Server, server

KINDS = [MySql, MariaDb]


@pytest.fixture(params=KINDS, ids=lambda kind: kind.__name__)
def kind(request: pytest.FixtureRequest) -> type[Server]:
    chosen: type[Server] = request.param
    return chosen


@pytest.fixture(scope="module", params=KINDS, ids=lambda kind: kind.__name__)
def untouched(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """A server on which nothing was written: tests only look at it."""
    kind: type[Server] = request.param
    with kind.start(tmp_path_factory.mktemp("untouched")) as started:
        yield started


def history(server: Server) -> str | bytes | None:
    """Return the GTIDs of all that a server wrote."""
    name = "gtid_executed" if isinstance(server, MySql) else "gtid_binlog_pos"
    ((found,),) = server.execute(f"SELECT @@GLOBAL.{name}")
    return found


@pytest.mark.parametrize("kind", [MySql, MariaDb, MariaDb11])
def test_a_server_lives_as_long_as_its_block(kind: type[Server], tmp_path: Path) -> None:
    with kind.start(tmp_path / "one", server_id=7) as one:
        assert one.alive
        assert not is_gone(one.pid)
        assert one.execute("SELECT @@server_id, @@port") == [("7", str(one.port))]
        pid = one.pid
    assert is_gone(pid)
    assert not listens(one.port)
    assert not one.alive
    assert not one.datadir.exists()
    assert (one.folder / "server.err").exists()
    with pytest.raises(SourceUnavailable, match="is down"):
        _ = one.pid
    one.stop()  # again: nothing to do


@pytest.mark.parametrize(
    ("name", "version"), [("mysql", "9."), ("mariadb", "10.11."), ("mariadb11", "11.")]
)
def test_the_version_is_the_one_asked_for(
    request: pytest.FixtureRequest, name: str, version: str
) -> None:
    one: Server = request.getfixturevalue(f"{name}_server")
    ((found,),) = one.execute("SELECT VERSION()")
    assert str(found).startswith(version)


def test_a_failed_test_ends_its_server(kind: type[Server], tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), kind.start(tmp_path) as one:
        pid = one.pid
        _ = 1 // 0
    assert is_gone(pid)


def test_a_stopped_server_restarts_over_its_data(kind: type[Server], tmp_path: Path) -> None:
    with kind.start(tmp_path) as one:
        one.script("CREATE DATABASE d", "CREATE TABLE d.t (a INT)", "INSERT INTO d.t VALUES (1)")
        pid, port, written = one.pid, one.port, history(one)
        one.restart()
        assert is_gone(pid)
        assert (one.port, one.pid != pid) == (port, True)
        assert one.execute("SELECT a FROM d.t") == [("1",)]
        assert history(one) == written
        one.restart("--binlog-row-image=MINIMAL")
        assert one.execute("SELECT @@binlog_row_image") == [("MINIMAL",)]
        one.restart()
        assert one.execute("SELECT @@binlog_row_image") == [("MINIMAL",)]


def test_a_killed_server_has_what_was_committed(kind: type[Server], tmp_path: Path) -> None:
    with kind.start(tmp_path) as one:
        one.script("CREATE DATABASE d", "CREATE TABLE d.t (a INT)", "INSERT INTO d.t VALUES (1)")
        open_one = one.connect("d")
        open_one.begin()
        open_one.cursor().execute("INSERT INTO t VALUES (2)")
        pid = one.pid
        one.kill()
        open_one._force_close()  # the server is gone: there is nobody to say farewell to
        assert is_gone(pid)
        assert not listens(one.port)
        with pytest.raises(SourceUnavailable):
            one.execute("SELECT 1")
        one.restart()
        assert one.execute("SELECT a FROM d.t") == [("1",)]


def test_options_win_over_the_defaults(kind: type[Server], tmp_path: Path) -> None:
    options = ["--binlog-row-metadata=MINIMAL", "--sync-binlog=1"]
    with kind.start(tmp_path, options=options) as one:
        found = one.execute("SELECT @@binlog_row_metadata, @@sync_binlog")
        assert found == [("MINIMAL", "1")]


def test_the_administrator_is_not_in_the_log(untouched: Server) -> None:
    assert history(untouched) == ""


def test_the_password_is_nowhere_to_be_read(untouched: Server) -> None:
    password = untouched.login.password
    assert password in untouched.uri
    assert password not in " ".join(psutil.Process(untouched.pid).cmdline())
    files = [path for path in untouched.folder.iterdir() if path.is_file()]
    assert files
    assert not [path for path in files if password in path.read_text(errors="replace")]


def test_two_servers_are_two(kind: type[Server], tmp_path: Path) -> None:
    with kind.start(tmp_path / "a", 1) as one, kind.start(tmp_path / "b", 2) as other:
        one.script("CREATE DATABASE only_here")
        assert one.execute("SHOW DATABASES LIKE 'only_here'") == [("only_here",)]
        assert other.execute("SHOW DATABASES LIKE 'only_here'") == []
        if isinstance(one, MySql):
            uuid = "SELECT @@server_uuid"
            assert one.execute(uuid) != other.execute(uuid)


def test_a_long_path_is_no_obstacle(kind: type[Server], tmp_path: Path) -> None:
    with kind.start(tmp_path / ("long" * 40)) as one:  # longer than any socket's path may be
        assert one.execute("SELECT 1") == [("1",)]


def test_a_lost_port_is_replaced(
    kind: type[Server], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with kind.start(tmp_path / "a", 1) as one:
        free = server.free_port()
        offered = [free, one.port]
        monkeypatch.setattr(server, "free_port", offered.pop)
        with kind.start(tmp_path / "b", 2) as other:
            assert other.port == free
            assert other.execute("SELECT @@server_id") == [("2",)]


def test_a_server_that_cannot_start_says_why(kind: type[Server], tmp_path: Path) -> None:
    with pytest.raises(SourceUnavailable, match="no-such-setting") as caught:
        kind.start(tmp_path, options=["--no-such-setting=1"])
    assert "\n" not in str(caught.value)
    mine = {p.pid for p in psutil.Process().children()}
    assert not [pid for pid in mine if not is_gone(pid) and str(tmp_path) in _command(pid)]


def _command(pid: int) -> str:
    return " ".join(psutil.Process(pid).cmdline())


def test_a_server_outlives_the_thread_that_started_it(kind: type[Server], tmp_path: Path) -> None:
    started: list[Server] = []
    thread = threading.Thread(target=lambda: started.append(kind.start(tmp_path)))
    thread.start()
    thread.join()
    with started[0] as one:
        assert one.execute("SELECT 1") == [("1",)]
        assert one.alive


START_AND_WAIT = """
import sys, pathlib
from rowferry.testing import servers
server = getattr(servers, sys.argv[1]).start(pathlib.Path(sys.argv[2]))
print(server.pid, flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("how", ["killed", "forgot to stop it"])
def test_a_server_dies_with_the_process_that_started_it(
    kind: type[Server], how: str, tmp_path: Path
) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", START_AND_WAIT, kind.__name__, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert not is_gone(pid)
        if how == "killed":
            parent.kill()
        else:
            parent.communicate()
    wait_gone(pid)


# --- statements ----------------------------------------------------------------------------------


def test_values_go_as_they_are_and_come_as_text(source_server: Server) -> None:
    found = source_server.execute("SELECT %s, %s, %s, %s", 1, 1.5, None, "it's")
    assert found == [("1", "1.5", None, "it's")]


def test_settings_of_a_script_end_with_it(source_server: Server) -> None:
    source_server.script("SET @a = 1")
    assert source_server.execute("SELECT @a") == [(None,)]


def test_a_wrong_statement_is_one_line(source_server: Server) -> None:
    with pytest.raises(SourceUnavailable, match="no_such_column"):
        source_server.execute("SELECT no_such_column FROM mysql.user")
