"""Every form in which the log can hold a change: what is committed arrives, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from feed_kit import Scene, scene_of

from rowferry.testing.servers import Server


@pytest.fixture
def scene(
    source_server: Server, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Scene]:
    with scene_of(source_server, tmp_path, request.node.name) as found:
        yield found

def test_savepoints(scene: Scene) -> None:
    scene.sql("CREATE TABLE t (id int PRIMARY KEY, v varchar(300))")
    feed = scene.feed()
    feed.catch_up()
    scene.sql(
        "BEGIN",
        "INSERT INTO t VALUES (1, 'stays')",
        "SAVEPOINT s",
        "INSERT INTO t VALUES (2, 'goes')",
        "ROLLBACK TO s",
        "INSERT INTO t VALUES (3, 'stays')",
        "COMMIT",
    )
    feed.catch_up()
    assert feed.differences() == ""
    assert [c.after["id"] for c in feed.changes("t")] == [1, 3]
