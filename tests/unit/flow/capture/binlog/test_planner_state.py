from __future__ import annotations

from dataclasses import replace

from rowferry.change.position import Stage
from rowferry.change.table import TableId
from rowferry.flow.capture.binlog.position import LogPosition
from rowferry.flow.capture.binlog.state import BinlogState
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
