"""`tidb_cdc.ticdcProgressTable`: up to where each table is downstream, for whoever purges rows.

A row that was marked as deleted may be removed for good once every cluster has the mark. TiDB's own
purge looks into another table, which is written there, too.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rowferry.change.plan import Plan, Stretch
from rowferry.change.table import TableId
from rowferry.flow.sink.mysql.session import Session, StatementRefused
from rowferry.moment import moment
from rowferry.mysql.flavour import Flavour
from rowferry.mysql.refusals import GONE

DATABASE: Final = "tidb_cdc"


@dataclass(frozen=True, slots=True)
class _Layout:
    """One of the tables: they differ in names and widths."""

    table: str
    cluster: str  # the column that names the source's cluster
    width: int

    def create(self, charset: str = "") -> bytes:
        """Return the statement that makes the table where it is missing."""
        name = f"VARCHAR({self.width}) NOT NULL"
        return (
            f"CREATE TABLE IF NOT EXISTS {self.table} (\n"
            f"  changefeed_id {name},\n"
            f"  {self.cluster} {name},\n"
            f"  database_name {name},\n"
            f"  table_name {name},\n"
            "  checkpoint_ts BIGINT UNSIGNED NOT NULL,\n"
            f"  PRIMARY KEY (changefeed_id, {self.cluster}, database_name, table_name)\n"
            f") {charset}COMMENT='TiCDC synchronization progress table for HardDelete safety check'"
        ).encode()


_PLAIN: Final = _Layout(f"{DATABASE}.ticdcProgressTable", "upstreamID", 255)
# Where TiDB itself looks before it removes rows that were marked long ago.
_PURGE: Final = _Layout(f"{DATABASE}.ticdc_progress_table", "cluster_id", 128)
# Four names of 255 characters of up to four bytes are more than an InnoDB key holds.
_NARROW: Final = "DEFAULT CHARSET=utf8mb3 COLLATE=utf8mb3_bin "
_AT_ONCE: Final = 256
_KEY_TOO_LONG: Final = 1071


class ProgressTable:
    """The progress of one changefeed; on the driver, not for use from several threads.

    Every captured table is tracked, also one that had no rows yet, for as long as the source has
    ranges of it: until it is dropped, renamed or left out. Names are the source's.
    """

    def __init__(
        self,
        changefeed: str,
        cluster_id: str,
        interval_s: float,
        clock: Callable[[], float] = time.monotonic,
        for_purge: bool = True,
    ) -> None:
        """Begin; `for_purge`: on TiDB, the table of its purge is written, too."""
        self._for_purge = for_purge
        self._who = (f"default/{changefeed}", cluster_id)
        self._interval_s, self._clock = interval_s, clock
        self._written: float | None = None
        self._made = False
        self._ranges: dict[int, TableId] = {}  # of what is published

    def resume(self, state: dict[str, Any] | None) -> None:
        """Track what was tracked by the last published plan."""
        self._ranges = _ranges_in(state)

    def foresee(self, stretch: Stretch) -> dict[str, Any]:
        """Return the state that is stored with the plan of a stretch: what is tracked after it."""
        ranges = {k: t for k, t in self._ranges.items() if k not in stretch.gone_ranges}
        ranges |= {r.range_id: TableId(r.database, r.table) for r in stretch.ranges}
        return {"ranges": [[k, *table] for k, table in sorted(ranges.items())]}

    def publish(self, session: Session, plan: Plan) -> None:
        """Write what a plan that is durable has reached, where it is time; lost tables go.

        Raises:
            Refused, SinkUnavailable: as `Session.run`.
        """
        moment("write progress table")
        ranges = _ranges_in(plan.sink_state)
        tables = set(ranges.values())
        left = set(self._ranges.values()) - tables
        if left:
            self._make(session)
            self._remove(session, sorted(left))
        self._ranges = ranges
        mark = plan.stretch.watermark
        now = self._clock()
        due = self._written is None or now - self._written >= self._interval_s
        if mark and tables and due:
            self._make(session)
            self._write(session, sorted(tables), mark)
            self._written = now

    def _make(self, session: Session) -> None:
        if self._made:
            return
        session.run(f"CREATE DATABASE IF NOT EXISTS {DATABASE}".encode())
        # Names may have letters that the database's own character set lacks.
        own = "" if session.facts.flavour is Flavour.TIDB else _NARROW
        for layout in self._layouts(session):
            try:
                session.run(layout.create(own))
            except StatementRefused as err:
                if err.number != _KEY_TOO_LONG:
                    raise
                session.run(layout.create(_NARROW))
        self._made = True

    def _layouts(self, session: Session) -> tuple[_Layout, ...]:
        purges = self._for_purge and session.facts.flavour is Flavour.TIDB
        return (_PLAIN, _PURGE) if purges else (_PLAIN,)

    def leave(self, session: Session) -> None:
        """Remove all rows of the changefeed: nobody has to wait for it any more.

        Raises:
            Refused, SinkUnavailable: as `Session.run`.
        """
        forget(session, *self._who)

    def _write(self, session: Session, tables: Sequence[TableId], mark: int) -> None:
        for layout in self._layouts(session):
            for start in range(0, len(tables), _AT_ONCE):
                part = tables[start : start + _AT_ONCE]
                session.ask(
                    f"INSERT INTO {layout.table} (changefeed_id, {layout.cluster}, database_name, "
                    f"table_name, checkpoint_ts) VALUES "
                    f"{','.join(['(%s,%s,%s,%s,%s)'] * len(part))} ON DUPLICATE KEY UPDATE "
                    "checkpoint_ts = GREATEST(checkpoint_ts, VALUES(checkpoint_ts))",
                    [word for t in part for word in (*self._who, *t, mark)],
                )

    def _remove(self, session: Session, left: Sequence[TableId]) -> None:
        for layout in self._layouts(session):
            for start in range(0, len(left), _AT_ONCE):
                part = left[start : start + _AT_ONCE]
                session.ask(
                    f"DELETE FROM {layout.table} WHERE changefeed_id = %s AND {layout.cluster} = "
                    f"%s AND (database_name, table_name) IN ({','.join(['(%s,%s)'] * len(part))})",
                    [*self._who, *(word for t in part for word in t)],
                )


@dataclass(frozen=True, slots=True)
class Waited:
    """A changefeed that whoever purges a downstream waits for.

    Attributes:
        tables: how many tables it brings there.
        lowest: the commit-ts up to which all of them are there.
    """

    changefeed: str
    cluster: str
    tables: int
    lowest: int


def waited_for(session: Session) -> list[Waited]:
    """Return the changefeeds that are in the tables of a downstream, in the order of their names.

    Raises:
        Refused, SinkUnavailable: as `Session.run`.
    """
    moment("read progress tables")
    by_feed: dict[tuple[str, str], tuple[int, int]] = {}
    for layout in (_PLAIN, _PURGE):
        for changefeed, cluster, tables, lowest in _if_there(
            session,
            f"SELECT changefeed_id, {layout.cluster}, COUNT(*), MIN(checkpoint_ts) "
            f"FROM {layout.table} GROUP BY changefeed_id, {layout.cluster}",
        ):
            who = str(changefeed), str(cluster)
            more, less = by_feed.get(who, (0, int(lowest)))
            by_feed[who] = max(more, int(tables)), min(less, int(lowest))
    return [Waited(*who, *rest) for who, rest in sorted(by_feed.items())]


def forget(session: Session, changefeed: str, cluster: str) -> None:
    """Remove a changefeed from the tables of a downstream; there is none: nothing.

    Raises:
        Refused, SinkUnavailable: as `Session.run`.
    """
    moment("leave progress tables")
    for layout in (_PLAIN, _PURGE):
        sql = f"DELETE FROM {layout.table} WHERE changefeed_id = %s AND {layout.cluster} = %s"
        _if_there(session, sql, (changefeed, cluster))


def _if_there(session: Session, sql: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
    """Return what a statement gives; nothing where its table is not there."""
    try:
        return session.ask(sql, values)
    except StatementRefused as err:
        if err.number in GONE:
            return []
        raise


def _ranges_in(state: dict[str, Any] | None) -> dict[int, TableId]:
    """Return the ranges that a stored state tracks, and whose each of them is."""
    return {number: TableId(*names) for number, *names in (state or {}).get("ranges", ())}
