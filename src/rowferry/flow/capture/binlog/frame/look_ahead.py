"""Looks ahead in the log: was a table altered behind a place?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from rowferry.change.table import TableId
from rowferry.flow.capture.binlog.client.server import BinlogServer
from rowferry.flow.capture.binlog.client.stream import FAR, LogStream, StartAt
from rowferry.flow.capture.binlog.ddl.statements import effects
from rowferry.flow.capture.binlog.frame import events as ev
from rowferry.flow.capture.binlog.frame import scan_kernels as k
from rowferry.flow.capture.binlog.frame.scan import Maps, SegmentPairs, run_walk
from rowferry.flow.capture.binlog.read import skip_event
from rowferry.moment import moment
from rowferry.mysql.session import Flavour

if TYPE_CHECKING:
    from rowferry.flow.capture.binlog.position import LogPosition

_MOST_BYTES: Final = 64 << 20  # more log than this is not looked through
_NEVER: Final = 1 << 62


def altered_since(server: BinlogServer, position: LogPosition, table: TableId) -> bool:
    """Return whether the log up to now alters a table behind a position; True: cannot be told."""
    moment("look for unseen statements")
    if server.log_end() == (position.file, position.offset):
        return False
    start = StartAt(position.file, position.offset)
    if not position.file or position.offset >= FAR:
        start = StartAt(gtids=position.gtids)
    stream = LogStream(server.login, server.flavour, start)
    try:
        found = _statements(stream, server, position)
        return found is None or any(_alters(query, server, table) for query in found)
    finally:
        stream.close()


def _alters(query: ev.Query, server: BinlogServer, table: TableId) -> bool:
    found = effects(
        query.sql,
        query.database,
        {},
        lambda name: name == table,
        lambda: 0,
        server.facts,
        server.settings,
        query.sql_mode,
    )
    if found is None:
        return False
    named = {c.table for c in found.changes} | {c.previous for c in found.changes}
    databases = {c.table.database for c in found.changes if not c.table.table}
    return table in named or table in found.unread or table.database in databases


def _statements(
    stream: LogStream, server: BinlogServer, position: LogPosition
) -> list[ev.Query] | None:
    """Return the statements from a position to the log's end, in order; None: it is too long."""
    found: list[ev.Query] = []
    state = np.zeros(k.STATE_SIZE, np.int64)
    state[k.OFFSET] = position.offset
    state[k.TXN_TS] = position.txn_ts
    state[k.CLAMP_MS] = _NEVER >> 20
    state[k.UNTIL_TS] = state[k.DAY_END] = state[k.CUT_AT] = _NEVER
    border, maps, pairs, tail = state.copy(), Maps(), SegmentPairs(), stream.tail
    maria = server.flavour is Flavour.MARIADB
    size = 0
    while size <= _MOST_BYTES:
        before = stream.filled
        moved = stream.fill()
        size += stream.filled - (before - moved)
        state[k.AT] -= moved
        while True:
            reason = run_walk(
                stream.data, stream.filled, 5, tail, maria, _NEVER, state, border, maps, pairs,
                True, joined=stream.joined,
            )  # fmt: skip
            if reason == k.END:
                return found
            if reason == k.MORE:
                break
            if reason == k.JOIN:
                if not stream.join_packets(int(state[k.AT])):
                    break
                continue
            if reason == k.REFUSED:
                begin, stop = int(state[k.EVENT_AT]) - 1, int(state[k.EVENT_END])
                raise stream.error(stream.data[begin:stop].tobytes())
            begin, stop = int(state[k.EVENT_AT]), int(state[k.EVENT_END])
            code = int(stream.data[begin + 4])
            body = stream.data[begin + ev.HEADER : stop - tail].tobytes()
            state[k.ACCEPT] = 1
            if code == ev.FORMAT:
                full = stream.data[begin + ev.HEADER : stop].tobytes()
                tail = 4 if ev.has_checksums(full) else 0
            elif code in (ev.QUERY, ev.QUERY_COMPRESSED):
                found.append(ev.parse_query(body, code == ev.QUERY_COMPRESSED))
            elif code == ev.TABLE_MAP:
                maps.put(body, captured=False)
            state[k.TXN_TS] = 0
            if code != ev.MARIA_GTID:
                skip_event(stream.data, state)
            if code == ev.ROTATE:
                state[k.OFFSET] = ev.parse_rotate(body)[1]
        stream.start = int(state[k.AT])
    return None
