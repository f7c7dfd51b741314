"""DDLs are translated one by one, and refused by name with the cure where they cannot be."""

from __future__ import annotations

import pytest
from postgresql_kit import PostgresqlFeed, Scene

from rowferry.errors import SchemaChangeRefused
from rowferry.flow.sink.postgresql.names import index_name


def columns(scene: Scene, table: str) -> list[str]:
    rows = scene.pg(
        "SELECT attname || ' ' || format_type(atttypid, atttypmod) || CASE WHEN attnotnull "
        "THEN ' not null' ELSE '' END FROM pg_attribute WHERE attnum > 0 AND NOT attisdropped "
        f"AND attrelid = '$.{table}'::regclass ORDER BY attname"
    )
    return [str(row[0]) for row in rows]


def indexes(scene: Scene, table: str) -> list[str]:
    """Return a table's indexes, without the digests of their names."""
    rows = scene.pg(
        "SELECT regexp_replace(indexdef, "
        "'^CREATE (.*)INDEX \"?(.*)_[0-9a-f]{10}\"? ON .* USING btree', '\\1\\2') "
        f"FROM pg_indexes WHERE schemaname = '$' AND tablename = '{table}' ORDER BY 1"
    )
    return [str(row[0]) for row in rows]


def test_every_change_of_a_table_is_translated(each_kind: Scene) -> None:
    each_kind.sql("CREATE TABLE t (id int PRIMARY KEY, a varchar(10), b int)")
    each_kind.sql("INSERT INTO t VALUES (1, 'x ', 10), (2, NULL, NULL)")
    feed = each_kind.feed()
    feed.catch_up()
    each_kind.sql(
        "ALTER TABLE t ADD COLUMN c int NOT NULL DEFAULT 7 COMMENT 'it''s c' AFTER id",
        "INSERT INTO t VALUES (3, 8, 'y', 30)",
        "ALTER TABLE t ADD COLUMN d varchar(5) NOT NULL, ADD COLUMN e enum('p','q') DEFAULT 'q'",
        "ALTER TABLE t ADD COLUMN f bit(3) NOT NULL DEFAULT b'101', ADD COLUMN g timestamp NULL",
        "ALTER TABLE t RENAME COLUMN b TO bb",
        "ALTER TABLE t CHANGE COLUMN a b char(20)",
        "ALTER TABLE t MODIFY COLUMN bb bigint unsigned, DROP COLUMN e",
        "ALTER TABLE t ADD UNIQUE KEY one (c, id), ADD KEY two (bb)",
        "ALTER TABLE t DROP KEY two, RENAME INDEX one TO three",
        "ALTER TABLE t COMMENT = 'the table'",
        "UPDATE t SET c = 9 WHERE id = 1",
    )
    feed.catch_up()
    assert columns(each_kind, "t") == [
        "b character varying(20)",
        "bb numeric(20,0)",
        "c integer not null",
        "d character varying(5) not null",
        "f bit(3) not null",
        "g timestamp(0) with time zone",
        "id integer not null",
    ]
    assert indexes(each_kind, "t") == ["UNIQUE t_PRIMARY (id)", "UNIQUE t_three (c, id)"]
    assert each_kind.pg("SELECT id, c, b, bb, d, f::text, g FROM $.t ORDER BY id") == [
        (1, 9, "x", 10, "", "101", None),
        (2, 7, None, None, "", "101", None),
        (3, 8, "y", 30, "", "101", None),
    ]
    comments = "obj_description('$.t'::regclass), col_description('$.t'::regclass, attnum)"
    named = f"SELECT {comments} FROM pg_attribute WHERE attrelid = '$.t'::regclass"
    assert each_kind.pg(f"{named} AND attname = 'c'") == [("the table", "it's c")]
    each_kind.sql(
        "RENAME TABLE t TO u",
        "INSERT INTO u (id, c, d) VALUES (4, 4, 'four')",
        "CREATE TABLE v LIKE u",
        "INSERT INTO v SELECT * FROM u",
        "TRUNCATE TABLE u",
        "INSERT INTO u (id, c, d) VALUES (5, 5, 'five')",
        "CREATE TABLE w (n int)",
        "DROP TABLE w",
        "ALTER TABLE v DROP PRIMARY KEY, ADD PRIMARY KEY (id, c)",
        "DELETE FROM v WHERE id = 1",
    )
    feed.catch_up()
    assert indexes(each_kind, "u") == ["UNIQUE u_PRIMARY (id)", "UNIQUE u_three (c, id)"]
    assert each_kind.pg("SELECT id, d FROM $.u") == [(5, "five")]
    assert each_kind.pg("SELECT id FROM $.v ORDER BY id") == [(2,), (3,), (4,)]
    tables = "SELECT tablename FROM pg_tables WHERE schemaname = '$' ORDER BY 1"
    assert each_kind.pg(tables) == [("u",), ("v",)]
    assert feed.faults == []


def test_tables_and_indexes_of_alike_names(each_kind: Scene) -> None:
    each_kind.sql(
        "CREATE TABLE post (id int PRIMARY KEY, tag int, v int AS (id) VIRTUAL, KEY tag (tag))",
        "CREATE TABLE post_tag (id int PRIMARY KEY, n int)",
        "CREATE TABLE post_pkey (id int PRIMARY KEY)",
        "CREATE TABLE a (id int PRIMARY KEY, n int, KEY b_c (n))",
        "CREATE TABLE a_b (id int PRIMARY KEY, n int, KEY c (n))",
        "INSERT INTO post_tag VALUES (1, 1)",
    )
    feed = each_kind.feed()
    feed.catch_up()
    assert indexes(each_kind, "post") == ["UNIQUE post_PRIMARY (id)", "post_tag (tag)"]
    # As it was called before there were digests.
    each_kind.pg(f'ALTER INDEX $."{index_name("a", "b_c")}" RENAME TO a_b_c')
    each_kind.sql(
        "ALTER TABLE post DROP KEY tag, RENAME COLUMN v TO w, ADD COLUMN z int DEFAULT 1",
        "ALTER TABLE post RENAME COLUMN z TO y, RENAME COLUMN tag TO z",
        "RENAME TABLE post TO blog",
        "ALTER TABLE a_b DROP KEY c",
        "ALTER TABLE a DROP KEY b_c",
        "INSERT INTO blog (id, z, y) VALUES (1, 2, 3)",
    )
    feed.catch_up()
    assert each_kind.pg("SELECT id, z, y FROM $.blog") == [(1, 2, 3)]
    assert each_kind.pg("SELECT id, n FROM $.post_tag") == [(1, 1)]
    assert indexes(each_kind, "blog") == ["UNIQUE blog_PRIMARY (id)"]
    assert indexes(each_kind, "a") == ["UNIQUE a_PRIMARY (id)"]
    assert indexes(each_kind, "a_b") == ["UNIQUE a_b_PRIMARY (id)"]
    assert feed.faults == []


def test_a_new_column_has_the_values_of_the_source(each_kind: Scene) -> None:
    each_kind.sql("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    feed = each_kind.feed()
    feed.catch_up()
    added = {
        "a": "binary(4) DEFAULT 'ab'",
        "b": "binary(3) NOT NULL",
        "c": "binary(4) DEFAULT x'00ff'",
        "d": "varbinary(4) NOT NULL DEFAULT x'00ff'",
        "e": "char(9) DEFAULT 'a  '",
        "f": "enum('a','b') DEFAULT 'B'",
        "g": "set('a','b') DEFAULT 'B,a'",
        "h": "time(1) DEFAULT '-10:20:30.5'",
        "i": "year DEFAULT 2024",
        "j": "datetime DEFAULT '2024-1-2 3:04:05'",
    }
    each_kind.sql(*(f"ALTER TABLE t ADD COLUMN {name} {kind}" for name, kind in added.items()))
    each_kind.sql("INSERT INTO t (id, b) VALUES (2, '')")  # this one brings its values
    feed.catch_up()
    first, second = each_kind.pg("SELECT * FROM $.t ORDER BY id")
    assert first[1:] == second[1:] and feed.faults == []


def stopped_by(feed: PostgresqlFeed) -> str:
    with pytest.raises(SchemaChangeRefused) as raised:
        feed.catch_up()
    return str(raised.value)


def test_what_cannot_be_translated_stops_with_the_cure(scene: Scene) -> None:
    scene.sql(
        "CREATE TABLE t (id int PRIMARY KEY, a double, at datetime) PARTITION BY RANGE (id) "
        "(PARTITION p0 VALUES LESS THAN (10), PARTITION p1 VALUES LESS THAN (20))",
        "INSERT INTO t VALUES (1, 0.5, '2024-01-01'), (11, 1.5, '2024-01-01')",
    )
    feed = scene.feed()
    feed.catch_up()
    scene.sql("ALTER TABLE t MODIFY COLUMN a decimal(5,1)")
    words = stopped_by(feed)
    assert "column 'a' changes from double to decimal(5,1)" in words
    at = words.partition("commit-ts ")[2].partition(" ")[0]
    assert "MODIFY COLUMN a decimal(5,1)" in words and f'skip-ddl = ["{at}"]' in words
    replaced = f"{at} ALTER TABLE {scene.database}.t ALTER a TYPE numeric(5,1)"
    feed.config = f"[sink.postgresql-config]\nreplace-ddl = ['{replaced}']\n"
    feed.stop()
    feed.catch_up()
    assert columns(scene, "t")[0] == "a numeric(5,1)"
    scene.sql("ALTER TABLE t TRUNCATE PARTITION p1")
    words = stopped_by(feed)
    assert "takes rows away that the log does not name" in words
    at = words.partition("commit-ts ")[2].partition(" ")[0]
    scene.pg("DELETE FROM $.t WHERE id > 9")
    feed.config = f"[sink.postgresql-config]\nskip-ddl = ['{at}']\n"
    feed.stop()
    scene.sql("ALTER TABLE t ADD COLUMN made datetime DEFAULT CURRENT_TIMESTAMP")
    assert "column 'made' (datetime) is filled with the time of day" in stopped_by(feed)
    assert scene.pg("SELECT id FROM $.t") == [(1,)]


def test_numbers_are_rounded_as_at_the_source(each_kind: Scene) -> None:
    """A half goes away from zero everywhere."""
    halves = "0.005 0.015 0.025 -0.005 -0.015 1.5049 2.5 -2.5 -0.004"
    rows = ", ".join(f"({n}, {v}, {v})" for n, v in enumerate(halves.split()))
    each_kind.sql(
        "CREATE TABLE t (id int PRIMARY KEY, a decimal(10,4), b decimal(10,4))",
        f"INSERT INTO t VALUES {rows}",
    )
    feed = each_kind.feed()
    feed.catch_up()
    each_kind.sql("ALTER TABLE t MODIFY COLUMN a decimal(10,2), MODIFY COLUMN b int")
    feed.catch_up()
    here = each_kind.pg("SELECT a::text, b::text FROM $.t ORDER BY id")
    there = each_kind.source.execute(f"SELECT a, b FROM {each_kind.database}.t ORDER BY id")
    assert [tuple(map(str, row)) for row in there] == here


@pytest.mark.parametrize("kind", ["time", "datetime", "timestamp"])
def test_fewer_digits_of_a_second_are_refused(each_kind: Scene, kind: str) -> None:
    """MySQL rounds them, MariaDB cuts them off, and PostgreSQL rounds otherwise before 2000."""
    value = "11:59:59.999999" if kind == "time" else "1999-12-30 11:59:58.500000"
    each_kind.sql(
        f"CREATE TABLE t (id int PRIMARY KEY, a {kind}(6) NOT NULL DEFAULT '{value}')",
        "INSERT INTO t (id) VALUES (1)",
    )
    feed = each_kind.feed()
    feed.catch_up()
    each_kind.sql(f"ALTER TABLE t MODIFY COLUMN a {kind} NOT NULL DEFAULT '{value[:-7]}'")
    assert f"column 'a' changes from {kind}(6) to {kind}" in stopped_by(feed)


def test_values_that_a_lenient_source_has_bent_stop_the_feed(each_kind: Scene) -> None:
    each_kind.sql("CREATE TABLE t (id int PRIMARY KEY, a int)", "INSERT INTO t VALUES (1, -5)")
    feed = each_kind.feed()
    feed.catch_up()
    each_kind.sql("SET sql_mode = ''", "ALTER TABLE t MODIFY COLUMN a int unsigned")
    assert "rows fit the altered column" in stopped_by(feed)
    each_kind.pg("UPDATE $.t SET a = 0")
    feed.catch_up()
    assert each_kind.pg("SELECT a FROM $.t") == [(0,)]


def test_a_statement_that_was_refused_and_made_by_hand(scene: Scene) -> None:
    """All rows before it were written: what it took away does not come back."""
    scene.sql(
        "CREATE TABLE t (id int PRIMARY KEY) PARTITION BY RANGE (id) "
        "(PARTITION p0 VALUES LESS THAN (10), PARTITION p1 VALUES LESS THAN (20))",
        "INSERT INTO t VALUES (1)",
    )
    feed = scene.feed()
    feed.catch_up()
    scene.sql("INSERT INTO t VALUES (2), (11)", "ALTER TABLE t TRUNCATE PARTITION p1")
    at = stopped_by(feed).partition("commit-ts ")[2].partition(" ")[0]
    scene.pg("DELETE FROM $.t WHERE id > 9")
    feed.config = f"[sink.postgresql-config]\nskip-ddl = ['{at}']\n"
    feed.run()
    scene.sql("INSERT INTO t VALUES (3)")
    feed.catch_up()
    assert scene.pg("SELECT id FROM $.t ORDER BY id") == [(1,), (2,), (3,)]


@pytest.mark.parametrize("by_log", [False, True], ids=["by its snapshot", "by the log"])
def test_a_table_of_a_database_that_was_dropped_meanwhile_has_only_its_rows(
    scene: Scene, by_log: bool
) -> None:
    """It was let go before; its schema stays, as another database is written to it."""
    other, name = f"{scene.database}_other", scene.database
    make = ("CREATE TABLE t (id int PRIMARY KEY, w int)", "INSERT INTO t VALUES (9, 9)")
    scene.source.script(f"CREATE DATABASE {other}", f"CREATE TABLE {other}.u (id int PRIMARY KEY)")
    try:
        scene.sql("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
        feed = scene.feed(config="[[sink.dispatchers]]\nmatcher = ['*.*']\ntarget-schema = 'joint'")
        feed.rules = every = f"['{name}.*', '{other}.*']"
        feed.catch_up()
        feed.rules = f"['{name}.*', '!{name}.t', '{other}.*']"
        feed.run()
        feed.catch_up()
        scene.source.script(f"DROP DATABASE {name}", f"CREATE DATABASE {name}")
        scene.sql(*(() if by_log else make))
        feed.catch_up()
        feed.rules = every
        feed.run()
        feed.catch_up()
        scene.sql(*(make if by_log else ()))
        feed.catch_up()
        assert scene.pg("SELECT id, w FROM joint.t") == [(9, 9)]
        assert feed.faults == []
    finally:
        scene.source.script(f"DROP DATABASE IF EXISTS {other}")


def test_a_dropped_database_leaves_what_others_have_in_its_schema(scene: Scene) -> None:
    other = f"{scene.database}_other"
    scene.source.script(
        f"CREATE DATABASE {other}",
        f"CREATE TABLE {other}.u (id int PRIMARY KEY)",
        f"INSERT INTO {other}.u VALUES (1)",
    )
    try:
        scene.sql("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
        feed = scene.feed(config="[[sink.dispatchers]]\nmatcher = ['*.*']\ntarget-schema = 'joint'")
        feed.rules = f"['{scene.database}.*', '{other}.*']"
        feed.catch_up()
        scene.source.script(f"DROP DATABASE {scene.database}", f"INSERT INTO {other}.u VALUES (2)")
        feed.catch_up()
        assert scene.pg("SELECT id FROM joint.u ORDER BY id") == [(1,), (2,)]
        tables = "SELECT tablename FROM pg_tables WHERE schemaname = 'joint' ORDER BY 1"
        assert scene.pg(tables) == [("u",)]
        feed.run()  # what was dropped is missed by nobody
        scene.source.script(
            f"CREATE DATABASE {scene.database}",
            f"CREATE TABLE {scene.database}.t (id int PRIMARY KEY)",
            f"INSERT INTO {scene.database}.t VALUES (3)",
            f"DROP DATABASE {other}",
        )
        feed.catch_up()
        assert scene.pg(tables) == [("t",)] and scene.pg("SELECT id FROM joint.t") == [(3,)]
        scene.source.script(f"DROP DATABASE {scene.database}")
        feed.catch_up()
        assert scene.pg("SELECT 1 FROM pg_namespace WHERE nspname = 'joint'") == []
        assert feed.faults == []
    finally:
        scene.source.script(f"DROP DATABASE IF EXISTS {other}")


def test_a_table_is_dropped_and_made_again_at_once(scene: Scene) -> None:
    scene.sql("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    feed = scene.feed()
    feed.catch_up()
    scene.sql("DROP TABLE t", "CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (2)")
    feed.catch_up()
    assert scene.pg("SELECT id FROM $.t") == [(2,)] and feed.faults == []
