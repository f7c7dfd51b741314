"""Sync points of TiDB: pairs of timestamps at which two clusters held the same rows.

The MySQL/TiDB sink writes them to `tidb_cdc.syncpoint_v1` of the downstream.
"""

from __future__ import annotations

from typing import Final

from rowferry.downstream.verify.side import DatabaseSide
from rowferry.downstream.verify.views import PastViews
from rowferry.errors import NotSupported
from rowferry.mysql import session

TABLE: Final = "tidb_cdc.syncpoint_v1"
_EXISTS: Final = (
    "SELECT TABLE_NAME FROM information_schema.TABLES "
    "WHERE TABLE_SCHEMA = 'tidb_cdc' AND TABLE_NAME = 'syncpoint_v1'"
)


def newest(downstream: DatabaseSide, changefeed: str = "") -> tuple[int, int]:
    """Return upstream's and downstream's timestamp of the newest sync point.

    `changefeed` is the one that wrote it, `NAME` or `KEYSPACE/NAME`; empty: any.

    Raises:
        NotSupported: there is none.
    """
    name = changefeed if "/" in changefeed or not changefeed else f"default/{changefeed}"
    whose, values = (" WHERE changefeed = %s", (name,)) if name else ("", ())
    login = downstream.login
    with session.connected(login) as connection:
        points = session.rows(connection, login, _EXISTS) and session.rows(
            connection,
            login,
            f"SELECT primary_ts, secondary_ts FROM {TABLE}{whose} "
            "ORDER BY CAST(primary_ts AS UNSIGNED) DESC LIMIT 1",
            values,
        )
    if not points:
        by = f" of changefeed {name}" if name else ""
        raise NotSupported(
            f"{downstream} has no sync points{by} (no rows in {TABLE}); set enable-sync-point = "
            "true for the changefeed that writes there, or use --online"
        )
    return int(points[0][0]), int(points[0][1])


def read_at_newest(a: DatabaseSide, b: DatabaseSide, changefeed: str = "") -> tuple[int, int]:
    """Let both sides be read as of the newest sync point; returns its timestamps.

    Raises:
        NotSupported: there is none.
    """
    moments = newest(b, changefeed)
    for side, ts in zip((a, b), moments, strict=True):
        side.views = PastViews(ts)
    return moments
