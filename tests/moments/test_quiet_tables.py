"""Tables that nobody writes to: no row in the log ever tells of them, so the feed must know them.

Where rows follow, a feed that has missed a table meets it then, and brings it after all.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from feed_kit import Scene, scene_of

from rowferry.testing.servers import Server


@pytest.fixture
def scene(source_server: Server, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Scene]:
    with scene_of(source_server, tmp_path, request.node.name) as found:
        found.sql(
            "CREATE TABLE a (id INT PRIMARY KEY)",
            "CREATE TABLE quiet (id INT PRIMARY KEY)",
            "INSERT INTO quiet VALUES (1), (2)",
        )
        yield found


def test_one_that_a_changed_filter_brings(scene: Scene) -> None:
    whole = f"{scene.database}.*"
    feed = scene.feed([whole, f"!{scene.database}.quiet"])
    feed.catch_up()
    assert feed.changes("quiet") == []
    feed.run(rules=[whole])
    feed.catch_up()
    scene.sql("INSERT INTO a VALUES (1)")
    feed.catch_up()
    assert [row["id"] for row in feed.rows("quiet")] == [1, 2]
    assert feed.differences() == ""


def test_one_that_a_rename_brings(scene: Scene) -> None:
    feed = scene.feed([f"{scene.database}.*", f"!{scene.database}.quiet"])
    feed.catch_up()
    scene.sql("RENAME TABLE quiet TO loud")
    feed.catch_up()
    assert [row["id"] for row in feed.rows("loud")] == [1, 2]
    assert feed.differences() == ""
