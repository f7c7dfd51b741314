"""What operators see of changefeeds and servers: read from the meta database, changing nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from rowferry.change.position import physical_ms
from rowferry.change.sampled_change import SampledChange, SampleMode
from rowferry.change.table import TableId
from rowferry.control.operator import resnapshots
from rowferry.control.operator.operation_forms import LastChanges, Seen, Synced, TargetTables
from rowferry.control.operator.quarantine import shown_history
from rowferry.control.store.contract import FeedRecord, FleetServer, MetaStore, Sample
from rowferry.control.store.watching import by_stretch
from rowferry.errors import cure_of
from rowferry.flow.capture.contract import ShowsPosition
from rowferry.flow.sink.contract import HasUpkeep, TableStatus
from rowferry.registry import SINKS, SOURCES
from rowferry.spec.feed_options import FeedOptions, SyncedOptions

ALIVE_S: Final = 10.0  # a server that was silent for longer is gone
_DAY_S: Final = 86_400.0
_SYNCED_S: Final = 3600.0  # how far back the last row is looked for, at least
SYNCED: Final = "The data syncing is finished"
NOT_SYNCED: Final = "The data syncing is not finished, please wait"
MAYBE_SYNCED: Final = (
    "All that was read has arrived, but the source has told nothing new for a while: look whether "
    "the source and the changefeed run. If they do, the data syncing is not finished, please wait"
)


def see(store: MetaStore, feed: FeedRecord, now: float, samples_s: float) -> Seen:
    """Return one changefeed with its progress and the samples of the last seconds."""
    ranges = store.ranges(feed.id)
    return Seen(
        feed=feed,
        ranges=ranges,
        tables=tuple(sorted({TableId(r.database, r.table) for r in ranges})),
        samples=store.samples(feed.id, now - samples_s),
        history=shown_history(store.history(feed.id)),
        server=server_of(store, feed),
        cure=cure_of(feed.error_code) if feed.error_code else "",
        log_place=_log_place(store, feed),
        kept_ms=None if feed.kept_until is None else round(1000 * (feed.kept_until - now)),
        counts=store.table_counts(feed.id),
        schema_changes=store.schema_changes(feed.id),
        rereads=resnapshots.offers_rereads(feed),
        resnapshots=resnapshots.look(store, feed),
    )


def _log_place(store: MetaStore, feed: FeedRecord) -> Mapping[str, str]:
    """Return where a changefeed is in its source's log, in the source's own words."""
    source = SOURCES.load(feed.spec.source.scheme)
    if not isinstance(source, ShowsPosition):
        return {}
    return source.shown_position(store.position(feed.id))


def day(store: MetaStore, feed: FeedRecord, now: float) -> tuple[Sample, ...]:
    """Return what a changefeed did in the last day: one sample for each five minutes."""
    return by_stretch(store.samples(feed.id, now - _DAY_S))


def last_changes(
    store: MetaStore,
    feed: FeedRecord,
    known: tuple[SampledChange, ...] | None,
    with_values: bool,
) -> LastChanges:
    """Return the last changes that were delivered; `known` is None where another process runs it.

    Without `with_values` only the shape of each change is told.
    """
    mode = SampleMode(feed.spec.options(FeedOptions).sample_changes)
    server = server_of(store, feed)
    changes = known if known is not None and mode is not SampleMode.OFF else ()
    if mode is SampleMode.MASKED or not with_values:
        changes = tuple(one.masked() for one in changes)
    owner = server.address if server is not None else ""
    return LastChanges(mode, owner, known is not None, changes)


def target_tables(
    store: MetaStore, feed: FeedRecord, known: tuple[TableStatus, ...] | None
) -> TargetTables:
    """Return what a sink's tables are made of; `known` is None where another process runs it."""
    kept = issubclass(SINKS.load(feed.spec.sink.scheme), HasUpkeep)
    server = server_of(store, feed)
    owner = server.address if server is not None else ""
    return TargetTables(kept, owner, known is not None, known or ())


def synced(store: MetaStore, feed: FeedRecord, now_s: float) -> Synced:
    """Return whether a changefeed has caught up and stays so."""
    options = feed.spec.options(SyncedOptions)
    now = round(now_s * 1000)
    samples = store.samples(feed.id, now_s - max(_SYNCED_S, options.synced_check_interval + 1))
    checkpoint = physical_ms(feed.watermark)
    resolved = max([checkpoint, *(physical_ms(s.watermark) for s in samples)])
    last = max((round(s.at * 1000) for s in samples if s.rows), default=0)
    quiet = now - last > options.synced_check_interval * 1000
    near = options.checkpoint_interval * 1000
    is_synced = quiet and now - checkpoint < near
    words = NOT_SYNCED
    if is_synced:
        words = SYNCED
    elif quiet and resolved - checkpoint < near:
        words = MAYBE_SYNCED
    return Synced(is_synced, checkpoint, resolved, last, now, words)


def server_of(store: MetaStore, feed: FeedRecord) -> FleetServer | None:
    """Return the server that runs a changefeed; None: nobody does, or a process that is none."""
    if feed.lease is None:
        return None
    holder, servers = feed.lease.holder, store.servers()
    same = [s for s in servers if s.holder.instance == holder.instance]
    same += [s for s in servers if (s.holder.host, s.holder.pid) == (holder.host, holder.pid)]
    return same[0] if same else None


def live_servers(store: MetaStore, now: float) -> tuple[FleetServer, ...]:
    """Return the servers that are alive, by address."""
    alive = store.servers(now - ALIVE_S)
    return tuple(sorted(alive, key=lambda s: (s.address, s.holder.instance)))
