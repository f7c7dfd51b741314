"""Upkeep between micro-batches: how much of it at a time, and that it never stops a feed."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder
from loop_kit import SCRIPTS, Script, forget_scripted_source, register_scripted_source

from rowferry.change.plan import Plan, Receipt
from rowferry.control.feed.lease import Holder
from rowferry.control.feed.loop import Loop
from rowferry.control.feed.upkeep_rounds import (
    FIRST_WAIT_S,
    LONGEST_WAIT_S,
    STATUS_EVERY_S,
    UpkeepRounds,
)
from rowferry.control.store.sql_store import open_store
from rowferry.errors import SinkUnavailable
from rowferry.flow.assemble import assemble
from rowferry.flow.sink.contract import TableStatus, UpkeepPiece
from rowferry.moment import watched
from rowferry.spark.job import InProcessRunner
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.secrets import NOTHING_HIDDEN
from rowferry.spec.uri import Uri

ORDERS = TableStatus("shop/orders", "shop.orders", "feed", "upsert", 3, 2, 10, 0, 1000, 7)


class Tended:
    """A sink with upkeep, which notes what it is asked."""

    def __init__(self) -> None:
        self.left = 5
        self.asked: list[int] = []
        self.done: list[Sequence[tuple[UpkeepPiece, dict[str, Any]]]] = []

    def due_upkeep(self, most: int) -> tuple[UpkeepPiece, ...]:
        self.asked.append(most)
        return tuple(UpkeepPiece({"number": n}, 100) for n in range(min(most, self.left)))

    def do_upkeep(self, work: dict[str, Any]) -> dict[str, Any]:
        return work

    def commit_upkeep(self, done: Sequence[tuple[UpkeepPiece, dict[str, Any]]]) -> int:
        self.done.append(done)
        self.left -= len(done)
        return len(done)

    def table_statuses(self) -> tuple[TableStatus, ...]:
        return (ORDERS,)


class Bench:
    """Rounds of a sink with a clock of the test's and a runner of so many slots."""

    def __init__(self, slots: int = 8) -> None:
        self.sink: Any = Tended()
        self.now, self.takes = 100.0, 2.0
        self.plans: list[Plan] = []
        self.error: Exception | None = None
        flow: Any = SimpleNamespace(sink=self.sink, hiding=NOTHING_HIDDEN)
        runner = SimpleNamespace(slots=slots)
        self.rounds = UpkeepRounds("feed", flow, self._run, runner, lambda: self.now)

    def _run(self, plan: Plan) -> list[Receipt]:
        self.plans.append(plan)
        self.now += self.takes
        if self.error is not None:
            raise self.error
        found = [Receipt(s.ordinal, 0, 0, 0, note=s.read) for s in plan.stretch.segments]
        return [*found[::-1], Receipt.of_counts({"calls": 1})]

    def go(self) -> Any:
        return self.rounds.go(3, 9)


def test_a_round_takes_a_quarter_of_the_slots_and_of_the_time() -> None:
    bench = Bench(slots=9)
    assert bench.go() == (ORDERS,)
    assert bench.sink.asked == [2]
    (plan,) = bench.plans
    assert all(s.upkeep and s.log_bytes == 100 for s in plan.stretch.segments)
    assert (plan.spec_version, plan.epoch) == (3, 9)
    (done,) = bench.sink.done
    assert [(piece.work, made) for piece, made in done] == [
        ({"number": 0}, {"number": 0}),
        ({"number": 1}, {"number": 1}),
    ]
    bench.now += 5.9
    assert bench.go() is None and len(bench.plans) == 1
    bench.now += 0.2
    bench.go()
    assert len(bench.plans) == 2


@pytest.mark.parametrize("slots", [1, 3])
def test_few_slots_are_one_piece(slots: int) -> None:
    bench = Bench(slots)
    bench.go()
    assert bench.sink.asked == [1]


def test_tables_are_told_now_and_then() -> None:
    bench = Bench()
    bench.sink.left = 0
    assert bench.go() == (ORDERS,)
    bench.now += STATUS_EVERY_S - 1
    assert bench.go() is None
    bench.now += 2
    assert bench.go() == (ORDERS,)
    assert bench.plans == []


def test_what_fails_is_a_warning_and_comes_later(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    bench.error = SinkUnavailable("the bucket is away")
    wait = FIRST_WAIT_S
    for number in range(1, 10):
        caplog.clear()
        assert bench.go() is None
        assert len(bench.plans) == number
        (line,) = [r.message for r in caplog.records if r.levelno == logging.WARNING]
        assert f"tried again in {wait:.0f} s" in line and "the bucket is away" in line
        bench.now += wait - 0.1
        assert bench.go() is None and len(bench.plans) == number
        bench.now += 0.2
        wait = min(2 * wait, LONGEST_WAIT_S)
    assert bench.sink.done == []
    bench.error = None
    bench.go()
    assert bench.sink.done
    bench.now += 100
    bench.error = SinkUnavailable("again")
    caplog.clear()
    bench.go()
    assert f"in {FIRST_WAIT_S:.0f} s" in caplog.text


def test_a_task_without_a_result_commits_nothing(caplog: pytest.LogCaptureFixture) -> None:
    bench = Bench()
    bench.rounds._run = lambda plan: []
    assert bench.go() is None
    assert bench.sink.done == [] and "without its result" in caplog.text


def test_a_sink_without_upkeep_is_left_alone() -> None:
    flow: Any = SimpleNamespace(sink=object(), hiding=NOTHING_HIDDEN)
    assert UpkeepRounds("feed", flow, lambda plan: [], object()).go(1, 1) is None


# --- in a loop ------------------------------------------------------------------------------------


class Gone(BaseException):
    """The process is killed."""


class Feed:
    """A changefeed from a script to Delta tables; every `loop()` is a new process's."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.script = SCRIPTS.setdefault(root.name, Script())
        self.script.most = 1
        self.store = open_store(f"sqlite:///{root}/meta.db")
        self.uri = f"delta+file://{root}/lake?fsync=false&optimize-after=4&checkpoint-interval=5"
        source = Uri.parse(f"scripted://{root.name}", "source")
        self.spec = ChangefeedSpec("feed", source, Uri.parse(self.uri, "sink"))
        self.store.create_changefeed(self.spec)
        self.clock = 1_000

    def loop(self) -> Loop:
        self.clock += 1000
        claim = self.store.claim("feed", Holder.here(), float(self.clock), 0.0)
        flow = assemble(self.spec)
        return Loop("feed", flow, self.store, claim, InProcessRunner(), lambda: self.clock)

    def table(self) -> DeltaTable:
        return DeltaTable(str(self.root / "lake/shop/orders"))

    def ids(self) -> list[int]:
        query = QueryBuilder().register("t", self.table())
        found = pa.table(query.execute("SELECT id FROM t ORDER BY id").read_all())
        return [int(i) for i in found.column("id").to_pylist()]


@pytest.fixture
def feed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Feed]:
    monkeypatch.setattr("rowferry.control.feed.upkeep_rounds.TIME_SHARE", 1)
    register_scripted_source()
    yield Feed(tmp_path)
    forget_scripted_source()


def without_rest(loop: Loop) -> Loop:
    """Let a minute pass between any two looks at the clock, so that each round is due."""
    loop._upkeep._clock = iter(float(n) for n in range(0, 100_000, 60)).__next__
    return loop


def test_a_loop_merges_small_files_between_micro_batches(feed: Feed) -> None:
    for number in range(12):
        feed.script.commit(number)
    loop = without_rest(feed.loop())
    told = []
    for _ in range(12):
        told.append(loop.step().target_tables)
    assert feed.ids() == list(range(12))
    assert len(feed.table().file_uris()) < 5
    operations = [one["operation"] for one in feed.table().history()]
    assert operations.count("OPTIMIZE") > 1 and operations.count("MERGE") == 12
    assert list((feed.root / "lake/shop/orders/_delta_log").glob("*.checkpoint.parquet"))
    last = told[-1]
    assert last is not None and last[0].rows == 12 and last[0].checkpoint_ts == loop.watermark


def test_a_loop_goes_on_where_upkeep_fails(feed: Feed, caplog: pytest.LogCaptureFixture) -> None:
    for number in range(8):
        feed.script.commit(number)

    def broken(name: str) -> None:
        if name == "read data file to write it anew":
            raise SinkUnavailable("no answer")

    loop = without_rest(feed.loop())
    with watched(broken):
        for _ in range(8):
            assert loop.step().published
    assert feed.ids() == list(range(8))
    assert "upkeep of its tables failed" in caplog.text
    assert len(feed.table().file_uris()) == 8


@pytest.mark.parametrize(
    "place",
    [
        "look for upkeep of lake",
        "put delta checkpoint",
        "run upkeep job",
        "read data file to write it anew",
        "put rewritten file",
        "upkeep job done",
        "commit upkeep of lake",
        "commit delta version",
        "delta version committed",
        "delete key run",
        "look what lake tables are made of",
    ],
)
def test_killed_anywhere_in_a_round(feed: Feed, place: str) -> None:
    for number in range(9):
        feed.script.commit(number)
    met = []

    def kill(name: str) -> None:
        met.append(name)
        since = met[met.index("run upkeep job") :] if "run upkeep job" in met else []
        early = place in ("look for upkeep of lake", "put delta checkpoint")
        if name == place and (early or since):
            raise Gone

    loop = without_rest(feed.loop())
    with pytest.raises(Gone), watched(kill):
        for _ in range(9):
            loop.step()
    loop = without_rest(feed.loop())
    while not (step := loop.step()).caught_up or step.replayed:
        pass
    for number in range(9, 15):
        feed.script.commit(number)
    for _ in range(8):
        loop.step()
    assert feed.ids() == list(range(15))
    assert len(feed.table().file_uris()) < 7
    log = json.loads((feed.root / "lake/rowferry.progress").read_text())
    assert log["checkpoint-ts"] == loop.watermark
