"""A feed from MySQL into MariaDB, with both the feed and MariaDB killed: the tables are equal."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path

from pymysql.connections import Connection

from rowferry.downstream.verify.local import ThreadRunner
from rowferry.downstream.verify.names import Names
from rowferry.downstream.verify.run import VerifyRequest, verify
from rowferry.downstream.verify.side import open_side
from rowferry.errors import RowferryError
from rowferry.testing.harness import RunProcess, wait_for
from rowferry.testing.mysql_history import JOURNAL, MySqlWriters, make_tables
from rowferry.testing.servers import MariaDb, MySql

DATABASE = "ferry_kills"
ROWS = 200
PATIENCE_S = 600.0  # for a start on a machine under load; never reached by working code


def _nothing(target: MariaDb) -> None:
    """Only the feed is killed."""


def _kill_target(target: MariaDb) -> None:
    target.kill()
    target.restart()


def test_kills_of_the_feed_and_of_its_target(
    mysql_server: MySql, tmp_path: Path, seed: int
) -> None:
    dice = random.Random(seed)
    config = tmp_path / "feed.toml"
    config.write_text(f"[filter]\nrules = ['{DATABASE}.*']\n")
    make_tables(mysql_server, DATABASE, ROWS)
    with MariaDb.start(tmp_path / "target", server_id=4242) as target:
        target.execute(f"CREATE DATABASE {DATABASE} CHARACTER SET utf8mb4")
        sink = f"{target.uri}?create-tables=true"
        arguments = ["--source", mysql_server.uri, "--sink-uri", sink, "--config", str(config)]
        arguments += ["--changefeed-id", "kills"]
        schemas = open_side(mysql_server.uri, ROWS).schemas(lambda t: t.database == DATABASE)
        writers = MySqlWriters(mysql_server, schemas, prepare=lambda *_: time.sleep(0.02))
        writers.start(2, seed)
        try:
            for disturb in (_nothing, _kill_target, _nothing):
                _kill_in_work(arguments, target, disturb, dice, tmp_path / "work")
        finally:
            writers.stop()
        with RunProcess([*arguments, "--until", "caught-up"], tmp_path / "work") as process:
            assert process.wait(PATIENCE_S) == 0, process.printed()[-2000:]
        sides = [open_side(server.uri, ROWS) for server in (mysql_server, target)]
        request = VerifyRequest(Names.of([f"{DATABASE}.*"], ()), (), ROWS)
        results = list(verify(*sides, request, ThreadRunner()))
        assert {r.name for r in results} == set(schemas)
        assert [r.to_json() for r in results if not r.is_equal] == []
        assert _arrived(target) >= len(writers.acknowledged)


def _kill_in_work(
    arguments: list[str],
    target: MariaDb,
    disturb: Callable[[MariaDb], None],
    dice: random.Random,
    folder: Path,
) -> None:
    """Let a process live until rows arrive, do something else to it, and kill it."""
    before = _arrived(target)
    with RunProcess(arguments, folder) as process:
        wait_for(lambda: not process.alive or _arrived(target) > before, "new rows", PATIENCE_S)
        assert process.alive, process.printed()[-2000:]
        time.sleep(dice.uniform(0, 0.5))
        disturb(target)
        time.sleep(dice.uniform(0, 0.5))
        process.kill()


def _arrived(target: MariaDb) -> int:
    """Return how many transactions have signed the journal there; 0 before there is one."""
    try:
        found = target.execute(f"SELECT COUNT(*) FROM {DATABASE}.{JOURNAL}")
    except (RowferryError, Connection.ProgrammingError):
        return 0
    return int(str(found[0][0]))
