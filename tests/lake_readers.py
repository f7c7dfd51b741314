"""Lake tables as engines of others read them: DuckDB with its own extensions, and Polars.

The extensions are files of packages that are locked as all others: nothing is downloaded.
"""

from __future__ import annotations

import os
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import duckdb
import polars
import pyarrow as pa
from deltalake import DeltaTable
from pyiceberg.table import Table

os.environ.setdefault("POLARS_ICEBERG_PLANNER", "pyiceberg")  # the other one is a plugin
Row = dict[str, Any]
# In this order: that of Iceberg needs that of Avro.
_EXTENSIONS = ("avro", "delta", "iceberg")


@cache
def duck() -> duckdb.DuckDBPyConnection:
    """DuckDB with what reads lake tables, which fetches nothing by itself."""
    closed = {"autoinstall_known_extensions": "false", "autoload_known_extensions": "false"}
    engine = duckdb.connect(config=closed)
    engine.execute("SET TimeZone = 'UTC'")
    for name in _EXTENSIONS:
        spec = find_spec(f"duckdb_extension_{name}")
        assert spec is not None and spec.origin is not None
        (file,) = Path(spec.origin).parent.rglob(f"{name}.duckdb_extension")
        engine.execute(f"LOAD '{file}'")
    return engine


def _by_duck(query: str) -> list[Row]:
    return pa.table(duck().sql(query).to_arrow_table()).to_pylist()


def delta_rows(place: Path) -> dict[str, list[Row]]:
    """A Delta table's rows, by reader; Polars refuses columns that were renamed or dropped."""
    found = {"DuckDB": _by_duck(f"SELECT * FROM delta_scan('{place}')")}
    features = DeltaTable(str(place)).protocol().reader_features or []
    if "columnMapping" not in features:
        found["Polars"] = polars.scan_delta(str(place)).collect().to_arrow().to_pylist()
    return found


def iceberg_rows(table: Table) -> dict[str, list[Row]]:
    """An Iceberg table's rows, by reader."""
    return {
        "DuckDB": _by_duck(f"SELECT * FROM iceberg_scan('{table.metadata_location}')"),
        "Polars": polars.scan_iceberg(table).collect().to_arrow().to_pylist(),
    }


def assert_same(wanted: list[Row], found: dict[str, list[Row]]) -> None:
    """All readers have the same rows, in whatever order."""
    for reader, rows in found.items():
        ours, theirs = _bag(wanted), _bag(rows)
        extra = [row for row in theirs if row not in ours]
        missing = [row for row in ours if row not in theirs]
        assert ours == theirs, f"{reader} has more: {extra[:3]}, less: {missing[:3]}"


def _bag(rows: list[Row]) -> list[str]:
    return sorted(repr(list(row.items())) for row in rows)
