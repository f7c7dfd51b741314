"""A commit of an Iceberg table: its snapshot is written, then the catalog is asked to take it."""

from __future__ import annotations

from dataclasses import dataclass, field
from uuid import NAMESPACE_URL, UUID, uuid5

from pyiceberg.partitioning import PartitionSpec
from pyiceberg.table.refs import MAIN_BRANCH

from rowferry.flow.sink.lake.commit import CommitNote
from rowferry.flow.sink.lake.iceberg.catalog import IcebergCatalog
from rowferry.flow.sink.lake.iceberg.partition_spec import next_spec, spec_of
from rowferry.flow.sink.lake.iceberg.snapshot import SnapshotDraft, SnapshotWriter
from rowferry.flow.sink.lake.iceberg.state import IcebergState
from rowferry.flow.sink.lake.iceberg.types import schema_of
from rowferry.flow.sink.lake.iceberg.updates import (
    absent,
    known_partitions,
    new_layout,
    new_partitions,
    new_schema,
    new_snapshot,
    new_table,
    settings_changed,
    unchanged,
)
from rowferry.flow.sink.lake.partitioning import FileLayout
from rowferry.flow.sink.lake.stored_columns import StoredColumns


@dataclass(slots=True)
class TableChange:
    """What one commit does: rows, columns, notes."""

    draft: SnapshotDraft
    columns: StoredColumns | None = None
    settings: dict[str, str] = field(default_factory=dict)
    removed_settings: list[str] = field(default_factory=list)
    summary: dict[str, str] = field(default_factory=dict)
    layout: FileLayout | None = None


class SnapshotCommits:
    """Writes the commits of one table; `history`: how many snapshots it keeps."""

    def __init__(self, catalog: IcebergCatalog, directory: str, history: int) -> None:
        self._catalog, self._directory, self._history = catalog, directory, history

    def write(self, note: CommitNote, root: str, state: IcebergState, made: TableChange) -> bool:
        """Write a snapshot and hand it to the catalog; False: somebody else was first."""
        io = self._catalog.io
        location = state.metadata.location if state.exists else io.location(root)
        columns = made.columns or state.columns
        assert columns is not None
        ids = [s.schema_id for s in state.metadata.schemas] if state.exists else []
        schema = schema_of(columns, max(ids, default=-1) + 1)
        same = state.exists and _same_schema(state, columns)
        if same:
            schema = state.metadata.schema()
        # A try whose answer was lost may still come in: another one must not write over its files.
        token = self.token(note, state, f"{sorted(made.settings.items())}/{made.draft.paths}")
        about = {
            "rowferry.changefeed": note.changefeed,
            "rowferry.epoch": str(note.epoch),
            "rowferry.micro-batch": str(note.micro_batch),
            "rowferry.checkpoint-ts": str(note.checkpoint_ts),
            "rowferry.since-ts": str(note.since_ts),
            "rowferry.settled": str(note.settled).lower(),
            **made.summary,
        }
        writer = SnapshotWriter(io, location, token)
        spec = self._spec(state, columns, made)
        snapshot = writer.write(state, schema, made.draft, about, note.at_ms, spec)
        updates = [] if state.exists else new_table(location, uuid5(NAMESPACE_URL, str(token)))
        if not same:
            updates += new_schema(schema)
        if not state.exists:
            updates += new_layout(spec)
        elif spec.spec_id != state.metadata.default_spec_id:
            known = spec.spec_id in {one.spec_id for one in state.metadata.partition_specs}
            updates += known_partitions(spec) if known else new_partitions(spec)
        updates += settings_changed(made.settings, made.removed_settings)
        # Who merges by hand does not know how many snapshots the changefeed keeps.
        updates += new_snapshot(snapshot, self._expired(state) if note.micro_batch else [])
        wanted = unchanged(state.metadata) if state.exists else absent()
        return self._catalog.commit(self._directory, state.table, wanted, tuple(updates))

    def _spec(
        self, state: IcebergState, columns: StoredColumns, made: TableChange
    ) -> PartitionSpec:
        """Return the spec of all files after a commit; only a table without rows gets another."""
        layout = made.layout
        if not state.exists:
            return spec_of(layout or FileLayout(), columns)
        if layout is None or (state.files and not made.draft.empties):
            return state.metadata.spec()
        return next_spec(state.metadata, layout, columns)

    def _expired(self, state: IcebergState) -> list[int]:
        """Return the snapshots that are too many, but for those that tags and branches name."""
        if not state.exists:
            return []
        metadata = state.metadata
        kept = {r.snapshot_id for name, r in metadata.refs.items() if name != MAIN_BRANCH}
        ordered = sorted(metadata.snapshots, key=lambda s: s.sequence_number or 0)
        many = len(ordered) + 1 - self._history
        return [s.snapshot_id for s in ordered[: max(many, 0)] if s.snapshot_id not in kept]

    def token(self, note: CommitNote, state: IcebergState, what: str) -> UUID:
        """Return what tells the files of one try of a commit from those of all others."""
        identity = str(state.metadata.table_uuid) if state.exists else ""
        name = f"{note}/{self._directory}/{identity}/{state.snapshot_id}/{what}"
        return uuid5(NAMESPACE_URL, name)


def _same_schema(state: IcebergState, columns: StoredColumns) -> bool:
    """Return whether the table has these columns, also their comments."""
    schema = state.metadata.schema()
    wanted = schema_of(columns, schema.schema_id)
    return list(schema.fields) == list(wanted.fields)
