"""Compare a storage directory with the reference store that it was fed from."""

from __future__ import annotations

from pathlib import Path

from rowferry.change.table import TableId
from rowferry.flow.encode.contract import Codec
from rowferry.refstore.client import Store
from rowferry.testing.rebuild import Comparison, RebuiltTable, compare, rebuild


def verify_storage(root: Path, codec: Codec, store: Store, tables: list[TableId]) -> Comparison:
    """Rebuild tables from their files and compare them with the store's present rows.

    The store must be quiet, and the feed must have delivered everything.
    """
    expected: dict[TableId, RebuiltTable] = {}
    for name in tables:
        schema = store.table(name)
        expected[name] = RebuiltTable(schema, schema.handle_key, store.scan(name))
    rebuilt = rebuild(root, codec, {t: r.key for t, r in expected.items()})
    return compare({t: r for t, r in rebuilt.items() if t in expected}, expected)
