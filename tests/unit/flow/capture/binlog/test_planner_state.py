from __future__ import annotations

import threading
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from rowferry.change.plan import Stretch
from rowferry.change.position import Stage
from rowferry.change.table import TableId
from rowferry.flow.capture.binlog.planner import BinlogPlanner
from rowferry.flow.capture.binlog.position import LogPosition
from rowferry.flow.capture.binlog.snapshot import snapshots
from rowferry.flow.capture.binlog.state import BinlogState
from rowferry.flow.capture.contract import Appetite
from rowferry.mysql.ddl.statement import parse_create
from rowferry.mysql.session import Flavour


def test_names_follow_the_tables() -> None:
    state = BinlogState(LogPosition(Flavour.MYSQL, "server"))
    one = replace(parse_create("CREATE TABLE d.one (a int)"), table_id=state.take_id())
    two = replace(parse_create("CREATE TABLE d.two (a int)"), table_id=state.take_id())
    assert state.by_name() == {}
    for table in (one, two):
        state.put(table, Stage.LOG)
    assert set(state.by_name()) == {one.id, two.id}
    state.put(replace(one, id=TableId("d", "uno")), Stage.LOG)
    assert {str(n): t.schema.table_id for n, t in state.by_name().items()} == {
        "d.uno": 1,
        "d.two": 2,
    }
    state.forget(two.table_id)
    assert set(state.by_name()) == {TableId("d", "uno")}


def test_the_connection_has_one_user_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Framing asks the server, too: it waits while the place behind a snapshot is asked for."""
    changed = threading.Condition()
    framing_waits: list[bool] = []

    def high_position(*args: Any) -> dict[str, Any]:
        framing = threading.Thread(
            target=lambda: framing_waits.append(not changed.acquire(blocking=False))
        )
        framing.start()
        framing.join()
        return {"file": "binlog.000001", "offset": 4, "gtid": ""}

    monkeypatch.setattr(snapshots, "high_position", high_position)
    monkeypatch.setattr(BinlogPlanner, "_plan_log", lambda self, appetite: Stretch((), (), {}))
    planner: Any = BinlogPlanner.__new__(BinlogPlanner)
    planner._state = BinlogState(LogPosition(Flavour.MYSQL, "server"), hold={})
    planner._server = SimpleNamespace(connection=None, login=None, flavour=Flavour.MYSQL)
    planner._opened, planner._ahead = True, SimpleNamespace(changed=changed)
    planner.plan(Appetite(lambda table: 1, 1, lambda commit_ts: ""))
    assert framing_waits == [True]
    assert planner._state.hold["file"] == "binlog.000001"
