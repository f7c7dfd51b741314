"""The part of the meta store that those who watch read and write: history, servers, samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sqlalchemy import delete, select

from rowferry.change.published import PublishedBatch
from rowferry.control.feed.lease import Claim, Holder
from rowferry.control.store import fence, published, watching
from rowferry.control.store.connection import Database, undone_again
from rowferry.control.store.contract import (
    FeedNews,
    FleetServer,
    LogLine,
    Note,
    PastSchemaChange,
    Sample,
    TableCount,
)
from rowferry.control.store.rows import to_ms, to_note, to_sample, to_server, to_text
from rowferry.control.store.tables import HistoryRow, SampleRow, ServerRow
from rowferry.moment import moment


class WatchedStore:
    """See `MetaStore` for what each method promises."""

    def __init__(self, database: Database, clock: Callable[[], float]) -> None:
        self.database = database
        self._clock = clock

    # --- history and servers ---------------------------------------------------------------------

    @undone_again
    def note(self, changefeed: str, what: str, details: Mapping[str, Any] | None = None) -> None:
        """Add a line to the changefeed's history."""
        moment("write history")
        with self.database.writing(f"write the history of {changefeed}") as session:
            fence.note(session, changefeed, self._clock(), what, details or {})

    def history(self, changefeed: str, limit: int = 100) -> tuple[Note, ...]:
        """Return the latest lines, newest first."""
        moment("read history")
        with self.database.reading(f"read the history of {changefeed}") as session:
            mine = select(HistoryRow).where(HistoryRow.changefeed == changefeed)
            rows = session.scalars(mine.order_by(HistoryRow.id.desc()).limit(limit))
            return tuple(to_note(row) for row in rows)

    @undone_again
    def announce(self, holder: Holder, address: str, now: float) -> None:
        """Say that this server is alive."""
        moment("announce server")
        with self.database.urgent("announce a server") as session:
            session.merge(
                ServerRow(
                    instance=holder.instance,
                    holder=to_text(holder.to_json()),
                    address=address,
                    seen_at=to_ms(now),
                )
            )

    def servers(self, since: float = 0.0) -> tuple[FleetServer, ...]:
        """Return the servers seen at or after `since`."""
        moment("list servers")
        with self.database.reading("list servers") as session:
            rows = session.scalars(select(ServerRow).where(ServerRow.seen_at >= to_ms(since)))
            servers = [to_server(row) for row in rows]
            return tuple(sorted(servers, key=lambda s: (s.holder.host, s.holder.pid)))

    @undone_again
    def retire(self, holder: Holder) -> None:
        """Say that this server has left."""
        moment("retire server")
        with self.database.writing("retire a server") as session:
            session.execute(delete(ServerRow).where(ServerRow.instance == holder.instance))

    # --- for those who watch ---------------------------------------------------------------------

    @undone_again
    def write_samples(self, samples: Mapping[str, Sample], keep_s: float = 86_400.0) -> None:
        """Store a sample for each changefeed, and drop old ones."""
        moment("write samples")
        if not samples:
            return
        with self.database.writing("write samples") as session:
            watching.write_samples(session, samples, keep_s)

    @undone_again
    def fold_samples(self, changefeeds: Sequence[str], before: float) -> None:
        """Make one sample of all of each five minutes before a moment."""
        moment("fold samples")
        with self.database.writing("fold samples") as session:
            watching.fold_samples(session, changefeeds, before)

    def samples(self, changefeed: str, since: float = 0.0) -> tuple[Sample, ...]:
        """Return the samples taken at or after `since`, oldest first."""
        moment("read samples")
        with self.database.reading(f"read the samples of {changefeed}") as session:
            mine = select(SampleRow).where(SampleRow.changefeed == changefeed)
            late = mine.where(SampleRow.at >= to_ms(since)).order_by(SampleRow.at)
            return tuple(to_sample(row) for row in session.scalars(late))

    @undone_again
    def open_table_counts(self, claim: Claim) -> tuple[TableCount, ...]:
        """Return the counts from which a new owner goes on."""
        moment("open table counts")
        with self.database.writing(f"read the counts of {claim.changefeed}") as session:
            fence.locked(session, claim)
            return watching.open_table_counts(session, claim.changefeed)

    def table_counts(self, changefeed: str) -> tuple[TableCount, ...]:
        """Return what was delivered of each table."""
        moment("read table counts")
        with self.database.reading(f"read the counts of {changefeed}") as session:
            return watching.table_counts(session, changefeed)

    @undone_again
    def write_news(self, news: Mapping[Claim, FeedNews]) -> None:
        """Store what owners have to tell."""
        moment("write news")
        if not news:
            return
        with self.database.writing("write news") as session:
            watching.write_news(session, news)

    def published_batches(self, changefeed: str) -> tuple[PublishedBatch, ...]:
        """Return the last micro-batches that had rows to read."""
        moment("read published batches")
        with self.database.reading(f"read micro-batches of {changefeed}") as session:
            return published.batches_of(session, changefeed)

    def schema_changes(self, changefeed: str, limit: int = 100) -> tuple[PastSchemaChange, ...]:
        """Return the latest schema changes, newest first."""
        moment("read schema changes")
        with self.database.reading(f"read the schema changes of {changefeed}") as session:
            return watching.schema_changes(session, changefeed, limit)

    @undone_again
    def add_log_lines(self, lines: Mapping[str, Sequence[LogLine]]) -> None:
        """Keep log lines about changefeeds."""
        moment("write log lines")
        if not lines:
            return
        with self.database.writing("write log lines") as session:
            watching.add_log_lines(session, lines)

    def log_lines(self, changefeed: str, limit: int = 200) -> tuple[LogLine, ...]:
        """Return the latest lines of the log, newest first."""
        moment("read log lines")
        with self.database.reading(f"read the log of {changefeed}") as session:
            return watching.log_lines(session, changefeed, limit)
