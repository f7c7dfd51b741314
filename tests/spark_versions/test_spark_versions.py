"""What uses Spark, with every version of Spark that Rowferry runs with.

`make test-spark` runs it: the older versions are fetched first. Each of them comes before the one
that is installed on the module path of processes of its own.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from rowferry.testing.servers import Server
from spark_releases import INSTALLED, OLDER, Spark, spark_of

ROOT = Path(__file__).parents[2]
# Jobs and their errors, one session for many, the data source, tables rebuilt, sides compared. The
# ordinary run has all of them, with the version that is installed.
USERS = (
    "tests/unit/spark",
    "tests/integration/test_spark_job.py",
    "tests/integration/test_shared_spark.py",
    "tests/integration/spark",
    "tests/integration/verify/test_verify_page.py",
)
pytestmark = pytest.mark.timeout(3600)  # a whole run of others, for each


@pytest.fixture(params=[*OLDER, INSTALLED])
def spark(request: pytest.FixtureRequest) -> Spark:
    return spark_of(request.param)


@pytest.fixture(params=OLDER)
def older(request: pytest.FixtureRequest) -> Spark:
    return spark_of(request.param)


def test_a_process_finds_the_version(spark: Spark, tmp_path: Path) -> None:
    found = spark.run(tmp_path, "-c", "import pyspark; print(pyspark.__version__)")
    assert found.stdout.split() == [spark.release]


def test_the_demonstration(spark: Spark, tmp_path: Path) -> None:
    said = spark.ferry(tmp_path, "demo", "--accounts", "2000", "--seconds", "3")
    assert "verified: " in said and "not verified" not in said


def test_from_mysql_to_files_to_tables(spark: Spark, mysql_server: Server, tmp_path: Path) -> None:
    shop = f"shop_{spark.release.replace('.', '_')}"
    table = f"{shop}.orders"
    mysql_server.script(
        f"CREATE DATABASE {shop}",
        f"CREATE TABLE {table} (id INT PRIMARY KEY, item VARCHAR(20), at DATETIME(6))",
        f"INSERT INTO {table} VALUES (1, 'milk', '2024-02-29 01:02:03.5'), (2, 'tea', NULL)",
    )
    (tmp_path / "feed.toml").write_text(
        f'[filter]\nrules = ["{shop}.*"]\n[sink]\nprotocol = "csv"\n'
        "[sink.csv]\ninclude-commit-ts = true\n"
    )
    files, config = f"file://{tmp_path}/changes", ("--config", "feed.toml")
    feed = ("run", "--source", mysql_server.uri, "--sink-uri", files, *config)
    spark.ferry(tmp_path, *feed, "--until", "caught-up")
    mysql_server.script(
        f"INSERT INTO {table} VALUES (3, 'ale', NULL)",
        f"UPDATE {table} SET item = 'cream' WHERE id = 1",
        f"DELETE FROM {table} WHERE id = 2",
    )
    spark.ferry(tmp_path, *feed, "--until", "caught-up")
    spark.ferry(tmp_path, "table", "--from", files, *config, "--to", "lake")
    rows = pq.read_table(tmp_path / "lake" / shop / "orders").sort_by("id").to_pylist()
    assert [tuple(row.values()) for row in rows] == [
        (1, "cream", "2024-02-29 01:02:03.500000"),
        (3, "ale", None),
    ]
    sides = ("verify", mysql_server.uri, files, *config, "--tables", f"{shop}.*")
    assert f"{table}: equal, 2 rows" in spark.ferry(tmp_path, *sides)
    mysql_server.execute(f"UPDATE {table} SET item = 'rum' WHERE id = 3")
    assert "1 changed" in spark.ferry(tmp_path, *sides, code=1)


def test_what_uses_spark(older: Spark, tmp_path: Path) -> None:
    # Spark 4.0 leaves a socket to be closed by the garbage collector.
    leak = ("-W", "ignore::pytest.PytestUnraisableExceptionWarning")
    ended = older.run(ROOT, "-m", "pytest", "-q", *leak, f"--basetemp={tmp_path}/inner", *USERS)
    assert ended.returncode == 0, ended.stdout
