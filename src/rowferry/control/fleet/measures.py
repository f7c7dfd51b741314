"""What Prometheus reads from a server: one collector for each thing worth watching.

How each changefeed stands is shown by every server (`FEEDS`). What its owner does is counted by the
owner: counters stay where they were counted until the changefeed is removed, gauges of its work
end with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from rowferry.change import event_counts
from rowferry.control.feed.loop import StepResult
from rowferry.control.feed.under_way import in_focus
from rowferry.control.fleet.feed_gauges import FeedGauges
from rowferry.control.fleet.memory import MemoryGauges
from rowferry.control.fleet.position_gauges import PositionGauges
from rowferry.control.fleet.table_gauges import TableGauges
from rowferry.control.store.contract import FeedRecord
from rowferry.flow.capture.contract import SnapshotShare
from rowferry.registry import SOURCES

REGISTRY: Final = CollectorRegistry()
_FEED: Final = ("changefeed",)


def _gauge(name: str, words: str, labels: tuple[str, ...] = _FEED) -> Gauge:
    return Gauge(f"rowferry_{name}", words, labels, registry=REGISTRY)


def _counter(name: str, words: str, labels: tuple[str, ...] = _FEED) -> Counter:
    return Counter(f"rowferry_{name}", words, labels, registry=REGISTRY)


OWNED: Final = _gauge("owned_changefeeds", "Changefeeds that this server runs.", ())
META_UP: Final = _gauge("meta_up", "Whether the meta database answered the last time.", ())
FEEDS: Final = FeedGauges()
TABLES: Final = TableGauges()
POSITIONS: Final = PositionGauges()
RESOLVED: Final = _gauge("resolved_ts", "Everything up to this commit-ts was read or is known.")
SNAPSHOT: Final = _gauge(
    "snapshot_parts",
    "Snapshots under way: rows, or parts of ranges.",
    ("changefeed", "table", "of"),
)
ROWS: Final = _counter(
    "rows",
    "Row changes, by stage: captured, left when filters had decided, sent to the sink.",
    ("changefeed", "stage"),
)
BYTES: Final = _counter(
    "bytes",
    "Bytes, by stage: read from the source's log, captured and decided (rows as columns), sent.",
    ("changefeed", "stage"),
)
DDLS: Final = _counter("schema_changes", "Schema changes that were sent.")
SINK_CALLS: Final = _counter(
    "sink_calls", "Calls to the target, by what was asked of it.", ("changefeed", "call")
)
SINK_RETRIES: Final = _counter("sink_retries", "Calls to the target that were tried again.")
SINK_BYTES: Final = _counter("sink_bytes", "Bytes that went out to the target.")
DROPPED: Final = _counter(
    "dropped_rows",
    "Rows that soft delete and active-active leave out, by reason.",
    ("changefeed", "reason"),
)
CONFLICTS: Final = _counter(
    "conflicts",
    "Rows that met another one at an active-active target, by whether ours won.",
    ("changefeed", "outcome"),
)
PARKED: Final = _counter(
    "parked_rows", "Rows that were parked: the sink refused them, or they wait behind such."
)
ERRORS: Final = _counter("errors", "Errors, by code.", ("changefeed", "code"))
MICRO_BATCH: Final = Histogram(
    "rowferry_micro_batch_seconds",
    "How long micro-batches with rows or schema changes took.",
    _FEED,
    registry=REGISTRY,
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60),
)
STAGE: Final = Histogram(
    "rowferry_stage_seconds",
    "Of micro-batches with rows: how old the newest row was when they were planned (read), and how "
    "long they were planned, recorded, run, published and stored.",
    ("stage",),
    registry=REGISTRY,
    buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60),
)
_OF_OWNER: Final = (RESOLVED, SNAPSHOT)
_COUNTED: Final = (
    *(ROWS, BYTES, DDLS, ERRORS, MICRO_BATCH),
    *(SINK_CALLS, SINK_RETRIES, SINK_BYTES, DROPPED, CONFLICTS, PARKED),
)
_BY_COUNT: Final = {
    event_counts.CALLS: SINK_CALLS,
    event_counts.RETRIES: SINK_RETRIES,
    event_counts.SENT_BYTES: SINK_BYTES,
    event_counts.DROPPED: DROPPED,
    event_counts.CONFLICTS: CONFLICTS,
    event_counts.PARKED: PARKED,
}
REGISTRY.register(FEEDS)
REGISTRY.register(TABLES)
REGISTRY.register(POSITIONS)
REGISTRY.register(MemoryGauges(POSITIONS.sources))
_known: set[str] = set()  # changefeeds with counts


def note_step(changefeed: str, step: StepResult) -> None:
    """Take in what a step did."""
    _known.add(changefeed)
    RESOLVED.labels(changefeed).set(max(step.resolved, step.watermark))
    if not step.published:
        return
    note_snapshots(changefeed, step.snapshots)
    TABLES.add(changefeed, step.tables, step.watermark)
    note_counts(changefeed, step.counts)
    if step.captured.rows or step.rows or step.schema_changes:
        BYTES.labels(changefeed, "read").inc(step.source_bytes)
        for stage, rows, size in (
            ("captured", step.captured.rows, step.captured.bytes),
            ("decided", step.decided.rows, step.decided.bytes),
            ("sent", step.rows, step.bytes),
        ):
            ROWS.labels(changefeed, stage).inc(rows)
            BYTES.labels(changefeed, stage).inc(size)
        DDLS.labels(changefeed).inc(step.schema_changes)
        MICRO_BATCH.labels(changefeed).observe(step.seconds)
    if step.rows:
        for stage, seconds in step.stages.items():
            STAGE.labels(stage).observe(seconds)


def note_snapshots(changefeed: str, shares: Sequence[SnapshotShare]) -> None:
    """Show how far snapshots are; of very many tables, the sum."""
    SNAPSHOT.remove_by_labels({"changefeed": changefeed})
    for share in in_focus(shares):
        SNAPSHOT.labels(changefeed, str(share.table), "done").set(share.done)
        SNAPSHOT.labels(changefeed, str(share.table), "all").set(share.total)


def note_position(changefeed: str, scheme: str, position: Mapping[str, Any]) -> None:
    """Show where in its source's log a changefeed is; described when somebody asks."""
    POSITIONS.note(changefeed, SOURCES.load(scheme), position)


def note_error(changefeed: str, code: str) -> None:
    """Count an error."""
    _known.add(changefeed)
    ERRORS.labels(changefeed, code).inc()


def note_counts(changefeed: str, counts: Mapping[str, int]) -> None:
    """Add what happened in the stages; see `change.event_counts`."""
    for name, count in counts.items():
        of, _, kind = name.partition(".")
        labels = (changefeed, kind) if kind else (changefeed,)
        _BY_COUNT[of].labels(*labels).inc(count)


def look(feeds: Sequence[FeedRecord]) -> None:
    """Show how all changefeeds stand; of those that were removed, nothing more."""
    FEEDS.look(feeds)
    for changefeed in _known.difference(feed.id for feed in feeds):
        forget(changefeed)


def stop(changefeed: str) -> None:
    """Show no more what only the owner of a changefeed knows: this server is not it any more."""
    TABLES.stop(changefeed)
    POSITIONS.forget(changefeed)
    for gauge in _OF_OWNER:
        gauge.remove_by_labels({"changefeed": changefeed})


def forget(changefeed: str) -> None:
    """Show nothing more of a changefeed."""
    _known.discard(changefeed)
    TABLES.forget(changefeed)
    POSITIONS.forget(changefeed)
    for collector in (*_OF_OWNER, *_COUNTED):
        collector.remove_by_labels({"changefeed": changefeed})
