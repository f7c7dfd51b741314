"""A table read again into a database: what was changed or lost there comes back, no more."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from mysql_sink_kit import MySqlFeed, Scene, scene_of

from rowferry.change.plan import Plan
from rowferry.change.resnapshot import Resnapshot, ResnapshotOutcome
from rowferry.change.table import TableId
from rowferry.control.feed import under_way
from rowferry.errors import SourceUnavailable
from rowferry.flow.capture.binlog.snapshot import rereads
from rowferry.testing.servers import MariaDb, MySql, Server

ROWS = 1_200
TABLES = (
    "CREATE TABLE t (id int PRIMARY KEY, v varchar(40), n int)",
    "CREATE TABLE s (k varchar(20) PRIMARY KEY, v int) COLLATE utf8mb4_general_ci",
    "CREATE TABLE p (a int, b varbinary(9), v int, u int UNIQUE, PRIMARY KEY (a, b))",
)


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let some hundred rows be several parts."""
    monkeypatch.setattr(rereads, "_LEAST_ROWS", 400)
    monkeypatch.setattr(rereads, "_ROWS_A_TASK", 200)
    for name in ("_LEAST_PART_BYTES", "_FIRST_PART_BYTES", "_MOST_PART_BYTES"):
        monkeypatch.setattr(under_way, name, 1)


@pytest.fixture(params=["mysql-to-mariadb", "mariadb-to-mysql"])
def scene(
    request: pytest.FixtureRequest, mysql_server: MySql, mariadb_server: MariaDb, tmp_path: Path
) -> Iterator[Scene]:
    sides: tuple[Server, Server] = (mysql_server, mariadb_server)
    if request.param == "mariadb-to-mysql":
        sides = (mariadb_server, mysql_server)
    with scene_of(*sides, tmp_path, request.node.name) as found:
        found.both(*TABLES)
        rows = ", ".join(f"({i}, {i}, {i % 7})" for i in range(ROWS))
        found.sql(
            f"INSERT INTO t VALUES {rows}",
            "INSERT INTO s VALUES ('a', 1), ('b''', 2), ('ü', 3), ('Z', 4)",
            "INSERT INTO p VALUES (1, 'a', 1, 1), (1, x'ff00', 2, 2), (2, 'a', 3, 3)",
        )
        yield found


def again(feed: MySqlFeed, scene: Scene, table: str, which: str, **more: object) -> Resnapshot:
    """Let a table be read again, and wait until it has been."""
    wanted = Resnapshot(which, TableId(scene.database, table), **more)  # type: ignore[arg-type]
    feed.store.ask_resnapshot(feed.name, wanted)
    while True:
        feed.step()
        found = next(r for r in feed.resnapshots() if r.id == which)
        if not found.is_open:
            feed.catch_up()
            return found


def test_what_was_spoilt_there_is_as_at_the_source_again(scene: Scene) -> None:
    feed = scene.feed()
    feed.catch_up()
    scene.at_target(
        "UPDATE t SET v = 'spoilt' WHERE id % 10 = 1",
        "DELETE FROM t WHERE id % 10 = 2",
        "INSERT INTO t VALUES (-5, 'extra', 0), (5000, 'extra', 0), (100000, 'extra', 3)",
        "DELETE FROM s",
        "INSERT INTO s VALUES ('A', 8), ('more', 9), ('z', 10)",
        "UPDATE p SET u = u + 100",
        "INSERT INTO p VALUES (1, x'ff', 7, 7), (3, 'c', 8, 1), (0, '', 9, 2)",
    )
    for number, table in enumerate(("t", "s", "p")):
        assert again(feed, scene, table, str(number)).outcome is ResnapshotOutcome.DONE
    assert scene.assert_same("t", "s", "p") == ROWS + 4 + 3
    assert feed.faults == []


def test_a_part_of_the_keys_leaves_the_others(scene: Scene) -> None:
    feed = scene.feed()
    feed.catch_up()
    scene.at_target(
        "UPDATE t SET v = 'spoilt' WHERE id IN (9, 10, 30, 31)",
        "DELETE FROM t WHERE id IN (12, 40)",
        "INSERT INTO t VALUES (100000, 'extra', 0), (-1, 'extra', 0)",
    )
    again(feed, scene, "t", "1", first=("10",), last=("30",))
    here, there = scene.rows("t")
    assert {row[0] for row in set(there) ^ set(here)} == {"9", "31", "40", "-1", "100000"}  # type: ignore[index]
    again(feed, scene, "t", "2", first=("1000",))
    here, there = scene.rows("t")
    assert {row[0] for row in set(there) ^ set(here)} == {"9", "31", "40", "-1"}  # type: ignore[index]
    again(feed, scene, "t", "3", where="n < 3")
    _, there = scene.rows("t")
    assert ("-1", "extra", "0") not in there
    assert ("9", "9", "2") in there
    assert ("31", "spoilt", "3") in there


def test_rows_that_are_kept_there_on_purpose_stay(scene: Scene) -> None:
    rule = f"[[filter.event-filters]]\nmatcher = ['{scene.database}.t']\nignore-event = ['delete']"
    feed = scene.feed(config=f"[filter]\n{rule}\n")
    feed.catch_up()
    scene.sql("DELETE FROM t WHERE id < 5")
    scene.at_target("UPDATE t SET v = 'spoilt' WHERE id = 7")
    again(feed, scene, "t", "1")
    here, there = scene.rows("t")
    assert sorted(row[0] for row in set(there) - set(here)) == ["0", "1", "2", "3", "4"]  # type: ignore[index]
    assert set(here) <= set(there)


def test_deaths_and_writes_between(scene: Scene) -> None:
    """Rows move between parts, and go, while parts are written and the process dies."""
    feed = scene.feed()
    feed.catch_up()
    scene.at_target("UPDATE t SET v = 'spoilt'", "INSERT INTO t VALUES (100000, 'extra', 0)")
    deaths = 0

    def write(plan: Plan) -> None:
        nonlocal deaths
        if plan.stretch.segments[0].reread:
            deaths += 1
            low, high = deaths * 50, ROWS - deaths * 50
            scene.sql(
                f"DELETE FROM t WHERE id BETWEEN {low} AND {low + 9}",
                f"UPDATE t SET id = id + 20000 WHERE id BETWEEN {high} AND {high + 9}",
                f"UPDATE t SET v = 'new {deaths}' WHERE id % 11 = {deaths % 11}",
            )
            if deaths in (2, 4):
                raise SourceUnavailable("it dies here")

    feed.runner.before = feed.runner.after = write
    again(feed, scene, "t", "1")
    feed.stop()
    feed.run()
    feed.catch_up()
    assert deaths >= 5
    scene.assert_same("t")
