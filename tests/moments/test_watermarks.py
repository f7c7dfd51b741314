"""Watermarks tell the truth at every step, also while snapshots are read and tables join.

After each step a reader looks at the files: what it finds at or below a watermark that it saw
before, it must have seen then (P3). From the first watermark on, before-images are the rows that it
has (P5), so no snapshot that a watermark spoke for showed what came later (P4).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from feed_kit import NAME, Feed, Scene, Seen, scene_of
from moment_kit import Killed, small_snapshots

from rowferry.change.chunk import Op
from rowferry.change.plan import Plan
from rowferry.moment import watched
from rowferry.testing.servers import Server

TABLE = "CREATE TABLE a (id INT PRIMARY KEY, v INT)"
ROWS = "INSERT INTO a VALUES (1, 1), (3, 3), (5, 5), (7, 7), (9, 9), (11, 11), (13, 13)"


class Reader:
    """Looks at a feed's files after each of its steps."""

    def __init__(self, feed: Feed, tables: list[str]) -> None:
        self._feed, self._tables = feed, tables
        self._marks: list[int] = []  # those of `metadata` that it saw
        self._stored = 0
        self._seen: dict[str, set[str]] = {table: set() for table in tables}
        whole = feed.step

        def step() -> Any:
            try:
                return whole()
            finally:
                self.look()

        feed.step = step  # type: ignore[method-assign]

    def look(self) -> None:
        """Find nothing new at or below a watermark of before."""
        stored = self._feed.store.state(NAME).watermark
        assert stored >= self._stored, f"the watermark went back from {self._stored} to {stored}"
        self._stored = stored
        metadata = self._feed.root / "metadata"
        mark = json.loads(metadata.read_text())["checkpoint-ts"] if metadata.exists() else 0
        last = self._marks[-1] if self._marks else 0
        assert mark >= last, f"metadata went back from {last} to {mark}"
        for table in self._tables:
            for change in self._feed.changes(table):
                if repr(change) not in self._seen[table]:
                    self._seen[table].add(repr(change))
                    assert change.commit_ts > last, f"{change} came after the watermark {last}"
        if mark > last:
            self._marks.append(mark)

    def judge(self, table: str) -> None:
        """Compare before-images with the rows that a reader has, from the first watermark on."""
        rows: dict[Any, dict[str, Any]] = {}
        compared = 0
        for change in self._feed.changes(table):
            key = _key(change)
            if change.commit_ts > self._marks[0]:
                compared += 1
                assert change.before == rows.get(key), f"{change} follows {rows.get(key)}"
            if change.op is Op.DELETE:
                rows.pop(key, None)
            else:
                assert change.after is not None
                rows[key] = change.after
        assert compared, "nothing came behind the first watermark"


def _key(change: Seen) -> Any:
    image = change.after if change.after is not None else change.before
    assert image is not None
    return image["id"]


@pytest.fixture
def scene(source_server: Server, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Scene]:
    with small_snapshots(), scene_of(source_server, tmp_path, request.node.name) as found:
        found.sql(TABLE, ROWS)
        yield found


@pytest.mark.parametrize("restarts", [0, 4])
def test_while_a_snapshot_is_read(scene: Scene, restarts: int) -> None:
    feed = scene.feed()
    reader = Reader(feed, ["a"])
    feed.runner.before = _writes(scene)
    for _ in range(restarts):
        feed.step()
        feed.run()
    feed.catch_up()
    feed.runner.before = lambda plan: None
    scene.sql("UPDATE a SET v = v + 1", "DELETE FROM a WHERE id = 5")
    feed.catch_up()
    reader.judge("a")
    assert feed.differences() == ""


def _writes(scene: Scene) -> Callable[[Plan], None]:
    """Before each job of a snapshot, change a row of the last part that no other change hides.

    A statement before it ends a stretch of log there.
    """
    made = 0

    def write(plan: Plan) -> None:
        nonlocal made
        if any(s.snapshot for s in plan.stretch.segments):
            made += 1
            scene.sql(
                f"CREATE TABLE n{made} (id INT PRIMARY KEY)",
                f"UPDATE a SET v = v + 100 WHERE id = {9 + 2 * made}",
            )

    return write


def test_while_a_table_joins(scene: Scene) -> None:
    feed = scene.feed([f"{scene.database}.*", f"!{scene.database}.x_*"])
    reader = Reader(feed, ["a", "r"])
    feed.catch_up()
    scene.sql("CREATE TABLE x_r LIKE a", "INSERT INTO x_r SELECT * FROM a")
    feed.catch_up()
    feed.runner.before = _writes(scene)
    scene.sql("RENAME TABLE x_r TO r", "UPDATE a SET v = 50")
    feed.catch_up()
    feed.runner.before = lambda plan: None
    scene.sql("UPDATE a SET v = v + 1", "UPDATE r SET v = v + 1")
    feed.catch_up()
    reader.judge("a")
    assert feed.differences() == ""


def test_of_transactions_that_come_in_two_parts(scene: Scene) -> None:
    feed = scene.feed()
    reader = Reader(feed, ["a", "s"])
    feed.catch_up()
    with closing(scene.session()) as session:
        session(
            "XA START 'two'", "INSERT INTO a VALUES (20, 20)", "XA END 'two'", "XA PREPARE 'two'"
        )
    for number in range(3):  # the watermark passes what is only prepared
        scene.sql(f"UPDATE a SET v = {number} WHERE id = 1")
        feed.catch_up()
    scene.sql("XA COMMIT 'two'", "CREATE TABLE s (id INT PRIMARY KEY) SELECT id, v FROM a")
    for _ in range(4):
        feed.step()
    scene.sql("UPDATE s SET v = 0")
    feed.catch_up()
    reader.judge("a")
    assert feed.differences() == ""


@pytest.mark.parametrize(
    "call", ["publish index", "put schema change files", "publish metadata", "publish progress"]
)
def test_where_the_feed_dies_while_it_publishes(scene: Scene, call: str) -> None:
    feed = scene.feed()
    reader = Reader(feed, ["a"])
    feed.catch_up()

    def die(name: str) -> None:
        if name == call:
            raise Killed

    for number in range(2):
        scene.sql(f"UPDATE a SET v = {number}", f"CREATE TABLE n{number} (id INT PRIMARY KEY)")
        with watched(die), pytest.raises(Killed):
            feed.step()
        feed.run()
        feed.catch_up()
    reader.judge("a")
    assert feed.differences() == ""
