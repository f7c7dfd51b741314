"""What a supervisor does about each verdict, how long it waits, and when it ends."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from rowferry.control.feed import supervise
from rowferry.control.feed.loop import StepResult
from rowferry.control.feed.supervise import (
    FIRST_WAIT_S,
    IDLE_PUBLISH_S,
    IDLE_WAIT_S,
    LONGEST_LOOK_S,
    LONGEST_WAIT_S,
    META_WAIT_S,
    OF_A_SERVER,
    Supervisor,
    Until,
)
from rowferry.control.lifecycle import Verb
from rowferry.errors import (
    Fenced,
    MetaUnavailable,
    RowferryError,
    RowRejected,
    SinkUnavailable,
    SnapshotGone,
    TaskFailed,
    Verdict,
)

FLUSH_S = 5.0
BUSY = StepResult(published=True, rows=10, micro_batch=1, watermark=100)
DONE = StepResult(published=True, caught_up=True, rows=10, micro_batch=2, watermark=200)
IDLE = StepResult(published=False, caught_up=True, watermark=200)


class ScriptedLoop:
    """Steps that were written down before: what to return, or to raise."""

    def __init__(self, *script: StepResult | Exception | Callable[[], StepResult]) -> None:
        self.script = list(script)
        self.replanned: list[str] = []
        self.replan_errors: list[Exception] = []
        self.publish_idle: list[bool] = []

    def step(self, publish_idle: bool = True) -> StepResult:
        self.publish_idle.append(publish_idle)
        entry = self.script.pop(0)
        if isinstance(entry, Exception):
            raise entry
        return entry() if callable(entry) else entry

    def replan(self, why: str) -> None:
        self.replanned.append(why)
        if self.replan_errors:
            raise self.replan_errors.pop(0)


class Watch:
    """A supervisor over a script, with a clock that moves only while it waits."""

    def __init__(self, loop: ScriptedLoop, patch: pytest.MonkeyPatch) -> None:
        self.now = 1_000.0
        self.waits: list[float] = []
        self.moves: list[tuple[Verb, str]] = []
        self.not_stored: list[Verb] = []  # moves that fail, once each
        self.steps: list[StepResult] = []
        self.faults: list[tuple[str, float]] = []
        self.loop = loop
        self.stop = _Stop(self)
        self.lost = threading.Event()
        patch.setattr(supervise, "time", SimpleNamespace(monotonic=lambda: self.now))

    def run(self, until: Until | None = None, give_up_after_s: float = 1800.0, **more: Any) -> None:
        loop: Any = self.loop
        Supervisor(
            loop,
            move=self._move,
            tell_step=self.steps.append,
            tell_fault=lambda error, wait_s: self.faults.append((error.code, wait_s)),
            flush_interval_s=FLUSH_S,
            give_up_after_s=give_up_after_s,
            **more,
        ).run(until or Until(caught_up=True), self.stop, self.lost)

    def _move(self, verb: Verb, error: Exception | None) -> bool:
        self.moves.append((verb, _code(error)))
        if verb in self.not_stored:
            self.not_stored.remove(verb)
            return False
        return True

    def stops(self, step: StepResult = BUSY) -> Callable[[], StepResult]:
        """A step during which the operator asks to stop."""

        def call() -> StepResult:
            self.stop.set()
            return step

        return call


class _Stop(threading.Event):
    def __init__(self, watch: Watch) -> None:
        super().__init__()
        self._watch = watch

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self._watch.waits.append(timeout)
        self._watch.now += timeout
        return self.is_set()


def _code(error: Exception | None) -> str:
    return error.code if isinstance(error, RowferryError) else ""


# --- verdicts -------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [RowRejected("row 7"), Fenced("taken over")])
def test_stop_ends_the_run_at_once(error: RowferryError, monkeypatch: pytest.MonkeyPatch) -> None:
    watch = Watch(ScriptedLoop(error), monkeypatch)
    with pytest.raises(type(error)) as raised:
        watch.run()
    assert raised.value is error
    assert (watch.moves, watch.waits, watch.faults) == ([(Verb.GIVE_UP, error.code)], [], [])


def test_retry_steps_again_after_a_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = Watch(ScriptedLoop(SinkUnavailable("down"), DONE), monkeypatch)
    watch.run()
    assert watch.waits == [FIRST_WAIT_S]
    assert watch.faults == [("RF-4001", FIRST_WAIT_S)]
    assert watch.moves == [(Verb.FAULT, "RF-4001"), (Verb.RECOVER, "")]
    assert watch.steps == [DONE]


def test_an_error_that_nobody_foresaw_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = Watch(ScriptedLoop(ZeroDivisionError("1/0"), DONE), monkeypatch)
    watch.run()
    assert watch.faults == [(TaskFailed.code, FIRST_WAIT_S)]


class _Plan:
    """What the frames of a step hold."""


@pytest.mark.parametrize("caught", [ZeroDivisionError, SinkUnavailable])
def test_what_a_failed_step_held_is_let_go_before_the_wait(
    caught: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where frames and errors hold each other, and nobody collects garbage."""
    held: list[weakref.ref[_Plan]] = []

    def fail() -> StepResult:
        plan = _Plan()
        held.append(weakref.ref(plan))
        errors: list[Exception] = []
        try:
            raise ZeroDivisionError("1/0")
        except ZeroDivisionError as err:
            try:
                raise SinkUnavailable("down") from err
            except SinkUnavailable as why:
                errors.append(why if caught is SinkUnavailable else err)
        assert plan is not None
        raise errors[0]

    class Waiting(_Stop):
        def wait(self, timeout: float | None = None) -> bool:
            assert [one() for one in held] == [None]
            return super().wait(timeout)

    watch = Watch(ScriptedLoop(fail, DONE), monkeypatch)
    watch.stop = Waiting(watch)
    gc.disable()
    try:
        watch.run()
    finally:
        gc.enable()
    assert len(watch.waits) == len(held) == 1


def test_replan_discards_before_the_next_step(monkeypatch: pytest.MonkeyPatch) -> None:
    error = SnapshotGone("range 3 no longer has snapshot 9")
    watch = Watch(ScriptedLoop(error, DONE), monkeypatch)
    watch.run()
    assert watch.loop.replanned == [str(error)]
    assert error.verdict is Verdict.REPLAN
    assert watch.steps == [DONE]


def test_retry_does_not_discard(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = Watch(ScriptedLoop(SinkUnavailable("down"), DONE), monkeypatch)
    watch.run()
    assert watch.loop.replanned == []


def test_a_discard_that_fails_is_tried_again_with_the_next_fault(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    loop = ScriptedLoop(SnapshotGone("gone"), SnapshotGone("gone"), DONE)
    loop.replan_errors = [MetaUnavailable("locked")]
    watch = Watch(loop, monkeypatch)
    watch.run()
    assert len(loop.replanned) == 2
    assert watch.faults == [("RF-2001", 0.5), ("RF-3002", 0.5)]


def test_a_discard_that_can_never_work_stops_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = ScriptedLoop(SnapshotGone("gone"))
    loop.replan_errors = [Fenced("taken over")]
    watch = Watch(loop, monkeypatch)
    with pytest.raises(Fenced):
        watch.run()
    assert watch.moves == [(Verb.GIVE_UP, "RF-2002")]


# --- back-off -------------------------------------------------------------------------------------


def test_waits_double_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    errors = [SinkUnavailable("down") for _ in range(9)]
    watch = Watch(ScriptedLoop(*errors, DONE), monkeypatch)
    watch.run()
    assert watch.waits == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, LONGEST_WAIT_S]
    assert [m for m, _ in watch.moves] == [Verb.FAULT, Verb.RECOVER]  # told once, not nine times


def test_a_published_step_sets_the_wait_back(monkeypatch: pytest.MonkeyPatch) -> None:
    down = SinkUnavailable("down")
    watch = Watch(ScriptedLoop(down, down, BUSY, down, DONE), monkeypatch)
    watch.run()
    assert watch.waits == [0.5, 1.0, 0.5]
    assert [m for m, _ in watch.moves] == [Verb.FAULT, Verb.RECOVER] * 2


def test_a_step_that_published_nothing_proves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    down = SinkUnavailable("down")
    watch = Watch(ScriptedLoop(down, IDLE, down, DONE), monkeypatch)
    watch.run()
    assert [w for _, w in watch.faults] == [0.5, 1.0]
    assert [m for m, _ in watch.moves] == [Verb.FAULT, Verb.RECOVER]


def test_it_gives_up_after_failing_for_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    errors = [SinkUnavailable(f"down {i}") for i in range(9)]
    watch = Watch(ScriptedLoop(*errors), monkeypatch)
    with pytest.raises(SinkUnavailable, match="down 4"):
        watch.run(give_up_after_s=7.0)  # 0.5 + 1 + 2 + 4 > 7
    assert [m for m, _ in watch.moves] == [Verb.FAULT, Verb.GIVE_UP]


def test_a_server_waits_longer_and_each_changefeed_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    errors = [SinkUnavailable("down") for _ in range(8)]
    watch = Watch(ScriptedLoop(*errors, DONE), monkeypatch)
    watch.run(patience=OF_A_SERVER, give_up_after_s=1e9)
    steady = [10.0, 20.0, 40.0, 80.0, 160.0, 320.0, 600.0, 600.0]
    for waited, expected in zip(watch.waits, steady, strict=True):
        assert 0.9 * expected <= waited <= 1.1 * expected
    assert watch.waits != steady


def test_the_meta_database_is_asked_again_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    away, down = MetaUnavailable("away"), SinkUnavailable("down")
    watch = Watch(ScriptedLoop(away, away, away, down, DONE), monkeypatch)
    watch.run(patience=OF_A_SERVER)
    assert watch.waits[:3] == [META_WAIT_S] * 3
    assert watch.waits[3] <= 1.1 * OF_A_SERVER.first_s  # it is the sink's first error


def test_who_follows_the_source_goes_by_the_sinks_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    busy = replace(BUSY, follows=True)
    watch = Watch(ScriptedLoop(busy, BUSY, busy), monkeypatch)
    watch.loop.script.append(watch.stops())
    watch.run(Until())
    assert watch.waits == [FLUSH_S, FLUSH_S]  # not after what is far behind


def test_who_waits_for_the_end_does_not_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    watch = Watch(ScriptedLoop(replace(BUSY, follows=True), DONE), monkeypatch)
    watch.run(Until(caught_up=True))
    assert watch.waits == []


def test_many_changefeeds_that_have_nothing_to_do_look_less_often(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for rest_s, expected in ((0.0, IDLE_WAIT_S), (0.1, 0.1), (9.0, LONGEST_LOOK_S)):
        watch = Watch(ScriptedLoop(IDLE), monkeypatch)
        watch.loop.script.append(watch.stops())
        watch.run(Until(), rest_s=lambda rest_s=rest_s: rest_s)
        assert watch.waits[0] == expected


def test_an_error_of_an_earlier_run_is_over_with_the_first_published_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    watch = Watch(ScriptedLoop(IDLE, BUSY, DONE), monkeypatch)
    watch.run(recovering=True)
    assert watch.moves == [(Verb.RECOVER, "")]


def test_a_recovery_that_was_not_stored_is_stored_with_the_next_published_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    watch = Watch(ScriptedLoop(SinkUnavailable("down"), BUSY, IDLE, BUSY, BUSY, DONE), monkeypatch)
    watch.not_stored = [Verb.RECOVER]
    watch.run()
    assert [m for m, _ in watch.moves] == [Verb.FAULT, Verb.RECOVER, Verb.RECOVER]


def test_a_fault_that_was_not_stored_is_stored_with_the_next_fault(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    away, down = MetaUnavailable("away"), SinkUnavailable("down")
    watch = Watch(ScriptedLoop(away, down, down, DONE), monkeypatch)
    watch.not_stored = [Verb.FAULT]
    watch.run()
    assert watch.moves == [(Verb.FAULT, "RF-2001"), (Verb.FAULT, "RF-4001"), (Verb.RECOVER, "")]


# --- when it ends ---------------------------------------------------------------------------------


def test_a_stop_is_obeyed_between_micro_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = ScriptedLoop(BUSY)
    watch = Watch(loop, monkeypatch)
    loop.script += [watch.stops(), BUSY]
    watch.run()
    assert watch.steps == [BUSY, BUSY]  # the one under way was finished and told
    assert loop.script == [BUSY]


def test_a_stop_during_a_fault_is_obeyed(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = ScriptedLoop()
    watch = Watch(loop, monkeypatch)

    def failing() -> StepResult:
        watch.stop.set()
        raise SinkUnavailable("down")

    loop.script += [failing, BUSY]
    watch.run()
    assert loop.script == [BUSY]


def test_a_lost_lease_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = ScriptedLoop()
    watch = Watch(loop, monkeypatch)

    def losing() -> StepResult:
        watch.lost.set()
        return BUSY

    loop.script += [losing, BUSY]
    watch.run()
    assert loop.script == [BUSY]


def test_until_caught_up(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = ScriptedLoop(BUSY, DONE, BUSY)
    watch = Watch(loop, monkeypatch)
    watch.run(Until(caught_up=True))
    assert watch.steps == [BUSY, DONE]
    assert all(loop.publish_idle)


def test_until_a_commit_ts(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = ScriptedLoop(BUSY, DONE, BUSY)
    watch = Watch(loop, monkeypatch)
    watch.run(Until(commit_ts=150))
    assert watch.steps == [BUSY, DONE]


def test_a_commit_ts_that_was_passed_before_ends_the_run_with_the_first_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    watch = Watch(ScriptedLoop(IDLE), monkeypatch)
    watch.run(Until(commit_ts=200))
    assert watch.steps == [IDLE]


def test_parked_rows_are_all_sent_before_a_run_ends_where_it_ended_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    again = replace(BUSY, sent_again=True, watermark=200)
    watch = Watch(ScriptedLoop(again, again, IDLE), monkeypatch)
    watch.run(Until(commit_ts=200))
    assert watch.steps == [again, again, IDLE]


def test_caught_up_is_no_end_of_an_endless_run(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = ScriptedLoop(DONE, IDLE, BUSY)
    watch = Watch(loop, monkeypatch)
    loop.script.append(watch.stops())
    watch.run(Until())
    assert watch.steps == [DONE, IDLE, BUSY, BUSY]


# --- how long it rests ----------------------------------------------------------------------------


def test_it_rests_only_when_there_is_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = ScriptedLoop(BUSY, BUSY, DONE, IDLE)
    watch = Watch(loop, monkeypatch)
    loop.script.append(watch.stops())
    watch.run(Until())
    assert watch.waits == [FLUSH_S, IDLE_WAIT_S]


def test_time_alone_is_published_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = ScriptedLoop()
    watch = Watch(loop, monkeypatch)
    loop.script += [lambda: replace(IDLE, published=loop.publish_idle[-1])] * 140
    loop.script.append(watch.stops(IDLE))
    watch.run(Until())
    asked = [i for i, wanted in enumerate(loop.publish_idle) if wanted]
    gaps = {round(IDLE_WAIT_S * (b - a)) for a, b in pairwise(asked)}
    assert (asked[0], len(asked), gaps) == (0, 4, {IDLE_PUBLISH_S})


def test_small_micro_batches_of_many_changefeeds_are_kept_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    large = replace(BUSY, rows=1_000_000)
    loop = ScriptedLoop(BUSY, large, BUSY, IDLE)
    watch = Watch(loop, monkeypatch)
    loop.script.append(watch.stops())
    watch.run(Until(), rest_s=lambda: 0.7)
    assert watch.waits == [0.7, 0.7, LONGEST_LOOK_S, 0.7]
