"""Feeds of servers that are written to all the time, and disturbed: every promise holds."""

from __future__ import annotations

import random
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from pymysql.cursors import Cursor
from validator_kit import Ferry, every

from rowferry.change.position import physical_ms
from rowferry.change.table import TableId
from rowferry.errors import RowferryError
from rowferry.flow.capture.binlog import scanner
from rowferry.testing.model import Row
from rowferry.testing.mysql_history import (
    Writers,
    broken_order,
    make_history,
    make_tables,
    read_rows,
    settled,
)
from rowferry.testing.servers import MariaDb, MySql, Server
from rowferry.testing.validators import AllPromises, Oracle

WRITING_S = 3.0


@pytest.fixture(scope="module", params=[MySql, MariaDb], ids=["mysql", "mariadb"])
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    """A server of this file's own: its connections are killed, and it is restarted."""
    kind: type[Server] = request.param
    with kind.start(tmp_path_factory.mktemp("server"), server_id=7) as started:
        yield started


class Scene:
    """A database with rows, writers on it, and a feed of it."""

    def __init__(
        self, server: Server, folder: Path, name: str, rows: int, protocol: str = "canal-json"
    ) -> None:
        self.server = server
        self.database = re.sub(r"\W", "_", name).lower()[:60]
        make_tables(server, self.database, rows)
        self.ferry = Ferry(server, folder, self.database, protocol)
        self.first_rows: dict[TableId, list[Row]] = {
            t: list(read_rows(server, s).values()) for t, s in self.ferry.schemas.items()
        }
        self.writers = Writers(server, self.ferry.schemas)

    def finish(self) -> dict[int, int]:
        """Stop writing, deliver all, and hold everything against the feed's files."""
        self.writers.stop()
        self.ferry.catch_up()
        self.ferry.close()
        assert self.ferry.differences() == ""
        transactions = settled(self.writers)
        commit_ts = self.ferry.commit_ts()
        history = make_history(self.first_rows, self.ferry.schemas, transactions, commit_ts)
        assert broken_order(history) == []
        oracle = Oracle(history, self.ferry.facts, self.ferry.windows())
        promises = AllPromises.of(oracle)
        assert self.ferry.judge(oracle, promises) == []
        after = [t for t, _ in transactions if t in commit_ts]
        assert len(after) > 20, "too little was written to show anything"
        return commit_ts


@pytest.fixture
def scene(server: Server, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Scene]:
    with played(Scene(server, tmp_path, request.node.name, rows=500)) as found:
        yield found


@contextmanager
def played(scene: Scene) -> Iterator[Scene]:
    """End a scene also where its test fails."""
    try:
        yield scene
    finally:
        scene.writers.stop()
        scene.ferry.close()


def test_a_concurrent_writer(scene: Scene, seed: int) -> None:
    scene.writers.start(3, seed)
    scene.ferry.run_for(WRITING_S)
    scene.finish()
    assert scene.ferry.faults == []


def test_csv_files_too(server: Server, tmp_path: Path, seed: int) -> None:
    with played(Scene(server, tmp_path, "csv_files_too", rows=500, protocol="csv")) as scene:
        scene.writers.start(3, seed)
        scene.ferry.run_for(WRITING_S)
        scene.finish()


def test_a_snapshot_under_writes(server: Server, tmp_path: Path, seed: int) -> None:
    """Thousands of rows are read in parts while they change; the log behind them corrects it."""
    with played(Scene(server, tmp_path, "a_snapshot_under_writes", rows=20_000)) as scene:
        scene.writers.start(4, seed)
        scene.ferry.run_for(WRITING_S)
        commit_ts = scene.finish()
        (low,) = {w.low for w in scene.ferry.windows()}
        assert min(commit_ts.values()) > low


def test_the_log_goes_on_in_new_files(scene: Scene, seed: int) -> None:
    scene.writers.start(3, seed)
    with every(0.2, lambda: scene.server.script("FLUSH BINARY LOGS")):
        scene.ferry.run_for(WRITING_S)
    scene.finish()


def test_connections_are_killed(scene: Scene, seed: int) -> None:
    scene.writers.start(3, seed)
    with every(0.3, lambda: kill_connections(scene.server, scene.writers.connections)):
        scene.ferry.run_for(2 * WRITING_S)
    scene.finish()
    assert scene.ferry.faults


def kill_connections(server: Server, spared: set[int]) -> None:
    own = server.execute("SELECT CONNECTION_ID()")[0][0]
    for row in server.execute("SHOW PROCESSLIST"):
        if row[0] != own and row[1] == server.login.user and int(str(row[0])) not in spared:
            with suppress(RowferryError):  # it may be gone by itself
                server.execute(f"KILL CONNECTION {row[0]!s}")


def test_the_server_restarts(scene: Scene, seed: int) -> None:
    scene.writers.start(3, seed)
    scene.ferry.run_for(WRITING_S / 2)
    stopped = threading.Thread(target=scene.server.restart)
    stopped.start()
    while stopped.is_alive():
        scene.ferry.step()
    stopped.join()
    scene.ferry.run_for(WRITING_S / 2)
    scene.finish()


def test_sessions_with_wrong_clocks(scene: Scene, seed: int) -> None:
    """Some sessions live in the future, some in the past; commit-ts stays near the real time."""

    def set_clock(cursor: Cursor, dice: random.Random) -> None:
        years = dice.choice((0, 0, 5, -20))
        cursor.execute(f"SET timestamp = {time.time() + years * 31_557_600 if years else 0}")

    scene.writers.prepare = set_clock
    began_ms = time.time() * 1000
    scene.writers.start(3, seed)
    scene.ferry.run_for(WRITING_S)
    stamps = [physical_ms(ts) for ts in scene.finish().values()]
    assert min(stamps) >= began_ms - 60_000
    assert max(stamps) <= time.time() * 1000 + 60_000


def test_transactions_cut_into_segments(
    scene: Scene, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scanner, "SEGMENT_BYTES", 3_000)
    monkeypatch.setattr(scanner, "HUGE_TXN", 2_000)
    monkeypatch.setattr(scanner, "CARRY_BYTES", 1_000)
    scene.writers.most_rows = 200
    scene.writers.start(2, seed)
    scene.ferry.run_for(WRITING_S)
    scene.finish()
