"""Data files of a Delta table written anew, with other columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any
from uuid import uuid4

import pyarrow as pa

from rowferry.change.table import TableSchema
from rowferry.errors import TargetLost
from rowferry.flow.sink.contract import RESTORE
from rowferry.flow.sink.lake.columns import LakeColumns, fill_value
from rowferry.flow.sink.lake.commit import CommitNote
from rowferry.flow.sink.lake.data_file import read_parquet, with_constants, without_rows
from rowferry.flow.sink.lake.delta.deletion_vector import RowNumbers
from rowferry.flow.sink.lake.delta.log import LiveFile
from rowferry.flow.sink.lake.delta.partition_values import held_values
from rowferry.flow.sink.lake.rewriting import put_data_file, with_evolved
from rowferry.flow.sink.lake.stored_columns import Evolution, StoredColumns
from rowferry.flow.sink.storage.files import Files
from rowferry.moment import moment

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

    def evolved(
        self, old: Sequence[LiveFile], evolution: Evolution, table: TableSchema, gone: Gone
    ) -> list[dict[str, Any]]:
        """Return the actions that put files with the new columns in place of the old ones.

        Raises:
            SchemaChangeRefused: what old rows have in a new column is not known.
        """
        values = {f.physical: fill_value(f.column, table, self._lake) for f in evolution.filled}
        wanted = {name.lower() for name in table.handle_key}
        if not self._lake.changelog:
            self._key = tuple(
                f.physical for f in evolution.columns.fields if f.name.lower() in wanted
            )
        new_actions: list[dict[str, Any]] = []
        for file in old:
            rows = live_rows(self._files, self._directory, file, evolution.columns, gone)
            new_actions.append(file.removal(self._note.at_ms))
            rows = with_evolved(rows, evolution, values)
            name = f"evolved-{table.version}-{uuid4().hex}.parquet"
            new_actions += self._put(name, rows, file.add)
        return new_actions

    def _put(self, name: str, rows: pa.Table, like: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Put a file of the partition that another one is of."""
        if not rows.num_rows:
            return []
        made = put_data_file(self._files, self._directory, name, rows, self._key)
        return [{"add": added(name, made, like, self._note, data_change=True)}]


def live_rows(
    files: Files,
    directory: str,
    file: LiveFile,
    columns: StoredColumns | None,
    gone: Gone,
) -> pa.Table:
    """Return the rows of a data file that count."""
    moment("read data file to write it anew")
    path = f"{directory}/{file.path}"
    stored = files.get(path)
    if stored is None:
        raise TargetLost(f"{files.shown(path)} is gone, a data file; {RESTORE}")
    rows = with_constants(read_parquet(stored.data), held_values(file.add, columns))
    return without_rows(rows, gone(file))


def added(
    name: str,
    made: Mapping[str, Any],
    like: Mapping[str, Any],
    note: CommitNote,
    data_change: bool,
) -> dict[str, Any]:
    """Return the action that adds a file of the partition that another one is of."""
    return {
        "path": name,
        "partitionValues": like.get("partitionValues") or {},
        "size": made["size"],
        "modificationTime": note.at_ms,
        "dataChange": data_change,
        "stats": made["stats"],
    }
