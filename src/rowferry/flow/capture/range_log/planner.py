"""The driver's half: which snapshot parts and log stretches come next, and which DDLs follow them.

One call of `plan` asks the master for routes, takes split ranges over from their parents, then
either continues a snapshot or cuts the next stretch of all logs: everything up to the smallest
closed timestamp, but not past a DDL of a captured table, a commit date, or the wished size.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Final

from rowferry.change.chunk import DdlKind, SchemaChange
from rowferry.change.plan import Stretch
from rowferry.change.position import RangeProgress, Stage, physical_ms
from rowferry.change.table import TableSchema
from rowferry.errors import BadOption, LogLost, SnapshotGone
from rowferry.flow.capture.contract import Appetite, SnapshotShare
from rowferry.flow.capture.range_log.begin import new_range, state_at
from rowferry.flow.capture.range_log.catalog_reader import CatalogLog, CatalogReader
from rowferry.flow.capture.range_log.client import KnownRange, RangeClient, Rerouted
from rowferry.flow.capture.range_log.left_tables import (
    announced_again,
    begun_again,
    can_be_read_by,
    cleared,
    taken_back,
)
from rowferry.flow.capture.range_log.log_stretch import cut_logs, reach
from rowferry.flow.capture.range_log.reroute import (
    FIRST_WAIT_S,
    PATIENCE_S,
    patiently,
    require_cover,
    require_whole,
)
from rowferry.flow.capture.range_log.snapshot import cut_snapshots, shares
from rowferry.flow.capture.range_log.state import RangeState, RangeTable
from rowferry.flow.decide.contract import Decision
from rowferry.mysql.ddl.statement import create_sql

_BEARING: Final = (DdlKind.CREATE_TABLE, DdlKind.TRUNCATE_TABLE)  # their table is a new one


class RangePlanner:
    """Plans stretches for one changefeed; see `Planner` for what it promises."""

    def __init__(
        self,
        client: RangeClient,
        decision: Decision,
        by_range: bool,
        resnapshot: bool,
        state: RangeState | None,
        versions: tuple[TableSchema, ...],
        rules: str = "",
        start_ts: int = 0,
    ) -> None:
        self._client = client
        self._start_ts = start_ts
        self._rules = rules
        self._catalog = CatalogReader(client)
        self._decision = decision
        self._by_range = by_range
        self._resnapshot = resnapshot
        self._state = state
        self._first: RangeState | None = None
        self._known = {(v.table_id, v.version): v for v in versions}
        self._new: list[TableSchema] = []
        self._unchecked = True  # snapshot versions may have gone since they were stored
        self._source_ms = 0
        self._present_ts = 0  # all that was committed before the first plan lies below; 0: unknown

    # --- the contract ----------------------------------------------------------------------------

    def plan(self, appetite: Appetite) -> Stretch:
        """Return what comes next after the last planned stretch."""
        state, stretch = patiently(lambda: self._attempt(appetite), "planning the next stretch")
        self._state = state
        self._unchecked = False
        schemas = [t.schema for t in state.tables.values()]
        schemas += [c.schema for c in stretch.schema_changes if c.schema is not None]
        for schema in schemas:
            key = (schema.table_id, schema.version)
            if key not in self._known:
                self._known[key] = schema
                self._new.append(schema)
        return stretch

    def table_versions(self) -> tuple[TableSchema, ...]:
        """Return the table versions that were met for the first time since the last call."""
        new_versions, self._new = tuple(self._new), []
        return new_versions

    def snapshot_shares(self) -> tuple[SnapshotShare, ...]:
        """Return the tables whose snapshot has not ended, in parts."""
        return shares(self._state) if self._state else ()

    def warnings(self) -> tuple[str, ...]:
        """Nothing: what can go wrong with ranges is an error."""
        return ()

    def lag_ms(self) -> int | None:
        """Return how far the planned position is behind the source's clock."""
        if self._state is None or not self._source_ms:
            return None
        return max(0, self._source_ms - physical_ms(self._state.resolved_ts))

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    # --- one attempt: raises Rerouted when the ranges move under it ------------------------------

    def _attempt(self, appetite: Appetite) -> tuple[RangeState, Stretch]:
        routes = {r.range_id: r for r in self._client.routes(b"t", b"u")}
        if self._first is None and self._state is None:
            # Kept between attempts: snapshots must be newer than the catalog, and they become so.
            self._first = self._begin(routes)
        known = self._state or self._first
        assert known is not None
        if not self._present_ts:
            self._present_ts = self._client.timestamp()
        state = known.copy()
        self._client.cluster_id = state.cluster_id
        if state.rules != self._rules:
            self._follow_filter(state)
        self._follow_splits(state, routes)
        again: tuple[SchemaChange, ...] = ()
        joins = bool(state.waiting())
        if joins:
            self._join(state, routes)
            joins = not state.waiting()
            again = announced_again(state, self._decision)
        if appetite.until_ts is not None and appetite.until_ts < state.hold_until:
            raise BadOption(
                f"the end asked for, commit-ts {appetite.until_ts}, lies before the snapshot: the "
                f"first commit-ts at which everything is delivered is {state.hold_until}"
            )
        if joins or again:
            # Stored before a row is shown: if that plan is given up, what was deleted of it since
            # is in the log behind this snapshot, and not behind another one.
            stretch = Stretch((), again, {})
        elif state.in_snapshot():
            stretch = self._plan_snapshot(state, routes, appetite)
        else:
            try:
                stretch = self._plan_log(state, routes, appetite)
            except LogLost as lost:
                if not self._resnapshot:
                    raise
                state = self._state.copy() if self._state else state
                self._follow_splits(state, routes)
                stretch = self._start_again(state, routes, lost)
        return state, self._with_progress(state, stretch)

    def _with_progress(self, state: RangeState, stretch: Stretch) -> Stretch:
        """Complete a stretch with the position and the progress rows that changed."""
        before = self._state.ranges if self._state else {}
        changed = tuple(p for k, p in state.ranges.items() if before.get(k) != p)
        gone = tuple(sorted(set(before) - set(state.ranges)))
        return replace(stretch, position=state.to_position(), ranges=changed, gone_ranges=gone)

    @property
    def cluster_id(self) -> int:
        """The cluster that answered; 0 before the first answer."""
        return self._client.cluster_id

    def named(self) -> tuple[TableSchema, ...]:
        """Return the source's present tables whose names the decision keeps, by name."""
        snapshot = self._catalog.snapshot()
        self.gives_old_rows = not snapshot.without_old_value
        kept = [t for t in snapshot.tables.values() if self._decision.keeps_table(t.id)]
        return tuple(sorted(kept, key=lambda t: t.id))

    # --- the catalog -----------------------------------------------------------------------------

    def _begin(self, routes: dict[int, KnownRange]) -> RangeState:
        """Read the catalog's present content: the captured tables, none of which has joined.

        With a place in the log, it is the content of then, and all tables have joined.
        """
        if self._start_ts:
            known = routes.values()
            return state_at(self._client, self._decision, known, self._start_ts, self._rules)
        snapshot = self._catalog.snapshot()
        kept = [t for t in snapshot.tables.values() if self._decision.captures(t)]
        return RangeState(
            cluster_id=self._client.cluster_id,
            resolved_ts=snapshot.snapshot_ts,
            catalog_index=snapshot.index,
            tables={t.table_id: RangeTable(t) for t in kept},
            without_old_value=snapshot.without_old_value,
            rules=self._rules,
        )

    def _follow_filter(self, state: RangeState) -> None:
        """Let tables go that a changed filter no longer keeps, and those join that it now does.

        A table that is only now made, or renamed, in the log that follows comes by that statement.
        """
        state.rules = self._rules
        for table_id, table in list(state.tables.items()):
            if not self._decision.captures(table.schema):
                state.let_go(table_id)
        ahead = [c for c in self._read_ddls(state).changes if c.schema is not None]
        coming = {
            c.schema.table_id for c in ahead if c.schema and (c.kind in _BEARING or c.previous)
        }
        present = self._catalog.snapshot()
        for table_id, schema in present.tables.items():
            if table_id in state.tables or table_id in coming:
                continue
            if self._decision.captures(schema):
                state.tables[table_id] = RangeTable(schema)
                state.ddl_seen[table_id] = present.snapshot_ts

    def _read_ddls(self, state: RangeState) -> CatalogLog:
        return self._catalog.log(state.catalog_index, state.resolved_ts)

    def _concerns(self, state: RangeState, change: SchemaChange) -> bool:
        """Return whether a DDL touches what is captured, or goes downstream anyway."""
        schema = change.schema
        if schema is not None and change.commit_ts <= state.ddl_seen.get(schema.table_id, 0):
            return False
        if change.dropped_table_id in state.tables or self._decision.keeps_schema_change(change):
            return True
        return schema is not None and (
            schema.table_id in state.tables or self._decision.captures(schema)
        )

    def _as_seen(self, state: RangeState, change: SchemaChange) -> SchemaChange:
        """Return a DDL as the feed sees it: a table renamed into it, or given a key, is new.

        So is one that is emptied before readers know it: it needs no snapshot any more.
        """
        schema, dropped = change.schema, state.tables.get(change.dropped_table_id)
        if change.kind is DdlKind.DROP_TABLE and dropped is not None:
            return replace(change, last_schema=dropped.schema)
        if schema is not None and change.kind in _BEARING and dropped and not dropped.is_known:
            return replace(change, kind=DdlKind.CREATE_TABLE, query=create_sql(schema))
        if schema is None or schema.table_id in state.tables or change.kind in _BEARING:
            return change
        if not self._decision.captures(schema):
            return change
        query = create_sql(schema)
        return replace(change, kind=DdlKind.CREATE_TABLE, query=query, previous=None)

    def _is_hidden(self, state: RangeState, seen: SchemaChange) -> bool:
        """Return whether a DDL is nothing for readers: it alters a table that they do not know.

        That comes to them with its snapshot, as it is then.
        """
        ids = {seen.dropped_table_id, seen.schema.table_id if seen.schema else 0}
        touched = [state.tables[i] for i in ids if i in state.tables]
        is_made = seen.kind is DdlKind.CREATE_TABLE
        return not is_made and any(not table.is_known for table in touched)

    def _apply(self, state: RangeState, change: SchemaChange, is_delivered: bool) -> None:
        """Bring the captured tables to their definition after a DDL (as the source wrote it)."""
        if change.dropped_table_id:
            state.forget(change.dropped_table_id)
        schema = change.schema
        if schema is None:
            return
        before = state.tables.get(schema.table_id)
        if not self._decision.captures(schema):
            if before is not None:
                if is_delivered:  # readers know it by its new name
                    before.schema = schema
                state.let_go(schema.table_id)
            return
        if before is None:
            born = change.kind in _BEARING
            state.tables[schema.table_id] = RangeTable(schema, joined=born, announced=True)
            if born:
                state.fresh.update(schema.physical_ids)
            return
        state.fresh.update(set(schema.physical_ids) - set(before.schema.physical_ids))
        before.schema = schema
        for range_id, progress in list(state.ranges.items()):
            if progress.table_id != schema.table_id:
                continue
            if progress.physical_id not in schema.physical_ids:
                del state.ranges[range_id]
            else:
                named = progress.with_(database=schema.id.database, table=schema.id.table)
                state.ranges[range_id] = named

    # --- ranges ----------------------------------------------------------------------------------

    def _follow_splits(self, state: RangeState, routes: dict[int, KnownRange]) -> None:
        """Give every range of a joined table its progress: its own, its parent's, or none yet."""
        owners = {
            physical: table
            for table in state.tables.values()
            if table.joined
            for physical in table.schema.physical_ids
        }
        require_cover(routes.values(), owners)
        for range_id in sorted(routes):  # parents have smaller ids than their children
            route = routes[range_id]
            table = owners.get(route.physical_id)
            if table is None:
                continue
            span = {"start_key": route.start_key.hex(), "end_key": route.end_key.hex()}
            own = state.ranges.get(range_id)
            if own is not None:
                state.ranges[range_id] = own.with_(**span)
                continue
            parent = state.ranges.get(route.parent_range_id)
            if parent is not None:
                index = min(parent.last_log_index, route.split_index)
                heir = parent.with_(range_id=range_id, last_log_index=index, **span)
                if route.parent_range_id in state.parts:
                    state.parts[range_id] = list(state.parts[route.parent_range_id])
                state.ranges[range_id] = heir
                continue
            state.ranges[range_id] = new_range(route, table.schema, Stage.LOG)

    def _join(self, state: RangeState, routes: dict[int, KnownRange]) -> None:
        """Register the ranges of tables that wait for their snapshot.

        They join together, unless a DDL of one of them falls between the registrations: then the
        log up to that DDL comes first.
        """
        waiting = {t.schema.table_id: t for t in state.waiting()}
        physical = {p: t for t in waiting.values() for p in t.schema.physical_ids}
        # Also ranges that were dropped since: their DROP is then seen below, and comes first.
        mine = [r for r in routes.values() if r.physical_id in physical]
        made = {r.range_id: self._client.register(r) for r in mine}
        stamps = [m.snapshot_ts for m in made.values()]
        seen = {table_id: state.ddl_seen.get(table_id, 0) for table_id in waiting}
        # A snapshot of the very moment in which its table was seen has that table's columns.
        if stamps and (min(stamps) <= state.resolved_ts or min(stamps) < max(seen.values())):
            raise Rerouted("a snapshot is older than what was delivered, or than its table")
        newest = max(stamps, default=state.resolved_ts)
        ddls = self._ddls_until(state, newest)
        touched = [(c.schema.table_id, c.commit_ts) for c in ddls if c.schema]
        touched += [(c.dropped_table_id, c.commit_ts) for c in ddls]
        if any(i in waiting and seen[i] < ts <= newest for i, ts in touched):
            return
        require_cover(mine, physical)
        for route in mine:
            table, version = physical[route.physical_id], made[route.range_id]
            state.ranges[route.range_id] = new_range(route, table.schema, Stage.SNAPSHOT).with_(
                init_snapshot_version=version.version,
                init_snapshot_ts=version.snapshot_ts,
                current_snapshot_version=version.version,
                current_snapshot_ts=version.snapshot_ts,
            )
            state.parts[route.range_id] = list(version.split_keys)
            state.without_old_value = version.without_old_value
        for table in waiting.values():
            own = [r.init_snapshot_ts for r in state.ranges.values() if _is_of(r, table)]
            table.joined, table.low = True, min(own, default=newest)
        state.hold_until = max(state.hold_until, newest)

    def _ddls_until(self, state: RangeState, newest: int) -> list[SchemaChange]:
        """Return the DDLs that follow, once all up to `newest` are among them."""
        deadline = time.monotonic() + PATIENCE_S
        while (log := self._read_ddls(state)).closed_ts < newest:
            if time.monotonic() > deadline:
                raise Rerouted(f"the catalog's closed timestamp stays at {log.closed_ts}")
            time.sleep(FIRST_WAIT_S)
        return log.changes

    # --- snapshots -------------------------------------------------------------------------------

    def _plan_snapshot(
        self, state: RangeState, routes: dict[int, KnownRange], appetite: Appetite
    ) -> Stretch:
        if self._unchecked:
            changes = self._renew_lost_snapshots(state, routes)
            if changes:
                return Stretch((), changes, {})
        segments = cut_snapshots(state, appetite)
        for segment in segments:
            segment.read["cluster_id"] = state.cluster_id
        return Stretch(tuple(segments), (), {})

    def _renew_lost_snapshots(
        self, state: RangeState, routes: dict[int, KnownRange]
    ) -> tuple[SchemaChange, ...]:
        """Make a new version where a leader no longer has the one that we were reading.

        Returns how readers lose what they have of tables that were altered meanwhile, so that the
        new version cannot be read as the first one was: these join again behind their DDLs.
        """
        newest: dict[int, int] = {}
        for progress in state.in_snapshot():
            route = _route_of(progress, routes)
            version = progress.current_snapshot_version
            try:
                self._client.pull_snapshot(route, version, "", "", max_bytes=1)
                continue
            except SnapshotGone:
                made = self._client.register(route)
            state.ranges[progress.range_id] = progress.with_(
                current_snapshot_version=made.version,
                current_snapshot_ts=made.snapshot_ts,
                last_snapshot_key="",
            )
            state.parts[progress.range_id] = list(made.split_keys)
            state.hold_until = max(state.hold_until, made.snapshot_ts)
            newest[progress.table_id] = max(newest.get(progress.table_id, 0), made.snapshot_ts)
        ddls = self._ddls_until(state, max(newest.values())) if newest else []
        changes: list[SchemaChange] = []
        for table_id, snapshot_ts in newest.items():
            known, seen = state.tables[table_id].schema, state.ddl_seen.get(table_id, 0)
            altered = [
                (c.commit_ts, c.schema)
                for c in ddls
                if c.schema and c.schema.table_id == table_id and seen < c.commit_ts <= snapshot_ts
            ]
            if not all(can_be_read_by(known, schema) for _, schema in altered):
                changes += taken_back(state, table_id, altered[0][0])
        return tuple(c for c in changes if self._decision.keeps_schema_change(c))

    def _start_again(
        self, state: RangeState, routes: dict[int, KnownRange], lost: LogLost
    ) -> Stretch:
        """Restart the tables whose log was compacted: emptied or made anew, then a snapshot."""
        present = self._catalog.snapshot()
        tables = self._tables_without_log(state, routes)
        if not tables:
            raise lost
        known = {table_id: state.tables[table_id].schema for table_id in sorted(tables)}
        for table_id in known:
            state.forget(table_id)
        others = {table.schema.id for table in state.tables.values()}
        for table_id in known:
            now = present.tables.get(table_id)
            if now is None or not self._decision.captures(now):
                continue  # dropped or renamed since; that DDL follows in the catalog's log
            if now.id in others:
                raise lost  # readers know another table by that name until a DDL that follows
            state.tables[table_id] = RangeTable(now)
            state.ddl_seen[table_id] = present.snapshot_ts
        # Until all of their DDLs have followed, no watermark speaks for these tables.
        state.hold_until = max(state.hold_until, present.snapshot_ts)
        if not state.waiting():
            return Stretch((), (), {})
        self._join(state, routes)
        for table in state.waiting():
            raise Rerouted(f"table {table.schema.id} is being altered")
        changes = [
            *begun_again(state, known, self._decision),
            *announced_again(state, self._decision),
        ]
        return Stretch((), tuple(changes), {})

    def _tables_without_log(self, state: RangeState, routes: dict[int, KnownRange]) -> set[int]:
        table_ids = set()
        for progress in state.ranges.values():
            try:
                self._client.heads([(_route_of(progress, routes), progress.last_log_index)])
            except LogLost:
                table_ids.add(progress.table_id)
        return table_ids

    # --- logs ------------------------------------------------------------------------------------

    def _plan_log(
        self, state: RangeState, routes: dict[int, KnownRange], appetite: Appetite
    ) -> Stretch:
        logs = [(p, _route_of(p, routes)) for p in state.ranges.values()]
        heads = self._client.heads([(r, p.last_log_index) for p, r in logs])
        for (progress, _), head in zip(logs, heads, strict=True):
            require_whole(progress.range_id, head, progress.last_log_index)
        # The catalog after the heads: a row's DDL is in the catalog before the row is in a log.
        log = self._read_ddls(state)
        ddls = [c for c in log.changes if self._concerns(state, c)]
        closed = min([log.closed_ts, *(h.closed_ts for h in heads)])
        self._source_ms = max(self._source_ms, physical_ms(closed))
        behind = [
            (p, r) for (p, r), h in zip(logs, heads, strict=True) if h.last_index > p.last_log_index
        ]
        ceiling = closed
        if self._by_range:
            ceiling = max([closed, *(h.last_commit_ts for h in heads)])
        if appetite.until_ts is not None:
            ceiling = min(ceiling, appetite.until_ts)
        following: list[SchemaChange] = []
        if ddls and ddls[0].commit_ts <= ceiling:
            ceiling = ddls[0].commit_ts - 1
            following = [c for c in ddls if c.commit_ts == ddls[0].commit_ts]
            if closed < ceiling:
                following = []  # by range: rows before the DDL may still be on their way
        whole = ceiling
        active, first, ceiling = reach(self._client, state, behind, ceiling, appetite)
        if ceiling < whole:
            following = []
        segments = cut_logs(state, active, (first, ceiling), ddls, appetite, self._by_range)
        for progress, _, head in active:
            moved = progress.with_(last_log_index=head.index_at_ts)
            state.ranges[progress.range_id] = moved
        kept: list[SchemaChange] = []
        if following:
            for change in following:
                seen = self._as_seen(state, change)
                is_delivered = not self._is_hidden(
                    state, seen
                ) and self._decision.keeps_schema_change(seen)
                if is_delivered:
                    kept += [*cleared(state, seen, self._decision), seen]
                self._apply(state, change, is_delivered)
            state.resolved_ts = following[0].commit_ts
        else:
            state.resolved_ts = max(state.resolved_ts, min(ceiling, closed))
        # All: one that concerns nothing yet may concern a table that comes by one before it.
        if all(c.commit_ts <= state.resolved_ts for c in log.changes):
            state.catalog_index = log.last_index
        held = state.resolved_ts < state.hold_until or bool(state.waiting())
        if not held:
            state.hold_until = 0
        return Stretch(
            segments=tuple(segments),
            schema_changes=tuple(kept),
            position={},
            watermark=None if held else state.resolved_ts,
            # A transaction that hangs keeps the closed-ts below changes that were there before.
            caught_up=not held
            and not following
            and min(ceiling, closed) == closed
            and state.resolved_ts >= self._present_ts,
        )


# --- small pieces --------------------------------------------------------------------------------


def _is_of(progress: RangeProgress, table: RangeTable) -> bool:
    return progress.table_id == table.schema.table_id


def _route_of(progress: RangeProgress, routes: dict[int, KnownRange]) -> KnownRange:
    route = routes.get(progress.range_id)
    if route is None:
        raise Rerouted(f"range {progress.range_id} has no route")
    return route
