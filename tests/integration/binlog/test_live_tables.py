"""Tables that come, go and change while a feed runs: rows, versions and schema files follow."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from feed_kit import Feed, Scene, scene_of

from patience import until_it_fails
from rowferry.change.chunk import DdlKind, Op
from rowferry.change.plan import Plan
from rowferry.errors import SourceUnavailable
from rowferry.flow.capture.binlog.snapshot import snapshots as snapshot
from rowferry.testing.servers import MariaDb11, Server

PLAIN_TABLE = "CREATE TABLE t (id int PRIMARY KEY, v varchar(300))"


@pytest.fixture
def scene(source_server: Server, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Scene]:
    with scene_of(source_server, tmp_path, request.node.name) as found:
        yield found


def started(scene: Scene, *tables: str, **settings: str) -> Feed:
    """Make tables and a feed of the database that has delivered them."""
    scene.sql(*(tables or (PLAIN_TABLE, "INSERT INTO t VALUES (1, 'one')")))
    feed = scene.feed(**settings)
    feed.catch_up()
    return feed


def follow(feed: Feed) -> None:
    """Deliver everything; what a reader has then is what the server has."""
    feed.catch_up()
    assert feed.differences() == ""
    assert feed.stale() == []


def kinds(feed: Feed, table: str = "t") -> list[DdlKind]:
    return [kind for kind, _ in feed.ddl(table)]


# --- tables that come ----------------------------------------------------------------------------


def test_a_new_table(scene: Scene) -> None:
    feed = started(scene)
    scene.sql(
        "CREATE TABLE fresh (id bigint unsigned PRIMARY KEY, e enum('a', 'b') DEFAULT 'b')",
        "INSERT INTO fresh (id) VALUES (18446744073709551615)",
        "CREATE TABLE nothing (id int PRIMARY KEY)",
    )
    follow(feed)
    assert kinds(feed, "fresh") == [DdlKind.CREATE_TABLE]
    assert kinds(feed, "nothing") == [DdlKind.CREATE_TABLE]
    assert feed.runner.segments("snapshot")[1:] == []


def test_no_table_at_the_beginning(scene: Scene) -> None:
    feed = scene.feed()
    assert any("no table" in words for words in feed.notices)
    feed.catch_up()
    scene.sql(PLAIN_TABLE, "INSERT INTO t VALUES (1, 'one')")
    follow(feed)
    assert len(feed.rows("t")) == 1


def test_a_copy_of_a_definition(scene: Scene) -> None:
    feed = started(
        scene,
        "CREATE TABLE t (id int AUTO_INCREMENT PRIMARY KEY, v varchar(20) NOT NULL DEFAULT 'x', "
        "n decimal(10, 2), UNIQUE KEY (v))",
    )
    scene.sql("CREATE TABLE copy LIKE t", "INSERT INTO copy (n) VALUES (1.5)")
    follow(feed)
    assert feed.rows("copy") == [{"id": 1, "v": "x", "n": "1.50"}]


def test_a_table_made_of_a_query(scene: Scene) -> None:
    """The DDL comes first, then its rows, with the same commit-ts."""
    feed = started(scene)
    scene.sql("CREATE TABLE made (PRIMARY KEY (id)) SELECT id, CONCAT(v, '!') AS w FROM t")
    follow(feed)
    assert feed.rows("made") == [{"id": 1, "w": "one!"}]
    (file,) = feed.schema_files("made")
    assert [c.commit_ts for c in feed.changes("made")] == [file.document.table_version]


def test_a_table_made_of_a_query_survives_a_restart(scene: Scene) -> None:
    """Between the DDL and its rows the feed stands inside a transaction."""
    feed = started(scene)
    scene.sql("CREATE TABLE made (PRIMARY KEY (id)) SELECT id, CONCAT(v, '!') AS w FROM t")
    restart_at_each_step(feed)
    follow(feed)
    assert feed.rows("made") == [{"id": 1, "w": "one!"}]
    assert feed.repeated("made") == []
    assert kinds(feed, "made") == [DdlKind.CREATE_TABLE]


def test_a_table_made_of_a_query_on_a_server_without_positions(
    tmp_path_factory: pytest.TempPathFactory, tmp_path: Path
) -> None:
    """MariaDB 11.4 and later do not tell where events inside a transaction end."""
    with MariaDb11.start(tmp_path_factory.mktemp("mariadb11"), server_id=14) as server:
        with scene_of(server, tmp_path, "made_of_a_query") as scene:
            test_a_table_made_of_a_query_survives_a_restart(scene)


def restart_at_each_step(feed: Feed) -> None:
    for _ in range(12):
        feed.step()
        feed.run()


def test_a_table_replaced(mariadb_server: Server, tmp_path: Path) -> None:
    with scene_of(mariadb_server, tmp_path, "a_table_replaced") as scene:
        feed = started(scene)
        scene.sql(
            "CREATE OR REPLACE TABLE t (id int PRIMARY KEY, other int)",
            "INSERT INTO t VALUES (7, 70)",
        )
        follow(feed)
        assert feed.rows("t") == [{"id": 7, "other": 70}]
        scene.sql("CREATE OR REPLACE TABLE t (PRIMARY KEY (k)) SELECT 5 AS k, 'x' AS w")
        follow(feed)
        assert feed.rows("t") == [{"k": 5, "w": "x"}]


def test_a_table_that_a_changed_filter_keeps(scene: Scene) -> None:
    """It joins with its rows; the other table's changes go on without a gap or a repeat."""
    scene.sql(
        PLAIN_TABLE,
        "INSERT INTO t VALUES (1, 'one')",
        "CREATE TABLE later (id int PRIMARY KEY, n int)",
        "INSERT INTO later VALUES (1, 1), (2, 2)",
    )
    feed = scene.feed([f"{scene.database}.t"])
    feed.catch_up()
    scene.sql("INSERT INTO later VALUES (3, 3)", "INSERT INTO t VALUES (2, 'two')")
    feed.run(rules=[f"{scene.database}.*"])
    scene.sql("UPDATE later SET n = 30 WHERE id = 3", "INSERT INTO t VALUES (3, 'three')")
    follow(feed)
    assert len(feed.rows("later")) == 3
    assert feed.repeated("t") == []
    assert [c.after["id"] for c in feed.changes("t") if c.after] == [1, 2, 3]
    feed.run(rules=[f"{scene.database}.later"])
    scene.sql("INSERT INTO t VALUES (4, 'not any more')", "INSERT INTO later VALUES (4, 4)")
    feed.catch_up()
    assert len(feed.changes("t")) == 3
    assert len(feed.rows("later")) == 4


# --- tables that are renamed ---------------------------------------------------------------------


def test_a_rename_inside_the_filter(scene: Scene) -> None:
    feed = started(scene)
    scene.sql("RENAME TABLE t TO u", "INSERT INTO u VALUES (2, 'two')", "ALTER TABLE u RENAME w")
    scene.sql("INSERT INTO w VALUES (3, 'three')")
    follow(feed)
    assert len(feed.rows("w")) == 3
    assert feed.runner.segments("snapshot")[1:] == []


def test_two_tables_trade_names(scene: Scene) -> None:
    feed = started(
        scene,
        "CREATE TABLE a (id int PRIMARY KEY, only_a int)",
        "CREATE TABLE b (id int PRIMARY KEY, only_b varchar(9))",
        "INSERT INTO a VALUES (1, 1)",
        "INSERT INTO b VALUES (2, 'b')",
    )
    scene.sql("RENAME TABLE a TO c, b TO a, c TO b", "INSERT INTO a VALUES (3, 'x')")
    scene.sql("UPDATE b SET only_a = 9")
    follow(feed)
    assert feed.rows("b") == [{"id": 1, "only_a": 9}]


def test_a_table_renamed_into_the_filter(scene: Scene) -> None:
    """It joins with the rows that it has, as a new table."""
    scene.sql(
        "CREATE TABLE t_kept (id int PRIMARY KEY, v varchar(20))",
        "CREATE TABLE outside (id int PRIMARY KEY, n int)",
        "INSERT INTO outside VALUES (1, 1), (2, 2)",
    )
    feed = scene.feed([f"{scene.database}.t_*"])
    feed.catch_up()
    scene.sql(
        "INSERT INTO outside VALUES (3, 3)",
        "RENAME TABLE outside TO t_joined",
        "INSERT INTO t_joined VALUES (4, 4)",
        "DELETE FROM t_joined WHERE id = 1",
    )
    follow(feed)
    assert kinds(feed, "t_joined")[0] is DdlKind.CREATE_TABLE
    assert [r["id"] for r in feed.rows("t_joined")] == [2, 3, 4]


def test_a_table_renamed_out_of_the_filter(scene: Scene) -> None:
    scene.sql("CREATE TABLE t_a (id int PRIMARY KEY)", "INSERT INTO t_a VALUES (1)")
    feed = scene.feed([f"{scene.database}.t_*"])
    feed.catch_up()
    scene.sql(
        "INSERT INTO t_a VALUES (2)",
        "RENAME TABLE t_a TO gone",
        "INSERT INTO gone VALUES (3)",
        "CREATE TABLE t_a (id int PRIMARY KEY, again int)",
        "INSERT INTO t_a VALUES (9, 9)",
    )
    feed.catch_up()
    assert feed.changes("gone") == []
    ids = [c.after["id"] for c in feed.changes("t_a") if c.after]
    assert ids == [1, 2, 9]
    assert feed.rows("t_a") == [{"id": 9, "again": 9}]


# --- online schema changes -----------------------------------------------------------------------


SWAPS = {
    "gh-ost": ("_t_gho", "RENAME TABLE t TO _t_del, _t_gho TO t"),
    "pt-osc": ("_t_new", "RENAME TABLE t TO _t_old, _t_new TO t"),
}


TURN = "RENAME TABLE t TO aside, t_next TO t, aside TO t_next"


@pytest.mark.parametrize("tool", list(SWAPS))
@pytest.mark.parametrize("how", ["follow", "snapshot"])
def test_a_swap(scene: Scene, tool: str, how: str) -> None:
    """The copy is not captured while it is filled; then it is the table."""
    copy, swap = SWAPS[tool]
    scene.sql(PLAIN_TABLE, "INSERT INTO t VALUES (1, 'one'), (2, 'two')")
    feed = scene.feed([f"{scene.database}.t"], source=f"online-schema-change={how}")
    feed.catch_up()
    snapshots = len(feed.runner.segments("snapshot"))
    scene.sql(
        f"CREATE TABLE {copy} LIKE t",
        f"ALTER TABLE {copy} ADD COLUMN n int DEFAULT 5, MODIFY v varchar(400)",
        f"INSERT INTO {copy} (id, v) SELECT id, v FROM t",
        "INSERT INTO t VALUES (3, 'three')",
        f"INSERT INTO {copy} (id, v) VALUES (3, 'three')",
        *(["INSERT INTO t VALUES (9, 'only here')"] if how == "snapshot" else []),
        swap,
        "INSERT INTO t VALUES (4, 'four', 6)",
        "UPDATE t SET v = 'uno' WHERE id = 1",
    )
    follow(feed)
    assert [r["n"] for r in feed.rows("t")] == [5, 5, 5, 6]
    assert feed.changes(copy) == []
    again = len(feed.runner.segments("snapshot")) - snapshots
    assert again == (0 if how == "follow" else 1)


@pytest.mark.parametrize("way", ["RENAME TABLE t TO t_old, t_next TO t", TURN])
def test_a_swap_by_hand_brings_other_rows(scene: Scene, way: str) -> None:
    """No tool has made the other table, so nothing is known of its rows: they are read."""
    scene.sql(PLAIN_TABLE, "INSERT INTO t VALUES (1, 'one'), (2, 'two')")
    scene.sql("CREATE TABLE t_next LIKE t", "INSERT INTO t_next VALUES (2, 'dos'), (3, 'tres')")
    feed = scene.feed([f"{scene.database}.t"])
    feed.catch_up()
    scene.sql(way, "INSERT INTO t VALUES (4, 'cuatro')")
    follow(feed)
    assert [r["v"] for r in feed.rows("t")] == ["dos", "tres", "cuatro"]


# --- tables that go ------------------------------------------------------------------------------


def test_truncate(scene: Scene) -> None:
    feed = started(scene)
    scene.sql("TRUNCATE t", "INSERT INTO t VALUES (5, 'new')", "TRUNCATE TABLE t")
    scene.sql("INSERT INTO t VALUES (6, 'newer')")
    follow(feed)
    assert feed.rows("t") == [{"id": 6, "v": "newer"}]
    assert kinds(feed) == [DdlKind.TRUNCATE_TABLE] * 2


def test_drop_and_create_again(scene: Scene) -> None:
    feed = started(scene)
    scene.sql("DROP TABLE t", "CREATE TABLE t (id varchar(9) PRIMARY KEY, other date)")
    scene.sql("INSERT INTO t VALUES ('a', '2024-02-29')")
    follow(feed)
    assert feed.rows("t") == [{"id": "a", "other": "2024-02-29"}]
    assert kinds(feed) == [DdlKind.DROP_TABLE, DdlKind.CREATE_TABLE]


def test_drop_several(scene: Scene) -> None:
    feed = started(scene, PLAIN_TABLE, "CREATE TABLE u LIKE t", "CREATE TABLE w LIKE t")
    scene.sql("INSERT INTO u VALUES (1, 'x')", "DROP TABLE IF EXISTS t, missing, u")
    scene.sql("INSERT INTO w VALUES (1, 'x')")
    follow(feed)
    assert feed.rows("u") == []
    assert DdlKind.DROP_TABLE in kinds(feed, "u")


def test_drop_database(scene: Scene) -> None:
    feed = started(scene)
    scene.server.script(
        f"DROP DATABASE {scene.database}",
        f"CREATE DATABASE {scene.database}",
        f"CREATE TABLE {scene.database}.t (id int PRIMARY KEY, again int)",
        f"INSERT INTO {scene.database}.t VALUES (1, 1)",
    )
    follow(feed)
    assert feed.rows("t") == [{"id": 1, "again": 1}]


# --- tables that change --------------------------------------------------------------------------

ALTERS = {
    "columns change places": ["ALTER TABLE t MODIFY v varchar(300) FIRST"],
    "a column in the middle": ["ALTER TABLE t ADD COLUMN m int NOT NULL DEFAULT 3 AFTER id"],
    "columns go and come": ["ALTER TABLE t DROP COLUMN n", "ALTER TABLE t ADD COLUMN n double"],
    "a column is renamed": ["ALTER TABLE t CHANGE v w varchar(300)"],
    "another character set": [
        "ALTER TABLE t CONVERT TO CHARACTER SET latin1",
        "INSERT INTO t VALUES (50, 'Grüße', 5)",
        "ALTER TABLE t CONVERT TO CHARACTER SET utf8mb4",
    ],
    "another type": ["ALTER TABLE t MODIFY n bigint unsigned"],
    "a new key": ["ALTER TABLE t DROP PRIMARY KEY, ADD PRIMARY KEY (id, n)"],
    "an index": ["CREATE UNIQUE INDEX u ON t (v, n)", "DROP INDEX u ON t"],
    "only a comment": ["ALTER TABLE t COMMENT = 'for show'"],
    "several in one": ["ALTER TABLE t ADD a int, ADD b int FIRST, DROP COLUMN n, ADD KEY (a)"],
}


@pytest.mark.parametrize("name", list(ALTERS))
@pytest.mark.parametrize("rows_follow", [True, False])
def test_alter(scene: Scene, name: str, rows_follow: bool) -> None:
    """Also where no row follows that would show the new columns."""
    table = "CREATE TABLE t (id int, v varchar(300), n int DEFAULT 4, PRIMARY KEY (id))"
    feed = started(scene, table, "INSERT INTO t VALUES (1, 'é', 1), (2, 'b', 2)")
    for statement in ALTERS[name]:
        scene.sql(statement)
    if rows_follow:
        scene.sql("INSERT INTO t (id) VALUES (100)", "UPDATE t SET id = id + 1000 WHERE id = 1")
    follow(feed)
    assert feed.warnings == []


def test_changes_that_nobody_waits_for(scene: Scene) -> None:
    """All the DDL is over when the first of it is read: each version is told by its text."""
    feed = started(scene, "CREATE TABLE t (id int PRIMARY KEY, v varchar(300), n int)")
    scene.sql(
        "INSERT INTO t VALUES (1, 'a', 1)",
        "ALTER TABLE t ADD COLUMN x int",
        "INSERT INTO t VALUES (2, 'b', 2, 2)",
        "ALTER TABLE t DROP COLUMN v",
        "INSERT INTO t VALUES (3, 3, 3)",
        "ALTER TABLE t RENAME COLUMN n TO number",
        "INSERT INTO t VALUES (4, 4, 4)",
        "RENAME TABLE t TO u",
        "INSERT INTO u VALUES (5, 5, 5)",
        "TRUNCATE u",
        "INSERT INTO u VALUES (6, 6, 6)",
        "DROP TABLE u",
        "CREATE TABLE u (id int PRIMARY KEY)",
        "INSERT INTO u VALUES (7)",
    )
    follow(feed)
    rows = [c.after for c in feed.changes("t")]
    assert rows == [
        {"id": 1, "v": "a", "n": 1},
        {"id": 2, "v": "b", "n": 2, "x": 2},
        {"id": 3, "n": 3, "x": 3},
        {"id": 4, "number": 4, "x": 4},
    ]
    assert [c.after["id"] for c in feed.changes("u") if c.after] == [5, 6, 7]


def test_statements_about_other_tables(scene: Scene) -> None:
    """Whatever they say, and however badly it is understood, the feed goes on."""
    scene.sql(PLAIN_TABLE, "CREATE TABLE aside (id int PRIMARY KEY, g geometry, v int)")
    feed = scene.feed([f"{scene.database}.t"])
    feed.catch_up()
    scene.sql(
        "CREATE PROCEDURE p() BEGIN ALTER TABLE t ADD COLUMN never int; END",
        "CREATE VIEW w AS SELECT * FROM t",
        "ALTER TABLE aside ADD COLUMN c int AS (v * 2 + length('ALTER TABLE t DROP COLUMN v'))",
        "CREATE TRIGGER tr BEFORE INSERT ON aside FOR EACH ROW SET NEW.v = (SELECT 1 FROM t)",
        "CREATE EVENT e ON SCHEDULE EVERY 1 YEAR STARTS '2037-01-01' DO DROP TABLE t",
        "DROP EVENT e",
        "DROP TABLE aside",
        "INSERT INTO t VALUES (1, 'x')",
    )
    follow(feed)
    assert feed.ddl("t") == []
    assert len(feed.rows("t")) == 1


def test_temporary_tables(scene: Scene) -> None:
    """They are a session's own; one may hide a captured table's name."""
    feed = started(scene)
    scene.sql(
        "CREATE TEMPORARY TABLE t (other int)",
        "INSERT INTO t VALUES (1)",
        "ALTER TABLE t ADD COLUMN more int",
        "DROP TEMPORARY TABLE t",
        "INSERT INTO t VALUES (2, 'two')",
    )
    follow(feed)
    assert feed.ddl("t") == []


# --- while a snapshot is read --------------------------------------------------------------------


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A snapshot is read in many parts, a few at a time."""
    monkeypatch.setattr(snapshot, "MOST_SEGMENTS", 1)
    monkeypatch.setattr(snapshot, "_LEAST_ROWS", 100)
    monkeypatch.setattr(snapshot, "_MOST_ROWS", 100)


def rows_of(first: int, count: int) -> str:
    return ", ".join(f"({i}, 'row {i}')" for i in range(first, first + count))


def half_way(scene: Scene) -> Feed:
    """Return a feed that has delivered the first part of a table."""
    scene.sql(PLAIN_TABLE, f"INSERT INTO t VALUES {rows_of(0, 500)}")
    feed = scene.feed()
    feed.step_until(lambda step: step.rows > 0)
    assert 0 < len(feed.changes("t")) < 500
    return feed


def test_a_column_is_added_under_a_snapshot(scene: Scene, small_parts: None) -> None:
    feed = half_way(scene)
    scene.sql("ALTER TABLE t ADD COLUMN n int DEFAULT 7", "INSERT INTO t VALUES (1000, 'x', 8)")
    follow(feed)
    assert DdlKind.TRUNCATE_TABLE not in kinds(feed)
    assert feed.repeated("t") == []


@pytest.mark.parametrize(
    "statement",
    [
        "ALTER TABLE t DROP COLUMN v",
        "ALTER TABLE t MODIFY v text",
        "ALTER TABLE t CHANGE id number int",
    ],
)
def test_a_table_is_altered_under_its_snapshot(
    scene: Scene, small_parts: None, statement: str
) -> None:
    """What was delivered of it is taken back, and it is read again."""
    feed = half_way(scene)
    scene.sql(statement)
    follow(feed)
    assert len(feed.rows("t")) == 500
    assert kinds(feed)[0] is DdlKind.TRUNCATE_TABLE


def test_a_table_gets_another_key_under_its_snapshot(scene: Scene, small_parts: None) -> None:
    """Ranges of the old key are parts of the table all the same."""
    feed = half_way(scene)
    scene.sql("ALTER TABLE t DROP PRIMARY KEY, ADD PRIMARY KEY (v)")
    scene.sql("UPDATE t SET id = id + 1000 WHERE id % 2 = 0", "DELETE FROM t WHERE id % 5 = 0")
    follow(feed)
    assert len(feed.rows("t")) == 400


def test_a_table_is_altered_between_plan_and_read(scene: Scene, small_parts: None) -> None:
    feed = half_way(scene)

    def alter(plan: Plan) -> None:
        feed.runner.before = lambda plan: None
        scene.sql("ALTER TABLE t DROP COLUMN v")

    feed.runner.before = alter
    follow(feed)
    assert len(feed.rows("t")) == 500
    assert kinds(feed)[0] is DdlKind.TRUNCATE_TABLE


def test_a_table_goes_under_its_snapshot(scene: Scene, small_parts: None) -> None:
    feed = half_way(scene)
    scene.sql("DELETE FROM t WHERE id < 50", "ALTER TABLE t ADD COLUMN n int", "DROP TABLE t")
    follow(feed)
    assert feed.rows("t") == []
    assert kinds(feed)[-1] is DdlKind.DROP_TABLE


def test_a_table_is_renamed_under_its_snapshot(scene: Scene, small_parts: None) -> None:
    """Not all its rows were delivered under the old name: under the new one they are."""
    feed = half_way(scene)
    scene.sql(
        "DELETE FROM t WHERE id < 50",
        "RENAME TABLE t TO u",
        "DELETE FROM u WHERE id >= 450",
        "INSERT INTO u VALUES (1000, 'x')",
    )
    follow(feed)
    assert feed.rows("t") == []
    assert len(feed.rows("u")) == 401


def test_a_table_is_emptied_under_its_snapshot(scene: Scene, small_parts: None) -> None:
    feed = half_way(scene)
    scene.sql("TRUNCATE t", "INSERT INTO t VALUES (3, 'three')")
    follow(feed)
    assert feed.rows("t") == [{"id": 3, "v": "three"}]


def test_a_table_joins_while_others_change(scene: Scene, small_parts: None) -> None:
    """Its snapshot has a place of its own in the log; what lies before it is not repeated."""
    scene.sql(PLAIN_TABLE, "CREATE TABLE big (id int PRIMARY KEY, v varchar(300))")
    scene.sql(f"INSERT INTO big VALUES {rows_of(0, 500)}")
    feed = scene.feed([f"{scene.database}.t"])
    feed.catch_up()
    feed.run(rules=[f"{scene.database}.*"])
    number, known = 0, len(feed.runner.plans)
    while number < 12:
        number += 1
        scene.sql(
            f"INSERT INTO t VALUES ({number}, 'x')",
            f"UPDATE big SET v = 'changed {number}' WHERE id % 7 = {number % 7}",
            f"DELETE FROM big WHERE id = {number * 3}",
        )
        feed.step()
    parts = [s for p in feed.runner.plans[known:] for s in p.stretch.segments if s.snapshot]
    assert parts, "the table has not begun to join"
    follow(feed)
    assert feed.repeated("t") == []
    assert [c.op for c in feed.changes("t")] == [Op.INSERT] * number


def test_the_run_ends_in_a_snapshot_of_a_new_table(scene: Scene, small_parts: None) -> None:
    """A task fails between two parts; the next process goes on."""
    scene.sql(PLAIN_TABLE, "CREATE TABLE big (id int PRIMARY KEY, v varchar(300))")
    scene.sql(f"INSERT INTO big VALUES {rows_of(0, 500)}")
    feed = scene.feed([f"{scene.database}.t"])
    feed.catch_up()
    feed.run(rules=[f"{scene.database}.*"])

    def fail(plan: Plan) -> None:
        feed.runner.before = lambda plan: None
        raise SourceUnavailable("the machine was switched off")

    feed.runner.before = fail
    until_it_fails(feed, "the machine was switched off")
    scene.sql("DELETE FROM big WHERE id < 250")
    feed.run()
    follow(feed)
    assert len(feed.rows("big")) == 250
