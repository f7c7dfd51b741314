"""Statements that change rows, or seem to, and leave no rows in the log."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from feed_kit import Feed, Scene, scene_of

from rowferry.change.chunk import DdlKind
from rowferry.errors import EventUnknown
from rowferry.testing.servers import Server

PLAIN_TABLE = "CREATE TABLE t (id int PRIMARY KEY, v varchar(300))"
AS_STATEMENT = "SET SESSION binlog_format = STATEMENT"


@pytest.fixture
def scene(source_server: Server, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Scene]:
    with scene_of(source_server, tmp_path, request.node.name) as found:
        found.sql(PLAIN_TABLE, "INSERT INTO t VALUES (1, 'one')")
        yield found


def started(scene: Scene, source: str = "") -> Feed:
    feed = scene.feed(source=source)
    feed.catch_up()
    return feed


@pytest.mark.parametrize("source", ["", "snapshot=never"])
def test_a_table_made_of_a_query_as_a_statement(scene: Scene, source: str) -> None:
    """Its rows are nowhere: the feed stops, and says so."""
    feed = started(scene, source=source)
    scene.sql(AS_STATEMENT, "CREATE TABLE made (PRIMARY KEY (id)) SELECT * FROM t")
    with pytest.raises(EventUnknown, match=rf"makes {scene.database}\.made and its rows.*ROW"):
        feed.catch_up()


def test_others_made_of_a_query_as_a_statement(scene: Scene) -> None:
    """Nobody captures them: one has no key, and one the filter leaves out."""
    feed = scene.feed([f"{scene.database}.*", f"!{scene.database}.aside"])
    feed.catch_up()
    scene.sql(
        AS_STATEMENT,
        "CREATE TABLE bag SELECT * FROM t",
        "CREATE TABLE aside (PRIMARY KEY (id)) SELECT * FROM t",
        "SET SESSION binlog_format = ROW",
        "INSERT INTO t VALUES (2, 'two')",
    )
    feed.catch_up()
    assert feed.differences() == ""


def test_an_analysed_statement(mariadb_server: Server, tmp_path: Path) -> None:
    """MariaDB carries it out, and writes it to the log as it is."""
    with scene_of(mariadb_server, tmp_path, "an_analysed_statement") as scene:
        scene.sql(PLAIN_TABLE, "INSERT INTO t VALUES (1, 'one')")
        feed = started(scene)
        scene.sql("ANALYZE TABLE t", "ANALYZE UPDATE t SET v = 'two'")
        feed.catch_up()
        assert feed.differences() == ""
        scene.sql(AS_STATEMENT, "ANALYZE FORMAT=JSON UPDATE t SET v = 'three'")
        with pytest.raises(EventUnknown, match=rf"{scene.database}\.t as a statement"):
            feed.catch_up()


def test_a_procedure_that_begins_a_transaction(scene: Scene) -> None:
    """Its text ends as that of a table does whose rows follow in the same transaction."""
    feed = started(scene)
    scene.sql("CREATE PROCEDURE p() START TRANSACTION", "INSERT INTO t VALUES (2, 'two')")
    feed.catch_up()
    assert feed.differences() == ""


@pytest.mark.parametrize("paused", [False, True])
def test_rows_that_come_as_a_file(scene: Scene, paused: bool) -> None:
    """Others take the place of those that were there: the table is read anew."""
    feed = scene.feed([f"{scene.database}.t"])
    feed.catch_up()
    if paused:
        feed.stop()
    folder = scene.server.datadir / scene.database
    scene.sql("CREATE TABLE other LIKE t", "INSERT INTO other VALUES (5, 'five'), (6, 'six')")
    session = scene.session()
    session("ALTER TABLE t DISCARD TABLESPACE", "FLUSH TABLES other FOR EXPORT")
    for end in ("ibd", "cfg"):
        shutil.copyfile(folder / f"other.{end}", folder / f"t.{end}")
    session("UNLOCK TABLES", "ALTER TABLE t IMPORT TABLESPACE", "INSERT INTO t VALUES (7, 'seven')")
    if paused:
        feed.run()
    feed.catch_up()
    assert feed.differences() == ""
    assert [row["id"] for row in feed.rows("t")] == [5, 6, 7]
    kinds = [kind for kind, _ in feed.ddl("t")]
    assert kinds == [DdlKind.DROP_TABLE, DdlKind.CREATE_TABLE]


@pytest.mark.parametrize("what", ["ADD UNIQUE KEY (v)", "ADD UNIQUE KEY (v), RENAME TO u"])
def test_rows_that_a_new_key_takes_away(mariadb_server: Server, tmp_path: Path, what: str) -> None:
    """MariaDB deletes what does not fit, and the log does not tell: the table is read anew."""
    with scene_of(mariadb_server, tmp_path, "rows_that_a_new_key_takes_away") as scene:
        rows = "(1, 'a'), (2, 'a'), (3, 'b'), (4, 'b')"
        scene.sql(PLAIN_TABLE, f"INSERT INTO t VALUES {rows}")
        feed = started(scene)
        scene.sql("ALTER IGNORE TABLE t ADD KEY k (v)")
        feed.catch_up()
        assert [kind for kind, _ in feed.ddl("t")] == [DdlKind.ADD_INDEX]
        scene.sql(f"ALTER IGNORE TABLE t {what}")
        name = "u" if "RENAME" in what else "t"
        scene.sql(f"INSERT INTO {name} VALUES (5, 'c')")
        feed.catch_up()
        assert feed.differences() == ""
        assert len(feed.rows(name)) == 3
        assert DdlKind.TRUNCATE_TABLE in [kind for kind, _ in feed.ddl("t")]
