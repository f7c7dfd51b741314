"""Replicas by GTID, for failover tests: follow, wait, promote."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Final

from pymysql.cursors import DictCursor

from rowferry.errors import SourceUnavailable, SourceUnsupported
from rowferry.mysql.session import Flavour, wrapped
from rowferry.testing.servers.server import Server

_WAIT_S: Final = 60.0

_MYSQL_SOURCE: Final = (
    "CHANGE REPLICATION SOURCE TO SOURCE_HOST = %s, SOURCE_PORT = %s, SOURCE_USER = %s, "
    "SOURCE_PASSWORD = %s, SOURCE_AUTO_POSITION = 1, GET_SOURCE_PUBLIC_KEY = 1, "
    "SOURCE_CONNECT_RETRY = 1, SOURCE_HEARTBEAT_PERIOD = 1"
)
_MARIADB_SOURCE: Final = (
    "CHANGE MASTER TO MASTER_HOST = %s, MASTER_PORT = %s, MASTER_USER = %s, "
    "MASTER_PASSWORD = %s, MASTER_USE_GTID = slave_pos, "
    "MASTER_CONNECT_RETRY = 1, MASTER_HEARTBEAT_PERIOD = 1"
)


def replicate(source: Server, replica: Server) -> None:
    """Make one server follow another, from the first transaction that the replica lacks.

    On return: the replica is connected, read-only, and writes all that it applies to its own log.

    Raises:
        SourceUnsupported: the two are of different flavours.
        SourceUnavailable: the replica could not begin.
    """
    if source.flavour is not replica.flavour:
        raise SourceUnsupported(f"{replica.flavour.value} does not follow {source.flavour.value}")
    place = (source.host, source.port, source.login.user, source.login.password)
    if _is_mysql(replica):
        replica.execute(_MYSQL_SOURCE, *place)
        replica.execute("SET GLOBAL super_read_only = ON")
    else:
        # What a server wrote itself counts as applied when it comes back as a replica.
        replica.execute("SET GLOBAL gtid_slave_pos = @@GLOBAL.gtid_current_pos")
        replica.execute(_MARIADB_SOURCE, *place)
        replica.execute("SET GLOBAL read_only = ON")
    replica.execute("START REPLICA")
    _wait(replica, lambda: _runs(replica), "connect to its source")


def wait_for(replica: Server, source: Server) -> None:
    """Return when a replica has applied all that its source has committed by now.

    Raises:
        SourceUnavailable: it did not within a minute, or replication broke; the text says why.
    """
    if _is_mysql(source):
        ((position,),) = source.execute("SELECT @@GLOBAL.gtid_executed")
        ask = "SELECT WAIT_FOR_EXECUTED_GTID_SET(%s, 1)"
    else:
        ((position,),) = source.execute("SELECT @@GLOBAL.gtid_binlog_pos")
        ask = "SELECT MASTER_GTID_WAIT(%s, 1)"
    _wait(replica, lambda: replica.execute(ask, position) == [("0",)], f"reach {position!r}")


def promote(replica: Server) -> None:
    """End a replica's following and let it be written.

    It applies what it has received before; nothing is asked of its source, which may be dead.
    """
    replica.execute("STOP REPLICA IO_THREAD")
    _wait(replica, lambda: _drained(replica), "apply what it has received", threads=("SQL",))
    replica.execute("STOP REPLICA")
    replica.execute("RESET REPLICA ALL")
    replica.execute("SET GLOBAL read_only = OFF")  # on MySQL `super_read_only` goes with it


def _is_mysql(server: Server) -> bool:
    return server.flavour is Flavour.MYSQL


def _wait(
    replica: Server, done: Callable[[], bool], aim: str, threads: Sequence[str] = ("IO", "SQL")
) -> None:
    deadline = time.monotonic() + _WAIT_S
    while not done():
        _refuse_broken(replica, threads)
        if time.monotonic() > deadline:
            why = _status(replica)["Last_IO_Error"]
            raise SourceUnavailable(f"the replica did not {aim} within {_WAIT_S:.0f} s {why}")
        time.sleep(0.05)


def _status(replica: Server) -> dict[str, str]:
    """Return what a replica says, under the names that MySQL uses."""

    def ask() -> dict[str, object] | None:
        with closing(replica.connect()) as connection, connection.cursor(DictCursor) as cursor:
            cursor.execute("SHOW REPLICA STATUS")
            return cursor.fetchone()

    status = wrapped(ask, replica.login)
    if status is None:
        raise SourceUnavailable(f"the server at port {replica.port} follows nobody")
    return {name.replace("Slave_", "Replica_"): str(value) for name, value in status.items()}


def _runs(replica: Server) -> bool:
    status = _status(replica)
    return status["Replica_IO_Running"] == status["Replica_SQL_Running"] == "Yes"


def _refuse_broken(replica: Server, threads: Sequence[str]) -> None:
    """Raise when a replica has given up; a source that is away for a while is no reason."""
    status = _status(replica)
    for thread in threads:
        if status[f"Last_{thread}_Errno"] != "0" and status[f"Replica_{thread}_Running"] == "No":
            raise SourceUnavailable(f"replication broke: {status[f'Last_{thread}_Error']}")


def _drained(replica: Server) -> bool:
    """Whether every whole transaction that was received is applied."""
    if _is_mysql(replica):
        ask = "SELECT GTID_SUBSET(%s, @@GLOBAL.gtid_executed)"
        return replica.execute(ask, _status(replica)["Retrieved_Gtid_Set"]) == [("1",)]
    # The words can be a moment old when the last events have just come: look twice.
    for _ in range(2):
        if "has read all relay log" not in _status(replica)["Replica_SQL_Running_State"]:
            return False
        time.sleep(0.05)
    return True
