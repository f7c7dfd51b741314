"""What is gone downstream, where this changefeed has delivered, is never made again in silence."""

from __future__ import annotations

import pytest
from mysql_sink_kit import MySqlFeed, Scene

from patience import until_it_fails
from rowferry.control.lifecycle import Verb
from rowferry.control.operator.operations import Operations
from rowferry.errors import (
    RowferryError,
    RowRejected,
    SinkUnavailable,
    SourceUnavailable,
    TargetLost,
    TargetUnfit,
    TargetWentBack,
    Verdict,
)

MADE = "create-tables=true"
TABLES = (
    "CREATE TABLE t (id int PRIMARY KEY, n int)",
    "CREATE TABLE quiet (id int PRIMARY KEY)",
    "INSERT INTO t VALUES (1, 1), (2, 2)",
    "INSERT INTO quiet VALUES (1)",
)


def stopped(feed: MySqlFeed, words: str, error: type[RowferryError] = TargetLost) -> None:
    """A run, and another one after a resume, end with this error."""
    for _ in range(2):
        feed.run()
        with pytest.raises(error, match=words) as said:
            feed.catch_up()
        assert said.value.verdict is Verdict.STOP


def reset(feed: MySqlFeed) -> None:
    """Do what the error says: `rowferry changefeed reset --snapshot`."""
    feed.stop()
    feed.store.move(feed.name, Verb.PAUSE)
    Operations(feed.store).reset(feed.name, snapshot=True)
    feed.store.move(feed.name, Verb.RESUME)
    feed.run()


@pytest.mark.parametrize("query", [MADE, ""])
def test_a_table_that_is_gone_after_a_pause(same_kind: Scene, query: str) -> None:
    """Also one that gets no new rows; the cure in the error's words brings all rows back."""
    same_kind.sql(*TABLES)
    if not query:
        same_kind.at_target(*TABLES[:2])
    feed = same_kind.feed(query)
    feed.catch_up()
    same_kind.at_target("DROP TABLE quiet")
    same_kind.sql("INSERT INTO t VALUES (3, 3)")
    stopped(
        feed, rf"table {same_kind.copy}\.quiet is gone, to which .*restore it.*reset --snapshot"
    )
    assert same_kind.target.execute(f"SHOW TABLES FROM {same_kind.copy}") == [("t",)]
    if not query:
        same_kind.at_target(TABLES[1])
    reset(feed)
    feed.catch_up()
    assert same_kind.assert_same("t", "quiet") == 4


def test_a_table_or_database_that_goes_while_it_runs(scene: Scene) -> None:
    scene.sql(*TABLES)
    feed = scene.feed(MADE)
    feed.catch_up()
    scene.at_target("DROP TABLE t")
    scene.sql("INSERT INTO t VALUES (3, 3)")
    with pytest.raises(TargetLost, match=rf"table {scene.copy}\.t: .*it was there before: restore"):
        feed.catch_up()
    stopped(feed, rf"{scene.copy}\.t: .*it was there before")  # its plan is carried out again
    reset(feed)
    feed.catch_up()
    assert scene.assert_same("t", "quiet") == 4
    # A schema change of a table that is gone is no reason to skip the statement.
    scene.at_target("DROP TABLE t")
    scene.sql("ALTER TABLE t ADD COLUMN m int")
    with pytest.raises(TargetLost, match=rf"table {scene.copy}\.t is gone"):
        feed.catch_up()
    reset(feed)
    feed.catch_up()
    assert scene.assert_same("t", "quiet") == 4
    scene.target.execute(f"DROP DATABASE {scene.copy}")
    stopped(feed, rf"database {scene.copy} is gone, with table {scene.copy}\.quiet, {scene.copy}.t")
    reset(feed)
    feed.catch_up()
    assert scene.assert_same("t", "quiet") == 4


def test_a_table_restored_as_it_was(scene: Scene) -> None:
    scene.sql(*TABLES)
    feed = scene.feed(MADE)
    feed.catch_up()
    scene.at_target("RENAME TABLE t TO hidden")
    stopped(feed, r"\.t is gone")
    scene.at_target("RENAME TABLE hidden TO t")
    scene.sql("UPDATE t SET n = 7")
    feed.run()
    feed.catch_up()
    assert scene.assert_same("t", "quiet") == 3


def test_another_way_to_begin_anew_is_none(scene: Scene) -> None:
    """A reset to a place in the log brings no old rows back."""
    scene.sql(*TABLES)
    feed = scene.feed(MADE)
    feed.catch_up()
    reached = feed.store.state(feed.name).watermark
    scene.at_target("DROP TABLE quiet")
    feed.stop()
    scene.sql("INSERT INTO quiet VALUES (2)")
    feed.store.move(feed.name, Verb.PAUSE)
    moved = Operations(feed.store).reset(feed.name, commit_ts=reached)
    begins = dict(moved.spec.source.parameters)
    assert begins["start-ts"] == str(reached) and begins["start-gtid"]  # it stood just there
    feed.source = "?" + "&".join(f"{key}={value}" for key, value in begins.items())
    feed.store.move(feed.name, Verb.RESUME)
    stopped(feed, r"\.quiet is gone")


def test_tables_that_may_be_gone(scene: Scene) -> None:
    """Dropped or renamed at the source, left out of the filter, or never written."""
    scene.sql(
        *TABLES,
        "CREATE TABLE old (id int PRIMARY KEY)",
        "CREATE TABLE away (id int PRIMARY KEY)",
        "INSERT INTO old VALUES (1)",
        "INSERT INTO away VALUES (1)",
    )
    feed = scene.feed(MADE)
    feed.catch_up()
    scene.sql("DROP TABLE old", "RENAME TABLE away TO back")
    feed.catch_up()
    feed.run()
    feed.catch_up()
    scene.sql("CREATE TABLE old (id int PRIMARY KEY)", "INSERT INTO old VALUES (5)")
    feed.catch_up()
    assert scene.assert_same("old", "back", "t", "quiet") == 5
    # What is left out may be dropped; it comes back as a new table does.
    every, feed.rules = feed.rules, f"['{scene.database}.*', '!{scene.database}.quiet']"
    scene.at_target("DROP TABLE quiet")
    feed.run()
    feed.catch_up()
    feed.rules = every
    feed.run()
    feed.catch_up()
    assert scene.assert_same("quiet") == 1


def test_a_dropped_table_whose_plan_was_not_published(scene: Scene) -> None:
    """It is gone by our own doing, though the meta database does not know yet."""
    scene.sql(*TABLES)
    feed = scene.feed(MADE)
    feed.catch_up()
    scene.sql("INSERT INTO t VALUES (3, 3)", "DROP TABLE quiet")
    whole = feed.store.publish

    def lost(*args: object) -> None:
        raise SourceUnavailable("the process ends here")

    feed.store.publish = lost  # type: ignore[method-assign]
    while scene.target.execute(f"SHOW TABLES FROM {scene.copy} LIKE 'quiet'"):
        feed.step()
    feed.store.publish = whole  # type: ignore[method-assign]
    feed.run()
    pending = feed.store.pending(feed.name)
    assert pending is not None
    feed.loop.replan("the source moved")
    feed.catch_up()
    feed.run()
    feed.catch_up()
    assert scene.assert_same("t") == 3


def test_a_feed_from_before_this_was_remembered(scene: Scene) -> None:
    """What is not known is not missed, and is known from the next rows on."""
    scene.sql(*TABLES)
    feed = scene.feed(MADE)
    feed.catch_up()
    with feed.store.database.engine.begin() as connection:  # type: ignore[attr-defined]
        connection.exec_driver_sql("UPDATE changefeeds SET sink_state = NULL")
    scene.sql("INSERT INTO t VALUES (3, 3)")
    feed.run()
    feed.catch_up()
    assert scene.assert_same("t", "quiet") == 4
    scene.at_target("DROP TABLE t")
    stopped(feed, r"\.t is gone")


def test_notes_that_are_gone_or_old(scene: Scene) -> None:
    """Also before a first snapshot has a watermark."""
    scene.sql(*TABLES)
    feed = scene.feed(MADE)
    feed.step()
    assert feed.store.state(feed.name).micro_batch == 1
    fence, notes = f"{scene.meta}.rowferry_fence", f"{scene.meta}.rowferry_schema_changes"
    scene.target.execute(f"UPDATE {fence} SET commit_ts = 0, micro_batch = 0")
    stopped(feed, f"{fence} knows nothing of changefeed .*reset --snapshot")
    reset(feed)
    feed.catch_up()
    assert scene.assert_same("t", "quiet") == 3
    number = feed.store.state(feed.name).micro_batch
    scene.target.execute(f"UPDATE {fence} SET micro_batch = micro_batch - 1")
    stopped(feed, f"micro-batch {number - 1} only, .* micro-batch {number}:", TargetWentBack)
    scene.target.execute(f"UPDATE {fence} SET micro_batch = micro_batch + 1")
    feed.run()
    feed.catch_up()
    scene.target.execute(f"RENAME TABLE {notes} TO {scene.meta}.hidden")
    stopped(feed, f"{notes}, in which changefeed .* is gone")
    scene.target.execute(f"RENAME TABLE {scene.meta}.hidden TO {notes}")
    feed.run()
    feed.catch_up()
    # While it runs.
    scene.target.execute(f"DELETE FROM {fence}")
    scene.sql("INSERT INTO t VALUES (3, 3)")
    with pytest.raises(TargetLost, match=f"row of changefeed .* in {fence} is gone"):
        feed.catch_up()
    scene.target.execute(f"DROP DATABASE {scene.meta}")
    with pytest.raises(TargetLost, match="rowferry_delivered, in which changefeed .* is gone"):
        feed.catch_up()
    reset(feed)
    feed.catch_up()
    assert scene.assert_same("t", "quiet") == 4


@pytest.mark.parametrize("change", ["DROP COLUMN n", "RENAME COLUMN n TO m"])
def test_a_column_that_somebody_took_away(same_kind: Scene, change: str) -> None:
    same_kind.sql(*TABLES)
    feed = same_kind.feed(MADE)
    feed.catch_up()
    same_kind.at_target(f"ALTER TABLE t {change}")
    same_kind.sql("INSERT INTO t VALUES (3, 3)")
    with pytest.raises(RowRejected, match=rf"table {same_kind.copy}\.t: .*column 'n'.*columns in"):
        feed.catch_up()
    same_kind.at_target("ALTER TABLE t ADD COLUMN n int")
    feed.run()
    feed.catch_up()
    same_kind.at_target("ALTER TABLE t DROP COLUMN n")
    same_kind.sql("INSERT INTO t VALUES (4, 4)")
    feed.run()
    with pytest.raises(TargetUnfit, match=rf"table {same_kind.copy}\.t .* no column 'n' .*add it"):
        feed.catch_up()


def test_a_table_that_was_never_there_may_be_made(scene: Scene) -> None:
    """A first delivery that fails half-way is still a first delivery."""
    scene.sql(*TABLES)
    feed = scene.feed(MADE)

    def fail(plan: object) -> None:
        raise SinkUnavailable("no answer")

    feed.runner.before = fail
    until_it_fails(feed, "no answer")
    feed.loop.replan("the source moved")
    scene.target.execute(f"DROP DATABASE {scene.copy}")
    feed.runner.before = lambda plan: None
    feed.run()
    feed.catch_up()
    assert scene.assert_same("t", "quiet") == 3
