"""Rows that the downstream refuses are parked; others flow, and a retry after the cure heals it."""

from __future__ import annotations

from pathlib import Path

import pytest
from mysql_sink_kit import MySqlFeed, Scene

from rowferry.change.plan import Plan
from rowferry.change.quarantine import WAITS, ParkedKey, ParkedRow
from rowferry.control.feed import quarantining
from rowferry.errors import QuarantineFull, RowferryError, RowRejected
from rowferry.moment import watched
from rowferry.spark.job import SparkRunner
from rowferry.spark.session import close_session, open_session

PARKS = "on-bad-row = 'quarantine'\n"


def parked(feed: MySqlFeed) -> tuple[ParkedRow, ...]:
    return feed.store.parked(feed.name)


def keys(feed: MySqlFeed) -> list[tuple[str, str]]:
    return [(row.key, row.op.name.lower()) for row in parked(feed)]


def retry(feed: MySqlFeed) -> None:
    feed.store.want_parked(feed.name, {row.parked_key for row in parked(feed)})
    feed.catch_up()


def target(scene: Scene, table: str = "t") -> list[tuple[object, ...]]:
    return sorted(scene.target.execute(f"SELECT * FROM {scene.copy}.{table}"), key=repr)


def test_a_refused_row_waits_with_its_key_and_others_flow(scene: Scene) -> None:
    scene.sql("CREATE TABLE t (id int PRIMARY KEY, a varchar(20))")
    scene.at_target("CREATE TABLE t (id int PRIMARY KEY, a varchar(3))")
    feed = scene.feed(config=PARKS)
    scene.sql("INSERT INTO t VALUES (1, 'abc'), (22, 'abcdef'), (3, 'x'), (44, 'too long')")
    feed.catch_up()
    assert target(scene) == [("1", "abc"), ("3", "x")]
    assert keys(feed) == [("22", "insert"), ("44", "insert")]
    assert "row id = 22" in parked(feed)[0].cause and "(error 1406)" in parked(feed)[0].cause
    scene.sql(
        "UPDATE t SET a = 'ok' WHERE id = 22",  # would be taken, and waits
        "UPDATE t SET a = 'y' WHERE id = 3",
        "DELETE FROM t WHERE id = 44",
        "INSERT INTO t VALUES (5, 'new')",
    )
    feed.catch_up()
    assert target(scene) == [("1", "abc"), ("3", "y"), ("5", "new")]
    assert keys(feed)[2:] == [("22", "update"), ("44", "delete")]
    assert [row.cause for row in parked(feed)[2:]] == [WAITS, WAITS]
    retry(feed)  # the last state of each fits: the target never sees the bad ones
    assert keys(feed) == []
    assert scene.assert_same("t") == 4
    scene.sql("UPDATE t SET a = 'z' WHERE id = 22")
    feed.catch_up()
    assert scene.assert_same("t") == 4


def test_a_quiet_feed_asks_seldom_what_is_parked(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.sql("CREATE TABLE t (id int PRIMARY KEY, a varchar(20))")
    scene.at_target("CREATE TABLE t (id int PRIMARY KEY, a varchar(3))")
    feed = scene.feed(config=PARKS)
    scene.sql("INSERT INTO t VALUES (1, 'abcdef')")
    feed.catch_up()
    asked: dict[float, int] = {}
    for lasts_s in (0.0, 3600.0):
        monkeypatch.setattr(quarantining, "_LASTS_S", lasts_s)
        names: list[str] = []
        with watched(names.append):
            for _ in range(20):
                feed.loop.step(publish_idle=False)
        asked[lasts_s] = names.count("read parked rows")
    assert asked[0.0] == 20
    assert asked[3600.0] < 10  # a heartbeat of the log is news, too
    scene.sql("UPDATE t SET a = 'ok'")
    feed.catch_up()
    retry(feed)
    assert keys(feed) == []


def test_a_retry_before_the_cure_leaves_rows_parked_and_after_it_heals(scene: Scene) -> None:
    scene.both("CREATE TABLE t (id int PRIMARY KEY, a varchar(20))")
    scene.at_target("ALTER TABLE t ADD CONSTRAINT short CHECK (a <> 'bad')")
    feed = scene.feed(config=PARKS)
    feed.catch_up()
    scene.sql("INSERT INTO t VALUES (1, 'bad'), (2, 'good'), (3, 'bad')")
    feed.catch_up()
    assert keys(feed) == [("1", "insert"), ("3", "insert")]
    scene.sql("UPDATE t SET a = 'fine' WHERE id = 3")
    feed.catch_up()
    retry(feed)
    assert keys(feed) == [("1", "insert")]
    assert "short" in parked(feed)[0].cause and not parked(feed)[0].wanted
    assert target(scene) == [("2", "good"), ("3", "fine")]
    scene.at_target("ALTER TABLE t DROP CONSTRAINT short")
    retry(feed)
    assert keys(feed) == []
    assert scene.assert_same("t") == 3


def test_a_row_dropped_while_it_is_sent_again_leaves_the_earlier_ones_parked(scene: Scene) -> None:
    """The target gets the last state of a key: where that is dropped, nothing of it was sent."""
    scene.sql("CREATE TABLE t (id int PRIMARY KEY, a varchar(20))")
    scene.at_target("CREATE TABLE t (id int PRIMARY KEY, a varchar(3))")
    feed = scene.feed(config=PARKS)
    feed.catch_up()
    scene.sql("INSERT INTO t VALUES (1, 'abcdef'), (2, 'x')", "UPDATE t SET a = 'abcdefg'")
    feed.catch_up()
    assert keys(feed)[-2:] == [("1", "update"), ("2", "update")]
    last = [row.place for row in parked(feed) if row.key == "1"][-1]
    scene.at_target("ALTER TABLE t MODIFY a varchar(20)")

    def drop(name: str) -> None:
        if name == "run job":
            feed.store.drop_parked(feed.name, {last})

    feed.store.want_parked(feed.name, {row.parked_key for row in parked(feed)})
    with watched(drop):
        feed.catch_up()
    assert keys(feed) == [("1", "insert")]
    assert "was dropped" in parked(feed)[0].cause
    assert ("2", "abcdefg") in target(scene)
    retry(feed)
    assert keys(feed) == []
    assert target(scene) == [("1", "abcdef"), ("2", "abcdefg")]


@pytest.mark.parametrize(
    "door",
    ["park", "record_again", "publish"],
)
@pytest.mark.parametrize("after", [False, True])
def test_a_kill_at_every_step_leaves_the_same(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, door: str, after: bool
) -> None:
    scene.sql("CREATE TABLE t (id int PRIMARY KEY, a varchar(20))")
    scene.at_target("CREATE TABLE t (id int PRIMARY KEY, a varchar(3))")
    feed = scene.feed(config=PARKS)
    feed.catch_up()
    scene.sql("INSERT INTO t VALUES (1, 'abcdef'), (2, 'x')", "UPDATE t SET a = 'y' WHERE id = 2")
    whole = getattr(type(feed.store), door)
    fails = [True]

    def killed(this: object, claim: object, plan: Plan, *rest: object) -> None:
        if after:
            whole(this, claim, plan, *rest)
        if fails and plan.stretch.segments:
            fails.clear()
            raise KeyboardInterrupt
        if not after:
            whole(this, claim, plan, *rest)

    scene.sql("INSERT INTO t VALUES (3, 'abcdef')")
    with monkeypatch.context() as patched:
        patched.setattr(type(feed.store), door, killed)
        with pytest.raises(KeyboardInterrupt):
            feed.catch_up()
    feed.run()
    feed.catch_up()
    assert keys(feed) == [("1", "insert"), ("3", "insert")]
    assert target(scene) == [("2", "y")]
    scene.at_target("ALTER TABLE t MODIFY a varchar(20)")
    retry(feed)
    assert keys(feed) == []
    assert scene.assert_same("t") == 3


def test_rows_of_other_unique_keys_are_not_harmed_by_a_retry(scene: Scene) -> None:
    scene.both("CREATE TABLE t (id int PRIMARY KEY, u int UNIQUE, a varchar(20))")
    scene.at_target("ALTER TABLE t ADD CONSTRAINT short CHECK (a <> 'bad')")
    scene.sql("INSERT INTO t VALUES (1, 10, 'x'), (2, 20, 'y'), (3, 30, 'z')")
    feed = scene.feed(config=PARKS)
    feed.catch_up()
    scene.sql("UPDATE t SET a = 'bad', u = 11 WHERE id = 1")
    feed.catch_up()
    scene.sql(
        "UPDATE t SET u = 10 WHERE id = 2",  # row 1 has it downstream
        "UPDATE t SET u = 12 WHERE id = 1",
        "UPDATE t SET u = 11 WHERE id = 3",  # a parked state of row 1 has it
        "INSERT INTO t VALUES (4, 30, 'w')",
    )
    feed.catch_up()
    assert {key for key, _ in keys(feed)} == {"1"}
    assert [row for row in target(scene) if row[0] != "1"] == [
        ("2", "10", "y"),
        ("3", "11", "z"),
        ("4", "30", "w"),
    ]
    scene.at_target("ALTER TABLE t DROP CONSTRAINT short")
    retry(feed)
    assert scene.assert_same("t") == 4


def test_a_table_whose_keys_cannot_be_compared_waits_as_a_whole(scene: Scene) -> None:
    shape = "CREATE TABLE t (k varchar(20) COLLATE utf8mb4_general_ci PRIMARY KEY, a varchar(20))"
    scene.both(shape, "CREATE TABLE other (id int PRIMARY KEY)")
    scene.at_target("ALTER TABLE t ADD CONSTRAINT short CHECK (a <> 'bad')")
    feed = scene.feed(config=PARKS)
    feed.catch_up()
    scene.sql("INSERT INTO t VALUES ('a', 'bad'), ('b', 'good')", "INSERT INTO other VALUES (1)")
    feed.catch_up()
    scene.sql("UPDATE t SET a = 'cured' WHERE k = 'A'", "INSERT INTO t VALUES ('c', 'more')")
    scene.sql("INSERT INTO other VALUES (2)")
    feed.catch_up()
    assert {row.parked_key for row in parked(feed)} == {ParkedKey(parked(feed)[0].table_id, "*")}
    assert len(parked(feed)) == 4
    assert scene.assert_same("other") == 2
    scene.at_target("ALTER TABLE t DROP CONSTRAINT short")
    retry(feed)
    assert keys(feed) == []
    assert scene.assert_same("t", "other") == 5


def test_schema_changes_truncation_and_drops(scene: Scene) -> None:
    scene.both("CREATE TABLE t (id int PRIMARY KEY, a varchar(20))")
    scene.at_target("ALTER TABLE t ADD CONSTRAINT short CHECK (a <> 'bad')")
    feed = scene.feed(config=PARKS)
    feed.catch_up()
    scene.sql("INSERT INTO t VALUES (1, 'bad'), (2, 'bad')", "ALTER TABLE t ADD COLUMN n int")
    scene.sql("UPDATE t SET n = 5 WHERE id = 2", "RENAME TABLE t TO s")
    feed.catch_up()
    assert keys(feed) == [("1", "insert"), ("2", "insert"), ("2", "update")]
    assert {row.table.table for row in parked(feed)} == {"s"}
    scene.at_target("ALTER TABLE s DROP CONSTRAINT short")
    retry(feed)  # of key 2 the last change has the shape of now
    assert keys(feed) == [("1", "insert")]
    assert "altered since" in parked(feed)[0].cause
    assert target(scene, "s") == [("2", "bad", "5")]
    scene.at_target("ALTER TABLE s ADD CONSTRAINT short CHECK (a <> 'worse')")
    scene.sql("UPDATE s SET a = 'worse' WHERE id = 2")
    feed.catch_up()
    assert keys(feed) == [("1", "insert"), ("2", "update")]
    scene.sql("TRUNCATE TABLE s", "INSERT INTO s VALUES (1, 'new', 1)")
    feed.catch_up()
    assert keys(feed) == []
    assert scene.assert_same("s") == 1
    whats = [note.what for note in feed.store.history(feed.name)]
    assert "quarantine cleared" in whats and "quarantine sent again" in whats


def test_dropped_rows_stay_away_and_later_changes_flow(scene: Scene) -> None:
    scene.both("CREATE TABLE t (id int PRIMARY KEY, a varchar(20))")
    scene.at_target("ALTER TABLE t ADD CONSTRAINT short CHECK (a <> 'bad')")
    feed = scene.feed(config=PARKS)
    feed.catch_up()
    scene.sql("INSERT INTO t VALUES (1, 'bad')")
    feed.catch_up()
    assert feed.store.drop_parked(feed.name, {row.place for row in parked(feed)}) == 1
    feed.catch_up()
    assert target(scene) == [] and keys(feed) == []
    scene.sql("UPDATE t SET a = 'good'")
    feed.catch_up()
    assert scene.assert_same("t") == 1


def test_limits_stop_by_name_and_more_room_lets_it_go_on(scene: Scene) -> None:
    scene.sql("CREATE TABLE t (id int PRIMARY KEY, a varchar(20))")
    scene.at_target("CREATE TABLE t (id int PRIMARY KEY, a varchar(3))")
    feed = scene.feed(config=f"{PARKS}quarantine-limit = 2\n")
    feed.catch_up()
    scene.sql("INSERT INTO t VALUES (1, 'abcdef'), (2, 'abcdef'), (3, 'abcdef')")
    with pytest.raises(QuarantineFull, match="more than 2 rows"):
        feed.catch_up()
    assert keys(feed) == []
    feed.config = f"{PARKS}quarantine-limit = 3\n"
    feed.run()
    feed.catch_up()
    scene.sql("INSERT INTO t VALUES (4, 'abcdef'), (5, 'x')")
    with pytest.raises(QuarantineFull, match=r"4 parked rows .*limit is 3 rows.*quarantine list"):
        feed.catch_up()
        feed.step()  # the fourth was parked by the last one: it goes no further
    assert target(scene) == [("5", "x")]
    scene.at_target("ALTER TABLE t MODIFY a varchar(20)")
    feed.run()
    retry(feed)
    assert scene.assert_same("t") == 5


def test_it_can_be_turned_on_when_a_row_has_stopped_the_changefeed(scene: Scene) -> None:
    scene.sql("CREATE TABLE t (id int PRIMARY KEY, a varchar(20))")
    scene.at_target("CREATE TABLE t (id int PRIMARY KEY, a varchar(3))")
    feed = scene.feed()
    feed.catch_up()
    scene.sql("INSERT INTO t VALUES (1, 'abcdef'), (2, 'x')")
    with pytest.raises(RowRejected, match="row id = 1"):
        feed.catch_up()
    feed.config = PARKS
    feed.run()
    feed.catch_up()
    assert keys(feed) == [("1", "insert")]
    feed.config = ""  # turned off again: what waits still waits, and new refusals stop it
    feed.run()
    scene.sql("UPDATE t SET a = 'ok' WHERE id = 1")
    feed.catch_up()
    assert keys(feed) == [("1", "insert"), ("1", "update")]
    scene.sql("INSERT INTO t VALUES (3, 'abcdef')")
    with pytest.raises(RowRejected, match="row id = 3"):
        feed.catch_up()


def test_refusals_of_all_lanes_reach_the_driver_from_spark(scene: Scene, tmp_path: Path) -> None:
    names = [f"t{n}" for n in range(3)]
    rows = "(1, 'abc'), (2, 'abcdef'), (3, 'abcdef'), (4, 'x')"
    for name in names:
        scene.sql(f"CREATE TABLE {name} (id int PRIMARY KEY, a varchar(20))")
        scene.at_target(f"CREATE TABLE {name} (id int PRIMARY KEY, a varchar(3))")
        scene.sql(f"INSERT INTO {name} VALUES {rows}")
    feed = scene.feed(config=PARKS)
    session = open_session("parks", tmp_path, "local[2]")
    try:
        feed.runner = SparkRunner(session, "pool")  # type: ignore[assignment]
        feed.catch_up()
        assert sorted((r.table.table, r.key) for r in parked(feed)) == [
            (name, key) for name in names for key in ("2", "3")
        ]
        assert {r.place.micro_batch for r in parked(feed)} == {parked(feed)[0].place.micro_batch}
        for name in names:
            scene.at_target(f"ALTER TABLE {name} MODIFY a varchar(20)")
        retry(feed)
        assert keys(feed) == []
        assert scene.assert_same(*names) == 12
    finally:
        close_session(session)


def test_what_is_not_of_a_row_stops_as_ever(scene: Scene) -> None:
    scene.both(
        "CREATE TABLE t (id int PRIMARY KEY, a varchar(20))", "CREATE TABLE keyless (a varchar(20))"
    )
    feed = scene.feed(config=f"force-replicate = true\n{PARKS}")
    feed.catch_up()
    scene.at_target("ALTER TABLE keyless MODIFY a varchar(3)")
    scene.sql("INSERT INTO keyless VALUES ('abcdef')")
    with pytest.raises(RowRejected, match="without a key"):
        feed.catch_up()
    scene.at_target("ALTER TABLE keyless MODIFY a varchar(20)", "ALTER TABLE t DROP COLUMN a")
    feed.catch_up()
    scene.sql("INSERT INTO t VALUES (1, 'x')")
    with pytest.raises(RowferryError, match="column 'a'"):
        feed.catch_up()
    assert keys(feed) == []
