"""What Prometheus reads of single tables: bounded, so that thousands of tables do not flood it.

Of each changefeed, the first `MOST_TABLES` tables that had rows have labels of their own; all
others are one series, `other`. Who got a label keeps it as long as this server runs.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from rowferry.change.position import physical_ms
from rowferry.change.table import TableId
from rowferry.control.feed.table_volumes import TableVolume

MOST_TABLES: Final = 100
OTHER: Final = "other"
_LABELS: Final = ("changefeed", "table")


class TableGauges(Collector):
    """Rows, bytes, last change and lag of tables. Safe for use from several threads."""

    def __init__(self, most: int = MOST_TABLES, clock: Callable[[], float] = time.time) -> None:
        self._most, self._clock = most, clock
        self._lock = threading.Lock()
        self._tables: dict[str, dict[str, TableVolume]] = {}
        self._watermarks: dict[str, int] = {}

    def add(self, changefeed: str, tables: Mapping[TableId, TableVolume], watermark: int) -> None:
        """Take in what a micro-batch sent, and how far all of the changefeed is."""
        with self._lock:
            self._watermarks[changefeed] = watermark
            mine = self._tables.setdefault(changefeed, {})
            for table, sent in tables.items():
                name = str(table)
                if name not in mine and len(mine) >= self._most:
                    name = OTHER
                mine[name] = mine.get(name, TableVolume()).plus(sent)

    def stop(self, changefeed: str) -> None:
        """Show no lag any more: another server may run it. Counts stay."""
        with self._lock:
            self._watermarks.pop(changefeed, None)

    def forget(self, changefeed: str) -> None:
        """Show nothing more of a changefeed."""
        with self._lock:
            self._watermarks.pop(changefeed, None)
            self._tables.pop(changefeed, None)

    def collect(self) -> Iterator[Metric]:
        """Yield the values as they are at this moment."""
        with self._lock:
            tables = {feed: dict(mine) for feed, mine in self._tables.items()}
            watermarks = dict(self._watermarks)
        rows, size, last, lag = families = self._families()
        now = self._clock()
        for feed, mine in tables.items():
            for name, sent in mine.items():
                labels = (feed, name)
                rows.add_metric(labels, sent.rows)
                size.add_metric(labels, sent.bytes)
                if sent.last_ts:
                    last.add_metric(labels, physical_ms(sent.last_ts) / 1000)
                reached = max(sent.last_ts, watermarks.get(feed, 0))
                if feed in watermarks and reached:
                    lag.add_metric(labels, max(0.0, now - physical_ms(reached) / 1000))
        return iter(families)

    def describe(self) -> Iterator[Metric]:
        """Yield the metrics without tables."""
        return iter(self._families())

    def _families(
        self,
    ) -> tuple[CounterMetricFamily, CounterMetricFamily, GaugeMetricFamily, GaugeMetricFamily]:
        return (
            CounterMetricFamily(
                "rowferry_table_rows", "Row changes sent, by table.", labels=_LABELS
            ),
            CounterMetricFamily(
                "rowferry_table_bytes", "Bytes of rows sent, by table.", labels=_LABELS
            ),
            GaugeMetricFamily(
                "rowferry_table_last_change_seconds",
                "When the last change of a table that was sent was committed, since 1970.",
                labels=_LABELS,
            ),
            GaugeMetricFamily(
                "rowferry_table_lag_seconds",
                "How far a table is behind the clock.",
                labels=_LABELS,
            ),
        )
