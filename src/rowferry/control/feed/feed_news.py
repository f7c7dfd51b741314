"""What an owner tells now and then about its changefeed: counts of tables, how long log is kept."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Final

from rowferry.change.table import TableId
from rowferry.control.feed.lease import Claim
from rowferry.control.feed.loop import StepResult
from rowferry.control.feed.table_volumes import TableVolume
from rowferry.control.store.contract import FeedNews, MetaStore, TableCount

# The server is asked once a minute: what differs by less is the same answer.
WORTH_TELLING_S: Final = 70.0


class FeedReporter:
    """Gathers what steps did until it is stored; used by several threads.

    Counts go on from those that owners before this one have stored.
    """

    def __init__(self, store: MetaStore, claim: Claim) -> None:
        self._store, self._claim = store, claim
        self._lock = threading.Lock()
        self._before: Mapping[TableId, TableVolume] | None = None  # not read yet
        self._sums: dict[TableId, TableVolume] = {}
        self._changed: set[TableId] = set()
        self._kept_until: float | None = None
        self._stored_until = 0.0

    def add(self, step: StepResult, now: float) -> None:
        """Take in a step."""
        with self._lock:
            for table, sent in step.tables.items():
                self._sums[table] = self._sums.get(table, TableVolume()).plus(sent)
                self._changed.add(table)
            if step.published and step.retention_ms is not None:
                until = now + step.retention_ms / 1000
                if abs(until - self._stored_until) >= WORTH_TELLING_S:
                    self._kept_until = until

    def news(self) -> FeedNews | None:
        """Return what is not stored yet; None: nothing. `stored` says when it is.

        Raises:
            RowferryError: the counts of earlier owners cannot be read now.
        """
        with self._lock:
            changed, kept_until = set(self._changed), self._kept_until
        if not changed and kept_until is None:
            return None
        if self._before is None:
            stored = self._store.open_table_counts(self._claim)
            self._before = {c.table: TableVolume(c.rows, c.bytes, c.last_ts) for c in stored}
        with self._lock:
            totals = {t: self._sums[t].plus(self._before.get(t, TableVolume())) for t in changed}
        counts = [TableCount(t, one.rows, one.bytes, one.last_ts) for t, one in totals.items()]
        return FeedNews(tuple(sorted(counts, key=lambda c: c.table)), kept_until)

    def stored(self, news: FeedNews) -> None:
        """Note that news are stored; what came meanwhile waits for the next time."""
        with self._lock:
            before = self._before or {}
            for count in news.tables:
                now = self._sums[count.table].plus(before.get(count.table, TableVolume()))
                if now.rows == count.rows:
                    self._changed.discard(count.table)
            if news.kept_until is not None:
                self._stored_until = news.kept_until
                if self._kept_until == news.kept_until:
                    self._kept_until = None
