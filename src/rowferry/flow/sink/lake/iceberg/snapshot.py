"""Writing a snapshot: manifests of what is new, a list of all manifests, what a commit says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from pyiceberg.manifest import (
    DataFile,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestWriter,
    ManifestWriterV2,
    write_manifest_list,
)
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.snapshots import Operation, Snapshot, Summary

from rowferry.flow.sink.lake.iceberg.file_io import FilesIO
from rowferry.flow.sink.lake.iceberg.state import IcebergFile, IcebergState
from rowferry.flow.sink.lake.iceberg.updates import built

_MOST_MANIFESTS: Final = 60  # from there on they are merged
_COMPRESSION: Final = "deflate"


class _DeleteManifest(ManifestWriterV2):
    """The library writes manifests of data files only."""

    def content(self) -> ManifestContent:
        """Return what its entries are."""
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}


@dataclass(slots=True)
class SnapshotDraft:
    """What a snapshot changes.

    Attributes:
        empties: nothing of what was there stays.
    """

    operation: Operation
    added: list[DataFile] = field(default_factory=list)
    removed: list[IcebergFile] = field(default_factory=list)
    added_deletes: list[DataFile] = field(default_factory=list)
    removed_deletes: list[ManifestEntry] = field(default_factory=list)
    empties: bool = False

    @property
    def paths(self) -> list[str]:
        """The locations of the files that it is about; what was there is told by what is left."""
        new = [file.file_path for file in (*self.added, *self.added_deletes)]
        return new + [file.location for file in self.removed]

    @property
    def has_changes(self) -> bool:
        """Whether rows, or where they are, change at all."""
        return bool(
            self.added or self.removed or self.added_deletes or self.removed_deletes or self.empties
        )


class SnapshotWriter:
    """Writes the files of one snapshot; they count once the catalog names it.

    Args:
        io: where metadata is.
        location: of the table.
        token: tells this try from all others.
    """

    def __init__(self, io: FilesIO, location: str, token: UUID) -> None:
        self._io = io
        self._folder = f"{location}/metadata"
        self._token = token
        self._id = token.int >> 65  # a positive number of 63 bits
        self._count = 0
        self._spec = UNPARTITIONED_PARTITION_SPEC

    def write(
        self,
        state: IcebergState,
        schema: Schema,
        draft: SnapshotDraft,
        notes: dict[str, str],
        at_ms: int,
        spec: PartitionSpec = UNPARTITIONED_PARTITION_SPEC,
    ) -> Snapshot:
        """Return the snapshot that follows a state; all files in it have one partition spec."""
        self._spec = spec
        parent = state.snapshot_id
        last = state.sequence_number
        updated = state.metadata.last_updated_ms if state.exists else 0
        manifests = self._manifests(state, schema, draft)
        place = f"{self._folder}/snap-{self._id}-0-{self._token}.avro"
        with write_manifest_list(
            2, self._io.new_output(place), self._id, parent, last + 1, _COMPRESSION
        ) as listed:
            listed.add_manifests(manifests)
        return built(
            Snapshot,
            snapshot_id=self._id,
            parent_snapshot_id=parent,
            sequence_number=last + 1,
            timestamp_ms=max(at_ms, updated + 1),
            manifest_list=place,
            summary=Summary(draft.operation, **_summary(state, draft), **notes),
            schema_id=schema.schema_id,
        )

    def _manifests(
        self, state: IcebergState, schema: Schema, draft: SnapshotDraft
    ) -> list[ManifestFile]:
        if draft.empties:
            kept: list[ManifestFile] = []
            old_data: Sequence[ManifestEntry] = ()
            old_deletes: Sequence[ManifestEntry] = ()
        elif draft.removed or draft.removed_deletes or len(state.manifests) >= _MOST_MANIFESTS:
            kept = []
            gone = {f.location for f in draft.removed}
            old_data = [f.entry for f in state.files.values() if f.location not in gone]
            lost = {e.data_file.file_path for e in draft.removed_deletes}
            old_deletes = [e for e in state.deletes if e.data_file.file_path not in lost]
        else:
            kept, old_data, old_deletes = list(state.manifests), (), ()
        new = [
            self._manifest(
                ManifestWriterV2, schema, draft.added, old_data, [f.entry for f in draft.removed]
            ),
            self._manifest(
                _DeleteManifest, schema, draft.added_deletes, old_deletes, draft.removed_deletes
            ),
        ]
        return kept + [m for m in new if m is not None]

    def _manifest(
        self,
        kind: type[ManifestWriterV2],
        schema: Schema,
        added: Sequence[DataFile],
        existing: Sequence[ManifestEntry],
        removed: Sequence[ManifestEntry],
    ) -> ManifestFile | None:
        if not added and not existing and not removed:
            return None
        place = self._io.new_output(f"{self._folder}/{self._token}-m{self._count}.avro")
        self._count += 1
        writer: ManifestWriter = kind(self._spec, schema, place, self._id, _COMPRESSION)
        with writer:
            for file in added:
                writer.add_entry(
                    ManifestEntry.from_args(
                        status=ManifestEntryStatus.ADDED,
                        snapshot_id=self._id,
                        sequence_number=None,
                        file_sequence_number=None,
                        data_file=file,
                    )
                )
            for entry in existing:
                writer.existing(entry)
            for entry in removed:
                writer.delete(entry)
        return writer.to_manifest_file()


def _summary(state: IcebergState, draft: SnapshotDraft) -> dict[str, str]:
    """Return the counts that readers show."""
    files = 0 if draft.empties else len(state.files) - len(draft.removed)
    rows = 0 if draft.empties else sum(f.records for f in state.files.values())
    rows -= sum(f.records for f in draft.removed)
    deletes = [] if draft.empties else list(state.deletes)
    lost = {e.data_file.file_path for e in draft.removed_deletes}
    deletes = [e for e in deletes if e.data_file.file_path not in lost]
    positions = sum(e.data_file.record_count for e in deletes)
    new_positions = sum(d.record_count for d in draft.added_deletes)
    new_rows = sum(d.record_count for d in draft.added)
    counts = {
        "added-data-files": len(draft.added),
        "deleted-data-files": len(state.files) if draft.empties else len(draft.removed),
        "added-records": new_rows,
        "added-delete-files": len(draft.added_deletes),
        "added-position-deletes": new_positions,
        "total-data-files": files + len(draft.added),
        "total-records": max(rows, 0) + new_rows,
        "total-delete-files": len(deletes) + len(draft.added_deletes),
        "total-position-deletes": positions + new_positions,
        "total-equality-deletes": 0,
    }
    return {key: str(value) for key, value in counts.items() if value or key.startswith("total")}
