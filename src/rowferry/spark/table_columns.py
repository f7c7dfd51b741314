"""A table's changes as columns of Spark types: the Arrow schema, and chunks cast to it.

Arrow in, Arrow out. What Spark sees is the same schema, so nothing here needs Spark.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from rowferry.change.chunk import Op, Rows
from rowferry.change.position import PHYSICAL_SHIFT
from rowferry.change.table import Column, TableSchema
from rowferry.change.typed_columns import (
    COMMIT_TS,
    OP,
    OP_NAMES,
    SEQ,
    column_type,
    place_in_batch,
    typed,
)
from rowferry.errors import SourceUnsupported, TableAltered

COMMIT_TIME: Final = "_commit_time"
BEFORE: Final = "_before"
OWN: Final = (OP, COMMIT_TS, COMMIT_TIME, SEQ, BEFORE)
_MOMENT: Final = pa.timestamp("us", "UTC")
PIECE_BYTES: Final = 1 << 20  # small batches cross to Java faster than large ones


def change_schema(table: TableSchema, native_times: bool) -> pa.Schema:
    """Return the schema of a table's changes: its columns (no virtual ones), then ours.

    Raises:
        SourceUnsupported: a column of the table has the name of one of ours.
    """
    for name in OWN:
        if name in table.by_name:
            raise SourceUnsupported(
                f"{table.id} has a column {name!r}, a name that the data source needs itself; "
                "rename the column"
            )
    columns = [pa.field(c.name, column_type(c.type, native_times)) for c in table.visible]
    return pa.schema(
        [
            *columns,
            pa.field(OP, pa.string(), nullable=False),
            pa.field(COMMIT_TS, pa.int64(), nullable=False),
            pa.field(COMMIT_TIME, _MOMENT, nullable=False),
            pa.field(SEQ, pa.int64(), nullable=False),
            pa.field(BEFORE, pa.struct(columns)),
        ]
    )


def same_columns(one: pa.Schema, other: pa.Schema) -> bool:
    """Return whether two schemas have the same names and types; NULLs may be allowed or not."""
    return [(f.name, f.type) for f in one] == [(f.name, f.type) for f in other]


def as_batches(rows: Rows, wanted: pa.Schema, native_times: bool) -> Iterator[pa.RecordBatch]:
    """Yield a chunk as record batches of the wanted schema, in order.

    Columns are found by name. One that the chunk's table version did not have is NULL.

    Raises:
        TableAltered: values of that version do not fit the type that the column has now, or one of
            its columns may have another name now.
    """
    if not len(rows):
        return
    inserts = rows.op == Op.INSERT
    deletes = rows.op == Op.DELETE
    fields = [f for f in wanted if f.name not in OWN]
    _refuse_renamed(rows.table, fields, native_times)
    after = _images(rows.after, rows.table, fields, native_times)
    if inserts.all():
        before = pa.nulls(len(rows), wanted.field(BEFORE).type)
    else:
        images = _images(rows.before, rows.table, fields, native_times)
        before = pa.StructArray.from_arrays(images, fields=fields, mask=pa.array(inserts))
        if deletes.any():
            gone = pa.array(deletes)
            after = [pc.if_else(gone, b, a) for b, a in zip(images, after, strict=True)]
    commit_ts = rows.batch.column("commit_ts").cast(pa.int64())
    ours = {
        OP: OP_NAMES.take(rows.batch.column("op")),
        COMMIT_TS: commit_ts,
        COMMIT_TIME: _moments(commit_ts),
        SEQ: place_in_batch(rows.batch.column("op"), rows.batch.column("seq")),
        BEFORE: before,
    }
    columns = {f.name: a for f, a in zip(fields, after, strict=True)} | ours
    batch = pa.RecordBatch.from_arrays([columns[f.name] for f in wanted], schema=wanted)
    count = max(1, len(rows) * PIECE_BYTES // max(1, batch.nbytes))
    for start in range(0, len(rows), count):
        yield batch.slice(start, count)


def _moments(commit_ts: pa.Array) -> pa.Array:
    """Return when transactions were committed: the milliseconds in their commit-ts."""
    return pc.shift_right(commit_ts, PHYSICAL_SHIFT).cast(pa.timestamp("ms", "UTC")).cast(_MOMENT)


def _images(
    image: pa.StructArray, table: TableSchema, fields: list[pa.Field], native_times: bool
) -> list[pa.Array]:
    """Return an image's columns by the wanted fields; a NULL image is NULL in all of them."""
    held = dict(zip((f.name.lower() for f in image.type), image.flatten(), strict=True))
    columns = []
    for field in fields:
        column, values = table.by_name.get(field.name.lower()), held.get(field.name.lower())
        if column is None or values is None:
            columns.append(pa.nulls(len(image), field.type))
            continue
        own = typed(values, column, table, native_times)
        columns.append(_fitted(own, field.type, column, table))
    return columns


def _refuse_renamed(table: TableSchema, fields: list[pa.Field], native_times: bool) -> None:
    """Refuse to call a column NULL that may only have got another name."""
    now = {f.name.lower() for f in fields}
    gone = [c for c in table.visible if c.name.lower() not in now]
    lost = {column_type(c.type, native_times): c for c in gone}
    for field in fields if lost else ():
        if field.name.lower() not in table.by_name and field.type in lost:
            raise TableAltered(
                f"{table.id} had a column {lost[field.type].name!r} at commit-ts {table.version} "
                f"and has {field.name!r} of the same type now, which may be the same one; start a "
                "new query with a new checkpoint"
            )


def _fitted(values: pa.Array, wanted: pa.DataType, column: Column, table: TableSchema) -> pa.Array:
    """Bring values of an older version of a column to the type that it has now."""
    if values.type == wanted:
        return values
    try:
        return values.cast(wanted)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as err:
        raise TableAltered(
            f"{table.id}, column {column.name!r} was {column.type.sql} at commit-ts "
            f"{table.version} and is now of another type, in which a value of that time cannot be "
            f"written ({str(err).splitlines()[0]}); start a new query with a new checkpoint"
        ) from None
