"""What readers have kept of tables that the filter let go, when their database is dropped."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from rowferry.change.chunk import DdlKind, SchemaChange
from rowferry.change.table import TableId
from rowferry.flow.capture.announcements import Left
from rowferry.flow.capture.range_log.left_tables import announced_again, cleared
from rowferry.flow.capture.range_log.state import RangeState, RangeTable
from rowferry.mysql.ddl.statement import parse_create

KEPT, OTHER = TableId("shop", "t"), TableId("crm", "t")
DROP = SchemaChange(40, DdlKind.DROP_DATABASE, "DROP DATABASE shop", TableId("shop", ""))
AGAIN = parse_create("CREATE TABLE shop.t (id int PRIMARY KEY, v int)").at(50)


def decision(renames: bool) -> Any:
    return SimpleNamespace(renames=renames, keeps_schema_change=lambda change: True)


def state() -> RangeState:
    return RangeState(7, 30, left={KEPT: Left(11, "as it was"), OTHER: Left(12, "")})


def test_they_go_with_a_database_that_readers_drop() -> None:
    found = state()
    assert cleared(found, DROP, decision(renames=False)) == []
    assert set(found.left) == {OTHER}


def test_they_may_stay_where_routing_names_tables() -> None:
    """The database that readers drop is another one, or stays for what others have in it."""
    found = state()
    assert cleared(found, DROP, decision(renames=True)) == []
    assert set(found.left) == {KEPT, OTHER}


@pytest.mark.parametrize("renames", [False, True])
@pytest.mark.parametrize("by_log", [False, True], ids=["by its snapshot", "by the log"])
def test_a_table_of_that_name_clears_what_may_be_gone(renames: bool, by_log: bool) -> None:
    found, asked = state(), decision(renames)
    if by_log:
        create = SchemaChange(50, DdlKind.CREATE_TABLE, "", KEPT, AGAIN)
        changes = cleared(found, create, asked)
    else:
        found.tables[AGAIN.table_id] = RangeTable(AGAIN, joined=True, low=50)
        changes = list(announced_again(found, asked))
    words = "DROP TABLE IF EXISTS `shop`.`t`" if renames else "DROP TABLE `shop`.`t`"
    assert changes[0].query == words
    assert KEPT not in found.left
