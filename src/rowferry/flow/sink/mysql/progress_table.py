"""`tidb_cdc.ticdcProgressTable`: up to where each table is downstream, for whoever purges rows.

A row that was marked as deleted may be removed for good once every cluster has the mark.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from rowferry.change.chunk import DdlKind, SchemaChange
from rowferry.change.plan import Plan
from rowferry.change.table import TableId
from rowferry.flow.sink.mysql.session import Refused, Session

DATABASE: Final = "tidb_cdc"
TABLE: Final = f"{DATABASE}.ticdcProgressTable"
_CREATE: Final = f"""CREATE TABLE IF NOT EXISTS {TABLE} (
  changefeed_id VARCHAR(255) NOT NULL,
  upstreamID VARCHAR(255) NOT NULL,
  database_name VARCHAR(255) NOT NULL,
  table_name VARCHAR(255) NOT NULL,
  checkpoint_ts BIGINT UNSIGNED NOT NULL,
  PRIMARY KEY (changefeed_id, upstreamID, database_name, table_name)
) {{charset}}COMMENT='TiCDC synchronization progress table for HardDelete safety check'"""
# Four names of 255 characters of up to four bytes are more than an InnoDB key holds.
_NARROW: Final = "DEFAULT CHARSET=utf8mb3 COLLATE=utf8mb3_bin "
_AT_ONCE: Final = 256
_KEY_TOO_LONG: Final = 1071
_GONE: Final = frozenset({DdlKind.DROP_TABLE, DdlKind.DROP_DATABASE})


class ProgressTable:
    """The progress of one changefeed; on the driver, not for use from several threads.

    A table is tracked from its first rows, snapshot or DDL until it is dropped or renamed. Names
    are the source's.
    """

    def __init__(
        self,
        changefeed: str,
        cluster_id: str,
        interval_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._who = (f"default/{changefeed}", cluster_id)
        self._interval_s, self._clock = interval_s, clock
        self._written: float | None = None
        self._made = False
        self._tracked: set[TableId] = set()

    def resume(self, state: dict[str, Any] | None) -> None:
        """Track what was tracked by the last published plan."""
        self._tracked = tracked_in(state)

    def foresee(self, tables: Iterable[TableId], changes: Iterable[SchemaChange]) -> dict[str, Any]:
        """Take a plan's tables and schema changes in; returns the state that is stored with it."""
        self._tracked |= set(tables)
        for change in changes:
            self._tracked -= _left(change, self._tracked)
            if change.schema is not None and change.table.table:
                self._tracked.add(change.table)
        return {"tracked": sorted(list(t) for t in self._tracked)}

    def publish(self, session: Session, plan: Plan) -> None:
        """Write what a plan that is durable has reached, where it is time; dropped tables go.

        Raises:
            Refused, SinkUnavailable: as `Session.run`.
        """
        tables = tracked_in(plan.sink_state)
        left = {t for c in plan.stretch.schema_changes for t in _named(c)} - tables
        gone = [c.table.database for c in plan.stretch.schema_changes if _is_database_gone(c)]
        if left or gone:
            self._make(session)
            self._remove(session, sorted(left), gone)
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
        try:
            session.run(_CREATE.format(charset="").encode())
        except Refused as err:
            if err.number != _KEY_TOO_LONG:
                raise
            session.run(_CREATE.format(charset=_NARROW).encode())
        self._made = True

    def _write(self, session: Session, tables: Sequence[TableId], mark: int) -> None:
        for start in range(0, len(tables), _AT_ONCE):
            part = tables[start : start + _AT_ONCE]
            session.ask(
                f"INSERT INTO {TABLE} (changefeed_id, upstreamID, database_name, table_name, "
                f"checkpoint_ts) VALUES {','.join(['(%s,%s,%s,%s,%s)'] * len(part))} "
                "ON DUPLICATE KEY UPDATE "
                "checkpoint_ts = GREATEST(checkpoint_ts, VALUES(checkpoint_ts))",
                [word for t in part for word in (*self._who, *t, mark)],
            )

    def _remove(self, session: Session, left: Sequence[TableId], gone: Sequence[str]) -> None:
        mine = f"DELETE FROM {TABLE} WHERE changefeed_id = %s AND upstreamID = %s AND "
        for start in range(0, len(left), _AT_ONCE):
            part = left[start : start + _AT_ONCE]
            marks = ",".join(["(%s,%s)"] * len(part))
            values = [word for t in part for word in t]
            session.ask(f"{mine}(database_name, table_name) IN ({marks})", [*self._who, *values])
        for database in gone:
            session.ask(f"{mine}database_name = %s", [*self._who, database])


def tracked_in(state: dict[str, Any] | None) -> set[TableId]:
    """Return the tables that a stored state tracks."""
    return {TableId(*names) for names in (state or {}).get("tracked", ())}


def _named(change: SchemaChange) -> list[TableId]:
    return [t for t in (change.previous, change.table) if t is not None and t.table]


def _left(change: SchemaChange, tracked: set[TableId]) -> set[TableId]:
    """Return the tables that are there no more after a change."""
    if change.kind is DdlKind.DROP_DATABASE:
        return {t for t in tracked if t.database == change.table.database}
    gone = {change.previous} if change.previous else set()
    return gone | ({change.table} if change.kind in _GONE else set())


def _is_database_gone(change: SchemaChange) -> bool:
    return change.kind is DdlKind.DROP_DATABASE
