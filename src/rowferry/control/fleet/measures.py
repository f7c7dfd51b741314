"""What Prometheus reads from a server: one collector for each thing worth watching.

A changefeed's values are here while this server runs it, and vanish when it stops doing so: the
server that takes it over shows them from then on.
"""

from __future__ import annotations

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from rowferry.change.position import physical_ms
from rowferry.control.feed.loop import StepResult

REGISTRY: Final = CollectorRegistry()
_FEED: Final = ("changefeed",)


def _gauge(name: str, words: str, labels: tuple[str, ...] = _FEED) -> Gauge:
    return Gauge(f"rowferry_{name}", words, labels, registry=REGISTRY)


def _counter(name: str, words: str, labels: tuple[str, ...] = _FEED) -> Counter:
    return Counter(f"rowferry_{name}", words, labels, registry=REGISTRY)


OWNED: Final = _gauge("owned_changefeeds", "Changefeeds that this server runs.", ())
META_UP: Final = _gauge("meta_up", "Whether the meta database answered the last time.", ())
LAG: Final = _gauge("checkpoint_lag_seconds", "How far the checkpoint is behind the clock.")
CHECKPOINT: Final = _gauge("checkpoint_ts", "Everything up to this commit-ts was delivered.")
RESOLVED: Final = _gauge("resolved_ts", "Everything up to this commit-ts was read or is known.")
RETENTION: Final = _gauge(
    "retention_left_seconds", "How long the source keeps what was not read yet."
)
SNAPSHOT: Final = _gauge(
    "snapshot_parts", "Parts of snapshots under way.", ("changefeed", "table", "of")
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
ERRORS: Final = _counter("errors", "Errors, by code.", ("changefeed", "code"))
MICRO_BATCH: Final = Histogram(
    "rowferry_micro_batch_seconds",
    "How long micro-batches with rows or schema changes took.",
    _FEED,
    registry=REGISTRY,
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60),
)
_ALL: Final = (
    *(LAG, CHECKPOINT, RESOLVED, RETENTION, SNAPSHOT),
    *(ROWS, BYTES, DDLS, ERRORS, MICRO_BATCH),
)


def note_step(changefeed: str, step: StepResult) -> None:
    """Take in what a step did."""
    CHECKPOINT.labels(changefeed).set(step.watermark)
    RESOLVED.labels(changefeed).set(max(step.resolved, step.watermark))
    if not step.published:
        return
    SNAPSHOT.remove_by_labels({"changefeed": changefeed})
    for share in step.snapshots:
        SNAPSHOT.labels(changefeed, str(share.table), "done").set(share.done_parts)
        SNAPSHOT.labels(changefeed, str(share.table), "all").set(share.all_parts)
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


def note_error(changefeed: str, code: str) -> None:
    """Count an error."""
    ERRORS.labels(changefeed, code).inc()


def note_lag(changefeed: str, watermark: int, now_s: float) -> None:
    """Show how far a changefeed is behind; not known before its first checkpoint."""
    if watermark:
        LAG.labels(changefeed).set(max(0.0, now_s - physical_ms(watermark) / 1000))


def note_retention(changefeed: str, left_ms: int | None) -> None:
    """Show how long the source keeps what is needed, where that is known."""
    if left_ms is not None:
        RETENTION.labels(changefeed).set(left_ms / 1000)


def forget(changefeed: str) -> None:
    """Show nothing more of a changefeed."""
    for collector in _ALL:
        collector.remove_by_labels({"changefeed": changefeed})
