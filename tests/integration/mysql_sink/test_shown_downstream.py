"""Rows downstream that a discarded plan has written: they are taken back before others come."""

from __future__ import annotations

import pytest
from mysql_sink_kit import MySqlFeed, Scene

from rowferry.change.plan import Plan
from rowferry.errors import SinkUnavailable, SnapshotOutdated


def fail_once(feed: MySqlFeed, table: str, error: Exception, scene: Scene, *after: str) -> None:
    """Let the job fail that has written a table's snapshot; then statements run at the source."""

    def fail(plan: Plan) -> None:
        parts = [s for s in plan.stretch.segments if s.snapshot]
        if table in {one.table.table for s in parts for one in s.slices}:
            feed.runner.after = lambda plan: None
            scene.sql(*after)
            raise error

    feed.runner.after = fail


@pytest.mark.parametrize("query", ["", "exactly-once=true"])
def test_rows_without_a_key_are_not_written_twice(same_kind: Scene, query: str) -> None:
    scene = same_kind
    scene.both("CREATE TABLE k (v int)")
    scene.sql("INSERT INTO k VALUES (1), (2), (2)")
    feed = scene.feed(query, "force-replicate = true")
    fail_once(feed, "k", SinkUnavailable("lost"), scene, "DELETE FROM k WHERE v = 1")
    feed.catch_up()
    assert len(feed.faults) == 1
    assert scene.assert_same("k") == 2


@pytest.mark.parametrize(
    ("after", "left"),
    [
        (("RENAME TABLE a TO b",), ["b"]),
        (("DROP TABLE a", "CREATE TABLE a (id int PRIMARY KEY, w date)"), ["a"]),
        (("ALTER TABLE a MODIFY v varchar(9)", "DELETE FROM a WHERE id = 1"), ["a"]),
        (("DELETE FROM a WHERE id = 1",), ["a"]),
    ],
    ids=["renamed", "another one", "altered", "rows gone"],
)
def test_what_a_discarded_beginning_has_written_goes(
    same_kind: Scene, after: tuple[str, ...], left: list[str]
) -> None:
    scene = same_kind
    scene.sql("CREATE TABLE a (id int PRIMARY KEY, v int)", "INSERT INTO a VALUES (1, 1), (2, 2)")
    feed = scene.feed("create-tables=true")
    fail_once(feed, "a", SnapshotOutdated("the table has changed"), scene, *after)
    feed.catch_up()
    assert len(feed.faults) == 1
    scene.assert_same(*left)
    there = scene.target.execute(
        "SELECT TABLE_NAME FROM information_schema.TABLES WHERE TABLE_SCHEMA = %s", scene.copy
    )
    assert [str(row[0]) for row in there] == left
