"""What the page, the shell and SQL show beyond TiCDC's shapes. Times are ms since 1970."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from rowferry.change.position import RangeProgress, Stage, physical_ms
from rowferry.change.table import TableId
from rowferry.control.lifecycle import FeedState
from rowferry.control.operator.operation_forms import (
    LastChanges,
    TargetTables,
    sample_words,
    target_words,
)
from rowferry.control.operator.operations import Operations, Seen
from rowferry.control.operator.resnapshots import forms
from rowferry.control.operator.settings.redaction import redacted_config
from rowferry.control.operator.snapshot_progress import newest_sample, phase, snapshot_sum
from rowferry.control.store.contract import FeedRecord, FleetServer, LogLine, Note, Sample
from rowferry.errors import NoSuchChangefeed, cure_of
from rowferry.face.about import About
from rowferry.face.json_log import all_shown, redacted
from rowferry.face.rest.answers import checkpoint
from rowferry.face.rest.changefeeds import ERROR_TIME_NOTES
from rowferry.face.rest.fleet import owner_of

_SERIES: Final = 60  # points of lag and of rows in a list's item
_SERIES_S: Final = 310.0
_TABLES_S: Final = 10.0
_REMEMBER_S: Final = 1.0

Form = dict[str, Any]


class Overview:
    """All changefeeds and servers at a glance, read at most once a second however many ask.

    What changes seldom and is long to read, the captured tables, is read more seldom still.
    """

    def __init__(
        self,
        operations: Operations,
        about: About,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._operations = operations
        self._about = about
        self._clock = clock
        self._lock = threading.Lock()
        self._made: tuple[float, Form] | None = None
        self._tables: dict[str, tuple[float, tuple[TableId, ...]]] = {}

    def look(self) -> Form:
        """Return the overview, at most a second old."""
        with self._lock:
            now = self._clock()
            if self._made is None or now - self._made[0] >= _REMEMBER_S:
                self._made = (now, self._read(now))
            return self._made[1]

    def _read(self, at: float) -> Form:
        now = time.time()
        servers = self._operations.servers()
        by_instance = {s.holder.instance: s for s in servers}
        feeds: list[Seen] = []
        for feed in self._operations.feeds(tuple(FeedState)):
            try:
                feeds.append(self._glance(feed, by_instance.get(owner_of(feed, now)), at, now))
            except NoSuchChangefeed:
                continue  # removed meanwhile
        self._tables = {s.feed.id: self._tables[s.feed.id] for s in feeds}
        owners = [owner_of(seen.feed, now) for seen in feeds]
        return {
            "server": {
                "address": self._about.address,
                "version": self._about.version,
                "started_at": _ms(self._about.started_at),
            },
            "servers": [
                {
                    "address": s.address,
                    "host": s.holder.host,
                    "pid": s.holder.pid,
                    "seen_at": _ms(s.seen_at),
                    "changefeeds": owners.count(s.holder.instance),
                }
                for s in servers
            ],
            "changefeeds": [changefeed_item(seen, now) for seen in feeds],
        }

    def _glance(self, feed: FeedRecord, server: FleetServer | None, at: float, now: float) -> Seen:
        """Return a changefeed with what the overview shows of it, and no more."""
        read_at, tables = self._tables.get(feed.id, (float("-inf"), ()))
        if at - read_at >= _TABLES_S:
            tables = self._operations.see(feed.id, 0.0).tables
            self._tables[feed.id] = (at, tables)
        store = self._operations.store
        return Seen(
            feed=feed,
            ranges=(),
            tables=tables,
            samples=store.samples(feed.id, now - _SERIES_S),
            history=store.history(feed.id, ERROR_TIME_NOTES) if feed.error else (),
            server=server,
            cure=cure_of(feed.error_code) if feed.error_code else "",
        )


def changefeed_item(seen: Seen, now: float) -> Form:
    """Return a changefeed as the overview shows it."""
    feed, newest = seen.feed, newest_sample(seen.samples, now)
    rates = _rates(seen.samples)
    here = checkpoint(feed)
    return {
        "id": feed.id,
        "state": feed.state,
        "phase": phase(feed, seen.samples, now) or None,
        "source_uri": str(feed.spec.source),
        "sink_uri": str(feed.spec.sink),
        "checkpoint_ts": here,
        "checkpoint_time": physical_ms(here) if here else None,
        "lag_ms": _lag(feed, newest, now),
        "rows_per_s": rates[-1]["rows_per_s"] if newest else 0.0,
        "bytes_per_s": rates[-1]["bytes_per_s"] if newest else 0.0,
        "owner": _owner(feed, now),
        "tables": len(seen.tables),
        "snapshot": _snapshot(seen.samples, now),
        "error": _error(seen),
        "quarantined": feed.parked,
        "lag_series": [s.lag_ms for s in seen.samples[-_SERIES:]],
        "rows_series": [rate["rows_per_s"] for rate in rates[1:][-_SERIES:]],
    }


def changefeed_page(seen: Seen, now: float) -> Form:
    """Return all that is known about one changefeed, secrets hidden."""
    feed, newest = seen.feed, newest_sample(seen.samples, now)
    owner = _owner(feed, now)
    return {
        **changefeed_item(seen, now),
        "samples": _rates(seen.samples),
        "snapshots": [
            {"table": table, "done": done, "all": every}
            for table, done, every in (newest.snapshots if newest else ())
        ],
        "ranges": [_range(r, owner) for r in seen.ranges],
        "captured": [str(t) for t in seen.tables],
        "position": dict(seen.log_place),
        "kept_ms": seen.kept_ms,
        "table_counts": _tables(seen, now),
        "rereads": seen.rereads,
        "resnapshots": forms(seen.resnapshots),
        "schema_changes": [
            {
                "at": _ms(c.at),
                "commit_ts": c.commit_ts,
                "table": str(c.table) if c.table.table else c.table.database,
                "kind": c.kind,
                "query": redacted(c.query),
            }
            for c in seen.schema_changes
        ],
        "config": redacted_config(feed.spec),
        "history": [_note(n) for n in seen.history],
        "created_at": _ms(feed.created_at),
        "spec_version": feed.spec_version,
        "epoch": feed.epoch,
        "target_ts": feed.spec.target_ts or None,
        "retention_ms": newest.retention_ms if newest else None,
    }


def _tables(seen: Seen, now: float) -> list[Form]:
    """Return each captured table: its stage, what was delivered of it, and how far it is behind."""
    counts = {c.table: c for c in seen.counts}
    stages = {TableId(r.database, r.table): r.stage for r in seen.ranges}
    tables = []
    for table in seen.tables:
        count, stage = counts.get(table), stages.get(table)
        last_ts = count.last_ts if count else 0
        reached = max(last_ts, seen.feed.watermark)
        done = seen.feed.state is FeedState.FINISHED
        tables.append(
            {
                "table": str(table),
                "stage": stage.name.lower() if stage is not None else None,
                "rows": count.rows if count else 0,
                "bytes": count.bytes if count else 0,
                "last_change": physical_ms(last_ts) if last_ts else None,
                "lag_ms": max(0, _ms(now) - physical_ms(reached)) if reached and not done else None,
            }
        )
    return tables


def day_form(samples: Sequence[Sample]) -> list[Form]:
    """Return the samples of a day as rates."""
    return _rates(samples)


def log_form(lines: Sequence[LogLine]) -> list[Form]:
    """Return lines of the log, newest first."""
    return [
        {"at": _ms(e.at), "level": e.level, "server": e.server, "message": redacted(e.words)}
        for e in lines
    ]


def sample_form(last: LastChanges, changefeed: str) -> Form:
    """Return the last changes, newest first."""
    return {
        "message": sample_words(last, changefeed),
        "mode": str(last.mode),
        "owner": last.owner or None,
        "here": last.here,
        "changes": [
            {
                "table": str(one.table),
                "op": one.op,
                "commit_ts": one.commit_ts,
                "at": physical_ms(one.commit_ts),
                "key": one.key,
                "before": one.before,
                "after": one.after,
            }
            for one in last.changes
        ],
    }


def target_form(target: TargetTables, changefeed: str) -> Form:
    """Return what the tables of a sink are made of."""
    return {
        "message": target_words(target, changefeed),
        "kept": target.kept,
        "owner": target.owner or None,
        "here": target.here,
        "tables": [
            {
                "table": one.table,
                "version": one.version,
                "files": one.files,
                "rows": one.rows,
                "deleted": one.deleted,
                "bytes": one.bytes,
                "commit_ts": one.checkpoint_ts,
                "at": physical_ms(one.checkpoint_ts) if one.checkpoint_ts else None,
            }
            for one in target.tables
        ],
    }


def _ms(seconds: float) -> int:
    return round(seconds * 1000)


def _lag(feed: FeedRecord, newest: Sample | None, now: float) -> int | None:
    """Return how far it is behind: as its owner measured, or else by this server's clock."""
    if newest is not None and newest.lag_ms is not None:
        return newest.lag_ms
    if not feed.watermark or feed.state is FeedState.FINISHED:
        return None
    return max(0, _ms(now) - physical_ms(feed.watermark))


def _rates(samples: Sequence[Sample]) -> list[Form]:
    """Return samples as rates; the first has nothing before it to be a rate of."""
    rates: list[Form] = []
    for before, sample in zip([None, *samples], samples, strict=False):
        seconds = sample.at - before.at if before else 0.0
        rates.append(
            {
                "at": _ms(sample.at),
                "lag_ms": sample.lag_ms,
                "rows_per_s": round(sample.rows / seconds, 3) if seconds > 0 else 0.0,
                "bytes_per_s": round(sample.bytes / seconds, 3) if seconds > 0 else 0.0,
                "micro_batch_ms": round(1000 * sample.seconds / sample.micro_batches, 3)
                if sample.micro_batches
                else None,
            }
        )
    return rates


def _owner(feed: FeedRecord, now: float) -> str | None:
    if not owner_of(feed, now) or feed.lease is None:
        return None
    return feed.lease.owner


def _snapshot(samples: Sequence[Sample], now: float) -> Form | None:
    snapshot = snapshot_sum(samples, now)
    if snapshot is None:
        return None
    return {
        "done": snapshot.done,
        "all": snapshot.total,
        "unit": snapshot.unit,
        "tables_done": snapshot.tables_done,
        "tables": snapshot.tables,
        "left_ms": snapshot.left_ms,
    }


def _error(seen: Seen) -> Form | None:
    feed = seen.feed
    if not feed.error:
        return None
    dated = [n.at for n in seen.history if n.what == "state" and n.details.get("error")]
    return {
        "code": feed.error_code,
        "message": redacted(feed.error),
        "cure": seen.cure,
        "at": _ms(dated[0]) if dated else None,
    }


def _range(progress: RangeProgress, owner: str | None) -> Form:
    index = str(progress.last_log_index or "")  # a source with one log for all has none
    snapshot = progress.stage is Stage.SNAPSHOT
    return {
        "range_id": progress.range_id,
        "table": f"{progress.database}.{progress.table}",
        "stage": progress.stage.name.lower(),
        "position": progress.last_snapshot_key if snapshot else index,
        "owner": owner,
    }


def _note(note: Note) -> Form:
    return {"at": _ms(note.at), "what": note.what, "details": all_shown(note.details)}
