"""Where a new changefeed begins, and which tables join when its filter changes."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Final

from rowferry.change.position import PHYSICAL_SHIFT, Stage, physical_ms
from rowferry.errors import BadOption
from rowferry.flow.capture.binlog.client.gtid import parse_gtids
from rowferry.flow.capture.binlog.client.retention import check_reachable
from rowferry.flow.capture.binlog.client.server import BinlogServer
from rowferry.flow.capture.binlog.frame.start_lookup import position_at, position_before
from rowferry.flow.capture.binlog.options import BinlogOptions
from rowferry.flow.capture.binlog.position import LogPosition
from rowferry.flow.capture.binlog.snapshot.joining import join_first
from rowferry.flow.capture.binlog.state import BinlogState
from rowferry.flow.decide.contract import Decision
from rowferry.mysql.session import Flavour
from rowferry.mysql.snapshot_position import low_position

_FIRST_VERSION: Final = 1
_PLACE: Final = re.compile(r"(.+\.[0-9]+)(?::([0-9]+))?")  # a file of the log has a number


@dataclass(frozen=True, slots=True)
class Beginning:
    """What the settings say about the beginning.

    Attributes:
        snapshots: tables that join bring the rows that they hold.
        never: no table does, not even one that a changed filter brings.
        only_snapshot: the feed ends when the snapshot is complete.
        start_ts: where the log begins, and above which commit timestamps are; only the latter where
            GTIDs say where.
    """

    snapshots: bool
    never: bool
    only_snapshot: bool
    start_ts: int
    start_file: str
    start_offset: int
    start_gtid: str
    rules: str

    @classmethod
    def of(cls, options: BinlogOptions, rules: str) -> Beginning:
        """Read the options.

        Raises:
            BadOption: two beginnings, or a place that is not `FILE:OFFSET`.
        """
        places = {
            BinlogOptions.start_ts.key: options.start_ts,
            BinlogOptions.start_position.key: options.start_position,
            BinlogOptions.start_gtid.key: options.start_gtid,
        }
        given = [key for key, value in places.items() if value]
        with_clock = [BinlogOptions.start_ts.key, BinlogOptions.start_gtid.key]
        if len(given) > 1 and given != with_clock:
            raise BadOption(f"{' and '.join(given)} name two beginnings; give one")
        mode = options.snapshot
        if given and mode == "only":
            raise BadOption(f"{given[0]} begins in the log, and snapshot = only reads no log")
        place = options.start_position
        match = _PLACE.fullmatch(place)
        if place and not match:
            raise BadOption(f"start-position: {place!r} is not FILE:OFFSET, like binlog.000003:154")
        file, offset = match.groups("4") if match else ("", "4")
        return cls(
            snapshots=mode != "never" and not given,
            never=mode == "never",
            only_snapshot=mode == "only",
            start_ts=options.start_ts,
            start_file=file,
            start_offset=int(offset),
            start_gtid=options.start_gtid,
            rules=rules,
        )

    def check(self, server: BinlogServer) -> None:
        """Make sure that the log holds the place that is given, if one is.

        Raises:
            BadOption: there is no such place.
            LogLost: the log no longer reaches back that far.
            SourceMismatch: the log has not come that far.
        """
        if self.start_gtid:
            parse_gtids(self.start_gtid, server.flavour)
            check_reachable(server.connection, server.login, server.facts, "", 4, self.start_gtid)
        if self.start_gtid or self.start_file or self.start_ts:
            self._place(server)

    def start(self, state: BinlogState, server: BinlogServer, decision: Decision) -> None:
        """Fill an empty state: the place in the log, and then the captured tables.

        What is made after that place is in the log, and what was made before it is listed. With
        snapshots a table has to be as it was at that place: see `join_first`.
        """
        state.rules = self.rules
        if self.snapshots:
            join_first(state, server, decision)
            return
        if self.start_gtid:
            parse_gtids(self.start_gtid, server.flavour)
        state.log = self._place(server)
        state.started = True
        state.log.last_ts = max(state.log.last_ts, _FIRST_VERSION)
        for table in server.tables(decision.keeps_table, state.take_id):
            if decision.captures(table):
                state.put(table.at(state.log.last_ts), Stage.LOG)

    def follow_filter(self, state: BinlogState, server: BinlogServer, decision: Decision) -> None:
        """Let tables go that the filter no longer keeps, and those join that it now does.

        The list is newer than the place in the log. What the log tells of these tables up to their
        joining is followed, and a name that it gives to another table is that one's.
        """
        for captured in list(state.tables.values()):
            if not decision.captures(captured.schema):
                state.let_go(captured.schema.table_id)
        if state.rules == self.rules:
            return
        state.rules = self.rules
        known = set(state.by_name())
        brings_rows = self.snapshots or (not self.never and server.tells_gtids())
        stage = Stage.REGISTERED if brings_rows else Stage.LOG
        for table in server.tables(decision.keeps_table, lambda: 0):
            if table.id not in known and decision.captures(table):
                fresh = table.at(state.log.last_ts)
                state.put(replace(fresh, table_id=state.take_id()), stage)

    def _place(self, server: BinlogServer) -> LogPosition:
        if self.start_ts and physical_ms(self.start_ts) > server.clock_ms():
            raise BadOption(f"start-ts {self.start_ts} lies ahead of the source's clock")
        if self.start_gtid:
            log = LogPosition(server.flavour, server.facts.identity, gtids=self.start_gtid)
            log.last_ts = self.start_ts
            return log
        if self.start_file:
            return position_at(server, self.start_file, self.start_offset)
        if self.start_ts:
            return position_before(server, self.start_ts)
        return self._now(server)

    def _now(self, server: BinlogServer) -> LogPosition:
        """Return the log's present end."""
        low = low_position(server.connection, server.login, server.flavour)
        log = LogPosition(
            server.flavour, server.facts.identity, low["file"], low["offset"], low["gtid"]
        )
        if server.flavour is Flavour.MYSQL and low["gtid"]:
            log.file, log.offset = "", 4  # what is visible is told by GTIDs
        log.last_ts = server.clock_ms() << PHYSICAL_SHIFT
        return log
