"""Which transactions were framed, and which of them belong to the snapshot of a joining table."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from rowferry.errors import CorruptLog, SourceMismatch
from rowferry.flow.capture.binlog.client.gtid import GtidPosition, GtidSet
from rowferry.flow.capture.binlog.frame import events as ev
from rowferry.flow.capture.binlog.frame.walk_point import WalkPoint
from rowferry.flow.capture.binlog.position import Gtids


class FramedGtids:
    """The GTIDs of a walk.

    Attributes:
        held: tables that the open transaction's rows are left out of: their snapshot has them.
    """

    def __init__(self, point: WalkPoint, executed: Gtids, maria: bool) -> None:
        """Begin behind the transactions that were `executed`."""
        self._point, self._maria = point, maria
        self._run = GtidRun(executed)
        self._lows: dict[int, Gtids] = {}
        self._awaited = ""
        self.held: set[int] = set()

    @property
    def has_lows(self) -> bool:
        """Whether a table waits for the end of its snapshot's transactions."""
        return bool(self._lows)

    def executed(self) -> Gtids:
        """Return the transactions up to the last border."""
        border = self._point.border
        return self._run.upto(border.run_next - (2 if border.txn_ts else 1))

    def under_way(self) -> str:
        """Return the GTID of the transaction that is open at the last border; empty: none is."""
        border = self._point.border
        return self._run.name(border.run_next - 1) if border.txn_ts else ""

    def go_on_inside(self, gtid: str) -> None:
        """Begin inside the transaction that has this GTID: its end is still to come."""
        if self._maria:
            domain, server, number = map(int, gtid.split("-"))
            self._run.begin_maria(0, domain, server, number)
            self._set_run(domain, server, number)
        else:
            name, *tags, digits = gtid.split(":")
            uuid, tag, number = bytes.fromhex(name.replace("-", "")), "".join(tags), int(digits)
            self._run.begin_mysql(0, uuid, number, tag)
            self._set_run_mysql(uuid, tag, number)
        self._point.state.run_next = self._point.border.run_next = number + 1

    def await_transaction(self, gtid: str) -> None:
        """Let the first transaction be the one that has this GTID, or none."""
        self._awaited = gtid

    def begin_run(self) -> None:
        """Begin a run of GTIDs with the event where the walk stands.

        Raises:
            CorruptLog: its number cannot be.
            SourceMismatch: another transaction is awaited.
        """
        point = self._point
        body, last = point.body(), point.state.run_next - 1
        number = _whole(body[:8] if self._maria else body[17:25])
        if not 0 < number < ev.MOST_TRANSACTIONS:
            raise CorruptLog(f"the GTID at {point} has the number {number}")
        if self._maria:
            domain, server = _whole(body[8:12]), point.server_id
            self._run.begin_maria(last, domain, server, number)
            self._set_run(domain, server, number)
        else:
            uuid = body[1:17]
            self._run.begin_mysql(last, uuid, number)
            self._set_run_mysql(uuid, "", number)
        self._check_awaited(number)

    def begin_tagged(self, gtid: ev.TaggedGtid) -> None:
        """Begin a run with a GTID that has a tag; no plain GTID continues it."""
        state = self._point.state
        self._run.begin_mysql(state.run_next - 1, gtid.uuid, gtid.number, gtid.tag)
        self._set_run_mysql(gtid.uuid, gtid.tag, gtid.number)
        self._check_awaited(gtid.number)
        state.run_next = gtid.number + 1

    def fits_run(self, domain: int) -> bool:
        """Return whether MariaDB's GTID where the walk stands continues the run."""
        state = self._point.state
        same = state.run_a == domain and state.run_b == self._point.server_id
        return bool(state.run_open and same)

    def exclude_until(self, table_id: int, low: Gtids) -> None:
        """Leave a table's rows out while transactions belong to `low` (its snapshot has them)."""
        if not self.executed().contains(low):
            self._lows[table_id] = low
            self._point.state.each = self._point.border.each = 1

    def waits_for(self) -> set[int]:
        """Return the tables whose snapshot's position has not been passed."""
        if not self._lows:
            return set()
        executed = self.executed()
        return {t for t, low in self._lows.items() if not executed.contains(low)}

    def is_in(self, low: Gtids) -> bool:
        """Return whether the transaction whose GTID event the walk stands at is among these."""
        body = self._point.body()
        if isinstance(low, GtidPosition):
            return low.holds(_whole(body[8:12]), _whole(body[:8]))
        return low.holds(body[1:17], _whole(body[17:25]))

    def look_at_lows(self, is_in: Callable[[Gtids], bool], changed: Callable[[], None]) -> None:
        """Decide which joining tables the next transaction still belongs to the snapshot of.

        Where they are others than before, `changed` is called.
        """
        executed = self._run.upto(self._point.state.run_next - 1)
        for table_id in [t for t, low in self._lows.items() if executed.contains(low)]:
            del self._lows[table_id]
        held = {table_id for table_id, low in self._lows.items() if is_in(low)}
        if held != self.held:
            self.held = held
            changed()
        if not self._lows:
            self._point.state.each = self._point.border.each = 0

    def _check_awaited(self, number: int) -> None:
        """Refuse another transaction than the awaited one, if one is."""
        awaited, self._awaited = self._awaited, ""
        if awaited and (gtid := self._run.name(number)) != awaited:
            raise SourceMismatch(
                f"the transaction {gtid} at {self._point} is not the CREATE TABLE … SELECT "
                f"{awaited} whose statement was delivered before the failover: this server does "
                "not have it, or has it elsewhere"
            )

    def _set_run_mysql(self, uuid: bytes, tag: str, number: int) -> None:
        """Let the walk know a run; none where it has a tag, which no plain GTID continues."""
        first, second = (-1, -1) if tag else np.frombuffer(uuid, np.int64).tolist()
        self._set_run(first, second, number)

    def _set_run(self, a: int, b: int, number: int) -> None:
        for state in (self._point.state, self._point.border):
            state.run_a, state.run_b, state.run_next, state.run_open = a, b, number, 1


def _whole(data: bytes) -> int:
    return int.from_bytes(data, "little")


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
