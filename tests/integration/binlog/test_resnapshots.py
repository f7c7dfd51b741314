"""Tables that are read again beside the log, while everything else goes on."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from feed_kit import Feed, Scene, scene_of
from validator_kit import Ferry, Watched

from rowferry.change.chunk import Op
from rowferry.change.plan import Plan
from rowferry.change.resnapshot import Resnapshot, ResnapshotOutcome
from rowferry.change.table import TableId
from rowferry.control.feed import under_way
from rowferry.errors import SourceUnavailable
from rowferry.flow.capture.binlog import planner
from rowferry.flow.capture.binlog.snapshot import rereads
from rowferry.testing.model import Row
from rowferry.testing.mysql_history import (
    MySqlWriters,
    broken_order,
    make_history,
    make_tables,
    read_rows,
    settled,
)
from rowferry.testing.servers import Server
from rowferry.testing.validators import AllPromises, DeliveryOracle

FEED = "feed"
ROWS = 3_000


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a few thousand rows be many parts."""
    monkeypatch.setattr(rereads, "_LEAST_ROWS", 400)
    monkeypatch.setattr(rereads, "_ROWS_A_TASK", 200)
    monkeypatch.setattr(under_way, "_LEAST_PART_BYTES", 1)
    monkeypatch.setattr(under_way, "_FIRST_PART_BYTES", 1)
    monkeypatch.setattr(under_way, "_MOST_PART_BYTES", 1)


@pytest.fixture
def scene(source_server: Server, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Scene]:
    with scene_of(source_server, tmp_path, request.node.name) as found:
        yield found


def make_rows(scene: Scene, table: str = "t", rows: int = ROWS) -> None:
    scene.sql(
        f"CREATE TABLE {table} (id int PRIMARY KEY, v varchar(40), n int)",
        f"INSERT INTO {table} VALUES {', '.join(f'({i}, {i}, {i % 7})' for i in range(rows))}",
    )


def ask(feed: Feed, scene: Scene, table: str = "t", which: str = "1", **more: object) -> None:
    wanted = Resnapshot(which, TableId(scene.database, table), **more)  # type: ignore[arg-type]
    feed.store.ask_resnapshot(FEED, wanted)


def ended(feed: Feed, which: str = "1") -> Resnapshot | None:
    return next((r for r in feed.resnapshots() if r.id == which and not r.is_open), None)


def finish(feed: Feed, which: str = "1") -> Resnapshot:
    """Step until a resnapshot has ended, and all is delivered."""
    feed.step_until(lambda step: ended(feed, which) is not None)
    feed.catch_up()
    found = ended(feed, which)
    assert found is not None
    return found


def again(feed: Feed) -> list[int]:
    """Return the places of the parts that were read again, one for each."""
    parts = [s for p in feed.runner.plans for s in p.stretch.segments if s.reread]
    return sorted({s.first_commit_ts for s in parts})


def test_a_whole_table_comes_again(scene: Scene) -> None:
    make_rows(scene)
    scene.sql("CREATE TABLE other (id int PRIMARY KEY)")
    feed = scene.feed()
    feed.catch_up()
    watched = Watched(feed)
    ask(feed, scene)
    scene.sql("UPDATE t SET v = 'new' WHERE id = 5", "DELETE FROM t WHERE id = 6")
    done = finish(feed)
    assert (done.outcome, done.words) == (ResnapshotOutcome.DONE, "")
    lows = again(feed)
    assert len(lows) > 3
    inserts = [c for c in feed.changes("t") if c.op is Op.INSERT and c.commit_ts in lows]
    assert [c.after["id"] for c in inserts if c.after] == [i for i in range(ROWS) if i != 6]
    assert feed.repeated("t") == []
    assert feed.differences() == ""
    assert watched.failures() == []


def test_other_tables_go_on_between_two_parts(scene: Scene) -> None:
    """Each part is a micro-batch of its own, and the watermark moves between two of them."""
    make_rows(scene)
    scene.sql("CREATE TABLE other (id int PRIMARY KEY)")
    feed = scene.feed()
    feed.catch_up()
    written = 0

    def write(plan: Plan) -> None:
        nonlocal written
        if any(s.reread for s in plan.stretch.segments):
            written += 1
            scene.sql(f"INSERT INTO other VALUES ({written})")

    feed.runner.after = write
    ask(feed, scene)
    marks = [feed.loop.watermark]
    while ended(feed) is None:
        feed.step()
        marks.append(feed.loop.watermark)
    lows = again(feed)
    assert len(lows) == written > 3
    for low, following in zip(lows, lows[1:], strict=False):
        assert any(low < mark < following for mark in marks)
        rows = [c.commit_ts for c in feed.changes("other")]
        assert any(low < stamp < following for stamp in rows)
    assert marks == sorted(marks)


def test_the_watermark_stands_until_the_log_has_passed_a_part(scene: Scene) -> None:
    """A part shows what the log tells only behind a statement at which a stretch ends."""
    make_rows(scene, rows=300)
    scene.sql("CREATE TABLE other (id int PRIMARY KEY)")
    feed = scene.feed()
    feed.catch_up()

    def write(plan: Plan) -> None:
        if any(s.reread for s in plan.stretch.segments):
            scene.sql("ALTER TABLE other ADD COLUMN v int", "UPDATE t SET v = 'newer'")

    feed.runner.before = write
    ask(feed, scene)
    marks = []
    while ended(feed) is None:
        feed.step()
        marks.append(feed.loop.watermark)
    (low,) = again(feed)
    newer = {c.commit_ts for c in feed.changes("t") if c.op is Op.UPDATE}
    assert len(newer) == 1
    assert not any(low <= mark < max(newer) for mark in marks)


def test_nobody_waits_while_the_watermark_stands(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sink that gathers rows for a while would double the lag of all tables otherwise."""
    make_rows(scene, rows=300)
    scene.sql("CREATE TABLE other (id int PRIMARY KEY)")
    feed = scene.feed()
    feed.catch_up()
    there = planner.passed

    def write(plan: Plan) -> None:
        if any(s.reread for s in plan.stretch.segments):
            scene.sql("INSERT INTO other VALUES (1)")
            monkeypatch.setattr(planner, "passed", lambda log, place: False)  # not yet

    feed.runner.after = write
    ask(feed, scene)
    while not again(feed):
        step = feed.step()
    stands = feed.loop.watermark
    while not feed.changes("other"):
        step = feed.step()
    assert feed.loop.watermark == stands and not step.follows and not step.caught_up
    monkeypatch.setattr(planner, "passed", there)
    assert finish(feed).outcome is ResnapshotOutcome.DONE
    assert feed.loop.watermark > stands


def test_writers_and_every_promise(
    source_server: Server, tmp_path: Path, request: pytest.FixtureRequest, seed: int
) -> None:
    database = re.sub(r"\W", "_", request.node.name).lower()[:60]
    make_tables(source_server, database, 1_500)
    ferry = Ferry(source_server, tmp_path, database, wait_s=0.03)
    first: dict[TableId, list[Row]] = {
        t: list(read_rows(source_server, s).values()) for t, s in ferry.schemas.items()
    }
    writers = MySqlWriters(source_server, ferry.schemas)
    tables = [t for t, s in ferry.schemas.items() if s.handle_index is not None]
    try:
        ferry.catch_up()
        writers.start(3, seed)
        for number, table in enumerate(tables):
            ferry.store.ask_resnapshot(FEED, Resnapshot(str(number), table))
        ferry.run_for(2.0, lambda: all(not r.is_open for r in ferry.resnapshots()))
        writers.stop()
        ferry.catch_up()
    finally:
        writers.stop()
        ferry.close()
    assert {r.outcome for r in ferry.resnapshots()} == {ResnapshotOutcome.DONE}
    assert len({low for _, low in ferry.runner.rereads}) > 3
    assert ferry.differences() == ""
    history = make_history(first, ferry.schemas, settled(writers), ferry.commit_ts())
    assert broken_order(history) == []
    oracle = DeliveryOracle(history, ferry.facts, ferry.windows(), rereads=ferry.reread_windows())
    assert ferry.judge(oracle, AllPromises.of(oracle)) == []
    assert ferry.faults == []


@pytest.mark.parametrize(
    ("table", "first", "last", "wanted"),
    [
        ("n", ("10",), ("12",), [10, 11, 12]),
        ("n", (), ("2",), [0, 1, 2]),
        ("n", (str(ROWS - 2),), (), [ROWS - 2, ROWS - 1]),
        ("n", ("-5",), ("-1",), []),
        ("s", ("b'",), ("b'",), ["b'"]),
        ("s", ("a",), ("B'",), ["a", "b'"]),
        ("p", ("1", "x"), ("2", "a"), [(1, "x"), (1, "y"), (2, "a")]),
        ("d", ("2024-02-01",), ("2024-03-01 00:00:00",), ["2024-02-03", "2024-03-01"]),
    ],
)
def test_a_range_of_keys(
    scene: Scene, table: str, first: tuple[str, ...], last: tuple[str, ...], wanted: list[object]
) -> None:
    if table == "n":
        make_rows(scene, "n")
    scene.sql(
        "CREATE TABLE s (k varchar(20) PRIMARY KEY) CHARACTER SET utf8mb4",
        "INSERT INTO s VALUES ('a'), ('b\\''), ('c')",
        "CREATE TABLE p (a int, b varchar(9), PRIMARY KEY (a, b))",
        "INSERT INTO p VALUES (1, 'a'), (1, 'x'), (1, 'y'), (2, 'a'), (2, 'b')",
        "CREATE TABLE d (k date PRIMARY KEY)",
        "INSERT INTO d VALUES ('2024-01-31'), ('2024-02-03'), ('2024-03-01'), ('2024-03-02')",
    )
    feed = scene.feed()
    feed.catch_up()
    ask(feed, scene, table, first=first, last=last)
    assert finish(feed).outcome is ResnapshotOutcome.DONE
    lows = again(feed)
    rows = [tuple(c.after.values()) for c in feed.changes(table) if c.commit_ts in lows and c.after]
    keys: list[object] = [r[0] if table != "p" else r for r in rows]
    assert keys == wanted


def test_rows_chosen_by_an_expression(scene: Scene) -> None:
    make_rows(scene)
    feed = scene.feed()
    feed.catch_up()
    ask(feed, scene, where="n = 3 and id < 1000")
    assert finish(feed).outcome is ResnapshotOutcome.DONE
    lows = again(feed)
    ids = [c.after["id"] for c in feed.changes("t") if c.commit_ts in lows and c.after]
    assert ids == [i for i in range(1000) if i % 7 == 3]
    assert feed.differences() == ""


def test_what_cannot_be_read_again_ends_alone(scene: Scene) -> None:
    """A resnapshot that fails says why; the feed goes on, and later ones have their turn."""
    make_rows(scene)
    scene.sql("CREATE TABLE bare (v int)")
    feed = scene.feed(config="force-replicate = true")
    feed.catch_up()
    ask(feed, scene, "gone", "1")
    ask(feed, scene, "bare", "2")
    ask(feed, scene, "t", "3", first=("a",))
    ask(feed, scene, "t", "4", where="nothing = 1")
    ask(feed, scene, "t", "5", where="id * 9000000000000000000 > 1")
    ask(feed, scene, "t", "6")
    assert finish(feed, "6").outcome is ResnapshotOutcome.DONE
    words = {r.id: (r.outcome, r.words) for r in feed.resnapshots()}
    for which, part in (
        ("1", "gone is not captured any more"),
        ("2", "bare has no usable key"),
        ("3", "'a' is no value of"),
        ("4", "nothing"),
        ("5", "where"),
    ):
        outcome, said = words[which]
        assert outcome is ResnapshotOutcome.FAILED, which
        assert part in said
    assert feed.faults == []
    assert feed.differences() == ""


STATEMENTS = (
    "ALTER TABLE t ADD COLUMN extra int DEFAULT 3",
    "ALTER TABLE t DROP COLUMN n",
    "ALTER TABLE t MODIFY COLUMN n bigint",
    "ALTER TABLE t DROP PRIMARY KEY, ADD PRIMARY KEY (n, id)",
    "ALTER TABLE t CHANGE v w varchar(40), ADD COLUMN v varchar(40) DEFAULT 'new'",
    "TRUNCATE TABLE t",
    "DROP TABLE t",
    "RENAME TABLE t TO t2",
    "RENAME TABLE t TO outside.t",
)


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("statement", STATEMENTS)
def test_statements_amid_the_parts(scene: Scene, statement: str, moment: str) -> None:
    """Between a part's planning and its reading, and after that: rows are as the log says."""
    make_rows(scene, rows=1_500)
    outside = f"{scene.database[:50]}_outside"
    scene.server.script(f"DROP DATABASE IF EXISTS {outside}", f"CREATE DATABASE {outside}")
    statement = statement.replace("outside.", f"{outside}.")
    feed = scene.feed()
    feed.catch_up()
    ask(feed, scene)
    parts = 0

    def act() -> None:
        scene.sql(
            "UPDATE t SET v = 'changed' WHERE id % 3 = 0",
            statement,
        )

    def counted(when: str) -> Callable[[Plan], None]:
        def look(plan: Plan) -> None:
            nonlocal parts
            if plan.stretch.segments and plan.stretch.segments[0].reread:
                parts += when == "before"
                if parts == 2 and moment == when:
                    parts += 1
                    act()

        return look

    feed.runner.before = counted("before")
    feed.runner.after = counted("after")
    finish(feed)
    different = feed.differences()
    if outside in statement:  # readers may keep it under that name, which is nobody's any more
        assert f"{scene.database}.t " not in different
    else:
        assert different == ""
    assert feed.stale() == []


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize(
    "column",
    [
        "varchar(9) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci",
        "varchar(9) CHARACTER SET latin1 COLLATE latin1_swedish_ci",
        "varbinary(9)",
    ],
)
def test_another_order_of_the_key_amid_the_parts(scene: Scene, column: str, moment: str) -> None:
    """Whatever was reached, all rows are read again."""
    rows = 1_500
    values = ", ".join(f"('{'Aa'[i % 2]}{i:04}', {i})" for i in range(rows))
    key = "k varchar(9) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin PRIMARY KEY"
    scene.sql(f"CREATE TABLE t ({key}, n int)", f"INSERT INTO t VALUES {values}")
    feed = scene.feed()
    feed.catch_up()
    ask(feed, scene)
    parts = 0

    def counted(when: str) -> Callable[[Plan], None]:
        def look(plan: Plan) -> None:
            nonlocal parts
            if plan.stretch.segments and plan.stretch.segments[0].reread:
                parts += when == "before"
                if parts == 2 and moment == when:
                    parts += 1
                    scene.sql(f"ALTER TABLE t MODIFY k {column}")

        return look

    feed.runner.before = counted("before")
    feed.runner.after = counted("after")
    done = finish(feed)
    assert (done.outcome, done.words) == (ResnapshotOutcome.DONE, "")
    lows = again(feed)
    inserts = [c for c in feed.changes("t") if c.op is Op.INSERT and c.commit_ts in lows]
    assert {c.after["n"] for c in inserts if c.after} == set(range(rows))
    assert feed.differences() == ""


@pytest.mark.parametrize("logged", [True, False])
def test_a_key_that_is_lost_amid_the_parts(scene: Scene, logged: bool) -> None:
    """It cannot be read on: it ends with the reason, whether the log tells of it or not."""
    make_rows(scene, rows=1_500)
    feed = scene.feed(config="force-replicate = true")
    feed.catch_up()
    ask(feed, scene)
    parts = 0

    def lose(plan: Plan) -> None:
        nonlocal parts
        if plan.stretch.segments and plan.stretch.segments[0].reread:
            parts += 1
            if parts == 2:
                before = "SET SESSION sql_log_bin = " + str(int(logged))
                scene.sql(before, "ALTER TABLE t DROP PRIMARY KEY")

    feed.runner.before = lose
    done = finish(feed)
    assert done.outcome is ResnapshotOutcome.FAILED
    assert "key" in done.words
    assert feed.differences() == ""


def test_dies_amid_a_part(scene: Scene) -> None:
    """Another process goes on where the first one stopped; nothing is read a third time."""
    make_rows(scene)
    feed = scene.feed()
    feed.catch_up()
    watched = Watched(feed)
    ask(feed, scene)
    deaths = 0

    def die(plan: Plan) -> None:
        nonlocal deaths
        if plan.stretch.segments[0].reread and deaths < 4:
            deaths += 1
            scene.sql(f"UPDATE t SET v = 'after {deaths}' WHERE id % 5 = {deaths}")
            raise SourceUnavailable("it dies here")

    feed.runner.after = die
    while ended(feed) is None:
        feed.step()
        if feed.faults and deaths:
            feed.faults.clear()
            feed.run()
    feed.catch_up()
    assert deaths == 4
    assert feed.differences() == ""
    assert watched.failures() == []
    lows = again(feed)
    ids = [c.after["id"] for c in feed.changes("t") if c.commit_ts in lows and c.after]
    assert ids == list(range(ROWS))


def test_cancelled(scene: Scene) -> None:
    make_rows(scene)
    feed = scene.feed()
    feed.catch_up()
    ask(feed, scene)
    feed.step_until(lambda step: bool(again(feed)))
    assert feed.store.cancel_resnapshot(FEED, "1")
    assert not feed.store.cancel_resnapshot(FEED, "1")
    feed.catch_up()
    parts = len(again(feed))
    scene.sql("UPDATE t SET v = 'later'")
    feed.catch_up()
    assert parts < 4
    assert len(again(feed)) == parts
    assert ended(feed) is not None
    assert "rereads" not in feed.store.state(FEED).position
    assert feed.differences() == ""


def test_how_far_it_is(scene: Scene) -> None:
    make_rows(scene)
    scene.sql("ANALYZE TABLE t")
    feed = scene.feed()
    feed.catch_up()
    feed.told.clear()
    ask(feed, scene)
    finish(feed)
    shares = [s for told in feed.told for s in told.snapshots]
    done = [s.done for s in shares]
    assert {s.table.table for s in shares} == {"t"}
    assert done == sorted(done)
    assert len(set(done)) > 3
    assert done[-1] == shares[-1].total >= ROWS
