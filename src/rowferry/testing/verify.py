"""Compare a storage directory with the reference store that it was fed from."""

from __future__ import annotations

from pathlib import Path

from rowferry.change.table import TableId
from rowferry.downstream.rebuild.stored_feed import StoredFeed
from rowferry.downstream.rebuild.table import plan_tables, rebuild_here
from rowferry.flow.encode.contract import Codec
from rowferry.refstore.client import Store
from rowferry.testing.rebuild import RebuiltTable, TableDifferences, compare, rebuild


def verify_storage(
    root: Path, codec: Codec, store: Store, tables: list[TableId]
) -> TableDifferences:
    """Rebuild tables from their files and compare them with the store's present rows.

    The store must be quiet, and the feed must have delivered everything.
    """
    expected = _present(store, tables)
    rebuilt = rebuild(root, codec, {t: r.key for t, r in expected.items()})
    return compare({t: r for t, r in rebuilt.items() if t in expected}, expected)


def verify_stored(feed: StoredFeed, store: Store, tables: list[TableId]) -> TableDifferences:
    """Do the same with the product's own rebuild, by which users read such files."""
    expected = _present(store, tables)
    rebuilt: dict[TableId, RebuiltTable] = {}
    for name, table in expected.items():
        (plan,) = plan_tables(feed, [name], key=table.key)
        rebuilt[name] = RebuiltTable(plan.schema, plan.key, rebuild_here(plan))
    return compare(rebuilt, expected)


def _present(store: Store, tables: list[TableId]) -> dict[TableId, RebuiltTable]:
    present: dict[TableId, RebuiltTable] = {}
    for name in tables:
        schema = store.table(name)
        present[name] = RebuiltTable(schema, schema.handle_key, store.scan(name))
    return present
