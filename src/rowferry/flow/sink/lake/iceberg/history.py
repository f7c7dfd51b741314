"""The snapshots of one Iceberg table."""

from __future__ import annotations

from dataclasses import replace

from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot, ancestors_of
from pyiceberg.types import StructType

from rowferry.errors import NoSuchVersion
from rowferry.flow.sink.lake.history import TableCommit, TablePart, TableVersion
from rowferry.flow.sink.lake.iceberg.catalog import IcebergCatalog
from rowferry.flow.sink.lake.iceberg.position_deletes import GoneRows
from rowferry.flow.sink.lake.iceberg.state import KEY, MODE, IcebergState, StateReader
from rowferry.flow.sink.lake.iceberg.types import kind_of
from rowferry.flow.sink.lake.layout import table_at
from rowferry.flow.sink.lake.stored_columns import StoredColumns, StoredField
from rowferry.flow.sink.storage.files import Files
from rowferry.moment import moment


class IcebergHistory:
    """Snapshots as the table's metadata names them."""

    def __init__(self, files: Files, catalog: IcebergCatalog, directory: str) -> None:
        self._files = files
        self._catalog = catalog
        self._directory = directory

    @property
    def shown(self) -> str:
        """The table's name, and its catalog."""
        return f"the Iceberg table {table_at(self._directory)} of {self._catalog.shown}"

    def _loaded(self) -> tuple[Table | None, list[Snapshot]]:
        """Return the table, and the snapshots that lead to the present one, the oldest first."""
        table = self._catalog.load(self._directory)
        if table is None:
            return None, []
        metadata = table.metadata
        return table, list(ancestors_of(metadata.current_snapshot(), metadata))[::-1]

    def commits(self) -> list[TableCommit]:
        """Return the snapshots that the table keeps, the oldest first."""
        return [_commit(one) for one in self._loaded()[1]]

    def begins(self) -> bool:
        """Return whether the first snapshot is still there."""
        kept = self._loaded()[1]
        return bool(kept) and kept[0].sequence_number == 1  # of others, parents are forgotten

    def version(self, number: int | None = None) -> TableVersion:
        """Return the table at a snapshot; None: the present one."""
        table, kept = self._loaded()
        snapshot, state = self._state(table, kept, number)
        assert table is not None
        gone = GoneRows(self._files, self._catalog.io)
        parts = tuple(
            TablePart(f.path, gone.of(state, f.location), {}) for f in state.files.values()
        )
        noted = [_commit(one) for one in kept[: kept.index(snapshot) + 1]]
        last = next((c for c in reversed(noted) if c.checkpoint_ts is not None), noted[-1])
        properties = table.metadata.properties
        schemas = {one.schema_id: one for one in table.metadata.schemas}
        return TableVersion(
            replace(last, version=snapshot.snapshot_id, at_ms=snapshot.timestamp_ms),
            _columns(schemas.get(snapshot.schema_id or 0, table.metadata.schema())),
            tuple(name for name in properties.get(KEY, "").split("\n") if name),
            properties.get(MODE, ""),
            parts,
            numbered=True,
        )

    def require(self, number: int) -> None:
        """Raise where files of a snapshot were deleted."""
        self._state(*self._loaded(), number)

    def _state(
        self, table: Table | None, kept: list[Snapshot], number: int | None
    ) -> tuple[Snapshot, IcebergState]:
        """Return a snapshot and what it holds, of which all data files are there."""
        wanted = [one for one in kept if number in (None, one.snapshot_id)][-1:]
        if table is None or not wanted:
            raise NoSuchVersion(f"{self.shown} has no snapshot {number or ''}, or not any more")
        snapshot = wanted[0]
        state = StateReader(self._catalog, self._directory).at(table, snapshot)
        moment("look for files of an earlier snapshot")
        for path in state.files if snapshot is not kept[-1] else ():
            if not self._files.exists(path):
                raise NoSuchVersion(
                    f"snapshot {number} of {self.shown} has expired: {self._files.shown(path)} was "
                    "deleted; name a later moment"
                )
        return snapshot, state

    def readers(self, number: int) -> dict[str, str]:
        """Return how others read a snapshot."""
        table, name = self._loaded()[0], str(table_at(self._directory))
        place = table.metadata_location if table is not None else ""
        return {
            "pyiceberg": f'catalog.load_table("{name}").scan(snapshot_id={number})',
            "Spark": f"SELECT * FROM catalog.{name} VERSION AS OF {number}",
            "Trino": f"SELECT * FROM {name} FOR VERSION AS OF {number}",
            "DuckDB": f"SELECT * FROM iceberg_scan('{place}', snapshot_from_id => {number})",
        }


def _commit(snapshot: Snapshot) -> TableCommit:
    notes = snapshot.summary.additional_properties if snapshot.summary else {}
    mark = notes.get("rowferry.checkpoint-ts")
    by_hand = notes.get("rowferry.micro-batch", "0") == "0"  # files were merged
    known = None if mark is None or by_hand else int(mark)
    settled = notes.get("rowferry.settled") != "false"
    since = int(notes.get("rowferry.since-ts", "0"))
    return TableCommit(snapshot.snapshot_id, snapshot.timestamp_ms, known, since, settled)


def _columns(schema: Schema) -> StoredColumns:
    """Return the columns of a schema, as far as reading needs them."""
    fields = tuple(
        StoredField(
            f.name,
            "struct" if isinstance(f.field_type, StructType) else kind_of(f.field_type),
            0,
            0,
            f"col-{f.field_id}",
            f.field_id,
            f.doc or "",
        )
        for f in schema.fields
    )
    return StoredColumns(fields, mapped=True)
