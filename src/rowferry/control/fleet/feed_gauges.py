"""Gauges of every changefeed, shown by every server, whoever runs it and whether anybody does.

They come from the meta database, which each server reads once a second, and are worked out when
Prometheus asks: so the lag of a changefeed that has failed goes on growing, and nothing vanishes
before the changefeed itself is removed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from rowferry.change.position import physical_ms
from rowferry.control.lifecycle import FeedState
from rowferry.control.store.contract import FeedRecord

_FEED: Final = ("changefeed",)
_DONE: Final = (FeedState.FINISHED, FeedState.REMOVED)  # nothing is waited for


@dataclass(frozen=True, slots=True)
class _Shown:
    """A gauge: its name, its meaning, and what it is of a changefeed now; None: not known."""

    name: str
    words: str
    value: Callable[[FeedRecord, float], float | None]


def _lag(feed: FeedRecord, now: float) -> float | None:
    if not feed.watermark or feed.state in _DONE:
        return None
    return max(0.0, now - physical_ms(feed.watermark) / 1000)


def _age(feed: FeedRecord, now: float) -> float | None:
    if feed.state in _DONE:
        return None
    return max(0.0, now - (feed.created_at if feed.moved_at is None else feed.moved_at))


def _kept(feed: FeedRecord, now: float) -> float | None:
    if feed.kept_until is None or feed.state in _DONE:
        return None
    return feed.kept_until - now


def _owned(feed: FeedRecord, now: float) -> float:
    return float(feed.lease is not None and feed.lease.expires_at > now)


_GAUGES: Final = (
    _Shown(
        "rowferry_checkpoint_ts",
        "Everything up to this commit-ts was delivered.",
        lambda feed, now: feed.watermark or None,
    ),
    _Shown("rowferry_checkpoint_lag_seconds", "How far the checkpoint is behind the clock.", _lag),
    _Shown("rowferry_checkpoint_age_seconds", "How long ago the checkpoint moved last.", _age),
    _Shown(
        "rowferry_retention_left_seconds",
        "How long the source keeps what was not read yet.",
        _kept,
    ),
    _Shown(
        "rowferry_quarantined_rows",
        "Rows that the sink refused, or that wait behind such.",
        lambda feed, now: float(feed.parked),
    ),
    _Shown("rowferry_changefeed_owned", "Whether a server has the changefeed.", _owned),
)


class FeedGauges(Collector):
    """Shows what was last seen of all changefeeds. Safe for use from several threads."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._feeds: tuple[FeedRecord, ...] = ()

    def look(self, feeds: Iterable[FeedRecord]) -> None:
        """Take in all changefeeds as the meta database has them now."""
        self._feeds = tuple(feeds)

    def collect(self) -> Iterator[Metric]:
        """Yield the gauges as they are at this moment."""
        return iter(self._families(self._feeds, self._clock()))

    def describe(self) -> Iterator[Metric]:
        """Yield the gauges without changefeeds."""
        return iter(self._families((), 0.0))

    def _families(self, feeds: Sequence[FeedRecord], now: float) -> list[Metric]:
        state = GaugeMetricFamily(
            "rowferry_changefeed_state",
            "1 for the state that a changefeed is in.",
            labels=(*_FEED, "state"),
        )
        for feed in feeds:
            state.add_metric((feed.id, str(feed.state)), 1.0)
        families: list[Metric] = [state]
        for shown in _GAUGES:
            gauge = GaugeMetricFamily(shown.name, shown.words, labels=_FEED)
            for feed in feeds:
                value = shown.value(feed, now)
                if value is not None:
                    gauge.add_metric((feed.id,), value)
            families.append(gauge)
        return families
