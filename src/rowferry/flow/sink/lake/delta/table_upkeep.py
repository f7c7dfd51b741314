"""Upkeep of one Delta table: small files merged, deletion vectors purged, the log summed up."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from rowferry.flow.sink.contract import TableStatus
from rowferry.flow.sink.lake.commit import CommitNote, Guard, TargetSettings
from rowferry.flow.sink.lake.delta.actions import CHANGEFEED, Action, commit_head
from rowferry.flow.sink.lake.delta.log import DeltaLog, LiveFile, TableState
from rowferry.flow.sink.lake.delta.partition_values import FILE_SIZE
from rowferry.flow.sink.lake.delta.rewrite import added, live_rows
from rowferry.flow.sink.lake.delta.target import DeltaTarget
from rowferry.flow.sink.lake.layout import table_at
from rowferry.flow.sink.lake.rewriting import fitting, merge_groups
from rowferry.flow.sink.lake.stored_columns import StoredColumns
from rowferry.flow.sink.lake.table_upkeep import DELETED, SMALL, Merge, TableUpkeep, merged_name
from rowferry.flow.sink.storage.files import Files


class DeltaTableUpkeep(TableUpkeep):
    """Upkeep of one Delta table."""

    def __init__(self, files: Files, target: DeltaTarget, settings: TargetSettings) -> None:
        super().__init__(files)
        self._target, self._settings = target, settings

    def status(self, checkpoint_ts: int | None = None) -> TableStatus | None:
        """Return what the table is made of, as it was last seen."""
        state = self._target.state
        if not state.exists:
            return None
        if checkpoint_ts is None:
            log = DeltaLog(self._files, self._target.directory)
            stated_ts = log.commit_info(state.version).get("rowferry.checkpoint-ts")
            checkpoint_ts = stated_ts if isinstance(stated_ts, int) else 0
        live = list(state.files.values())
        deleted = sum(f.deleted for f in live)
        return TableStatus(
            self._target.directory,
            str(table_at(self._target.directory)),
            state.configuration.get(CHANGEFEED, ""),
            state.configuration.get("rowferry.mode", ""),
            state.version,
            len(live),
            sum(f.records for f in live) - deleted,
            deleted,
            sum(f.size for f in live),
            checkpoint_ts,
        )

    def due(self, tag: str, wanted: int) -> list[Merge]:
        """Return what is to be merged, if at least so many files are."""
        state = self._target.state
        columns = state.columns if state.exists else None
        if columns is None:
            return []
        size = self._settings.size_of(state.configuration.get(FILE_SIZE, ""))
        groups = [
            group
            for group in merge_groups(_poor(state, size), size, _partition)
            if len(group) > 1 or group[0].deleted  # else there is nothing to merge it with
        ]
        if sum(map(len, groups)) < wanted:
            return []
        return [self._merge(state, columns, group, tag) for group in groups]

    def _merge(
        self, state: TableState, columns: StoredColumns, group: Sequence[LiveFile], tag: str
    ) -> Merge:
        text, directory = state.metadata["schemaString"], self._target.directory
        seen = [json.dumps([f.path, f.vector], sort_keys=True) for f in group]
        return Merge(
            directory,
            directory,
            merged_name(tag, text, seen),
            self._key_of(state, columns),
            text,
            columns.mapped,
            columns.max_id,
            tuple(f.add for f in group),
            sum(f.size for f in group),
            state.version,
        )

    def rows(self, merge: Merge) -> pa.Table:
        """Return the rows of the files that are replaced."""
        columns, gone = merge.stored_columns(), self._target.rows_gone
        given = map(LiveFile, merge.files)
        parts = [live_rows(self._files, merge.root, file, columns, gone) for file in given]
        return pa.concat_tables([fitting(part, columns) for part in parts])

    def commit(
        self, note: CommitNote, done: Sequence[tuple[Merge, dict[str, Any]]], guard: Guard
    ) -> int:
        """Put new files in the place of old ones, in one commit."""
        count = 0
        left_out: list[Merge] = []

        def actions(state: TableState) -> list[Action] | None:
            nonlocal count
            count = 0
            left_out.clear()
            steps: list[Action] = []
            for merge, made in done:
                old = _unchanged(state, merge)
                if old is None:
                    left_out.append(merge)
                    continue
                count += len(old)
                steps += [file.removal(note.at_ms, data_change=False) for file in old]
                if made["rows"]:
                    add = added(merge.name, made, old[0].add, note, data_change=False)
                    steps.append({"add": add})
            return commit_head(note, "OPTIMIZE", {}) + steps if steps else None

        self._target.commit(note, actions, guard)
        return count + self._settle(left_out, guard)

    def was_committed(self, merge: Merge) -> bool:
        """Return whether a commit has put a merge's file in its place, or may have."""
        state = self._target.state
        if merge.name in state.files:
            return True
        log = DeltaLog(self._files, self._target.directory)
        return log.may_have_added(merge.name, merge.version, state.version)

    def sum_up(self, since: int, now_ms: int) -> int:
        """Write a checkpoint of the log where one is due."""
        version, every = self._target.state.version, self._settings.checkpoint_interval
        before = since if since >= 0 else version - 1
        if version > 0 and version // every > before // every:
            self._target.write_checkpoint(now_ms)
        return version

    def _key_of(self, state: TableState, columns: StoredColumns) -> tuple[str, ...]:
        """Return the key's columns as the table itself tells them."""
        if self._settings.lake.changelog:
            return ()
        wanted = set(state.configuration.get("rowferry.key", "").split("\n"))
        return tuple(f.physical for f in columns.fields if f.name in wanted)


def _unchanged(state: TableState, merge: Merge) -> list[LiveFile] | None:
    """Return the files of a merge where the table has them as they were; None: it has not."""
    if state.metadata.get("schemaString") != merge.columns:
        return None
    known = [state.files.get(add["path"]) for add in merge.files]
    same = [
        file
        for file, add in zip(known, merge.files, strict=True)
        if file is not None and file.vector == LiveFile(add).vector
    ]
    return same if len(same) == len(merge.files) else None


def _partition(file: LiveFile) -> str:
    return json.dumps(file.add.get("partitionValues") or {}, sort_keys=True)


def _poor(state: TableState, file_size: int) -> list[LiveFile]:
    """Return the files that are small, or of which many rows are deleted."""
    return [
        f
        for f in state.files.values()
        if f.size < file_size * SMALL or f.deleted > f.records * DELETED
    ]
