"""An Iceberg table at one snapshot: its data files, its position deletes, our notes."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from pyiceberg.manifest import (
    DataFileContent,
    ManifestContent,
    ManifestEntry,
    ManifestFile,
)
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Operation, Snapshot
from pyiceberg.typedef import Record

from rowferry.errors import RowferryError, SinkDamaged, TargetUnfit
from rowferry.flow.sink.lake.commit import MARK, noted_changefeed
from rowferry.flow.sink.lake.iceberg.catalog import IcebergCatalog
from rowferry.flow.sink.lake.iceberg.partition_spec import PARTITION_BY, has_layout
from rowferry.flow.sink.lake.partitioning import FileLayout
from rowferry.flow.sink.lake.stored_columns import NUMBERINGS, StoredColumns

CHANGEFEED, DROPPED, COLUMNS = MARK, "rowferry.dropped", "rowferry.columns"
MAX_COLUMN, MODE, KEY = "rowferry.max-column-id", "rowferry.mode", "rowferry.key"
NOTE: Final = "rowferry.txn."  # then a name: how far it is
_FORMAT: Final = 2
_LONGEST: Final = 20  # digits of a number that we have written


@dataclass(frozen=True, slots=True)
class IcebergFile:
    """A data file of the present snapshot; `path` is below the prefix."""

    path: str
    entry: ManifestEntry

    @property
    def location(self) -> str:
        """The file's whole address."""
        return self.entry.data_file.file_path

    @property
    def partition(self) -> Record:
        """The values of its partition."""
        return self.entry.data_file.partition

    @property
    def size(self) -> int:
        """Its bytes."""
        return self.entry.data_file.file_size_in_bytes

    @property
    def records(self) -> int:
        """Its rows, also those that count no more."""
        return self.entry.data_file.record_count


@dataclass(frozen=True, slots=True)
class IcebergState:
    """What a table holds; without `table` there is none.

    Attributes:
        files: by their paths below the prefix, the oldest first.
        deletes: the files of position deletes.
        manifests: of the snapshot, with all these files.
    """

    table: Table | None = None
    files: Mapping[str, IcebergFile] = field(default_factory=dict)
    deletes: tuple[ManifestEntry, ...] = ()
    manifests: tuple[ManifestFile, ...] = ()

    @property
    def exists(self) -> bool:
        """Whether there is a table."""
        return self.table is not None

    @property
    def metadata(self) -> TableMetadata:
        """The table's metadata; only where there is a table."""
        assert self.table is not None
        return self.table.metadata

    @property
    def properties(self) -> dict[str, str]:
        """The table's properties."""
        return dict(self.metadata.properties) if self.table is not None else {}

    @property
    def snapshot_id(self) -> int | None:
        """The present snapshot's number; None: there is none yet."""
        return self.metadata.current_snapshot_id if self.table is not None else None

    @property
    def sequence_number(self) -> int:
        """How many commits the table has had; 0: there is none."""
        return getattr(self.metadata, "last_sequence_number", 0) if self.table is not None else 0

    @property
    def notes(self) -> dict[str, int]:
        """How far we are, by name: micro-batches, schema changes, plans that were given up."""
        known = self.properties
        return {k.removeprefix(NOTE): int(v) for k, v in known.items() if k.startswith(NOTE)}

    @property
    def layout(self) -> list[str]:
        """What the table is partitioned by, as our property tells it."""
        return [text for text in self.properties.get(PARTITION_BY, "").split("\n") if text]

    @property
    def columns(self) -> StoredColumns | None:
        """The table's columns; None: they are not ours."""
        text = self.properties.get(COLUMNS)
        noted = int(self.properties.get(MAX_COLUMN, "0"))
        numberings = self.properties.get(NUMBERINGS, "").split()
        return StoredColumns.read(text, True, noted, numberings) if text else None


class StateReader:
    """Reads a table as it is now; manifests that were read once are not read again."""

    def __init__(self, catalog: IcebergCatalog, directory: str) -> None:
        self._catalog = catalog
        self._directory = directory
        self._entries: dict[str, list[ManifestEntry]] = {}

    def read(self, known: IcebergState | None) -> IcebergState:
        """Return the present state, given one that was read before.

        Raises:
            TargetUnfit: the table uses what we do not know to keep.
            SinkDamaged: its metadata cannot be read.
        """
        table = self._catalog.load(self._directory)
        if table is None:
            self._entries = {}
            return IcebergState()
        shown = _shown(table)
        if table.metadata.format_version != _FORMAT:
            raise TargetUnfit(
                f"{shown} has format version {table.metadata.format_version}; only version "
                f"{_FORMAT} is kept here: drop the table and begin anew: rowferry changefeed reset "
                "--snapshot"
            )
        with _read_as_metadata(shown):
            spec, present = table.metadata.spec(), IcebergState(table)
            _, columns = present.notes, present.columns
            layout = FileLayout.read(present.layout)
            ours = columns is not None and has_layout(spec, layout, columns)
        if not ours and spec.fields:
            raise TargetUnfit(
                f"{shown} is partitioned by {', '.join(f.name for f in spec.fields)}, as no "
                "changefeed did it: undo that, or drop the table and begin anew: rowferry "
                "changefeed reset --snapshot"
            )
        snapshot = table.metadata.current_snapshot()
        if snapshot is None:
            return present
        if (
            known is not None
            and known.table is not None
            and known.snapshot_id == snapshot.snapshot_id
        ):
            return IcebergState(table, known.files, known.deletes, known.manifests)
        return self.at(table, snapshot)

    def at(self, table: Table, snapshot: Snapshot) -> IcebergState:
        """Return what a snapshot of a table holds.

        Raises:
            TargetUnfit: it has equality deletes.
            SinkDamaged: one of its manifests is gone, or cannot be read.
        """
        shown = _shown(table)
        with _read_as_metadata(shown):
            manifests = tuple(snapshot.manifests(self._catalog.io))
            entries = {m.manifest_path: self._entries_of(m) for m in manifests}
        self._entries = entries
        files: dict[str, IcebergFile] = {}
        deletes: list[ManifestEntry] = []
        for manifest in sorted(manifests, key=lambda m: m.sequence_number):
            for entry in entries[manifest.manifest_path]:
                if manifest.content == ManifestContent.DATA:
                    path = self._catalog.io.path(entry.data_file.file_path)
                    files[path] = IcebergFile(path, entry)
                    continue
                if entry.data_file.content != DataFileContent.POSITION_DELETES:
                    raise TargetUnfit(
                        f"{shown} has equality deletes, which somebody else wrote; rewrite its "
                        "data files (rewrite_data_files), then resume"
                    )
                deletes.append(entry)
        return IcebergState(table, files, tuple(deletes), manifests)

    def has_held(self, state: IcebergState, path: str, since: int) -> bool:
        """Return whether a snapshot behind a sequence number has, or takes away, a data file.

        Raises:
            SinkDamaged: one of its manifests is gone, or cannot be read.
        """
        if path in state.files or state.table is None:
            return path in state.files
        location = self._catalog.io.location(path)
        later = [s for s in state.metadata.snapshots if (s.sequence_number or 0) > since]
        with _read_as_metadata(_shown(state.table)):
            manifests = {m.manifest_path: m for s in later for m in s.manifests(self._catalog.io)}
            return any(
                entry.data_file.file_path == location
                for manifest in manifests.values()
                if manifest.sequence_number > since
                for entry in manifest.fetch_manifest_entry(self._catalog.io, discard_deleted=False)
            )

    def _entries_of(self, manifest: ManifestFile) -> list[ManifestEntry]:
        held = self._entries.get(manifest.manifest_path)
        return held if held is not None else manifest.fetch_manifest_entry(self._catalog.io)


def _shown(table: Table) -> str:
    return f"the Iceberg table {'.'.join(table.name())}"


@contextmanager
def _read_as_metadata(shown: str) -> Iterator[None]:
    """Turn what metadata of another form leads to into an error of ours."""
    again = "restore it as it was and resume, or drop the table and begin anew: rowferry changefeed"
    try:
        yield
    except RowferryError:
        raise
    except FileNotFoundError as err:
        raise SinkDamaged(
            f"{shown} names {err.args[0]}, which is gone; {again} reset --snapshot"
        ) from None
    except Exception as err:  # the library's readers raise what a damaged file leads them to
        raise SinkDamaged(
            f"{shown} has metadata that cannot be read ({type(err).__name__}); {again} reset "
            "--snapshot"
        ) from None


def row_snapshots(
    state: IcebergState, changefeed: str, micro_batches: Collection[int]
) -> dict[int, str]:
    """Return the ids of the snapshots that brought the rows of micro-batches, by their numbers."""
    snapshots: dict[int, str] = {}
    for snapshot in state.metadata.snapshots if state.exists else ():
        about = snapshot.summary
        if about is None or about.operation is Operation.REPLACE:
            continue
        written = about.get("rowferry.micro-batch") or "0"
        number = int(written) if written.isdecimal() and len(written) < _LONGEST else 0
        if about.get(CHANGEFEED) == changefeed and number in micro_batches:
            snapshots.setdefault(number, str(snapshot.snapshot_id))
    return snapshots


def committer(state: IcebergState) -> str:
    """Return the changefeed that has committed to a table, by its notes or snapshots; empty: none.

    Others who set the table's properties anew may have taken the notes away.
    """
    summaries = (s.summary for s in state.metadata.snapshots if s.summary is not None)
    names = (summary.get(CHANGEFEED) for summary in summaries)
    return noted_changefeed(state.notes) or next(filter(None, names), "")
