"""The last changes of a changefeed that runs, by every face and for every role."""

from __future__ import annotations

import json
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

from faces_kit import Shell

from rowferry.control.feed.running import Conditions
from rowferry.control.fleet.server import FleetPace, Member
from rowferry.control.operator.actor import Actor, Role, current_actor
from rowferry.control.operator.operations import ChangedSettings, Operations, Wanted
from rowferry.control.operator.statements.execute import execute
from rowferry.control.store.sql_store import open_store
from rowferry.face.about import About
from rowferry.face.rest.app import create_app
from rowferry.face.rest.serving import serve
from rowferry.spark.shared import DriverRunner
from rowferry.testing.harness import wait_for
from rowferry.testing.servers import MySql

WITHIN_S = 600.0
MASK = {"matcher": ["sampled.*"], "columns": ["card"], "action": "keep-last", "length": 2}


def test_values_are_for_those_who_may_see_them(own_mysql: MySql, tmp_path: Path) -> None:
    own_mysql.script(
        "DROP DATABASE IF EXISTS sampled",
        "CREATE DATABASE sampled",
        "CREATE TABLE sampled.t (id int PRIMARY KEY, name varchar(20), card varchar(20))",
    )
    store = open_store(f"sqlite:///{tmp_path / 'meta.db'}")
    pace = FleetPace(every_s=0.05, sample_every_s=0.1)
    member = Member(store, "here:1", Conditions(lambda name: DriverRunner()), pace)
    operations = Operations(store, here=member.last_changes)
    config: dict[str, Any] = {
        "filter": {"rules": ["sampled.*"]},
        "transform": {"masks": [MASK]},
    }
    sink = f"file://{tmp_path / 'out'}?protocol=csv&flush-interval=50ms"
    operations.create(Wanted(own_mysql.uri, sink, "feed", config))
    stop, about = threading.Event(), About("here:1", "0.1.0", 0.0, "here")
    thread = threading.Thread(target=member.run, args=(stop,))

    def rows() -> int:
        return sum(c.rows for c in store.table_counts("feed"))

    def written(number: int) -> list[dict[str, Any]]:
        """Write a row, and return the sample that has it."""
        before = rows()
        own_mysql.execute(f"INSERT INTO sampled.t VALUES ({number}, 'ann', '4711-0815')")
        own_mysql.execute(f"UPDATE sampled.t SET name = 'bea' WHERE id = {number}")
        wait_for(lambda: rows() >= before + 2, "the changes", WITHIN_S)
        answer = json.loads(shell.run("changefeed", "query", "-c", "feed", "--sample"))
        assert answer["here"] is True and answer["owner"] == "here:1"
        changes: list[dict[str, Any]] = answer["changes"]
        return changes

    def change(mode: object) -> None:
        operations.pause("feed")
        wait_for(lambda: store.feed("feed").lease is None, "its border", WITHIN_S)  # type: ignore[union-attr]
        new = {**config, "sample-changes": mode}
        operations.update("feed", ChangedSettings(config=new))
        operations.resume("feed")

    with closing(store), serve(create_app(operations, about), "127.0.0.1:0") as serving:
        shell = Shell(serving.url, tmp_path)
        thread.start()
        try:
            wait_for(lambda: operations.see("feed").feed.watermark > 0, "its begin", WITHIN_S)
            newest, *_ = written(1)
            assert (newest["op"], newest["table"]) == ("update", "sampled.t")
            assert (newest["key"], newest["after"]) == ({"id": "***"}, None)
            change(True)
            newest, *_ = written(2)
            assert newest["key"] == {"id": "2"}
            assert newest["before"] == {"id": "2", "name": "ann", "card": "*******15"}
            assert newest["after"] == {"id": "2", "name": "bea", "card": "*******15"}
            token = current_actor.set(Actor("vi", Role.VIEWER, "here", "test"))
            table = execute(operations, "SHOW CHANGEFEED feed SAMPLE")
            current_actor.reset(token)
            assert table.rows[0][2:] == ("sampled.t", "update", '{"id": "***"}', None, None)
            for mine in (Operations(store), operations):  # another server, and one without a role
                seen = execute(mine, "SHOW CHANGEFEED feed SAMPLE")
                assert bool(seen.rows) is (mine is operations)
                assert ("ask here:1" in seen.message) is (mine is not operations)
            assert b"bea" not in (tmp_path / "meta.db").read_bytes()
            change(False)
            assert written(3) == []
        finally:
            stop.set()
            thread.join(WITHIN_S)
