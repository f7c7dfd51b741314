"""An Iceberg sink driven as the loop does it, and readers of others."""

from __future__ import annotations

from typing import Any

from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import Table

from lake_kit import Lake
from lake_readers import assert_same, iceberg_rows


class IcebergLake(Lake):
    """One changefeed to a directory of Iceberg tables, with an SQLite catalog in it."""

    scheme = "iceberg+file"

    def catalog(self) -> SqlCatalog:
        """The catalog as everybody else opens it."""
        place = self.root / "catalog.db"
        return SqlCatalog("rowferry", uri=f"sqlite:///{place}", warehouse=f"file://{self.root}")

    def iceberg(self, name: str = "shop/orders") -> Table:
        return self.catalog().load_table(tuple(name.split("/")))

    def column_names(self) -> list[str]:
        return [f.name for f in self.iceberg().schema().fields]

    def column_kinds(self) -> dict[str, str]:
        names = {"timestamp": "timestamp_ntz", "timestamptz": "timestamp"}
        kinds = {f.name: str(f.field_type) for f in self.iceberg().schema().fields}
        return {n: names.get(k, k).replace(", ", ",") for n, k in kinds.items()}

    def commits(self) -> int:
        return len(self.iceberg().metadata.snapshots)

    def has(self, name: str) -> bool:
        return self.catalog().table_exists(tuple(name.split("/")))

    def data_files(self) -> list[str]:
        inspected = self.iceberg().inspect.files().to_pylist()
        return [str(file["file_path"]) for file in inspected]

    def rows(self, columns: str = "*", name: str = "shop/orders") -> list[dict[str, Any]]:
        """The table as pyiceberg reads it, and all other readers if these are all columns."""
        chosen = ("*",) if columns == "*" else tuple(c.strip() for c in columns.split(","))
        found: list[dict[str, Any]] = (
            self.iceberg(name).scan(selected_fields=chosen).to_arrow().to_pylist()
        )
        if columns == "*":
            assert_same(found, iceberg_rows(self.iceberg(name)))
        return found

    def summaries(self, name: str = "shop/orders") -> list[dict[str, str]]:
        """What each snapshot says about itself, the oldest first."""
        snapshots = self.iceberg(name).metadata.snapshots
        ordered = sorted(snapshots, key=lambda s: s.sequence_number or 0)
        return [
            {"operation": s.summary.operation.value, **s.summary.additional_properties}
            for s in ordered
            if s.summary is not None
        ]
