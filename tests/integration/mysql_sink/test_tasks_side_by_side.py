"""A task that Spark has given up is still at work beside the one in its place."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace

import pytest
from mysql_sink_kit import MySqlFeed, Runner, Scene

from late_task import LateTask, Task
from patience import PATIENCE_S
from rowferry.change.plan import Plan, Receipt, TableSlice
from rowferry.change.table import TableSchema
from rowferry.errors import RowferryError, SinkUnavailable
from rowferry.flow.sink.contract import Owner
from rowferry.flow.sink.mysql import lanes
from rowferry.flow.sink.mysql.ledger import Ledger
from rowferry.flow.sink.mysql.session import connect
from rowferry.flow.sink.sql.ledger import LaneNote, LanePlace
from rowferry.moment import watched
from rowferry.spark.job import InProcessRunner
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.testing.servers import Server

ANOTHER = "another task writes them"
EXACT = "exactly-once=true"


class Tasks(Runner):
    """Hands the task of each plan that has rows to somebody else, too, before it is run."""

    def __init__(self, given_up: Callable[[Task], None]) -> None:
        super().__init__()
        self.given_up = given_up

    def run(
        self, spec: ChangefeedSpec, plan: Plan, tables: Mapping[TableSlice, TableSchema]
    ) -> list[Receipt]:
        if plan.stretch.segments:
            self.given_up(lambda: InProcessRunner().run(spec, plan, tables))
        return super().run(spec, plan, tables)


def beside_another(feed: MySqlFeed, at: str, turn: int) -> list[str]:
    """Let all of a task's work be done at a moment of another one; return when it was."""
    tasks: list[Task] = []
    feed.runner = Tasks(tasks.append)
    feed.run()
    passed: list[str] = []
    done: list[str] = []

    def faster(name: str) -> None:
        if name == at and tasks and not done:
            passed.append(name)
            if len(passed) == turn:
                done.append(name)
                tasks[-1]()

    with watched(faster):
        feed.catch_up()
    return done


@pytest.mark.parametrize(
    ("query", "at", "turn"),
    [
        ("", "apply rows", 1),
        ("", "apply rows", 3),
        ("&multi-stmt-enable=false", "begin downstream", 1),
        ("&transaction-atomicity=table", "apply rows", 1),
        ("&transaction-atomicity=table", "apply rows", 2),
        ("&transaction-atomicity=global", "commit held rows", 1),
    ],
)
def test_a_task_that_was_given_up_writes_no_row_twice(
    same_kind: Scene, monkeypatch: pytest.MonkeyPatch, query: str, at: str, turn: int
) -> None:
    """It is faster than the one in its place, which has no key to find the rows by."""
    if at == "commit held rows":
        monkeypatch.setattr(lanes, "_HELD_BYTES", 1)
    same_kind.both("CREATE TABLE bare (n int)", "CREATE TABLE t (id int PRIMARY KEY, n int)")
    feed = same_kind.feed(f"exactly-once=true&max-txn-row=3{query}", "force-replicate = true")
    feed.catch_up()
    same_kind.sql(
        *(f"INSERT INTO bare VALUES {', '.join(['(1)'] * 3)}" for _ in range(4)),
        # An open transaction would have the other task wait for the row.
        *["INSERT INTO t VALUES (1, 1)"] * (at != "commit held rows"),
    )
    assert beside_another(feed, at, turn) == [at]
    assert same_kind.assert_same("bare", "t") >= 12
    assert [fault for fault in feed.faults if ANOTHER in str(fault)]
    same_kind.sql("DELETE FROM bare LIMIT 1", "UPDATE t SET n = 3")
    feed.catch_up()
    assert same_kind.assert_same("bare", "t") >= 11


@pytest.fixture
def late() -> Iterator[LateTask]:
    """A task that stands still from when it looked around until it is let go."""
    with LateTask("apply rows") as task:
        yield task


@pytest.mark.parametrize("query", ["", "multi-stmt-enable=false", EXACT])
def test_a_task_of_a_published_micro_batch_sets_nothing_back(
    same_kind: Scene, late: LateTask, query: str
) -> None:
    """What it brings is older than what is there; of rows without a key no note is left."""
    same_kind.both("CREATE TABLE bare (n int)", "CREATE TABLE t (id int PRIMARY KEY, n int)")
    same_kind.sql("INSERT INTO t VALUES (1, 1)")
    feed = same_kind.feed(query, "force-replicate = true")
    feed.catch_up()
    feed.runner = Tasks(late)
    feed.run()
    same_kind.sql("UPDATE t SET n = 2", *["INSERT INTO bare VALUES (7)"] * (query == EXACT))
    with watched(late.holds):
        feed.catch_up()
        for value in (3, 4):
            same_kind.sql(f"UPDATE t SET n = {value}")
            feed.catch_up()
        assert "since this task began" in str(late.go_on())
    same_kind.assert_same("bare", "t")


def test_rows_whose_answer_was_lost_are_found_noted(same_kind: Scene) -> None:
    """The task that comes next does not take its own rows for another one's."""
    same_kind.both("CREATE TABLE bare (n int)")
    feed = same_kind.feed("exactly-once=true&max-txn-row=1", "force-replicate = true")
    feed.catch_up()
    same_kind.sql("INSERT INTO bare VALUES (1), (1), (2)")
    lost: list[str] = []

    def lose(name: str) -> None:
        if name == "rows applied" and len(lost) < 2:
            lost.append(name)
            raise SinkUnavailable("the answer was lost")

    with watched(lose):
        feed.catch_up()
    assert len(lost) == 2 and all("answer was lost" in str(fault) for fault in feed.faults)
    assert same_kind.assert_same("bare") == 3


@pytest.mark.parametrize("joined", [True, False])
@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK"])
def test_two_transactions_of_a_lane_at_once(
    same_kind: Scene, end: str, is_first: bool, joined: bool
) -> None:
    assert_one_is_refused(same_kind.target, same_kind.copy, end, is_first, joined)


def assert_one_is_refused(
    server: Server, database: str, end: str, is_first: bool, joined: bool
) -> None:
    """Let a transaction begin while another one of its lane is about to end, in this way."""
    login = replace(server.login, ssl_mode="disabled")
    ledger, rows = Ledger(f"{database}_meta", "feed"), f"`{database}`.bare"
    insert = f"INSERT INTO {rows} VALUES (1)".encode()
    ended: list[BaseException | None] = []
    with (
        closing(connect(login, for_rows=True)) as one,
        closing(connect(login, for_rows=True)) as other,
    ):
        ledger.claim(one, Owner("feed", 7))
        one.run(f"CREATE TABLE {rows} (n int)".encode())
        since = None if is_first else LanePlace(1, 0, 0, 5)
        if since is not None:
            one.run(*ledger.note_delivered(LaneNote("lane", since, None)))
        note = LaneNote("lane", LanePlace(1, 0, 0, 10), since)
        ledger.begin(one, 7)
        one.run(insert, *ledger.note_delivered(note))

        def run() -> None:
            try:
                ledger.within(other, 7, 1, [insert], joined, note)
            except RowferryError as err:
                ended.append(err)
            else:
                ended.append(None)

        thread = threading.Thread(target=run)
        thread.start()
        thread.join(1.0)
        assert ended == []  # it waits
        one.run(end.encode())
        thread.join(PATIENCE_S)
        refused = end == "COMMIT"
        assert [ANOTHER in str(error) for error in ended] == [refused]
        assert ledger.delivered(one) == {"lane": note.place}
        assert one.ask(f"SELECT COUNT(*) FROM {rows}") == [("1",)]
