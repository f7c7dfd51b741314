"""Places of the log that fit what a snapshot shows: before it, after it, or exactly.

A place is `{"file", "offset", "gtid"}`; `gtid` is the server's text, without line breaks. On MySQL
the log runs ahead of what readers see, so a place of the file says nothing about a snapshot by
itself; `gtid_executed` does: a transaction gets there after readers see it. While a transaction is
in the log and not there yet, it is in `gtid_owned`.
"""

from __future__ import annotations

import time
from typing import Any, Final, TypeAlias

from rowferry.errors import SourceUnavailable, SourceUnsupported
from rowferry.moment import moment
from rowferry.mysql import session
from rowferry.mysql.session import Connection, Flavour, Login

Place: TypeAlias = dict[str, Any]

SNAPSHOT: Final = "START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY"
_TIDB_SNAPSHOT: Final = "START TRANSACTION WITH CONSISTENT SNAPSHOT"  # it reads as of one moment
_WAITS: Final = 100
_WAIT_S: Final = 0.01
_FIRST_OFFSET: Final = 4  # of every log file


def snapshot(flavour: Flavour) -> str:
    """Return the statement that opens a consistent view."""
    return _TIDB_SNAPSHOT if flavour is Flavour.TIDB else SNAPSHOT


def low_position(connection: Connection[Any], login: Login, flavour: Flavour) -> Place:
    """Return a place such that every snapshot opened from now on shows all that lies before it.

    `gtid` decides. On MySQL reading from `file` and `offset` gives every transaction that is not
    in `gtid`, and maybe some that are; on MariaDB both say the same. Ends an open transaction.
    """
    moment("take low position")
    if flavour is Flavour.MARIADB:
        session.rows(connection, login, SNAPSHOT)
        try:
            return snapshot_place(connection, login)
        finally:
            session.rows(connection, login, "ROLLBACK")
    file, offset = log_end(connection, login, flavour)
    pending = owned(connection, login)
    for _ in range(_WAITS):
        if not pending & owned(connection, login):
            break
        time.sleep(_WAIT_S)
    else:  # one of them is not committed yet, or is in the log before `offset`: nobody can tell
        offset = _FIRST_OFFSET
    return _place(file, offset, executed(connection, login))


def high_position(connection: Connection[Any], login: Login, flavour: Flavour) -> Place:
    """Return a place behind everything that any snapshot opened before this call shows."""
    moment("take high position")
    file, offset = log_end(connection, login, flavour)
    if flavour is Flavour.MARIADB:
        return _place(file, offset, _gtid_at(connection, login, file, offset))
    pending = sorted(owned(connection, login))
    return _place(file, offset, ",".join(filter(None, [executed(connection, login), *pending])))


def snapshot_place(connection: Connection[Any], login: Login) -> Place:
    """Return MariaDB's exact place of the snapshot that this connection has open."""
    file, offset = snapshot_offset(connection, login)
    return _place(file, offset, _gtid_at(connection, login, file, offset))


def snapshot_offset(connection: Connection[Any], login: Login) -> tuple[str, int]:
    """Return the same without its GTIDs, which take the server longer."""
    moment("read snapshot place")
    status = dict(session.rows(connection, login, "SHOW STATUS LIKE 'binlog_snapshot_%'"))
    by_name = {name.lower(): value for name, value in status.items()}
    file = by_name.get("binlog_snapshot_file", "")
    if not file:
        raise _no_log(login)
    return file, int(by_name["binlog_snapshot_position"])


class QuietMoment:
    """Tells whether MySQL's log stood still while a snapshot was opened.

    Made before the snapshot, asked after it. Then everything in the log is visible in the snapshot
    and the other way round: nothing was added meanwhile, and all that was there had been committed.
    """

    def __init__(self, connection: Connection[Any], login: Login) -> None:
        moment("await quiet log")
        self._end = log_end(connection, login, Flavour.MYSQL)
        self._committed = not owned(connection, login)
        self._gtid = executed(connection, login)

    def place(self, connection: Connection[Any], login: Login) -> Place | None:
        """Return the snapshot's exact place; None: the log moved."""
        moment("confirm quiet log")
        if not self._committed or log_end(connection, login, Flavour.MYSQL) != self._end:
            return None
        return _place(*self._end, self._gtid)


def place_now(connection: Connection[Any], login: Login, flavour: Flavour) -> Place:
    """Return MySQL's place now: exact for a table that nobody can write to at this moment."""
    moment("take place under lock")
    if flavour is Flavour.MARIADB:
        return high_position(connection, login, flavour)
    gtid = executed(connection, login)
    return _place(*log_end(connection, login, flavour), gtid)


def log_end(connection: Connection[Any], login: Login, flavour: Flavour) -> tuple[str, int]:
    """Return the file and offset behind the last event of the log."""
    return log_status(connection, login, flavour)[:2]


def log_status(connection: Connection[Any], login: Login, flavour: Flavour) -> tuple[str, int, str]:
    """Return the file and offset behind the last event of the log, and MySQL's transactions."""
    moment("read log status")
    statement = "SHOW MASTER STATUS"
    if flavour is Flavour.MYSQL and session.greeted_version(connection) >= (8, 2, 0):
        statement = "SHOW BINARY LOG STATUS"
    status_rows = session.rows(connection, login, statement)
    if not status_rows:
        raise _no_log(login)
    file, offset, *rest = status_rows[0]
    committed = str(rest[2]) if flavour is Flavour.MYSQL else ""
    return file, int(offset), "".join(committed.split())


def executed(connection: Connection[Any], login: Login) -> str:
    """Return MySQL's committed transactions."""
    moment("read executed gtids")
    gtids = session.one_row(connection, login, "SELECT @@global.gtid_executed")[0]
    return "".join(gtids.split())


def owned(connection: Connection[Any], login: Login) -> frozenset[str]:
    """Return the transactions that are being committed (or applied), as `UUID:[TAG:]NUMBER`."""
    moment("read owned gtids")
    text = session.one_row(connection, login, "SELECT @@global.gtid_owned")[0]
    gtids = set()
    for part in "".join(text.split()).split(","):
        uuid, *rest = part.split(":")
        tag = ""
        for word in rest:
            number, thread, _ = word.partition("#")
            if thread:
                gtids.add(f"{uuid}:{tag}{number}")
            else:
                tag = f"{word}:"
    return frozenset(gtids)


def _gtid_at(connection: Connection[Any], login: Login, file: str, offset: int) -> str:
    moment("find gtid of place")
    sql = "SELECT BINLOG_GTID_POS(%s, %s)"
    gtid = session.one_row(connection, login, sql, (file, str(offset)))[0]
    if gtid is None:
        raise SourceUnavailable(f"{login} has no GTID for {file}:{offset}: the file is gone")
    return str(gtid)


def _place(file: str, offset: int, gtid: str) -> Place:
    return {"file": file, "offset": offset, "gtid": gtid}


def _no_log(login: Login) -> SourceUnsupported:
    return SourceUnsupported(f"{login} keeps no binary log; start it with log_bin")
