"""What the log says of a table's columns, and what the server says: they agree, or a DDL tells."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from feed_kit import Feed, Scene, scene_of

from rowferry.errors import TableContradicted
from rowferry.mysql.session import connected
from rowferry.mysql.snapshot_position import high_position
from rowferry.testing.servers import MySql, Server

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


def test_an_unlogged_change_between_compressed_transactions(
    mysql_server: Server, tmp_path: Path
) -> None:
    """Each of them is read by the columns that it has, though they lie side by side."""
    with scene_of(mysql_server, tmp_path, "unlogged_change_compressed") as scene:
        scene.sql(PLAIN_TABLE, "CREATE TABLE other (id int PRIMARY KEY)")
        feed = scene.feed()
        feed.catch_up()
        scene.sql(
            "SET SESSION binlog_transaction_compression = ON",
            "INSERT INTO t VALUES (1, 'one')",
            UNLOGGED,
            "ALTER TABLE t ADD COLUMN n int DEFAULT 7",
            LOGGED,
            "BEGIN",
            "INSERT INTO other VALUES (1)",
            "INSERT INTO t VALUES (2, 'two', 2)",
            "COMMIT",
            "INSERT INTO t VALUES (3, 'three', 3)",
        )
        feed.catch_up()
        assert feed.stale() == []
        assert [c.after for c in feed.changes("t")] == [
            {"id": 1, "v": "one"},
            {"id": 2, "v": "two", "n": 2},
            {"id": 3, "v": "three", "n": 3},
        ]
        assert len(feed.changes("other")) == 1


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


# --- keys ----------------------------------------------------------------------------------------

OTHER_KEYS = {
    "another one": (
        "id int PRIMARY KEY, v varchar(30), n int NOT NULL",
        "DROP PRIMARY KEY, ADD PRIMARY KEY (id, n)",
    ),
    "a unique one": (
        "id int PRIMARY KEY, v varchar(30), n int NOT NULL, UNIQUE KEY u (n, id)",
        "DROP PRIMARY KEY",
    ),
    "one that was unique": (
        "id int NOT NULL, v varchar(30), n int NOT NULL, UNIQUE KEY u (id)",
        "DROP KEY u, ADD UNIQUE KEY w (id, n)",
    ),
}


@pytest.mark.parametrize("name", OTHER_KEYS)
def test_another_key_under_a_feed(scene: Scene, name: str) -> None:
    """Rows that differ in no column of the old key are no longer one row."""
    columns, alteration = OTHER_KEYS[name]
    scene.sql(f"CREATE TABLE t ({columns})", "INSERT INTO t VALUES (1, 'one', 1)")
    feed = scene.feed()
    feed.catch_up()
    scene.sql(UNLOGGED, f"ALTER TABLE t {alteration}", LOGGED, "INSERT INTO t VALUES (1, 'two', 2)")
    feed.catch_up()
    assert feed.stale() == []
    assert feed.differences() == ""
    assert any(f"the key of {scene.database}.t changed" in words for words in feed.warnings)


def test_another_key_of_rows_in_the_past(scene: Scene) -> None:
    """The log tells how it changed: until then its own description is followed."""
    scene.sql("CREATE TABLE t (id int, n int, PRIMARY KEY (id, n))")
    with connected(scene.server.login) as connection:
        place = high_position(connection, scene.server.login, scene.server.flavour)
    scene.sql(
        "INSERT INTO t VALUES (1, 1), (1, 2)",
        "DELETE FROM t WHERE n = 1",
        "ALTER TABLE t DROP PRIMARY KEY, ADD PRIMARY KEY (id)",
        "INSERT INTO t VALUES (2, 2)",
    )
    feed = scene.feed(source=f"start-position={place['file']}:{place['offset']}")
    feed.catch_up()
    keys = [f.document.columns[1].get("ColumnIsPk") for f in feed.schema_files("t") if f.schema]
    assert (keys[0], keys[-1]) == ("true", None)
    assert len(feed.changes("t")) == 4
    assert any("own description" in words for words in feed.warnings)


def test_keys_that_the_log_may_not_tell(scene: Scene) -> None:
    """Of virtual columns, and of prefixes: none of them is a contradiction."""
    scene.sql(
        "CREATE TABLE a (id int NOT NULL, v text NOT NULL, UNIQUE (v(20)))",
        "CREATE TABLE b (id int NOT NULL, v tinyblob NOT NULL, UNIQUE (v(255)))",
        "CREATE TABLE c (id int NOT NULL, v int AS (id + 1) VIRTUAL NOT NULL, UNIQUE (v))"
        if isinstance(scene.server, MySql)
        else "CREATE TABLE c (id int NOT NULL, v int AS (id + 1) VIRTUAL, UNIQUE (v))",
        "CREATE TABLE d (id int NOT NULL, n int NOT NULL, UNIQUE (n), UNIQUE (id), UNIQUE (n, id))",
        "CREATE TABLE e (v varchar(30) NOT NULL, PRIMARY KEY (v(10)))",
    )
    feed = scene.feed(config="force-replicate = true")
    feed.catch_up()
    scene.sql(
        "INSERT INTO a VALUES (1, 'x')",
        "INSERT INTO b VALUES (1, 'x')",
        "INSERT INTO c (id) VALUES (1)",
        "INSERT INTO d VALUES (1, 1)",
        "INSERT INTO e VALUES ('x')",
    )
    feed.catch_up()
    assert feed.stale() == []
    assert feed.warnings == []
