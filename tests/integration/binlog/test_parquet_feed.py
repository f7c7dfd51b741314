"""A feed of parquet files from end to end: snapshot, log, DDL, a crash, and their readers."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pyarrow.parquet as pq
import pytest
from feed_kit import Scene, scene_of

from rowferry.change.plan import Plan
from rowferry.downstream.rebuild.stored_feed import open_storage
from rowferry.downstream.rebuild.table import plan_tables, rebuild_here
from rowferry.downstream.storage_check.check import check_storage
from rowferry.downstream.storage_check.expected import expected_of
from rowferry.downstream.storage_check.listing import Listing
from rowferry.errors import EncodeError, SinkUnavailable
from rowferry.testing.servers import Server

IMAGES = '[sink.parquet]\nlayout = "images"'


@pytest.fixture
def scene(source_server: Server, tmp_path: Path, request: pytest.FixtureRequest) -> Scene:
    with scene_of(source_server, tmp_path, request.node.name) as found:
        yield found  # type: ignore[misc]


def _history(scene: Scene) -> None:
    scene.sql(
        "INSERT INTO t VALUES (3, 'c', 3.50, '2024-02-29 10:00:00.125', 'x')",
        "UPDATE t SET v = 'new' WHERE id = 1",
        "DELETE FROM t WHERE id = 2",
        "ALTER TABLE t ADD COLUMN more int unsigned DEFAULT 7",
        "INSERT INTO t VALUES (4, NULL, NULL, NULL, NULL, 4294967295)",
        "UPDATE t SET id = 9 WHERE id = 3",
    )


def _begin(scene: Scene) -> None:
    scene.sql(
        "CREATE TABLE t (id bigint primary key, v varchar(20), d decimal(10,2), "
        "at datetime(3), e enum('x','y'))",
        "INSERT INTO t VALUES (1, 'a', -1.25, '2024-01-01 00:00:00', 'y'), (2, 'b', 0, NULL, 'x')",
    )


@pytest.mark.parametrize("config", ["", IMAGES], ids=["flat", "images"])
def test_snapshot_log_and_ddl(scene: Scene, config: str) -> None:
    _begin(scene)
    feed = scene.feed(protocol="parquet", config=config)
    feed.catch_up()
    _history(scene)
    feed.catch_up()
    assert feed.differences() == ""
    assert feed.repeated("t") == []
    lead = "" if not config else "_after."
    with duckdb.connect() as engine:
        found = engine.execute(
            f"SELECT {lead}id, {lead}d FROM read_parquet('{feed.root}/**/CDC*.parquet', "
            "union_by_name=true) WHERE _op = 'insert' ORDER BY _commit_ts, _seq"
        ).fetchall()
    assert sorted(int(i) for i, _ in found) == [1, 2, 3, 4, 9]
    storage = open_storage(f"file://{feed.root}", feed.root.parent / "feed.toml")
    assert storage.spec.protocol == "parquet"
    (plan,) = plan_tables(storage)
    rows = sorted(rebuild_here(plan).to_pylist(), key=lambda r: int(r["id"]))
    assert rows == feed.rows("t")
    findings = check_storage(Listing(storage.files), expected_of(storage.spec))
    assert (findings.violations, findings.rows) == ([], len(feed.changes("t")))


def test_killed_between_write_and_publish_it_leaves_the_same_bytes(scene: Scene) -> None:
    _begin(scene)
    feed = scene.feed(protocol="parquet")
    feed.catch_up()
    _history(scene)
    left: dict[str, bytes] = {}

    def die(plan: Plan) -> None:
        files = [feed.root / o.target["path"] for o in plan.outputs]
        left.update({str(f): f.read_bytes() for f in files})
        if left:
            raise SinkUnavailable("killed")

    feed.runner.after = die
    while not left:
        feed.step()
    feed.runner.after = lambda plan: None
    feed.run()  # as another process: the recorded plan is carried out again
    feed.catch_up()
    assert {name: Path(name).read_bytes() for name in left} == left
    assert (feed.differences(), feed.repeated("t")) == ("", [])
    assert sum(pq.read_metadata(name).num_rows for name in left) > 0


def test_a_zero_date_stops_the_feed_by_name(scene: Scene) -> None:
    scene.sql("CREATE TABLE z (id int primary key, day date)")
    feed = scene.feed(protocol="parquet")
    feed.catch_up()
    scene.sql("SET sql_mode = ''", "INSERT INTO z VALUES (1, '0000-00-00')")
    with pytest.raises(EncodeError, match=r"z, column 'day': '0000-00-00'"):
        feed.catch_up()
    feed.run(config='[sink.parquet]\nzero-date = "null"')
    with pytest.raises(EncodeError):  # the recorded plan keeps its settings
        feed.catch_up()
    feed.loop.replan("the sink was changed")  # as an update of the changefeed does
    feed.catch_up()
    assert [c.after for c in feed.changes("z")] == [{"id": 1, "day": None}]
