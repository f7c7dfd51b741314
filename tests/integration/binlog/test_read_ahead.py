"""The thread that frames the log ahead: what it has received is framed without a further byte."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from feed_kit import Feed, Scene, scene_of

from rowferry.flow.capture.binlog.frame.read_ahead import ReadAhead
from rowferry.flow.capture.binlog.planner import BinlogPlanner
from rowferry.testing.servers import Server


@pytest.fixture
def scene(source_server: Server, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Scene]:
    with scene_of(source_server, tmp_path, request.node.name) as found:
        yield found


def _ahead(feed: Feed) -> ReadAhead:
    planner = feed.loop._planner
    assert isinstance(planner, BinlogPlanner) and planner._ahead is not None
    return planner._ahead


def test_bytes_behind_a_statement_are_framed_once_it_is_taken(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The statement is taken before the thread comes to see that it has to wait for that."""
    scene.sql("CREATE TABLE t (id int PRIMARY KEY)")
    feed = scene.feed()
    feed.catch_up()
    feed.run()
    monkeypatch.setattr(ReadAhead, "_run", lambda self: None)  # its turns are the test's
    feed.step()
    ahead = _ahead(feed)
    scene.sql("ALTER TABLE t ADD COLUMN c int", "INSERT INTO t VALUES (1, 1)")
    while not ahead.scanner.blocked:
        ahead._next()
    while ahead._stream.wait(1.0):  # all that there is, and no more comes
        ahead.scanner.receive()
    step = feed.step()
    assert step is not None and step.schema_changes == 1
    ahead._next()
    assert ahead.scanner.backlog()[0] == 1, "the row waits for a heartbeat"
