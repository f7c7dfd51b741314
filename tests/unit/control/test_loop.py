"""Plan, record, run, publish: in this order, and whatever fails in between, nothing is lost."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from loop_kit import NAME, ORDER, START, Bench, forget_scripted_source, register_scripted_source

from rowferry.change.chunk import Op, Rows, SchemaChange
from rowferry.change.plan import Plan
from rowferry.change.quarantine import DivertedRow
from rowferry.control.feed.loop import Loop
from rowferry.control.lifecycle import FeedState, Verb
from rowferry.control.store.contract import LogLine, MetaStore
from rowferry.control.store.sql_store import open_store
from rowferry.errors import Fenced, MetaUnavailable, SinkUnavailable, SnapshotGone
from rowferry.flow.assemble import assemble
from rowferry.spark.job import InProcessRunner
from rowferry.spec.uri import Uri
from rowferry.testing.storage import storage_changes

WHEN = ("before", "after")


@pytest.fixture(scope="module")
def new_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty meta database: making one takes longer than most tests here."""
    path = tmp_path_factory.mktemp("meta") / "meta.db"
    open_store(f"sqlite:///{path}").close()
    return path


@pytest.fixture
def store(tmp_path: Path, new_database: Path) -> Iterator[MetaStore]:
    shutil.copy(new_database, tmp_path / "meta.db")
    found = open_store(f"sqlite:///{tmp_path / 'meta.db'}")
    yield found
    found.close()


@pytest.fixture
def bench(tmp_path: Path, store: MetaStore) -> Iterator[Bench]:
    register_scripted_source()
    yield Bench(tmp_path / "out", store)
    forget_scripted_source()


def run_out(loop: Loop) -> None:
    for _ in range(20):
        if loop.step().caught_up:
            return
    raise AssertionError("the loop never caught up")


def delivered(bench: Bench) -> list[int]:
    """The ids that a reader of the directory sees, in its order."""
    changes = storage_changes(bench.root, assemble(bench.spec).encode)
    return [i for c in changes if isinstance(c, Rows) for i in c.after.field("id").to_pylist()]


def data_files(bench: Bench) -> dict[str, bytes]:
    return {str(p.relative_to(bench.root)): p.read_bytes() for p in bench.root.rglob("CDC*.json")}


def metadata(bench: Bench) -> int:
    return int(json.loads((bench.root / "metadata").read_text())["checkpoint-ts"])


def dump(path: Path) -> list[str]:
    with closing(sqlite3.connect(path)) as raw:
        return list(raw.iterdump())


def test_a_step_plans_records_runs_and_publishes_in_this_order(bench: Bench) -> None:
    bench.script.commit(1, 2)
    done = bench.loop().step()
    assert bench.journal.calls == ORDER
    assert (done.published, done.replayed, done.caught_up) == (True, False, True)
    assert (done.micro_batch, done.rows, done.schema_changes) == (1, 2, 0)
    assert done.watermark == metadata(bench) == bench.script.ts(0)
    assert delivered(bench) == [1, 2]
    assert bench.store.pending("feed") is None
    assert bench.store.state("feed").position == {"next": 1}


def test_the_plan_is_pending_while_its_job_runs(bench: Bench) -> None:
    bench.script.commit(1)
    bench.journal.fail("before", "run", SinkUnavailable("not now"))
    with pytest.raises(SinkUnavailable):
        bench.loop().step()
    pending = bench.store.pending("feed")
    assert pending is not None
    assert pending.planned_at_ms == bench.clock
    assert pending.outputs


def test_stretch_after_stretch_gives_the_log_once_and_in_order(bench: Bench) -> None:
    for i in range(7):
        bench.script.commit(10 * i, 10 * i + 1)
    run_out(bench.loop())
    assert delivered(bench) == bench.script.ids()
    assert bench.store.state("feed").micro_batch == 4


@pytest.mark.parametrize("when", WHEN)
@pytest.mark.parametrize("call", ORDER)
def test_a_new_process_continues_where_the_old_one_died(bench: Bench, call: str, when: str) -> None:
    for i in range(5):
        bench.script.commit(i)
    first = bench.loop()
    first.step()
    bench.journal.fail(when, call, RuntimeError("killed"))
    with pytest.raises(RuntimeError):
        first.step()
    left, pending = data_files(bench), bench.store.pending("feed")
    second = bench.loop()
    step = second.step()
    assert step.replayed is (pending is not None)
    if pending is not None:
        stamps = {json.loads(line)["ts"] for line in _lines(bench, pending.outputs[0].target)}
        assert stamps == {pending.planned_at_ms}
    run_out(second)
    assert {p: data_files(bench)[p] for p in left} == left
    assert delivered(bench) == bench.script.ids()
    assert bench.store.state("feed").micro_batch == 3


def _lines(bench: Bench, target: dict[str, str]) -> list[str]:
    return (bench.root / target["path"]).read_text().splitlines()


@pytest.mark.parametrize("when", WHEN)
@pytest.mark.parametrize("call", ORDER)
def test_the_same_loop_goes_on_after_an_error_that_passes(
    bench: Bench, call: str, when: str
) -> None:
    """`after` is a lost answer: the thing was done, and the loop does not know."""
    for i in range(5):
        bench.script.commit(i)
    loop = bench.loop()
    loop.step()
    bench.journal.fail(when, call, MetaUnavailable("no answer"))
    with pytest.raises(MetaUnavailable):
        loop.step()
    run_out(loop)
    assert delivered(bench) == bench.script.ids()
    assert loop.watermark == metadata(bench) == bench.script.ts(4)
    assert bench.store.state("feed").micro_batch == 3


def test_the_watermark_known_after_a_lost_answer_is_the_published_one(bench: Bench) -> None:
    bench.script.commit(1)
    loop = bench.loop()
    bench.journal.fail("after", "publish", MetaUnavailable("no answer"))
    with pytest.raises(MetaUnavailable):
        loop.step()
    assert loop.step(publish_idle=False).watermark == bench.script.ts(0)


def test_a_schema_change_follows_the_rows_before_it(bench: Bench) -> None:
    bench.script.commit(1)
    bench.script.add_column("colour")
    bench.script.commit(2)
    loop = bench.loop()
    assert (loop.step().rows, loop.step().rows) == (1, 1)
    assert delivered(bench) == [1, 2]
    changes = [
        c
        for c in storage_changes(bench.root, assemble(bench.spec).encode)
        if isinstance(c, SchemaChange) and c.query
    ]
    assert [c.commit_ts for c in changes] == [bench.script.ts(1)]
    assert "colour-2" in str(data_files(bench))
    assert "colour-1" not in str(data_files(bench))


@pytest.mark.parametrize("call", ["record", "run", "show", "publish"])
def test_a_schema_change_is_published_once_after_a_crash(bench: Bench, call: str) -> None:
    bench.script.commit(1)
    bench.script.add_column("colour")
    bench.script.commit(2)
    bench.journal.fail("after", call, RuntimeError("killed"))
    with pytest.raises(RuntimeError):
        bench.loop().step()
    run_out(bench.loop())
    assert delivered(bench) == [1, 2]
    assert len(list(bench.root.rglob(f"schema_{bench.script.ts(1)}_*.json"))) == 1


def test_versions_that_were_replaced_are_let_go(bench: Bench) -> None:
    """A loop that runs for months meets many DDLs, and needs only the present table of each."""
    for number in range(1, 9):
        bench.script.commit(number)
        bench.script.add_column(f"c{number}")
    bench.script.commit(9)
    loop = bench.loop()
    run_out(loop)
    assert delivered(bench) == list(range(1, 10))
    assert [version for _, version in loop._versions] == [bench.script.versions[-1].version]


# --- plans that can never run again ---------------------------------------------------------------


def test_replan_discards_and_plans_the_same_stretch_anew(bench: Bench, store: MetaStore) -> None:
    for i in range(4):
        bench.script.commit(i)
    loop = bench.loop()
    loop.step()
    bench.journal.fail("after", "run", SnapshotGone("range 3 no longer has snapshot 9"))
    with pytest.raises(SnapshotGone):
        loop.step()
    assert len(data_files(bench)) == 2
    bench.journal.calls.clear()
    loop.replan("the snapshot is gone")
    assert bench.journal.calls == ["discard", "forget"]  # files first: the plan names them
    assert store.pending("feed") is None
    assert len(data_files(bench)) == 1
    note = store.history("feed")[0]
    assert (note.what, note.details["why"]) == ("discarded", "the snapshot is gone")
    run_out(loop)
    assert delivered(bench) == bench.script.ids()
    assert store.state("feed").micro_batch == 2


def test_replan_without_a_pending_plan_only_reads_again(bench: Bench) -> None:
    bench.script.commit(1)
    loop = bench.loop()
    loop.step()
    loop.replan("nothing is pending")
    assert "discard" not in bench.journal.calls
    bench.script.commit(2)
    run_out(loop)
    assert delivered(bench) == [1, 2]


@pytest.mark.parametrize("call", ["discard", "forget"])
def test_a_discard_that_fails_can_be_repeated(bench: Bench, call: str) -> None:
    bench.script.commit(1)
    loop = bench.loop()
    bench.journal.fail("after", "run", SnapshotGone("gone"))
    with pytest.raises(SnapshotGone):
        loop.step()
    bench.journal.fail("after", call, MetaUnavailable("no answer"))
    with pytest.raises(MetaUnavailable):
        loop.replan("gone")
    loop.replan("gone")
    run_out(loop)
    assert delivered(bench) == [1]


def test_a_new_process_takes_a_plan_back_as_its_owner(bench: Bench) -> None:
    """A sink that was not opened yet knows neither who asks nor what was delivered."""
    bench.script.commit(1)
    bench.journal.fail("after", "run", SnapshotGone("gone"))
    with pytest.raises(SnapshotGone):
        bench.loop().step()
    loop = bench.loop()
    sink: Any = loop._flow.sink
    sink._names["open"] = "open"
    bench.journal.calls.clear()
    loop.replan("the sink was changed")
    assert bench.journal.calls == ["open", "discard", "forget"]
    run_out(loop)
    assert delivered(bench) == [1]


# --- time alone -----------------------------------------------------------------------------------


def test_an_idle_step_writes_nothing(bench: Bench, tmp_path: Path) -> None:
    bench.script.commit(1)
    loop = bench.loop()
    loop.step()
    stored, seen = dump(tmp_path / "meta.db"), metadata(bench)
    bench.script.now = START + 1_000
    step = loop.step(publish_idle=False)
    assert (step.published, step.caught_up, step.watermark) == (False, True, seen)
    assert dump(tmp_path / "meta.db") == stored
    assert metadata(bench) == seen


def test_an_idle_step_publishes_the_watermark_when_asked(bench: Bench) -> None:
    bench.script.commit(1)
    loop = bench.loop()
    loop.step()
    bench.script.now = START + 1_000
    bench.journal.calls.clear()
    step = loop.step(publish_idle=True)
    assert (step.published, step.rows, step.watermark) == (True, 0, START + 1_000)
    assert metadata(bench) == START + 1_000
    assert "run" not in bench.journal.calls  # no job for time alone
    again = loop.step(publish_idle=True)
    assert (again.published, metadata(bench)) == (False, START + 1_000)


def test_rows_that_follow_idle_steps_are_not_lost(bench: Bench) -> None:
    loop = bench.loop()
    for i in range(3):
        bench.script.commit(i)
        loop.step()
        loop.step(publish_idle=False)
    assert delivered(bench) == [0, 1, 2]


# --- ownership and settings -----------------------------------------------------------------------


@pytest.mark.parametrize("call", ["plan", "allocate", "record", "run", "show"])
def test_a_loop_whose_changefeed_was_taken_over_changes_nothing(bench: Bench, call: str) -> None:
    """Another process claims it just after the old one has done `call`."""
    bench.script.commit(1)
    old = bench.loop()
    bench.journal.fail("after", call, RuntimeError("a long pause"))
    with pytest.raises(RuntimeError):
        old.step()
    new = bench.loop()
    run_out(new)
    bench.script.commit(2)
    before = data_files(bench), metadata(bench), bench.store.state("feed")
    with pytest.raises(Fenced):
        old.step()
    with pytest.raises(Fenced):
        old.step()
    assert (data_files(bench), metadata(bench), bench.store.state("feed")) == before
    run_out(new)
    assert delivered(bench) == [1, 2]


def test_a_recorded_plan_runs_with_its_own_settings(bench: Bench) -> None:
    bench.script.commit(1)
    bench.journal.fail("after", "record", RuntimeError("killed"))
    with pytest.raises(RuntimeError):
        bench.loop().step()
    changed = {"sink": {"terminator": "\n", "enable-tidb-extension": False}}
    bench.store.update_spec("feed", replace(bench.spec, config=changed))
    loop = bench.loop()
    assert loop.step().replayed
    bench.script.commit(2)
    run_out(loop)
    texts = [data_files(bench)[path] for path in sorted(data_files(bench))]
    assert [b"_tidb" in text for text in texts] == [True, False]


def test_a_plan_that_would_be_written_elsewhere_is_made_anew(bench: Bench) -> None:
    """Its tasks would write to the old place, and the new one would be told of their files."""
    bench.script.commit(1)
    bench.journal.fail("after", "record", RuntimeError("killed"))
    with pytest.raises(RuntimeError):
        bench.loop().step()
    bench.root = bench.root.parent / "moved"
    moved = Uri.parse(f"file://{bench.root}?protocol=canal-json&fsync=false", "sink")
    bench.spec = replace(bench.spec, sink=moved)
    bench.store.update_spec("feed", bench.spec)
    bench.script.commit(2)
    run_out(bench.loop())
    assert delivered(bench) == [1, 2]


def test_a_plan_with_a_password_of_before_is_made_anew(bench: Bench) -> None:
    """It may have been why the plan never ended: the old one is not tried again for ever."""
    old = {**bench.spec.config, "sink": {**bench.spec.section("sink"), "sasl-password": "old"}}
    bench.spec = replace(bench.spec, config=old)
    bench.store.update_spec("feed", bench.spec)
    bench.script.commit(1)
    bench.journal.fail("before", "run", SinkUnavailable("this password is not taken"))
    with pytest.raises(SinkUnavailable):
        bench.loop().step()
    new = {**old, "sink": {**bench.spec.section("sink"), "sasl-password": "new"}}
    bench.spec = replace(bench.spec, config=new)
    bench.store.update_spec("feed", bench.spec)
    loop = bench.loop()
    assert not loop.step().published
    assert bench.store.pending("feed") is None
    run_out(loop)
    assert delivered(bench) == [1]


class WithMadeChanges:
    """A sink that has all of a plan that did not end: its rows, and its first schema change."""

    def __init__(self, sink: Any) -> None:
        self._sink = sink

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sink, name)

    def has_rows_of(self, plan: Plan) -> bool:
        return True

    def has_changes_of(self, plan: Plan) -> bool:
        return True

    def publish(self, *given: object) -> None:
        pass


def test_a_plan_that_has_made_its_schema_change_is_carried_out_wherever_it_goes_now(
    bench: Bench,
) -> None:
    """One in its place would leave its rows out, and those that it has parked would be nowhere."""
    old = {**bench.spec.config, "sink": {**bench.spec.section("sink"), "sasl-password": "old"}}
    bench.spec = replace(bench.spec, config=old)
    bench.store.update_spec("feed", bench.spec)
    bench.script.commit(1)
    bench.script.add_column("more")
    bench.journal.fail("before", "publish", MetaUnavailable("away"))
    claim = bench.claim()
    with pytest.raises(MetaUnavailable):
        bench.loop(claim).step()
    pending = bench.store.pending("feed")
    assert pending is not None
    assert pending.stretch.schema_changes
    row = DivertedRow(NAME, 7, START, None, "1", int(Op.INSERT), START + 1, "0" * 64, b"row")
    bench.store.park(claim, pending, [row])
    new = {**old, "sink": {**bench.spec.section("sink"), "sasl-password": "new"}}
    bench.spec = replace(bench.spec, config=new)
    bench.store.update_spec("feed", bench.spec)
    flow, runner = assemble(bench.spec), InProcessRunner()
    sink: Any = WithMadeChanges(flow.sink)
    loop = Loop(
        "feed", replace(flow, sink=sink), bench.store, bench.claim(), runner, lambda: bench.clock
    )
    done = loop.step()
    assert done.published
    assert done.replayed
    assert bench.store.pending("feed") is None
    assert [one.key for one in bench.store.parked("feed")] == ["1"]


def test_an_error_is_stored_whatever_its_words_are(bench: Bench) -> None:
    """Names of files may hold bytes that are no text."""
    bench.store.move("feed", Verb.FAULT, SinkUnavailable("no \0 and no \udcff"))
    feed = bench.store.feed("feed")
    assert feed is not None
    assert (feed.state, feed.error) == (FeedState.WARNING, "no \\0 and no \\udcff")
    bench.store.add_log_lines({"feed": [LogLine(1.0, "warning", "here", "file \udcff")]})
    assert [line.words for line in bench.store.log_lines("feed")] == ["file \\udcff"]


def test_closing_twice_is_harmless(bench: Bench) -> None:
    bench.script.commit(1)
    loop = bench.loop()
    loop.close()
    loop.step()
    loop.close()
    loop.close()
