"""The loop of one changefeed: plan → record → one job → publish.

A step either carries out the plan that is pending in the meta database, exactly as it was recorded,
or makes and records the next one and carries that out. Whatever is killed at whatever moment, the
next step of the next process continues from what was recorded.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, cast

from rowferry.change.event_counts import PARKED, summed
from rowferry.change.plan import Again, Plan, Receipt, RedoStep, Stretch, TableSlice, Volume
from rowferry.change.quarantine import PlanQuarantine, refusals_in
from rowferry.change.resnapshot import Resnapshot, ResnapshotOutcome
from rowferry.change.sampled_change import SampledChange
from rowferry.change.table import TableId, TableSchema
from rowferry.control.feed.known_versions import KnownVersions
from rowferry.control.feed.lease import Claim
from rowferry.control.feed.quarantining import Quarantining
from rowferry.control.feed.recorded import (
    CONSISTENT,
    decisions_then,
    discard,
    has_made_changes,
    seen_by_readers,
    ways_of,
)
from rowferry.control.feed.table_volumes import TableVolume, table_volumes
from rowferry.control.feed.under_way import (
    RereadPace,
    SnapshotPace,
    StageTimes,
    StepProgress,
    TellsParts,
    UnderWay,
)
from rowferry.control.feed.upkeep_rounds import UpkeepRounds
from rowferry.control.store.contract import Hold, MetaStore
from rowferry.errors import (
    ResnapshotRefused,
    RowferryError,
    RowsRefused,
    SnapshotGone,
    SnapshotOutdated,
)
from rowferry.flow.assemble import Flow, tables_of
from rowferry.flow.capture.contract import (
    Appetite,
    CanPauseAt,
    HasNews,
    KnowsRetention,
    Planner,
    PlannerPosition,
    Rereading,
    ShowsPosition,
    SnapshotShare,
)
from rowferry.flow.decide.decisions import Decisions
from rowferry.flow.parking import diverted, refused
from rowferry.flow.sink.contract import KeepsChanges, Owner, Remembering, TableStatus
from rowferry.moment import moment
from rowferry.spec.changefeed import ChangefeedSpec

LOG = logging.getLogger(__name__)
STRETCH_BYTES = 512 << 20


class SegmentRunner(Protocol):
    """Runs the segments of a plan somewhere; see `rowferry.spark.job`."""

    def run(
        self, spec: ChangefeedSpec, plan: Plan, tables: Mapping[TableSlice, TableSchema]
    ) -> list[Receipt]:
        """Run all segments and return their receipts; on raise, the plan can be run again."""

    def close(self) -> None:
        """Let go of what was started."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """What one step did.

    Attributes:
        published: a micro-batch was published (also one that only moved the watermark).
        replayed: it was recorded by an earlier run.
        sent_again: parked rows were sent, and no part of the log; there may be more of them.
        caught_up: the source had nothing more when it was planned.
        follows: the source had hardly more; see `Stretch`.
        finished: nothing will follow.
        captured: what tasks read.
        decided: what was left of that when filters and row policy had decided.
        position: the source's own state that was published; None: it has not moved.
        tables: what was sent of each table that had rows.
        counts: what happened in the stages; see `change.event_counts`.
        sample: a few of the changes that were delivered, in their order.
        seconds: how long carrying out the plan took.
        stages: how long each part of the step took, and how old what it read was: "read".
        retention_ms: for how long the source keeps what was not read yet; None: not known.
        resolved: what the source has told up to now, though it may not be delivered yet.
        target_tables: what the sink's tables are made of; None: as it was told before.
    """

    published: bool
    replayed: bool = False
    sent_again: bool = False
    caught_up: bool = False
    follows: bool = False
    finished: bool = False
    micro_batch: int = 0
    rows: int = 0
    bytes: int = 0
    source_bytes: int = 0
    captured: Volume = Volume()
    decided: Volume = Volume()
    schema_changes: int = 0
    position: Mapping[str, Any] | None = None
    tables: Mapping[TableId, TableVolume] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)
    sample: tuple[SampledChange, ...] = ()
    seconds: float = 0.0
    stages: Mapping[str, float] = field(default_factory=dict)
    watermark: int = 0
    resolved: int = 0
    lag_ms: int | None = None
    retention_ms: int | None = None
    snapshots: tuple[SnapshotShare, ...] = ()
    warnings: tuple[str, ...] = ()
    target_tables: tuple[TableStatus, ...] | None = None


class Loop:
    """One changefeed under one claim. Not for use from several threads."""

    def __init__(
        self,
        changefeed: str,
        flow: Flow,
        store: MetaStore,
        claim: Claim,
        runner: SegmentRunner,
        now_ms: Callable[[], int],
        until_ts: int | None = None,
        stretch_bytes: int = STRETCH_BYTES,
        spec_version: int | None = None,
        hold: Callable[[], Hold | None] = lambda: None,
        resolved: Callable[[ChangefeedSpec], ChangefeedSpec] = lambda spec: spec,
        tell_progress: Callable[[StepProgress], None] | None = None,
        resnapshots: Callable[[], tuple[Resnapshot, ...]] = tuple,
    ) -> None:
        """Make a loop; `spec_version` is the flow's, without it the newest that is stored.

        `hold` is asked before each step whether to stand still; `resolved` puts secrets in the
        place of references, for tasks. `tell_progress` is called while the tasks of a step run, in
        any thread. `resnapshots` is asked before each step what is to be read again.
        """
        self._resnapshots = resnapshots
        self._quarantine = Quarantining(store, claim, flow)
        self._upkeep = UpkeepRounds(changefeed, flow, self._run_upkeep, runner)
        self._ended: set[str] = set()  # resnapshots whose end was noted: `resnapshots` may be older
        self._reread_pace = RereadPace(flow.sink.flush_interval_s)
        self._resolved = resolved
        self._id = changefeed
        self._flow = flow
        self._store = store
        self._claim = claim
        self._runner = runner
        self._now_ms = now_ms
        self._appetite = Appetite(
            segment_bytes=flow.sink.segment_bytes,
            stretch_bytes=stretch_bytes,
            partition_label=flow.sink.partition_label,
            until_ts=until_ts,
            whole_transactions=flow.sink.whole_transactions,
            fewer_slices=flow.sink.TRAITS.takes_files,
            by_partition=flow.sink.separates_partitions,
            hides_key=flow.decide.hides_key,
        )
        self._planner: Planner | None = None
        self._names_judged = False  # since it was opened: by the settings of now
        self._hears = False  # whether it is a `HasNews` one: asked once, it costs
        self._versions = KnownVersions()
        self._specs: dict[int, ChangefeedSpec] = {}  # of the plan that was run last
        self._decided: dict[int, Decisions] = {}  # by the older settings of a plan
        self._opened = False
        self._published = 0  # number of the last published micro-batch
        self._flow_version = spec_version
        self._hold = hold
        self._last_notice = ("", "")  # the last hold that was obeyed, and what was said about it
        self._spec_version = 0
        self._under_way = UnderWay(flow.capture.traits().snapshot_unit, tell_progress)
        self._pace = SnapshotPace(stretch_bytes)
        if isinstance(runner, TellsParts):
            runner.on_part = self._under_way.part
        self._counts: dict[str, int] = {}  # what happened in tasks, of the step under way
        self._stages = StageTimes()
        self.watermark = 0

    def step(self, publish_idle: bool = True) -> StepResult:
        """Do the next thing: the pending plan, or the next stretch.

        With `publish_idle` false, a stretch that only moves the watermark is planned but not
        published: time alone need not write to the meta database many times a second.

        Raises:
            RowferryError: by its verdict the caller repeats `step`, calls `replan`, or stops.
        """
        try:
            with self._flow.hiding.in_errors():
                done = self._next(publish_idle)
        except (ResnapshotRefused, SnapshotGone, SnapshotOutdated) as err:
            self._close_planner()
            if self._gives_up_part(err):
                return StepResult(published=False, watermark=self.watermark)
            raise
        except BaseException:
            # What was planned may not be recorded, and what was published may not be known here
            # (only the answer was lost): the next step asks the meta database.
            self._close_planner()
            raise
        if not done.published:
            return done
        statuses = self._upkeep.go(self._spec_version, self._claim.epoch)
        return done if statuses is None else replace(done, target_tables=statuses)

    def _next(self, publish_idle: bool) -> StepResult:
        if not self._opened:
            self._open()
        # While a planner is open, all that was recorded has been published, and by this loop.
        pending = self._store.pending(self._id) if self._planner is None else None
        if pending is not None:
            if any(s.again is Again.NEVER for s in pending.stretch.segments):
                self.replan("a part of it can be read only once")
                return StepResult(published=False, watermark=self.watermark)
            if self._has_moved(pending):
                self.replan("the source or the sink has another address or login now")
                return StepResult(published=False, watermark=self.watermark)
            done = self._carry_out(pending, replayed=True)
            self._close_planner()  # it must start from what was just published
            return done
        hold = self._hold()
        if hold is not None and hold.place is None:
            return self._pause(hold, PlannerPosition.AT)
        planner = self._planner or self._open_planner()
        if hold is not None and hold.place is not None and isinstance(planner, CanPauseAt):
            reached = planner.place_reached(hold.place)
            if reached is not PlannerPosition.BEFORE:
                return self._pause(hold, reached)
        asked = self._resnapshots()
        wanted = tuple(one for one in asked if one.is_open and one.id not in self._ended)
        hears = self._hears and not wanted
        is_quiet = not publish_idle and hears and not cast(HasNews, planner).has_news()
        if not (is_quiet and self._quarantine.is_fresh):
            parked = self._quarantine.look()
            if parked and (again := self._send_again()) is not None:
                return again
        self._quarantine.refuse_full()
        if is_quiet:
            return StepResult(published=False, caught_up=True, watermark=self.watermark)
        appetite = replace(
            self._appetite,
            snapshot_bytes=self._pace.next_bytes,
            resnapshots=wanted,
            reread_bytes=self._reread_pace.next_bytes,
        )
        if hold is not None:
            appetite = replace(appetite, until_place=hold.place)
        self._stages = StageTimes()
        with self._stages.measured("plan"):
            stretch = planner.plan(appetite)
        self._stages.read(planner.lag_ms())
        self._versions.meet(planner.table_versions())
        if self._is_idle(stretch, publish_idle):
            self._note_ended(planner, wanted)
            return StepResult(
                published=False,
                caught_up=stretch.caught_up,
                watermark=self.watermark,
                resolved=max(self.watermark, stretch.watermark or 0),
                lag_ms=planner.lag_ms(),
                warnings=planner.warnings(),
            )
        try:
            if self._versions.fresh or stretch.schema_changes or not self._names_judged:
                self._versions.check_names(self._flow.decide, stretch)
                self._names_judged = True
            plan = self._make_plan(stretch, self._quarantine.of_plan(self._versions))
            with self._stages.measured("record"):
                self._store.record(self._claim, plan, tuple(self._versions.fresh))
        except Exception:
            self._close_planner()  # it has moved on past a stretch that nobody recorded
            raise
        self._versions.fresh.clear()
        done = self._carry_out(plan, replayed=False)
        self._note_ended(planner, wanted)
        return done

    def _send_again(self) -> StepResult | None:
        """Send parked rows again that somebody asked for; None: nobody did."""
        plan = self._quarantine.again(self._versions, self._make_plan)
        if plan is None:
            return None
        self._stages = StageTimes()
        self._store.record(self._claim, plan, tuple(self._versions.fresh))
        self._versions.fresh.clear()
        return self._carry_out(plan, replayed=False)

    def _gives_up_part(self, why: RowferryError) -> bool:
        """Discard the pending plan if it only reads rows again; returns whether it did.

        What it was to read was altered a moment ago, and will be read as the log tells it; or its
        rows cannot be chosen as asked, and that resnapshot ends. The feed itself goes on.
        """
        pending = self._store.pending(self._id)
        segments = pending.stretch.segments if pending else ()
        if not segments or not all(s.reread for s in segments):
            return False
        if isinstance(why, ResnapshotRefused):
            first = segments[0]
            words, which = why.words, str(first.read["resnapshot"])
            refused = Resnapshot(
                which, first.slices[0].table, outcome=ResnapshotOutcome.FAILED, words=words
            )
            self._store.end_resnapshot(self._claim, refused)
            self._ended.add(which)
        self.replan(str(why))
        return True

    def _note_ended(self, planner: Planner, wanted: Sequence[Resnapshot]) -> None:
        """Note which resnapshots ended: all that was planned of them has been published."""
        if not wanted or not isinstance(planner, Rereading):
            return
        ids = {one.id for one in wanted}
        for one in planner.ended_resnapshots():
            if one.id in ids:
                self._store.end_resnapshot(self._claim, one)
                self._ended.add(one.id)
                LOG.info(
                    "changefeed %s: resnapshot %s: %s, %d rows %s",
                    *(self._id, one.id, one.outcome.value, one.rows, one.words),
                )

    def _pause(self, hold: Hold, reached: PlannerPosition) -> StepResult:
        """Do nothing, and say so where the hold is stored; everything planned was published."""
        if self._last_notice != (hold.id, reached.value):
            self._store.answer_hold(self._claim, hold.id, reached.value)
            self._last_notice = (hold.id, reached.value)
        return StepResult(published=False, watermark=self.watermark, resolved=self.watermark)

    def replan(self, why: str) -> None:
        """Discard the pending plan, which can never run again, and plan from what was published."""
        pending = self._store.pending(self._id)
        if pending is not None:
            if not self._opened:
                self._open()  # a sink lets only the owner that it knows take something back
            discard(self._store, self._claim, self._flow, pending, why)
        self._close_planner()

    def close(self) -> None:
        """Let connections go."""
        self._close_planner()
        if self._opened:
            self._flow.sink.close()

    # --- pieces ----------------------------------------------------------------------------------

    def _open(self) -> None:
        state = self._store.state(self._id)
        self._spec_version = self._flow_version or state.spec_version
        decides = [self._flow.decide]
        if (pending := self._store.pending(self._id)) is not None:
            decides.append(self._decide_of(pending))  # its tables may be captured no more
        captured = (d.seen_as(v) for d in decides for v in state.versions if d.captures(v))
        owner = Owner(
            changefeed=self._id,
            epoch=self._claim.epoch,
            delivered=state.watermark,
            micro_batch=state.micro_batch,
            continues=state.continues,
            captured=frozenset(v.written_as for v in captured),
            made_ms=state.made_ms,
        )
        self._flow.sink.open(owner, state.sink_state)
        if self._flow.redo is not None:
            self._flow.redo.open(owner)
        self.watermark = state.watermark
        self._opened = True

    def _has_moved(self, pending: Plan) -> bool:
        """Return whether tasks of a plan would read or write by a way that was replaced since.

        They run with the plan's own settings, and what they write is published with those of now.
        None run where only the end of the plan is left: see `has_made_changes`.
        """
        if pending.spec_version == self._spec_version or not pending.stretch.segments:
            return False
        versions = (pending.spec_version, self._spec_version)
        then, now = (ways_of(self._store.spec(self._id, version)) for version in versions)
        return then != now and not has_made_changes(self._store, self._id, self._flow, pending)

    def _open_planner(self) -> Planner:
        state = self._store.state(self._id)
        self._published, self.watermark = state.micro_batch, state.watermark
        self._versions.restore(state.versions)
        self._names_judged = False
        self._planner = self._flow.capture.planner(
            self._flow.decide, state.position, state.ranges, state.versions
        )
        self._hears = isinstance(self._planner, HasNews)
        if isinstance(self._flow.capture, ShowsPosition):
            shown = self._flow.capture.shown_position(state.position).items()
            words = ", ".join(f"{name} {text}" for name, text in shown if text)
            LOG.info("changefeed %s: reads on from %s", self._id, words or "the beginning")
        return self._planner

    def _close_planner(self) -> None:
        if self._planner is not None:
            self._planner.close()
            self._planner = None

    def _is_idle(self, stretch: Stretch, publish_idle: bool) -> bool:
        """Return whether a stretch can wait: the next one will cover all that it says."""
        if stretch.segments or stretch.schema_changes or self._versions.fresh:
            return False
        if stretch.finished:
            return False
        if stretch.ranges or stretch.gone_ranges:
            return False
        if stretch.watermark is None or stretch.watermark <= self.watermark:
            return True
        end = self._appetite.until_ts
        return not publish_idle and (end is None or stretch.watermark < end)

    def _make_plan(self, stretch: Stretch, quarantine: PlanQuarantine | None) -> Plan:
        bare = Plan(
            micro_batch=self._published + 1,
            spec_version=self._spec_version,
            planned_at_ms=self._now_ms(),
            stretch=stretch,
            quarantine=quarantine,
        )
        self._versions.check_masks(self._flow.decide, stretch)
        seen = self._seen(bare)
        outputs, sink_state = self._flow.sink.allocate(
            seen.stretch, self._seen_tables(bare, tables_of(bare, self._versions))
        )
        return bare.with_(outputs=outputs, sink_state=sink_state)

    def _carry_out(self, plan: Plan, replayed: bool) -> StepResult:
        if replayed:
            state = self._store.state(self._id)
            self._versions.restore(state.versions)
        began = time.monotonic()
        tables = tables_of(plan, self._versions)
        after = self._planner.snapshot_shares() if self._planner else None
        self._under_way.begin(plan.micro_batch, plan.stretch.segments, after)
        receipts: Sequence[Receipt] = ()
        if not self._has_rows_of(plan, replayed):
            with self._stages.measured("job"):
                plan, receipts = self._run(plan, tables)
        seen = self._seen(plan)
        with self._stages.measured("publish"):
            self._flow.sink.publish(seen, receipts, self._seen_tables(plan, tables))
        position = self._flow.capture.settle(plan.stretch, receipts)
        with self._stages.measured("store"):
            self._store.publish(self._claim, plan, position)
        if self._flow.redo is not None:
            self._flow.redo.reached(plan.micro_batch, _point_reached(plan.stretch))
        if plan.quarantine is not None or plan.stretch.schema_changes:
            self._quarantine.forget()
        for change in seen.stretch.schema_changes:
            LOG.info(
                "changefeed %s: schema change at %d, %s: %s",
                *(self._id, change.commit_ts, change.table, change.query or change.kind.name),
            )
        if position != plan.stretch.position:
            self._close_planner()  # it must start from what was just published
        self._published = plan.micro_batch
        if plan.stretch.watermark is not None:
            self.watermark = max(self.watermark, plan.stretch.watermark)
        if plan.stretch.schema_changes:
            dropped = {c.dropped_table_id for c in plan.stretch.schema_changes}
            self._versions.forget(self.watermark, dropped)
        if self._flow.decide.renames:
            self._forget_left(plan.stretch)
        took = time.monotonic() - began
        if any(s.beside for s in plan.stretch.segments):
            self._reread_pace.took(plan.stretch.segments, took)
        else:
            self._pace.took(plan.stretch.segments, took)
        return self._step(plan, receipts, replayed, took)

    def _forget_left(self, stretch: Stretch) -> None:
        """Forget tables that have left without a word: others may be written under their names."""
        if len(stretch.gone_ranges) > len(stretch.schema_changes):
            there = {version.table_id for version in self._store.state(self._id).versions}
            left = {table_id for table_id, _ in self._versions} - there
            self._versions.forget(self.watermark, left)

    def _has_rows_of(self, plan: Plan, replayed: bool) -> bool:
        """Return whether an earlier run came so far that rows must not be written again.

        It may have been given up since: then the same is planned anew, with the same number.
        """
        sink = self._flow.sink
        if replayed:
            return isinstance(sink, Remembering) and sink.has_rows_of(self._seen(plan))
        if not plan.stretch.schema_changes or not isinstance(sink, KeepsChanges):
            return False
        return sink.has_changes_of(self._seen(plan))

    def _seen(self, plan: Plan) -> Plan:
        return seen_by_readers(plan, self._decide_of(plan), self._versions)

    def _seen_tables(
        self, plan: Plan, tables: Mapping[TableSlice, TableSchema]
    ) -> dict[TableSlice, TableSchema]:
        decide = self._decide_of(plan)
        return {one: decide.seen_as(table) for one, table in tables.items()}

    def _decide_of(self, plan: Plan) -> Decisions:
        """Return what decides about a plan: by the settings with which it was recorded."""
        version = plan.spec_version
        if version == self._spec_version:
            return self._flow.decide
        if version not in self._decided:
            self._decided = {
                version: decisions_then(self._store.spec(self._id, version), self._flow)
            }
        return self._decided[version]

    def _run(
        self, plan: Plan, tables: Mapping[TableSlice, TableSchema]
    ) -> tuple[Plan, Sequence[Receipt]]:
        """Run a plan; returns it as it was carried out in the end, with the rows that it parks."""
        directory = self._begin_redo(plan, tables)
        if not plan.stretch.segments:
            return plan, ()
        spec = self._whole_spec(plan.spec_version)
        while True:
            moment("run job")
            whole = self._quarantine.filled(plan).with_(epoch=self._claim.epoch)
            try:
                receipts = []
                if directory and self._flow.redo is not None:
                    kept = whole.with_(redo=RedoStep(directory, keeps=True))
                    receipts = self._runner.run(spec, kept, tables)
                    self._flow.redo.all_kept(plan)
                    moment("kept in redo log")
                    whole = whole.with_(redo=RedoStep(directory, keeps=False))
                receipts += self._runner.run(spec, whole, tables)
                fresh = refused(receipts)
            except RowsRefused as err:
                receipts, fresh = [], refusals_in(err)
            moment("job done")
            self._counts = summed([self._counts, *(r.counts for r in receipts)])
            if not fresh:
                break
            plan = self._quarantine.with_refused(plan, fresh)
            for one in fresh:
                LOG.warning("changefeed %s: in quarantine: %s", self._id, one.cause)
            self._store.record_again(self._claim, plan)
        parked = diverted(receipts)
        self._quarantine.park(plan, parked)
        self._counts = summed([self._counts, {PARKED: len(parked)} if parked else None])
        return plan, [r for r in receipts if r.is_of_output]

    def _run_upkeep(self, plan: Plan) -> Sequence[Receipt]:
        """Run a plan of upkeep; what it does counts for no micro-batch."""
        spec = self._whole_spec(plan.spec_version)
        moment("run upkeep job")
        return self._runner.run(spec, plan, {})

    def _whole_spec(self, version: int) -> ChangefeedSpec:
        """Return the settings of a plan with their secrets."""
        if version not in self._specs:
            self._specs = {version: self._resolved(self._spec_of(version))}
        return self._specs[version]

    def _spec_of(self, version: int) -> ChangefeedSpec:
        """Return the settings of a plan, with the redo log of now: a try has one place."""
        spec = self._store.spec(self._id, version)
        if version == self._spec_version:
            return spec
        now = self._store.spec(self._id, self._spec_version).section(CONSISTENT)
        return replace(spec, config={**spec.config, CONSISTENT: now})

    def _begin_redo(self, plan: Plan, tables: Mapping[TableSlice, TableSchema]) -> str:
        """Keep a plan in the redo log; return where its segments go, or "" without one.

        One that only moves the watermark changes nothing downstream.
        """
        if self._flow.redo is None:
            return ""
        if not (plan.stretch.segments or plan.stretch.schema_changes):
            self._flow.redo.catch_up(plan.micro_batch, self.watermark)
            return ""
        seen = self._seen_tables(plan, tables)
        return self._flow.redo.begin(self._seen(plan), seen, self.watermark)

    def _step(
        self, plan: Plan, receipts: Sequence[Receipt], replayed: bool, seconds: float
    ) -> StepResult:
        return StepResult(
            published=True,
            replayed=replayed,
            sent_again=plan.quarantine is not None and plan.quarantine.is_of_retry,
            caught_up=plan.stretch.caught_up and not replayed,
            follows=plan.stretch.follows,
            finished=plan.stretch.finished,
            micro_batch=plan.micro_batch,
            rows=sum(r.rows for r in receipts),
            bytes=sum(r.bytes for r in receipts),
            source_bytes=sum(s.log_bytes for s in plan.stretch.segments),
            captured=_sum(r.captured for r in receipts),
            decided=_sum(r.decided for r in receipts),
            schema_changes=len(plan.stretch.schema_changes),
            seconds=seconds,
            stages=self._stages.seconds if not replayed else {},
            watermark=self.watermark,
            resolved=self.watermark,
            position=plan.stretch.position,
            tables=table_volumes(plan, receipts),
            sample=tuple(SampledChange.from_json(f) for r in receipts for f in r.sample or ()),
            counts=self._taken_counts(),
            lag_ms=self._planner.lag_ms() if self._planner else None,
            retention_ms=_kept_for(self._planner),
            snapshots=self._under_way.end(),
            warnings=self._planner.warnings() if self._planner else (),
        )

    def _taken_counts(self) -> dict[str, int]:
        """Return what happened in tasks and on the driver since the last step."""
        counts, self._counts = summed([self._counts, self._flow.take_counts()]), {}
        return counts


def _point_reached(stretch: Stretch) -> int | None:
    """Return the point of the source at which a stretch ends; 0: at none, None: where it began."""
    if stretch.watermark is None and (stretch.segments or stretch.schema_changes):
        return 0  # some tables are ahead of others
    return stretch.watermark


def _sum(volumes: Iterable[Volume]) -> Volume:
    some = list(volumes)
    return Volume(sum(v.rows for v in some), sum(v.bytes for v in some))


def _kept_for(planner: Planner | None) -> int | None:
    return planner.retention_ms() if isinstance(planner, KnowsRetention) else None
