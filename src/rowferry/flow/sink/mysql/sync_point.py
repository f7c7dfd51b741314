"""`tidb_cdc.syncpoint_v1`: which timestamp of the downstream holds the rows of which checkpoint.

Whoever compares two TiDB clusters reads each at its timestamp of one row.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from rowferry.change.position import physical_ms
from rowferry.errors import SinkUnwritable
from rowferry.flow.sink.mysql.ledger import Ledger
from rowferry.flow.sink.mysql.session import Session, StatementRefused
from rowferry.moment import moment
from rowferry.mysql.flavour import Flavour
from rowferry.spec.sync_point import SyncPointSettings

DATABASE: Final = "tidb_cdc"
TABLE: Final = f"{DATABASE}.syncpoint_v1"
CLUSTER: Final = "default"
_NO_PRIVILEGE: Final = 1227
_NO_TIMESTAMP: Final = frozenset({1231, 1292})
_MAKE: Final = (
    f"CREATE DATABASE IF NOT EXISTS {DATABASE}",
    f"CREATE TABLE IF NOT EXISTS {TABLE} (ticdc_cluster_id varchar(255), changefeed varchar(255), "
    "primary_ts varchar(18), secondary_ts varchar(18), "
    "created_at timestamp NOT NULL DEFAULT CURRENT_TIMESTAMP, "
    "INDEX (created_at), PRIMARY KEY (changefeed, primary_ts))",
)


class SyncPoints:
    """The sync points of one changefeed; on the driver, not for use from several threads.

    One is written at the first checkpoint behind each whole multiple of the interval, the first one
    at once. It is exact: it is written while nothing else is, and its upstream timestamp is the
    checkpoint itself, not the multiple.
    """

    def __init__(
        self,
        changefeed: str,
        settings: SyncPointSettings,
        ledger: Ledger,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._name = f"default/{changefeed}"
        self._settings, self._ledger, self._clock = settings, ledger, clock
        self._written: int | None = None  # number of the last interval that has one
        self._purged: float | None = None

    def check(self, session: Session) -> None:
        """Refuse a downstream that tells no timestamps, or lets us not set one.

        Raises:
            SinkUnwritable: it is not TiDB, or a privilege is missing.
            Refused, SinkUnavailable: as `Session.ask`.
        """
        if not self._settings.enabled:
            return
        flavour = session.facts.flavour
        if flavour is not Flavour.TIDB:
            raise SinkUnwritable(
                f"the downstream is {flavour.label}, not TiDB, which enable-sync-point needs (it "
                "has no @@tidb_current_ts); leave it out: `rowferry verify --sync-point` needs "
                "none there"
            )
        moment("try right of sync points")
        try:
            # No timestamp: the privilege is looked at before the value, and nothing is set.
            session.ask("SET GLOBAL tidb_external_ts = 'none'")
        except StatementRefused as err:
            if err.number == _NO_PRIVILEGE:
                raise SinkUnwritable(
                    f"{err.place} lets the user not set tidb_external_ts, as enable-sync-point "
                    "does; run there: GRANT SYSTEM_VARIABLES_ADMIN ON *.* TO the user"
                ) from err
            if err.number not in _NO_TIMESTAMP:
                raise

    def publish(self, session: Session, watermark: int | None, epoch: int) -> None:
        """Write a sync point, where it is time; everything up to the watermark is durable.

        Raises:
            Fenced: somebody else has claimed the changefeed.
            Refused, SinkUnavailable: as `Session.run`.
        """
        moment("write sync point")
        if not self._settings.enabled or not watermark:
            return
        number = self._number(watermark)
        if self._written is None:
            self._written = self._resume(session)
        if number <= self._written:
            return
        self._ledger.begin(session, epoch)
        now = int(session.ask("SELECT @@tidb_current_ts")[0][0])
        session.ask(
            f"INSERT IGNORE INTO {TABLE} (ticdc_cluster_id, changefeed, primary_ts, secondary_ts) "
            "VALUES (%s, %s, %s, %s)",
            (CLUSTER, self._name, str(watermark), str(now)),
        )
        session.ask(f"SET GLOBAL tidb_external_ts = {now}")
        self._purge(session)
        session.run(b"COMMIT")
        self._written = number

    def _resume(self, session: Session) -> int:
        """Make the table; returns the number of the last sync point, -1 without one."""
        moment("read sync points")
        for statement in _MAKE:
            session.run(statement.encode())
        rows = session.ask(
            f"SELECT MAX(CAST(primary_ts AS UNSIGNED)) FROM {TABLE} WHERE changefeed = %s",
            (self._name,),
        )
        last = rows[0][0]
        return -1 if last is None else self._number(int(last))

    def _number(self, commit_ts: int) -> int:
        return physical_ms(commit_ts) // round(self._settings.interval.total_seconds() * 1000)

    def _purge(self, session: Session) -> None:
        retention_s = self._settings.retention.total_seconds()
        now = self._clock()
        if self._purged is not None and now - self._purged < retention_s:
            return
        session.ask(
            f"DELETE FROM {TABLE} WHERE ticdc_cluster_id = %s AND changefeed = %s "
            f"AND created_at < NOW() - INTERVAL {round(retention_s)} SECOND",
            (CLUSTER, self._name),
        )
        self._purged = now
