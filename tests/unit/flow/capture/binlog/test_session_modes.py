"""The sql_mode of a DDL, from the log of one server to the session of another."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from statements_kit import MARIADB, MYSQL, TOLD, captured, run

from rowferry.change.chunk import DdlKind, SchemaChange
from rowferry.change.position import Stage
from rowferry.change.table import TableId
from rowferry.flow.capture.binlog.ddl.captured_tables import CapturedTables
from rowferry.flow.capture.binlog.frame.events import Query
from rowferry.flow.capture.binlog.frame.framing_judge import LoggedStatement
from rowferry.flow.capture.binlog.position import LogPosition
from rowferry.flow.capture.binlog.state import BinlogState
from rowferry.mysql.ddl.session_modes import mode_for_seconds, modes_of, without_seconds
from rowferry.mysql.feed_mark import is_marked
from rowferry.mysql.session import Flavour, ServerFacts

STRICT, CUTS, ROUNDS = 1 << 22, 1 << 32, 1 << 34
MARK = 1 << 7 | 1 << 19 | 1 << 25 | 1 << 26
CUT = "TIME_TRUNCATE_FRACTIONAL"


@pytest.mark.parametrize(
    ("bits", "of_mysql", "of_mariadb"),
    [
        (STRICT, "", CUT),
        (STRICT | CUTS, CUT, CUT),  # MariaDB's bit of this number says something else
        (STRICT | ROUNDS, "", ""),
        (STRICT | 1 << 24, "", CUT),  # a strict session has refused such days
        (1 << 24, "NO_ZERO_DATE", f"NO_ZERO_DATE,{CUT}"),
        (STRICT | 1 << 19 | 1 << 2, "NO_AUTO_VALUE_ON_ZERO", f"NO_AUTO_VALUE_ON_ZERO,{CUT}"),
        (1 << 1 | 1 << 25, "PIPES_AS_CONCAT,ALLOW_INVALID_DATES", None),
    ],
)
def test_what_counts_of_a_mode(bits: int, of_mysql: str, of_mariadb: str | None) -> None:
    assert modes_of(bits, Flavour.MYSQL) == of_mysql
    if of_mariadb is not None:
        assert modes_of(bits, Flavour.MARIADB) == of_mariadb


@pytest.mark.parametrize(
    ("modes", "flavour", "mode"),
    [
        ("", Flavour.MYSQL, ""),
        ("", Flavour.TIDB, ""),
        ("", Flavour.MARIADB, "TIME_ROUND_FRACTIONAL"),
        (f"REAL_AS_FLOAT,{CUT}", Flavour.MYSQL, CUT),
        (CUT, Flavour.TIDB, CUT),
        (CUT, Flavour.MARIADB, ""),
    ],
)
def test_seconds_are_cut_or_rounded_as_at_the_source(
    modes: str, flavour: Flavour, mode: str
) -> None:
    assert mode_for_seconds(modes, flavour) == mode
    assert without_seconds(modes) == modes.replace(CUT, "").strip(",")


@pytest.mark.parametrize("more", [0, CUTS, ROUNDS])
def test_a_mark_is_seen_whatever_is_done_to_seconds(more: int) -> None:
    assert is_marked(MARK | more)
    assert not is_marked(MARK | more | STRICT)
    assert not is_marked(more)


def changes_of(facts: ServerFacts, sql_mode: int, marked: bool = False) -> list[SchemaChange]:
    """Return what a feed tells of an ALTER TABLE that ran in this mode."""
    state = BinlogState(LogPosition(facts.flavour, "", "binlog.000001"), next_table_id=100)
    for schema in captured(facts).values():
        state.put(schema, Stage.LOG)
    server: Any = SimpleNamespace(facts=facts, settings=TOLD, renew_settings=lambda: None)
    decision: Any = SimpleNamespace(
        keeps_table=lambda name: True,
        captures=lambda schema: True,
        keeps_schema_change=lambda change: True,
    )
    tables = CapturedTables(state, server, decision, True, False, drop_marked=marked)
    sql = "ALTER TABLE t MODIFY a bigint"
    effects = run(sql, facts, sql_mode=sql_mode)
    assert effects is not None
    return list(tables.apply(LoggedStatement(Query("d", sql, sql_mode), effects, 7)))


@pytest.mark.parametrize(("facts", "modes"), [(MYSQL, ""), (MARIADB, CUT)])
def test_a_change_says_how_its_session_was_set(facts: ServerFacts, modes: str) -> None:
    (change,) = changes_of(facts, STRICT)
    assert (change.table, change.sql_mode) == (TableId("d", "t"), modes)
    (change,) = changes_of(facts, 1 << 19)
    assert change.sql_mode == ",".join(filter(None, ("NO_AUTO_VALUE_ON_ZERO", modes)))
    assert SchemaChange.from_json(change.to_json()) == change
    assert changes_of(facts, MARK | ROUNDS, marked=True) == []


def test_a_change_of_before_is_read() -> None:
    change = SchemaChange(7, DdlKind.DROP_TABLE, "DROP TABLE t", TableId("d", "t"))
    form = change.to_json()
    assert "sql_mode" not in form and SchemaChange.from_json(form) == change
