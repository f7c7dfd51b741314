"""What holds whatever happens: the fence, what was delivered, replays, other unique keys."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from postgresql_kit import Scene

from late_task import LateTask
from patience import until_it_fails
from rowferry.downstream.redo.apply import apply, find_log
from rowferry.errors import (
    Fenced,
    SinkUnavailable,
    SinkUnwritable,
    TargetLost,
    TargetUnfit,
    TargetWentBack,
)
from rowferry.flow.capture.binlog.decode import rows_events
from rowferry.flow.sink import packing
from rowferry.flow.sink.postgresql.transactions import MergeTransactions
from rowferry.flow.sink.sql.session import Tries
from rowferry.moment import watched
from rowferry.secrets.sources import NO_STORE
from rowferry.spark.job import InProcessRunner
from rowferry.spec.uri import Uri


def test_an_old_owner_writes_nothing_any_more(scene: Scene) -> None:
    scene.sql("CREATE TABLE t (id int PRIMARY KEY, n int)", "INSERT INTO t VALUES (1, 1)")
    feed = scene.feed()
    feed.catch_up()
    scene.sql("UPDATE t SET n = 2")

    def usurp(name: str) -> None:
        if name == "apply rows (PostgreSQL)":
            scene.pg("UPDATE rowferry.rowferry_fence SET epoch = epoch + 1")

    with watched(usurp), pytest.raises(Fenced, match="belongs to epoch 2"):
        feed.catch_up()
    assert scene.pg("SELECT id, n FROM $.t") == [(1, 1)]


def test_keys_trade_places_and_replays_meet_later_rows(each_kind: Scene) -> None:
    each_kind.sql(
        "CREATE TABLE t (id int PRIMARY KEY, u varchar(9) NOT NULL UNIQUE, n int, "
        "v int AS (n + 1) VIRTUAL, UNIQUE KEY (v))",
        "CREATE TABLE bare (n int, m int)",
        "INSERT INTO t (id, u, n) VALUES (1, 'a', 1), (2, 'b', 2), (3, 'c', 3)",
        "INSERT INTO bare VALUES (1, 1), (1, 1)",
    )
    feed = each_kind.feed(config="force-replicate = true")
    feed.catch_up()
    each_kind.sql(
        "BEGIN",
        "UPDATE t SET u = 'x' WHERE id = 1",
        "UPDATE t SET u = 'a' WHERE id = 2",
        "UPDATE t SET u = 'b' WHERE id = 1",
        "DELETE FROM t WHERE id = 3",
        "INSERT INTO t (id, u, n) VALUES (4, 'c', 4)",
        "UPDATE t SET u = 'A' WHERE id = 2",
        "INSERT INTO bare VALUES (2, 2), (NULL, 3)",
        "DELETE FROM bare WHERE n = 1 LIMIT 1",
        "COMMIT",
    )
    lost: list[str] = []

    def lose(name: str) -> None:
        """After all rows are there and before they are published, the process ends."""
        if name == "publish progress downstream" and not lost:
            lost.append(name)
            raise KeyboardInterrupt

    with watched(lose), pytest.raises(KeyboardInterrupt):
        feed.catch_up()
    # Whatever came later stands in the way of the replay.
    each_kind.pg("UPDATE $.t SET u = 'z' WHERE id = 1")
    each_kind.pg("INSERT INTO $.t VALUES (9, 'b', 9)")
    feed.stop()
    feed.catch_up()
    assert each_kind.pg("SELECT id, u FROM $.t ORDER BY id") == [(1, "b"), (2, "A"), (4, "c")]
    assert each_kind.pg("SELECT n, m FROM $.bare ORDER BY m") == [(1, 1), (2, 2), (None, 3)]


def test_a_replay_may_cut_packets_in_another_way(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of a table without a key are written once, whatever packet brings them."""
    scene.sql("CREATE TABLE bare (n int, i int)")
    feed = scene.feed("create-tables=true&max-txn-row=30", "force-replicate = true")
    feed.catch_up()
    whole = MergeTransactions.apply
    monkeypatch.setattr(rows_events, "_ROWS", 64)  # a packet is whole chunks
    for left in range(1, 10, 4):
        scene.sql(
            f"INSERT INTO bare VALUES {', '.join(f'({left}, {i})' for i in range(200))}",
            f"DELETE FROM bare WHERE n = {left} AND i >= 100",
        )
        turns = iter([*[True] * left, False])

        def fails(self: Any, *args: Any, turns: Iterator[bool] = turns) -> None:
            if not next(turns, True):
                monkeypatch.setattr(packing, "PACKET_BYTES", 1 << 20)
                raise SinkUnavailable("it went away between two packets")
            whole(self, *args)

        monkeypatch.setattr(packing, "PACKET_BYTES", 200)
        monkeypatch.setattr(MergeTransactions, "apply", fails)
        feed.catch_up()
        assert sum("between two packets" in str(fault) for fault in feed.faults) == 1
        feed.faults.clear()
        copied = scene.pg(f"SELECT i FROM $.bare WHERE n = {left} ORDER BY i")
        assert copied == [(i,) for i in range(100)]


def test_a_task_that_was_given_up_writes_no_row_without_a_key_twice(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is still at work, and faster than the one in its place."""
    scene.sql("CREATE TABLE bare (n int)")
    feed = scene.feed(config="force-replicate = true")
    feed.catch_up()
    scene.sql("INSERT INTO bare VALUES (1), (2)")
    whole = MergeTransactions.apply
    calls: list[str] = []

    def twice(self: Any, *args: Any) -> None:
        calls.append("apply")
        if len(calls) == 1:
            whole(self, *args)
            monkeypatch.setattr(Tries, "goes_on", lambda *args: False)  # it would end the same
        whole(self, *args)

    monkeypatch.setattr(MergeTransactions, "apply", twice)
    until_it_fails(feed, "another task writes them")
    feed.catch_up()
    assert scene.pg("SELECT n FROM $.bare ORDER BY n") == [(1,), (2,)]


def test_a_task_of_a_published_micro_batch_sets_nothing_back(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it brings is older than what is there; of rows without a key no note is left."""
    scene.sql("CREATE TABLE bare (n int)", "CREATE TABLE t (id int PRIMARY KEY, n int)")
    scene.sql("INSERT INTO t VALUES (1, 1)")
    feed = scene.feed(config="force-replicate = true")
    feed.catch_up()
    whole = InProcessRunner.run
    with LateTask("apply rows (PostgreSQL)") as late:

        def run(self: InProcessRunner, *work: Any) -> Any:
            late(lambda: whole(self, *work))
            return whole(self, *work)

        scene.sql("INSERT INTO bare VALUES (7)", "UPDATE t SET n = 2")
        monkeypatch.setattr(InProcessRunner, "run", run)
        with watched(late.holds):
            feed.catch_up()
            for value in (3, 4):
                scene.sql(f"UPDATE t SET n = {value}")
                feed.catch_up()
            assert "since this task began" in str(late.go_on())
    assert scene.pg("SELECT n FROM $.bare") == [(7,)]
    assert scene.pg("SELECT n FROM $.t") == [(4,)]


def test_rows_without_a_key_are_found_beside_a_column_that_is_computed(scene: Scene) -> None:
    """PostgreSQL may compute another value than the source has."""
    scene.sql("CREATE TABLE bare (n int, twice decimal(9,2) AS (n * 2) STORED)")
    scene.pg("CREATE SCHEMA $")
    scene.pg("CREATE TABLE $.bare (n int, twice numeric GENERATED ALWAYS AS (n * 2) STORED)")
    feed = scene.feed("", "force-replicate = true")
    feed.catch_up()
    scene.sql("INSERT INTO bare (n) VALUES (1), (1), (2)")
    feed.catch_up()
    scene.sql("DELETE FROM bare WHERE n = 1 LIMIT 1", "UPDATE bare SET n = 3 WHERE n = 2")
    feed.catch_up()
    assert scene.pg("SELECT n, twice FROM $.bare ORDER BY n") == [(1, 2), (3, 6)]


def test_what_only_the_downstream_has_noted_is_not_written_twice(
    scene: Scene, tmp_path: Path
) -> None:
    """Neither by the next process, nor by one that goes on behind `redo apply`."""
    scene.sql("CREATE TABLE bare (n int)", "INSERT INTO bare VALUES (0)")
    storage = f"file://{tmp_path}/redo"
    redo = f"[consistent]\nlevel = 'eventual'\nstorage = '{storage}'"
    feed = scene.feed(config=f"force-replicate = true\n{redo}")
    feed.catch_up()
    for number, last in enumerate(("publish progress", "kept in redo log"), 1):
        scene.sql(f"INSERT INTO bare VALUES ({number}), ({number})")

        def end(name: str, last: str = last) -> None:
            if name == last:
                raise KeyboardInterrupt

        with watched(end), pytest.raises(KeyboardInterrupt):
            feed.catch_up()
        if last != "publish progress":
            log, state = find_log(Uri.parse(storage, "storage"), "")
            assert apply(log, state, scene.postgres.url(scene.database), NO_STORE).changes > 0
        feed.run()
        feed.catch_up()
    assert scene.pg("SELECT n FROM $.bare ORDER BY n") == [(0,), (1,), (1,), (2,), (2,)]


def test_a_plan_is_given_up_behind_its_statement(scene: Scene) -> None:
    """All of it is planned anew: rows that were truncated do not come back."""
    scene.sql("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    feed = scene.feed()
    feed.catch_up()
    scene.sql("INSERT INTO t VALUES (2)", "TRUNCATE TABLE t")
    done: list[str] = []

    def fail(name: str) -> None:
        if name == "ddl done downstream (PostgreSQL)":
            done.append(name)
        elif name == "publish progress downstream" and done:
            raise SinkUnavailable("it went away behind the statement")

    with watched(fail):
        until_it_fails(feed, "it went away behind the statement")
    feed.update(feed.query)
    feed.catch_up()
    scene.sql("INSERT INTO t VALUES (3)")
    feed.catch_up()
    assert scene.pg("SELECT id FROM $.t") == [(3,)]


def test_a_transaction_of_a_plan_that_is_given_up_sets_nothing_back(scene: Scene) -> None:
    """Its task has failed, and it has read the fence: it ends before the plan in its place runs."""
    scene.sql("CREATE TABLE t (id int PRIMARY KEY, n int)", "INSERT INTO t VALUES (1, 0)")
    feed = scene.feed()
    feed.catch_up()
    scene.sql("UPDATE t SET n = 1", "UPDATE t SET n = 2")
    waiting = (
        "SELECT count(*) > 0 FROM pg_stat_activity WHERE datname = current_database() AND "
        "wait_event_type = 'Lock' AND query LIKE 'INSERT INTO %rowferry_fence%'"
    )
    under_way: list[str] = []
    was_waited_for: list[bool] = []
    given_up = threading.Event()

    def fail(name: str) -> None:
        if name == "run job" and not under_way:
            under_way.append(name)
            connection.execute("BEGIN")
            connection.execute("SELECT epoch FROM rowferry.rowferry_fence FOR SHARE")
            raise SinkUnavailable("the connection is lost")

    def write_late() -> None:
        while scene.pg(waiting) != [(True,)] and not given_up.wait(0.01):
            pass
        was_waited_for.append(not given_up.is_set())
        connection.execute(f"UPDATE {scene.database}.t SET n = 1".encode())
        connection.execute("COMMIT")

    with closing(scene.postgres.connect(scene.database)) as connection:
        with watched(fail):
            until_it_fails(feed, "the connection is lost")
        late = threading.Thread(target=write_late)
        late.start()
        try:
            feed.give_up_plan("the source moved")
        finally:
            given_up.set()
            late.join()
    feed.catch_up()
    assert was_waited_for == [True]
    assert scene.pg("SELECT id, n FROM $.t") == [(1, 2)]


def test_what_was_delivered_must_be_there(scene: Scene) -> None:
    scene.sql("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    feed = scene.feed()
    feed.catch_up()
    feed.stop()
    scene.pg("ALTER TABLE $.t RENAME TO away")
    with pytest.raises(TargetLost, match=r"\.t is gone, to which this changefeed has delivered"):
        scene.sql("INSERT INTO t VALUES (2)")
        feed.catch_up()
    scene.pg("ALTER TABLE $.away RENAME TO t")
    feed.catch_up()
    assert scene.pg("SELECT id FROM $.t ORDER BY id") == [(1,), (2,)]
    feed.stop()
    scene.pg("UPDATE rowferry.rowferry_fence SET commit_ts = 1, micro_batch = 1")
    with pytest.raises(TargetWentBack):
        feed.catch_up()
    feed.stop()
    scene.pg("DROP TABLE rowferry.rowferry_delivered")
    with pytest.raises(TargetLost, match="rowferry_delivered"):
        feed.catch_up()


@pytest.mark.parametrize(
    ("made", "words"),
    [
        ("", "has no table"),
        ("id int PRIMARY KEY, a text", "has no column 'n'"),
        ("id int PRIMARY KEY, n smallint", "as smallint, which cannot hold the source's int"),
        ("id int, n int", r"no primary or unique key \(id\)"),
        ("id int PRIMARY KEY, n int UNIQUE", "which the source lacks"),
        ("id int PRIMARY KEY, n int, more int NOT NULL", "needs a value for column 'more'"),
    ],
)
def test_a_table_that_does_not_fit_is_refused_at_once(scene: Scene, made: str, words: str) -> None:
    scene.sql("CREATE TABLE t (id int PRIMARY KEY, n int)")
    scene.pg("CREATE SCHEMA $")
    if made:
        scene.pg(f"CREATE TABLE $.t ({made})")
    with pytest.raises(TargetUnfit, match=words):
        scene.feed(query="").run()


def test_a_login_that_lacks_something_is_refused_by_name(scene: Scene) -> None:
    scene.sql("CREATE TABLE t (id int PRIMARY KEY)")
    feed: Any = scene.feed()
    url = scene.postgres.url(scene.database)
    scene.postgres.url = lambda database: url.replace("rowferry:", "rowferry:not-")  # type: ignore[method-assign]
    try:
        with pytest.raises(SinkUnwritable, match="password authentication failed") as raised:
            feed.run()
        assert "not-" not in str(raised.value)
        scene.postgres.url = lambda database: url + "_gone"  # type: ignore[method-assign]
        with pytest.raises(SinkUnwritable, match="does not exist"):
            feed.run()
    finally:
        del scene.postgres.url  # type: ignore[misc]


def test_rows_that_a_policy_hides_are_not_passed_over(scene: Scene) -> None:
    """A DELETE would find none of them, and say nothing."""
    scene.sql("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1), (2)")
    feed = scene.feed()
    feed.catch_up()
    feed.stop()
    role, url = f"{scene.database}_writer", scene.postgres.url(scene.database)
    rights = "SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA"
    scene.pg(f"CREATE ROLE {role} LOGIN PASSWORD 'aPassword77'")
    try:
        scene.pg(f"GRANT USAGE ON SCHEMA $, rowferry TO {role}")
        scene.pg(f"GRANT {rights} $, rowferry TO {role}")
        scene.pg("CREATE POLICY few ON $.t USING (id < 2)")
        scene.pg("ALTER TABLE $.t ENABLE ROW LEVEL SECURITY")
        scene.sql("DELETE FROM t")
        place = url.rpartition("@")[2]
        scene.postgres.url = lambda database: f"postgresql://{role}:aPassword77@{place}"  # type: ignore[method-assign]
        with pytest.raises(SinkUnwritable, match="row-level security policy"):
            feed.catch_up()
        assert scene.pg("SELECT id FROM $.t ORDER BY id") == [(1,), (2,)]
        scene.pg("ALTER TABLE $.t DISABLE ROW LEVEL SECURITY")
        feed.catch_up()
        assert scene.pg("SELECT id FROM $.t") == []
    finally:
        vars(scene.postgres).pop("url", None)
        feed.stop()
        scene.pg(f"DROP OWNED BY {role}")
        scene.pg(f"DROP ROLE {role}")


def test_the_redo_log_completes_what_was_begun(scene: Scene, tmp_path: Path) -> None:
    """The source is lost when the micro-batch is kept, and again when its rows are there."""
    scene.sql("CREATE TABLE t (id int PRIMARY KEY, n int)", "INSERT INTO t VALUES (1, 1)")
    storage = f"file://{tmp_path}/redo"
    feed = scene.feed(config=f"[consistent]\nlevel = 'eventual'\nstorage = '{storage}'")
    feed.catch_up()
    sink = f"{scene.postgres.url(scene.database)}?{feed.query}"
    for number, last in enumerate(("kept in redo log", "publish progress downstream"), 2):
        # One transaction: of two the micro-batch may have only the first.
        changes = f"INSERT INTO t VALUES ({number}, 1)", f"UPDATE t SET n = {number} WHERE id = 1"
        scene.sql("BEGIN", *changes, "COMMIT")

        def lose(name: str, last: str = last) -> None:
            if name == last:
                raise KeyboardInterrupt

        with watched(lose), pytest.raises(KeyboardInterrupt):
            feed.catch_up()
        log, state = find_log(Uri.parse(storage, "storage"), "")
        assert state.resolved_ts > state.checkpoint_ts
        assert apply(log, state, sink, NO_STORE).changes > 0
        copied = scene.pg("SELECT id, n FROM $.t ORDER BY id")
        assert copied == [(1, number), *((i, 1) for i in range(2, number + 1))]
        feed.run()
        feed.catch_up()
