"""The whole line under a nemesis: every promise holds at every checkpoint that a reader saw."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

import pytest

from rowferry.refstore.cluster import LocalCluster
from rowferry.refstore.workload import Bank, Mixed
from rowferry.testing.nemesis import Nemesis
from rowferry.testing.nemesis_events import EVENTS, SCHEMA, WRITES, Report
from rowferry.testing.nemesis_postgresql import PostgresqlOutput
from rowferry.testing.servers import Postgres

# Starting Spark again takes long; one kind of it is enough where the other run has both.
FEWER = {k: w for k, w in EVENTS.items() if k not in ("pause", "kill-master")}

WORST = {k: w for k, w in EVENTS.items() if k in ("split", "kill-server", "kill-driver")}
# Whatever ends a run, and statements between the rows.
ENDS = {k: EVENTS[k] for k in (*WRITES, *SCHEMA, *WORST, "pause")}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    small_parts = ("--part-bytes", "4096")  # so that a snapshot takes several micro-batches
    with LocalCluster(tmp_path / "store", 2, data_options=small_parts) as running:
        yield running


def check(report: Report, must_happen: Mapping[str, int]) -> None:
    """Nothing is broken, and the run was worth its name: these events happened."""
    print(report)
    assert report.failures == [], str(report)
    assert report.missing(must_happen) == [], f"some events never happened; {report.hint}"
    assert len(report.watermarks) > 1, str(report)


def test_canal_json(cluster: LocalCluster, tmp_path: Path, seed: int) -> None:
    check(Nemesis(cluster, tmp_path / "run", seed, "canal-json", EVENTS, 60).run(), EVENTS)


def test_csv(cluster: LocalCluster, tmp_path: Path, seed: int) -> None:
    check(Nemesis(cluster, tmp_path / "run", seed, "csv", FEWER, 35).run(), WORST)


def test_by_range(cluster: LocalCluster, tmp_path: Path, seed: int) -> None:
    """Rows may run ahead of the watermark here; what a reader has at a watermark is the same."""
    nemesis = Nemesis(cluster, tmp_path / "run", seed, "canal-json", FEWER, 35, "range")
    check(nemesis.run(), WORST)


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_lake_tables(cluster: LocalCluster, tmp_path: Path, seed: int, kind: str) -> None:
    """Each version of each table is what the source was at the watermark that it tells."""
    check(Nemesis(cluster, tmp_path / "run", seed, kind, FEWER, 20).run(), WORST)


def test_postgresql_tables(
    cluster: LocalCluster, postgres_server: Postgres, tmp_path: Path, seed: int
) -> None:
    """Each row beside a watermark is what the source had then or later; at the end all are."""
    database = f"nemesis_{seed}"
    postgres_server.execute(f"CREATE DATABASE {database}")
    kept = (Bank().table, Mixed().table)
    output = partial(PostgresqlOutput, postgres_server.url(database), kept)
    try:
        nemesis = Nemesis(cluster, tmp_path / "run", seed, "postgresql", ENDS, 10, output=output)
        check(nemesis.run(), {**WORST, "pause": 1})
    finally:
        postgres_server.execute(f"DROP DATABASE {database} WITH (FORCE)")
