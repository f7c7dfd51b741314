"""Snapshots that a discarded plan has shown: what readers got of them is taken back first."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from feed_kit import Feed, Scene, scene_of

from rowferry.change.chunk import DdlKind
from rowferry.change.plan import Again, Plan
from rowferry.errors import SourceUnavailable
from rowferry.testing.servers import Server

FORCED = "force-replicate = true"


@pytest.fixture
def scene(source_server: Server, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Scene]:
    with scene_of(source_server, tmp_path, request.node.name) as found:
        found.sql(
            "CREATE TABLE a (id int PRIMARY KEY, v int)",
            "INSERT INTO a VALUES (1, 1), (2, 2)",
            "CREATE TABLE k (v int)",
            "INSERT INTO k VALUES (1), (2), (2)",
        )
        yield found


def lose_progress(feed: Feed, monkeypatch: pytest.MonkeyPatch, table: str) -> None:
    """Let the feed be killed when a table's snapshot is visible, and its progress not stored."""
    whole = feed.store.publish

    def publish(claim: object, plan: Plan, position: object = None) -> None:
        parts = [s for s in plan.stretch.segments if s.snapshot]
        if table in {one.table.table for s in parts for one in s.slices}:
            monkeypatch.undo()
            raise SourceUnavailable("killed")
        whole(claim, plan, position)  # type: ignore[arg-type]

    monkeypatch.setattr(feed.store, "publish", publish)
    before = len(feed.faults)
    while len(feed.faults) == before:
        feed.step()


@pytest.mark.parametrize("protocol", ["canal-json", "csv"])
@pytest.mark.parametrize("others", [True, False], ids=["later", "first of all"])
def test_rows_without_a_key_are_not_shown_twice(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, protocol: str, others: bool
) -> None:
    rules = [f"{scene.database}.*"] if others else [f"{scene.database}.k"]
    feed = scene.feed(rules, config=FORCED, protocol=protocol)
    lose_progress(feed, monkeypatch, "k")
    feed.run()
    scene.sql("DELETE FROM k WHERE v = 1", "INSERT INTO k VALUES (3)")
    feed.catch_up()
    assert feed.differences() == ""
    assert [kind for kind, _ in feed.ddl("k")] == [DdlKind.TRUNCATE_TABLE]


def test_taking_back_survives_a_kill(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    feed = scene.feed(config=FORCED)
    lose_progress(feed, monkeypatch, "k")
    feed.run()
    feed.step()  # discards the plan
    assert feed.store.pending("feed") is None
    feed.run()
    lose_progress(feed, monkeypatch, "k")
    feed.run()
    feed.catch_up()
    assert feed.differences() == ""
    assert [kind for kind, _ in feed.ddl("k")] == [DdlKind.TRUNCATE_TABLE] * 2
    assert "shown" not in feed.store.state("feed").position


def test_what_nobody_has_seen_is_not_taken_back(scene: Scene) -> None:
    feed = scene.feed(config=FORCED)

    def killed(plan: Plan) -> None:
        if any(s.again is Again.NEVER for s in plan.stretch.segments):
            feed.runner.after = lambda plan: None
            raise SourceUnavailable("killed before the index was written")

    feed.runner.after = killed
    feed.catch_up()
    assert len(feed.faults) == 1
    assert feed.differences() == ""
    assert feed.ddl("k") == []


ALTERED = {
    "renamed": ("RENAME TABLE a TO b",),
    "another one": ("DROP TABLE a", "CREATE TABLE a (id int PRIMARY KEY, w date)"),
    "rows gone": ("DELETE FROM a WHERE id = 1",),
}


@pytest.mark.parametrize("name", list(ALTERED))
def test_a_beginning_that_was_shown_is_taken_back(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The log begins anew behind what has happened: nothing else tells it."""
    feed = scene.feed([f"{scene.database}.*", f"!{scene.database}.k"])
    lose_progress(feed, monkeypatch, "a")
    scene.sql(*ALTERED[name])
    feed.loop.replan("the table has changed")
    assert feed.store.state("feed").position.keys() == {"shown"}
    feed.catch_up()
    assert feed.differences() == ""
    kind = DdlKind.TRUNCATE_TABLE if name == "rows gone" else DdlKind.DROP_TABLE
    assert feed.ddl("a")[0][0] is kind


def test_a_later_table_that_was_shown_and_altered_is_taken_back(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    feed = scene.feed([f"{scene.database}.k"], config=FORCED)
    feed.catch_up()
    feed.run(rules=[f"{scene.database}.*"])
    lose_progress(feed, monkeypatch, "a")
    scene.sql("ALTER TABLE a MODIFY v bigint", "DELETE FROM a WHERE id = 1")
    feed.loop.replan("the table has changed")
    feed.catch_up()
    assert feed.differences() == ""
    assert feed.stale() == []
