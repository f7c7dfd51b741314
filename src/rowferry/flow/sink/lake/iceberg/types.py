"""Columns of a lake's table as an Iceberg schema."""

from __future__ import annotations

from typing import Final

from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    LongType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
)

from rowferry.flow.sink.lake.commit import OF_OLD_ROW
from rowferry.flow.sink.lake.stored_columns import StoredColumns, StoredField

_PLAIN: Final[dict[str, IcebergType]] = {
    "long": LongType(),
    "float": FloatType(),
    "double": DoubleType(),
    "string": StringType(),
    "binary": BinaryType(),
    "date": DateType(),
    "timestamp": TimestamptzType(),
    "timestamp_ntz": TimestampType(),
}


def schema_of(columns: StoredColumns, schema_id: int) -> Schema:
    """Return the schema; numbers stay with their columns for ever."""
    return Schema(*_fields(columns), schema_id=schema_id)


def has_columns(schema: Schema, columns: StoredColumns) -> bool:
    """Return whether a schema is the one of these columns, comments apart."""
    return [_bare(f) for f in schema.fields] == [_bare(f) for f in _fields(columns)]


def field_ids(columns: StoredColumns) -> dict[str, int]:
    """Return the numbers of names in data files."""
    return {f.physical: f.id for f in columns.fields}


def iceberg_type(kind: str) -> IcebergType:
    """Return Iceberg's type for the name of a type; not for old rows."""
    if kind.startswith("decimal("):
        digits, scale = kind[len("decimal(") : -1].split(",")
        return DecimalType(int(digits), int(scale))
    return _PLAIN[kind]


def kind_of(kind: IcebergType) -> str:
    """Return the name of a type that Iceberg has; of one that no column of ours has, its text."""
    if isinstance(kind, DecimalType):
        return f"decimal({kind.precision},{kind.scale})"
    return next((name for name, one in _PLAIN.items() if one == kind), str(kind))


def _fields(columns: StoredColumns) -> list[NestedField]:
    plain = [f for f in columns.fields if f.source]
    made = []
    for field in columns.fields:
        kind: IcebergType
        if field.kind == "struct":
            kind = StructType(*(_field(f, iceberg_type(f.kind), OF_OLD_ROW) for f in plain))
        else:
            kind = iceberg_type(field.kind)
        made.append(_field(field, kind, 0))
    return made


def _field(field: StoredField, kind: IcebergType, above: int) -> NestedField:
    return NestedField(
        field_id=above + field.id,
        name=field.name,
        field_type=kind,
        required=False,
        doc=field.comment or None,
    )


def _bare(field: NestedField) -> tuple[int, str, str, bool]:
    inner = field.field_type
    shown = str([_bare(f) for f in inner.fields]) if isinstance(inner, StructType) else str(inner)
    return field.field_id, field.name, shown, field.required
