"""Updates that change a key become a delete and an insert, in their place.

Readers keep rows by key: told "update", they would keep the row under its old key too.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rowferry.change.chunk import Op, Rows, make_rows
from rowferry.change.table import TableSchema


def split_in_halves(rows: Rows) -> tuple[Rows, npt.NDArray[np.bool_] | None]:
    """Return the chunk with its key-changing updates split, and which rows came from one; None: no.

    Each such update becomes a delete and, next to it, an insert. An update changes a key when any
    column of a primary or unique index differs (NULL equals NULL, texts differ by bytes). Both
    halves keep the update's commit-ts and `seq`, so the order of the chunk is the order of the
    rows. Without such an update the chunk itself is returned. An update without its before-image,
    or a key column that is absent from the images, cannot be compared and stays as it is.
    """
    changed = key_changes(rows)
    if changed is None:
        return rows, None
    # Where each new row comes from; an update that changes a key is there twice.
    origin = np.repeat(np.arange(len(rows)), 1 + changed)
    halves = changed[origin]
    second = np.zeros(len(origin), dtype=bool)
    second[1:] = halves[1:] & (origin[1:] == origin[:-1])
    first = halves & ~second
    op = rows.op[origin]
    op[first] = Op.DELETE
    op[second] = Op.INSERT
    where = pa.array(origin)
    split = make_rows(
        rows.table,
        pa.array(op),
        rows.batch.column("commit_ts").take(where),
        rows.batch.column("seq").take(where),
        # A null place gives a null image: no copy is made only to be hidden.
        rows.before.take(pa.array(origin, mask=second)),
        rows.after.take(pa.array(origin, mask=first)),
        rows.physical_id,
        rows.half,
    )
    return split, halves


def key_changes(rows: Rows) -> npt.NDArray[np.bool_] | None:
    """Return which rows are updates that change a key; None when there are none."""
    updates = rows.op == Op.UPDATE
    if not updates.any():
        return None
    names = _key_columns(rows.table, rows.before.type, rows.after.type)
    if not names:
        return None
    if rows.before.null_count or rows.after.null_count:
        updates &= _numpy(pc.and_(rows.before.is_valid(), rows.after.is_valid()))
    changed = np.zeros(len(rows), dtype=bool)
    for name in names:
        changed |= differs(rows.before.field(name), rows.after.field(name))
    changed &= updates
    return changed if changed.any() else None


def _key_columns(table: TableSchema, before: pa.StructType, after: pa.StructType) -> list[str]:
    """Return the columns of primary and unique keys that both images have, in table order."""
    keyed = {c.lower() for i in table.indexes if i.primary or i.unique for c in i.columns}
    there = {f.name for f in before} & {f.name for f in after}
    return [c.name for c in table.columns if c.name.lower() in keyed and c.name in there]


def differs(one: pa.Array, other: pa.Array) -> npt.NDArray[np.bool_]:
    """Compare two columns row by row: NULL equals NULL, NaN equals NaN."""
    unequal = pc.not_equal(one, other)
    if pa.types.is_floating(one.type):
        unequal = pc.and_not(unequal, pc.and_(pc.is_nan(one), pc.is_nan(other)))
    if one.null_count or other.null_count:
        unequal = pc.if_else(
            pc.and_(one.is_valid(), other.is_valid()),
            unequal,
            pc.xor(one.is_null(), other.is_null()),
        )
    return _numpy(unequal)


def _numpy(flags: Any) -> npt.NDArray[np.bool_]:
    mask: npt.NDArray[np.bool_] = flags.to_numpy(zero_copy_only=False)
    return mask
