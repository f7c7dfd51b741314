"""One claimed changefeed in a thread of its own, from its claim to its release.

Whatever goes wrong in the thread is dealt with here: nothing of one changefeed reaches another, or
the server.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from rowferry.change.position import physical_ms
from rowferry.control.feed.diary import FeedDiary, tell_start
from rowferry.control.feed.feed_news import FeedReporter
from rowferry.control.feed.lease import Claim
from rowferry.control.feed.leaving import leave_sink
from rowferry.control.feed.log_scope import current_changefeed
from rowferry.control.feed.loop import STRETCH_BYTES, Loop, SegmentRunner, StepResult
from rowferry.control.feed.recent_changes import RecentChanges
from rowferry.control.feed.supervise import (
    META_WAIT_S,
    OF_A_SERVER,
    Patience,
    Supervisor,
    Until,
    settle_move,
)
from rowferry.control.feed.under_way import StepProgress, in_focus
from rowferry.control.fleet import measures
from rowferry.control.lifecycle import FeedState, Verb
from rowferry.control.store.contract import FeedNews, FeedRecord, Hold, MetaStore, Sample
from rowferry.errors import (
    Fenced,
    NoSuchChangefeed,
    RowferryError,
    SecretMissing,
    SecretsLocked,
    TaskFailed,
    Verdict,
)
from rowferry.flow.assemble import Flow, assemble, check_reach
from rowferry.flow.capture.contract import SnapshotShare
from rowferry.flow.sink.contract import Owner, TableStatus
from rowferry.secrets.sources import NO_STORE, SecretSources
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.feed_options import FeedOptions
from rowferry.spec.reach import ANYWHERE, Reach

LOG = logging.getLogger(__name__)
IDLE_PUBLISH_S: Final = 1.0
_NOT_RENEWED: Final = (
    "the lease was not renewed in time: the meta database did not answer, or this process hung"
)
_HAS_FAILED: Final = "it has failed"


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
        self.why_lost = ""

    def renewed(self, asked_at: float) -> None:
        """Note a renewal; it counts from before it was asked for."""
        with self._changed:
            self._until = asked_at + self.claim.ttl_s
            self._changed.notify_all()

    def lose(self, why: str = "") -> None:
        """Note that another owner was seen, or that nobody waits for a renewal."""
        with self._changed:
            self._gone = True
            self.why_lost = self.why_lost or why
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
                    self.why_lost = self.why_lost or _NOT_RENEWED
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
    secrets: SecretSources = NO_STORE


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
        self.resnapshots = feed.resnapshots
        self._store, self._conditions = store, conditions
        self._feed = feed
        self._leaving = threading.Event()
        self._why_left = ""
        self._reporter = FeedReporter(store, lease.claim)
        self._removing = False
        self._runs_with: tuple[ChangefeedSpec, ChangefeedSpec] | None = None  # stored, and whole
        self._border = threading.Event()  # the supervisor should come back
        self._shows_error = feed.state is FeedState.WARNING
        self._fault_at: float | None = None  # since when the shown fault is known to be stored
        self._meter = _Meter(feed.watermark)
        self.recent_changes = RecentChanges()
        self.target_tables: tuple[TableStatus, ...] = ()
        self._thread = threading.Thread(target=self._run, name=f"feed-{feed.id}", daemon=True)

    # --- from other threads ----------------------------------------------------------------------

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def leave(self, remove: bool = False, why: str = "") -> None:
        """Stop at the next border and release the lease; with `remove`, delete all that is stored.

        `why` is kept in the history. On repeat: nothing changes.
        """
        self._removing |= remove
        self._why_left = self._why_left or why
        self._leaving.set()
        self._border.set()
        if self.lease.has_run_out:
            self.lease.lose(_NOT_RENEWED)  # there is nothing to wait for

    @property
    def is_leaving(self) -> bool:
        """Whether it was asked to leave."""
        return self._leaving.is_set()

    def reload(self) -> None:
        """Go on with the newest settings from the next border on."""
        self._border.set()

    def was_resumed(self, state: FeedState, asked_at: float) -> bool:
        """Return whether somebody resumed it while it waits to try again.

        Its state, asked for since the fault was known to be stored, shows no error any more. That
        is so as well where it was paused before, and nobody saw that between two looks. The next
        try must not wait.
        """
        fault_at = self._fault_at
        if state is FeedState.WARNING and fault_at is None and self._shows_error:
            self._fault_at = asked_at  # an earlier owner stored it, or the answer to us was lost
            return False
        if fault_at is None or fault_at >= asked_at or state is not FeedState.NORMAL:
            return False
        self._fault_at, self._shows_error = None, False
        return True

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
    def is_due(self) -> bool:
        """Whether a sample should not wait: snapshots are watched from second to second."""
        return self._meter.is_due

    @property
    def watermark(self) -> int:
        """What was delivered, as far as this run knows; 0: not known yet."""
        return self._meter.watermark

    # --- the thread ------------------------------------------------------------------------------

    def _run(self) -> None:
        current_changefeed.set(self.id)
        self._diary = FeedDiary(self.id)
        tell_start(self._feed.spec, self.claim, self._feed)
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
            LOG.warning("changefeed %s: not ours any more: %s", self.id, err)
            self.lease.lose(err.words)
            return False
        except RowferryError as err:
            LOG.warning("changefeed %s: %s", self.id, err)
            if err.verdict is Verdict.STOP:
                self._move(Verb.GIVE_UP, err)
                self._why_left = _HAS_FAILED
                return False
            if isinstance(err, SecretsLocked | SecretMissing):  # what is missing may come
                self._move(Verb.FAULT, err)
        except Exception as err:  # ours to mend, and no reason to stop the others
            LOG.exception("changefeed %s: unforeseen", self.id)
            self._move(Verb.FAULT, TaskFailed(f"unforeseen {type(err).__name__}: {err}"))
        self._border.wait(META_WAIT_S)
        return True

    def _with_flow(self) -> bool:
        state = self._store.state(self.id)
        self.spec_version = state.spec_version
        check_reach(self._conditions.reach, state.spec)
        whole = self._conditions.secrets.resolved(state.spec)
        self._runs_with = (state.spec, whole)
        flow = assemble(whole)
        self.recent_changes.begin(flow.sample)
        self.target_tables = ()  # the sink may be another one
        flow.decide.check_salt()
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
            resolved=self._conditions.secrets.resolved,
            tell_progress=self._tell_progress,
            resnapshots=lambda: self.resnapshots,
        )
        steps = ProvenSteps(loop, flow, Owner(self.id, self.claim.epoch, made_ms=state.made_ms))
        supervisor = Supervisor(
            steps,
            move=self._move,
            tell_step=self._tell_step,
            tell_fault=self._tell_fault,
            flush_interval_s=flow.sink.flush_interval_s,
            give_up_after_s=state.spec.options(
                FeedOptions
            ).changefeed_error_stuck_duration.total_seconds(),
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
            self._why_left = _HAS_FAILED
            return False
        finally:
            loop.close()
            runner.close()
        if supervisor.finished or (until.commit_ts and loop.watermark >= until.commit_ts):
            self._move(Verb.REACH_TARGET, None)
            LOG.info("changefeed %s has finished", self.id)
            self._why_left = "it has finished"
            return False
        return True

    def _held(self) -> Hold | None:
        """Return the hold in force."""
        hold = self.hold
        return hold if hold is not None and time.time() < hold.until else None

    def _end(self) -> None:
        """Give the changefeed back, or remove it; without the meta database, the lease runs out."""
        if self.lease.has_run_out:
            self._tell_loss()
            return
        try:
            self._report()
            if self._removing:
                spec, conditions = self._store.state(self.id).spec, self._conditions
                leave_sink(spec, conditions.secrets, conditions.reach)
                self._store.remove(self.claim)
                LOG.info("changefeed %s was removed", self.id)
            else:
                self._store.release(self.claim, self._why_left)
                LOG.info("changefeed %s was released", self.id)
        except RowferryError as err:
            LOG.warning("changefeed %s was not released: %s", self.id, err)

    def _tell_loss(self) -> None:
        """Write into the history why this process does not have it any more, if that can be."""
        why = self.lease.why_lost or _NOT_RENEWED
        details = {"by": str(self.claim.holder), "epoch": self.claim.epoch, "why": why}
        LOG.warning("changefeed %s was lost: %s", self.id, why)
        try:
            if self._store.feed(self.id) is not None:
                self._store.note(self.id, "lost", details)
        except RowferryError as err:
            LOG.warning("changefeed %s: the history does not have this: %s", self.id, err)

    def news(self) -> FeedNews | None:
        """Return what is to be told of it and is not stored yet; also called from other threads.

        Raises:
            RowferryError: that cannot be told now.
        """
        return self._reporter.news()

    def stored(self, news: FeedNews) -> None:
        """Note that this is stored."""
        self._reporter.stored(news)

    def _report(self) -> None:
        """Store what is to be told of it."""
        news = self.news()
        if news is not None:
            self._store.write_news({self.claim: news})
            self.stored(news)

    def _move(self, verb: Verb, error: Exception | None) -> bool:
        """Store a change of state; return whether nothing is left to store."""
        settled = settle_move(self._store, self.claim, verb, error)
        if settled or verb is Verb.FAULT:  # one that is not known to be stored may be
            self._fault_at = time.monotonic() if settled and verb is Verb.FAULT else None
            self._shows_error = verb is Verb.FAULT
        return settled

    def _tell_progress(self, progress: StepProgress) -> None:
        self._meter.add_progress(progress)
        measures.note_snapshots(self.id, progress.snapshots)

    def _tell_step(self, step: StepResult) -> None:
        self._meter.add(step)
        measures.note_step(self.id, step)
        if step.position is not None:
            measures.note_position(self.id, self._feed.spec.source.scheme, step.position)
        self._reporter.add(step, time.time())
        self.recent_changes.add(step.sample)
        if step.target_tables is not None:
            self.target_tables = step.target_tables
        self._diary.step(step)

    def _tell_fault(self, error: RowferryError, wait_s: float) -> None:
        measures.note_error(self.id, error.code)
        self._diary.fault(error, wait_s)
        self._look_for_new_secrets()

    def _look_for_new_secrets(self) -> None:
        """Begin anew where a secret is another now: it may be why the last try failed."""
        if self._runs_with is None:
            return
        spec, whole = self._runs_with
        if not self._conditions.secrets.refers(spec):
            return
        try:
            if self._conditions.secrets.resolved(spec) != whole:
                LOG.info("changefeed %s: a secret was changed; it is used from now on", self.id)
                self._border.set()
        except RowferryError as err:
            LOG.warning("changefeed %s: %s", self.id, err)


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
                self._flow.probe_target(self._owner)
        self._proven = False
        done = self._loop.step(publish_idle)
        self._proven = True
        return done

    def replan(self, why: str) -> None:
        """Discard the pending plan."""
        self._loop.replan(why)


class _Meter:
    """Adds up what steps did until the next sample; used by several threads."""

    def __init__(self, watermark: int) -> None:
        self._lock = threading.Lock()
        self._sums = Sample(0.0, None, watermark, 0, 0, 0, 0.0)
        self._counted = (0, 0, 0)  # of the micro-batch under way: its number, rows and bytes
        self._moved = False  # a snapshot has, since the last sample
        self.has_begun = watermark > 0

    @property
    def is_due(self) -> bool:
        return self._moved

    @property
    def watermark(self) -> int:
        return self._sums.watermark

    def add(self, step: StepResult) -> None:
        """Take in a step."""
        worked = bool(step.rows or step.schema_changes)
        with self._lock:
            self.has_begun |= step.published
            if step.published:
                self._count(step.micro_batch, step.rows, step.bytes)
                self._show(step.snapshots, self._sums.unit)
            old = self._sums
            self._sums = replace(
                old,
                watermark=max(step.watermark, old.watermark),
                micro_batches=old.micro_batches + worked,
                seconds=old.seconds + step.seconds,
                retention_ms=step.retention_ms if step.published else old.retention_ms,
            )

    def add_progress(self, progress: StepProgress) -> None:
        """Take in how far the step under way is: rows count when they are done."""
        with self._lock:
            if progress.snapshots:
                self.has_begun = True
            self._count(progress.micro_batch, progress.rows, progress.bytes)
            self._show(progress.snapshots, progress.unit)

    def _count(self, micro_batch: int, rows: int, size: int) -> None:
        """Add what a micro-batch has done beyond what was counted; a repeat counts once."""
        number, had_rows, had_bytes = self._counted
        if number != micro_batch:
            had_rows = had_bytes = 0
        self._counted = (micro_batch, max(rows, had_rows), max(size, had_bytes))
        self._sums = replace(
            self._sums,
            rows=self._sums.rows + max(0, rows - had_rows),
            bytes=self._sums.bytes + max(0, size - had_bytes),
        )

    def _show(self, shares: Sequence[SnapshotShare], unit: str) -> None:
        ended = bool(self._sums.snapshots) and not shares
        self._moved |= bool(shares) or ended
        done = sum(s.done >= s.total for s in shares)
        self._sums = replace(
            self._sums,
            snapshots=tuple((str(s.table), s.done, s.total) for s in in_focus(shares)),
            totals=(done, len(shares), sum(s.done for s in shares), sum(s.total for s in shares)),
            unit=unit if shares else "",
        )

    def sample(self, now: float) -> Sample:
        """Return the sums since the last sample."""
        with self._lock:
            done = self._sums
            self._sums = replace(done, rows=0, bytes=0, micro_batches=0, seconds=0.0)
            self._moved = False
        lag = round(now * 1000) - physical_ms(done.watermark) if done.watermark else None
        return replace(done, at=now, lag_ms=None if lag is None else max(0, lag))


def wants_to_run(feed: FeedRecord) -> bool:
    """Return whether some server should have this changefeed: to run it, or to remove it."""
    return feed.state.runs or feed.state is FeedState.PENDING or feed.cancel
