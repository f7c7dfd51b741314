"""Whether a master of a Spark cluster is there, before Spark tries for more than a minute."""

from __future__ import annotations

import socket
from typing import Final

from rowferry.errors import SparkMasterAway

STANDALONE: Final = "spark://"
_WAIT_S: Final = 5.0
_PORT: Final = 7077


def refuse_absent_master(master: str) -> None:
    """Refuse a cluster of Spark's own kind none of whose masters takes a connection.

    Other kinds (`local`, `yarn`, `k8s://`) are left to Spark.

    Raises:
        SparkMasterAway: with the reason of the last one that was tried.
    """
    if not master.startswith(STANDALONE):
        return
    why = "no address is given"
    for place in filter(None, master.removeprefix(STANDALONE).split(",")):
        host, _, port = place.strip().rpartition(":")
        if not host:
            host, port = port, str(_PORT)
        if not port.isdigit():
            continue  # Spark says what is wrong with it
        try:
            socket.create_connection((host.strip("[]"), int(port)), _WAIT_S).close()
        except OSError as err:
            why = err.strerror or str(err)
        else:
            return
    raise master_away(master, why)


def master_away(master: str, why: str) -> SparkMasterAway:
    """Return the error of a master that does not answer."""
    return SparkMasterAway(f"no Spark master answers at {master}: {why}")
