"""How far a changefeed's snapshots are, by the samples that its owner stores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from rowferry.control.lifecycle import FeedState
from rowferry.control.store.contract import FeedRecord, Sample

STALE_S: Final = 30.0  # a sample older than this says nothing about now
_LOOK_BACK_S: Final = 60.0
_BAR: Final = 20


@dataclass(frozen=True, slots=True)
class SnapshotSum:
    """All snapshots of a changefeed together.

    Attributes:
        done, total: in `unit`; estimates.
        left_ms: how long it will still take at the speed of the last minute; None: not known yet.
    """

    done: int
    total: int
    unit: str
    tables_done: int
    tables: int
    left_ms: int | None


def snapshot_sum(samples: Sequence[Sample], now: float) -> SnapshotSum | None:
    """Return how far the snapshots under way are; None: none is, as far as is known."""
    newest = newest_sample(samples, now)
    if newest is None or not newest.unit:
        return None
    tables_done, tables, done, total = newest.totals
    first = newest
    for sample in reversed(samples):
        older = newest.at - sample.at > _LOOK_BACK_S
        if older or not sample.unit or sample.totals[2] > first.totals[2]:
            break
        first = sample
    gained, seconds = done - first.totals[2], newest.at - first.at
    left = round(1000 * (total - done) * seconds / gained) if gained > 0 and seconds > 0 else None
    return SnapshotSum(done, total, newest.unit, tables_done, tables, left)


def newest_sample(samples: Sequence[Sample], now: float) -> Sample | None:
    """Return the last sample, unless it is an old one."""
    return samples[-1] if samples and now - samples[-1].at <= STALE_S else None


def phase(feed: FeedRecord, samples: Sequence[Sample], now: float) -> str:
    """Return what a changefeed that should run is doing: its state says no more than that.

    `waiting` (for a server), `starting`, `snapshot` or `log`; empty where it should not run.
    """
    if feed.state not in (FeedState.NORMAL, FeedState.WARNING, FeedState.PENDING):
        return ""
    if feed.lease is None or now >= feed.lease.expires_at:
        return "waiting"
    newest = newest_sample(samples, now)
    if newest is not None and newest.unit:
        return "snapshot"
    return "log" if feed.watermark else "starting"


def text_bar(done: int, total: int) -> str:
    """Return a bar of letters, with its share: `########............ 40%`."""
    share = min(1.0, done / max(total, 1))
    full = int(_BAR * share)
    return f"{'#' * full}{'.' * (_BAR - full)} {int(100 * share)}%"
