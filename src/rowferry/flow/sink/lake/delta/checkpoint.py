"""Checkpoints of a Delta table's log: the actions that make its state, as one Parquet file."""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

_TEXTS: Final = pa.map_(pa.string(), pa.string())
_VECTOR: Final = pa.struct(
    [
        ("storageType", pa.string()),
        ("pathOrInlineDv", pa.string()),
        ("offset", pa.int32()),
        ("sizeInBytes", pa.int32()),
        ("cardinality", pa.int64()),
    ]
)
_SCHEMA: Final = pa.schema(
    [
        (
            "txn",
            pa.struct(
                [("appId", pa.string()), ("version", pa.int64()), ("lastUpdated", pa.int64())]
            ),
        ),
        (
            "add",
            pa.struct(
                [
                    ("path", pa.string()),
                    ("partitionValues", _TEXTS),
                    ("size", pa.int64()),
                    ("modificationTime", pa.int64()),
                    ("dataChange", pa.bool_()),
                    ("stats", pa.string()),
                    ("deletionVector", _VECTOR),
                ]
            ),
        ),
        (
            "remove",
            pa.struct(
                [
                    ("path", pa.string()),
                    ("deletionTimestamp", pa.int64()),
                    ("dataChange", pa.bool_()),
                    ("extendedFileMetadata", pa.bool_()),
                    ("partitionValues", _TEXTS),
                    ("size", pa.int64()),
                    ("deletionVector", _VECTOR),
                ]
            ),
        ),
        (
            "metaData",
            pa.struct(
                [
                    ("id", pa.string()),
                    ("name", pa.string()),
                    ("description", pa.string()),
                    ("format", pa.struct([("provider", pa.string()), ("options", _TEXTS)])),
                    ("schemaString", pa.string()),
                    ("partitionColumns", pa.list_(pa.string())),
                    ("createdTime", pa.int64()),
                    ("configuration", _TEXTS),
                ]
            ),
        ),
        (
            "protocol",
            pa.struct(
                [
                    ("minReaderVersion", pa.int32()),
                    ("minWriterVersion", pa.int32()),
                    ("readerFeatures", pa.list_(pa.string())),
                    ("writerFeatures", pa.list_(pa.string())),
                ]
            ),
        ),
    ]
)


def checkpoint_bytes(actions: list[dict[str, Any]]) -> bytes:
    """Return a checkpoint of these actions, a row for each."""
    columns = []
    for kind in _SCHEMA:
        known = {f.name for f in kind.type}
        values = [_form(action.get(kind.name), known) for action in actions]
        columns.append(pa.array(values, kind.type))
    target = pa.BufferOutputStream()
    table = pa.Table.from_arrays(columns, schema=_SCHEMA)
    pq.write_table(table, target, compression="zstd", store_schema=False)
    content: bytes = target.getvalue().to_pybytes()
    return content


def _form(value: dict[str, Any] | None, known: set[str]) -> dict[str, Any] | None:
    """Return an action with maps as lists of pairs, as Arrow takes them."""
    if value is None:
        return None
    form: dict[str, Any] = {}
    for key, one in value.items():
        if key not in known:
            continue
        if key in ("partitionValues", "configuration"):
            one = list((one or {}).items())
        elif key == "format":
            one = {"provider": one["provider"], "options": list((one.get("options") or {}).items())}
        form[key] = one
    return form
