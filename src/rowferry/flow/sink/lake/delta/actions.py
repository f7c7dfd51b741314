"""Actions of commits to a Delta table, as its log has them."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, Final
from uuid import NAMESPACE_URL, uuid5

from rowferry.change.table import TableSchema
from rowferry.flow.sink.lake.commit import MARK, CommitNote, NewFile
from rowferry.flow.sink.lake.delta.log import TableState
from rowferry.flow.sink.lake.delta.partition_values import FILE_SIZE, PARTITION_BY
from rowferry.flow.sink.lake.partitioning import FileLayout
from rowferry.flow.sink.lake.stored_columns import NUMBERINGS, StoredColumns

CHANGEFEED, DROPPED = MARK, "rowferry.dropped"
Action = dict[str, Any]
_TIGHT: Final = re.compile(r'"tightBounds"\s*:\s*true')  # no column of ours holds truth values


@dataclass(frozen=True, slots=True)
class TableShape:
    """What settings say of a table.

    Attributes:
        mode: `upsert` or `changelog`.
    """

    name: str
    mode: str
    layout: FileLayout


def commit_head(note: CommitNote, operation: str, parameters: dict[str, str]) -> list[Action]:
    """Return the first action of a commit: who made it, and why."""
    commit_info = {
        "timestamp": note.at_ms,
        "operation": operation,
        "operationParameters": parameters,
        "engineInfo": "rowferry",
        "rowferry.changefeed": note.changefeed,
        "rowferry.epoch": note.epoch,
        "rowferry.micro-batch": note.micro_batch,
        "rowferry.checkpoint-ts": note.checkpoint_ts,
        "rowferry.since-ts": note.since_ts,
        "rowferry.settled": note.settled,
    }
    return [{"commitInfo": commit_info}]


def metadata_actions(
    state: TableState,
    note: CommitNote,
    columns: StoredColumns,
    table: TableSchema,
    shape: TableShape,
    fresh: bool,
) -> list[Action]:
    """Return the actions that give the table its columns; none where it has them."""
    settings = {
        "delta.enableDeletionVectors": "true",
        CHANGEFEED: note.changefeed,
        "rowferry.max-column-id": str(columns.max_id),
        NUMBERINGS: " ".join(columns.numberings),
        "rowferry.mode": shape.mode,
        "rowferry.key": "\n".join(table.handle_key),
    }
    layout = shape.layout
    if layout.fields:
        settings[PARTITION_BY] = "\n".join(layout.texts)
    if layout.file_size:
        settings[FILE_SIZE] = str(layout.file_size)
    if columns.mapped:
        settings["delta.columnMapping.mode"] = "name"
        settings["delta.columnMapping.maxColumnId"] = str(columns.last_id)
    schema = columns.schema_text()
    kept = {} if fresh else state.configuration
    kept.pop(DROPPED, None)
    if not layout.fields:
        kept.pop(PARTITION_BY, None)
    wanted = {**kept, **settings}
    new_actions: list[Action] = []
    if not state.exists or not _has_features(state, columns):
        new_actions.append({"protocol": _protocol(state, columns)})
    same = state.exists and state.metadata["schemaString"] == schema
    if not same or state.configuration != wanted:
        identity = state.metadata.get("id") or str(uuid5(NAMESPACE_URL, f"{note}{shape.name}"))
        metadata = {
            "id": identity,
            "name": shape.name,
            "format": {"provider": "parquet", "options": {}},
            "schemaString": schema,
            "partitionColumns": layout.texts,
            "createdTime": state.metadata.get("createdTime", note.at_ms),
            "configuration": wanted,
        }
        if table.comment:
            metadata["description"] = table.comment
        new_actions.append({"metaData": metadata})
    return new_actions


def added_file(file: NewFile, at_ms: int, partition: dict[str, str | None]) -> Action:
    """Return the content of an `add` action."""
    return {
        "path": file.path,
        "partitionValues": partition,
        "size": file.size,
        "modificationTime": at_ms,
        "dataChange": True,
        "stats": file.stats,
    }


def transaction(name: str, version: int, note: CommitNote) -> Action:
    """Return the action that notes how far an application is."""
    return {"txn": {"appId": name, "version": version, "lastUpdated": note.at_ms}}


def wide_stats(stats: str) -> str:
    """Return statistics with bounds that need not be those of the rows that are left.

    Others say of their files that bounds are tight. Numbers stay as they are written.
    """
    if "tightBounds" in json.loads(stats):
        return _TIGHT.sub('"tightBounds": false', stats)
    return stats[:-1] + ', "tightBounds": false}'


def _features(columns: StoredColumns) -> set[str]:
    more = {"timestampNtz"} if "timestamp_ntz" in columns.kinds else set()
    return {"deletionVectors"} | more | ({"columnMapping"} if columns.mapped else set())


def _has_features(state: TableState, columns: StoredColumns) -> bool:
    return _features(columns) <= set(state.protocol.get("writerFeatures") or ())


def _protocol(state: TableState, columns: StoredColumns) -> Action:
    names = sorted(_features(columns) | set(state.protocol.get("readerFeatures") or ()))
    writer = sorted(set(names) | set(state.protocol.get("writerFeatures") or ()))
    return {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": names,
        "writerFeatures": writer,
    }
