"""Statements that are longer than a segment: what lies where one ends and the next begins."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "integration" / "binlog"))  # its kit is used

from feed_kit import Scene, scene_of

from rowferry.change.plan import Plan
from rowferry.flow.capture.binlog.frame import segment_cutter


@pytest.fixture(params=["mysql_server", "mariadb_server"])
def scene(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Scene]:
    server = request.getfixturevalue(request.param)
    with scene_of(server, tmp_path, request.node.name) as found:
        yield found


@pytest.mark.parametrize("carry_bytes", [512 << 10, 0], ids=["carried", "kept"])
@pytest.mark.parametrize("is_near", [True, False], ids=["near", "far"])
def test_a_trigger_writes_where_no_feed_looks(
    scene: Scene, carry_bytes: int, is_near: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its table is mapped once, before the first row of the statement."""
    monkeypatch.setattr(segment_cutter, "SEGMENT_BYTES", 300)
    monkeypatch.setattr(segment_cutter, "CARRY_BYTES", carry_bytes)
    scene.sql(
        "CREATE TABLE t (id int PRIMARY KEY, v varchar(200))",
        "CREATE TABLE x_log (id int)",
        "CREATE TRIGGER logged AFTER UPDATE ON t FOR EACH ROW INSERT INTO x_log VALUES (NEW.id)",
        "INSERT INTO t VALUES (1, 'a'), (2, 'b'), (3, 'c'), (4, 'd'), (5, 'e')",
    )
    feed = scene.feed(rules=[f"{scene.database}.t"])
    feed.catch_up()

    def forget(plan: Plan) -> None:
        for segment in plan.stretch.segments:
            if not is_near:
                object.__setattr__(segment, "near", ())

    feed.runner.before = forget
    scene.sql("UPDATE t SET v = REPEAT(v, 100)", "DELETE FROM t WHERE id = 3")
    feed.catch_up()
    assert len(feed.runner.segments("log")) > 3
    assert feed.differences() == ""
