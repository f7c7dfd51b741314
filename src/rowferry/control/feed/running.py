"""One claimed changefeed in a thread of its own, from its claim to its release.

Whatever goes wrong in the thread is dealt with here: nothing of one changefeed reaches another, or
the server.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from rowferry.change.position import physical_ms
from rowferry.control.feed.lease import Claim
from rowferry.control.feed.leaving import leave_sink
from rowferry.control.feed.log_scope import current_changefeed
from rowferry.control.feed.loop import STRETCH_BYTES, Loop, SegmentRunner, StepResult
from rowferry.control.feed.supervise import META_WAIT_S, OF_A_SERVER, Patience, Supervisor, Until
from rowferry.control.fleet import measures
from rowferry.control.lifecycle import FeedState, Verb
from rowferry.control.store.contract import FeedRecord, Hold, MetaStore, Sample
from rowferry.errors import (
    Fenced,
    IllegalMove,
    NoSuchChangefeed,
    RowferryError,
    TaskFailed,
    Verdict,
)
from rowferry.flow.assemble import Flow, assemble, option_tables
from rowferry.flow.sink.contract import Owner
from rowferry.spec.feed_options import ERROR_STUCK, TOP
from rowferry.spec.reach import ANYWHERE, Reach

LOG = logging.getLogger(__name__)
IDLE_PUBLISH_S: Final = 1.0


class HeldLease:
    """A lease as its holder sees it: gone when it was not renewed in time, or someone else came.

    One that has run out because we were slow may still be ours: nobody else has claimed it. So its
    changefeed stands still for a while, and goes on if it is renewed.
    """

    def __init__(
        self, claim: Claim, asked_at: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.claim = claim
        self._clock = clock
        self._changed = threading.Condition()
        self._until = asked_at + claim.ttl_s
        self._gone = False

    def renewed(self, asked_at: float) -> None:
        """Note a renewal; it counts from before it was asked for."""
        with self._changed:
            self._until = asked_at + self.claim.ttl_s
            self._changed.notify_all()

    def lose(self) -> None:
        """Note that another owner was seen, or that nobody waits for a renewal."""
        with self._changed:
            self._gone = True
            self._changed.notify_all()

    @property
    def is_gone(self) -> bool:
        """Whether it is lost for good."""
        return self._gone

    @property
    def has_run_out(self) -> bool:
        """Whether it is not ours at this moment."""
        return self._gone or self._clock() >= self._until

    def is_set(self) -> bool:
        """Return whether the lease is gone; waits for the renewal of one that has run out."""
        end = self._until + self.claim.ttl_s
        with self._changed:
            while not self._gone and (now := self._clock()) >= self._until:
                if now >= end:
                    self._gone = True
                else:
                    self._changed.wait(end - now)
            return self._gone


@dataclass(frozen=True, slots=True)
class Conditions:
    """How a server runs changefeeds; nothing here changes what is written."""

    runner: Callable[[str], SegmentRunner]
    stretch_bytes: int = STRETCH_BYTES
    patience: Patience = OF_A_SERVER
    rest_s: Callable[[], float] = lambda: 0.0
    reach: Reach = ANYWHERE


class Running:
    """A claimed changefeed at work. `start`, then watch `ended`; the lease is released by itself.

    `leave` and `reload` may be called from any thread, at any time; both are obeyed at the next
    border between micro-batches.
    """

    def __init__(
        self, feed: FeedRecord, lease: HeldLease, store: MetaStore, conditions: Conditions
    ) -> None:
        self.id, self.claim, self.lease = feed.id, lease.claim, lease
        self.spec_version = feed.spec_version
        self.hold = feed.hold
        self._store, self._conditions = store, conditions
        self._leaving = threading.Event()
        self._removing = False
        self._border = threading.Event()  # the supervisor should come back
        self._shows_error = feed.state is FeedState.WARNING
        self._meter = _Meter(feed.watermark)
        self._thread = threading.Thread(target=self._run, name=f"feed-{feed.id}", daemon=True)

    # --- from other threads ----------------------------------------------------------------------

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def leave(self, remove: bool = False) -> None:
        """Stop at the next border and release the lease; with `remove`, delete all that is stored.

        On repeat: nothing changes.
        """
        self._removing |= remove
        self._leaving.set()
        self._border.set()
        if self.lease.has_run_out:
            self.lease.lose()  # there is nothing to wait for

    @property
    def is_leaving(self) -> bool:
        """Whether it was asked to leave."""
        return self._leaving.is_set()

    def reload(self) -> None:
        """Go on with the newest settings from the next border on."""
        self._border.set()

    @property
    def ended(self) -> bool:
        """Whether the thread has ended."""
        return not self._thread.is_alive() and self._thread.ident is not None

    def sample(self, now: float) -> Sample:
        """Return what was done since the last call."""
        return self._meter.sample(now)

    @property
    def has_begun(self) -> bool:
        """Whether there is something to sample; a first snapshot has no watermark yet."""
        return self._meter.has_begun

    @property
    def watermark(self) -> int:
        """What was delivered, as far as this run knows; 0: not known yet."""
        return self._meter.watermark

    # --- the thread ------------------------------------------------------------------------------

    def _run(self) -> None:
        current_changefeed.set(self.id)
        LOG.info("changefeed %s: claimed with epoch %d", self.id, self.claim.epoch)
        try:
            while not (self._leaving.is_set() or self.lease.is_set()) and self._turn():
                pass
        finally:
            self._end()

    def _turn(self) -> bool:
        """Run with the settings of now until something changes; False: that was all."""
        self._border.clear()
        if self._leaving.is_set():  # asked for between the two
            return False
        try:
            return self._with_flow()
        except (Fenced, NoSuchChangefeed) as err:
            LOG.info("changefeed %s: not ours any more: %s", self.id, err)
            self.lease.lose()
            return False
        except RowferryError as err:
            LOG.warning("changefeed %s: %s", self.id, err)
            if err.verdict is Verdict.STOP:
                self._move(Verb.GIVE_UP, err)
                return False
        except Exception as err:  # ours to mend, and no reason to stop the others
            LOG.exception("changefeed %s: unforeseen", self.id)
            self._move(Verb.FAULT, TaskFailed(f"unforeseen {type(err).__name__}: {err}"))
        self._border.wait(META_WAIT_S)
        return True

    def _with_flow(self) -> bool:
        state = self._store.state(self.id)
        self.spec_version = state.spec_version
        self._conditions.reach.check(state.spec, option_tables(state.spec))
        flow = assemble(state.spec)
        flow.decide.claim_names(state.versions)
        until = Until(commit_ts=state.spec.target_ts or None)
        runner = self._conditions.runner(self.id)
        loop = Loop(
            self.id,
            flow,
            self._store,
            self.claim,
            runner,
            now_ms=lambda: time.time_ns() // 1_000_000,
            until_ts=until.commit_ts,
            stretch_bytes=self._conditions.stretch_bytes,
            spec_version=state.spec_version,
            hold=self._held,
        )
        steps = ProvenSteps(loop, flow, Owner(self.id, self.claim.epoch))
        supervisor = Supervisor(
            steps,
            move=self._move,
            tell_step=self._tell_step,
            tell_fault=self._tell_fault,
            flush_interval_s=flow.sink.flush_interval_s,
            give_up_after_s=state.spec.options(TOP)[ERROR_STUCK].total_seconds(),
            patience=self._conditions.patience,
            idle_publish_s=IDLE_PUBLISH_S,
            recovering=self._shows_error,
            rest_s=self._conditions.rest_s,
        )
        try:
            supervisor.run(until, self._border, self.lease)
        except RowferryError as err:
            measures.note_error(self.id, err.code)
            if isinstance(err, Fenced):
                raise
            LOG.error("changefeed %s has failed: %s", self.id, err)
            return False
        finally:
            loop.close()
            runner.close()
        if supervisor.finished or (until.commit_ts and loop.watermark >= until.commit_ts):
            self._move(Verb.REACH_TARGET, None)
            LOG.info("changefeed %s has finished", self.id)
            return False
        return True

    def _held(self) -> Hold | None:
        """Return the hold in force."""
        hold = self.hold
        return hold if hold is not None and time.time() < hold.until else None

    def _end(self) -> None:
        """Give the changefeed back, or remove it; without the meta database, the lease runs out."""
        if self.lease.has_run_out:
            return
        try:
            if self._removing:
                leave_sink(self._store.state(self.id).spec)
                self._store.remove(self.claim)
                LOG.info("changefeed %s was removed", self.id)
            else:
                self._store.release(self.claim)
                LOG.info("changefeed %s was released", self.id)
        except RowferryError as err:
            LOG.warning("changefeed %s was not released: %s", self.id, err)

    def _move(self, verb: Verb, error: Exception | None) -> None:
        """Note a change of state; failing to note it must not hide what is being noted."""
        try:
            self._store.move(self.claim, verb, error)
            self._shows_error = verb is Verb.FAULT
        except IllegalMove:
            pass  # an operator was faster
        except RowferryError as err:
            LOG.warning("changefeed %s: state not stored (%s): %s", self.id, verb, err)

    def _tell_step(self, step: StepResult) -> None:
        self._meter.add(step)
        measures.note_step(self.id, step)
        measures.note_retention(self.id, step.retention_ms)
        for words in step.warnings:
            LOG.warning("changefeed %s: %s", self.id, words)

    def _tell_fault(self, error: RowferryError, wait_s: float) -> None:
        measures.note_error(self.id, error.code)
        LOG.warning("changefeed %s: next try in %.0f s: %s", self.id, wait_s, error)


class ProvenSteps:
    """A loop whose sink is asked whether it answers before work begins, and after each error.

    That happens in the changefeed's own thread: a sink that is gone occupies none of Spark's slots.
    """

    def __init__(self, loop: Loop, flow: Flow, owner: Owner) -> None:
        self._loop, self._flow, self._owner = loop, flow, owner
        self._proven = False

    def step(self, publish_idle: bool = True) -> StepResult:
        """Do the next thing; see `Loop`."""
        if not self._proven:
            with self._flow.hiding.in_errors():
                self._flow.format.probe()
                self._flow.sink.probe(self._owner)
        self._proven = False
        done = self._loop.step(publish_idle)
        self._proven = True
        return done

    def replan(self, why: str) -> None:
        """Discard the pending plan."""
        self._loop.replan(why)


class _Meter:
    """Adds up what steps did until the next sample; used by two threads."""

    def __init__(self, watermark: int) -> None:
        self._lock = threading.Lock()
        self._sums = Sample(0.0, None, watermark, 0, 0, 0, 0.0)
        self.has_begun = watermark > 0

    @property
    def watermark(self) -> int:
        return self._sums.watermark

    def add(self, step: StepResult) -> None:
        """Take in a step."""
        worked = bool(step.rows or step.schema_changes)
        shares = tuple((str(s.table), s.done_parts, s.all_parts) for s in step.snapshots)
        with self._lock:
            old = self._sums
            self.has_begun |= step.published
            self._sums = replace(
                old,
                watermark=max(step.watermark, old.watermark),
                rows=old.rows + step.rows,
                bytes=old.bytes + step.bytes,
                micro_batches=old.micro_batches + worked,
                seconds=old.seconds + step.seconds,
                retention_ms=step.retention_ms if step.published else old.retention_ms,
                snapshots=shares if step.published else old.snapshots,
            )

    def sample(self, now: float) -> Sample:
        """Return the sums since the last sample."""
        with self._lock:
            done = self._sums
            self._sums = replace(done, rows=0, bytes=0, micro_batches=0, seconds=0.0)
        lag = round(now * 1000) - physical_ms(done.watermark) if done.watermark else None
        return replace(done, at=now, lag_ms=None if lag is None else max(0, lag))


def wants_to_run(feed: FeedRecord) -> bool:
    """Return whether some server should have this changefeed: to run it, or to remove it."""
    return feed.state.runs or feed.state is FeedState.PENDING or feed.cancel
