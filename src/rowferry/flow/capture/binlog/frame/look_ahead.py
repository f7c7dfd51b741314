"""Looks ahead in the log: was a table altered behind a place?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rowferry.change.table import TableId
from rowferry.flow.capture.binlog.client.server import BinlogServer
from rowferry.flow.capture.binlog.client.stream import FAR, LogStream, StartAt
from rowferry.flow.capture.binlog.ddl.statements import effects
from rowferry.flow.capture.binlog.frame import events as ev
from rowferry.flow.capture.binlog.frame import scan_kernels as k
from rowferry.flow.capture.binlog.frame.scan import LogBytes, Maps, SegmentPairs, run_walk
from rowferry.flow.capture.binlog.frame.walk_point import skip_event
from rowferry.flow.capture.binlog.frame.walk_state import NEVER, WalkState
from rowferry.moment import moment
from rowferry.mysql.session import Flavour

if TYPE_CHECKING:
    from rowferry.flow.capture.binlog.position import LogPosition

_MOST_BYTES: Final = 64 << 20  # more log than this is not looked through
_MOST_MAPS: Final = 4096


def altered_since(server: BinlogServer, position: LogPosition, table: TableId) -> bool:
    """Return whether the log up to now alters a table behind a position; True: cannot be told."""
    moment("look for unseen statements")
    if server.log_end() == (position.file, position.offset):
        return False
    start = StartAt(position.file, position.offset)
    if not position.file or position.offset >= FAR:
        start = StartAt(gtids=position.gtids)
    stream = LogStream(server.login, server.flavour, start, server=server.facts.identity)
    try:
        statements = _statements(stream, server, position)
        return statements is None or any(_alters(query, server, table) for query in statements)
    finally:
        stream.close()


def _alters(query: ev.Query, server: BinlogServer, table: TableId) -> bool:
    effect = effects(
        query.sql,
        query.database,
        {},
        lambda name: name == table,
        lambda: 0,
        server.facts,
        server.settings,
        query.sql_mode,
    )
    if effect is None:
        return False
    named = {c.table for c in effect.changes} | {c.previous for c in effect.changes}
    databases = {c.table.database for c in effect.changes if not c.table.table}
    return table in named or table in effect.unread or table.database in databases


def _statements(
    stream: LogStream, server: BinlogServer, position: LogPosition
) -> list[ev.Query] | None:
    """Return the statements from a position to the log's end, in order; None: it is too long."""
    statements: list[ev.Query] = []
    state = WalkState.without_bounds()
    state.offset, state.txn_ts = position.offset, position.txn_ts
    state.clamp_ms = NEVER >> 20
    border, maps, pairs, tail = state.copy(), Maps(), SegmentPairs(), stream.tail
    maria = server.flavour is Flavour.MARIADB
    size = 0
    while size <= _MOST_BYTES:
        before = stream.filled
        moved = stream.fill()
        size += stream.filled - (before - moved)
        state.at -= moved
        while True:
            log = LogBytes(stream.data, stream.filled, 5, tail, maria, NEVER, stream.joined)
            reason = run_walk(log, state, border, maps, pairs, True)
            if reason == k.END:
                return statements
            if reason == k.MORE:
                break
            if reason == k.JOIN:
                if not stream.join_packets(state.at):
                    break
                continue
            if reason == k.REFUSED:
                begin, stop = state.event_at - 1, state.event_end
                raise stream.error(stream.data[begin:stop].tobytes())
            begin, stop = state.event_at, state.event_end
            code = int(stream.data[begin + 4])
            body = stream.data[begin + ev.HEADER : stop - tail].tobytes()
            state.accept = 1
            if code == ev.FORMAT:
                full = stream.data[begin + ev.HEADER : stop].tobytes()
                tail = 4 if ev.has_checksums(full) else 0
            elif code in (ev.QUERY, ev.QUERY_COMPRESSED):
                statements.append(ev.parse_query(body, code == ev.QUERY_COMPRESSED))
            elif code == ev.TABLE_MAP:
                if len(maps) >= _MOST_MAPS:
                    maps = Maps()  # they only spare stops
                maps.put(body, captured=False)
            state.txn_ts = 0
            if code != ev.MARIA_GTID:
                skip_event(stream.data, state)
            if code == ev.ROTATE:
                state.offset = ev.parse_rotate(body)[1]
        stream.start = state.at
    return None
