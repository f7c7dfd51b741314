"""Lake tables equal a busy source, although `rowferry run` was killed with -9 again and again.

`tests/spark_lake/test_spark_workloads.py` lets Spark read the same tables.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from lake_workloads import FollowedLake, OrderEntry, PointRows, Workload
from rowferry.testing.servers import MySql

KILLS = 6


@pytest.mark.parametrize("workload", [PointRows, OrderEntry])
@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_kills_while_others_write(
    kind: str, workload: type[Workload], mysql_server: MySql, tmp_path: Path, seed: int
) -> None:
    load = workload(f"lake_{kind}_{workload.__name__.lower()}")
    lake = FollowedLake(kind, mysql_server, load, tmp_path)
    lake.follow(KILLS, random.Random(seed))
    lake.check()
