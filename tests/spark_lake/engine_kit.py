"""Lakes that a Spark of others reads, changes and looks after between two micro-batches."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

from iceberg_kit import IcebergLake
from lake_kit import Lake
from lake_readers import assert_same
from rowferry.testing.servers.spark.lake_engine import LakeSpark


def use_catalog(engine: LakeSpark, name: str, settings: dict[str, str]) -> None:
    """Let Spark know an Iceberg catalog under a name."""
    place = f"spark.sql.catalog.{name}"
    kind = {place: "org.apache.iceberg.spark.SparkCatalog", f"{place}.cache-enabled": "false"}
    engine.use(kind | {f"{place}.{k}": v for k, v in settings.items()})


class SparkDelta(Lake):
    """Delta tables; Spark knows them by their directories."""

    upkeep: Sequence[str] = (
        "OPTIMIZE {table}",
        "REORG TABLE {table} APPLY (PURGE)",
        "VACUUM {table} RETAIN 0 HOURS",
    )

    def __init__(self, root: Path, engine: LakeSpark, parameters: str = "") -> None:
        self.engine = engine
        super().__init__(root, parameters)

    def spark_name(self, name: str) -> str:
        return f"delta.`{self.root / name}`"

    def filled(self, statement: str, name: str) -> str:
        """A statement with the names of this table in it."""
        return statement.replace("{table}", self.spark_name(name))

    def sql(self, statement: str, name: str = "shop/orders") -> None:
        """Let Spark run a statement about a table."""
        self.engine.run(self.filled(statement, name))

    def rows(self, columns: str = "*", name: str = "shop/orders") -> list[dict[str, Any]]:
        """The table as all readers have it, Spark among them."""
        found = super().rows(columns, name)
        if columns == "*":
            theirs = self.engine.rows(self.filled("SELECT * FROM {table}", name))
            assert_same(found, {"Spark": theirs.to_pylist()})
        return found


class SparkIceberg(SparkDelta, IcebergLake):
    """Iceberg tables in an SQLite file, which Spark reads as a catalog of its own JDBC form."""

    upkeep = (
        "CALL {catalog}.system.rewrite_data_files(table => '{plain}', "
        "options => map('rewrite-all', 'true'))",
        "CALL {catalog}.system.rewrite_position_delete_files('{plain}')",
        "CALL {catalog}.system.rewrite_manifests('{plain}')",
        "CALL {catalog}.system.expire_snapshots(table => '{plain}', retain_last => 1, "
        "older_than => now())",
    )

    def __init__(self, root: Path, engine: LakeSpark, parameters: str = "") -> None:
        self.spark_catalog = f"c{uuid4().hex[:12]}"
        super().__init__(root, engine, f"{parameters}&catalog-name={self.spark_catalog}")
        use_catalog(
            engine,
            self.spark_catalog,
            {
                "type": "jdbc",
                "uri": f"jdbc:sqlite:{root}/catalog.db",
                "warehouse": f"file://{root}",
            },
        )

    def catalog(self) -> Any:
        found = super().catalog()
        found.name = self.spark_catalog
        return found

    def spark_name(self, name: str) -> str:
        database, _, table = name.partition("/")
        return f"{self.spark_catalog}.{database}.{table}"

    def filled(self, statement: str, name: str) -> str:
        plain = name.replace("/", ".")
        made = statement.replace("{catalog}", self.spark_catalog).replace("{plain}", plain)
        return super().filled(made, name)
