"""What an operator's verbs take and give."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rowferry.change.position import RangeProgress
from rowferry.change.resnapshot import Resnapshot
from rowferry.change.sampled_change import SampledChange, SampleMode
from rowferry.change.table import TableId
from rowferry.control.store.contract import (
    FeedRecord,
    FleetServer,
    Hold,
    Note,
    PastSchemaChange,
    Sample,
    Subscribing,
    TableCount,
)
from rowferry.flow.sink.contract import TableStatus


@dataclass(frozen=True, slots=True)
class Wanted:
    """A changefeed as someone asks for it.

    Attributes:
        changefeed_id: None: made from source and sink.
        config: the configuration with TiCDC's key names, nested; empty: defaults.
        start_ts: begin in the log behind this commit-ts, without a snapshot; None: as the source
            URI says.
        target_ts: end when everything up to this commit-ts was delivered; None: never.
        subscribing: the subscription that it is made for.
        cluster_id: the source's, where that has none of its own.
        only_cluster: the only one that its source may be, where that has a number; 0: any.
        managed_by: the owner of the file that declares it; empty: no file does.
        paused: it stands still until it is resumed: no server begins it.
    """

    source_uri: str
    sink_uri: str
    changefeed_id: str | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    start_ts: int | None = None
    target_ts: int | None = None
    subscribing: Subscribing | None = None
    cluster_id: int = 0
    only_cluster: int = 0
    managed_by: str = ""
    paused: bool = False


@dataclass(frozen=True, slots=True)
class ChangedSettings:
    """New settings of a changefeed; what is None stays as it is.

    `config` replaces the whole configuration.
    """

    source_uri: str | None = None
    sink_uri: str | None = None
    config: Mapping[str, Any] | None = None
    target_ts: int | None = None
    managed_by: str | None = None


@dataclass(frozen=True, slots=True)
class Created:
    """What a creation did, or with `dry_run` would do.

    Attributes:
        eligible, ineligible: captured tables, and those that match but have no usable key.
        outputs: for each captured table, where its rows go: a topic, a directory, a table, a URL.
        rules: the rules that decided, in words, a line each.
        notices: what the user should know, a line each.
    """

    feed: FeedRecord
    eligible: tuple[TableId, ...]
    ineligible: tuple[TableId, ...]
    outputs: Mapping[TableId, str]
    rules: tuple[str, ...]
    notices: tuple[str, ...]
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class ResnapshotProgress:
    """A resnapshot, and how far it is.

    Attributes:
        state: waiting, running, done, cancelled or failed.
        total: rows, estimated by the source; 0: not known yet.
    """

    asked: Resnapshot
    state: str
    rows: int
    total: int


@dataclass(frozen=True, slots=True)
class Seen:
    """A changefeed with all that is known about where it stands.

    Attributes:
        ranges: progress of each range or snapshot part.
        tables: the captured tables.
        samples: of the last minutes, oldest first.
        history: what happened to it, newest first.
        server: who runs it, as it last announced itself; None: nobody, or unknown.
        cure: what to do about `feed.error`; empty without one.
        log_place: where in the source's log it is, as the source words it; empty: not known.
        kept_ms: how long the source still keeps the log there; None: for ever, or not known.
        counts: what was delivered of each table.
        schema_changes: that were delivered, newest first.
        rereads: its source can give a table again beside its log.
        resnapshots: those that are open, and the last that ended, oldest first.
    """

    feed: FeedRecord
    ranges: tuple[RangeProgress, ...]
    tables: tuple[TableId, ...]
    samples: tuple[Sample, ...]
    history: tuple[Note, ...]
    server: FleetServer | None
    cure: str
    log_place: Mapping[str, str] = field(default_factory=dict)
    kept_ms: int | None = None
    counts: tuple[TableCount, ...] = ()
    schema_changes: tuple[PastSchemaChange, ...] = ()
    rereads: bool = False
    resnapshots: tuple[ResnapshotProgress, ...] = ()


@dataclass(frozen=True, slots=True)
class LastChanges:
    """The last changes of a changefeed that its owner has delivered.

    Attributes:
        mode: what is kept of them, by the changefeed's settings.
        owner: the address of the server that runs it; empty: nobody, or no server.
        here: whether that is the server that was asked: no other knows them.
        changes: newest first.
    """

    mode: SampleMode
    owner: str
    here: bool
    changes: tuple[SampledChange, ...]


def sample_words(last: LastChanges, changefeed: str) -> str:
    """Return how many changes these are or, where there are none, why."""
    if last.mode is SampleMode.OFF:
        return f"{changefeed} keeps none of its changes: sample-changes = false"
    if not last.here and last.owner:
        return f"only the server that runs {changefeed} knows them: ask {last.owner}"
    if not last.here:
        return f"nobody runs {changefeed}"
    return f"the last {len(last.changes)} changes, newest first"


@dataclass(frozen=True, slots=True)
class TargetTables:
    """What the tables of a sink are made of, where the sink keeps them in shape itself.

    Attributes:
        kept: whether it does.
        owner: the address of the server that runs the changefeed; empty: nobody, or no server.
        here: whether that is the server that was asked: no other knows the tables.
        tables: as its owner saw them a few seconds ago.
    """

    kept: bool
    owner: str
    here: bool
    tables: tuple[TableStatus, ...]


def target_words(target: TargetTables, changefeed: str) -> str:
    """Return how many tables these are or, where there are none, why."""
    if not target.kept:
        return f"the sink of {changefeed} holds no tables that need upkeep"
    if not target.here and target.owner:
        return f"only the server that runs {changefeed} knows them: ask {target.owner}"
    if not target.here:
        return f"nobody runs {changefeed}; rowferry lake status asks the tables themselves"
    return f"{len(target.tables)} tables, as they were a few seconds ago"


@dataclass(frozen=True, slots=True)
class Synced:
    """Whether everything written to the source so far has arrived, as far as can be told.

    All times are milliseconds since 1970; a `last_synced_ts` of 0: no row came for a long time.
    """

    synced: bool
    sink_checkpoint_ts: int
    puller_resolved_ts: int
    last_synced_ts: int
    now_ts: int
    words: str


@dataclass(frozen=True, slots=True)
class Held:
    """Where a changefeed stands.

    Attributes:
        hold: the hold in force; None: there is none, or it is over.
        pending: a micro-batch is under way: its rows may be at the sink already.
        micro_batch: the last published one.
        lag_ms: how far the checkpoint is behind the clock; None: not known.
    """

    hold: Hold | None
    pending: bool
    micro_batch: int
    lag_ms: int | None
