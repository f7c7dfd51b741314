"""What an operator's verbs take and give."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rowferry.change.position import RangeProgress
from rowferry.change.table import TableId
from rowferry.control.store.contract import FeedRecord, FleetServer, Hold, Note, Sample, Subscribing


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
    """

    source_uri: str
    sink_uri: str
    changefeed_id: str | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    start_ts: int | None = None
    target_ts: int | None = None
    subscribing: Subscribing | None = None
    cluster_id: int = 0


@dataclass(frozen=True, slots=True)
class ChangedSettings:
    """New settings of a changefeed; what is None stays as it is.

    `config` replaces the whole configuration.
    """

    source_uri: str | None = None
    sink_uri: str | None = None
    config: Mapping[str, Any] | None = None
    target_ts: int | None = None


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
class Seen:
    """A changefeed with all that is known about where it stands.

    Attributes:
        ranges: progress of each range or snapshot part.
        tables: the captured tables.
        samples: of the last minutes, oldest first.
        history: what happened to it, newest first.
        server: who runs it, as it last announced itself; None: nobody, or unknown.
        cure: what to do about `feed.error`; empty without one.
    """

    feed: FeedRecord
    ranges: tuple[RangeProgress, ...]
    tables: tuple[TableId, ...]
    samples: tuple[Sample, ...]
    history: tuple[Note, ...]
    server: FleetServer | None
    cure: str


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
