"""What an earlier try, a plan that was given up, or another changefeed has left behind."""

from __future__ import annotations

import threading
import time
from contextlib import closing

import pytest
from mysql_sink_kit import MySqlFeed, Scene

from patience import PATIENCE_S, until_it_fails
from rowferry.change.plan import Plan
from rowferry.change.position import PHYSICAL_SHIFT
from rowferry.control.operator.owners import Owners
from rowferry.errors import SchemaChangeRefused, SinkUnavailable, TargetWentBack
from rowferry.moment import watched

TABLE = "CREATE TABLE t (id int PRIMARY KEY, v int)"


@pytest.fixture
def feed(same_kind: Scene) -> MySqlFeed:
    """A feed that has delivered a table of two rows."""
    same_kind.both(TABLE)
    same_kind.sql("INSERT INTO t VALUES (1, 0), (2, 0)")
    found = same_kind.feed()
    found.catch_up()
    return found


def fails_behind_its_statement(feed: MySqlFeed) -> None:
    """Let the micro-batch with a statement fail when that was run, and nothing is noted yet."""
    done: list[str] = []

    def fail(name: str) -> None:
        if name == "ddl done downstream":
            done.append(name)
        elif name == "publish progress downstream" and done:
            raise SinkUnavailable("it went away behind the statement")

    with watched(fail):
        until_it_fails(feed, "it went away behind the statement")
    feed.faults.clear()


@pytest.mark.parametrize(
    ("statement", "table"),
    [
        ("TRUNCATE TABLE t", "t"),
        ("RENAME TABLE t TO t2", "t2"),
        ("ALTER TABLE t DROP COLUMN v", "t"),
    ],
)
def test_a_plan_is_given_up_behind_its_statement(
    same_kind: Scene, feed: MySqlFeed, statement: str, table: str
) -> None:
    """As where the sink gets another address: all of it is planned anew."""
    same_kind.sql("INSERT INTO t VALUES (3, 0)", "UPDATE t SET v = 1", statement)
    fails_behind_its_statement(feed)
    feed.run()
    feed.loop.replan("the sink was changed")
    feed.catch_up()
    same_kind.sql(f"INSERT INTO {table} (id) VALUES (9)")
    feed.catch_up()
    same_kind.assert_same(table)


def test_statements_of_another_changefeed_of_this_name(same_kind: Scene, feed: MySqlFeed) -> None:
    """It counted its micro-batches from 1, too, and was removed."""
    state = feed.store.state(feed.name)
    notes = f"{same_kind.meta}.rowferry_schema_changes"
    for number in range(1, state.micro_batch + 50):
        same_kind.target.execute(
            f"REPLACE INTO {notes} VALUES ('{feed.name}', {number}, 0, 7, '', 'done', '', '')"
        )
    same_kind.sql("TRUNCATE TABLE t", "INSERT INTO t VALUES (5, 5)")
    feed.catch_up()
    assert same_kind.assert_same("t") == 1
    feed.run()
    feed.catch_up()
    number = feed.store.state(feed.name).micro_batch
    left = same_kind.target.execute(f"SELECT COUNT(*) FROM {notes} WHERE micro_batch > {number}")
    assert int(str(left[0][0])) <= 1


@pytest.mark.parametrize("how", ["resumed", "updated"])
def test_a_statement_that_was_refused_and_made_by_hand(scene: Scene, how: str) -> None:
    """All rows before it were written: what it took away does not come back."""
    parts = "(PARTITION p0 VALUES LESS THAN (10), PARTITION p1 VALUES LESS THAN (20))"
    scene.sql(f"{TABLE} PARTITION BY RANGE (id) {parts}", "INSERT INTO t VALUES (1, 0)")
    scene.at_target(TABLE)
    feed = scene.feed()
    feed.catch_up()
    scene.sql("INSERT INTO t VALUES (2, 0), (11, 0)", "ALTER TABLE t TRUNCATE PARTITION p1")
    with pytest.raises(SchemaChangeRefused) as said:
        feed.catch_up()
    at = str(said.value).partition('skip-ddl = ["')[2].partition('"')[0]
    scene.at_target("DELETE FROM t WHERE id > 9")
    feed.config = f"[sink.mysql-config]\nskip-ddl = ['{at}']\n"
    if how == "updated":
        update(feed)
    feed.run()
    feed.catch_up()
    assert scene.assert_same("t") == 2


@pytest.mark.parametrize(
    ("statement", "table"),
    [("RENAME TABLE t TO t2", "t2"), ("ALTER TABLE t DROP COLUMN v", "t")],
)
def test_an_update_while_nobody_knows_whether_a_statement_was_run(
    same_kind: Scene, feed: MySqlFeed, statement: str, table: str
) -> None:
    """Its answer was lost: the rows before it have no place where it was."""
    feed.lose_answers_of_schema_changes()
    same_kind.sql("INSERT INTO t VALUES (3, 0)", "UPDATE t SET v = 1", statement)
    until_it_fails(feed, "the answer was lost")
    update(feed)
    feed.catch_up()
    same_kind.sql(f"INSERT INTO {table} (id) VALUES (9)")
    feed.catch_up()
    assert same_kind.assert_same(table) == 4


def update(feed: MySqlFeed) -> None:
    """Change the sink's settings, as an operator does while the feed is stopped."""
    feed.stop()
    record, flow = feed.store.feed(feed.name), feed.prepare().flow
    assert record is not None
    owners = Owners(feed.store, time.time)
    owners.discard_pending(record, flow, "the sink was changed", leaves_made=True)
    flow.sink.close()


def test_a_changefeed_that_is_made_again_meets_its_first_statement(scene: Scene) -> None:
    """It has the number that it had in the first one, and nothing of this one is there."""
    scene.both(TABLE, "CREATE TABLE u (id int PRIMARY KEY, v int)")
    time.sleep(0.01)
    clock = scene.source.execute("SELECT FLOOR(UNIX_TIMESTAMP(NOW(3)) * 1000)")[0][0]
    scene.sql("INSERT INTO t VALUES (1, 0)", "ALTER TABLE u ADD KEY (v)")
    scene.sql("INSERT INTO t VALUES (2, 0)")
    for _ in range(2):
        feed = scene.feed(source=f"?start-ts={int(str(clock)) << PHYSICAL_SHIFT}")
        feed.catch_up()
        assert scene.assert_same("t") == 2
        feed.stop()
        scene.at_target("TRUNCATE TABLE t")


def test_a_transaction_of_an_earlier_try_sets_nothing_back(
    same_kind: Scene, feed: MySqlFeed
) -> None:
    """It has read the fence, and writes when the next try has begun."""
    same_kind.sql("UPDATE t SET v = 1", "UPDATE t SET v = 2")
    fence = f"`{same_kind.meta}`.rowferry_fence"
    waiting = (
        "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE INFO LIKE "
        f"'INSERT INTO {fence}%'"
    )
    left: list[str] = []  # of the transaction: that it has begun
    late: list[threading.Thread] = []

    def write() -> None:
        with connection.cursor() as cursor:
            cursor.execute(f"UPDATE {same_kind.copy}.t SET v = 1")
            connection.commit()

    def write_when_waited_for() -> None:
        end = time.monotonic() + PATIENCE_S
        while same_kind.target.execute(waiting) != [("1",)] and time.monotonic() < end:
            time.sleep(0.01)
        write()

    def go_on(name: str) -> None:
        if name == "claim downstream" and left:
            left.clear()
            late.append(threading.Thread(target=write_when_waited_for))
            late[0].start()
        elif name == "publish progress downstream" and left:
            left.clear()
            write()

    def fail(plan: Plan) -> None:
        feed.runner.before = lambda plan: None
        connection.begin()
        with connection.cursor() as cursor:
            cursor.execute(f"SELECT epoch FROM {fence} LOCK IN SHARE MODE")
        left.append("begun")
        raise SinkUnavailable("the connection is lost")

    with closing(same_kind.target.connect()) as connection:
        feed.runner.before = fail
        with watched(go_on):
            feed.catch_up()
        for thread in late:
            thread.join()
    assert same_kind.assert_same("t") == 2
    assert late


def test_a_downstream_that_went_back_while_it_was_written_to(
    same_kind: Scene, feed: MySqlFeed
) -> None:
    """A replica takes the server's place before it has everything, and nobody is cut off."""
    fence = f"{same_kind.meta}.rowferry_fence"
    same_kind.target.execute(f"UPDATE {fence} SET micro_batch = micro_batch - 1")
    same_kind.sql("INSERT INTO t VALUES (3, 0)")
    with pytest.raises(TargetWentBack, match="another server took its place"):
        feed.catch_up()
