"""Tables that are made, renamed, altered or dropped at the very moment at which they join."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from feed_kit import Feed, Scene, scene_of
from validator_kit import Watched

from rowferry.change.chunk import DdlKind
from rowferry.change.plan import Plan, Segment
from rowferry.control.feed import under_way
from rowferry.errors import SourceUnavailable
from rowferry.flow.capture.binlog import planner, source
from rowferry.flow.capture.binlog.client.server import BinlogServer
from rowferry.flow.capture.binlog.snapshot import joining, rereads
from rowferry.testing.servers import Server

Act = Callable[[], None]

# What a table was before, what is done to it, and what follows when the feed is under way.
TABLES = tuple(
    f"CREATE TABLE {name} (id int PRIMARY KEY, v varchar(300))"
    for name in ("still", "renamed", "dropped", "altered", "grown", "emptied", "again", "swapped")
)
EVENTS = (
    "CREATE TABLE made (id int PRIMARY KEY, v varchar(300))",
    "INSERT INTO made VALUES (1, 'one'), (2, 'two')",
    "INSERT INTO still VALUES (2, 'two')",
    "RENAME TABLE renamed TO renamed_to",
    "INSERT INTO renamed_to VALUES (2, 'two')",
    "DROP TABLE dropped",
    "ALTER TABLE altered CHANGE v w bigint",
    "INSERT INTO altered VALUES (2, 2)",
    "ALTER TABLE grown ADD COLUMN n int DEFAULT 7",
    "INSERT INTO grown VALUES (2, 'two', 2)",
    "TRUNCATE TABLE emptied",
    "INSERT INTO emptied VALUES (2, 'two')",
    "DROP TABLE again",
    "CREATE TABLE again (k varchar(20) PRIMARY KEY, other date)",
    "INSERT INTO again VALUES ('two', '2002-02-02')",
    "CREATE TABLE _swapped_gho (id bigint PRIMARY KEY, v text)",
    "INSERT INTO _swapped_gho SELECT id, v FROM swapped",
    "RENAME TABLE swapped TO _swapped_del, _swapped_gho TO swapped",
    "INSERT INTO swapped VALUES (2, 'two')",
    "DROP TABLE _swapped_del",
)
LATER = (
    "INSERT INTO made VALUES (3, 'three')",
    "INSERT INTO still VALUES (3, 'three')",
    "UPDATE renamed_to SET v = 'uno' WHERE id = 1",
    "DELETE FROM altered WHERE id = 1",
    "INSERT INTO grown VALUES (3, 'three', 3)",
    "INSERT INTO emptied VALUES (3, 'three')",
    "INSERT INTO again VALUES ('three', '2003-03-03')",
    "UPDATE swapped SET v = 'uno' WHERE id = 1",
)
NAMES = ("made", "still", "renamed_to", "altered", "grown", "emptied", "again", "swapped")


@pytest.fixture
def scene(source_server: Server, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Scene]:
    with scene_of(source_server, tmp_path, request.node.name) as found:
        yield found


class Meddler:
    """Does something once, right before or right after a call of the feed."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._patch = patch
        self.done = 0

    def at(self, owner: Any, name: str, act: Act, after: bool, times: int = 1) -> None:
        """Act at the `times`-th call."""
        real = getattr(owner, name)
        calls = 0

        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == times and not after:
                self._do(act)
            found = real(*args, **kwargs)
            if calls == times and after:
                self._do(act)
            return found

        self._patch.setattr(owner, name, call)

    def _do(self, act: Act) -> None:
        self.done += 1
        act()


@pytest.fixture
def meddler(monkeypatch: pytest.MonkeyPatch) -> Meddler:
    return Meddler(monkeypatch)


def follow(feed: Feed) -> None:
    """Deliver everything; what a reader has then is what the server has."""
    feed.catch_up()
    assert feed.differences() == ""
    assert feed.stale() == []


def made_tables(scene: Scene) -> None:
    names = [sql.split()[2] for sql in TABLES]
    scene.sql(*TABLES, *(f"INSERT INTO {name} VALUES (1, '1')" for name in names))


# --- the first tables ----------------------------------------------------------------------------

GAPS = {
    "before the list": (BinlogServer, "tables", False),
    "between the list and the position": (joining, "low_position", False),
    "between the position and the second list": (joining, "low_position", True),
    "after the second list": (planner, "cut_snapshots", False),
}


@pytest.mark.parametrize("gap", list(GAPS))
def test_at_the_beginning(scene: Scene, meddler: Meddler, gap: str) -> None:
    """Whatever happens while the feed begins, and wherever, all rows come."""
    made_tables(scene)
    feed = scene.feed()
    owner, name, after = GAPS[gap]
    meddler.at(owner, name, lambda: scene.sql(*EVENTS), after)
    follow(feed)  # also where no later row brings a table to mind
    assert meddler.done == 1
    scene.sql(*LATER)
    follow(feed)
    assert not any(isinstance(fault, SourceUnavailable) for fault in feed.faults)
    assert {name: bool(feed.rows(name)) for name in NAMES} == dict.fromkeys(NAMES, True)
    assert feed.rows("renamed") == feed.rows("dropped") == []


@pytest.mark.parametrize("gap", list(GAPS)[1:3])
def test_at_a_beginning_without_tables(scene: Scene, meddler: Meddler, gap: str) -> None:
    feed = scene.feed()
    owner, name, after = GAPS[gap]
    meddler.at(owner, name, lambda: scene.sql(*EVENTS[:2]), after)
    follow(feed)
    assert meddler.done == 1
    assert len(feed.rows("made")) == 2
    scene.sql(LATER[0])
    follow(feed)
    assert len(feed.rows("made")) == 3


def test_a_table_that_goes_while_a_feed_is_created(scene: Scene, meddler: Meddler) -> None:
    """It was listed, and is not there when the user's right to read it is tried."""
    made_tables(scene)
    meddler.at(source, "check_select", lambda: scene.sql("DROP TABLE dropped"), False)
    feed = scene.feed()
    assert meddler.done == 1
    follow(feed)


def test_without_snapshots(scene: Scene, meddler: Meddler) -> None:
    """The log begins before the tables are listed: what is made meanwhile is in one of them."""
    scene.sql(TABLES[0])
    feed = scene.feed(source="snapshot=never")
    meddler.at(BinlogServer, "tables", lambda: scene.sql(*EVENTS[:3]), False)
    feed.catch_up()
    assert meddler.done == 1
    scene.sql(LATER[0])
    feed.catch_up()
    assert feed.differences() == ""
    assert len(feed.rows("made")) == 3
    assert kinds(feed, "made") == [DdlKind.CREATE_TABLE]


# --- later tables --------------------------------------------------------------------------------


@pytest.mark.parametrize("gap", ["before it runs", *list(GAPS)[1:3]])
def test_with_a_changed_filter(scene: Scene, meddler: Meddler, gap: str) -> None:
    """The tables that now join change between the log's place and their joining, or at it."""
    made_tables(scene)
    feed = scene.feed([f"{scene.database}.still"])
    feed.catch_up()
    feed.stop()
    if gap == "before it runs":
        scene.sql(*EVENTS)
    else:
        owner, name, after = GAPS[gap]
        meddler.at(owner, name, lambda: scene.sql(*EVENTS), after)
    feed.run(rules=[f"{scene.database}.*"])
    feed.step_until(lambda step: bool(feed.runner.segments("snapshot")[1:]))
    scene.sql(*LATER)
    follow(feed)
    assert feed.repeated("still") == []
    assert {name: bool(feed.rows(name)) for name in NAMES} == dict.fromkeys(NAMES, True)


def kinds(feed: Feed, table: str) -> list[DdlKind]:
    return [kind for kind, _ in feed.ddl(table)]


UNLOGGED = (
    "SET SESSION sql_log_bin = 0",
    "CREATE TABLE secret (id int PRIMARY KEY, v varchar(300))",
    "INSERT INTO secret VALUES (1, 'one')",
    "SET SESSION sql_log_bin = 1",
    "INSERT INTO secret VALUES (2, 'two')",
)


def test_a_table_that_no_statement_made(scene: Scene) -> None:
    """Its first rows are not in the log: it joins with a snapshot, and a warning."""
    made_tables(scene)
    feed = scene.feed()
    feed.catch_up()
    scene.sql(*UNLOGGED)
    follow(feed)
    assert [row["id"] for row in feed.rows("secret")] == [1, 2]
    assert kinds(feed, "secret") == [DdlKind.CREATE_TABLE]
    assert any("secret" in words and "read anew" in words for words in feed.warnings)


def test_a_table_that_no_statement_made_without_snapshots(scene: Scene) -> None:
    """Rows from the beginning on are all that was asked for."""
    made_tables(scene)
    feed = scene.feed(source="snapshot=never")
    feed.catch_up()
    scene.sql(*UNLOGGED)
    feed.catch_up()
    assert [row["id"] for row in feed.rows("secret")] == [2]
    assert any("secret" in words and "from here on" in words for words in feed.warnings)


def test_a_waiting_table_that_goes_without_a_trace(scene: Scene, meddler: Meddler) -> None:
    """It was announced, and then dropped unlogged: readers hear that it is gone."""
    scene.sql(*TABLES[:2])
    feed = scene.feed([f"{scene.database}.still", f"{scene.database}.later_*"])
    feed.catch_up()
    scene.sql("RENAME TABLE renamed TO later_renamed")
    feed.step_until(lambda step: step.schema_changes > 0)
    scene.sql("SET SESSION sql_log_bin = 0", "DROP TABLE later_renamed")
    follow(feed)
    assert kinds(feed, "later_renamed") == [DdlKind.CREATE_TABLE, DdlKind.DROP_TABLE]
    assert any("later_renamed is gone" in words for words in feed.warnings)


# --- beside the log ------------------------------------------------------------------------------

ROWS = 1_500


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a table of some rows be several parts."""
    monkeypatch.setattr(rereads, "_LEAST_ROWS", 400)
    for name in ("_LEAST_PART_BYTES", "_FIRST_PART_BYTES", "_MOST_PART_BYTES"):
        monkeypatch.setattr(under_way, name, 1)


def joining_feed(scene: Scene) -> Feed:
    """A feed that runs, and whose filter has just taken in the table `big`."""
    rows = ", ".join(f"({i}, '{i}', {i % 7})" for i in range(ROWS))
    scene.sql(
        "CREATE TABLE still (id int PRIMARY KEY)",
        "INSERT INTO still VALUES (0)",
        "CREATE TABLE big (id int PRIMARY KEY, v varchar(40), n int)",
        f"INSERT INTO big VALUES {rows}",
    )
    feed = scene.feed([f"{scene.database}.still"])
    feed.catch_up()
    feed.run(rules=[f"{scene.database}.*"])
    return feed


def parts_of(plan: Plan) -> list[Segment]:
    return [s for s in plan.stretch.segments if s.beside and not s.reread]


@pytest.mark.usefixtures("small_parts")
def test_others_go_on_while_a_table_joins(scene: Scene) -> None:
    """Rows of another table come between two parts; the checkpoint waits for the last of them."""
    feed = joining_feed(scene)
    watched = Watched(feed)
    lows: list[int] = []
    marks: list[int] = []

    def write(plan: Plan) -> None:
        if parts := parts_of(plan):
            lows.append(parts[0].first_commit_ts)
            marks.append(feed.loop.watermark)
            number = len(lows)
            scene.sql(
                f"INSERT INTO still VALUES ({number})",
                f"UPDATE big SET v = 'changed' WHERE id % 5 = {number}",
                f"DELETE FROM big WHERE id = {500 * number - 1}",
                f"INSERT INTO big VALUES ({ROWS + number}, 'new', 0)",
            )

    feed.runner.before = write
    follow(feed)
    assert len(lows) > 3
    assert len(set(marks)) == 1
    others = [c.commit_ts for c in feed.changes("still")]
    for low, following in zip(lows, lows[1:], strict=False):
        assert any(low < stamp < following for stamp in others)
    assert kinds(feed, "big") == [DdlKind.CREATE_TABLE]
    assert feed.repeated("big") == feed.repeated("still") == []
    assert watched.failures() == []
    assert "rereads" not in feed.store.state("feed").position


@pytest.mark.usefixtures("small_parts")
def test_dies_while_a_table_joins(scene: Scene) -> None:
    """Whoever goes on begins with the part that was not finished."""
    feed = joining_feed(scene)
    watched, lows = Watched(feed), list[int]()

    def die(plan: Plan) -> None:
        if (parts := parts_of(plan)) and (low := parts[0].first_commit_ts) not in lows:
            lows.append(low)
            scene.sql(f"UPDATE big SET v = 'after {low}' WHERE id % 5 = {len(lows)}")
            raise SourceUnavailable("it dies here")

    feed.runner.after = die
    while len(lows) < 4:
        feed.step()
        if feed.faults:
            feed.faults.clear()
            feed.run()
    follow(feed)
    assert watched.failures() == []
    first = [c.after["id"] for c in feed.changes("big") if c.commit_ts in lows and c.after]
    assert sorted(first) == list(range(ROWS))


STATEMENTS = (
    "ALTER TABLE big DROP COLUMN n",
    "ALTER TABLE big DROP PRIMARY KEY, ADD PRIMARY KEY (n, id)",
    "TRUNCATE TABLE big",
    "RENAME TABLE big TO big2",
    "ALTER TABLE big PARTITION BY HASH (id) PARTITIONS 3",
    "SET SESSION sql_log_bin = 0; DROP TABLE big; SET SESSION sql_log_bin = 1",
)


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize(
    "statement",
    [
        "ALTER TABLE words MODIFY k varchar(9) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci",
        "ALTER TABLE words MODIFY k varchar(9) CHARACTER SET latin1 COLLATE latin1_swedish_ci",
        "ALTER TABLE words MODIFY k varbinary(9)",
    ],
)
def test_another_order_of_the_key_while_a_table_joins(scene: Scene, statement: str) -> None:
    """The key that was reached has other rows behind it than before: all parts come again."""
    rows = ", ".join(f"('{'Aa'[i % 2]}{i:04}', {i})" for i in range(ROWS))
    key = "k varchar(9) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin PRIMARY KEY"
    scene.sql(
        "CREATE TABLE still (id int PRIMARY KEY)",
        f"CREATE TABLE words ({key}, n int)",
        f"INSERT INTO words VALUES {rows}",
    )
    feed = scene.feed([f"{scene.database}.still"])
    feed.catch_up()
    feed.run(rules=[f"{scene.database}.*"])
    parts = 0

    def act(plan: Plan) -> None:
        nonlocal parts
        if parts_of(plan):
            parts += 1
            if parts == 2:
                scene.sql(statement)

    feed.runner.before = act
    follow(feed)
    assert parts > 2
    assert feed.differences() == ""
    assert len(feed.rows("words")) == ROWS


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("statement", STATEMENTS)
def test_statements_while_a_table_joins(scene: Scene, statement: str) -> None:
    """Amid its parts, and once more where it joins anew: rows are as the log says."""
    feed = joining_feed(scene)
    parts = 0

    def act(plan: Plan) -> None:
        nonlocal parts
        if parts_of(plan):
            parts += 1
            if parts == 2:
                scene.sql("UPDATE big SET v = 'x' WHERE id % 3 = 0", *statement.split("; "))

    feed.runner.before = act
    follow(feed)
    assert parts > 1
    if "DROP TABLE" in statement:
        assert kinds(feed, "big")[-1] is DdlKind.DROP_TABLE
