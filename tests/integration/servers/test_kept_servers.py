"""The servers of a run: one for all processes, which no process can end, and which end with it."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from process_kit import is_gone

import kept_servers
from kept_servers import STARTS, Keeper, KeptServers, LentServers
from rowferry.errors import SourceUnavailable
from rowferry.testing.harness import wait_for
from rowferry.testing.servers import FakeGcs, Kafka, KafkaListener, MariaDb, Server
from rowferry.testing.servers.child import Living

WITHIN_S = 600.0
TESTS = Path(kept_servers.__file__).parent


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Path]:
    """The folder of a run whose keeper is this process."""
    with Keeper(tmp_path):
        yield tmp_path


def test_all_who_ask_get_the_same_server(run: Path) -> None:
    askers = [LentServers(run) for _ in range(3)]
    found: list[Living] = []
    threads = [threading.Thread(target=lambda a=a: found.append(a.get("mariadb"))) for a in askers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({server.pid for server in found}) == 1
    one, two, _ = found
    assert isinstance(one, MariaDb) and isinstance(two, MariaDb)
    one.script("CREATE DATABASE shared", "CREATE TABLE shared.t (a INT)")
    two.execute("INSERT INTO shared.t VALUES (1)")
    assert one.execute("SELECT * FROM shared.t") == [("1",)]
    assert askers[0].get("mariadb") is one or askers[0].get("mariadb").pid == one.pid


def test_who_borrows_a_server_cannot_end_it(run: Path) -> None:
    server = LentServers(run).get("gcs")
    assert isinstance(server, FakeGcs)
    with server:
        pass
    for end in (server.stop, server.kill):
        with pytest.raises(SourceUnavailable, match="others use this FakeGcs server: start one"):
            end()
    assert server.alive and server.answers() and server.client_port != server.port


def test_certificates_and_logins_come_along(guarded_broker: Kafka) -> None:
    lent: Kafka = pickle.loads(pickle.dumps(guarded_broker))
    assert lent.certificates == guarded_broker.certificates
    assert lent.client_settings(KafkaListener.MTLS) == guarded_broker.client_settings(
        KafkaListener.MTLS
    )
    assert lent.topics() == guarded_broker.topics()


def test_a_server_that_does_not_start_is_told(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(folder: Path) -> Living:
        raise SourceUnavailable("no disk")

    monkeypatch.setitem(STARTS, "s3", fail)
    with pytest.raises(SourceUnavailable, match="no disk"):
        LentServers(run).get("s3")


def test_they_end_with_their_keeper(tmp_path: Path) -> None:
    with KeptServers(tmp_path) as kept:
        server = kept.get("mariadb")
        assert isinstance(server, Server)
        pid = server.pid
    assert is_gone(pid)


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_a_run_that_is_killed_leaves_no_server(tmp_path: Path, how: signal.Signals) -> None:
    tests = tmp_path / "tests" / "unit"
    tests.mkdir(parents=True)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tests / "test_it.py").write_text(
        "import pathlib, time\n"
        "from kept_servers import LentServers\n"
        "def test_it(request) -> None:\n"
        "    run = pathlib.Path(request.config.getoption('--claims'))\n"
        "    server = LentServers(run).get('gcs')\n"
        f"    pathlib.Path({str(tmp_path / 'pid')!r}).write_text(str(server.pid))\n"
        "    while server.alive:\n"
        "        time.sleep(0.05)\n"
    )
    code = "import sys, pathlib, lanes; lanes.end_with_the_run(); "
    code += "sys.exit(lanes.main(['first', '--processes', '1'], pathlib.Path('.')))"
    paths = [str(TESTS), *filter(None, [os.environ.get("PYTHONPATH")])]
    with subprocess.Popen(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        stdout=subprocess.DEVNULL,
    ) as lane:
        try:
            noted = tmp_path / "pid"
            wait_for(lambda: noted.exists() and noted.read_text() != "", "a server", WITHIN_S)
            server = int(noted.read_text())
            lane.send_signal(how)
            wait_for(lambda: is_gone(server), "the end of the server", WITHIN_S)
        finally:
            lane.kill()
