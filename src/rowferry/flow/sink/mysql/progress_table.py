"""`tidb_cdc.ticdcProgressTable`: up to where each table is downstream, for whoever purges rows.

A row that was marked as deleted may be removed for good once every cluster has the mark.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from rowferry.change.plan import Plan, Stretch
from rowferry.change.table import TableId
from rowferry.flow.sink.mysql.session import Refused, Session
from rowferry.moment import moment

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
    ) -> None:
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

    def _remove(self, session: Session, left: Sequence[TableId]) -> None:
        for start in range(0, len(left), _AT_ONCE):
            part = left[start : start + _AT_ONCE]
            session.ask(
                f"DELETE FROM {TABLE} WHERE changefeed_id = %s AND upstreamID = %s AND "
                f"(database_name, table_name) IN ({','.join(['(%s,%s)'] * len(part))})",
                [*self._who, *(word for t in part for word in t)],
            )


def _ranges_in(state: dict[str, Any] | None) -> dict[int, TableId]:
    """Return the ranges that a stored state tracks, and whose each of them is."""
    return {number: TableId(*names) for number, *names in (state or {}).get("ranges", ())}
