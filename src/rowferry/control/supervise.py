"""Keeps a loop going: repeats, re-plans or stops, by the verdict of what went wrong."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from rowferry.control.lifecycle import Verb
from rowferry.control.loop import Loop, Step
from rowferry.errors import RowferryError, TaskFailed, Verdict

LOG = logging.getLogger(__name__)
FIRST_WAIT_S = 0.5
LONGEST_WAIT_S = 30.0
IDLE_PUBLISH_S = 2.0
IDLE_WAIT_S = 0.2


@dataclass(frozen=True, slots=True)
class Until:
    """When a run ends by itself; with both unset it goes on until it is stopped."""

    caught_up: bool = False
    commit_ts: int | None = None

    def reached(self, step: Step) -> bool:
        """Return whether this step was the last one wanted."""
        if step.finished:
            return True
        if self.commit_ts is not None:
            return step.watermark >= self.commit_ts
        return self.caught_up and step.caught_up and step.published


class Supervisor:
    """Runs one loop until its end, a stop request, or an error that cannot be repeated away."""

    def __init__(
        self,
        loop: Loop,
        move: Callable[[Verb, Exception | None], None],
        tell_step: Callable[[Step], None],
        tell_fault: Callable[[RowferryError, float], None],
        flush_interval_s: float,
        give_up_after_s: float,
    ) -> None:
        self._loop = loop
        self._move = move
        self._tell_step = tell_step
        self._tell_fault = tell_fault
        self._flush_interval_s = flush_interval_s
        self._give_up_after_s = give_up_after_s
        self._failing_since: float | None = None
        self._wait_s = FIRST_WAIT_S
        self.finished = False  # the source has nothing more to give, ever

    def run(self, until: Until, stop: threading.Event, lost: threading.Event) -> None:
        """Step until done. `stop` is obeyed between micro-batches; `lost` says the lease is gone.

        Raises:
            RowferryError: with verdict STOP, or after failing for longer than allowed.
        """
        last_idle_publish = 0.0
        while not stop.is_set() and not lost.is_set():
            began = time.monotonic()
            publish_idle = until.caught_up or began - last_idle_publish >= IDLE_PUBLISH_S
            try:
                step = self._loop.step(publish_idle or until.commit_ts is not None)
            except Exception as err:
                self._on_fault(_ours(err), stop)
                continue
            self._on_success(step)
            if step.published:
                last_idle_publish = began
            self.finished = step.finished
            if until.reached(step):
                return
            if step.caught_up or not step.published:
                pause = self._flush_interval_s if step.rows else IDLE_WAIT_S
                pause = min(pause, self._flush_interval_s)
                stop.wait(max(0.0, pause - (time.monotonic() - began)))

    def _on_success(self, step: Step) -> None:
        if self._failing_since is not None and step.published:
            self._failing_since = None
            self._wait_s = FIRST_WAIT_S
            self._move(Verb.RECOVER, None)
        self._tell_step(step)

    def _on_fault(self, err: RowferryError, stop: threading.Event) -> None:
        """Repair what can be repaired; raise what cannot."""
        if err.verdict is Verdict.REPLAN:
            try:
                self._loop.replan(str(err))
            except Exception as why:  # the plan is still pending: its next run asks for this again
                err = _ours(why)
        if err.verdict is Verdict.STOP:
            self._move(Verb.GIVE_UP, err)
            raise err
        now = time.monotonic()
        if self._failing_since is None:
            self._failing_since = now
            self._move(Verb.FAULT, err)
        elif now - self._failing_since > self._give_up_after_s:
            self._move(Verb.GIVE_UP, err)
            raise err
        self._tell_fault(err, self._wait_s)
        stop.wait(self._wait_s)
        self._wait_s = min(self._wait_s * 2, LONGEST_WAIT_S)


def _ours(err: Exception) -> RowferryError:
    if isinstance(err, RowferryError):
        LOG.warning("step failed: %s", err)
        return err
    LOG.error("step failed in an unforeseen way", exc_info=err)
    return TaskFailed(f"unforeseen {type(err).__name__}: {err}")
