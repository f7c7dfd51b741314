"""The tables of a store, as the rows of its catalog range say."""

from __future__ import annotations

from dataclasses import dataclass, field

from rowferry.change.table import TableId, TableSchema
from rowferry.flow.capture.range_log import catalog


@dataclass(frozen=True, slots=True)
class Catalog:
    """The catalog's content: tables by name, databases, and each physical id's version."""

    tables: dict[TableId, TableSchema] = field(default_factory=dict)
    databases: frozenset[str] = frozenset()

    def version_of(self, physical_id: int) -> int:
        """Return the version of the table that a physical id belongs to, 0 for none."""
        versions = (t.version for t in self.tables.values() if physical_id in t.physical_ids)
        return next(versions, 0)


def read_catalog(rows: list[tuple[bytes, bytes, int]]) -> Catalog:
    """Return what the catalog's rows (key, value, commit-ts) say."""
    tables = [t for t in (catalog.read_table(*row) for row in rows) if t is not None]
    prefix = catalog.database_key("")
    names = (key[len(prefix) :].decode() for key, _, _ in rows if key.startswith(prefix))
    return Catalog({t.id: t for t in tables}, frozenset(names))
