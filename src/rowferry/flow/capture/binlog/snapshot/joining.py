"""How tables join a feed: at its beginning, and later at the place that its log has come to.

A snapshot begins at a place of the log, and its table must be known as it was there. No server
tells that, so a definition is read twice, with the place between: where both are equal, it was so
at the place. Whatever happened to a table before its place, the log has told by then; whatever
happens behind it, the log tells later. So no statement ever meets a snapshot that is newer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Final

from rowferry.change.chunk import SchemaChange
from rowferry.change.position import PHYSICAL_SHIFT, Stage
from rowferry.change.table import TableId, TableSchema
from rowferry.errors import SourceUnsupported
from rowferry.flow.capture.announcements import Left, created, dropped, truncated
from rowferry.flow.capture.binlog.client.gtid import parse_gtids
from rowferry.flow.capture.binlog.client.server import BinlogServer, passed
from rowferry.flow.capture.binlog.position import LogPosition
from rowferry.flow.capture.binlog.reread import Reread
from rowferry.flow.capture.binlog.state import ANNOUNCED, BinlogState, BinlogTable
from rowferry.flow.decide.contract import Decision
from rowferry.mysql.session import Flavour
from rowferry.mysql.snapshot_position import Place, high_position, low_position

_TRIES: Final = 50
_WAIT_S: Final = 0.1
_LOOKS: Final = 100
_LOOK_S: Final = 0.01


def join_first(state: BinlogState, server: BinlogServer, decision: Decision) -> None:
    """Begin the log, and the snapshots of the tables that are there.

    A table that was made, renamed or altered while they were listed is registered: it joins later,
    unless the log tells first what became of it.

    Raises:
        SourceUnsupported: XA transactions stay prepared, so that their rows cannot be found.
    """
    for _ in range(_TRIES):
        before = server.tables(decision.keeps_table, lambda: 0)
        low = None if server.prepared_xids() else _low(server)
        if low is not None and not server.prepared_xids():
            break
        time.sleep(_WAIT_S)
    else:
        raise _prepared(server)
    clock = max(state.log.last_ts + 1, server.clock_ms() << PHYSICAL_SHIFT)
    state.log = LogPosition(
        server.flavour, server.facts.identity, low["file"], low["offset"], low["gtid"]
    )
    if server.flavour is Flavour.MYSQL:
        state.log.file, state.log.offset = "", 4  # the file's end runs ahead of what is visible
    state.log.last_ts = clock
    state.started = True
    same = {t.id: t for t in before}
    for table in server.tables(decision.keeps_table, lambda: 0):
        if decision.captures(table):
            named = replace(table, table_id=state.take_id()).at(clock)
            if same.get(table.id) == table:
                state.put(named, Stage.SNAPSHOT, clock)
                state.unsettled_from = clock
            else:
                state.put(named, Stage.REGISTERED)


class Joining:
    """Lets registered tables join a feed that runs, in tries: each looks, waits, and looks again.

    Between the two looks the log is followed up to where it ended at the first one.
    """

    def __init__(self, server: BinlogServer, warn: Callable[[str], None]) -> None:
        self._server = server
        self._warn = warn
        self._names: frozenset[TableId] = frozenset()
        self._before: dict[TableId, TableSchema] = {}
        self._until: Place | None = None
        self._hindered = 0

    def is_due(self, state: BinlogState) -> bool:
        """Return whether the log has come so far that `join` may be called."""
        waiting = state.in_stage(Stage.REGISTERED)
        if not waiting or state.log.txn_ts:
            return False
        if self._until is None:
            self._look(waiting)
        return self._until is not None and passed(state.log, self._until)

    def join(
        self, state: BinlogState, decision: Decision, beside: Callable[[TableSchema], bool]
    ) -> list[SchemaChange]:
        """Let those tables join that were not altered in this try; returns what readers are told.

        Their log begins where the feed's log stands: what was framed ahead must be framed anew.
        `beside` says which of them can be read in parts while the log goes on.

        Raises:
            SourceUnsupported: XA transactions stay prepared, so that their rows cannot be found.
        """
        self._until = None
        if state.log.prepared:
            self._hindered += 1
            if self._hindered >= _TRIES:
                raise _prepared(self._server)
            return []
        if not all_is_visible(self._server, state.log):
            return []
        self._hindered = 0
        waiting = [t for t in state.in_stage(Stage.REGISTERED) if t.schema.id in self._names]
        now = _definitions(self._server, {t.schema.id for t in waiting})
        changes: list[SchemaChange] = []
        for table in waiting:
            name = table.schema.id
            definition = now.get(name)
            if definition != self._before.get(name):
                continue  # the log will tell, or the next try
            if definition is None or not decision.captures(definition):
                self._warn(f"{name} is gone, and the log does not tell how")
                changes += _dropped(state, table, decision)
            else:
                changes += _begun(state, table, definition, decision, beside(definition))
        return changes

    def _look(self, waiting: Collection[BinlogTable]) -> None:
        server = self._server
        self._names = frozenset(t.schema.id for t in waiting)
        self._before = _definitions(server, self._names)
        self._until = high_position(server.connection, server.login, server.flavour)


def all_is_visible(server: BinlogServer, log: LogPosition) -> bool:
    """Wait until every snapshot shows all that the log has told; False: not now."""
    for _ in range(_LOOKS):
        if parse_gtids(_low(server)["gtid"], log.flavour).contains(log.executed):
            return True
        time.sleep(_LOOK_S)
    return False


def _begun(
    state: BinlogState,
    table: BinlogTable,
    definition: TableSchema,
    decision: Decision,
    beside: bool,
) -> list[SchemaChange]:
    """Begin a table's snapshot where the log stands; readers who do not know it are told.

    Those who have kept it from an earlier time in the feed lose what they have of it.
    """
    if not state.unsettled_from and not beside:
        state.unsettled_from = state.log.last_ts + 1
    state.log.last_ts += 1
    schema = replace(definition, table_id=table.schema.table_id).at(state.log.last_ts)
    changes = [] if table.is_announced else [created(schema)]
    if changes and (left := state.left.pop(schema.id, None)) is not None:
        state.log.last_ts += 1
        later = schema.at(state.log.last_ts)
        if left.looks == Left.of(schema).looks:  # made where it is gone, and emptied
            changes = [*changes, truncated(later, left.table_id)]
        else:
            drop = dropped(schema.id, left.table_id, schema.version, decision.renames)
            changes = [drop, created(later)]
        schema = later
    state.forget(schema.table_id)
    if beside:
        state.put(schema, Stage.LOG)
        one = Reread(f"join-{schema.table_id}", schema.table_id, str(schema.id), joins=True)
        state.rereads[one.id] = one
    else:
        begun = state.put(schema, Stage.SNAPSHOT, schema.version)
        begun.progress = begun.progress.with_(last_snapshot_key=ANNOUNCED)
    return [change for change in changes if decision.keeps_schema_change(change)]


def _dropped(state: BinlogState, table: BinlogTable, decision: Decision) -> list[SchemaChange]:
    """Let a table go; readers who know it are told."""
    schema = table.schema
    state.forget(schema.table_id)
    state.log.last_ts += 1
    change = dropped(schema.id, schema.table_id, state.log.last_ts)
    return [change] if table.is_announced and decision.keeps_schema_change(change) else []


def _low(server: BinlogServer) -> Place:
    return low_position(server.connection, server.login, server.flavour)


def _definitions(server: BinlogServer, names: Collection[TableId]) -> dict[TableId, TableSchema]:
    return {t.id: t for t in server.tables(lambda name: name in names, lambda: 0)}


def _prepared(server: BinlogServer) -> SourceUnsupported:
    return SourceUnsupported(
        f"{server.login} keeps prepared XA transactions; a snapshot needs a moment without "
        "any: run XA RECOVER, and end them with XA COMMIT or XA ROLLBACK"
    )
