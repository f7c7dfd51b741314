"""Changes of one row that went where nothing can be read back: they are traced by the log."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from feed_kit import NAME, Feed, Scene, scene_of
from pyiceberg.catalog.sql import SqlCatalog

from rowferry.control.operator.operations import Operations
from rowferry.control.operator.trace.forms import TraceRequest, trace_form
from rowferry.errors import BadTrace
from rowferry.testing.receiver import HttpReceiver
from rowferry.testing.servers import MySql, Server


@pytest.fixture
def scene(
    mariadb_server: Server, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Scene]:
    with scene_of(mariadb_server, tmp_path, request.node.name) as found:
        yield found


class OtherFeed(Feed):
    """A feed into another sink than files."""

    sink = ""

    def _sink_uri(self) -> str:
        return self.sink


def traced(feed: Feed, scene: Scene, key: str = "5", **more: Any) -> dict[str, Any]:
    request = TraceRequest(f"{scene.database}.t", (("id", key),), **more)
    return trace_form(Operations(feed.store).trace_values(NAME, request))


def delta_versions(root: Path, scene: Scene) -> dict[int, str]:
    """Return the versions with rows by micro-batch, as another reader sees them."""
    history = DeltaTable(str(root / scene.database / "t")).history()
    rows = [c for c in history if c["operation"] == "MERGE"]
    return {int(c["rowferry.micro-batch"]): str(c["version"]) for c in rows}


def snapshots(root: Path, scene: Scene) -> dict[int, str]:
    catalog = SqlCatalog(
        "rowferry", uri=f"sqlite:///{root / 'catalog.db'}", warehouse=f"file://{root}"
    )
    known = catalog.load_table((scene.database, "t")).metadata.snapshots
    return {int(str(s.summary["rowferry.micro-batch"])): str(s.snapshot_id) for s in known}  # type: ignore[index]


def test_changes_come_from_the_log_with_what_the_target_tells(
    scene: Scene, mysql_server: MySql, tmp_path: Path
) -> None:
    scene.sql("CREATE TABLE t (id int PRIMARY KEY, v int)", "INSERT INTO t VALUES (5, 1), (6, 1)")
    with ExitStack() as held:
        receiver = held.enter_context(HttpReceiver())
        sinks = {
            "table": f"{mysql_server.uri}?create-tables=true",
            "target": f"{receiver.uri}?protocol=json",
            "delta": f"delta+file://{tmp_path}/delta",
            "iceberg": f"iceberg+file://{tmp_path}/ice",
        }
        feeds: dict[str, Feed] = {}
        for number, (kind, uri) in enumerate(sinks.items()):
            folder = tmp_path / f"feed{number}"
            folder.mkdir()
            OtherFeed.sink = uri
            feeds[kind] = OtherFeed(scene.server, folder, [f"{scene.database}.t"])
            held.callback(feeds[kind].stop)
        for statement in ("UPDATE t SET v = 2 WHERE id = 5", "DELETE FROM t WHERE id = 5"):
            for feed in feeds.values():
                feed.catch_up()
            scene.sql(statement)
        for kind, feed in feeds.items():
            feed.catch_up()
            answer = traced(feed, scene)
            there, *changes = answer["changes"]
            assert [one["op"] for one in changes] == ["update", "delete"], kind
            assert "cannot be read back" in answer["notes"][0]
            # What it was before its first change is what the snapshot delivered.
            assert (there["op"], there["before"], there["after"]) == (
                *("snapshot", None, {"id": 5, "v": 1}),
            )
            assert there["micro_batch"]["first"] < changes[0]["micro_batch"]["first"]
            assert there["commit_ts"] < changes[0]["commit_ts"]
            assert [one["micro_batch"]["first"] for one in changes] == sorted(
                {p.micro_batch for p in feed.runner.plans if p.stretch.segments}
            )[1:]
            for one in changes:
                (words,) = scene.server.execute(
                    f"SHOW BINLOG EVENTS IN '{one['log']['file']}' "
                    f"FROM {one['log']['offset']} LIMIT 1"
                )
                assert one["log"]["gtid"] in str(words[5])
            quiet = traced(feed, scene, "6")
            assert quiet["changes"] == [] and "is not in the log" in quiet["notes"][1]
            places = [one["place"] for one in changes]
            name = f"{scene.database}.t"
            if kind == "table":
                assert places == [{"table": name}] * 2
            elif kind == "target":
                assert places == [{"target": f"http://127.0.0.1:{receiver.port}"}] * 2
            else:
                root = tmp_path / ("delta" if kind == "delta" else "ice")
                known = (delta_versions if kind == "delta" else snapshots)(root, scene)
                batches = [one["micro_batch"]["first"] for one in changes]
                assert [p["version"] for p in places] == [known[b] for b in batches]
                assert Path(places[0]["file"]).exists()


def test_parked_changes_are_not_told_as_delivered(
    scene: Scene, mysql_server: MySql, tmp_path: Path
) -> None:
    """Row 5 is parked and dropped, row 6 is parked and sent again; both change once more then."""
    mysql_server.script(
        f"CREATE DATABASE {scene.database}",
        f"CREATE TABLE {scene.database}.t (id int PRIMARY KEY, v varchar(3))",
    )
    scene.sql("CREATE TABLE t (id int PRIMARY KEY, v varchar(9))")
    OtherFeed.sink = mysql_server.uri
    parks = "on-bad-row = 'quarantine'\n"
    feed = OtherFeed(scene.server, tmp_path, [f"{scene.database}.t"], config=parks)
    try:
        feed.catch_up()
        scene.sql("INSERT INTO t VALUES (5, 'too long'), (6, 'too long'), (7, 'x')")
        feed.catch_up()
        rows = {row.key: row for row in feed.store.parked(NAME)}
        feed.store.drop_parked(NAME, {rows["5"].place})
        mysql_server.script(f"ALTER TABLE {scene.database}.t MODIFY v varchar(9)")
        feed.store.want_parked(NAME, {rows["6"].parked_key})
        feed.catch_up()
        assert feed.store.parked(NAME) == ()
        scene.sql("UPDATE t SET v = 'y'")
        feed.catch_up()
        for key, ops in (("5", ["update"]), ("6", ["update"]), ("7", ["insert", "update"])):
            answer = traced(feed, scene, key)
            assert [one["op"] for one in answer["changes"]] == ops, key
            parked = any("1 changes of the row were parked" in n for n in answer["notes"])
            assert parked is (key != "7")
            assert any("sent parked rows of the table again" in n for n in answer["notes"])
            assert not answer["complete"]
    finally:
        feed.stop()
        mysql_server.script(f"DROP DATABASE {scene.database}")


def test_nowhere_is_refused(scene: Scene, tmp_path: Path) -> None:
    scene.sql("CREATE TABLE t (id int PRIMARY KEY)")
    OtherFeed.sink = "blackhole://"
    feed = OtherFeed(scene.server, tmp_path, [f"{scene.database}.t"])
    try:
        feed.catch_up()
        with pytest.raises(BadTrace, match="blackhole://, which keeps nothing"):
            traced(feed, scene)
    finally:
        feed.stop()
