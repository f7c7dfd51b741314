"""Data files of an Iceberg table written anew, with other columns."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any
from uuid import uuid4

import pyarrow as pa
from pyiceberg.manifest import DataFile
from pyiceberg.table.snapshots import Operation
from pyiceberg.typedef import Record

from rowferry.change.table import TableSchema
from rowferry.errors import TargetLost
from rowferry.flow.sink.contract import RESTORE
from rowferry.flow.sink.lake.columns import LakeColumns, fill_value
from rowferry.flow.sink.lake.commit import OF_OLD_ROW
from rowferry.flow.sink.lake.data_file import without_rows
from rowferry.flow.sink.lake.draft import numbered
from rowferry.flow.sink.lake.iceberg.bounds import data_entry
from rowferry.flow.sink.lake.iceberg.file_io import FilesIO
from rowferry.flow.sink.lake.iceberg.key_runs import read_numbered
from rowferry.flow.sink.lake.iceberg.partition_spec import partition_key
from rowferry.flow.sink.lake.iceberg.position_deletes import Positions
from rowferry.flow.sink.lake.iceberg.snapshot import SnapshotDraft
from rowferry.flow.sink.lake.iceberg.state import IcebergFile, IcebergState
from rowferry.flow.sink.lake.iceberg.types import field_ids
from rowferry.flow.sink.lake.rewriting import fitting, put_data_file, with_evolved
from rowferry.flow.sink.lake.stored_columns import Evolution, StoredColumns
from rowferry.flow.sink.storage.files import Files
from rowferry.moment import moment


class IcebergRewriter:
    """Writes files of one table anew.

    New files have names of their own each time: two processes that write at once must not write the
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

    def evolved(
        self, state: IcebergState, evolution: Evolution, table: TableSchema
    ) -> SnapshotDraft:
        """Return what puts files with the new columns in place of all that are there.

        Raises:
            SchemaChangeRefused: what old rows have in a new column is not known.
        """
        values = {f.physical: fill_value(f.column, table, self._lake) for f in evolution.filled}
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
        return live_rows(self._files, file.path, columns, self._gone(file))

    def _put(self, rows: pa.Table, columns: StoredColumns, partition: Record) -> list[DataFile]:
        if not rows.num_rows:
            return []
        name, stored = f"evolved-{uuid4().hex}.parquet", with_numbers(rows, columns)
        made = put_data_file(self._files, self._root, name, rows, self._key, stored)
        place = self._io.location(f"{self._root}/{name}")
        size, stats = made["size"], made["stats"]
        return [data_entry(place, rows.num_rows, size, stats, columns, partition)]


def live_rows(files: Files, path: str, columns: StoredColumns, gone: Positions) -> pa.Table:
    """Return the rows of a data file that count."""
    moment("read iceberg file to write it anew")
    stored = files.get(path)
    if stored is None:
        raise TargetLost(f"{files.shown(path)} is gone, a data file; {RESTORE}")
    return without_rows(read_numbered(stored.data, columns), gone)


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


def with_numbers(rows: pa.Table, columns: StoredColumns) -> pa.Table:
    """Return rows with the numbers of all columns in their schema."""
    ids = field_ids(columns)
    fields = []
    for field in rows.schema:
        kind = field.type
        if pa.types.is_struct(kind):
            kind = pa.struct([numbered(f.name, f.type, ids, OF_OLD_ROW) for f in kind])
        fields.append(numbered(field.name, kind, ids))
    return pa.Table.from_arrays(rows.columns, schema=pa.schema(fields))
