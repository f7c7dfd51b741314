"""XA transactions beside the snapshot of a table without a key, which must show each row once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from feed_kit import Feed, Scene, Session, scene_of

from rowferry.change.plan import Plan
from rowferry.testing.servers import Server

BAG = "CREATE TABLE bag (a int)"
KEYED = "CREATE TABLE t (id int PRIMARY KEY)"
XID = "'beside'"


@pytest.fixture
def scene(source_server: Server, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Scene]:
    with scene_of(source_server, tmp_path, request.node.name) as found:
        found.sql(BAG, "INSERT INTO bag VALUES (1)", KEYED, "INSERT INTO t VALUES (1)")
        yield found


def prepare(session: Session, row: int) -> None:
    session(
        f"XA START {XID}",
        f"INSERT INTO bag VALUES ({row})",
        f"INSERT INTO t VALUES ({row})",
        f"XA END {XID}",
        f"XA PREPARE {XID}",
    )


def beside_the_snapshot(
    scene: Scene, before: Callable[[], None], after: Callable[[], None]
) -> Feed:
    """Return a feed that has caught up; both were called, right beside the read of the bag."""
    feed = scene.feed(config="force-replicate = true")

    def is_the_bag(plan: Plan) -> bool:
        return any(s.read["kind"] == "exact" for s in plan.stretch.segments)

    feed.runner.before = lambda plan: before() if is_the_bag(plan) else None
    feed.runner.after = lambda plan: after() if is_the_bag(plan) else None
    feed.catch_up()
    return feed


def test_prepared_before_and_committed_after(scene: Scene) -> None:
    """The snapshot does not show its rows, although the log has them before its place."""
    session = scene.session()
    feed = beside_the_snapshot(
        scene, lambda: prepare(session, 2), lambda: session(f"XA COMMIT {XID}")
    )
    scene.sql("INSERT INTO bag VALUES (3)")
    feed.catch_up()
    assert feed.differences() == ""
    assert [row["a"] for row in feed.rows("bag")] == [1, 2, 3]


def test_committed_before(scene: Scene) -> None:
    """The snapshot shows its rows: they do not come a second time."""
    session = scene.session()

    def commit() -> None:
        prepare(session, 2)
        session(f"XA COMMIT {XID}")

    feed = beside_the_snapshot(scene, commit, lambda: None)
    assert feed.differences() == ""
    assert [row["a"] for row in feed.rows("bag")] == [1, 2]


def test_in_one_phase(scene: Scene) -> None:
    session = scene.session()

    def commit(row: int) -> None:
        values = (f"INSERT INTO bag VALUES ({row})", f"INSERT INTO t VALUES ({row})")
        session(f"XA START {XID}", *values, f"XA END {XID}", f"XA COMMIT {XID} ONE PHASE")

    feed = beside_the_snapshot(scene, lambda: commit(2), lambda: commit(3))
    assert feed.differences() == ""
    assert [row["a"] for row in feed.rows("bag")] == [1, 2, 3]


def test_the_first_transaction_behind_it(scene: Scene) -> None:
    """One before it is left out, and this one is not."""
    session = scene.session()

    def behind() -> None:
        prepare(session, 3)
        session(f"XA COMMIT {XID}")

    feed = beside_the_snapshot(
        scene, lambda: scene.sql("INSERT INTO bag VALUES (2)", "INSERT INTO t VALUES (2)"), behind
    )
    assert feed.differences() == ""
    assert [row["a"] for row in feed.rows("bag")] == [1, 2, 3]


def test_rolled_back(scene: Scene) -> None:
    session = scene.session()
    feed = beside_the_snapshot(
        scene, lambda: prepare(session, 2), lambda: session(f"XA ROLLBACK {XID}")
    )
    assert feed.differences() == ""
    assert [row["a"] for row in feed.rows("bag")] == [1]
