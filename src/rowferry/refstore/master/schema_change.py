"""DDL at the master: the catalog is a range like others, written in a transaction.

A table's ranges take no writes from before the catalog's commit until they know the new version, so
rows with a smaller commit-ts than the DDL's are in the old schema, later ones in the new.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

from rowferry.change.chunk import DdlKind, SchemaChange
from rowferry.change.table import TableSchema
from rowferry.errors import BadStatement
from rowferry.flow.capture.range_log import catalog
from rowferry.refstore.master.leaders import Leaders
from rowferry.refstore.master.topology import Topology
from rowferry.refstore.routing import retried
from rowferry.refstore.tables import Catalog, read_catalog
from rowferry.wire import store_pb2 as wire

# The parser and the key encoder are imported when a DDL comes: a master starts without them.


@dataclass(frozen=True, slots=True)
class _Touched:
    """What a DDL touches: ranges that take no writes, physical ids before it, and new ones."""

    frozen: list[int]
    old: set[int]
    new: dict[int, TableSchema]


class SchemaChangeQueue:
    """Runs one DDL after the other."""

    def __init__(self, topology: Topology, leaders: Leaders) -> None:
        self._topology, self._leaders = topology, leaders
        self._one_at_a_time = threading.Lock()
        self._unfinished: _Touched | None = None
        self.current: Catalog | None = None  # None: not read yet; tables take no writes

    def run(self, request: wire.DdlRequest) -> int:
        """Run a statement; returns its commit-ts, 0 if there was nothing to do.

        On return every range of its tables knows the new version. On raise nothing was changed,
        except that StoreUnavailable may leave it done.
        """
        from rowferry.mysql.ddl.statement import plan_ddl

        with self._one_at_a_time:
            known = self._finish()
            changes = plan_ddl(
                request.sql,
                request.database,
                known.tables,
                lambda: self._topology.number("table"),
            )
            changes = [c for c in changes if _needed(c, known, request.sql)]
            return self._run(changes, known, request) if changes else 0

    def tidy(self) -> None:
        """Read the catalog after a start, and finish what a DDL could not.

        Waits for nothing: where that is not possible now, StoreUnavailable or NotHere says so.
        """
        if (self.current is None or self._unfinished) and self._one_at_a_time.acquire(False):
            try:
                self._finish(patient=False)
            finally:
                self._one_at_a_time.release()

    def _run(self, changes: list[SchemaChange], known: Catalog, request: wire.DdlRequest) -> int:
        by_id = {t.table_id: t for t in known.tables.values()}
        old = {i for c in changes for t in _before(c, by_id) for i in t.physical_ids}
        made = [c.schema for c in changes if c.schema]
        new = {i: table for table in made for i in table.physical_ids if i not in old}
        frozen = retried(lambda: self._topology.freeze_tables(old))
        self._unfinished = _Touched(frozen, old, new)
        try:
            self._leaders.drain(frozen)
            for physical_id, table in new.items():
                self._topology.add_table(physical_id, _bounds(table, physical_id, request))
            rows = _catalog_rows(changes, by_id, self._topology.number("job"))
            return self._leaders.write_catalog(rows)
        finally:
            self._finish()

    def _finish(self, patient: bool = True) -> Catalog:
        """Make the ranges follow the catalog; done by whoever comes next if it fails."""
        if self.current is not None and self._unfinished is None:
            return self.current
        ask = self._leaders.catalog_rows
        new_catalog = read_catalog(retried(ask) if patient else ask())
        alive = {i for t in new_catalog.tables.values() for i in t.physical_ids}
        touched = self._unfinished or _Touched([], set(), {})
        self._topology.remove_tables(set(touched.new) - alive)
        self._topology.drop_all_but(alive)
        self.current, self._unfinished = new_catalog, None
        new = [r.range_id for r in self._topology.of_tables(touched.new)]
        self._topology.thaw([*touched.frozen, *new])
        self._leaders.nudge()
        return new_catalog


def _needed(change: SchemaChange, known: Catalog, sql: str) -> bool:
    """Return whether a change has anything to do; refuse what does not fit the databases."""
    name, words = change.table.database, sql.upper().split()
    if change.kind is DdlKind.CREATE_DATABASE:
        if name in known.databases and "EXISTS" not in words:
            raise BadStatement(f"database {name!r} exists already")
        return name not in known.databases
    if name not in known.databases:
        if change.kind is DdlKind.DROP_DATABASE and "EXISTS" in words:
            return False
        raise BadStatement(f"there is no database {name!r}; run CREATE DATABASE {name} first")
    return True


def _before(change: SchemaChange, by_id: dict[int, TableSchema]) -> list[TableSchema]:
    """Return the tables that a change replaces or ends."""
    ids = {change.dropped_table_id, change.schema.table_id if change.schema else 0}
    return [by_id[i] for i in ids if i in by_id]


def _catalog_rows(
    changes: list[SchemaChange], by_id: dict[int, TableSchema], job: int
) -> dict[bytes, bytes | None]:
    rows: dict[bytes, bytes | None] = {catalog.ddl_key(job): catalog.ddl_value(changes)}
    for change in changes:
        if change.dropped_table_id in by_id:
            rows[catalog.table_key(change.dropped_table_id)] = None
        if change.schema is not None:
            rows[catalog.table_key(change.schema.table_id)] = catalog.table_value(change.schema)
        if change.kind is DdlKind.CREATE_DATABASE:
            name = change.table.database
            rows[catalog.database_key(name)] = catalog.database_value(name)
        if change.kind is DdlKind.DROP_DATABASE:
            rows[catalog.database_key(change.table.database)] = None
    return rows


def _bounds(table: TableSchema, physical_id: int, request: wire.DdlRequest) -> list[bytes]:
    """Return the keys between which a new table's ranges lie."""
    from rowferry.refstore.rows.kv_encode import table_end, table_prefix

    start, end = table_prefix(physical_id), table_end(physical_id)
    return [start, *_cuts(table, start, request), end]


def _cuts(table: TableSchema, prefix: bytes, request: wire.DdlRequest) -> list[bytes]:
    from rowferry.flow.capture.range_log.kv import handle_of

    parts = max(request.ranges, 1)
    if handle_of(table).is_integer:
        low, span = request.first_handle, request.last_handle - request.first_handle + 1
        handles = sorted({low + span * n // parts for n in range(1, parts)} - {low})
        return [prefix + (h + (1 << 63)).to_bytes(8, "big") for h in handles]
    # Text and other keys: by the first byte after the type's flag, over the printable ones.
    firsts = sorted({0x20 + 0x60 * n // parts for n in range(1, parts)})
    return [prefix + b"\x01" + bytes([first]) for first in firsts]
