"""What a commit asks of a catalog, and what it expects: the messages of Iceberg's REST protocol."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar
from uuid import UUID

from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.refs import MAIN_BRANCH
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.table.update import (
    AddPartitionSpecUpdate,
    AddSchemaUpdate,
    AddSnapshotUpdate,
    AddSortOrderUpdate,
    AssertCreate,
    AssertCurrentSchemaId,
    AssertRefSnapshotId,
    AssertTableUUID,
    AssignUUIDUpdate,
    RemovePropertiesUpdate,
    RemoveSnapshotsUpdate,
    SetCurrentSchemaUpdate,
    SetDefaultSortOrderUpdate,
    SetDefaultSpecUpdate,
    SetLocationUpdate,
    SetPropertiesUpdate,
    SetSnapshotRefUpdate,
    TableRequirement,
    TableUpdate,
    UpgradeFormatVersionUpdate,
)
from pyiceberg.typedef import IcebergBaseModel

M = TypeVar("M", bound=IcebergBaseModel)


def built(kind: type[M], **fields: Any) -> M:
    """Return a message; its fields have the names of Iceberg's own JSON, with _ for -."""
    return kind.model_validate({name.replace("_", "-"): value for name, value in fields.items()})


def new_table(location: str, identity: UUID) -> list[TableUpdate]:
    """Return what makes a table, before it has columns."""
    return [
        built(AssignUUIDUpdate, uuid=identity),
        built(UpgradeFormatVersionUpdate, format_version=2),
        built(SetLocationUpdate, location=location),
    ]


def new_schema(schema: Schema) -> list[TableUpdate]:
    """Return what gives a table its columns."""
    return [built(AddSchemaUpdate, schema=schema), built(SetCurrentSchemaUpdate, schema_id=-1)]


def new_partitions(spec: PartitionSpec) -> list[TableUpdate]:
    """Return what partitions a table."""
    return [built(AddPartitionSpecUpdate, spec=spec), built(SetDefaultSpecUpdate, spec_id=-1)]


def known_partitions(spec: PartitionSpec) -> list[TableUpdate]:
    """Return what partitions a table as it once was."""
    return [built(SetDefaultSpecUpdate, spec_id=spec.spec_id)]


def new_layout(spec: PartitionSpec) -> list[TableUpdate]:
    """Return what a new table needs beside columns: partitions, no order."""
    return [
        *new_partitions(spec),
        built(AddSortOrderUpdate, sort_order=UNSORTED_SORT_ORDER),
        built(SetDefaultSortOrderUpdate, sort_order_id=-1),
    ]


def settings_changed(given: Mapping[str, str], removed: Sequence[str]) -> list[TableUpdate]:
    """Return what changes a table's properties."""
    updates: list[TableUpdate] = []
    if removed:
        updates.append(built(RemovePropertiesUpdate, removals=list(removed)))
    if given:
        updates.append(built(SetPropertiesUpdate, updates=dict(given)))
    return updates


def new_snapshot(snapshot: Snapshot, expired: Sequence[int]) -> list[TableUpdate]:
    """Return what makes a snapshot the present one, and forgets others."""
    updates: list[TableUpdate] = [
        built(AddSnapshotUpdate, snapshot=snapshot),
        built(
            SetSnapshotRefUpdate,
            ref_name=MAIN_BRANCH,
            type="branch",
            snapshot_id=snapshot.snapshot_id,
        ),
    ]
    return updates + list(forgotten(expired))


def forgotten(snapshots: Sequence[int]) -> tuple[TableUpdate, ...]:
    """Return what takes snapshots out of a table's history."""
    if not snapshots:
        return ()
    return (built(RemoveSnapshotsUpdate, snapshot_ids=list(snapshots)),)


def absent() -> tuple[TableRequirement, ...]:
    """Return the expectation that there is no table."""
    return (AssertCreate(),)


def unchanged(metadata: TableMetadata) -> tuple[TableRequirement, ...]:
    """Return the expectation that nobody has committed rows or columns since."""
    return (
        built(AssertTableUUID, uuid=metadata.table_uuid),
        built(AssertRefSnapshotId, ref=MAIN_BRANCH, snapshot_id=metadata.current_snapshot_id),
        built(AssertCurrentSchemaId, current_schema_id=metadata.current_schema_id),
    )
