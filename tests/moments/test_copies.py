"""Copies in a second database: rows in each other's way, and deaths between two steps."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "integration" / "mysql_sink"))  # its kit is used

from moment_kit import Killed
from mysql_sink_kit import MySqlFeed, Scene, scene_of

from rowferry.change.plan import Plan
from rowferry.control.feed.lease import Holder
from rowferry.control.feed.loop import Loop
from rowferry.errors import Fenced, TargetLost, TargetWentBack
from rowferry.moment import watched
from rowferry.spark.job import InProcessRunner
from rowferry.testing.servers import MariaDb, MySql

TABLE = "CREATE TABLE t (id INT PRIMARY KEY, u INT, v INT, UNIQUE KEY (u))"
PLAIN = "CREATE TABLE p (id INT PRIMARY KEY, v INT)"


@pytest.fixture
def scene(
    mysql_server: MySql, mariadb_server: MariaDb, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Scene]:
    with scene_of(mysql_server, mariadb_server, tmp_path, request.node.name) as found:
        found.both(TABLE, PLAIN)
        found.sql(
            "INSERT INTO t VALUES (1, 1, 0), (2, 2, 0), (3, 3, 0), (4, 4, 0)",
            "INSERT INTO p VALUES (1, 0), (5000, 0), (9000, 0)",
        )
        yield found


def begun(scene: Scene) -> MySqlFeed:
    feed = scene.feed()
    feed.catch_up()
    return feed


def dies_at(feed: MySqlFeed, call: str) -> None:
    """Let the feed's process end before a call, and the next one begin."""

    def die(name: str) -> None:
        if name == call:
            raise Killed

    with watched(die), pytest.raises(Killed):
        feed.catch_up()
    feed.run()


def test_values_of_a_unique_key_that_move(scene: Scene) -> None:
    feed = begun(scene)
    scene.sql(
        "UPDATE t SET u = u + 100",
        "UPDATE t SET u = 9 WHERE id = 1",
        "UPDATE t SET u = 101, v = 7 WHERE id = 2",
        "DELETE FROM t WHERE id = 3",
        "INSERT INTO t VALUES (5, 103, 1)",
    )
    feed.catch_up()
    assert scene.assert_same("t", "p") == 7


@pytest.mark.parametrize("key", [7, 5000, 9000])
def test_a_key_that_comes_and_goes(scene: Scene, key: int) -> None:
    feed = begun(scene)
    scene.sql(f"REPLACE INTO p VALUES ({key}, 1)", "UPDATE p SET v = 5 WHERE id = 1")
    for value in range(2, 5):
        scene.sql(f"DELETE FROM p WHERE id = {key}", f"INSERT INTO p VALUES ({key}, {value})")
    feed.catch_up()
    scene.assert_same("p")
    scene.sql(f"UPDATE p SET v = 9 WHERE id = {key}", f"DELETE FROM p WHERE id = {key}")
    feed.catch_up()
    assert scene.assert_same("p") == 3 - (key > 1000)


@pytest.mark.parametrize("call", ["ddl done downstream", "publish progress"])
def test_a_rename_is_run_once(scene: Scene, call: str) -> None:
    feed = begun(scene)
    scene.sql("UPDATE p SET v = 1", "RENAME TABLE t TO t2", "INSERT INTO t2 VALUES (8, 8, 8)")
    dies_at(feed, call)
    feed.catch_up()
    assert scene.assert_same("t2") == 5


@pytest.mark.parametrize("call", ["ddl done downstream", "publish progress"])
@pytest.mark.parametrize(
    ("statement", "table"),
    [
        ("RENAME TABLE t TO t2", "t2"),
        ("TRUNCATE TABLE t", "t"),
        ("DROP TABLE t", "p"),
        ("ALTER TABLE t DROP COLUMN v", "t"),
        ("ALTER TABLE t DROP PRIMARY KEY, ADD PRIMARY KEY (u)", "t"),
    ],
)
def test_rows_before_a_statement_that_was_run(
    scene: Scene, statement: str, table: str, call: str
) -> None:
    """They are there, and have no place any more, or another one."""
    feed = begun(scene)
    scene.sql("UPDATE t SET v = 1", "INSERT INTO t VALUES (8, 8, 8)", statement)
    dies_at(feed, call)
    scene.sql("UPDATE p SET v = 3")
    feed.catch_up()
    scene.assert_same(table, "p")


def test_rows_that_are_there_already(scene: Scene) -> None:
    """The first run dies when all is written; the second meets what came later in the first."""
    feed = begun(scene)
    scene.sql("UPDATE t SET v = 1", "UPDATE t SET u = 50 WHERE id = 1", "DELETE FROM p")
    scene.sql("INSERT INTO t VALUES (6, 1, 1)", "UPDATE t SET u = 51 WHERE id = 2")
    dies_at(feed, "publish progress")
    feed.catch_up()
    assert scene.assert_same("t", "p") == 5


def test_a_snapshot_that_is_newer_than_the_log(scene: Scene) -> None:
    """A change of the log meets rows that have its unique values already, from later ones."""
    feed = scene.feed()

    def write(plan: Plan) -> None:
        feed.runner.before = lambda plan: None
        scene.sql(
            "UPDATE t SET v = 9 WHERE id = 1",
            "CREATE TABLE cut (id INT PRIMARY KEY)",  # what is before it is applied alone
            "UPDATE t SET u = 30 WHERE id = 1",
            "UPDATE t SET u = 1 WHERE id = 2",
            "UPDATE t SET u = 2 WHERE id = 1",
        )

    feed.runner.before = write
    feed.catch_up()
    assert scene.assert_same("t", "p", "cut") == 7


def test_one_that_was_replaced_writes_no_more(scene: Scene) -> None:
    feed = begun(scene)
    scene.sql("UPDATE p SET v = 1")
    others: list[Loop] = []

    def take_over(name: str) -> None:
        if name != "apply rows" or others:
            return
        now = time.time() + 7200  # the lease has ended
        claim = feed.store.claim(feed.name, Holder("elsewhere", 1, "", 0, "other"), now, 3600)
        flow = feed.prepare().flow
        clock = lambda: time.time_ns() // 1_000_000  # noqa: E731
        others.append(Loop(feed.name, flow, feed.store, claim, InProcessRunner(), clock))
        scene.sql("UPDATE p SET v = 2")
        end = time.monotonic() + 60
        while scene.rows("p")[0] != scene.rows("p")[1]:
            others[0].step()
            assert time.monotonic() < end, "the other one never caught up"

    with watched(take_over), pytest.raises(Fenced):
        feed.catch_up()
    others[0].close()
    assert len(others) == 1
    assert scene.assert_same("p") == 3


def test_a_copy_that_was_restored(scene: Scene) -> None:
    feed = begun(scene)
    scene.sql("INSERT INTO p VALUES (2, 2)")
    feed.catch_up()
    behind = "SET commit_ts = commit_ts - 1000000, micro_batch = micro_batch - 1"
    scene.target.script(f"UPDATE {scene.meta}.rowferry_fence {behind}")
    feed.run()
    with pytest.raises(TargetWentBack):
        feed.catch_up()


def test_a_table_of_the_copy_that_is_gone(scene: Scene) -> None:
    feed = scene.feed("", "[sink.mysql-config]\ncreate-tables = true\n")
    feed.catch_up()
    scene.at_target("DROP TABLE p")
    scene.sql("INSERT INTO p VALUES (2, 2)")
    feed.run()
    with pytest.raises(TargetLost, match=r"\.p is gone"):
        feed.catch_up()
