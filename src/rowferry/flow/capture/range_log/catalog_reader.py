"""Reads the source's catalog: its present tables, and the DDLs that follow."""

from __future__ import annotations

from dataclasses import dataclass

from rowferry.change.chunk import SchemaChange
from rowferry.change.table import TableSchema
from rowferry.errors import SnapshotGone
from rowferry.flow.capture.range_log import catalog
from rowferry.flow.capture.range_log.client import KnownRange, RangeClient, Rerouted
from rowferry.flow.capture.range_log.page import DELETE
from rowferry.flow.capture.range_log.reroute import require_whole


@dataclass(frozen=True, slots=True)
class CatalogSnapshot:
    """All tables at one moment, and where the catalog's log goes on."""

    tables: dict[int, TableSchema]
    index: int
    snapshot_ts: int
    without_old_value: bool


@dataclass(frozen=True, slots=True)
class CatalogLog:
    """The DDLs after a commit-ts, in order; all up to `closed_ts` are there."""

    changes: list[SchemaChange]
    closed_ts: int
    last_index: int


class CatalogReader:
    """The catalog's range, seen through a client. Every call may raise Rerouted."""

    def __init__(self, client: RangeClient) -> None:
        self._client = client

    def _route(self) -> KnownRange:
        return self._client.routes(catalog.START, catalog.END)[0]

    def snapshot(self) -> CatalogSnapshot:
        """Return the present tables."""
        route = self._route()
        made = self._client.register(route)
        tables: dict[int, TableSchema] = {}
        last, ended = "", False
        try:
            while not ended:
                page, ended = self._client.pull_snapshot(route, made.version, last, "")
                for place in range(len(page)):
                    ts = int(page.commit_ts[place])
                    table = catalog.read_table(page.key(place), page.value(place), ts)
                    if table is not None:
                        tables[table.table_id] = table
                    last = page.key(place).hex()
        except SnapshotGone as gone:
            raise Rerouted(str(gone)) from None
        return CatalogSnapshot(tables, made.version, made.snapshot_ts, made.without_old_value)

    def at(self, commit_ts: int) -> CatalogSnapshot:
        """Return the tables as they were at a commit-ts, from the catalog's whole log."""
        route = self._route()
        without_old_value = self._client.register(route).without_old_value
        head = self._client.heads([(route, 0)], at_ts=commit_ts)[0]
        if head.closed_ts < commit_ts:
            raise Rerouted(f"commit-ts {commit_ts} is not closed yet")
        tables: dict[bytes, TableSchema] = {}
        index = 0
        while index < head.index_at_ts:
            page, index = self._client.pull_log(route, index, head.index_at_ts)
            for place in range(len(page)):
                key, ts = page.key(place), int(page.commit_ts[place])
                if page.kind[place] == DELETE:
                    tables.pop(key, None)
                elif (table := catalog.read_table(key, page.value(place), ts)) is not None:
                    tables[key] = table
        by_id = {t.table_id: t for t in tables.values()}
        return CatalogSnapshot(by_id, head.index_at_ts, commit_ts, without_old_value)

    def log(self, after_index: int, after_ts: int) -> CatalogLog:
        """Return the DDLs after an index whose commit-ts is above `after_ts`."""
        route = self._route()
        head = self._client.heads([(route, after_index)])[0]
        require_whole(route.range_id, head, after_index)
        changes: list[SchemaChange] = []
        index = after_index
        while index < head.last_index:
            page, index = self._client.pull_log(route, index, head.last_index)
            for place in range(len(page)):
                ts = int(page.commit_ts[place])
                if ts > after_ts:
                    changes += catalog.read_ddl(page.key(place), page.value(place), ts)
        return CatalogLog(changes, head.closed_ts, head.last_index)
