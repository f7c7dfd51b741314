"""What a process may do downstream that was replaced by another one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import Event
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest

from rowferry.change.chunk import DdlKind, SchemaChange
from rowferry.change.event_counts import EventCounts
from rowferry.change.own_tables import DELIVERED, FENCE, SCHEMA_CHANGES
from rowferry.change.plan import Plan, Stretch
from rowferry.change.table import TableId
from rowferry.errors import Fenced, SinkUnavailable
from rowferry.flow.assemble import assemble
from rowferry.flow.sink.contract import Owner
from rowferry.flow.sink.postgresql.ledger import DEFINITIONS
from rowferry.flow.sink.postgresql.session import connect
from rowferry.flow.sink.postgresql.transactions import MergeTransactions
from rowferry.flow.sink.sql.ledger import LaneNote, LanePlace
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.uri import Uri


class Downstream:
    """Sessions of a downstream whose fence has an epoch."""

    place = "u@h/d"

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.number = 0  # of the micro-batch that is published
        self.changes = 1  # rows by each statement
        self.lanes: list[tuple[Any, ...]] = []
        self.counts = EventCounts()
        self.ran: list[str] = []

    def begin(self, sql: str) -> list[tuple[Any, ...]]:
        return [(self.epoch, 0, self.number)]

    def ask(self, sql: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        if "pg_class" in sql:
            return [(name,) for name in (DEFINITIONS, DELIVERED, FENCE, SCHEMA_CHANGES)]
        if "packet_rows" in sql:
            return self.lanes
        self.ran.append(sql)
        return [(self.epoch, 0, 0)]

    def run(self, *statements: str) -> None:
        self.ran += statements

    def changed(self, sql: str) -> int:
        self.ran.append(sql)
        return self.changes

    def rollback(self) -> None:
        self.ran.append("ROLLBACK")

    def close(self) -> None:
        pass

    @contextmanager
    def one(self) -> Iterator[Downstream]:
        yield self


def fenced(owner: Owner) -> tuple[Any, Downstream]:
    """Return a sink of an owner, whose downstream has the epoch 9."""
    source, uri = Uri.parse("range://h:1", "source"), Uri.parse("postgresql://u@h/d", "sink")
    sink: Any = assemble(ChangefeedSpec("feed", source, uri, {})).sink
    sink._sessions, sink._owner = downstream, _ = Downstream(9), owner
    sink.session_of_its_own = lambda: downstream
    return sink, downstream


def raised(statement: str) -> bool:
    """Return whether a statement waits until no transaction is under way."""
    return "DO UPDATE SET epoch = " in statement


def test_who_was_replaced_takes_no_notes_away() -> None:
    """Without them, a replay by the one who writes now would write rows twice."""
    plan = Plan(7, 1, 0, Stretch((), (), {}))
    sink, downstream = fenced(Owner("feed", 8))
    with pytest.raises(Fenced):
        sink.discard(plan)
    assert len(downstream.ran) == 1 and raised(downstream.ran[0])
    sink._claim = lambda: None  # somebody is faster
    with pytest.raises(Fenced):
        sink.discard(plan)
    assert downstream.ran[1:] == ["ROLLBACK"]


def test_a_plan_is_given_up_when_none_of_its_transactions_is_under_way() -> None:
    """One would note rows of a table without a key that the plan in its place has yet to write."""
    sink, downstream = fenced(Owner("feed", 9))
    assert sink.discard(Plan(7, 1, 0, Stretch((), (), {}))) is True
    assert raised(downstream.ran[0])
    assert downstream.ran[1:] == [sink._ledger.forget_delivered(), "COMMIT"]


def test_a_plan_that_is_given_up_leaves_only_what_it_has_made() -> None:
    """A plan in its place has the same number and may have the same statement, but other rows."""
    sink, downstream = fenced(Owner("feed", 9))
    change = SchemaChange(5, DdlKind.TRUNCATE_TABLE, "TRUNCATE TABLE t", TableId("shop", "t"))
    assert sink.discard(Plan(7, 1, 0, Stretch((), (change,), {}))) is True
    assert sink._ledger.forget_begun(7) in downstream.ran
    assert "micro_batch = 7 AND ordinal = -1" in downstream.ran[2]


def test_what_another_life_has_begun_is_forgotten() -> None:
    """It published nothing, so that its first statement has this one's place: not its rows."""
    sink, downstream = fenced(Owner("feed", 9))
    sink._forget_notes()
    assert sink._ledger.forget_begun(1) in downstream.ran
    assert sink._ledger.forget_changes(1) in downstream.ran and downstream.ran[-1] == "COMMIT"


@pytest.mark.parametrize("continues", [True, False])
def test_what_was_made_before_a_reset_is_forgotten(continues: bool) -> None:
    """Its plan was given up by the reset; its rows, and those before them, are wanted again."""
    sink, downstream = fenced(Owner("feed", 9, micro_batch=5, continues=continues))
    sink._forget_notes()
    assert sink._ledger.forget_changes(6 if continues else 5) in downstream.ran


def test_rows_without_a_key_are_noted_only_behind_those_that_were_known() -> None:
    """Beside a task that Spark has given up and that is still at work, they would come twice."""
    sink, _ = fenced(Owner("feed", 9))
    place, since = LanePlace(7, 3, 0, 20), LanePlace(7, 3, 0, 10)
    first = sink._ledger.note_delivered(LaneNote("shop.t/0", place, None))
    assert first.startswith("INSERT INTO") and first.endswith("DO NOTHING")
    later = sink._ledger.note_delivered(LaneNote("shop.t/0", place, since))
    assert later.endswith("(micro_batch, segment, packet, packet_rows) = (7, 3, 0, 10)")


def test_who_finds_rows_without_a_key_written_gives_way() -> None:
    sink, downstream = fenced(Owner("feed", 9))
    transactions = MergeTransactions(sink._ledger, sink._sessions)
    stop, note = Event(), LaneNote("shop.t/0", LanePlace(7, 3, 0, 20), None)
    text = sink._ledger.note_delivered(note)
    transactions.apply([], 9, stop, note)
    assert downstream.ran == [text, "COMMIT"]
    downstream.ran.clear()
    downstream.changes = 0
    stop.set()  # nobody waits for another try
    with pytest.raises(SinkUnavailable, match="was taken back"):  # by who has discarded the plan
        transactions.apply([], 9, stop, note)
    assert downstream.ran == [text, "ROLLBACK"]
    downstream.ran.clear()
    downstream.lanes = [("shop.t/0", 7, 3, 0, 15)]
    with pytest.raises(SinkUnavailable, match="another task writes them"):
        transactions.apply([], 9, stop, note)
    assert downstream.ran == [text, "ROLLBACK"]


def test_a_task_whose_micro_batch_was_published_writes_no_more() -> None:
    """What it brings is older than what is there."""
    sink, downstream = fenced(Owner("feed", 9))
    MergeTransactions(sink._ledger, sink._sessions, since=0).apply([], 9, Event())
    downstream.number = 8
    with pytest.raises(SinkUnavailable, match="published micro-batch 8 since this task began"):
        MergeTransactions(sink._ledger, sink._sessions, since=7).apply([], 9, Event())
    MergeTransactions(sink._ledger, sink._sessions, since=8).apply([], 9, Event())


@pytest.fixture
def settings(monkeypatch: pytest.MonkeyPatch) -> Callable[[float | None], str]:
    """Return how a session begins that waits so long for a statement."""
    ran: list[bytes] = []
    server = SimpleNamespace(
        closed=False,
        info=SimpleNamespace(server_version=150_000, parameter_status=lambda name: "UTF8"),
        execute=lambda statement, prepare: ran.append(statement),
    )
    monkeypatch.setattr(psycopg, "connect", lambda **how: server)

    def begin(read_s: float | None) -> str:
        sink, _ = fenced(Owner("feed", 9))
        connect(sink._settings.login, read_s=read_s)
        return ran[-1].decode()

    return begin


def test_a_schema_change_may_take_longer_than_a_server_can_be_told(
    settings: Callable[[float | None], str],
) -> None:
    """It counts milliseconds, up to 24 days, and refuses a larger number."""
    assert settings(30 * 86400).endswith("SET statement_timeout = 2147483647")


def test_no_setting_of_a_role_or_database_lets_rows_be_lost(
    settings: Callable[[float | None], str],
) -> None:
    """A DELETE passes rows over that a policy hides; a COMMIT may wait for no disk."""
    statements = settings(None).split("; ")
    assert "SET row_security = off" in statements
    assert (
        "SELECT set_config('synchronous_commit', 'on', false) "
        "WHERE current_setting('synchronous_commit') = 'off'" in statements
    )
