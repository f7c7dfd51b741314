"""What a manifest says about a data file of ours: counts and bounds of its columns."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import date, datetime
from typing import Any

from pyiceberg.conversions import to_bytes
from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
from pyiceberg.typedef import Record
from pyiceberg.types import DateType, IcebergType, LongType, StringType

from rowferry.flow.sink.lake.iceberg.types import iceberg_type
from rowferry.flow.sink.lake.stored_columns import StoredColumns


def data_entry(
    location: str,
    rows: int,
    size: int,
    stats: str,
    columns: StoredColumns,
    partition: Record | None = None,
) -> DataFile:
    """Return a manifest's words about a data file; `stats` as a receipt tells them."""
    known: Mapping[str, Any] = json.loads(stats) if stats else {}
    fields = {f.physical: f for f in columns.fields if f.kind != "struct"}
    nulls = {fields[n].id: c for n, c in known.get("nullCount", {}).items() if n in fields}
    return DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=location,
        file_format=FileFormat.PARQUET,
        partition=partition if partition is not None else Record(),
        record_count=rows,
        file_size_in_bytes=size,
        column_sizes={},  # pyiceberg's own table of entries cannot be without
        value_counts=dict.fromkeys(nulls, rows),
        null_value_counts=nulls,
        lower_bounds=_bounds(known.get("minValues", {}), fields),
        upper_bounds=_bounds(known.get("maxValues", {}), fields),
        sort_order_id=0,
    )


def _bounds(values: Mapping[str, Any], fields: Mapping[str, Any]) -> dict[int, bytes]:
    made = {}
    for name, value in values.items():
        if name in fields:
            kind = iceberg_type(fields[name].kind)
            made[fields[name].id] = to_bytes(kind, _value(kind, value))  # type: ignore[arg-type]
    return made


def _value(kind: IcebergType, value: Any) -> Any:
    if isinstance(kind, LongType | StringType):
        return value
    if isinstance(kind, DateType):
        return date.fromisoformat(value)
    return datetime.fromisoformat(value.removesuffix("Z")).replace(tzinfo=None)
