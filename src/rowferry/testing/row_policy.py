"""Soft delete and active-active row by row, in plain Python: what validators expect.

With the mode off, validators of a feed of such tables take `as_readers_see(history)` in place of
the history. P5 is not promised for an update that brings a row back: its old row was deleted for
readers.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from rowferry.change.chunk import Op, SchemaChange
from rowferry.change.position import physical_ms
from rowferry.change.table import TableSchema
from rowferry.testing.model import Commit, History, HistoryReplay, RowChange, key_of

Image = dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class PolicyRow:
    """One change of a row; an insert has no `before`, a delete no `after`."""

    op: Op
    before: Image
    after: Image
    commit_ts: int


def is_deleted(image: Image) -> bool:
    """Return whether a row counts as deleted: its time is neither NULL, nor 0, nor a zero date."""
    time = (image or {}).get("_tidb_softdelete_time")
    return time not in (None, 0, "0") and not str(time).startswith("0000-00-00")


def policy_of(
    row: PolicyRow, table: TableSchema, active_active: bool, cluster_index: int = 0
) -> list[PolicyRow]:
    """Return what of a change goes on, and as what; `active_active`: the mode is on."""
    if not (table.is_active_active_table or table.is_soft_delete_table):
        return [row]
    if row.op is Op.DELETE:
        return []
    if active_active:
        return _newest_wins(row, table, cluster_index)
    if row.op is Op.UPDATE and is_deleted(row.after):
        return (
            []
            if is_deleted(row.before)
            else [PolicyRow(Op.DELETE, row.before, None, row.commit_ts)]
        )
    return [row]


def _newest_wins(row: PolicyRow, table: TableSchema, cluster_index: int) -> list[PolicyRow]:
    after = row.after or {}
    if after.get("_tidb_origin_ts") is not None:
        return []
    stamp = after.get("_tidb_commit_ts")
    if stamp is None:
        stamp = row.commit_ts - row.commit_ts % 16 + cluster_index
    new = {**after, "_tidb_origin_ts": stamp}
    old = row.before
    if old is None or all(old[k] == after[k] for k in table.primary_key):
        return [PolicyRow(row.op, old, new, row.commit_ts)]
    time = datetime.fromtimestamp(physical_ms(row.commit_ts) / 1000, UTC)
    text = time.strftime("%Y-%m-%d %H:%M:%S.%f")
    buried = {**old, "_tidb_origin_ts": stamp}
    if not is_deleted(old):
        buried["_tidb_softdelete_time"] = text
    return [
        PolicyRow(Op.INSERT, None, buried, row.commit_ts),
        PolicyRow(Op.INSERT, None, new, row.commit_ts),
    ]


def as_readers_see(history: History) -> History:
    """Return a history as a feed without the active-active mode tells it."""
    readers_history, replay = History(), HistoryReplay([])
    for entry in history.entries():
        if isinstance(entry, Commit):
            changes: list[RowChange] = []
            for change in entry.changes:
                changes += _seen(change, entry.commit_ts, replay)
                replay.states.apply(change, replay.left_key(change))
            if changes:
                readers_history.note_commit(entry.commit_ts, changes)
            continue
        replay.play(entry, {})
        if isinstance(entry, SchemaChange):
            readers_history.note_schema_change(entry)
        else:
            readers_history.note_table(entry)
    return readers_history


def _seen(change: RowChange, commit_ts: int, at: HistoryReplay) -> list[RowChange]:
    schema = at.states.schemas.get(change.table)
    if schema is None:
        return [change]
    before = change.before
    if before is None and change.op is not Op.INSERT:
        before = at.states.rows.get(change.table, {}).get(change.key)
    passed = policy_of(PolicyRow(change.op, before, change.after, commit_ts), schema, False)
    return [
        RowChange(change.table, r.op, key_of(schema, r.after or r.before or {}), r.before, r.after)
        for r in passed
    ]
