"""Data files of a Delta table written anew: merged, purged, or with other columns."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final
from uuid import uuid4

import pyarrow as pa

from rowferry.change.table import TableSchema
from rowferry.errors import TargetLost
from rowferry.flow.sink.contract import RESTORE
from rowferry.flow.sink.lake.columns import LakeColumns
from rowferry.flow.sink.lake.commit import CommitNote
from rowferry.flow.sink.lake.data_file import (
    parquet_bytes,
    read_parquet,
    with_constants,
    without_rows,
)
from rowferry.flow.sink.lake.delta.deletion_vector import RowNumbers
from rowferry.flow.sink.lake.delta.log import LiveFile, TableState
from rowferry.flow.sink.lake.delta.partition_values import held_values
from rowferry.flow.sink.lake.draft import note_of
from rowferry.flow.sink.lake.rewriting import fitting, in_key_order, merge_groups, with_evolved
from rowferry.flow.sink.lake.runs import run_of, run_path
from rowferry.flow.sink.lake.stored_columns import Evolution, StoredColumns, fill_value
from rowferry.flow.sink.storage.files import Files
from rowferry.moment import moment

_SMALL: Final = 0.75  # of the wanted size
_DELETED: Final = 0.3  # share of rows from which on a file is written anew
Gone = Callable[[LiveFile], RowNumbers]


class Rewriter:
    """Writes files of one table anew.

    New files have names of their own each time: two processes that write at once must not write the
    same file, and a name must not grow with each schema change. Only one of them can commit.
    """

    def __init__(
        self,
        files: Files,
        directory: str,
        lake: LakeColumns,
        note: CommitNote,
        key: tuple[str, ...],
    ) -> None:
        self._files = files
        self._directory = directory
        self._lake = lake
        self._note = note
        self._key = key
        self._columns: StoredColumns | None = None

    def is_due(self, state: TableState, wanted: int, file_size: int) -> bool:
        """Return whether a table has so many small or mostly deleted files that can be merged."""
        groups = merge_groups(_poor(state, file_size), file_size, _partition)
        return sum(len(g) for g in groups if len(g) > 1 or g[0].deleted) >= wanted

    def merged(
        self, state: TableState, file_size: int, key: tuple[str, ...], gone: Gone
    ) -> tuple[int, list[dict[str, Any]]]:
        """Return how many files are replaced, and the actions that do it; rows stay the same."""
        self._key = key
        poor = _poor(state, file_size)
        if len(poor) < 2 and not any(f.deleted for f in poor):
            return 0, []
        columns = state.columns
        if columns is None:
            return 0, []
        self._columns = columns
        new_actions: list[dict[str, Any]] = []
        count = 0
        for group in merge_groups(poor, file_size, _partition):
            if len(group) < 2 and not group[0].deleted:
                continue  # nothing to merge it with in its partition
            count += len(group)
            rows = pa.concat_tables([fitting(self._rows(f, gone), columns) for f in group])
            new_actions += [f.removal(self._note.at_ms, data_change=False) for f in group]
            name = f"merged-{state.version + 1:010d}-{uuid4().hex}.parquet"
            new_actions += self._put(
                name, in_key_order(rows, self._key), group[0].add, data_change=False
            )
        return count, new_actions

    def evolved(
        self, old: Sequence[LiveFile], evolution: Evolution, table: TableSchema, gone: Gone
    ) -> list[dict[str, Any]]:
        """Return the actions that put files with the new columns in place of the old ones.

        Raises:
            SchemaChangeRefused: what old rows have in a new column is not known.
        """
        values = {f.physical: fill_value(f, table, self._lake) for f in evolution.filled}
        wanted = {name.lower() for name in table.handle_key}
        if not self._lake.changelog:
            self._key = tuple(
                f.physical for f in evolution.columns.fields if f.name.lower() in wanted
            )
        self._columns = evolution.columns
        new_actions: list[dict[str, Any]] = []
        for file in old:
            rows = self._rows(file, gone)
            new_actions.append(file.removal(self._note.at_ms))
            rows = with_evolved(rows, evolution, values)
            name = f"evolved-{table.version}-{uuid4().hex}.parquet"
            new_actions += self._put(name, rows, file.add, data_change=True)
        return new_actions

    def _rows(self, file: LiveFile, gone: Gone) -> pa.Table:
        moment("read data file to write it anew")
        path = f"{self._directory}/{file.path}"
        stored = self._files.get(path)
        if stored is None:
            raise TargetLost(f"{self._files.shown(path)} is gone, a data file; {RESTORE}")
        rows = with_constants(read_parquet(stored.data), held_values(file.add, self._columns))
        return without_rows(rows, gone(file))

    def _put(
        self, name: str, rows: pa.Table, like: Mapping[str, Any], data_change: bool
    ) -> list[dict[str, Any]]:
        """Put a file of the partition that another one is of."""
        if not rows.num_rows:
            return []
        data = parquet_bytes(rows)
        moment("put rewritten file")
        self._files.overwrite(f"{self._directory}/{name}", data)
        if self._key:
            run = run_of(self._key, rows.select(list(self._key))).content()
            self._files.overwrite(run_path(self._directory, name), run)
        add = {
            "path": name,
            "partitionValues": like.get("partitionValues") or {},
            "size": len(data),
            "modificationTime": self._note.at_ms,
            "dataChange": data_change,
            "stats": note_of(rows)["stats"],
        }
        return [{"add": add}]


def _partition(file: LiveFile) -> str:
    return json.dumps(file.add.get("partitionValues") or {}, sort_keys=True)


def _poor(state: TableState, file_size: int) -> list[LiveFile]:
    """Return the files that are small, or of which many rows are deleted."""
    return [
        f
        for f in state.files.values()
        if f.size < file_size * _SMALL or f.deleted > f.records * _DELETED
    ]
