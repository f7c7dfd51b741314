"""Rows between Python values, Arrow images and the store's keys and values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rowferry.change.table import Partitioning, TableSchema
from rowferry.errors import BadInput
from rowferry.flow.capture.range_log.kv import RowDecoder
from rowferry.refstore.rows.kv_encode import encode_keys, encode_rows
from rowferry.refstore.storage.pairs import Pairs

Row: TypeAlias = Mapping[str, Any]
Rows: TypeAlias = Sequence[Row] | pa.StructArray


def image_of(table: TableSchema, rows: Rows) -> pa.StructArray:
    """Return rows as full images of a table version; a missing column takes its default or NULL.

    Raises:
        BadInput: a column that the table does not have, or a value of the wrong type.
    """
    if isinstance(rows, pa.StructArray):
        if rows.type == table.image:
            return rows
        given = {f.name.lower(): rows.field(f.name) for f in rows.type}
        count = len(rows)
    else:
        names = {name.lower() for row in rows for name in row}
        folded = [{k.lower(): v for k, v in row.items()} for row in rows]
        given = {n: [_value(table, n, row) for row in folded] for n in sorted(names)}
        count = len(rows)
    for name in given:
        table.column(name)
    columns = [
        _column(table, c.name, given.get(c.name.lower(), [c.default] * count))
        for c in table.columns
    ]
    return pa.StructArray.from_arrays(columns, fields=list(table.image))


def _value(table: TableSchema, name: str, row: dict[str, Any]) -> Any:
    return row[name] if name in row else table.column(name).default


def _column(table: TableSchema, name: str, values: Any) -> pa.Array:
    wanted = table.column(name).type.arrow
    try:
        if isinstance(values, pa.Array):
            return values.cast(wanted)
        return pa.array(values, wanted)
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError) as err:
        raise BadInput(f"{table.id}, column {name!r}: {err}") from None


def keys_of(table: TableSchema, rows: Sequence[Row]) -> list[bytes]:
    """Return the keys of rows that hold at least the primary key (and the partition column)."""
    if not table.primary_key:
        raise BadInput(f"table {table.id} has no primary key: its rows cannot be named")
    names = [*table.primary_key]
    if table.partitioning is not None and table.partitioning.column not in names:
        names.append(table.partitioning.column)
    missing = [n for n in names if any(n.lower() not in {k.lower() for k in r} for r in rows)]
    if missing:
        raise BadInput(f"{table.id}: a row lacks the key column {missing[0]!r}")
    folded = [{k.lower(): v for k, v in row.items()} for row in rows]
    columns = [_column(table, n, [row[n.lower()] for row in folded]) for n in names]
    image = pa.StructArray.from_arrays(columns, names=names)
    keys: list[bytes] = [b""] * len(rows)
    for physical_id, where in placed(table, image):
        part = image.take(pa.array(where))
        for place, key in zip(where, encode_keys(table, physical_id, part), strict=True):
            keys[place] = key.as_py()
    return keys


def placed(table: TableSchema, image: pa.StructArray) -> Iterator[tuple[int, npt.NDArray[Any]]]:
    """Yield, for each table partition that rows fall into, its physical id and their places."""
    parts = table.partitioning
    everything = np.arange(len(image))
    if parts is None:
        yield table.table_id, everything
        return
    values = image.field(parts.column)
    if values.null_count:
        values = values.fill_null(0 if parts.method == "hash" else -(1 << 63))
    number = _partition(table, parts, values.to_numpy())
    for place in np.unique(number):
        yield parts.partitions[place].physical_id, everything[number == place]


def _partition(
    table: TableSchema, parts: Partitioning, values: npt.NDArray[Any]
) -> npt.NDArray[np.int64]:
    count = len(parts.partitions)
    if parts.method == "hash":
        # The sign is dropped as MySQL's MOD does it: the remainder of the absolute value.
        return np.asarray(np.abs(values) % count, np.int64)
    bounds = [p.less_than for p in parts.partitions if p.less_than is not None]
    number = np.searchsorted(np.array(bounds, values.dtype), values, side="right")
    beyond = np.flatnonzero(number >= count)
    if beyond.size:
        raise BadInput(f"{table.id}: no partition for {parts.column} = {values[beyond[0]]}")
    return np.asarray(number, np.int64)


def encoded(
    table: TableSchema, image: pa.StructArray, row_ids: npt.NDArray[np.int64] | None
) -> tuple[pa.Array, pa.Array]:
    """Return the keys and values of full images; the order of rows may change."""
    keys, values = [], []
    for physical_id, where in placed(table, image):
        whole = len(where) == len(image)
        part = image if whole else image.take(pa.array(where))
        ids = pa.array(row_ids[where]) if row_ids is not None else None
        part_keys, part_values = encode_rows(table, physical_id, part, ids)
        keys.append(part_keys)
        values.append(part_values)
    if not keys:
        none = pa.array([], pa.large_binary())
        return none, none
    return pa.concat_arrays(keys), pa.concat_arrays(values)


def decoded(table: TableSchema, key_values: Sequence[tuple[bytes, bytes]]) -> list[dict[str, Any]]:
    """Return rows as Python values, from their keys and values."""
    pairs = Pairs.of(key_values)
    image = RowDecoder(table).decode(
        pairs.blob, pairs.key_at, pairs.key_len, pairs.value_at, pairs.value_len
    )
    rows: list[dict[str, Any]] = image.to_pylist()
    return rows
