"""The transactions framed so far: a set, and the run of numbers that is growing."""

from __future__ import annotations

from rowferry.flow.capture.binlog.client.gtid import GtidPosition, GtidSet
from rowferry.flow.capture.binlog.position import Gtids


class GtidRun:
    """GTIDs that mostly follow one another: only the number moves, the set stands still."""

    def __init__(self, gtids: Gtids) -> None:
        self._gtids = gtids
        self._open = False
        self._uuid = b""
        self._tag = ""
        self._domain = self._server = 0
        self._first = 0

    def upto(self, last: int) -> Gtids:
        """Return all transactions, the run's up to this number."""
        if not self._open or last < self._first:
            return self._gtids
        if isinstance(self._gtids, GtidPosition):
            return self._gtids.add(self._domain, self._server, last)
        return self._gtids.add_range(self._uuid, self._first, last, self._tag)

    def name(self, number: int) -> str:
        """Return the GTID that this number has in the run; empty where none is open."""
        if not self._open:
            return ""
        if isinstance(self._gtids, GtidPosition):
            return str(GtidPosition().add(self._domain, self._server, number))
        return str(GtidSet().add(self._uuid, number, self._tag))

    def begin_mysql(self, last: int, uuid: bytes, number: int, tag: str = "") -> None:
        """End the run at `last`, and begin one of a server's numbers."""
        self._gtids = self.upto(last)
        self._open, self._uuid, self._tag, self._first = True, uuid, tag, number

    def begin_maria(self, last: int, domain: int, server: int, number: int) -> None:
        """End the run at `last`, and begin one of a domain's numbers."""
        self._gtids = self.upto(last)
        self._open, self._domain, self._server, self._first = True, domain, server, number
