"""Finds the state of the log at a place that the user gave: its GTIDs and its clock."""

from __future__ import annotations

from typing import Final

import numpy as np

from rowferry.change.position import PHYSICAL_SHIFT, physical_ms
from rowferry.change.table import TableId, TableSchema
from rowferry.errors import BadOption, LogLost
from rowferry.flow.capture.binlog.client.gtid import GtidPosition, GtidSet
from rowferry.flow.capture.binlog.client.retention import binary_logs, check_reachable, log_begun
from rowferry.flow.capture.binlog.client.server import BinlogServer
from rowferry.flow.capture.binlog.client.stream import LogStream, StartAt
from rowferry.flow.capture.binlog.ddl.statements import Effects
from rowferry.flow.capture.binlog.decode.table_map import MappedTable
from rowferry.flow.capture.binlog.frame import events as ev
from rowferry.flow.capture.binlog.frame.scanner import Scanner
from rowferry.flow.capture.binlog.frame.walk_state import NEVER
from rowferry.flow.capture.binlog.frame.xa import NoPreparedRows
from rowferry.flow.capture.binlog.position import LogPosition
from rowferry.flow.capture.contract import Appetite
from rowferry.moment import moment
from rowferry.mysql.session import Flavour

_FOREVER: Final = NEVER - 1  # a stop that no offset reaches: the walk ends where the log does


class _NoTables:
    """A scanner's table book in which no table is captured."""

    def __init__(self, server: BinlogServer) -> None:
        self._server = server

    def captured(self, mapped: MappedTable, commit_ts: int) -> TableSchema | None:
        return None

    def is_captured(self, table: TableId) -> bool:
        return False

    def effects(self, query: ev.Query) -> Effects | None:
        return None

    def named(self, query: ev.Query) -> str:
        return ""

    def is_mark(self, table: TableId) -> bool:
        return False

    def source_ms(self) -> int:
        return self._server.clock_ms()


def position_at(server: BinlogServer, file: str, offset: int) -> LogPosition:
    """Return the position at a place of the log, which must be a border between transactions.

    Raises:
        BadOption: no transaction ends there.
        LogLost: the file is not there any more.
    """
    check_reachable(server.connection, server.login, server.facts, file, offset, "")
    if offset <= 4:
        return _first(server, file)
    position = _frame(server, file, offset, None)
    if position.offset != offset:
        raise BadOption(
            f"start-position: no transaction ends at {file}:{offset}; the nearest border before it "
            f"is {file}:{position.offset}"
        )
    return position


def position_before(server: BinlogServer, start_ts: int) -> LogPosition:
    """Return the position behind the last transaction at or below a commit-ts.

    The log's own times decide. Where they are whole seconds, nobody can say which transactions of
    the commit-ts' second were before it: all of them come. What comes gets a commit-ts above it.

    Raises:
        LogLost: the log no longer reaches back that far.
    """
    last_before = start_ts
    if server.flavour is Flavour.MARIADB:
        last_before = (physical_ms(start_ts) // 1000 * 1000 << PHYSICAL_SHIFT) - 1
    wanted = physical_ms(last_before + 1) / 1000
    logs = [name for name, _ in binary_logs(server.connection, server.login)]
    low, high = 0, len(logs) - 1
    while low < high:  # the last file that was begun before: in a whole second, which has passed
        middle = (low + high + 1) // 2
        begun = log_begun(server.login, server.flavour, logs[middle]).timestamp()
        low, high = (middle, high) if begun + 1 <= wanted else (low, middle - 1)
    first = log_begun(server.login, server.flavour, logs[low])
    if first.timestamp() > wanted + 1:
        raise LogLost(
            f"start-ts {start_ts} lies before the oldest log file {logs[low]}, begun at {first}; "
            "choose a later start-ts, or make the changefeed with a snapshot"
        )
    position = _frame(server, logs[low], _FOREVER, last_before)
    position.last_ts = max(position.last_ts, start_ts)
    return position


def _first(server: BinlogServer, file: str) -> LogPosition:
    return LogPosition(
        server.flavour, server.facts.identity, file, 4, str(_gtids_before(server, file))
    )


def _frame(server: BinlogServer, file: str, stop: int, until_ts: int | None) -> LogPosition:
    """Frame a file from its beginning up to an offset or a commit-ts; nothing is captured."""
    moment("frame log to start")
    begin = _first(server, file)
    stream = _opened(server, file)
    appetite = Appetite(lambda table: 1 << 20, 1 << 40, lambda ts: "", until_ts)
    scanner = Scanner(stream, begin, _NoTables(server), appetite, NoPreparedRows(begin.server))
    try:
        return scanner.frame_to(stop)
    finally:
        stream.close()


def _opened(server: BinlogServer, file: str) -> LogStream:
    start, identity = StartAt(file, 4), server.facts.identity
    return LogStream(server.login, server.flavour, start, server=identity)


def _gtids_before(server: BinlogServer, file: str) -> GtidSet | GtidPosition:
    """Return the transactions before a file, as its own head lists them."""
    moment("read gtids of head")
    stream = _opened(server, file)
    maria = server.flavour is Flavour.MARIADB
    none: GtidSet | GtidPosition = GtidPosition() if maria else GtidSet()
    tail = stream.tail
    try:
        while True:
            event = stream.next_event()
            if event is None:
                return none
            code = event[4]
            body = event[ev.HEADER : len(event) - tail]
            if code == ev.FORMAT:
                tail = 4 if ev.has_checksums(event[ev.HEADER :]) else 0
            elif code == ev.PREVIOUS_GTIDS:
                return _previous_set(body)
            elif code == ev.MARIA_GTID_LIST:
                return _maria_list(body)
            elif code in (ev.GTID, ev.ANONYMOUS_GTID, ev.GTID_TAGGED, ev.MARIA_GTID, ev.QUERY):
                return none
    finally:
        stream.close()


def _previous_set(body: bytes) -> GtidSet:
    """Read PREVIOUS_GTIDS: uuids, each with its intervals (end exclusive)."""
    count = int.from_bytes(body[:8], "little")
    gtids, at = GtidSet(), 8
    tagged = bool(count >> 56)
    if tagged:  # the form with tags: its count is in the middle bytes
        count = (count >> 8) & 0xFFFFFFFFFFFF
    for _ in range(count):
        uuid, at = body[at : at + 16], at + 16
        tag = ""
        if tagged:
            size = body[at] >> 1
            tag, at = body[at + 1 : at + 1 + size].decode("ascii", "replace"), at + 1 + size
        ranges, at = int.from_bytes(body[at : at + 8], "little"), at + 8
        for pair in np.frombuffer(body[at : at + 16 * ranges], np.int64).reshape(-1, 2):
            gtids = gtids.add_range(uuid, int(pair[0]), int(pair[1]) - 1, tag)
        at += 16 * ranges
    return gtids


def _maria_list(body: bytes) -> GtidPosition:
    """Read GTID_LIST: (domain, server, number) of the last transactions of each domain."""
    count = int.from_bytes(body[:4], "little") & 0x0FFFFFFF
    position = GtidPosition()
    for place in range(4, 4 + 16 * count, 16):
        domain = int.from_bytes(body[place : place + 4], "little")
        server = int.from_bytes(body[place + 4 : place + 8], "little")
        position = position.add(
            domain, server, int.from_bytes(body[place + 8 : place + 16], "little")
        )
    return position
