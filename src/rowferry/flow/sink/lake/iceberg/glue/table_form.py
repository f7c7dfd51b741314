"""A table as AWS Glue keeps it: the place of its metadata, and columns for those who look there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pyiceberg.schema import Schema
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.types import (
    BooleanType,
    DecimalType,
    FixedType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    StructType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

TABLE_TYPE: Final = "table_type"
METADATA: Final = "metadata_location"
_PREVIOUS: Final = "previous_metadata_location"
_KEPT: Final = ("Owner", "Retention", "Description")
_COPIED: Final = (*_KEPT, "TableType", "Parameters", "StorageDescriptor", "PartitionKeys")
_LONGEST_COMMENT: Final = 255
_LONGEST_DESCRIPTION: Final = 2048
# Other types have the same names in both.
_NAMES: Final[dict[type[IcebergType], str]] = {
    BooleanType: "boolean",
    IntegerType: "int",
    LongType: "bigint",
    TimeType: "string",
    UUIDType: "string",
    FixedType: "binary",
    TimestampType: "timestamp",
    TimestamptzType: "timestamp",
}


def is_iceberg(table: Mapping[str, Any]) -> bool:
    """Return whether one of Glue's tables is an Iceberg table."""
    return parameter(table, TABLE_TYPE).lower() == "iceberg" and bool(parameter(table, METADATA))


def parameter(table: Mapping[str, Any], name: str) -> str:
    """Return a parameter of one of Glue's tables; empty: it has none."""
    settings = table.get("Parameters")
    return str(settings.get(name) or "") if isinstance(settings, dict) else ""


def new_form(
    name: str, metadata: TableMetadata, location: str, old: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Return what makes a table, or replaces the form that it has; others' settings stay."""
    settings = dict((old or {}).get("Parameters") or {})
    if old is not None:
        settings[_PREVIOUS] = parameter(old, METADATA)
    form = {
        **{key: value for key, value in (old or {}).items() if key in _KEPT and value is not None},
        "Name": name,
        "TableType": "EXTERNAL_TABLE",
        "Parameters": {**settings, TABLE_TYPE: "ICEBERG", METADATA: location},
        "StorageDescriptor": {
            "Columns": _columns(metadata.schema()),
            "Location": metadata.location,
        },
    }
    if comment := metadata.properties.get("comment"):
        form["Description"] = comment[:_LONGEST_DESCRIPTION]
    return form


def renamed_form(name: str, old: Mapping[str, Any]) -> dict[str, Any]:
    """Return what makes the same table under another name."""
    kept = {key: value for key, value in old.items() if key in _COPIED and value is not None}
    return {**kept, "Name": name}


def _columns(schema: Schema) -> list[dict[str, Any]]:
    columns = []
    for field in schema.fields:
        column: dict[str, Any] = {
            "Name": field.name,
            "Type": _type_name(field.field_type),
            "Parameters": {
                "iceberg.field.id": str(field.field_id),
                "iceberg.field.optional": str(field.optional).lower(),
                "iceberg.field.current": "true",
            },
        }
        if comment := " ".join((field.doc or "").split())[:_LONGEST_COMMENT]:
            column["Comment"] = comment
        columns.append(column)
    return columns


def _type_name(kind: IcebergType) -> str:
    if isinstance(kind, StructType):
        inner = (f"{field.name}:{_type_name(field.field_type)}" for field in kind.fields)
        return f"struct<{','.join(inner)}>"
    if isinstance(kind, ListType):
        return f"array<{_type_name(kind.element_type)}>"
    if isinstance(kind, MapType):
        return f"map<{_type_name(kind.key_type)},{_type_name(kind.value_type)}>"
    if isinstance(kind, DecimalType):
        return f"decimal({kind.precision},{kind.scale})"
    return _NAMES.get(type(kind), str(kind))
