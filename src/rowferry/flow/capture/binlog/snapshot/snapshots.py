"""Snapshots without locks: how they are cut into segments, and what makes them begin anew.

A table that joins has a place in the log, `low`, where the feed's log stands at that moment.
Parts of a table are read at later moments, each at its own, and all of the table's log behind `low`
follows. So a row may come twice, until the log has passed the place where the last part was read.
A table without a usable key is read at once, at an exact place of its own.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import Any, Final, NamedTuple

from rowferry.change.chunk import SchemaChange
from rowferry.change.plan import Again, Segment, TableSlice
from rowferry.change.position import RangeProgress, Stage
from rowferry.change.table import TableId, TableSchema
from rowferry.errors import SnapshotOutdated
from rowferry.flow.capture.announcements import dropped, truncated
from rowferry.flow.capture.binlog.client.gtid import parse_gtids
from rowferry.flow.capture.binlog.client.server import BinlogServer
from rowferry.flow.capture.binlog.snapshot.same_table import can_be_read_as
from rowferry.flow.capture.binlog.state import ANNOUNCED, BinlogState, BinlogTable
from rowferry.flow.capture.contract import Appetite, SnapshotShare
from rowferry.flow.decide.contract import Decision
from rowferry.mysql.ddl.statement import create_sql
from rowferry.mysql.key_ranges import (
    Chunk,
    estimate_many,
    estimate_rows,
    next_chunks,
    order_of_key,
    row_bytes,
)
from rowferry.mysql.session import Flavour
from rowferry.mysql.snapshot_position import high_position, low_position

MOST_SEGMENTS: Final = 64
_AT_ONCE: Final = 8  # segments of a table that are cut together: every core gets some
_NAMES_AT_ONCE: Final = 500
_LEAST_ROWS, _MOST_ROWS = 1_000, 2_000_000


def cut_snapshots(state: BinlogState, server: BinlogServer, appetite: Appetite) -> list[Segment]:
    """Return segments for the next parts of the snapshots, and move the state behind them.

    A table without a usable key is a stretch of its own.
    """
    segments: list[Segment] = []
    left = appetite.snapshot_bytes or appetite.stretch_bytes
    for table in state.in_stage(Stage.SNAPSHOT):
        keyless = table.schema.handle_index is None
        if keyless and segments:
            break
        if keyless:
            whole = estimate_rows(server.connection, server.login, table.schema)
            read = {"kind": "exact", "server": server.facts.identity}
            segments.append(_segment(0, table, read, Again.NEVER, 1, whole))
            table.progress = table.progress.with_(stage=Stage.LOG, last_snapshot_key="")
            break
        while left > 0 and len(segments) < MOST_SEGMENTS:
            left -= _cut_table(segments, table, server, appetite)
            if table.progress.stage is Stage.LOG:
                break
        if left <= 0 or len(segments) >= MOST_SEGMENTS:
            break
    if not state.in_stage(Stage.SNAPSHOT):
        state.hold = {}
    return segments


def find_hold(state: BinlogState, server: BinlogServer) -> None:
    """Find the place behind what the parts show, once all of them have been read."""
    if state.hold == {}:
        state.hold = high_position(server.connection, server.login, server.flavour)


def _cut_table(
    segments: list[Segment], table: BinlogTable, server: BinlogServer, appetite: Appetite
) -> int:
    """Add the next part of a table; returns its estimated bytes."""
    schema, progress = table.schema, table.progress
    each = max(1, row_bytes(server.connection, server.login, schema))
    wish = max(_LEAST_ROWS, min(_MOST_ROWS, appetite.segment_bytes(schema.id) // each))
    parts, digest = server.partitions(schema.id)
    order = order_of_key(server.connection, server.login, schema)  # before any bound is asked for
    reached = _reached(progress)
    if reached.digest not in (None, digest):
        raise SnapshotOutdated(f"{schema.id} has other partitions than when its snapshot began")
    if reached.order not in (None, order):
        raise SnapshotOutdated(f"the key of {schema.id} orders rows otherwise than before")
    part = reached.part
    name = parts[part] if parts else ""
    count = min(_AT_ONCE, MOST_SEGMENTS - len(segments))
    size = 0
    if appetite.hides_key(schema):
        # A bound is a key, and keys are masked: the table (or partition) is read as a whole.
        whole = estimate_rows(server.connection, server.login, schema)
        chunks = [Chunk(None, None, whole, name)]
    else:
        chunks = next_chunks(
            server.connection, server.login, schema, reached.bound, wish, count, name
        )
        chunks = [replace(chunk, order=order) for chunk in chunks]
    for chunk in chunks:
        read = {
            "kind": "snapshot",
            "server": server.facts.identity,
            "chunk": chunk.to_json(),
        }
        rows = max(1, chunk.rows)
        estimated = rows * each
        one = _segment(len(segments), table, read, Again.EQUIVALENT, estimated, rows)
        if parts:
            one = replace(one, slices=(replace(one.slices[0], physical_id=part),))
        segments.append(one)
        size += estimated
        last = part + 1 >= len(parts)
        table.progress = _behind(table, chunk, _Reached(part, None, digest, order), last)
    return size


class _Reached(NamedTuple):
    """How far a table's snapshot is.

    Attributes:
        part: the partition that is being read.
        bound: the key that was reached in it; None: none yet.
        digest: how the partitions were made.
        order: the order of rows in which the bound has its place. An older version did not note it.
    """

    part: int = 0
    bound: tuple[str, ...] | None = None
    digest: str | None = None
    order: str | None = None


def _reached(progress: RangeProgress) -> _Reached:
    if progress.last_snapshot_key in ("", ANNOUNCED):
        return _Reached()
    part, bound, *made = json.loads(bytes.fromhex(progress.last_snapshot_key))
    return _Reached(part, tuple(bound) if bound is not None else None, *made)


def _behind(table: BinlogTable, chunk: Chunk, at: _Reached, last_part: bool) -> RangeProgress:
    """Return a table's progress behind a part; behind the last one its log follows."""
    done = table.progress.last_log_index + max(1, chunk.rows)
    if chunk.upper is None and last_part:
        return table.progress.with_(stage=Stage.LOG, last_snapshot_key="", last_log_index=0)
    next_part = at.part + 1 if chunk.upper is None else at.part
    reached = json.dumps(at._replace(part=next_part, bound=chunk.upper)).encode().hex()
    return table.progress.with_(last_snapshot_key=reached, last_log_index=done)


def _segment(
    ordinal: int, table: BinlogTable, read: dict[str, Any], again: Again, size: int, rows: int
) -> Segment:
    schema = table.schema
    one = TableSlice(schema.id, schema.table_id, schema.version)
    low = table.low_ts
    read["commit_ts"] = low
    return Segment(ordinal, read, (one,), low, low, size, snapshot=True, again=again, share=rows)


def restart_shown(
    state: BinlogState, shown: Iterable[TableSchema], decision: Decision
) -> list[SchemaChange]:
    """Take back what a discarded beginning has shown; returns what readers are told.

    The feed begins at another place, and nothing tells what happened to these tables until then.
    """
    changes: list[SchemaChange] = []
    for old in shown:
        state.log.last_ts += 1
        clock, now = state.log.last_ts, state.by_name().get(old.id)
        if now is not None and create_sql(now.schema) == create_sql(old):
            now.tell()
        else:
            gone = replace(dropped(old.id, old.table_id, clock), last_schema=old)
            changes += [gone] if decision.keeps_schema_change(gone) else []
        if now is not None:
            changes += take_back(state, now, decision, clock)
    if not state.in_stage(Stage.SNAPSHOT):
        state.unsettled_from = 0
    return changes


def restart_altered(
    state: BinlogState, server: BinlogServer, decision: Decision, shown: Collection[int] = ()
) -> list[SchemaChange]:
    """Take tables back that were altered under their snapshots; returns what readers are told.

    A column that was only added does no harm: the log adds it to the rows. A table that was changed
    in another way, or is gone from its name, is registered anew, as it was at the log's place: the
    log tells what became of it, and it joins again when that has been followed.

    `shown` are ids of tables of which readers have seen rows by a plan that was discarded. Those
    without a usable key are taken back in any case: their rows would come a second time.
    """
    changes: list[SchemaChange] = []
    for table in list(state.tables.values()):
        if table.schema.table_id in shown and table.schema.handle_index is None:
            state.log.last_ts += 1
            changes += take_back(state, table, decision, state.log.last_ts)
    for table in state.in_stage(Stage.SNAPSHOT):
        now = server.table(table.schema.id, table.schema.table_id)
        if now is None or not _holds(now, table, server):
            state.log.last_ts += 1
            changes += take_back(state, table, decision, state.log.last_ts)
    return changes


def restart_moved(
    state: BinlogState, server: BinlogServer, decision: Decision
) -> list[SchemaChange]:
    """Take tables back of which another server's rows were read; returns what readers are told.

    Parts were read at moments that the log has not passed: they may show transactions that were
    lost with that server. Where the place behind all of them is known, a server that has all before
    it has lost none.
    """
    if state.hold and _has(server, state.hold["gtid"], state.log.flavour):
        return []
    changes: list[SchemaChange] = []
    for table in list(state.tables.values()):
        if state.is_unsettled(table) and table.is_announced:
            state.log.last_ts += 1
            changes += take_back(state, table, decision, state.log.last_ts)
    if state.unsettled_from and not state.in_stage(Stage.SNAPSHOT):
        state.hold = {}
    return changes


def _has(server: BinlogServer, gtids: str, flavour: Flavour) -> bool:
    low = low_position(server.connection, server.login, flavour)
    return parse_gtids(low["gtid"], flavour).contains(parse_gtids(gtids, flavour))


def take_back(
    state: BinlogState, table: BinlogTable, decision: Decision, commit_ts: int
) -> list[SchemaChange]:
    """Register a table anew, as it is known; returns the TRUNCATE of what was delivered of it."""
    old = table.schema
    state.forget(old.table_id)
    new = replace(old, table_id=state.take_id()).at(commit_ts)
    again = state.put(new, Stage.REGISTERED)
    if not table.is_announced:
        return []
    again.tell()
    change = truncated(new, old.table_id)
    return [change] if decision.keeps_schema_change(change) else []


def _holds(now: TableSchema, table: BinlogTable, server: BinlogServer) -> bool:
    """Return whether a table can be read on as it was begun."""
    old = table.schema
    if not can_be_read_as(now, old):
        return False
    if old.handle_index is None:
        return len(now.columns) == len(old.columns)
    reached = _reached(table.progress)
    if reached.order is not None:
        if reached.order != order_of_key(server.connection, server.login, old):
            return False
    return reached.digest is None or server.partitions(old.id)[1] == reached.digest


class SnapshotShares:
    """How far snapshots are, in rows; a table's rows are estimated once, by the server."""

    def __init__(self, server: BinlogServer) -> None:
        self._server = server
        self._estimates: dict[TableId, int] = {}

    def of(self, state: BinlogState) -> tuple[SnapshotShare, ...]:
        """Return the tables whose snapshot has not ended."""
        under_way = state.in_stage(Stage.SNAPSHOT)
        new = [t.schema.id for t in under_way if t.schema.id not in self._estimates]
        for at in range(0, len(new), _NAMES_AT_ONCE):
            some = new[at : at + _NAMES_AT_ONCE]
            estimates = estimate_many(self._server.connection, self._server.login, some)
            self._estimates.update({name: estimates.get(name, 1) for name in some})
        return tuple(
            SnapshotShare(t.schema.id, done, max(done, self._estimates[t.schema.id]))
            for t in under_way
            for done in [t.progress.last_log_index]
        )
