from __future__ import annotations

import threading
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from rowferry.change.plan import Stretch
from rowferry.change.position import Stage
from rowferry.change.table import TableId
from rowferry.errors import SourceMismatch
from rowferry.flow.capture.binlog import planner as planner_module
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


def test_a_log_without_gtids_goes_on_at_no_other_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind no GTIDs lies all of the other one's log: nothing of it was read, or all of it was."""
    monkeypatch.setattr(planner_module, "check_reachable", lambda *args: None)
    planner: Any = BinlogPlanner.__new__(BinlogPlanner)
    planner._state = BinlogState(LogPosition(Flavour.MYSQL, "old", "binlog.000007", 1234))
    facts = SimpleNamespace(identity="new")
    planner._server = SimpleNamespace(
        connection=None, login="mysql://db:3306", flavour=Flavour.MYSQL, facts=facts
    )
    planner._warnings = []
    with pytest.raises(SourceMismatch, match="is now new, before it was old, .* no GTIDs"):
        planner._follow_server()
    assert planner._state.log.file == "binlog.000007"
    facts.identity = "old"
    assert planner._follow_server() == []


def test_a_snapshot_whose_last_tables_are_left_out() -> None:
    """Parts of the others were read at moments that the log has still to pass."""
    state = BinlogState(LogPosition(Flavour.MYSQL, "server", last_ts=100), started=True)
    read, left_out = (
        replace(parse_create(f"CREATE TABLE d.{name} (a int)"), table_id=state.take_id()).at(100)
        for name in ("one", "two")
    )
    state.put(read, Stage.LOG, 100)
    state.put(left_out, Stage.SNAPSHOT, 100)
    state.unsettled_from = 100
    planner: Any = BinlogPlanner.__new__(BinlogPlanner)
    planner._state, planner._decision, planner._is_new = state, None, False
    planner._server = SimpleNamespace(facts=SimpleNamespace(identity="server"))
    planner._shown, planner._shown_as = set(), []
    planner._beginning = SimpleNamespace(
        follow_filter=lambda state, server, decision: state.let_go(left_out.table_id)
    )
    assert planner._open() is None
    assert state.hold == {}
