"""Tables that leave the filter for a while, or for a part of a statement."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from feed_kit import Feed, Scene, scene_of

from rowferry.change.chunk import DdlKind
from rowferry.testing.servers import Server

# What happens to `b` (id, v) with rows 1 and 2 while nobody looks, and what readers are told.
MEANWHILE = {
    "rows gone": (("DELETE FROM b WHERE id = 1",), [DdlKind.CREATE_TABLE, DdlKind.TRUNCATE_TABLE]),
    "another one": (
        (
            "DROP TABLE b",
            "CREATE TABLE b (id int PRIMARY KEY, w date)",
            "INSERT INTO b (id) VALUES (7)",
        ),
        [DdlKind.DROP_TABLE, DdlKind.CREATE_TABLE],
    ),
    "altered": (
        ("ALTER TABLE b ADD COLUMN n int DEFAULT 3", "DELETE FROM b WHERE id = 2"),
        [DdlKind.DROP_TABLE, DdlKind.CREATE_TABLE],
    ),
}
# The same, where the table is not there when the filter takes its name in again.
BACK = {
    "made anew": ("CREATE TABLE b (id int PRIMARY KEY, v int)", "INSERT INTO b VALUES (9, 9)"),
    "a captured one renamed": ("RENAME TABLE a TO b",),
    "a foreign one renamed": ("RENAME TABLE x_s TO b",),
}


@pytest.fixture
def scene(source_server: Server, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Scene]:
    with scene_of(source_server, tmp_path, request.node.name) as found:
        found.sql(
            "CREATE TABLE a (id int PRIMARY KEY, v int)",
            "INSERT INTO a VALUES (1, 10)",
            "CREATE TABLE b (id int PRIMARY KEY, v int)",
            "INSERT INTO b VALUES (1, 1), (2, 2)",
            "CREATE TABLE x_s (id int PRIMARY KEY, v int)",
            "INSERT INTO x_s VALUES (5, 5)",
        )
        yield found


def rules(scene: Scene, *less: str) -> list[str]:
    return [f"{scene.database}.*", *(f"!{scene.database}.{one}" for one in ("x_*", *less))]


def without_b(scene: Scene) -> Feed:
    """Return a feed that has delivered `b` and lets it go."""
    feed = scene.feed(rules(scene))
    feed.catch_up()
    feed.run(rules=rules(scene, "b"))
    feed.catch_up()
    return feed


def judged(feed: Feed) -> None:
    feed.catch_up()
    assert feed.differences() == ""
    assert feed.stale() == []


@pytest.mark.parametrize("name", list(MEANWHILE))
def test_a_table_that_is_taken_in_again_has_only_its_rows(scene: Scene, name: str) -> None:
    statements, told = MEANWHILE[name]
    feed = without_b(scene)
    scene.sql(*statements)
    feed.catch_up()
    feed.run()  # what is kept in mind outlives a process
    feed.catch_up()
    feed.run(rules=rules(scene))
    judged(feed)
    assert [kind for kind, _ in feed.ddl("b")] == told
    scene.sql("INSERT INTO b (id) VALUES (50)", "DELETE FROM b WHERE id = 50")
    judged(feed)
    assert len(feed.ddl("b")) == 2


@pytest.mark.parametrize("name", list(BACK))
def test_another_table_gets_the_name_of_one_that_was_let_go(scene: Scene, name: str) -> None:
    feed = without_b(scene)
    scene.sql("DROP TABLE b")
    feed.catch_up()
    feed.run(rules=rules(scene))
    feed.catch_up()
    scene.sql(*BACK[name])
    judged(feed)
    assert feed.ddl("b")[0][0] is DdlKind.DROP_TABLE


def test_a_table_that_was_renamed_away_is_taken_in_under_that_name(scene: Scene) -> None:
    feed = scene.feed(rules(scene))
    feed.catch_up()
    scene.sql("RENAME TABLE b TO x_b", "DELETE FROM x_b WHERE id = 1")
    feed.catch_up()
    feed.run(rules=[f"{scene.database}.*", f"!{scene.database}.x_s"])
    judged(feed)
    assert [row["id"] for row in feed.rows("x_b")] == [2]


@pytest.mark.parametrize("times", [1, 2])
def test_two_tables_trade_names_through_one_that_is_not_kept(scene: Scene, times: int) -> None:
    feed = scene.feed(rules(scene))
    feed.catch_up()
    plans = len(feed.runner.segments("snapshot"))
    for turn in range(times):
        scene.sql(
            "RENAME TABLE b TO x_t, a TO b, x_t TO a",
            f"INSERT INTO a VALUES ({20 + turn}, 0)",
            f"INSERT INTO b VALUES ({30 + turn}, 0)",
        )
        feed.catch_up()
    judged(feed)
    assert len(feed.runner.segments("snapshot")) == plans, "a table was read anew"
    assert {DdlKind.RENAME_TABLE} == {kind for name in ("a", "b") for kind, _ in feed.ddl(name)}
