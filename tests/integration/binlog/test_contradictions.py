"""What the log says of a table's columns, and what the server says: they agree, or a DDL tells."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from feed_kit import Feed, Scene, scene_of

from rowferry.errors import TableContradicted
from rowferry.mysql.session import connected
from rowferry.mysql.snapshot_position import high_position
from rowferry.testing.servers import Server

PLAIN_TABLE = "CREATE TABLE t (id int PRIMARY KEY, v varchar(300))"
UNLOGGED = "SET SESSION sql_log_bin = 0"
LOGGED = "SET SESSION sql_log_bin = 1"


@pytest.fixture
def scene(source_server: Server, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Scene]:
    with scene_of(source_server, tmp_path, request.node.name) as found:
        yield found


def begun_in_the_past(scene: Scene, *statements: str) -> Feed:
    """Return a feed that begins in the log before these statements."""
    scene.sql(PLAIN_TABLE)
    with connected(scene.server.login) as connection:
        place = high_position(connection, scene.server.login, scene.server.flavour)
    scene.sql(*statements)
    return scene.feed(source=f"start-position={place['file']}:{place['offset']}")


def test_columns_behind_a_vector(mysql_server: Server, tmp_path: Path) -> None:
    """MySQL counts a VECTOR among the columns that have a character set."""
    with scene_of(mysql_server, tmp_path, "columns_behind_a_vector") as scene:
        scene.sql(
            "CREATE TABLE t (id int PRIMARY KEY, a varchar(20) CHARACTER SET latin1, e vector(2), "
            "b varchar(20) CHARACTER SET gbk, c blob, f vector(3), d text CHARACTER SET utf8mb4, "
            "g varbinary(9), h char(9) CHARACTER SET latin2)"
        )
        feed = scene.feed()
        feed.catch_up()
        values = "(1, 'é', TO_VECTOR('[1,2]'), '中', x'ff00', NULL, '😀', x'fe', 'ł')"
        scene.sql(f"INSERT INTO t VALUES {values}", "UPDATE t SET f = TO_VECTOR('[1,2,3]')")
        feed.catch_up()
        assert feed.stale() == []
        assert feed.warnings == []
        (row,) = feed.rows("t")
        assert [row[c] for c in "abcdgh"] == ["é", "中", b"\xff\0", "😀", b"\xfe", "ł"]
        assert [row[c] for c in "ef"] == ["[1,2]", "[1,2,3]"]


def test_a_column_that_nobody_changed_in_the_log(scene: Scene) -> None:
    """The server is newer than the log, and the log will never tell how: the feed stops."""
    feed = begun_in_the_past(
        scene,
        "INSERT INTO t VALUES (1, 'one')",
        UNLOGGED,
        "ALTER TABLE t MODIFY v varchar(20)",
    )
    with pytest.raises(
        TableContradicted, match=r"\.t: column 'v' is varchar\(300\) in the log, not varchar\(20\)"
    ):
        feed.catch_up()
    assert feed.changes("t") == []


@pytest.mark.parametrize("files", [1, 2])
def test_a_statement_further_on(scene: Scene, files: int) -> None:
    """The server is newer than the log, which tells why later, be it in another file."""
    scene.sql(PLAIN_TABLE)
    with connected(scene.server.login) as connection:
        place = high_position(connection, scene.server.login, scene.server.flavour)
    scene.sql("INSERT INTO t VALUES (1, 'one')")
    if files == 2:
        scene.server.execute("FLUSH BINARY LOGS")
    scene.sql("ALTER TABLE t MODIFY v varchar(20)", "INSERT INTO t VALUES (2, 'two')")
    feed = scene.feed(source=f"start-position={place['file']}:{place['offset']}")
    feed.catch_up()
    assert [c.after for c in feed.changes("t")] == [{"id": 1, "v": "one"}, {"id": 2, "v": "two"}]
    assert feed.schema_files("t")[-1].document.columns[-1]["ColumnPrecision"] == "20"


def test_an_unlogged_change_under_a_feed(scene: Scene) -> None:
    """Log and server agree that the table is another one now: followed, with a warning."""
    scene.sql(PLAIN_TABLE, "INSERT INTO t VALUES (1, 'one')")
    feed = scene.feed()
    feed.catch_up()
    scene.sql(
        UNLOGGED,
        "ALTER TABLE t ADD COLUMN n int DEFAULT 7",
        LOGGED,
        "INSERT INTO t VALUES (2, 'two', 2)",
    )
    feed.catch_up()
    assert feed.stale() == []
    assert feed.changes("t")[-1].after == {"id": 2, "v": "two", "n": 2}
    assert any("columns of" in words and ".t changed" in words for words in feed.warnings)


def test_an_unlogged_change_and_a_logged_one(scene: Scene) -> None:
    """Between the two nobody but the log knows the columns: its description is followed."""
    scene.sql(PLAIN_TABLE, "INSERT INTO t VALUES (1, 'one')")
    feed = scene.feed()
    feed.catch_up()
    feed.stop()
    scene.sql(
        UNLOGGED,
        "ALTER TABLE t ADD COLUMN n int DEFAULT 7",
        LOGGED,
        "INSERT INTO t VALUES (2, 'two', 2)",
        "ALTER TABLE t ADD COLUMN m bigint",
        "INSERT INTO t VALUES (3, 'three', 3, 33)",
    )
    feed.run()
    feed.catch_up()
    assert [c.after for c in feed.changes("t")][1:] == [
        {"id": 2, "v": "two", "n": 2},
        {"id": 3, "v": "three", "n": 3, "m": 33},
    ]
    assert any("own description" in words for words in feed.warnings)
