"""Upkeep of one Iceberg table: small files merged, and position deletes summed up."""

from __future__ import annotations

import zlib
from base64 import b64decode, b64encode
from collections.abc import Sequence
from typing import Any
from uuid import uuid4

import numpy as np
import pyarrow as pa
from pyiceberg.manifest import DataFile
from pyiceberg.table.snapshots import Operation
from pyiceberg.typedef import Record

from rowferry.flow.sink.contract import TableStatus
from rowferry.flow.sink.lake.commit import CommitNote, Guard, TargetSettings
from rowferry.flow.sink.lake.iceberg.bounds import data_entry
from rowferry.flow.sink.lake.iceberg.changed_rows import key_names
from rowferry.flow.sink.lake.iceberg.file_io import FilesIO
from rowferry.flow.sink.lake.iceberg.partition_spec import FILE_SIZE, partition_key
from rowferry.flow.sink.lake.iceberg.position_deletes import (
    Positions,
    deletes_content,
    deletes_entry,
)
from rowferry.flow.sink.lake.iceberg.rewrite import by_partition, live_rows, with_numbers
from rowferry.flow.sink.lake.iceberg.snapshot import SnapshotDraft
from rowferry.flow.sink.lake.iceberg.snapshot_commits import TableChange
from rowferry.flow.sink.lake.iceberg.state import (
    CHANGEFEED,
    COLUMNS,
    KEY,
    MODE,
    IcebergFile,
    IcebergState,
)
from rowferry.flow.sink.lake.iceberg.target import IcebergTarget
from rowferry.flow.sink.lake.layout import table_at
from rowferry.flow.sink.lake.rewriting import fitting, merge_groups
from rowferry.flow.sink.lake.stored_columns import StoredColumns
from rowferry.flow.sink.lake.table_upkeep import DELETED, SMALL, Merge, TableUpkeep, merged_name
from rowferry.flow.sink.storage.files import Files
from rowferry.moment import moment


class IcebergTableUpkeep(TableUpkeep):
    """Upkeep of one Iceberg table."""

    def __init__(
        self, files: Files, io: FilesIO, target: IcebergTarget, settings: TargetSettings
    ) -> None:
        super().__init__(files)
        self._io, self._target, self._settings = io, target, settings

    def status(self, checkpoint_ts: int | None = None) -> TableStatus | None:
        """Return what the table is made of, as it was last seen."""
        state = self._target.state
        if not state.exists:
            return None
        live = list(state.files.values())
        deleted = sum(len(self._target.rows_gone(f)) for f in live)
        return TableStatus(
            self._target.directory,
            str(table_at(self._target.directory)),
            state.properties.get(CHANGEFEED, ""),
            state.properties.get(MODE, ""),
            state.sequence_number,
            len(live),
            sum(f.records for f in live) - deleted,
            deleted,
            sum(f.size for f in live),
            _checkpoint_ts(state) if checkpoint_ts is None else checkpoint_ts,
        )

    def due(self, tag: str, wanted: int) -> list[Merge]:
        """Return what is to be merged, if at least so many files, also of deletes, are."""
        state = self._target.state
        columns = state.columns
        if columns is None:
            return []
        size = self._settings.size_of(state.properties.get(FILE_SIZE, ""))
        poor = [
            f
            for f in state.files.values()
            if f.size < size * SMALL or len(self._target.rows_gone(f)) > f.records * DELETED
        ]
        groups = [
            group
            for group in merge_groups(poor, size, lambda f: partition_key(f.partition))
            if len(group) > 1 or len(self._target.rows_gone(group[0]))
        ]
        if max(sum(map(len, groups)), len(state.deletes)) < wanted:
            return []
        if not groups and len(state.deletes) > max(len(self._left(state, ())), 1):
            groups = [[]]  # only deletes are summed up
        return [self._merge(state, columns, group, tag) for group in groups]

    def _merge(
        self, state: IcebergState, columns: StoredColumns, group: Sequence[IcebergFile], tag: str
    ) -> Merge:
        key: tuple[str, ...] = ()
        if not self._settings.lake.changelog:
            key = key_names(state.properties.get(KEY, "").split("\n"), columns)
        text = state.properties[COLUMNS]
        gone = [self._target.rows_gone(f) for f in group]
        seen = [f"{f.path} {len(rows)}" for f, rows in zip(group, gone, strict=True)]
        return Merge(
            self._target.directory,
            self._target.root(""),
            merged_name(tag, text, seen),
            key,
            text,
            columns.mapped,
            columns.max_id,
            tuple(
                {"path": f.path, "gone": _packed(rows)} for f, rows in zip(group, gone, strict=True)
            ),
            sum(f.size for f in group),
            state.sequence_number,
        )

    def rows(self, merge: Merge) -> pa.Table:
        """Return the rows of the files that are replaced."""
        columns = merge.stored_columns()
        parts = [
            live_rows(self._files, one["path"], columns, _unpacked(one["gone"]))
            for one in merge.files
        ]
        return pa.concat_tables([fitting(part, columns) for part in parts])

    def in_file(self, rows: pa.Table, merge: Merge) -> pa.Table:
        """Return rows with the numbers of their columns."""
        return with_numbers(rows, merge.stored_columns())

    def commit(
        self, note: CommitNote, done: Sequence[tuple[Merge, dict[str, Any]]], guard: Guard
    ) -> int:
        """Put new files in the place of old ones, in one snapshot.

        All position deletes of a partition become one file, of the rows in files that stay.
        """
        count = 0
        left_out: list[Merge] = []

        def change(state: IcebergState) -> TableChange | None:
            nonlocal count
            left_out.clear()
            draft = SnapshotDraft(Operation.REPLACE)
            for merge, made in done:
                old = self._unchanged(state, merge)
                if old is None:
                    left_out.append(merge)
                    continue
                draft.removed += old
                if made["rows"]:
                    draft.added.append(self._entry(merge, made, old[0].partition))
            left = self._left(state, [f.path for f in draft.removed])
            if len(state.deletes) > max(len(left), 1) or (draft.removed and state.deletes):
                draft.removed_deletes = list(state.deletes)
                draft.added_deletes = [self._put_deletes(gone, record) for record, gone in left]
            count = len(draft.removed) + len(draft.removed_deletes)
            return TableChange(draft) if draft.has_changes else None

        self._target.commit(note, change, guard)
        return count + self._settle((merge for merge in left_out if merge.files), guard)

    def was_committed(self, merge: Merge) -> bool:
        """Return whether a commit has put a merge's file in its place."""
        return self._target.has_held(merge.path, merge.version)

    def _unchanged(self, state: IcebergState, merge: Merge) -> list[IcebergFile] | None:
        """Return the files of a merge where the table has them as they were; None: it has not."""
        if state.properties.get(COLUMNS) != merge.columns:
            return None
        same = [
            file
            for one in merge.files
            if (file := state.files.get(one["path"])) is not None
            and _packed(self._target.rows_gone(file)) == one["gone"]
        ]
        return same if len(same) == len(merge.files) else None

    def _left(
        self, state: IcebergState, replaced: Sequence[str]
    ) -> list[tuple[Record, dict[str, Positions]]]:
        """Return the rows that are gone from the files that stay, by partition."""
        there = set(state.files) - set(replaced)
        stay = (f for f in state.files.values() if f.path in there)
        return by_partition(
            (f.location, f.partition, rows) for f in stay if len(rows := self._target.rows_gone(f))
        )

    def _entry(self, merge: Merge, made: dict[str, Any], partition: Record) -> DataFile:
        place = self._io.location(merge.path)
        columns = merge.stored_columns()
        return data_entry(place, made["rows"], made["size"], made["stats"], columns, partition)

    def _put_deletes(self, gone: dict[str, Positions], partition: Record) -> DataFile:
        path = f"{self._target.root('')}/deletes-{uuid4().hex}.parquet"
        content = deletes_content(gone)
        moment("put merged position deletes")
        self._files.overwrite(path, content)
        return deletes_entry(self._io.location(path), gone, len(content), partition)


def _checkpoint_ts(state: IcebergState) -> int:
    snapshot = state.metadata.current_snapshot()
    about = snapshot.summary if snapshot is not None else None
    text = (about.get("rowferry.checkpoint-ts") or "") if about is not None else ""
    return int(text) if text.isdecimal() else 0


def _packed(rows: Positions) -> str:
    """Return row numbers as a short text."""
    return b64encode(zlib.compress(np.diff(rows, prepend=0).astype("<i8").tobytes())).decode()


def _unpacked(text: str) -> Positions:
    return np.cumsum(np.frombuffer(zlib.decompress(b64decode(text)), "<i8")).astype(np.int64)
