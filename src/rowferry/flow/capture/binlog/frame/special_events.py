"""What the events do at which a walk stops: one interpreter for the planner and for tasks.

It moves the walk: over events, into transactions and out of them. So both open and close the same
transactions, tick the same clock, and give a row the same commit-ts. What a stretch depends on
beyond that (tables, segments, statements, XA) is asked of a judge. A task needs none of it: the
plan has decided.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from rowferry.errors import CorruptLog, EventUnknown
from rowferry.flow.capture.binlog.ddl.statements import Effects
from rowferry.flow.capture.binlog.frame import events as ev
from rowferry.flow.capture.binlog.frame import scan_kernels as k
from rowferry.flow.capture.binlog.frame.event_kernels import is_rows
from rowferry.flow.capture.binlog.frame.walk_point import WalkPoint
from rowferry.flow.capture.binlog.frame.walk_state import WalkState
from rowferry.mysql.ddl.text import first_words

ROW_STATEMENTS: Final = frozenset({"INSERT", "UPDATE", "DELETE", "REPLACE", "LOAD", "WITH"})
_CARE_OF_TABLES: Final = frozenset({"TABLE", "TABLES", "LOCAL", "NO_WRITE_TO_BINLOG"})
_QUIET_STATEMENTS: Final = frozenset({"BEGIN", "SAVEPOINT", "RELEASE"})
_INSIDE: Final = frozenset({("XA", "START"), ("XA", "END")})


class EventJudge(Protocol):
    """What a stretch depends on; the defaults are for who carries out a plan."""

    @abstractmethod
    def table(self, body: bytes, inside: bool) -> None:
        """Remember a TABLE_MAP; `inside` a compressed transaction."""

    @abstractmethod
    def rotate(self) -> None:
        """Step over a ROTATE event."""

    def tagged_gtid(self, gtid: ev.TaggedGtid) -> None:
        """Look at a GTID with a tag, before the clock ticks."""
        return

    def takes(self, commit_ts: int) -> bool:
        """Return whether the transaction that gets this commit-ts is wanted."""
        return True

    def statement(self, query: ev.Query, verb: str) -> Effects | None:
        """Return what a statement does to captured tables; None: nothing."""
        return None

    def carried_out(self, query: ev.Query, effects: Effects, commit_ts: int) -> None:
        """Note that the walk stands behind a statement that has effects."""
        return

    def rollback(self) -> None:
        """Look at a ROLLBACK, before it is carried out."""
        return

    def begin_xa(self, state: WalkState) -> None:
        """Note that an XA transaction begins in the walk that has this state."""
        return

    def prepare_xa(self, body: bytes) -> None:
        """Note that the open XA transaction is prepared; the walk stands behind the event."""
        return

    def prepare_inside(self, body: bytes) -> None:
        """Note that the compressed transaction that is looked into ends by being prepared."""
        return

    def end_xa(self, sql: str, commit: bool) -> None:
        """Look at XA COMMIT or XA ROLLBACK, before it is carried out."""
        return

    def maria_xa(self, body: bytes) -> None:
        """Look at a GTID of MariaDB that belongs to an XA transaction."""
        return


class SpecialEvents:
    """Carries out the events at which a walk stops."""

    def __init__(self, point: WalkPoint, judge: EventJudge) -> None:
        self._point, self._judge = point, judge

    def interpret(self) -> bool:
        """Carry out the event where the walk stands.

        Returns:
            False for a compressed transaction: the caller walks through it, and then calls `inside`
            for what stops that walk.

        Raises:
            EventUnknown: what it holds cannot be delivered.
            CorruptLog: it cannot be read.
        """
        point, code = self._point, self._point.code
        if code == ev.TRANSACTION_PAYLOAD:
            return False
        if code == ev.TABLE_MAP:
            self._judge.table(point.body(), inside=False)
        elif code in (ev.QUERY, ev.QUERY_COMPRESSED):
            self._statement(ev.parse_query(point.body(), code == ev.QUERY_COMPRESSED))
        elif code == ev.EXECUTE_LOAD_QUERY:
            self._statement(ev.parse_load(point.body()))
        elif code == ev.ROTATE:
            self._judge.rotate()
        elif code == ev.FORMAT:
            point.take_format()
        elif code in (ev.PREVIOUS_GTIDS, ev.MARIA_GTID_LIST):
            point.skip()
        elif code == ev.GTID_TAGGED:
            self._tagged_gtid()
        elif code == ev.MARIA_GTID:
            self._judge.maria_xa(point.body())
            point.state.accept = 1
        elif code == ev.XA_PREPARE:
            body = point.body()
            point.skip()
            self._judge.prepare_xa(body)
            point.close()
        elif is_rows(code):
            number = int.from_bytes(point.body()[:6], "little")
            raise CorruptLog(f"rows of table number {number} at {point} have no TABLE_MAP")
        else:
            raise EventUnknown(
                f"{ev.event_name(code)} (code {code}) at {point} is not understood; "
                "the changes in it cannot be delivered"
            )
        return True

    def inside(self, block: npt.NDArray[np.uint8], state: WalkState) -> None:
        """Carry out the event where a walk through a compressed transaction stands.

        Raises:
            EventUnknown: it cannot be there.
        """
        header, end = state.event_at, state.event_end
        code, body = int(block[header + 4]), block[header + ev.HEADER : end].tobytes()
        if code == ev.TABLE_MAP:
            self._judge.table(body, inside=True)
            return
        if code == ev.XA_PREPARE:
            self._judge.prepare_inside(body)
            state.at = end
            return
        if code == ev.QUERY:
            words = first_words(ev.parse_query(body).sql)
            if words[0] in ("SAVEPOINT", "BEGIN") or words in _INSIDE:
                if words[1] == "START":
                    self._judge.begin_xa(state)
                state.at = end
                return
        raise EventUnknown(
            f"{ev.event_name(code)} (code {code}) inside the compressed transaction at "
            f"{self._point} is not understood"
        )

    def _tagged_gtid(self) -> None:
        """Begin a transaction whose GTID has a tag, as the walk does with others."""
        point, state = self._point, self._point.state
        gtid = ev.parse_tagged_gtid(point.body())
        self._judge.tagged_gtid(gtid)
        stamp = k.tick(state.last_ts, gtid.commit_us // 1000, state.clamp_ms)
        if not self._judge.takes(stamp):
            return
        state.txn_at, state.txn_last_ts = state.at, state.last_ts
        begin, size = state.offset, point.size
        point.skip()
        state.txn_offset = max(begin, state.offset - size)
        state.last_ts = state.txn_ts = stamp
        state.alone = 1
        state.in_txn = state.statement = 0

    def _statement(self, query: ev.Query) -> None:
        """Carry out a statement: it may be a transaction, begin one, or end one."""
        point, state = self._point, self._point.state
        first, second = first_words(query.sql)
        if first == "ANALYZE" and second not in _CARE_OF_TABLES:
            first = "UPDATE"  # MariaDB carries out what it analyses
        if state.half:
            self._end_statement(goes_on=False)
        elif first == "XA":
            self._xa(second, query.sql)
        elif first == "ROLLBACK":
            self._judge.rollback()
            point.skip()
            if second != "TO":
                point.close()
        elif first in _QUIET_STATEMENTS or (first, second) == ("START", "TRANSACTION"):
            point.skip()
        else:
            effects, commit_ts = self._judge.statement(query, first), state.txn_ts
            ends = query.sql.rstrip().upper().endswith("START TRANSACTION")
            # The body of a procedure may end like that, too.
            self._end_statement(goes_on=ends and (first, second) == ("CREATE", "TABLE"))
            if effects is not None:
                self._judge.carried_out(query, effects, commit_ts)

    def _end_statement(self, goes_on: bool) -> None:
        self._point.skip()
        if goes_on:  # CREATE TABLE … START TRANSACTION: its rows follow
            self._point.state.alone = 0
        elif self._point.state.alone:
            self._point.close()

    def _xa(self, verb: str, sql: str) -> None:
        point, state = self._point, self._point.state
        if verb in ("START", "BEGIN"):
            self._judge.begin_xa(state)
            state.alone = 0
            point.skip()
        elif verb == "END":
            point.skip()
        elif verb in ("COMMIT", "ROLLBACK"):
            self._judge.end_xa(sql, commit=verb == "COMMIT")
            point.skip()
            point.close()
        else:
            raise EventUnknown(f"the statement XA {verb} at {point} is not understood")
