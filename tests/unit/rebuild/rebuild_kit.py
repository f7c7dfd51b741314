"""A storage directory whose schema files and csv rows a test writes line by line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rowferry.change.chunk import DdlKind, SchemaChange
from rowferry.change.table import TableId, TableSchema
from rowferry.downstream.rebuild.stored_feed import StoredFeed, open_storage
from rowferry.downstream.rebuild.table import plan_tables, rebuild_here
from rowferry.flow.sink.storage.schema_file import of_change, of_table
from rowferry.mysql.ddl.statement import parse_create


class Directory:
    """Grows version by version; commit-ts are small numbers."""

    def __init__(self, root: Path, *settings: str) -> None:
        self.root = root
        self._config = root.parent / "feed.toml"
        lines = ["include-commit-ts = true", *settings]
        self._config.write_text("[sink.csv]\n" + "\n".join(lines) + "\n")
        self._numbers: dict[Path, int] = {}
        root.mkdir()
        self.checkpoint(1000)

    def checkpoint(self, commit_ts: int) -> None:
        (self.root / "metadata").write_text(f'{{"checkpoint-ts":{commit_ts}}}')

    def version(self, create: str, version: int) -> TableSchema:
        """Write the schema file of a version that no DDL of the feed made."""
        schema = parse_create(create).at(version)
        self._write(of_table(schema))
        return schema

    def ddl(
        self, version: int, kind: DdlKind, query: str, table: str, create: str = ""
    ) -> TableSchema | None:
        """Write a DDL's schema file; `create` is the table after it."""
        name = TableId(*table.split(".")) if "." in table else TableId(table, "")
        schema = parse_create(create).at(version) if create else None
        self._write(of_change(SchemaChange(version, kind, query, name, schema)))
        return schema

    def rows(self, schema: TableSchema | None, *lines: str) -> None:
        """Write a data file: lines are `op ts values…`."""
        assert schema is not None
        home = self.root / schema.id.database / schema.id.table / str(schema.version) / "2024-01-01"
        number = self._numbers[home] = self._numbers.get(home, 0) + 1
        (home / "meta").mkdir(parents=True, exist_ok=True)
        name = f"CDC{number:020d}.csv"
        text = ""
        for line in lines:
            op, stamp, values = line.split(" ", 2)
            text += f'"{op}","{schema.id.table}","{schema.id.database}",{stamp},{values}\r\n'
        (home / name).write_bytes(text.encode())
        (home / "meta" / "CDC.index").write_text(f"{name}\n")

    def feed(self) -> StoredFeed:
        return open_storage(f"file://{self.root}", self._config)

    def tables(self, as_of: int | None = None, **more: Any) -> dict[str, list[dict[str, Any]]]:
        found = {}
        for plan in plan_tables(self.feed(), as_of=as_of, **more):
            rows = rebuild_here(plan).to_pylist()
            found[str(plan.lineage.table)] = sorted(rows, key=repr)
        return found

    def _write(self, document: Any) -> None:
        path = self.root / document.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(document.content())
