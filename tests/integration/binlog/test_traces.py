"""Changes of one row, traced to the transactions that made them and the files that hold them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from feed_kit import NAME, Feed, Scene, scene_of

from rowferry.control.operator.operations import Operations
from rowferry.control.operator.trace.forms import TraceRequest, trace_form
from rowferry.errors import BadTrace, NoSuchTable
from rowferry.testing.servers import Server

CSV = "[sink.csv]\ninclude-commit-ts = true\n"


@pytest.fixture
def scene(source_server: Server, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Scene]:
    with scene_of(source_server, tmp_path, request.node.name) as found:
        yield found


def traced(feed: Feed, scene: Scene, *key: tuple[str, str], **more: Any) -> dict[str, Any]:
    """Return what a trace of a row of `t` answers, with the rows."""
    request = TraceRequest(f"{scene.database}.t", key, **more)
    return trace_form(Operations(feed.store).trace_values(NAME, request))


def write_history(feed: Feed, scene: Scene) -> None:
    """Let row 5 be there from the beginning, change, move away, come back and go."""
    feed.catch_up()
    scene.sql("UPDATE t SET v = 'two' WHERE id = 5", "INSERT INTO t VALUES (50, 'not it')")
    feed.catch_up()
    scene.sql("UPDATE t SET id = 55, v = 'moved' WHERE id = 5")
    feed.catch_up()
    scene.sql("UPDATE t SET id = 5 WHERE id = 55")
    scene.sql("DELETE FROM t WHERE id = 5")
    feed.catch_up()


def line_at(place: dict[str, Any]) -> str:
    """Return the line of a file that a place names."""
    return Path(place["file"]).read_text().splitlines()[place["row"] - 1]


def logged_at(scene: Scene, log: dict[str, str], events: int = 5) -> list[str]:
    """Return the server's own words for what stands at a place of its log."""
    rows = scene.server.execute(
        f"SHOW BINLOG EVENTS IN '{log['file']}' FROM {log['offset']} LIMIT {events}"
    )
    return [f"{row[2]} {row[5]}" for row in rows]


@pytest.mark.parametrize("protocol", ["canal-json", "csv"])
def test_each_change_has_its_file_its_micro_batch_and_its_transaction(
    scene: Scene, protocol: str
) -> None:
    scene.sql(
        "CREATE TABLE t (id int PRIMARY KEY, v varchar(40))",
        "INSERT INTO t VALUES (4, 'x'), (5, 'one'), (55555, 'x')",
    )
    feed = scene.feed(protocol=protocol, config=CSV if protocol == "csv" else "")
    write_history(feed, scene)
    answer = traced(feed, scene, ("id", "5"), log=True)
    changes = answer["changes"]
    ops = ["snapshot", "update", "delete", "insert", "delete"]
    assert [one["op"] for one in changes] == ops
    assert (answer["complete"], answer["notes"]) == (True, [])
    values = [(one["after"] or one["before"])["v"] for one in changes]
    assert values == ["one", "two", "two", "moved", "moved"]
    for one, value in zip(changes, values, strict=True):
        line = line_at(one["place"])
        assert str(one["commit_ts"]) in line
        assert value in line
    batches = [one["micro_batch"]["first"] for one in changes]
    assert batches == [one["micro_batch"]["last"] for one in changes]
    assert batches == sorted(batches)
    assert len(set(batches)) >= 4
    assert changes[0]["log"] == {}  # a snapshot stands nowhere in the log
    for one in changes[1:]:
        words = logged_at(scene, one["log"])
        assert one["log"]["gtid"] in words[0]
        assert any("_rows" in w for w in words)
        assert any(f"({scene.database}.t)" in w for w in words)
    offsets = [(one["log"]["file"], int(one["log"]["offset"])) for one in changes[1:]]
    assert offsets == sorted(offsets)
    assert len(set(offsets)) == 4

    plain = traced(feed, scene, ("ID", "5"))["changes"]  # without the log: the stretch it was in
    for one, known in zip(plain[1:], changes[1:], strict=True):
        assert one["log"]["file"] == known["log"]["file"]
        place = int(known["log"]["offset"])
        assert int(one["log"]["from"]) <= place < int(one["log"]["to"])
    bounds = [str(changes[1]["commit_ts"]), str(changes[2]["commit_ts"])]
    inside = traced(feed, scene, ("id", "5"), since=bounds[0], until=bounds[1])["changes"]
    assert [one["op"] for one in inside] == ["update", "delete"]
    last = traced(feed, scene, ("id", "5"), limit=1)
    assert ([one["op"] for one in last["changes"]], last["complete"]) == (["delete"], False)
    assert traced(feed, scene, ("id", "777"))["changes"] == []


def test_a_file_without_commit_ts_gets_it_from_the_log(scene: Scene) -> None:
    scene.sql("CREATE TABLE t (id int PRIMARY KEY, v varchar(40))", "INSERT INTO t VALUES (5, 'a')")
    feed = scene.feed(protocol="csv")
    write_history(feed, scene)
    plain = traced(feed, scene, ("id", "5"))
    assert {one["commit_ts"] for one in plain["changes"]} == {None}
    assert [one["op"] for one in plain["changes"]][0] == "snapshot"
    assert any("--log" in line for line in plain["notes"])
    changes = traced(feed, scene, ("id", "5"), log=True)["changes"]
    assert [one["op"] for one in changes[1:]] == ["update", "delete", "insert", "delete"]
    for one in changes[1:]:
        assert one["commit_ts"]
        assert one["log"]["gtid"] in logged_at(scene, one["log"])[0]


def test_keys_of_several_columns_and_types(scene: Scene) -> None:
    scene.sql(
        "CREATE TABLE t (a enum('x','y'), b decimal(9,2), c varbinary(9), d datetime(3), "
        "e varchar(20), v int, PRIMARY KEY (a, b, c, d, e))",
        "INSERT INTO t VALUES ('y', 1.5, x'00ff', '2024-01-02 03:04:05.5', 'it''s, \"so\"', 1)",
    )
    feed = scene.feed(protocol="csv", config=CSV)
    feed.catch_up()
    scene.sql("UPDATE t SET v = 2")
    feed.catch_up()
    key = {"a": "y", "b": "1.5", "c": "0x00ff", "d": "2024-01-02 03:04:05.5", "e": 'it\'s, "so"'}
    answer = traced(feed, scene, *key.items())
    assert [one["op"] for one in answer["changes"]] == ["snapshot", "update"]
    assert [one["after"]["v"] for one in answer["changes"]] == [1, 2]
    for column, other in (("a", "x"), ("b", "1.51"), ("c", "0x00fe"), ("e", "it")):
        assert traced(feed, scene, *{**key, column: other}.items())["changes"] == []
    for column, wrong in (("a", "z"), ("b", "one"), ("d", "soon")):
        with pytest.raises(BadTrace, match=f"no value of .*column {column}"):
            traced(feed, scene, *{**key, column: wrong}.items())
    with pytest.raises(
        BadTrace, match=r"value of e is missing; the key of .* is \(a, b, c, d, e\)"
    ):
        traced(feed, scene, *list(key.items())[:4])


def test_masked_columns_stay_masked_and_what_is_gone_is_told(scene: Scene) -> None:
    scene.sql("CREATE TABLE t (id int PRIMARY KEY, v varchar(40))")
    mask = "[[transform.masks]]\nmatcher = ['*.t']\ncolumns = ['v']\naction = 'null'\n"
    feed = scene.feed(config=mask)
    feed.catch_up()
    scene.sql("INSERT INTO t VALUES (5, 'secret')")
    feed.catch_up()
    (change,) = traced(feed, scene, ("id", "5"), log=True)["changes"]
    assert "secret" not in json.dumps(change)
    assert change["log"]["gtid"]
    scene.sql("ALTER TABLE t ADD COLUMN w int")
    feed.catch_up()
    scene.sql("FLUSH BINARY LOGS", "UPDATE t SET w = 1")
    feed.catch_up()
    answer = traced(feed, scene, ("id", "5"), log=True)
    assert [one["op"] for one in answer["changes"]] == ["insert", "update"]
    assert "gtid" in answer["changes"][1]["log"]
    assert "gtid" not in answer["changes"][0]["log"]
    assert any("before a schema change" in line for line in answer["notes"])


def test_what_cannot_be_traced_is_refused_in_one_line(scene: Scene) -> None:
    scene.sql("CREATE TABLE t (id int PRIMARY KEY)", "CREATE TABLE bare (v int)")
    feed = scene.feed(config="force-replicate = true\n")
    feed.catch_up()
    with pytest.raises(NoSuchTable, match="does not capture"):
        request = TraceRequest(f"{scene.database}.nobody", (("id", "1"),))
        Operations(feed.store).trace(NAME, request)
    with pytest.raises(BadTrace, match="no primary or NOT NULL unique key"):
        request = TraceRequest(f"{scene.database}.bare", (("v", "1"),))
        Operations(feed.store).trace(NAME, request)
    with pytest.raises(BadTrace, match="no column of the key"):
        traced(feed, scene, ("v", "1"))
    with pytest.raises(BadTrace, match="--since soon"):
        traced(feed, scene, ("id", "1"), since="soon")
