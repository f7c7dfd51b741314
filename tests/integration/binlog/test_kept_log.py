"""Log bytes that the planner keeps for tasks: they read the same rows, without the source."""

from __future__ import annotations

import gc
import multiprocessing
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest
from feed_kit import Feed, Runner, Scene, scene_of

from rowferry.change.plan import Plan, Receipt, Segment, TableSlice
from rowferry.change.table import TableSchema
from rowferry.flow.assemble import assemble
from rowferry.flow.capture.binlog import read
from rowferry.flow.capture.binlog.client import stream
from rowferry.flow.capture.binlog.frame import kept_log, segment_cutter, segment_join
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.testing.servers import Server

NUMBERS = "WITH RECURSIVE n (i) AS (SELECT {} UNION ALL SELECT i + 1 FROM n WHERE i < {})"


@pytest.fixture
def scene(source_server: Server, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Scene]:
    with scene_of(source_server, tmp_path, request.node.name) as found:
        yield found


@pytest.fixture(autouse=True)
def short_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_cutter, "SEGMENT_BYTES", 1 << 20)


def read_alone(
    spec: ChangefeedSpec, segment: Segment, tables: dict[TableSlice, TableSchema]
) -> dict[str, list[dict[str, object]]]:
    """Read a segment in this process; what it has of each table, with commit-ts and order."""
    rows: dict[str, list[pa.RecordBatch]] = {}
    for one in assemble(spec).capture.read(segment, tables):
        rows.setdefault(str(one.table.id), []).append(one.batch)
    return {name: pa.Table.from_batches(batches).to_pylist() for name, batches in rows.items()}


class Comparing(Runner):
    """Reads each segment from what is kept, in a process of its own, and from the source."""

    def __init__(self, process: ProcessPoolExecutor) -> None:
        super().__init__()
        self._process = process
        self.near = self.carried = self.rows = 0

    def run(
        self, spec: ChangefeedSpec, plan: Plan, tables: Mapping[TableSlice, TableSchema]
    ) -> list[Receipt]:
        """Compare, then run the plan."""
        for segment in plan.stretch.segments:
            if segment.read["kind"] != "log":
                continue
            mine = {one: tables[one] for one in segment.slices}
            self.near += any(piece.path for piece in segment.near)
            self.carried += any(piece.data for piece in segment.near)
            asked = replace(segment, near=())
            fetched = self._process.submit(read_alone, spec, asked, mine).result()
            kept = self._process.submit(read_alone, unreachable(spec), segment, mine).result()
            assert kept == fetched
            self.rows += sum(map(len, fetched.values()))
        return super().run(spec, plan, tables)


def unreachable(spec: ChangefeedSpec) -> ChangefeedSpec:
    """Return the settings with a source that nobody answers for."""
    return replace(spec, source=replace(spec.source, address="127.0.0.1:1"))


@pytest.fixture
def comparing() -> Iterator[Comparing]:
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        yield Comparing(process)


def feed_of(scene: Scene, runner: Runner, rules: str) -> Feed:
    feed = scene.feed(rules=[rules], runner=runner)
    feed.catch_up()
    return feed


def test_rows_of_kept_bytes_are_those_of_the_source(scene: Scene, comparing: Comparing) -> None:
    """Also where rows that nobody reads, of a trigger, lie before the end of a segment."""
    scene.sql(
        "CREATE TABLE t (id int PRIMARY KEY, v varchar(2000))",
        "CREATE TABLE x_log (id int, v text)",
        "CREATE TRIGGER logged AFTER INSERT ON t FOR EACH ROW INSERT INTO x_log VALUES "
        "(NEW.id, REPEAT('log', 500))",
    )
    feed = feed_of(scene, comparing, f"{scene.database}.t*")
    scene.sql(f"INSERT INTO t {NUMBERS.format(1, 999)} SELECT i, REPEAT('v', 1500) FROM n")
    for first in range(1000, 1600, 20):
        many = NUMBERS.format(first, first + 19)
        scene.sql(f"INSERT INTO t {many} SELECT i, REPEAT('w', 1900) FROM n")
    scene.sql("UPDATE t SET v = CONCAT(id, v)", "DELETE FROM t WHERE id > 500")
    feed.catch_up()
    assert comparing.near >= 5
    assert comparing.rows == 999 + 600 + 1599 + 1099
    assert feed.differences() == ""
    feed.stop()
    comparing.plans.clear()
    gc.collect()
    assert kept_log.ROOM.used == 0


def test_few_rows_among_many_of_others_are_carried(scene: Scene, comparing: Comparing) -> None:
    """A plan takes them along, also where a segment ends in the middle of their transaction."""
    scene.sql(
        "CREATE TABLE t (id int PRIMARY KEY)",
        "CREATE TABLE x_log (v text)",
        "CREATE TRIGGER logged AFTER INSERT ON t FOR EACH ROW INSERT INTO x_log VALUES "
        "(REPEAT('log', 7000))",
    )
    feed = feed_of(scene, comparing, f"{scene.database}.t*")
    scene.sql(f"INSERT INTO t {NUMBERS.format(1, 300)} SELECT i FROM n")
    feed.catch_up()
    assert comparing.carried >= 3
    assert comparing.rows == 300
    assert feed.differences() == ""


def test_many_tables_share_what_is_kept(scene: Scene, comparing: Comparing) -> None:
    """Joined segments are read from several pieces, by tasks for a part of the tables each."""
    names = [f"t{i}" for i in range(80)]
    scene.sql(*(f"CREATE TABLE {name} (id int PRIMARY KEY, v varchar(2000))" for name in names))
    feed = feed_of(scene, comparing, f"{scene.database}.t*")
    for turn in range(0, 60, 6):
        rows = ", ".join(f"({i}, REPEAT('v', 1800))" for i in range(turn, turn + 6))
        scene.sql(*(f"INSERT INTO {name} VALUES {rows}" for name in names))
    feed.catch_up()
    assert comparing.rows == 80 * 60
    parts = [s for plan in comparing.plans for s in plan.stretch.segments]
    assert max(len(s.near) for s in parts) > 1
    assert feed.differences() == ""


def test_an_event_in_several_packets(scene: Scene, comparing: Comparing) -> None:
    scene.sql("CREATE TABLE t (id int PRIMARY KEY, v longtext)")
    feed = feed_of(scene, comparing, f"{scene.database}.t")
    scene.sql(
        "INSERT INTO t VALUES (1, 'small')",
        "INSERT INTO t VALUES (2, REPEAT('a', 17 << 20)), (3, 'behind')",
        "INSERT INTO t VALUES (4, 'small')",
    )
    feed.catch_up()
    assert comparing.near == 1
    assert comparing.rows == 4
    assert feed.differences() == ""


def test_the_source_sends_each_byte_once(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    scene.sql("CREATE TABLE t (id int PRIMARY KEY, v varchar(2000))")
    feed = feed_of(scene, Runner(), f"{scene.database}.t")
    feed.step()
    scene.sql(f"INSERT INTO t {NUMBERS.format(1, 900)} SELECT i, REPEAT('v', 1900) FROM n")
    opened: list[object] = []
    ask = stream.LogStream._ask

    def noted(self: stream.LogStream, *place: object) -> None:
        opened.append(place)
        ask(self, *place)  # type: ignore[arg-type]

    monkeypatch.setattr(stream.LogStream, "_ask", noted)
    feed.catch_up()
    assert any(s.near for plan in feed.runner.plans for s in plan.stretch.segments)
    assert len(opened) <= 1, "a task has asked for the log"
    assert feed.differences() == ""


def test_what_cannot_be_kept_is_fetched(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_log, "ROOM", kept_log._Room(3 << 20))
    scene.sql("CREATE TABLE t (id int PRIMARY KEY, v varchar(2000))")
    feed = feed_of(scene, Runner(), f"{scene.database}.t")
    scene.sql(f"INSERT INTO t {NUMBERS.format(1, 999)} SELECT i, REPEAT('v', 1900) FROM n")
    for first in range(1000, 5000, 1000):
        many = NUMBERS.format(first, first + 999)
        scene.sql(f"INSERT INTO t {many} SELECT i, REPEAT('v', 1900) FROM n")
    feed.catch_up()
    near = [bool(s.near) for plan in feed.runner.plans for s in plan.stretch.segments]
    assert True in near and False in near
    assert feed.differences() == ""


def test_bytes_that_are_gone_or_another_file_are_fetched(scene: Scene) -> None:
    """The number of a file that was closed may be any other file's by the time a task opens it."""
    scene.sql("CREATE TABLE t (id int PRIMARY KEY, v varchar(2000))")
    runner = Runner()

    def damage(plan: Plan) -> None:
        for segment in plan.stretch.segments:
            for place, piece in enumerate(segment.near):
                wrong = (
                    replace(piece, token=b"another's bytes!"),
                    replace(piece, path="/proc/1/fd/x"),
                )
                assert piece.packets() is not None
                assert wrong[place % 2].packets() is None
                object.__setattr__(segment, "near", (wrong[segment.ordinal % 2],))

    runner.before = damage
    feed = feed_of(scene, runner, f"{scene.database}.t")
    scene.sql(f"INSERT INTO t {NUMBERS.format(1, 999)} SELECT i, REPEAT('v', 1900) FROM n")
    feed.catch_up()
    assert any(s.near for plan in runner.plans for s in plan.stretch.segments)
    assert feed.differences() == ""


class Ordering(Runner):
    """Reads each segment from what is kept and from the source, and compares all rows in order."""

    def __init__(self) -> None:
        super().__init__()
        self.turns = self.pieces = 0

    def run(
        self, spec: ChangefeedSpec, plan: Plan, tables: Mapping[TableSlice, TableSchema]
    ) -> list[Receipt]:
        """Compare, then run the plan."""
        capture = assemble(spec).capture
        for segment in plan.stretch.segments:
            if segment.read["kind"] == "log" and segment.near:
                mine = {one: tables[one] for one in segment.slices}
                kept, fetched = (
                    [
                        (str(rows.table.id), number)
                        for rows in capture.read(one, mine)
                        for number in rows.batch.column("seq").to_pylist()
                    ]
                    for one in (segment, replace(segment, near=()))
                )
                assert kept == fetched
                self.turns += sum(a[0] != b[0] for a, b in pairwise(kept))
                self.pieces = max(self.pieces, len(segment.near))
        return super().run(spec, plan, tables)


@pytest.mark.parametrize("count", [2, 12])
def test_rows_have_one_order_wherever_their_bytes_come_from(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """Sinks count messages: of tables that share a partition, none may come earlier in a replay."""
    monkeypatch.setattr(read, "BLOCK_BYTES", 30_000)
    monkeypatch.setattr(read, "_BYTES_A_TABLE", 1)
    monkeypatch.setattr(segment_join, "MANY", 12)  # tables whose segments are joined
    monkeypatch.setattr(segment_cutter, "SEGMENT_BYTES", 100_000 if count > 2 else 1 << 20)
    scene.sql(*(f"CREATE TABLE t{n} (id int PRIMARY KEY, v varchar(999))" for n in range(count)))
    runner = Ordering()
    feed = feed_of(scene, runner, f"{scene.database}.t*")
    for turn in range(40):
        many = NUMBERS.format(20 * turn, 20 * turn + 19)
        for n in range(count):
            scene.sql(f"INSERT INTO t{n} {many} SELECT i, REPEAT('v', 10 * (i % 90)) FROM n")
    feed.catch_up()
    assert runner.turns > 10  # a block has all tables, one after the other
    assert (runner.pieces > 1) == (count > 2)
    assert feed.differences() == ""
