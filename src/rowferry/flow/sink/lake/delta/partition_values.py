"""Partition values as the log of a Delta table has them: texts, by the columns' names in files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa

from rowferry.flow.sink.lake.columns import arrow_type
from rowferry.flow.sink.lake.partitioning import FileLayout, Value
from rowferry.flow.sink.lake.stored_columns import StoredColumns, StoredField

PARTITION_BY: Final = "rowferry.partition-by"
FILE_SIZE: Final = "delta.targetFileSize"
_FIRST_DAY: Final = date(1970, 1, 1)
_FIRST: Final = datetime(1970, 1, 1)


def stored_layout(configuration: Mapping[str, str]) -> list[str]:
    """Return what a table is partitioned by, as its own properties tell it."""
    return [text for text in configuration.get(PARTITION_BY, "").split("\n") if text]


def partition_values(
    values: Sequence[Value], texts: Sequence[str], columns: StoredColumns
) -> dict[str, str | None]:
    """Return the log's words for the values of a partition."""
    fields = {f.name: f for f in columns.fields}
    chosen = [fields[field.column] for field in FileLayout.read(texts).fields]
    return {f.physical: _text(f, value) for f, value in zip(chosen, values, strict=True)}


def _text(field: StoredField, value: Value) -> str | None:
    if isinstance(value, int):
        if field.kind == "date":
            return (_FIRST_DAY + timedelta(days=value)).isoformat()
        if field.kind.startswith("timestamp"):
            moment = _FIRST + timedelta(microseconds=value)
            if field.kind == "timestamp":  # without a zone, a reader would take its own
                return f"{moment.isoformat(timespec='microseconds')}Z"
            return moment.isoformat(" ", "microseconds")
        return str(value)
    return value


def held_values(add: Mapping[str, Any], columns: StoredColumns | None) -> dict[str, pa.Scalar]:
    """Return what the rows of a data file have in the columns that the table is partitioned by.

    Others write files without these columns.
    """
    held = add.get("partitionValues") or {}
    fields = {f.physical: f for f in columns.fields} if columns is not None else {}
    return {
        name: _scalar(text or None, fields[name].kind)
        for name, text in held.items()
        if name in fields
    }


def _scalar(text: str | None, kind: str) -> pa.Scalar:
    wanted = arrow_type(kind)
    if text is None:
        return pa.scalar(None, wanted)
    if kind.startswith("decimal("):
        return pa.scalar(Decimal(text), wanted)
    if kind.startswith("timestamp"):
        plain = datetime.fromisoformat(text.replace("Z", ""))
        return pa.scalar(plain, pa.timestamp("us")).cast(wanted)
    return pa.scalar(text, pa.string()).cast(wanted)
