"""Partitions of a lake's table as an Iceberg partition spec, and values of them."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Any, Final

from pyiceberg.partitioning import PARTITION_FIELD_ID_START, PartitionField, PartitionSpec
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.transforms import Transform, parse_transform
from pyiceberg.typedef import Record

from rowferry.flow.sink.lake.partitioning import IDENTITY, FileLayout, Value
from rowferry.flow.sink.lake.stored_columns import StoredColumns

PARTITION_BY: Final = "rowferry.partition-by"
FILE_SIZE: Final = "write.target-file-size-bytes"
_SUFFIX: Final = {"truncate": "trunc"}


def spec_of(
    layout: FileLayout,
    columns: StoredColumns,
    number: int = 0,
    first: int = PARTITION_FIELD_ID_START,
) -> PartitionSpec:
    """Return a layout's spec; `first` is the number of its first field."""
    fields = {f.name: f for f in columns.fields}
    made: list[PartitionField] = []
    for place, field in enumerate(layout.fields):
        name = field.column
        if field.transform != IDENTITY:
            name = f"{name}_{_SUFFIX.get(field.transform, field.transform)}"
            while name in fields or name in {one.name for one in made}:
                name += "_"
        made.append(
            PartitionField(
                source_id=fields[field.column].id,
                field_id=first + place,
                transform=_transform(field.transform, field.size),
                name=name,
            )
        )
    return PartitionSpec(*made, spec_id=number)


def _transform(name: str, size: int) -> Transform[Any, Any]:
    return parse_transform(f"{name}[{size}]" if size else name)


def next_spec(metadata: TableMetadata, layout: FileLayout, columns: StoredColumns) -> PartitionSpec:
    """Return the spec that a table gets for a layout: one that it has had, or a new one."""
    wanted = _meaning(spec_of(layout, columns))
    for known in metadata.partition_specs:
        if _meaning(known) == wanted:
            return known
    number = max(spec.spec_id for spec in metadata.partition_specs) + 1
    last = metadata.last_partition_id or PARTITION_FIELD_ID_START - 1
    return spec_of(layout, columns, number, last + 1)


def has_layout(spec: PartitionSpec, layout: FileLayout, columns: StoredColumns) -> bool:
    """Return whether a spec is the one of a layout."""
    try:
        return _meaning(spec) == _meaning(spec_of(layout, columns))
    except KeyError:
        return False


def _meaning(spec: PartitionSpec) -> list[tuple[int, str]]:
    return [(field.source_id, str(field.transform)) for field in spec.fields]


def record_of(values: Sequence[Value], layout: FileLayout, columns: StoredColumns) -> Record:
    """Return the values of a partition as manifests have them."""
    kinds = {f.name: f.kind for f in columns.fields}
    typed = [
        Decimal(value)
        if isinstance(value, str) and kinds[field.column].startswith("decimal")
        else value
        for field, value in zip(layout.fields, values, strict=True)
    ]
    return Record(*typed)


def partition_key(record: Record) -> tuple[Any, ...]:
    """Return what tells the partitions of one spec from each other."""
    return tuple(record[place] for place in range(len(record)))
