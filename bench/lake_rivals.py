"""How others bring changes into a lake table: delta-rs, pyiceberg, and Spark with its MERGE."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable, write_deltalake
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

from rowferry.testing.servers.spark.lake_engine import LakeSpark

# Takes the table's first rows; returns what merges changes into it.
Rival = Callable[[Path, pa.Table], Callable[[pa.Table], None]]
_AT_ONCE = 1_000_000
# A Spark for work, not for tables of a few rows.
_WORKING = {
    "spark.driver.memory": "6g",
    "spark.sql.shuffle.partitions": "4",
    "spark.default.parallelism": "4",
    "spark.databricks.delta.snapshotPartitions": "2",
    "spark.sql.codegen.wholeStage": "true",
    "spark.driver.extraJavaOptions": "-XX:+UseParallelGC",
}


def delta_rs(folder: Path, rows: pa.Table) -> Callable[[pa.Table], None]:
    """The table is delta-rs' own, and so is the merge."""
    place = str(folder / "delta-rs")
    write_deltalake(place, rows)

    def merge(changes: pa.Table) -> None:
        merging = DeltaTable(place).merge(changes, "t.id = s.id", "s", "t")
        merging.when_matched_update_all().when_not_matched_insert_all().execute()

    return merge


def pyiceberg(folder: Path, rows: pa.Table) -> Callable[[pa.Table], None]:
    """The table is pyiceberg's own, in a catalog of one file, and so is the upsert."""
    one = iceberg_table(folder, rows)

    def merge(changes: pa.Table) -> None:
        one.refresh()
        one.upsert(changes, join_cols=["id"])

    return merge


def iceberg_table(folder: Path, rows: pa.Table) -> Table:
    """Write the table `bench.t` as pyiceberg does, in a catalog of one file."""
    folder.mkdir(parents=True, exist_ok=True)
    place = f"sqlite:///{folder}/catalog.db"
    with closing(SqlCatalog("rowferry", uri=place, warehouse=f"file://{folder}")) as catalog:
        catalog.create_namespace("bench")
        one = catalog.create_table("bench.t", schema=rows.schema)
        one.append(rows)
    return one


@contextmanager
def spark_merges(folder: Path) -> Iterator[dict[str, Rival]]:
    """Lend a Spark of others that merges changes into Delta and Iceberg tables of its own."""
    settings = {
        **_WORKING,
        "spark.sql.catalog.ice": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.ice.type": "hadoop",
        "spark.sql.catalog.ice.warehouse": f"file://{folder}/ice",
    }
    with LakeSpark(folder / "spark", settings) as engine:

        def through(name: str, using: str, more: str = "") -> Rival:
            def made(place: Path, rows: pa.Table) -> Callable[[pa.Table], None]:
                table = name.format(place=place / "spark-delta")
                for number, first in enumerate(range(0, rows.num_rows, _AT_ONCE)):
                    part = place / f"part{number}.parquet"
                    pq.write_table(rows.slice(first, _AT_ONCE), part)
                    source = f"SELECT * FROM parquet.`{part}`"
                    if number:
                        engine.run(f"INSERT INTO {table} {source}")
                    else:
                        engine.run(
                            f"CREATE OR REPLACE TABLE {table} USING {using}{more} AS {source}"
                        )
                    part.unlink()
                changed = place / "changes.parquet"

                def merge(changes: pa.Table) -> None:
                    pq.write_table(changes, changed)
                    engine.run(
                        f"MERGE INTO {table} t USING parquet.`{changed}` s ON t.id = s.id "
                        "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
                    )

                return merge

            return made

        reading = "'write.merge.mode' = 'merge-on-read', 'write.update.mode' = 'merge-on-read'"
        yield {
            "Spark 4.1 MERGE, Delta": through(
                "delta.`{place}`",
                "delta",
                " TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')",
            ),
            "Spark 4.1 MERGE, Iceberg": through(
                "ice.bench.t", "iceberg", f" TBLPROPERTIES ('format-version' = '2', {reading})"
            ),
        }


def timed(rival: Rival, folder: Path, rows: pa.Table, turns: list[pa.Table]) -> list[float]:
    """Return the seconds of each turn; the first one may find things cold."""
    folder.mkdir(parents=True, exist_ok=True)
    merge = rival(folder, rows)
    times = []
    for changes in turns:
        began = time.perf_counter()
        merge(changes)
        times.append(time.perf_counter() - began)
    return times
