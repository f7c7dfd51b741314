"""Data files of an Iceberg table written anew: merged, purged, or with other columns."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final
from uuid import uuid4

import pyarrow as pa
from pyiceberg.manifest import DataFile
from pyiceberg.table.snapshots import Operation
from pyiceberg.typedef import Record

from rowferry.change.table import TableSchema
from rowferry.errors import TargetLost
from rowferry.flow.sink.contract import RESTORE
from rowferry.flow.sink.lake.columns import LakeColumns
from rowferry.flow.sink.lake.commit import OF_OLD_ROW
from rowferry.flow.sink.lake.data_file import parquet_bytes, without_rows
from rowferry.flow.sink.lake.draft import note_of, numbered
from rowferry.flow.sink.lake.iceberg.bounds import data_entry
from rowferry.flow.sink.lake.iceberg.file_io import FilesIO
from rowferry.flow.sink.lake.iceberg.key_runs import read_numbered
from rowferry.flow.sink.lake.iceberg.partition_spec import partition_key
from rowferry.flow.sink.lake.iceberg.position_deletes import (
    Positions,
    deletes_content,
    deletes_entry,
)
from rowferry.flow.sink.lake.iceberg.snapshot import SnapshotDraft
from rowferry.flow.sink.lake.iceberg.state import IcebergFile, IcebergState
from rowferry.flow.sink.lake.iceberg.types import field_ids
from rowferry.flow.sink.lake.rewriting import fitting, in_key_order, merge_groups, with_evolved
from rowferry.flow.sink.lake.runs import run_of, run_path
from rowferry.flow.sink.lake.stored_columns import Evolution, StoredColumns, fill_value
from rowferry.flow.sink.storage.files import Files
from rowferry.moment import moment

_SMALL: Final = 0.75  # of the wanted size
_DELETED: Final = 0.3  # share of rows from which on a file is written anew


class IcebergRewriter:
    """Writes files of one table anew.

    New files have names of their own each time: two processes that merge at once must not write the
    same file. Only one of them can commit.
    """

    def __init__(
        self,
        files: Files,
        io: FilesIO,
        root: str,
        lake: LakeColumns,
        key: tuple[str, ...],
        gone: Callable[[IcebergFile], Positions],
    ) -> None:
        self._files = files
        self._io = io
        self._root = root
        self._lake = lake
        self._key = key
        self._gone = gone

    def poor(self, state: IcebergState, file_size: int) -> list[IcebergFile]:
        """Return the files that are small, or of which many rows are deleted."""
        return [
            f
            for f in state.files.values()
            if f.size < file_size * _SMALL or len(self._gone(f)) > f.records * _DELETED
        ]

    def merged(self, state: IcebergState, file_size: int, columns: StoredColumns) -> SnapshotDraft:
        """Return what puts few large files in place of small ones; rows stay the same.

        All position deletes become one file, of the rows in files that stay.
        """
        draft = SnapshotDraft(Operation.REPLACE)
        poor = self.poor(state, file_size)
        for group in self.mergeable(poor, file_size):
            rows = pa.concat_tables([fitting(self._rows(f, columns), columns) for f in group])
            draft.removed += group
            draft.added += self._put(in_key_order(rows, self._key), columns, group[0].partition)
        replaced = {f.path for f in draft.removed}
        stay = [f for f in state.files.values() if f.path not in replaced]
        left = by_partition(
            (f.location, f.partition, rows) for f in stay if len(rows := self._gone(f))
        )
        if len(state.deletes) > max(len(left), 1) or (draft.removed and state.deletes):
            draft.removed_deletes = list(state.deletes)
            draft.added_deletes = [self._put_deletes(gone, record) for record, gone in left]
        return draft

    def mergeable(self, poor: Iterable[IcebergFile], file_size: int) -> list[list[IcebergFile]]:
        """Return files that are written anew together: several, or one with deleted rows."""
        groups = merge_groups(poor, file_size, lambda f: partition_key(f.partition))
        return [g for g in groups if len(g) > 1 or len(self._gone(g[0]))]

    def evolved(
        self, state: IcebergState, evolution: Evolution, table: TableSchema
    ) -> SnapshotDraft:
        """Return what puts files with the new columns in place of all that are there.

        Raises:
            SchemaChangeRefused: what old rows have in a new column is not known.
        """
        values = {f.physical: fill_value(f, table, self._lake) for f in evolution.filled}
        old = state.columns
        assert old is not None
        draft = SnapshotDraft(Operation.OVERWRITE)
        for file in state.files.values():
            rows = with_evolved(self._rows(file, old), evolution, values)
            fit = fitting(rows, evolution.columns)
            draft.added += self._put(fit, evolution.columns, file.partition)
        draft.removed = list(state.files.values())
        draft.removed_deletes = list(state.deletes)
        return draft

    def _rows(self, file: IcebergFile, columns: StoredColumns) -> pa.Table:
        moment("read iceberg file to write it anew")
        stored = self._files.get(file.path)
        if stored is None:
            raise TargetLost(f"{self._files.shown(file.path)} is gone, a data file; {RESTORE}")
        return without_rows(read_numbered(stored.data, columns), self._gone(file))

    def _put(self, rows: pa.Table, columns: StoredColumns, partition: Record) -> list[DataFile]:
        if not rows.num_rows:
            return []
        name = f"merged-{uuid4().hex}.parquet"
        content = parquet_bytes(pa.Table.from_arrays(rows.columns, schema=_schema(rows, columns)))
        moment("put rewritten iceberg file")
        self._files.overwrite(f"{self._root}/{name}", content)
        if self._key:
            run = run_of(self._key, rows.select(list(self._key))).content()
            self._files.overwrite(run_path(self._root, name), run)
        note = note_of(rows)
        place = self._io.location(f"{self._root}/{name}")
        size, stats = len(content), note["stats"]
        return [data_entry(place, rows.num_rows, size, stats, columns, partition)]

    def _put_deletes(self, gone: dict[str, Positions], partition: Record) -> DataFile:
        path, content = f"{self._root}/deletes-{uuid4().hex}.parquet", deletes_content(gone)
        moment("put merged position deletes")
        self._files.overwrite(path, content)
        return deletes_entry(self._io.location(path), gone, len(content), partition)


def by_partition(
    gone: Iterable[tuple[str, Record, Positions]],
) -> list[tuple[Record, dict[str, Positions]]]:
    """Return rows that go by the partition of their files: a file of deletes is for one.

    Given are locations of data files, their partitions and the rows.
    """
    parts: dict[tuple[Any, ...], tuple[Record, dict[str, Positions]]] = {}
    for location, record, rows in gone:
        parts.setdefault(partition_key(record), (record, {}))[1][location] = rows
    return list(parts.values())


def _schema(rows: pa.Table, columns: StoredColumns) -> pa.Schema:
    """Return the rows' schema with the numbers of all columns."""
    ids = field_ids(columns)
    fields = []
    for field in rows.schema:
        kind = field.type
        if pa.types.is_struct(kind):
            kind = pa.struct([numbered(f.name, f.type, ids, OF_OLD_ROW) for f in kind])
        fields.append(numbered(field.name, kind, ids))
    return pa.schema(fields)
