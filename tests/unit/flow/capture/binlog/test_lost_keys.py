"""Tables whose key is gone, by the log or behind its back: nothing waits for them in silence."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from binlog_event_kit import names, table_map
from test_order_of_keys import APPETITE, TEXT_KEY, Source

from rowferry.change.position import Stage
from rowferry.change.resnapshot import Resnapshot, ResnapshotOutcome
from rowferry.change.table import TableId, TableSchema
from rowferry.flow.capture.binlog.ddl import captured_tables
from rowferry.flow.capture.binlog.ddl.captured_tables import CapturedTables
from rowferry.flow.capture.binlog.ddl.statements import Effects
from rowferry.flow.capture.binlog.decode.table_map import parse_table_map
from rowferry.flow.capture.binlog.frame import events as ev
from rowferry.flow.capture.binlog.frame.framing_judge import LoggedStatement
from rowferry.flow.capture.binlog.position import LogPosition
from rowferry.flow.capture.binlog.snapshot import rereads
from rowferry.flow.capture.binlog.snapshot.rereads import Rereads
from rowferry.flow.capture.binlog.state import BinlogState
from rowferry.mysql import session
from rowferry.mysql.ddl.statement import parse_create, plan_ddl
from rowferry.mysql.session import Flavour

NAME = TableId("d", "t")
KEYLESS = "CREATE TABLE d.t (k varchar(9) COLLATE utf8mb4_bin NOT NULL, v varchar(9), w int)"


@pytest.fixture
def source(monkeypatch: pytest.MonkeyPatch) -> Source:
    """A server whose log ends at offset 500."""
    source = Source()
    monkeypatch.setattr(session, "rows", source.rows)
    monkeypatch.setattr(rereads, "estimate_rows", lambda *args: 100)
    monkeypatch.setattr(rereads, "all_is_visible", lambda *args: False)
    end = {"file": "binlog.000001", "offset": 500, "gtid": ""}
    monkeypatch.setattr(rereads, "high_position", lambda *args: dict(end))
    return source


def asked(source: Source) -> tuple[Rereads, BinlogState]:
    """Return what is to be read again of a table that is captured as the server has it."""
    decision: Any = SimpleNamespace(check_where=lambda schema, where: None)
    server: Any = source
    log = LogPosition(Flavour.MYSQL, "server", "binlog.000001", 100, last_ts=100)
    state = BinlogState(log, started=True)
    state.put(replace(source.definition, table_id=state.take_id()).at(100), Stage.LOG)
    reads = Rereads(server, decision)
    reads.follow(state, [Resnapshot("1", NAME)])
    return reads, state


def cut_at(reads: Rereads, state: BinlogState, offset: int) -> str:
    """Let the log come to an offset, and the next part be cut there; return why it has ended."""
    state.log.offset = offset
    state.reread_low = 200 + offset
    assert reads.cut(state, APPETITE) == []
    one = state.rereads["1"]
    assert (one.outcome is ResnapshotOutcome.FAILED) == bool(one.words)
    return one.words


def test_a_key_that_is_gone_without_a_word_in_the_log(source: Source) -> None:
    """The log may still tell, until it has come to where it ended when that was noticed."""
    reads, state = asked(source)
    source.definition = parse_create(KEYLESS)
    assert cut_at(reads, state, 200) == ""
    assert cut_at(reads, state, 499) == ""
    assert "d.t has other columns or another key than the log tells" in cut_at(reads, state, 500)


def test_a_table_that_is_altered_once_more_is_waited_for(source: Source) -> None:
    reads, state = asked(source)
    source.definition = parse_create(KEYLESS)
    assert cut_at(reads, state, 200) == ""
    source.definition = parse_create(KEYLESS.replace("w int", "w bigint"))
    assert cut_at(reads, state, 500) == ""  # the log had not told of this when it ended there
    assert cut_at(reads, state, 501) != ""


def test_a_table_that_is_as_it_was_again(source: Source) -> None:
    reads, state = asked(source)
    source.definition = parse_create(KEYLESS)
    assert cut_at(reads, state, 200) == ""
    source.definition = parse_create(TEXT_KEY)
    assert cut_at(reads, state, 600) == ""
    source.definition = parse_create(KEYLESS)
    assert cut_at(reads, state, 601) == ""


def test_a_key_that_is_gone_by_the_log(source: Source) -> None:
    reads, state = asked(source)
    source.definition = parse_create(KEYLESS)
    (table,) = state.tables.values()
    (change,) = plan_ddl("ALTER TABLE d.t DROP PRIMARY KEY", "d", {NAME: table.schema}, lambda: 0)
    assert change.schema is not None
    state.put(change.schema, Stage.LOG)
    assert (
        cut_at(reads, state, 200) == "d.t has no usable key any more, and cannot be read in parts"
    )


# --- tables that are left out then ---------------------------------------------------------------


def book_of(source: Source, forced: bool) -> tuple[CapturedTables, BinlogState, list[str]]:
    """Return the tables of a feed that captures d.t, and what it warns of."""

    def captures(schema: TableSchema) -> bool:
        return forced or schema.handle_index is not None

    decision: Any = SimpleNamespace(
        captures=captures,
        keeps_table=lambda name: name == NAME,
        keeps_schema_change=lambda change: change.schema is None or captures(change.schema),
    )
    log = LogPosition(Flavour.MYSQL, "server", "binlog.000001", 100, last_ts=100)
    state, warnings = BinlogState(log, started=True), list[str]()
    schema = parse_create("CREATE TABLE d.t (id int NOT NULL, PRIMARY KEY (id))")
    source.definition = schema
    state.put(replace(schema, table_id=state.take_id()).at(100), Stage.LOG)
    server: Any = source
    source.settings = SimpleNamespace(lower_case=False, kept=lambda name: name)  # type: ignore[attr-defined]
    source.renew_settings = lambda: None  # type: ignore[attr-defined]
    return (
        CapturedTables(state, server, decision, True, True, warn=warnings.append),
        state,
        warnings,
    )


@pytest.mark.parametrize("forced", [True, False])
@pytest.mark.parametrize("logged", [True, False])
def test_rows_that_are_not_delivered_any_more_are_named(
    source: Source, forced: bool, logged: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(captured_tables, "altered_since", lambda *args: False)
    book, state, warnings = book_of(source, forced)
    (table,) = state.tables.values()
    statement = "ALTER TABLE d.t DROP PRIMARY KEY"
    (change,) = plan_ddl(statement, "d", {NAME: table.schema}, lambda: 0)
    assert change.schema is not None
    source.definition = change.schema
    if logged:
        query = ev.Query("d", statement, 0)
        book.apply(LoggedStatement(query, Effects((change,)), 200))
    else:
        body = table_map([(3, b"")], {4: names("id")}, database="d")
        captured = book.captured(parse_table_map(body, Flavour.MYSQL), 200)
        assert (captured is not None) == forced
    told = [w for w in warnings if "d.t has no primary key and no unique key" in w]
    assert len(told) == (0 if forced else 1)
    assert bool(state.tables) == forced
