"""Completes the downstream from the redo log of a changefeed whose source is lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final, NamedTuple, cast

from rowferry.downstream.consume.storage import stage_tables
from rowferry.errors import BadInput, BadOption, Fenced
from rowferry.flow.assemble import format_of, sink_traits
from rowferry.flow.named_storage import files_at
from rowferry.flow.redo.log import KeptPlan, Reached, RedoLog
from rowferry.flow.redo.place import WHAT
from rowferry.flow.sink.contract import LaneSink, Owner, Packet, Remembering, Sink
from rowferry.moment import moment
from rowferry.registry import SINKS
from rowferry.secrets.sources import SecretSources
from rowferry.spec.build import build_spec
from rowferry.spec.changefeed import NO_PLACE, ChangefeedSpec
from rowferry.spec.uri import Uri

_MOST_STEPS: Final = 40  # of epochs, each twice as far as the last


@dataclass(frozen=True, slots=True)
class RedoState:
    """How far the downstream is, and how far it can be brought.

    Attributes:
        reached: what it has whole.
        kept: the complete micro-batch behind that, of which it may have a part; None: it has
            nothing else.
    """

    changefeed: str
    reached: Reached
    kept: KeptPlan | None

    @property
    def checkpoint_ts(self) -> int:
        """Everything up to this commit-ts is downstream; 0: some tables are ahead of others."""
        return self.reached.commit_ts

    @property
    def resolved_ts(self) -> int:
        """The point of the source to which the downstream can be brought; 0: to none.

        There is none while rows of a table are read beside the log, nor below what was written
        once: by a plan that was given up, or before a reset.
        """
        point = self.kept.watermark if self.kept else self.checkpoint_ts
        return point if point >= self.reached.farthest else 0


class Applied(NamedTuple):
    """What was applied, and how many changes that were."""

    state: RedoState
    changes: int


def find_log(storage: Uri, changefeed: str) -> tuple[RedoLog, RedoState]:
    """Return the redo log of a changefeed in a storage, and its state; writes nothing.

    Without a name there must be one log only.

    Raises:
        BadInput: the storage cannot be used, or holds no such log.
        SinkUnavailable: it does not answer.
        SinkDamaged: a file of the log cannot be read.
    """
    files = files_at(storage, WHAT)
    logs: dict[str, tuple[RedoLog, RedoState]] = {}
    for entry in files.entries(""):
        if not entry.is_directory or (changefeed and entry.name != changefeed):
            continue
        log = RedoLog(files, entry.name)
        state = _state_of(log, entry.name)
        if state is not None:
            logs[entry.name] = (log, state)
    if not logs:
        whose = f" of changefeed {changefeed!r}" if changefeed else ""
        raise BadInput(f"{storage} holds no redo log{whose}; check --storage")
    if len(logs) > 1:
        raise BadOption(
            f"{storage} holds the redo logs of {', '.join(sorted(logs))}; choose one by "
            "--changefeed-id"
        )
    return next(iter(logs.values()))


def apply(
    log: RedoLog,
    state: RedoState,
    sink_uri: str,
    secrets: SecretSources,
    tell: Callable[[int, int], None] = lambda changes, segments: None,
) -> Applied:
    """Bring the downstream to the consistent point, and note it.

    Whoever wrote there is fenced off first, also where nothing is left to write; what the log says
    then is applied, and returned. `tell` is called for each segment: how many changes were written,
    of how many segments. On repeat: nothing changes.

    Raises:
        BadInput: there is no such point, the sink cannot take what was kept, or has newer changes.
        TargetLost, TargetWentBack: it is not the downstream that was written to.
        SinkError: it does not take something.
    """
    _require_point(state)
    owner, state = _fenced_off(log, state, sink_uri, secrets)
    _require_point(state)
    changes, kept = 0, state.kept

    def packets(plan: KeptPlan) -> Iterator[Packet]:
        nonlocal changes
        for segment in plan.plan.stretch.segments:
            for packet in log.packets(plan.name.directory, segment.ordinal):
                changes += len(packet.messages.values)
                yield replace(packet, micro_batch=plan.plan.micro_batch, epoch=owner.epoch)
            tell(changes, segment.ordinal + 1)

    with _sink_of(state, sink_uri, secrets) as sink:
        # One that only moved the watermark is not kept, and may be there.
        newest = state.reached.micro_batch + 1
        sink.open(replace(_owner(state), epoch=owner.epoch, newest=newest), None)
        if kept is not None:
            if not (isinstance(sink, Remembering) and sink.has_rows_of(kept.plan)):
                moment("apply redo log")
                cast(LaneSink, sink).deliver(packets(kept))
            sink.publish(kept.plan, (), kept.tables)
    log.note_applied(owner.epoch, state.reached, kept)
    return Applied(state, changes)


def _state_of(log: RedoLog, changefeed: str) -> RedoState | None:
    """Return what a log says; None: nothing was ever kept there."""
    reached = log.last_reached()
    if reached is None:
        return None
    return RedoState(changefeed, reached, log.complete(reached.micro_batch + 1))


def _require_point(state: RedoState) -> None:
    if not state.resolved_ts:
        raise BadInput(
            f"the downstream of changefeed {state.changefeed!r} cannot be brought to a consistent "
            "point: when it was written last, some tables were ahead of others, as during a "
            "snapshot or a resnapshot, while a table joins, or after a reset"
        )


def _owner(state: RedoState) -> Owner:
    reached, kept = state.reached, state.kept
    return Owner(
        state.changefeed,
        max(reached.epoch, kept.name.epoch if kept else 0),
        delivered=state.checkpoint_ts,
        micro_batch=reached.micro_batch,
        continues=reached.micro_batch > 0,
    )


def _is_ours(state: RedoState) -> bool:
    """Return whether `redo apply` had the downstream last, not the changefeed."""
    return state.reached.applied and state.reached.epoch == _owner(state).epoch


def _fenced_off(
    log: RedoLog, state: RedoState, sink_uri: str, secrets: SecretSources
) -> tuple[Owner, RedoState]:
    """Claim the downstream; returns what the log says when nobody else can write there any more."""
    while True:
        with _sink_of(state, sink_uri, secrets) as sink:
            owner = _owner(state)
            sink.probe(owner)
            owner = _claimed(owner, state, lambda one: sink.open(one, None))  # noqa: B023
        state = _state_of(log, state.changefeed) or state
        # The changefeed may have had that very epoch when the log was read the first time.
        if _is_ours(state) or _owner(state).epoch < owner.epoch:
            return owner, state


def _claimed(owner: Owner, state: RedoState, claim: Callable[[Owner], None]) -> Owner:
    """Claim the downstream with an epoch above all others: whoever had it cannot write any more.

    The last owner may have come so far as to claim it, and no farther: the redo log does not know
    its epoch. Where `redo apply` had it last, its own epoch is enough: the changefeed, which knows
    nothing of it, can then go on with its next one.
    """
    steps = [0] * _is_ours(state) + [1 << step for step in range(_MOST_STEPS)]
    for step in steps:
        claimed = replace(owner, epoch=owner.epoch + step)
        try:
            claim(claimed)
        except Fenced:
            if step == steps[-1]:
                raise
            continue
        return claimed
    raise AssertionError


@contextmanager
def _sink_of(state: RedoState, sink_uri: str, secrets: SecretSources) -> Iterator[Sink]:
    """A sink with the settings that the log has kept; its connections end with the block."""
    spec = _sink_spec(state.changefeed, state.kept or state.reached, sink_uri, secrets)
    sink = SINKS.load(spec.sink.scheme)(spec, format_of(spec))
    try:
        yield sink
    finally:
        sink.close()


def _sink_spec(
    changefeed: str, kept: KeptPlan | Reached, sink_uri: str, secrets: SecretSources
) -> ChangefeedSpec:
    """Return the settings of a sink that takes what was kept.

    Raises:
        BadInput: it cannot, or its URI is wrong.
    """
    traits = sink_traits(Uri.parse(sink_uri, "sink").scheme)
    if traits.kind != kept.kind or not traits.keeps_redo:
        raise BadOption(
            f"--sink-uri: the redo log was written for a {kept.kind} sink; it cannot be applied to "
            f"{Uri.parse(sink_uri, 'sink').scheme}://"
        )
    spec, _ = build_spec(
        NO_PLACE, sink_uri, kept.config, changefeed, tables=stage_tables, sinks=sink_traits
    )
    tables = SINKS.load(spec.sink.scheme).TABLES
    return replace(spec, sink=secrets.resolved_uri(spec.sink, "the sink URI", tables))
