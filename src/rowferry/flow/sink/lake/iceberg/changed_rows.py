"""New data files of an Iceberg table, and the rows of the same keys that they replace."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from pyiceberg.manifest import DataFile
from pyiceberg.table.snapshots import Operation
from pyiceberg.typedef import Record

from rowferry.change.table import TableSchema
from rowferry.flow.sink.lake.commit import NewFile, TargetSettings
from rowferry.flow.sink.lake.iceberg.bounds import data_entry
from rowferry.flow.sink.lake.iceberg.file_io import FilesIO
from rowferry.flow.sink.lake.iceberg.key_runs import IcebergRuns
from rowferry.flow.sink.lake.iceberg.partition_spec import record_of
from rowferry.flow.sink.lake.iceberg.position_deletes import (
    GoneRows,
    Positions,
    deletes_content,
    deletes_entry,
)
from rowferry.flow.sink.lake.iceberg.rewrite import by_partition
from rowferry.flow.sink.lake.iceberg.snapshot import SnapshotDraft
from rowferry.flow.sink.lake.iceberg.state import IcebergFile, IcebergState
from rowferry.flow.sink.lake.runs import TouchedKeys
from rowferry.flow.sink.lake.stored_columns import StoredColumns
from rowferry.flow.sink.storage.files import Files
from rowferry.moment import moment


class ChangedRows:
    """Finds the rows that new files replace, and writes down that they are gone."""

    def __init__(
        self,
        files: Files,
        io: FilesIO,
        settings: TargetSettings,
        runs: IcebergRuns,
        gone: GoneRows,
    ) -> None:
        self._files, self._io, self._settings = files, io, settings
        self._runs, self._gone = runs, gone

    def draft(
        self,
        state: IcebergState,
        table: TableSchema,
        columns: StoredColumns,
        files: Sequence[NewFile],
        old: Sequence[IcebergFile],
        stem: str,
    ) -> SnapshotDraft:
        """Return what a commit of new files does; position deletes are put on the way.

        Args:
            state: the table as it is.
            table: the version of the rows.
            columns: those of the table with these rows.
            files: the new ones.
            old: those that may hold rows of the same keys, oldest first.
            stem: how the names of files of deletes begin.
        """
        io, layout = self._io, self._settings.layouts.of(table.id)
        records = {
            f.path: record_of(f.partition, layout, columns) if f.rows else Record() for f in files
        }
        added = [
            data_entry(io.location(data_path(f)), f.rows, f.size, f.stats, columns, records[f.path])
            for f in files
            if f.rows
        ]
        with_runs = [f for f in files if f.has_run]
        if self._settings.lake.changelog or not with_runs:
            return SnapshotDraft(Operation.APPEND, added)
        key = key_names(table.handle_key, columns)
        self._runs.use(columns)
        touched = TouchedKeys([self._runs.run(data_path(f), key) for f in with_runs])
        gone = [
            (io.location(data_path(f)), records[f.path], dead)
            for f, dead in zip(with_runs, touched.dead, strict=True)
            if len(dead)
        ]
        old_rows = self._old_rows(state, touched, old, key)
        gone += [(file.location, file.partition, rows) for file, rows in old_rows]
        if not gone:
            return SnapshotDraft(Operation.APPEND, added)
        parts = by_partition(gone)
        deletes = [
            self._put_deletes(f"{stem}{f'-{n}' if n else ''}.parquet", rows, record)
            for n, (record, rows) in enumerate(parts)
        ]
        return SnapshotDraft(Operation.OVERWRITE, added, added_deletes=deletes)

    def _old_rows(
        self,
        state: IcebergState,
        touched: TouchedKeys,
        old: Sequence[IcebergFile],
        key: tuple[str, ...],
    ) -> Iterable[tuple[IcebergFile, Positions]]:
        """Yield the files that hold rows of the touched keys, with the rows that go now."""

        def gone(file: IcebergFile) -> Positions:
            return self._gone.of(state, file.location)

        # The newest first: most changes are of what changed lately. A file of which no row counts
        # may be older than a column of the key.
        files = (f for f in reversed(old) if len(gone(f)) < max(f.records, 1))
        return self._runs.old_rows(key, touched.keys, files, gone)

    def _put_deletes(self, path: str, gone: Mapping[str, Positions], part: Record) -> DataFile:
        content = deletes_content(gone)
        moment("put position deletes")
        self._files.overwrite(path, content)
        return deletes_entry(self._io.location(path), gone, len(content), part)


def key_names(key: Sequence[str], columns: StoredColumns) -> tuple[str, ...]:
    """Return the key's columns in data files."""
    wanted = {name.lower() for name in key}
    return tuple(f.physical for f in columns.fields if f.source and f.name.lower() in wanted)


def data_path(file: NewFile) -> str:
    """Return where a new data file is."""
    return f"{file.root}/{file.path}"
