"""Use cases of the control plane, one call each; faces parse, call one of these, and render."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from rowferry.control.feed.diary import FeedDiary, tell_start
from rowferry.control.feed.lease import Claim, Heartbeat, Holder
from rowferry.control.feed.leaving import leave_sink
from rowferry.control.feed.loop import STRETCH_BYTES, Loop, SegmentRunner, StepResult
from rowferry.control.feed.supervise import Supervisor, Until, settle_move
from rowferry.control.feed.under_way import StepProgress
from rowferry.control.lifecycle import FeedState, Verb
from rowferry.control.operator.checks.prepare import (
    PreparedFeed,
    check_alterable,
    prepare,
    stored_spec,
)
from rowferry.control.store.contract import FeedRecord, MetaStore
from rowferry.control.store.sql_store import open_store
from rowferry.errors import Fenced, MetaUnavailable, RowferryError
from rowferry.secrets.sources import NO_STORE, SecretSources
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.feed_options import FeedOptions
from rowferry.spec.sealing import SecretKeys

__all__ = ["PreparedFeed", "RunListener", "RunSettings", "prepare", "run", "stored_spec"]

LOG = logging.getLogger(__name__)
LEASE_S = 10.0


@dataclass(slots=True)
class RunListener:
    """Where a run reports to; calls come from the run's own thread."""

    on_step: Callable[[StepResult], None] = lambda step: None
    on_fault: Callable[[RowferryError, float], None] = lambda error, wait_s: None
    on_phase: Callable[[str], None] = lambda words: None
    on_progress: Callable[[StepProgress], None] = lambda progress: None  # from any thread


@dataclass(frozen=True, slots=True)
class RunSettings:
    """How one process runs a changefeed; nothing here changes what is written."""

    meta_url: str
    work_dir: Path
    spark_master: str = "local[*]"
    spark_settings: Mapping[str, str] = field(default_factory=dict)
    spark_only: bool = False  # this process carries nothing out itself
    stretch_bytes: int = STRETCH_BYTES
    keys: SecretKeys | None = None
    secrets: SecretSources = NO_STORE


def run(
    prepared: PreparedFeed,
    settings: RunSettings,
    until: Until,
    stop: threading.Event,
    listener: RunListener,
) -> None:
    """Run one changefeed in this process until its end, `stop`, or an error.

    On return: everything published so far is durable; the next run goes on after it.

    Raises:
        LeaseHeld: another live process runs it.
        SpecChanged: the stored changefeed was made with settings that cannot be changed.
        RowferryError: what ended the run; the changefeed's state says so too.
    """
    store = open_store(settings.meta_url, keys=settings.keys)
    try:
        spec = prepared.spec
        feed = store.feed(spec.changefeed_id) or store.create_changefeed(
            spec, prepared.flow.capture.cluster_id()
        )
        check_alterable(feed.spec, spec, prepared.flow)
        claim = store.claim(spec.changefeed_id, Holder.here(), time.time(), LEASE_S)
        tell_start(spec, claim, feed)
        try:
            _bring_up_to_date(store, feed, spec)
            with Heartbeat(store.renew, claim) as heartbeat:
                again = feed.state is FeedState.WARNING
                _run_claimed(
                    prepared, settings, until, stop, listener, store, claim, heartbeat, again
                )
        except BaseException as err:
            LOG.error("changefeed %s has ended: %s", claim.changefeed, err or type(err).__name__)
            raise
        finally:
            store.release(claim)
        LOG.info("changefeed %s was released", claim.changefeed)
    finally:
        store.close()


def _bring_up_to_date(store: MetaStore, feed: FeedRecord, spec: ChangefeedSpec) -> None:
    """Store changed settings, and let a changefeed run that was stopped or had failed."""
    if feed.spec.to_json() != spec.to_json():
        store.update_spec(spec.changefeed_id, spec)
    if not feed.state.runs:
        store.move(
            spec.changefeed_id, Verb.START if feed.state is FeedState.PENDING else Verb.RESUME
        )


def _run_claimed(
    prepared: PreparedFeed,
    settings: RunSettings,
    until: Until,
    stop: threading.Event,
    listener: RunListener,
    store: MetaStore,
    claim: Claim,
    heartbeat: Heartbeat,
    recovering: bool,
) -> None:
    # Imported here: a wrong word on the command line should not wait for Spark's libraries.
    from rowferry.spark.shared import spark_for_one

    if stop.is_set():
        return
    spark = spark_for_one(
        f"rowferry {claim.changefeed}",
        settings.work_dir / "logs",
        settings.spark_master,
        settings.spark_settings,
    )
    spark_faults: list[RowferryError] = []

    def tell_spark_fault(error: RowferryError) -> None:
        spark_faults.append(error)
        stop.set()

    runner: SegmentRunner
    if settings.spark_only:
        listener.on_phase("starting Spark")
        runner = spark.tasks(claim.changefeed)
    else:
        runner = spark.runner(claim.changefeed, meanwhile=tell_spark_fault)
    loop = Loop(
        claim.changefeed,
        prepared.flow,
        store,
        claim,
        runner,
        now_ms=lambda: time.time_ns() // 1_000_000,
        until_ts=until.commit_ts,
        stretch_bytes=settings.stretch_bytes,
        resolved=settings.secrets.resolved,
        tell_progress=listener.on_progress,
    )
    cancel = _CancelWatch(store, claim.changefeed, stop)

    diary = FeedDiary(claim.changefeed)

    def tell_step(step: StepResult) -> None:
        diary.step(step)
        listener.on_step(step)
        cancel.look()
        if step.caught_up and not until.reached(step):
            spark.start(tell_spark_fault)  # what comes next may be more than this process's work

    def tell_fault(error: RowferryError, wait_s: float) -> None:
        diary.fault(error, wait_s)
        listener.on_fault(error, wait_s)
        show_again(store, claim, error)
        cancel.look()

    supervisor = Supervisor(
        loop,
        move=lambda verb, error: settle_move(store, claim, verb, error),
        tell_step=tell_step,
        tell_fault=tell_fault,
        flush_interval_s=prepared.flow.sink.flush_interval_s,
        give_up_after_s=prepared.spec.options(
            FeedOptions
        ).changefeed_error_stuck_duration.total_seconds(),
        recovering=recovering,
    )
    listener.on_phase("running")
    try:
        supervisor.run(until, stop, heartbeat.lost)
        if spark_faults:
            raise spark_faults[0]
        if heartbeat.lost.is_set():
            why = heartbeat.error
            raise why if isinstance(why, RowferryError) else Fenced(f"the lease was lost: {why}")
        if cancel.asked:
            leave_sink(prepared.spec, settings.secrets)
            store.remove(claim)
            listener.on_phase("removed")
        elif supervisor.finished or _at_end(until, loop):
            settle_move(store, claim, Verb.REACH_TARGET, None)
    finally:
        listener.on_phase("stopping")
        loop.close()
        runner.close()
        spark.close()


def show_again(store: MetaStore, claim: Claim, error: RowferryError) -> None:
    """Show an error that lasts, where `resume` has taken it away since it was stored."""
    with suppress(RowferryError):  # a meta database that is away has other worries
        feed = store.feed(claim.changefeed)
        if feed is not None and feed.state is FeedState.NORMAL:
            settle_move(store, claim, Verb.FAULT, error)


def _at_end(until: Until, loop: Loop) -> bool:
    return until.commit_ts is not None and loop.watermark >= until.commit_ts


class _CancelWatch:
    """Sees that removal was asked for, also by `cancel = 1` set by hand, and stops the run."""

    EVERY_S = 1.0

    def __init__(self, store: MetaStore, changefeed: str, stop: threading.Event) -> None:
        self._store, self._id, self._stop = store, changefeed, stop
        self._looked_at = time.monotonic()
        self.asked = False

    def look(self) -> None:
        """Ask the meta database, at most once in a while; one that is away is asked again later."""
        now = time.monotonic()
        if now - self._looked_at >= self.EVERY_S:
            self._looked_at = now
            with suppress(MetaUnavailable):  # whether the run ends by that, its lease decides
                self.asked = self._store.cancel_requested(self._id)
            if self.asked:
                self._stop.set()
