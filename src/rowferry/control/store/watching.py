"""What is stored for those who watch: samples, counts of tables, schema changes, lines of the log.

All of it is bounded: samples by time, the rest by a number of lines for each changefeed. Nothing
here decides anything: what is lost with a killed server is a few seconds of counts and lines.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

from sqlalchemy import delete, func, insert, select, tuple_, update
from sqlalchemy.orm import Session

from rowferry.change.chunk import SchemaChange
from rowferry.change.table import TableId
from rowferry.control.feed.lease import Claim
from rowferry.control.store.contract import (
    FeedNews,
    LogLine,
    PastSchemaChange,
    Sample,
    TableCount,
)
from rowferry.control.store.rows import from_sample, storable, to_ms, to_sample
from rowferry.control.store.tables import (
    FeedRow,
    LeaseRow,
    LogLineRow,
    SampleRow,
    SchemaChangeRow,
    SubscribeRow,
    TableCountRow,
)

SCHEMA_CHANGES: Final = 200  # kept of each changefeed
LOG_LINES: Final = 500
LONGEST_LINE: Final = 4000  # characters
LONGEST_QUERY: Final = 20_000
FOLD_S: Final = 300.0  # older samples are one for each stretch of this length
_AT_ONCE: Final = 200
_BLIND = {"synchronize_session": False}

T = TypeVar("T")


# --- samples -------------------------------------------------------------------------------------


def write_samples(session: Session, samples: Mapping[str, Sample], keep_s: float) -> None:
    """Store a sample for each changefeed that there is, and drop those that are too old."""
    oldest = to_ms(max(sample.at for sample in samples.values()) - keep_s)
    session.execute(delete(SampleRow).where(SampleRow.at < oldest))
    stored = session.scalars(select(FeedRow.id).where(FeedRow.id.in_(samples)))
    rows = [from_sample(name, samples[name]) for name in sorted(stored)]
    if rows:
        key = tuple_(SampleRow.changefeed, SampleRow.at)
        again = key.in_([(row["changefeed"], row["at"]) for row in rows])
        session.execute(delete(SampleRow).where(again))
        session.execute(insert(SampleRow), rows)


def fold_samples(session: Session, changefeeds: Sequence[str], before: float) -> None:
    """Make one sample of all those of a stretch of `FOLD_S` that ended before a moment."""
    end_ms = to_ms(before // FOLD_S * FOLD_S)
    for changefeed in changefeeds:
        mine = select(SampleRow).where(SampleRow.changefeed == changefeed, SampleRow.at < end_ms)
        kept = [to_sample(row) for row in session.scalars(mine.order_by(SampleRow.at))]
        for some in _by_stretch(kept):
            if len(some) < 2:
                continue
            times = [to_ms(sample.at) for sample in some]
            gone = (SampleRow.changefeed == changefeed, SampleRow.at.in_(times))
            session.execute(delete(SampleRow).where(*gone), execution_options=_BLIND)
            session.execute(insert(SampleRow), [from_sample(changefeed, folded(some))])


def folded(samples: Sequence[Sample]) -> Sample:
    """Return one sample for several that follow each other: sums, and the greatest lag."""
    last = samples[-1]
    lags = [s.lag_ms for s in samples if s.lag_ms is not None]
    return Sample(
        at=last.at,
        lag_ms=max(lags, default=None),
        watermark=last.watermark,
        rows=sum(s.rows for s in samples),
        bytes=sum(s.bytes for s in samples),
        micro_batches=sum(s.micro_batches for s in samples),
        seconds=sum(s.seconds for s in samples),
        retention_ms=last.retention_ms,
    )


def by_stretch(samples: Sequence[Sample]) -> tuple[Sample, ...]:
    """Return one sample for each stretch of `FOLD_S`."""
    return tuple(folded(some) for some in _by_stretch(samples))


def _by_stretch(samples: Sequence[Sample]) -> Iterator[list[Sample]]:
    kept: dict[int, list[Sample]] = {}
    for sample in samples:
        kept.setdefault(int(sample.at // FOLD_S), []).append(sample)
    yield from kept.values()


# --- counts of tables, and what else an owner tells ----------------------------------------------


def open_table_counts(session: Session, changefeed: str) -> tuple[TableCount, ...]:
    """Return the counts of the tables that are captured, and forget those of all others."""
    row = SubscribeRow
    mine = select(row.db_name, row.table_name).where(row.changefeed == changefeed)
    captured = {TableId(d, t) for d, t in session.execute(mine)}
    kept = table_counts(session, changefeed)
    gone = [c.table for c in kept if c.table not in captured]
    _delete_counts(session, [(changefeed, t.database, t.table) for t in gone])
    return tuple(c for c in kept if c.table in captured)


def table_counts(session: Session, changefeed: str) -> tuple[TableCount, ...]:
    """Return what was delivered of each table, by name."""
    mine = select(TableCountRow).where(TableCountRow.changefeed == changefeed)
    kept = (
        TableCount(TableId(row.db_name, row.table_name), row.rows, row.bytes, row.last_ts)
        for row in session.scalars(mine)
    )
    return tuple(sorted(kept, key=lambda count: count.table))


def write_news(session: Session, news: Mapping[Claim, FeedNews]) -> None:
    """Store what owners have to tell; of a claim that is not in force any more, nothing."""
    names = [claim.changefeed for claim in news]
    row = LeaseRow
    wanted = select(row.changefeed, row.epoch).where(
        row.changefeed.in_(names), row.holder.is_not(None)
    )
    in_force = {(changefeed, epoch) for changefeed, epoch in session.execute(wanted)}
    there = set(session.scalars(select(FeedRow.id).where(FeedRow.id.in_(names))))
    valid = {
        claim.changefeed: news_of
        for claim, news_of in news.items()
        if claim.changefeed in there and (claim.changefeed, claim.epoch) in in_force
    }
    _write_counts(session, {name: news_of.tables for name, news_of in valid.items()})
    ends = {n: news_of.kept_until for n, news_of in valid.items() if news_of.kept_until is not None}
    if ends:
        session.execute(
            update(FeedRow), [{"id": name, "kept_until": to_ms(end)} for name, end in ends.items()]
        )


def _write_counts(session: Session, counts: Mapping[str, Sequence[TableCount]]) -> None:
    """Replace the counts of tables, of all changefeeds at once: many have few."""
    rows = [
        {
            "changefeed": changefeed,
            "db_name": c.table.database,
            "table_name": c.table.table,
            "rows": c.rows,
            "bytes": c.bytes,
            "last_ts": c.last_ts,
        }
        for changefeed, some in counts.items()
        for c in some
    ]
    _delete_counts(session, [(r["changefeed"], r["db_name"], r["table_name"]) for r in rows])
    if rows:
        session.execute(insert(TableCountRow), rows)


def _delete_counts(session: Session, keys: Sequence[tuple[Any, ...]]) -> None:
    row = TableCountRow
    for some in _chunks(keys):
        named = tuple_(row.changefeed, row.db_name, row.table_name).in_(some)
        session.execute(delete(row).where(named), execution_options=_BLIND)


# --- schema changes ------------------------------------------------------------------------------


def add_schema_changes(
    session: Session, changefeed: str, changes: Sequence[SchemaChange], now: float
) -> None:
    """Keep schema changes that were delivered, and let the oldest go."""
    rows = [
        {
            "changefeed": changefeed,
            "at": to_ms(now),
            "commit_ts": change.commit_ts,
            "db_name": change.table.database,
            "table_name": change.table.table,
            "kind": change.kind.name.lower().replace("_", " ")[:32],
            "query": storable(change.query[:LONGEST_QUERY]),
        }
        for change in changes
    ]
    session.execute(insert(SchemaChangeRow), rows)
    _keep_last(session, SchemaChangeRow, changefeed, SCHEMA_CHANGES)


def schema_changes(session: Session, changefeed: str, limit: int) -> tuple[PastSchemaChange, ...]:
    """Return the latest ones, newest first."""
    row = SchemaChangeRow
    mine = select(row).where(row.changefeed == changefeed).order_by(row.id.desc()).limit(limit)
    return tuple(
        PastSchemaChange(
            row.at / 1000, row.commit_ts, TableId(row.db_name, row.table_name), row.kind, row.query
        )
        for row in session.scalars(mine)
    )


# --- lines of the log ----------------------------------------------------------------------------


def add_log_lines(session: Session, lines: Mapping[str, Sequence[LogLine]]) -> None:
    """Keep lines about changefeeds that there are, and let the oldest go."""
    there = sorted(session.scalars(select(FeedRow.id).where(FeedRow.id.in_(list(lines)))))
    rows = [
        {
            "changefeed": changefeed,
            "at": to_ms(line.at),
            "level": line.level[:16],
            "server": line.server,
            "line": storable(line.words[:LONGEST_LINE]),
        }
        for changefeed in there
        for line in lines[changefeed][-LOG_LINES:]
    ]
    if not rows:
        return
    session.execute(insert(LogLineRow), rows)
    # Most have few lines: one question finds the others.
    row = LogLineRow
    counts = select(row.changefeed).where(row.changefeed.in_(there)).group_by(row.changefeed)
    for changefeed in session.scalars(counts.having(func.count() > LOG_LINES)).all():
        _keep_last(session, row, changefeed, LOG_LINES)


def log_lines(session: Session, changefeed: str, limit: int) -> tuple[LogLine, ...]:
    """Return the latest ones, newest first."""
    row = LogLineRow
    mine = select(row).where(row.changefeed == changefeed).order_by(row.id.desc()).limit(limit)
    return tuple(
        LogLine(row.at / 1000, row.level, row.server, row.line) for row in session.scalars(mine)
    )


def forget_changefeed(session: Session, changefeed: str) -> None:
    """Delete all that is kept here of a changefeed."""
    for row in (SampleRow, TableCountRow, SchemaChangeRow, LogLineRow):
        session.execute(delete(row).where(row.changefeed == changefeed), execution_options=_BLIND)


def _keep_last(
    session: Session, row: type[SchemaChangeRow | LogLineRow], changefeed: str, most: int
) -> None:
    mine = row.changefeed == changefeed
    newest = select(row.id).where(mine).order_by(row.id.desc())
    last_kept = session.scalar(newest.offset(most - 1).limit(1))
    if last_kept is not None:
        old = delete(row).where(mine, row.id < last_kept)
        session.execute(old, execution_options=_BLIND)


def _chunks(values: Sequence[T]) -> Iterator[Sequence[T]]:
    for start in range(0, len(values), _AT_ONCE):
        yield values[start : start + _AT_ONCE]
