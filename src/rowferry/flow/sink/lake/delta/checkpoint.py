"""Checkpoints of a Delta table's log: the actions that make its state, as one Parquet file."""

from __future__ import annotations

from collections.abc import Iterable
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
REMOVAL: Final = _SCHEMA.field("remove").type


def checkpoint_bytes(
    actions: Iterable[dict[str, Any]], removed: Iterable[pa.StructArray]
) -> tuple[bytes, int]:
    """Return a checkpoint of these actions and removals, a row for each; and how many there are."""
    target = pa.BufferOutputStream()
    rows = list(actions)
    count = len(rows)
    with pq.ParquetWriter(target, _SCHEMA, compression="zstd", store_schema=False) as writer:
        columns = [action_array(kind.name, [r.get(kind.name) for r in rows]) for kind in _SCHEMA]
        writer.write_table(pa.Table.from_arrays(columns, schema=_SCHEMA))
        for group in removed:
            count += len(group)
            columns = [
                group if kind.name == "remove" else pa.nulls(len(group), kind.type)
                for kind in _SCHEMA
            ]
            writer.write_table(pa.Table.from_arrays(columns, schema=_SCHEMA))
    content: bytes = target.getvalue().to_pybytes()
    return content, count


def action_array(kind: str, actions: Iterable[dict[str, Any] | None]) -> pa.StructArray:
    """Return actions of one kind as a checkpoint has them."""
    form = _SCHEMA.field(kind).type
    known = {f.name for f in form}
    return pa.array([_form(action, known) for action in actions], form)


def plain_action(form: dict[str, Any]) -> dict[str, Any]:
    """Return an action of a checkpoint as a commit has it: maps as objects, no empty values.

    What others sum up there once more, with dates and decimals as such, no commit can hold.
    """
    action_form = {}
    for key, value in form.items():
        if value is None or key in ("stats_parsed", "partitionValues_parsed"):
            continue
        if key in ("partitionValues", "configuration", "options", "tags"):
            value = dict(value)
        elif key == "format":
            value = {"provider": value["provider"], "options": dict(value.get("options") or [])}
        elif key == "deletionVector":
            value = {k: v for k, v in value.items() if v is not None}
        action_form[key] = value
    return action_form


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
