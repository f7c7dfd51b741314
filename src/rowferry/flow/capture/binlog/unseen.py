"""Looks ahead in the log: was a table altered again after a statement?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from rowferry.change.table import TableId
from rowferry.flow.capture.binlog import events as ev
from rowferry.flow.capture.binlog import scan_kernels as k
from rowferry.flow.capture.binlog.read import skip_event
from rowferry.flow.capture.binlog.scan import Maps, Pairs, run_walk
from rowferry.flow.capture.binlog.server import Server
from rowferry.flow.capture.binlog.session import Flavour
from rowferry.flow.capture.binlog.statements import effects
from rowferry.flow.capture.binlog.stream import LogStream, StartAt
from rowferry.moment import moment

if TYPE_CHECKING:
    from rowferry.flow.capture.binlog.position import LogPosition
    from rowferry.flow.capture.binlog.scanner import Statement

_MOST_BYTES: Final = 64 << 20  # more log than this is not looked through
_NEVER: Final = 1 << 62


def altered_since(
    server: Server, position: LogPosition, statement: Statement, table: TableId
) -> bool:
    """Return whether the log up to now alters a table behind a statement; True: cannot be told.

    `position` is the one right behind the statement.
    """
    moment("look for unseen statements")
    end = server.log_end()
    if end[0] != position.file or end[1] - position.offset > _MOST_BYTES:
        return end != (position.file, position.offset)
    if end[1] <= position.offset:
        return False
    start = StartAt(position.file, position.offset)
    stream = LogStream(server.login, server.flavour, start)
    try:
        return any(_alters(q, server, table) for q in _statements(stream, server, end[1], position))
    finally:
        stream.close()


def _alters(query: ev.Query, server: Server, table: TableId) -> bool:
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
    stream: LogStream, server: Server, end: int, position: LogPosition
) -> list[ev.Query]:
    """Return the statements of a stretch of the log, in order."""
    found: list[ev.Query] = []
    state = np.zeros(k.STATE_SIZE, np.int64)
    state[k.OFFSET] = position.offset
    state[k.TXN_TS] = position.txn_ts
    state[k.CLAMP_MS] = state[k.UNTIL_TS] = state[k.DAY_END] = state[k.CUT_AT] = _NEVER >> 20
    state[k.UNTIL_TS] = state[k.DAY_END] = state[k.CUT_AT] = _NEVER
    border, maps, pairs, tail = state.copy(), Maps(), Pairs(), stream.tail
    maria = server.flavour is Flavour.MARIADB
    while state[k.OFFSET] < end:
        moved = stream.fill()
        state[k.AT] -= moved
        while True:
            reason = run_walk(
                stream.data, stream.filled, 5, tail, maria, end, state, border, maps, pairs, True
            )
            if reason in (k.MORE, k.END):
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
        if reason == k.END:
            break
        stream.start = int(state[k.AT])
    return found
