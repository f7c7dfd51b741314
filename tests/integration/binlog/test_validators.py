"""Feeds of servers that are written to all the time, and disturbed: every promise holds."""

from __future__ import annotations

import random
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from pymysql.cursors import Cursor
from pymysql.err import OperationalError, ProgrammingError
from validator_kit import Ferry, every, wrong_versions

from rowferry.change.position import physical_ms
from rowferry.change.table import TableId
from rowferry.errors import RowferryError
from rowferry.flow.capture.binlog.frame import scanner, segment_cutter
from rowferry.testing.model import Row
from rowferry.testing.mysql_history import (
    MySqlWriters,
    broken_order,
    make_history,
    make_tables,
    read_rows,
    settled,
)
from rowferry.testing.servers import MariaDb, MySql, Server
from rowferry.testing.validators import AllPromises, DeliveryOracle, PerKeyOrder, WatermarkHolds

WRITING_S = 2.0


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
        self, server: Server, folder: Path, name: str, rows: int = 500, **settings: Any
    ) -> None:
        self.server = server
        self.database = re.sub(r"\W", "_", name).lower()[:60]
        make_tables(server, self.database, rows)
        self.ferry = Ferry(server, folder, self.database, **settings)
        self.first_rows: dict[TableId, list[Row]] = {
            t: list(read_rows(server, s).values()) for t, s in self.ferry.schemas.items()
        }
        self.writers = MySqlWriters(server, self.ferry.schemas)

    def run(self, seconds: float) -> None:
        """Let the feed run, until enough was written meanwhile."""
        wanted = len(self.writers.acknowledged) + 30
        self.ferry.run_for(seconds, lambda: len(self.writers.acknowledged) >= wanted)

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
        oracle = DeliveryOracle(history, self.ferry.facts, self.ferry.windows())
        promises = AllPromises.of(oracle)
        assert self.ferry.judge(oracle, promises) == []
        assert any(token in commit_ts for token, _ in transactions), "only the snapshot was shown"
        return commit_ts


@pytest.fixture
def scene(server: Server, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Scene]:
    with played(Scene(server, tmp_path, request.node.name)) as found:
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
    scene.run(WRITING_S)
    scene.finish()
    assert scene.ferry.faults == []


def test_csv_files_too(server: Server, tmp_path: Path, seed: int) -> None:
    with played(Scene(server, tmp_path, "csv_files_too", protocol="csv")) as scene:
        scene.writers.start(3, seed)
        scene.run(WRITING_S)
        scene.finish()


def test_a_snapshot_under_writes(server: Server, tmp_path: Path, seed: int) -> None:
    """Thousands of rows are read in parts while they change; the log behind them corrects it."""
    settings = {"stretch_bytes": 1_000_000, "wait_s": 0.2}
    with played(Scene(server, tmp_path, "a_snapshot", 20_000, **settings)) as scene:
        scene.writers.start(4, seed)
        scene.run(WRITING_S)
        commit_ts = scene.finish()
        (low,) = {w.low for w in scene.ferry.windows()}
        assert min(commit_ts.values()) > low


def test_the_log_goes_on_in_new_files(scene: Scene, seed: int) -> None:
    scene.writers.start(3, seed)
    with every(0.2, lambda: scene.server.script("FLUSH BINARY LOGS")):
        scene.run(WRITING_S)
    scene.finish()


def test_connections_are_killed(scene: Scene, seed: int) -> None:
    scene.writers.start(3, seed)
    with every(0.3, lambda: kill_connections(scene.server, scene.writers.connections)):
        scene.run(2 * WRITING_S)
    scene.ferry.catch_up()  # a slow machine may not have come to the log yet
    scene.run(WRITING_S / 2)
    scene.finish()
    assert scene.ferry.faults


def kill_connections(server: Server, spared: set[int]) -> None:
    for (number,) in server.execute(
        "SELECT id FROM information_schema.processlist WHERE user = %s AND id <> CONNECTION_ID()",
        server.login.user,
    ):
        if int(str(number)) not in spared:
            with suppress(RowferryError):  # it may be gone by itself
                server.execute(f"KILL CONNECTION {number!s}")


def test_the_server_restarts(scene: Scene, seed: int) -> None:
    scene.writers.start(3, seed)
    scene.run(WRITING_S / 2)
    stopped = threading.Thread(target=scene.server.restart)
    stopped.start()
    while stopped.is_alive():
        scene.ferry.step()
    stopped.join()
    scene.run(WRITING_S / 2)
    scene.finish()


def test_sessions_with_wrong_clocks(scene: Scene, seed: int) -> None:
    """Some sessions live in the future, some in the past; commit-ts stays near the real time."""

    def set_clock(cursor: Cursor, dice: random.Random) -> None:
        years = dice.choice((0, 0, 5, -20))
        cursor.execute(f"SET timestamp = {time.time() + years * 31_557_600 if years else 0}")

    scene.writers.prepare = set_clock
    began_ms = time.time() * 1000
    scene.writers.start(3, seed)
    scene.run(WRITING_S)
    stamps = [physical_ms(ts) for ts in scene.finish().values()]
    assert min(stamps) >= began_ms - 60_000
    assert max(stamps) <= time.time() * 1000 + 60_000


def test_transactions_cut_into_segments(
    scene: Scene, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segment_cutter, "SEGMENT_BYTES", 3_000)
    monkeypatch.setattr(scanner, "HUGE_TXN", 2_000)
    monkeypatch.setattr(segment_cutter, "CARRY_BYTES", 1_000)
    scene.writers.most_rows = 150
    scene.writers.start(1, seed)
    scene.run(WRITING_S)
    scene.finish()
    assert scene.ferry.runner.begun_inside


def test_a_storm_of_schema_changes(server: Server, tmp_path: Path, seed: int) -> None:
    dice, database = random.Random(seed), "a_storm_of_schema_changes"
    server.script(
        f"CREATE DATABASE {database}",
        f"CREATE TABLE {database}.t (id int PRIMARY KEY, v varchar(40))",
        f"INSERT INTO {database}.t VALUES {', '.join(f'({i}, {i})' for i in range(200))}",
    )
    ferry = Ferry(server, tmp_path, database)
    storm = Storm(server, database, dice, random.Random(seed + 1))
    try:
        ferry.catch_up()
        with every(0.002, storm.write), every(0.05, storm.blow):
            ferry.run_for(WRITING_S, lambda: storm.changes >= 40)
        ferry.catch_up()
        assert ferry.schema_changes >= storm.changes
        assert ferry.differences() == ""
        assert wrong_versions(ferry.root, ferry.codec) == []
        assert ferry.judge(None, PerKeyOrder(ferry.facts), WatermarkHolds(ferry.facts)) == []
    finally:
        ferry.close()
        storm.close()


class Storm:
    """Statements that change the table `t` and make others, one after the other."""

    def __init__(
        self, server: Server, database: str, dice: random.Random, writer_dice: random.Random
    ) -> None:
        self._schema = server.connect(database)
        self._rows = server.connect(database)
        self._dice = dice
        self._writer_dice = writer_dice  # another thread's
        self._written = 0
        self._columns: list[str] = []
        self._made = 0
        self.changes = 0

    def write(self) -> None:
        """Change a row of whatever table is there now, in the columns that every version has."""
        self._written += 1
        i, text = self._writer_dice.randrange(300), f"text {self._written}"
        with self._rows.cursor() as cursor, suppress(ProgrammingError, OperationalError):
            if self._written % 5 == 0:
                cursor.execute("DELETE FROM t WHERE id = %s", (i,))
            else:
                cursor.execute(
                    "INSERT INTO t (id, v) VALUES (%s, %s) ON DUPLICATE KEY UPDATE v = %s",
                    (i, text, text),
                )

    def blow(self) -> None:
        """Do one more thing."""
        acts = (self._add, self._add, self._drop, self._modify, self._rename, self._there_and_back)
        self._dice.choice((*acts, self._truncate, self._swap, self._make_another))()

    def close(self) -> None:
        self._schema.close()
        self._rows.close()

    def _run(self, *statements: str) -> None:
        with self._schema.cursor() as cursor:
            for sql in statements:
                cursor.execute(sql)
                self.changes += not sql.startswith(("UPDATE", "INSERT"))

    def _add(self) -> None:
        self._made += 1
        name = f"c{self._made}"
        kind = self._dice.choice(("int DEFAULT 7", "varchar(20) DEFAULT 'it''s'", "decimal(8,2)"))
        place = self._dice.choice(("", " FIRST", " AFTER id"))
        self._run(f"ALTER TABLE t ADD COLUMN {name} {kind}{place}")
        self._columns.append(name)
        self._run(f"UPDATE t SET {name} = {self._made} WHERE id < 100")

    def _drop(self) -> None:
        if self._columns:
            self._run(f"ALTER TABLE t DROP COLUMN {self._columns.pop(0)}")

    def _modify(self) -> None:
        if self._columns:
            self._run(f"ALTER TABLE t MODIFY COLUMN {self._columns[-1]} varchar(60)")

    def _rename(self) -> None:
        if self._columns:
            self._made += 1
            old, self._columns[-1] = self._columns[-1], f"r{self._made}"
            self._run(f"ALTER TABLE t RENAME COLUMN {old} TO r{self._made}")

    def _there_and_back(self) -> None:
        self._run("RENAME TABLE t TO away", "UPDATE away SET v = 'away' WHERE id < 20")
        self._run("RENAME TABLE away TO t")

    def _truncate(self) -> None:
        self._run("TRUNCATE TABLE t")

    def _swap(self) -> None:
        self._run("CREATE TABLE t_new LIKE t", "INSERT INTO t_new SELECT * FROM t WHERE id < 150")
        self._run("RENAME TABLE t TO t_old, t_new TO t", "DROP TABLE t_old")

    def _make_another(self) -> None:
        self._made += 1
        self._run(f"CREATE TABLE o{self._made} (a bigint PRIMARY KEY, b text)")
        self._run(f"INSERT INTO o{self._made} VALUES (1, 'x'), (2, 'y')")
        if self._dice.random() < 0.5:
            self._run(f"DROP TABLE o{self._made}")
