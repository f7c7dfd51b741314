"""Names downstream: tables that come back to one, and names that somebody else has."""

from __future__ import annotations

import pytest
from mysql_sink_kit import MySqlFeed, Scene

from rowferry.errors import SchemaChangeRefused
from rowferry.flow.sink.mysql import schema_changes

SWAP = "RENAME TABLE b TO x_t, a TO b, x_t TO a"


@pytest.fixture
def feed(same_kind: Scene) -> MySqlFeed:
    """A feed of all tables but `x_…`, which has delivered `a` and `b`."""
    same_kind.both(
        "CREATE TABLE a (id int PRIMARY KEY, v int)", "CREATE TABLE b (id int PRIMARY KEY, v int)"
    )
    same_kind.sql("INSERT INTO a VALUES (1, 10)", "INSERT INTO b VALUES (1, 1), (2, 2)")
    found = same_kind.feed()
    found.rules = f"['{same_kind.database}.*', '!{same_kind.database}.x_*']"
    found.catch_up()
    return found


def test_tables_trade_names_again_and_again(same_kind: Scene, feed: MySqlFeed) -> None:
    for turn in range(2):
        same_kind.sql(SWAP, f"INSERT INTO a VALUES ({20 + turn}, 0)", "UPDATE b SET v = v + 1")
        feed.catch_up()
        same_kind.assert_same("a", "b")
    there = same_kind.target.execute(f"SHOW TABLES FROM {same_kind.copy}")
    assert [str(row[0]) for row in there] == ["a", "b"]


def test_a_name_that_another_table_has_stops_the_feed(same_kind: Scene, feed: MySqlFeed) -> None:
    same_kind.at_target("CREATE TABLE x_t (other int)")
    same_kind.sql(SWAP)
    with pytest.raises(SchemaChangeRefused, match="x_t.*already exists"):
        feed.catch_up()
    same_kind.at_target("DROP TABLE x_t")
    feed.catch_up()
    assert same_kind.assert_same("a", "b") == 3


def test_a_rename_whose_answer_was_lost_is_done(same_kind: Scene, feed: MySqlFeed) -> None:
    lost = feed.lose_answers_of_schema_changes()
    same_kind.sql(SWAP, "INSERT INTO a VALUES (20, 0)")
    feed.catch_up()
    assert lost() == 3
    assert same_kind.assert_same("a", "b") == 4


@pytest.mark.parametrize("dropped", [False, True], ids=["there", "dropped downstream"])
def test_a_table_that_is_taken_in_again_has_only_its_rows(
    same_kind: Scene, feed: MySqlFeed, dropped: bool
) -> None:
    every, feed.rules = feed.rules, f"['{same_kind.database}.a']"
    feed.run()
    feed.catch_up()
    same_kind.sql("DELETE FROM b WHERE id = 1")
    if dropped:
        same_kind.at_target("DROP TABLE b")
    feed.rules = every
    feed.run()
    feed.catch_up()
    assert same_kind.assert_same("a", "b") == 2


@pytest.mark.parametrize("columns", ["id int PRIMARY KEY, v int", "id int PRIMARY KEY, w int"])
@pytest.mark.parametrize("by_log", [False, True], ids=["by its snapshot", "by the log"])
def test_a_table_of_a_database_that_was_dropped_meanwhile_has_only_its_rows(
    same_kind: Scene, feed: MySqlFeed, by_log: bool, columns: str
) -> None:
    """Downstream its database stays, as the table is in it that the filter has let go."""
    every, feed.rules = feed.rules, f"['{same_kind.database}.a']"
    feed.run()
    feed.catch_up()
    name, make = same_kind.database, f"CREATE TABLE b ({columns})"
    same_kind.source.script(f"DROP DATABASE {name}", f"CREATE DATABASE {name}")
    same_kind.sql("CREATE TABLE a (id int PRIMARY KEY)", "INSERT INTO a VALUES (7)")
    if not by_log:
        same_kind.sql(make, "INSERT INTO b VALUES (9, 9)")
    feed.catch_up()
    kept = same_kind.target.execute(f"SELECT id FROM {same_kind.copy}.b ORDER BY id")
    assert kept == [("1",), ("2",)]
    feed.rules = every
    feed.run()
    feed.catch_up()
    if by_log:
        same_kind.sql(make, "INSERT INTO b VALUES (9, 9)")
        feed.catch_up()
    assert same_kind.assert_same("a", "b") == 2


def test_a_dropped_database_leaves_what_others_have_in_its_copy(same_kind: Scene) -> None:
    other = f"{same_kind.database}_other"
    same_kind.source.script(
        f"CREATE DATABASE {other}",
        f"CREATE TABLE {other}.u (id int PRIMARY KEY)",
        f"INSERT INTO {other}.u VALUES (1)",
    )
    try:
        same_kind.both("CREATE TABLE t (id int PRIMARY KEY)")
        same_kind.at_target("CREATE TABLE u (id int PRIMARY KEY)")
        feed = same_kind.feed()
        feed.rules = f"['{same_kind.database}.*', '{other}.*']"
        feed.catch_up()
        same_kind.source.script(
            f"DROP DATABASE {same_kind.database}", f"INSERT INTO {other}.u VALUES (2)"
        )
        feed.catch_up()
        there = same_kind.target.execute(f"SHOW TABLES FROM {same_kind.copy}")
        assert there == [("u",)]
        assert same_kind.target.execute(f"SELECT COUNT(*) FROM {same_kind.copy}.u") == [("2",)]
        assert feed.faults == []
    finally:
        same_kind.source.script(f"DROP DATABASE IF EXISTS {other}")


@pytest.mark.parametrize("others", [False, True])
def test_a_dropped_database_leaves_what_somebody_else_has_made(
    same_kind: Scene, others: bool
) -> None:
    """Routing gives the database its name: other changefeeds may write to the same one."""
    same_kind.both("CREATE TABLE t (id int PRIMARY KEY)")
    if others:
        same_kind.at_target("CREATE TABLE mine (id int)", "INSERT INTO mine VALUES (1)")
    feed = same_kind.feed()
    feed.catch_up()
    same_kind.source.script(f"DROP DATABASE {same_kind.database}")
    feed.catch_up()
    there = same_kind.target.execute(
        f"SELECT table_name FROM information_schema.tables WHERE table_schema = '{same_kind.copy}'"
    )
    assert there == ([("mine",)] if others else [])
    known = same_kind.target.execute(f"SHOW DATABASES LIKE '{same_kind.copy}'")
    assert len(known) == int(others)


@pytest.mark.parametrize("alike", [True, False], ids=["alike", "of other columns"])
def test_tables_that_trade_names_by_one_statement(
    same_kind: Scene, alike: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the answer is lost and both are alike, nothing tells whether it was run."""
    names, copy = ("a", "b"), same_kind.copy
    for name in names:
        more = "" if alike or name == "a" else ", n int"
        same_kind.both(f"CREATE TABLE {name} (id int PRIMARY KEY, v int{more})")
    same_kind.sql("INSERT INTO a VALUES (1, 1)", "INSERT INTO b (id) VALUES (2)")
    feed = same_kind.feed()
    feed.catch_up()
    a, b, x = (f"`{copy}`.{name}" for name in (*names, "x_t"))
    whole = f"RENAME TABLE {b} TO {x}, {a} TO {b}, {x} TO {a}"
    monkeypatch.setattr(schema_changes, "statement_of", lambda change, known: whole)
    lost = feed.lose_answers_of_schema_changes()
    same_kind.sql("RENAME TABLE b TO c")

    def ids(name: str) -> list[str]:
        return [str(row[0]) for row in same_kind.target.execute(f"SELECT id FROM {copy}.{name}")]

    if alike:
        with pytest.raises(SchemaChangeRefused, match="whether it took effect is unknown"):
            feed.catch_up()
    else:
        feed.catch_up()
    assert lost() == 1
    assert (ids("a"), ids("b")) == (["2"], ["1"])
