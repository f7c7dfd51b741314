"""A tool's copy of a table is known by its name; a table with any other name is not."""

from __future__ import annotations

import pytest

from rowferry.change.table import TableId
from rowferry.flow.capture.binlog.ddl.online_copies import is_online_copy

LONG = "t" * 62


@pytest.mark.parametrize(
    ("table", "copy"),
    [
        ("t", "_t_gho"),
        ("T", "_t_gho"),
        ("t", "_t_new"),
        ("t", "____t_new"),
        ("t", "__osc_new_t"),
        ("t", "lhmn_t"),
        ("t", "_vt_vrp_6ace8bcef73211ea87e9f875a4d24e90_20200915120410_"),
        (LONG, f"_{LONG[:59]}_gho"),
        ("a_b", "_a_b_gho"),
    ],
)
def test_a_copy_of_a_tool(table: str, copy: str) -> None:
    assert is_online_copy(TableId("d", table), TableId("d", copy))


@pytest.mark.parametrize(
    ("table", "copy"),
    [
        ("t", "t_new"),
        ("t", "_u_gho"),
        ("t", "_t_del"),
        ("t", "_t_gho_2"),
        ("tt", "_t_gho"),
        ("t", "x"),
        ("t", "_vt_orders"),
        (LONG, "_t_gho"),
    ],
)
def test_any_other_table(table: str, copy: str) -> None:
    assert not is_online_copy(TableId("d", table), TableId("d", copy))


def test_a_copy_is_in_the_database_of_its_table() -> None:
    assert not is_online_copy(TableId("d", "t"), TableId("e", "_t_gho"))
