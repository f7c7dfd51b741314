"""What statements did is told to readers, and stays told."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from feed_kit import Scene, scene_of

from rowferry.change.chunk import DdlKind
from rowferry.errors import EventUnknown
from rowferry.testing.servers import Server


@pytest.fixture
def scene(source_server: Server, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Scene]:
    with scene_of(source_server, tmp_path, request.node.name) as found:
        found.sql("CREATE TABLE a (id INT PRIMARY KEY)", "INSERT INTO a VALUES (1), (7), (9)")
        yield found


def test_a_column_that_is_added(scene: Scene) -> None:
    feed = scene.feed()
    feed.catch_up()
    scene.sql("ALTER TABLE a ADD COLUMN n INT DEFAULT 3", "UPDATE a SET n = 4 WHERE id > 6")
    feed.catch_up()
    feed.run()
    scene.sql("UPDATE a SET n = 5 WHERE id > 8")
    feed.catch_up()
    assert [query for _, query in feed.ddl("a")] == ["ALTER TABLE a ADD COLUMN n INT DEFAULT 3"]
    assert feed.differences() == ""


def test_a_database_that_is_dropped(scene: Scene) -> None:
    feed = scene.feed()
    feed.catch_up()
    assert len(feed.rows("a")) == 3
    scene.server.script(f"DROP DATABASE {scene.database}", f"CREATE DATABASE {scene.database}")
    feed.catch_up()
    assert feed.rows("a") == []
    assert [kind for kind, _ in feed.ddl("a")] == [DdlKind.DROP_TABLE]
    scene.sql("CREATE TABLE a (id INT PRIMARY KEY, v INT)", "INSERT INTO a VALUES (1, 1)")
    feed.catch_up()
    assert feed.rows("a") == [{"id": 1, "v": 1}]
    assert feed.differences() == ""


def test_rows_that_are_written_as_a_statement(scene: Scene) -> None:
    feed = scene.feed()
    feed.catch_up()
    scene.sql("SET SESSION binlog_format = 'STATEMENT'", "INSERT INTO a VALUES (5)")
    with pytest.raises(EventUnknown, match=r"changes rows of \S+\.a as a statement"):
        feed.catch_up()


def test_a_column_that_no_statement_tells(scene: Scene) -> None:
    feed = scene.feed()
    feed.catch_up()
    scene.sql(
        "SET SESSION sql_log_bin = 0",
        "ALTER TABLE a ADD COLUMN z INT",
        "SET SESSION sql_log_bin = 1",
        "INSERT INTO a VALUES (5, 50)",
    )
    feed.catch_up()
    assert feed.changes("a")[-1].after == {"id": 5, "z": 50}


def test_several_tables_in_one_statement(scene: Scene) -> None:
    scene.sql("CREATE TABLE b (id INT PRIMARY KEY)", "RENAME TABLE a TO a0, b TO b0")
    feed = scene.feed()
    feed.catch_up()
    for n in range(4):  # rows right behind the statement: MariaDB's log tells whole seconds only
        names = f"a{n} TO a{n + 1}, b{n} TO b{n + 1}"
        scene.sql(f"RENAME TABLE {names}", f"INSERT INTO a{n + 1} VALUES ({100 + n})")
    feed.catch_up()
    for n in range(1, 5):
        (row,) = feed.changes(f"a{n}")
        told = [f.document.table_version for t in "ab" for f in feed.schema_files(f"{t}{n}")]
        assert row.commit_ts > max(told), f"{row} has a commit-ts of a statement before it: {told}"
    assert feed.differences() == ""
