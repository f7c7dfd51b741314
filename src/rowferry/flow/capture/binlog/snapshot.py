"""Snapshots without locks: how tables join, and how they are cut into segments.

All tables that join together have one place in the log, `low`, taken before the first row is read.
Parts of a table are read at later moments, each at its own, and all of the table's log behind `low`
follows. So a row may come twice, until the log has passed the place where the last part was read.
A table without a usable key is read at once, at an exact place of its own.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Final

from rowferry.change.chunk import DdlKind, SchemaChange
from rowferry.change.ddl_table import quoted_table
from rowferry.change.plan import Again, Segment, TableSlice
from rowferry.change.position import PHYSICAL_SHIFT, RangeProgress, Stage
from rowferry.change.table import TableSchema
from rowferry.errors import SourceUnavailable, SourceUnsupported
from rowferry.flow.capture.binlog.chunks import Chunk, estimate_rows, next_chunks, row_bytes
from rowferry.flow.capture.binlog.position import LogPosition
from rowferry.flow.capture.binlog.server import Server
from rowferry.flow.capture.binlog.snapshot_position import high_position, low_position
from rowferry.flow.capture.binlog.state import CUT_SHORT, Captured, State
from rowferry.flow.capture.contract import Appetite, SnapshotShare
from rowferry.flow.decide.contract import Decision

MOST_SEGMENTS: Final = 64
_TRIES: Final = 50
_WAIT_S: Final = 0.1
_LEAST_ROWS, _MOST_ROWS = 1_000, 2_000_000


def join(state: State, server: Server, decision: Decision) -> None:
    """Give the registered tables their place in the log; their snapshot begins.

    The first ones to join are where the log begins. Tables that are gone are forgotten.

    Raises:
        SourceUnavailable: their definitions keep changing; a later try may work.
        SourceUnsupported: XA transactions stay prepared, so that their rows cannot be found.
    """
    waiting = {t.schema.id: t.schema.table_id for t in state.in_stage(Stage.REGISTERED)}
    for _ in range(_TRIES):
        before = _definitions(server, waiting)
        if server.prepared_xids():
            time.sleep(_WAIT_S)
            continue
        low = low_position(server.connection, server.login, server.flavour)
        if server.prepared_xids() or _definitions(server, waiting) != before:
            continue
        break
    else:
        if server.prepared_xids():
            raise SourceUnsupported(
                f"{server.login} keeps prepared XA transactions; a snapshot needs a moment without "
                "any: run XA RECOVER, and end them with XA COMMIT or XA ROLLBACK"
            )
        raise SourceUnavailable("the captured tables are being altered all the time")
    clock = state.log.last_ts + 1
    if not state.started:
        clock = max(clock, server.clock_ms() << PHYSICAL_SHIFT)
        state.log = LogPosition(
            server.flavour, server.facts.identity, low["file"], low["offset"], low["gtid"]
        )
        if server.flavour.value == "mysql":
            state.log.file, state.log.offset = "", 4  # the file's end runs ahead of what is visible
    for name, table_id in waiting.items():
        state.forget(table_id)
        found = before.get(name)
        if found is None or not decision.captures(found):
            continue
        state.put(replace(found, table_id=table_id).at(clock), Stage.SNAPSHOT, clock)
        if state.started:
            state.lows[table_id] = low
    state.log.last_ts = clock
    state.started = True


def _definitions(server: Server, names: Iterable[tuple[str, str]]) -> dict[object, TableSchema]:
    wanted = set(names)
    return {t.id: t for t in server.tables(lambda name: name in wanted, lambda: 0)}


def cut_snapshots(state: State, server: Server, appetite: Appetite) -> list[Segment]:
    """Return segments for the next parts of the snapshots, and move the state behind them.

    A table without a usable key is a stretch of its own.
    """
    segments: list[Segment] = []
    left = appetite.stretch_bytes
    for table in state.in_stage(Stage.SNAPSHOT):
        keyless = table.schema.handle_index is None
        if keyless and segments:
            break
        if keyless:
            segments.append(_segment(0, table, {"kind": "exact"}, Again.NEVER, 1))
            table.progress = table.progress.with_(stage=Stage.LOG)
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


def find_hold(state: State, server: Server) -> None:
    """Find the place behind what the parts show, once all of them have been read."""
    if state.hold == {}:
        state.hold = high_position(server.connection, server.login, server.flavour)


def _cut_table(segments: list[Segment], table: Captured, server: Server, appetite: Appetite) -> int:
    """Add the next part of a table; returns its estimated bytes."""
    schema, progress = table.schema, table.progress
    each = max(1, row_bytes(server.connection, server.login, schema))
    wish = max(_LEAST_ROWS, min(_MOST_ROWS, appetite.segment_bytes(schema.id) // each))
    parts = server.partitions(schema.id)
    part, after = _reached(progress)
    name = parts[part] if parts else ""
    count = min(8, MOST_SEGMENTS - len(segments))
    size = 0
    for chunk in next_chunks(server.connection, server.login, schema, after, wish, count, name):
        read = {"kind": "snapshot", "chunk": chunk.to_json()}
        estimated = max(1, chunk.rows) * each
        one = _segment(len(segments), table, read, Again.AS_GOOD, estimated)
        if parts:
            one = replace(one, slices=(replace(one.slices[0], physical_id=part),))
        segments.append(one)
        size += estimated
        table.progress = _behind(table, chunk, part, last_part=part + 1 >= len(parts))
    return size


def _reached(progress: RangeProgress) -> tuple[int, tuple[str, ...] | None]:
    """Return the partition being read, and the bound that was reached in it."""
    if not progress.last_snapshot_key:
        return 0, None
    part, bound = json.loads(bytes.fromhex(progress.last_snapshot_key))
    return part, tuple(bound) if bound is not None else None


def _behind(table: Captured, chunk: Chunk, part: int, last_part: bool) -> RangeProgress:
    """Return a table's progress behind a part; behind the last one its log follows."""
    done = table.progress.last_log_index + max(1, chunk.rows)
    if chunk.upper is None and last_part:
        return table.progress.with_(stage=Stage.LOG, last_snapshot_key="", last_log_index=0)
    next_part = part + 1 if chunk.upper is None else part
    reached = json.dumps([next_part, chunk.upper]).encode().hex()
    return table.progress.with_(last_snapshot_key=reached, last_log_index=done)


def _segment(
    ordinal: int, table: Captured, read: dict[str, Any], again: Again, size: int
) -> Segment:
    schema = table.schema
    one = TableSlice(schema.id, schema.table_id, schema.version)
    low = table.low_ts
    read["commit_ts"] = low
    return Segment(ordinal, read, (one,), low, low, size, snapshot=True, again=again)


def restart_altered(state: State, server: Server) -> list[SchemaChange]:
    """Begin the snapshots of tables again that were altered under them; returns the TRUNCATEs.

    A column that was only added does no harm: the log adds it to the rows. Where another change
    was made, what was delivered is taken back, and the table joins anew. A table that is gone from
    its name goes on with its log, which tells what became of it.
    """
    told: list[SchemaChange] = []
    for table in state.in_stage(Stage.SNAPSHOT):
        old = table.schema
        now = server.table(old.id, old.table_id)
        if now is not None and _holds(now, old):
            continue
        if now is None:  # dropped or renamed: the log tells
            table.progress = table.progress.with_(stage=Stage.LOG, last_snapshot_key=CUT_SHORT)
            state.hold = {}
            continue
        clock = state.log.last_ts + 1
        state.forget(old.table_id)
        state.log.last_ts = clock
        new = replace(now, table_id=state.take_id()).at(clock)
        state.put(new, Stage.REGISTERED)
        query = f"TRUNCATE TABLE {quoted_table(old.id)}"
        change = SchemaChange(clock, DdlKind.TRUNCATE_TABLE, query, old.id, new)
        told.append(replace(change, dropped_table_id=old.table_id))
    return told


def _holds(now: TableSchema, old: TableSchema) -> bool:
    """Return whether a table still has a version's columns and its key."""
    same = all(
        (mine := now.by_name.get(c.name.lower())) is not None and mine.type == c.type
        for c in old.columns
    )
    return same and now.handle_key == old.handle_key


def snapshot_shares(state: State, server: Server) -> tuple[SnapshotShare, ...]:
    """Return the tables whose snapshot is under way, in rows, as far as they can be estimated."""
    found = []
    for table in state.in_stage(Stage.SNAPSHOT):
        done = table.progress.last_log_index
        if done:
            rows = estimate_rows(server.connection, server.login, table.schema)
            found.append(SnapshotShare(table.schema.id, done, max(done, rows)))
    return tuple(found)
