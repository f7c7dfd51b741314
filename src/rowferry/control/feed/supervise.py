"""Keeps a loop going: repeats, re-plans or stops, by the verdict of what went wrong."""

from __future__ import annotations

import logging
import random
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from rowferry.control.feed.lease import Claim
from rowferry.control.feed.loop import StepResult
from rowferry.control.lifecycle import Verb
from rowferry.control.store.contract import MetaStore
from rowferry.errors import IllegalMove, MetaUnavailable, RowferryError, TaskFailed, Verdict

LOG = logging.getLogger(__name__)
FIRST_WAIT_S = 0.5
LONGEST_WAIT_S = 30.0
META_WAIT_S = 1.0  # without the meta database nothing is lost and nothing else is disturbed
IDLE_PUBLISH_S = 2.0
IDLE_WAIT_S = 0.05
LONGEST_LOOK_S = 0.2  # until a changefeed that had nothing to do looks again
FEW_ROWS = 10_000  # a micro-batch with more is no burden by being one more


@dataclass(frozen=True, slots=True)
class Patience:
    """How long to wait before a failed step is tried again: twice as long each time.

    Attributes:
        spread: each wait is longer or shorter by up to this share, so that many changefeeds with
            one broken target do not all come back at once.
    """

    first_s: float = FIRST_WAIT_S
    longest_s: float = LONGEST_WAIT_S
    spread: float = 0.0

    def spread_out(self, wait_s: float) -> float:
        """Return a wait with its random share."""
        return wait_s * random.uniform(1 - self.spread, 1 + self.spread) if self.spread else wait_s


AT_A_SHELL = Patience()
OF_A_SERVER = Patience(10.0, 600.0, 0.1)


class Steps(Protocol):
    """What a supervisor keeps going; see `Loop`."""

    def step(self, publish_idle: bool = True) -> StepResult:
        """Do the next thing."""

    def replan(self, why: str) -> None:
        """Discard the pending plan."""


class Signal(Protocol):
    """Something that is so, or not yet so: an Event, or a lease that runs out."""

    def is_set(self) -> bool:
        """Return whether it is so."""


@dataclass(frozen=True, slots=True)
class Until:
    """When a run ends by itself; with both unset it goes on until it is stopped."""

    caught_up: bool = False
    commit_ts: int | None = None

    def reached(self, step: StepResult) -> bool:
        """Return whether this step was the last one wanted."""
        if step.finished:
            return True
        if self.commit_ts is not None:
            return step.watermark >= self.commit_ts and not step.sent_again
        return self.caught_up and step.caught_up and step.published


def settle_move(store: MetaStore, claim: Claim, verb: Verb, error: Exception | None) -> bool:
    """Store a change of state; failing to store it must not hide what is being stored.

    Returns:
        Whether nothing is left to store: it is, or an operator was faster.
    """
    try:
        store.move(claim, verb, error)
    except IllegalMove:
        return True
    except RowferryError as err:
        LOG.warning("changefeed %s: state not stored (%s): %s", claim.changefeed, verb, err)
        return False
    return True


class Supervisor:
    """Runs one loop until its end, a stop request, or an error that cannot be repeated away."""

    def __init__(
        self,
        loop: Steps,
        move: Callable[[Verb, Exception | None], bool],
        tell_step: Callable[[StepResult], None],
        tell_fault: Callable[[RowferryError, float], None],
        flush_interval_s: float,
        give_up_after_s: float,
        patience: Patience = AT_A_SHELL,
        idle_publish_s: float = IDLE_PUBLISH_S,
        recovering: bool = False,
        rest_s: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """Watch over a loop.

        `move` stores a change of state and returns whether it is settled; what is not is asked
        for again. `recovering`: an error of an earlier run is still shown. `rest_s`: how long
        after the beginning of a small micro-batch the next one may begin, so that many
        changefeeds get by.
        """
        self._loop = loop
        self._move = move
        self._tell_step = tell_step
        self._tell_fault = tell_fault
        self._flush_interval_s = flush_interval_s
        self._give_up_after_s = give_up_after_s
        self._patience = patience
        self._idle_publish_s = idle_publish_s
        self._rest_s = rest_s
        self._failing_since: float | None = None
        self._fault_stored = False  # of the time that it has been failing for
        self._recovering = recovering
        self._wait_s = patience.first_s
        self.finished = False  # the source has nothing more to give, ever

    def run(self, until: Until, stop: threading.Event, lost: Signal) -> None:
        """Step until done. `stop` is obeyed between micro-batches; `lost` says the lease is gone.

        Raises:
            RowferryError: with verdict STOP, or after failing for longer than allowed.
        """
        last_idle_publish = 0.0
        while not stop.is_set() and not lost.is_set():
            began = time.monotonic()
            publish_idle = until.caught_up or began - last_idle_publish >= self._idle_publish_s
            fault: RowferryError | None = None
            try:
                step = self._loop.step(publish_idle)
            except Exception as err:
                fault = _ours(err)
                _forget_frames(err)
            if fault is not None:
                self._on_fault(fault, stop)
                continue
            self._on_success(step)
            if step.published:
                last_idle_publish = began
            self.finished = step.finished
            if until.reached(step):
                return
            pause = self._pause(step, until)
            if pause:
                stop.wait(max(0.0, pause - (time.monotonic() - began)))

    def _pause(self, step: StepResult, until: Until) -> float:
        """Return how long after its beginning a step may be followed by the next one."""
        pause = 0.0
        follows = step.follows and not until.caught_up  # who waits for the end looks at once
        if step.caught_up or follows or not step.published:
            pause = min(
                self._flush_interval_s if step.rows else IDLE_WAIT_S, self._flush_interval_s
            )
        if not step.published:
            pause = max(pause, min(self._rest_s(), LONGEST_LOOK_S))
        elif step.rows < FEW_ROWS and not step.snapshots:
            pause = max(pause, self._rest_s())
        return pause

    def _on_success(self, step: StepResult) -> None:
        if step.published and (self._recovering or self._failing_since is not None):
            self._failing_since = None
            self._wait_s = self._patience.first_s
            self._recovering = not self._move(Verb.RECOVER, None)
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
            self._failing_since, self._fault_stored = now, False
        elif now - self._failing_since > self._give_up_after_s:
            self._move(Verb.GIVE_UP, err)
            raise err
        if not self._fault_stored:
            self._fault_stored = self._move(Verb.FAULT, err)
        wait_s = self._patience.spread_out(self._wait_s)
        if isinstance(err, MetaUnavailable):  # no reason to trust source and sink any less
            wait_s = min(wait_s, META_WAIT_S)
        else:
            self._wait_s = min(self._wait_s * 2, self._patience.longest_s)
        self._tell_fault(err, wait_s)
        stop.wait(wait_s)


def _forget_frames(err: BaseException | None) -> None:
    """Let go of what the frames hold that an error and its causes came through.

    That is the plan and its bytes, while the changefeed waits; and what errors and frames hold of
    each other would wait for the collector of garbage, which a quiet process hardly ever calls.
    """
    seen: set[int] = set()
    while err is not None and id(err) not in seen:
        seen.add(id(err))
        traceback.clear_frames(err.__traceback__)
        err = err.__cause__ or err.__context__


def _ours(err: Exception) -> RowferryError:
    if isinstance(err, RowferryError):
        LOG.warning("step failed: %s", err)
        return err
    LOG.error("step failed in an unforeseen way", exc_info=err)
    return TaskFailed(f"unforeseen {type(err).__name__}: {err}")
