"""Spark reads the tables that followed a busy source through kills: the check of
`tests/chaos/test_lake_workloads.py`, with Spark as one more reader.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from engine_kit import use_catalog

from lake_workloads import FollowedLake, OrderEntry, PointRows, Workload
from rowferry.change.table import TableId
from rowferry.testing.servers import MySql
from rowferry.testing.servers.spark.lake_engine import LakeSpark

KILLS = 2  # the chaos tests have more: here it is about a reader


@pytest.mark.parametrize("workload", [PointRows, OrderEntry])
@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_spark_has_the_same_rows(
    kind: str,
    workload: type[Workload],
    mysql_server: MySql,
    engine: LakeSpark,
    tmp_path: Path,
    seed: int,
) -> None:
    load = workload(f"spark_{kind}_{workload.__name__.lower()}")
    lake = FollowedLake(kind, mysql_server, load, tmp_path, load.database)  # Spark knows it once
    lake.follow(KILLS, random.Random(seed))
    if kind == "iceberg":
        place = {"uri": f"jdbc:sqlite:{lake.root}/catalog.db", "warehouse": f"file://{lake.root}"}
        use_catalog(engine, lake.catalog, {"type": "jdbc", **place})

    def by_spark(table: TableId) -> dict[str, list[dict[str, Any]]]:
        name = f"delta.`{lake.place(table)}`" if kind == "delta" else f"{lake.catalog}.{table}"
        return {"Spark": engine.rows(f"SELECT * FROM {name}").to_pylist()}

    lake.check(by_spark)
