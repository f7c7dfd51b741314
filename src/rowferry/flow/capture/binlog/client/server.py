"""One connection to the source, and the few things that a planner asks through it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from rowferry.change.table import TableId, TableSchema
from rowferry.errors import LoginRefused
from rowferry.flow.capture.binlog.client.gtid import parse_gtids
from rowferry.flow.capture.binlog.position import Gtids, LogPosition
from rowferry.moment import moment
from rowferry.mysql import session
from rowferry.mysql.catalog import read_settings, read_table, read_tables
from rowferry.mysql.session import Flavour, Login
from rowferry.mysql.snapshot_position import log_end, log_status


@dataclass(frozen=True, slots=True)
class LogLook:
    """The server's clock, and then its log's end: all committed by then lies before that end.

    Attributes:
        committed: MySQL's GTIDs of all that was committed; empty: it has none.
    """

    clock_ms: int
    file: str
    offset: int
    committed: str

    def is_near(self, position: LogPosition, size: int) -> bool:
        """Return whether no more than so many bytes of the log lie behind a position."""
        return self.file == position.file and self.offset - position.offset <= size

    def is_reached_by(self, position: LogPosition) -> bool:
        """Return whether nothing that was committed by then lies behind a position."""
        if self.file == position.file and self.offset <= position.offset:
            return True
        if position.flavour is Flavour.MARIADB or not position.gtids:
            return False
        now: Gtids = parse_gtids(self.committed, position.flavour)
        return position.executed.contains(now)


class BinlogServer:
    """The source as one planner sees it; not for use from several threads at once."""

    def __init__(self, login: Login) -> None:
        moment("connect to source")
        self.login = login
        self.connection = session.connect(login)
        self.facts = session.facts(self.connection, login)
        self.settings = read_settings(self.connection, login)

    @property
    def flavour(self) -> Flavour:
        """Whose server it is."""
        return self.facts.flavour

    def clock_ms(self) -> int:
        """Return the server's clock in milliseconds."""
        moment("read source clock")
        sql = "SELECT FLOOR(UNIX_TIMESTAMP(NOW(3)) * 1000)"
        return int(session.one_row(self.connection, self.login, sql)[0])

    def tables(
        self, keeps: Callable[[TableId], bool], next_id: Callable[[], int]
    ) -> tuple[TableSchema, ...]:
        """Return the present tables whose names `keeps`."""
        return read_tables(self.connection, self.login, self.facts, keeps, next_id)

    def table(self, name: TableId, table_id: int) -> TableSchema | None:
        """Return one table as it is now."""
        return read_table(self.connection, self.login, self.facts, name, table_id)

    def partitions(self, name: TableId) -> tuple[tuple[str, ...], str]:
        """Return a table's partitions as MySQL's log numbers them; none: not partitioned.

        With them comes a short text that is another one when rows may lie in other partitions.
        MariaDB's log does not tell partitions, so a table there counts as one piece.
        """
        moment("list partitions")
        if self.flavour is Flavour.MARIADB:
            return (), ""
        partitions = session.rows(
            self.connection,
            self.login,
            "SELECT COALESCE(SUBPARTITION_NAME, PARTITION_NAME), PARTITION_METHOD, "
            "PARTITION_EXPRESSION, PARTITION_DESCRIPTION, SUBPARTITION_METHOD, "
            "SUBPARTITION_EXPRESSION FROM information_schema.PARTITIONS "
            "WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s AND PARTITION_NAME IS NOT NULL "
            "ORDER BY PARTITION_ORDINAL_POSITION, SUBPARTITION_ORDINAL_POSITION",
            tuple(name),
        )
        digest = hashlib.sha256(repr(partitions).encode()).hexdigest()[:16] if partitions else ""
        return tuple(row[0] for row in partitions), digest

    def unnumbered_tables(self) -> tuple[TableId, ...]:
        """Return the partitioned tables, where the log does not tell a row's partition."""
        moment("list partitioned tables")
        if self.flavour is Flavour.MYSQL:
            return ()
        tables = session.rows(
            self.connection,
            self.login,
            "SELECT DISTINCT TABLE_SCHEMA, TABLE_NAME FROM information_schema.PARTITIONS "
            "WHERE PARTITION_NAME IS NOT NULL",
        )
        return tuple(TableId(row[0], row[1]) for row in tables)

    def renew_settings(self) -> None:
        """Ask again what statements mean here: databases may have other defaults now."""
        self.settings = read_settings(self.connection, self.login)

    def describes_columns(self) -> bool:
        """Return whether the log that is written now names columns."""
        moment("read metadata setting")
        sql = "SELECT @@global.binlog_row_metadata"
        return str(session.one_row(self.connection, self.login, sql)[0]).upper() == "FULL"

    def tells_gtids(self) -> bool:
        """Return whether transactions have GTIDs, without which no snapshot finds its place."""
        moment("read gtid mode")
        if self.flavour is Flavour.MARIADB:
            return True
        sql = "SELECT @@global.gtid_mode"
        return str(session.one_row(self.connection, self.login, sql)[0]).upper() == "ON"

    def log_end(self) -> tuple[str, int]:
        """Return the file and offset behind the last event."""
        return log_end(self.connection, self.login, self.flavour)

    def look(self) -> LogLook:
        """Return the server's clock, and then the log's end."""
        clock_ms = self.clock_ms()
        moment("find log end")
        return LogLook(clock_ms, *log_status(self.connection, self.login, self.flavour))

    def prepared_xids(self) -> int:
        """Return how many XA transactions are prepared and not ended, as far as we may know.

        MySQL tells it to users with XA_RECOVER_ADMIN only. For others a snapshot may begin while
        one is prepared; its XA COMMIT then stops the feed, with a line that says why.
        """
        moment("list prepared transactions")
        try:
            return len(session.rows(self.connection, self.login, "XA RECOVER"))
        except LoginRefused:
            return 0

    def close(self) -> None:
        """Close the connection."""
        with suppress(Exception):
            self.connection.close()


def is_at(position: LogPosition, place: Mapping[str, Any]) -> bool:
    """Return whether the same transactions lie before a position and a place of its server."""
    if (position.file, position.offset) == (place["file"], place["offset"]):
        return True
    if not place["gtid"] or not position.gtids:
        return False
    return str(position.executed) == str(parse_gtids(place["gtid"], position.flavour))


def passed(position: LogPosition, place: Mapping[str, Any]) -> bool:
    """Return whether a position lies at or behind a place of the log."""
    if place["gtid"] and position.gtids:
        return position.executed.contains(parse_gtids(place["gtid"], position.flavour))
    mine = (*_in_order(position.file), position.offset)
    return mine >= (*_in_order(place["file"]), place["offset"])


def _in_order(file: str) -> tuple[str, int]:
    """Return what orders log files: behind 999999 a number has more digits than the ones before."""
    base, _, number = file.rpartition(".")
    return (base, int(number)) if number.isdecimal() else (file, 0)
