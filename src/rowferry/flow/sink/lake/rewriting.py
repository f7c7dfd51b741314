"""Rows of a lake's table made to fit its columns as they are now."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import pyarrow as pa

from rowferry.flow.sink.lake.columns import arrow_type
from rowferry.flow.sink.lake.data_file import parquet_bytes
from rowferry.flow.sink.lake.draft import note_of
from rowferry.flow.sink.lake.keys import keys_of
from rowferry.flow.sink.lake.runs import run_of, run_path
from rowferry.flow.sink.lake.stored_columns import Evolution, StoredColumns
from rowferry.flow.sink.storage.files import Files
from rowferry.moment import moment


class Sized(Protocol):
    """A data file."""

    @property
    def size(self) -> int:
        """Its bytes."""


F = TypeVar("F", bound=Sized)


def fitting(rows: pa.Table, columns: StoredColumns) -> pa.Table:
    """Return rows with all columns that the table has now, in its order."""
    nested = {f.physical for f in columns.fields if f.kind == "struct"}
    plain = [f for f in columns.fields if f.source]
    arrays, fields = [], []
    for field in columns.fields:
        if field.physical in nested:
            kind: pa.DataType = pa.struct([(f.physical, arrow_type(f.kind)) for f in plain])
        else:
            kind = arrow_type(field.kind)
        fields.append(pa.field(field.physical, kind))
        if field.physical not in rows.column_names:
            arrays.append(pa.nulls(rows.num_rows, kind))
        else:
            arrays.append(struct_as(rows.column(field.physical), kind))
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields))


def in_key_order(rows: pa.Table, key: Sequence[str]) -> pa.Table:
    """Return rows in the order of their keys; without a key, as they are."""
    if not key or not rows.num_rows:
        return rows
    columns = [pa.concat_arrays(rows.column(n).chunks) for n in key]
    return rows.take(pa.array(keys_of(columns).order()))


def merge_groups(
    files: Iterable[F], file_size: int, partition: Callable[[F], Any]
) -> list[list[F]]:
    """Return files that are merged into one each: of one partition, together not too large."""
    groups: list[list[F]] = []
    open_: dict[Any, list[F]] = {}
    for file in files:
        group = open_.get(key := partition(file))
        if group is None or sum(f.size for f in group) + file.size > file_size:
            group = open_[key] = []
            groups.append(group)
        group.append(file)
    return groups


def put_data_file(
    files: Files,
    root: str,
    name: str,
    rows: pa.Table,
    key: Sequence[str],
    stored: pa.Table | None = None,
) -> dict[str, Any]:
    """Put a data file, and its key run where there is a key; return what a commit is told.

    `stored` has the same rows with the schema that the file has, where that is another one.
    """
    content = parquet_bytes(rows if stored is None else stored)
    moment("put rewritten file")
    files.overwrite(f"{root}/{name}", content)
    if key:
        run = run_of(tuple(key), rows.select(list(key))).content()
        files.overwrite(run_path(root, name), run)
    return {**note_of(rows), "size": len(content)}


def with_evolved(rows: pa.Table, evolution: Evolution, filled: Mapping[str, pa.Scalar]) -> pa.Table:
    """Return rows with the columns that were added, and in the types that became wider."""
    kinds = {f.physical: f.kind for f in evolution.columns.fields}
    for name, value in filled.items():
        rows = rows.append_column(name, pa.repeat(value, rows.num_rows))
    for name in evolution.casts:
        at = rows.schema.get_field_index(name)
        if at >= 0:
            rows = rows.set_column(at, name, rows.column(name).cast(arrow_type(kinds[name])))
    return rows


def struct_as(values: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """Return values in a type; fields that a struct lacks are NULL, those too many are left out."""
    if not pa.types.is_struct(kind):
        return values.cast(kind)
    chunks = []
    for chunk in values.chunks:
        held = dict(zip((f.name for f in chunk.type), chunk.flatten(), strict=True))
        arrays = [
            held[f.name].cast(f.type) if f.name in held else pa.nulls(len(chunk), f.type)
            for f in kind
        ]
        chunks.append(pa.StructArray.from_arrays(arrays, fields=list(kind), mask=chunk.is_null()))
    return pa.chunked_array(chunks, kind)
