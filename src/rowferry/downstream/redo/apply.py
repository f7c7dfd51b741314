"""Completes the downstream from the redo log of a changefeed whose source is lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Final, cast

from rowferry.downstream.consume.storage import stage_tables
from rowferry.errors import BadInput, BadOption, Fenced
from rowferry.flow.assemble import format_of, sink_traits
from rowferry.flow.named_storage import files_at
from rowferry.flow.redo.log import KeptPlan, Reached, RedoLog
from rowferry.flow.redo.place import WHAT
from rowferry.flow.sink.contract import LaneSink, Owner, Packet, Remembering
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
        """Everything up to this commit-ts is downstream."""
        return self.reached.commit_ts

    @property
    def resolved_ts(self) -> int:
        """Everything up to this commit-ts can be brought there; 0: a snapshot was not complete."""
        return max(self.checkpoint_ts, self.kept.watermark if self.kept else 0)


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
        reached = log.last_reached()
        if reached is not None:
            kept = log.complete(reached.micro_batch + 1)
            logs[entry.name] = (log, RedoState(entry.name, reached, kept))
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
) -> int:
    """Bring the downstream to the consistent point, and note it; returns the changes written.

    `tell` is called for each segment: how many changes were written, of how many segments. On
    repeat: nothing changes.

    Raises:
        BadInput: the sink cannot take what was kept.
        TargetLost, TargetWentBack: it is not the downstream that was written to.
        SinkError: it does not take something.
    """
    if not state.resolved_ts:
        raise BadInput(
            f"changefeed {state.changefeed!r} had not completed its first snapshot: there is no "
            "consistent point to bring the downstream to"
        )
    kept = state.kept
    if kept is None:
        return 0
    spec = _sink_spec(state.changefeed, kept, sink_uri, secrets)
    sink = SINKS.load(spec.sink.scheme)(spec, format_of(spec))
    changes = 0

    def packets(epoch: int) -> Iterator[Packet]:
        nonlocal changes
        number = kept.plan.micro_batch
        for segment in kept.plan.stretch.segments:
            for packet in log.packets(kept.name.directory, segment.ordinal):
                changes += len(packet.messages.values)
                yield replace(packet, micro_batch=number, epoch=epoch)
            tell(changes, segment.ordinal + 1)

    try:
        owner = Owner(
            state.changefeed,
            max(state.reached.epoch, kept.name.epoch),
            delivered=state.checkpoint_ts,
            micro_batch=state.reached.micro_batch,
            continues=state.reached.micro_batch > 0,
        )
        sink.probe(owner)
        owner = _claimed(owner, lambda one: sink.open(one, None))
        if not (isinstance(sink, Remembering) and sink.has_rows_of(kept.plan)):
            moment("apply redo log")
            cast(LaneSink, sink).deliver(packets(owner.epoch))
        sink.publish(kept.plan, (), kept.tables)
    finally:
        sink.close()
    log.open(replace(owner, micro_batch=kept.plan.micro_batch, delivered=state.resolved_ts))
    return changes


def _claimed(owner: Owner, claim: Callable[[Owner], None]) -> Owner:
    """Claim the downstream with an epoch above all others: whoever had it cannot write any more.

    The last owner may have come so far as to claim it, and no farther: the redo log does not know
    its epoch.
    """
    for step in range(_MOST_STEPS):
        mine = replace(owner, epoch=owner.epoch + (1 << step))
        try:
            claim(mine)
        except Fenced:
            if step == _MOST_STEPS - 1:
                raise
            continue
        return mine
    raise AssertionError


def _sink_spec(
    changefeed: str, kept: KeptPlan, sink_uri: str, secrets: SecretSources
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
