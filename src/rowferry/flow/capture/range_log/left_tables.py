"""Tables that a feed has let go and that come back, by a changed filter or a rename.

Readers keep what they have of a table that is let go, and hear nothing more of it. What is deleted
meanwhile they would keep for ever, if the table came back with its snapshot alone.
"""

from __future__ import annotations

from collections.abc import Mapping

from rowferry.change.chunk import DdlKind, SchemaChange
from rowferry.change.table import TableSchema
from rowferry.flow.capture.announcements import (
    Left,
    created,
    dropped,
    forget_database,
    truncated,
)
from rowferry.flow.capture.range_log.client import Rerouted
from rowferry.flow.capture.range_log.state import RangeState, RangeTable
from rowferry.flow.decide.contract import Decision


def announced_again(state: RangeState, decision: Decision) -> tuple[SchemaChange, ...]:
    """Return how readers lose what they kept of tables whose snapshots are about to begin.

    A table that looks as it did is emptied, another one is made anew. Both happen just below the
    commit-ts of its rows.

    Raises:
        Rerouted: a snapshot begins right behind what was delivered; the next one does not.
    """
    changes: list[SchemaChange] = []
    for table in state.tables.values():
        name = table.schema.id
        if not table.joined or not table.low or name not in state.left:
            continue
        if table.low - 1 <= state.resolved_ts:
            raise Rerouted(f"the snapshot of {name} begins where the last stretch ended")
        before, now = table.schema.at(table.low - 1), table.schema.at(table.low)
        left = state.left.pop(name)
        # Ids are the source's: that of the same table goes on, and so do its versions.
        old_id = left.table_id if left.table_id != now.table_id else 0
        if left.looks == Left.of(now).looks:  # made where it is gone, and emptied
            changes += [created(before), truncated(now, old_id)]
        else:
            changes += [dropped(name, old_id, before.version, decision.renames), created(now)]
        table.schema = now
    return tuple(c for c in changes if decision.keeps_schema_change(c))


def begun_again(
    state: RangeState, known: Mapping[int, TableSchema], decision: Decision
) -> list[SchemaChange]:
    """Return how readers lose what they have of tables whose log is lost, before it comes anew.

    `known` is how readers know them, by table id. One that was altered or renamed in the lost log
    is made anew: its statements will not follow.

    Raises:
        Rerouted: a snapshot begins right behind what was delivered; the next one does not.
    """
    gone: list[SchemaChange] = []
    come: list[SchemaChange] = []
    for table_id, before in known.items():
        table = state.tables.get(table_id)
        if table is None:
            continue
        table.schema = now = table.schema.at(table.low)
        if (before.id, Left.of(before).looks) == (now.id, Left.of(now).looks):
            come.append(truncated(now, 0))
            continue
        if table.low - 1 <= state.resolved_ts:
            raise Rerouted(f"the snapshot of {now.id} begins where the last stretch ended")
        gone.append(dropped(before.id, 0, table.low - 1))
        if state.left.pop(now.id, None) is not None:
            gone.append(dropped(now.id, 0, table.low - 1, decision.renames))
        come.append(created(now))
    return [*gone, *come]


def taken_back(state: RangeState, table_id: int, altered_at: int) -> list[SchemaChange]:
    """Let a table wait for its snapshot again; returns how readers lose what they have of it.

    It is altered at that commit-ts, and its rows come again behind that.
    """
    schema = state.tables[table_id].schema
    state.forget(table_id)
    state.tables[table_id] = RangeTable(schema, announced=True)
    before = schema.at(max(altered_at - 2, state.resolved_ts + 1))
    return [created(before), truncated(schema.at(altered_at - 1), 0)]  # as above: it may be gone


def can_be_read_by(known: TableSchema, later: TableSchema) -> bool:
    """Return whether rows of a later definition can be read by the one that is known.

    A column that was only added does no harm: the log adds it to the rows.
    """
    columns = {c.id: c for c in later.columns}
    return all(
        (now := columns.get(c.id)) is not None
        and now.type == c.type
        and (c.nullable or not now.nullable)
        for c in known.columns
    )


def cleared(state: RangeState, change: SchemaChange, decision: Decision) -> list[SchemaChange]:
    """Return the DROP of what readers kept under the name that a table gets by a told change."""
    if change.kind is DdlKind.DROP_DATABASE:
        forget_database(state.left, change.table.database, decision)
    named = change.kind is DdlKind.CREATE_TABLE or change.previous is not None
    if change.schema is None or not named or change.table not in state.left:
        return []
    at = max(change.commit_ts - 1, state.resolved_ts + 1)
    old_id = state.left.pop(change.table).table_id
    old_id = old_id if old_id != change.schema.table_id else 0
    return [dropped(change.table, old_id, at, decision.renames)]
