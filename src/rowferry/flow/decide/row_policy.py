"""Soft delete and active-active: what becomes of a row of such a table. Vectorised, for every sink.

With the mode off, readers get ordinary rows: setting `_tidb_softdelete_time` is the delete, and
what happens to a row that counts as deleted does not reach them. With the mode on, all rows stay
on both sides, and each is sent as one that may win over the downstream's.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rowferry.change.chunk import Op, Rows, make_rows
from rowferry.change.event_counts import DELETED_ROW, FOREIGN, HARD_DELETE, EventCounts
from rowferry.change.position import PHYSICAL_SHIFT
from rowferry.change.table import TableSchema
from rowferry.errors import TableNotActiveActive
from rowferry.flow.decide.key_split import differs
from rowferry.flow.decide.table_flags import (
    COMMIT_TS,
    ORIGIN_TS,
    SOFT_DELETE_TIME,
    require_column,
)
from rowferry.mysql.stamps import cure
from rowferry.spec.active_active import CLUSTER_INDEX_BITS

_ZERO_DATE: Final = "0000-00-00"
_LOW_BITS: Final = np.uint64((1 << CLUSTER_INDEX_BITS) - 1)

Flags = npt.NDArray[np.bool_]


class Stamps(Enum):
    """When a row was written that does not say so itself, by `_tidb_commit_ts`."""

    BY_TRANSACTIONS = "by its transaction"
    BY_ROWS = "nobody knows: it is refused"
    NEVER_WIN = "nobody knows: it wins over no other, as the rows of a snapshot must not"


def by_policy(
    rows: Rows,
    active_active: bool,
    cluster_index: int = 0,
    stamps: Stamps = Stamps.BY_TRANSACTIONS,
    counts: EventCounts | None = None,
) -> Rows:
    """Return what of a chunk goes on, and as what; of a table without flags, the chunk itself.

    Args:
        rows: a chunk whose table has its flags set.
        active_active: whether the mode is on.
        cluster_index: of the source's cluster, for timestamps that are made here.
        stamps: what counts as the moment of a row that does not tell its own.
        counts: takes how many rows are left out, and why.

    Raises:
        TableNotActiveActive: `_tidb_softdelete_time` is missing, an old row that must be looked
            at, or the moment of a row.
    """
    table = rows.table
    if not (table.is_active_active_table or table.is_soft_delete_table) or not len(rows):
        return rows
    require_column(table, SOFT_DELETE_TIME)
    counted = counts or EventCounts()
    if active_active:
        return newest_wins(rows, cluster_index, stamps, counted)
    return as_plain_rows(rows, counted)


# --- the mode is off -----------------------------------------------------------------------------


def as_plain_rows(rows: Rows, counts: EventCounts) -> Rows:
    """Return a chunk as readers see it who know nothing of soft delete.

    A delete is dropped: the row was deleted for them when it was marked. An update that marks a row
    becomes the delete. One of a row that is and stays marked is dropped, as it would recreate the
    row. Everything else passes as it is.
    """
    op = rows.op
    deletes, updates = op == Op.DELETE, op == Op.UPDATE
    if not (updates.any() or deletes.all()):
        _require_marks(rows)
    if not (deletes.any() or updates.any()):
        return rows
    before, after = np.zeros(len(rows), bool), np.zeros(len(rows), bool)
    if updates.any():
        _require_old_rows(rows, updates)
        before, after = _marked(rows, rows.before), _marked(rows, rows.after)
    buried = updates & before & after
    keep = ~deletes & ~buried
    counts.add(HARD_DELETE, int(deletes.sum()))
    counts.add(DELETED_ROW, int(buried.sum()))
    gone = updates & ~before & after
    if gone.any():
        new_op = op.copy()
        new_op[gone] = Op.DELETE
        # A null place gives a null image.
        places = pa.array(np.arange(len(rows)), mask=gone)
        rows = _made(rows, pa.array(new_op), rows.before, rows.after.take(places))
    return rows if keep.all() else rows.take(np.flatnonzero(keep))


def _require_marks(rows: Rows) -> None:
    """Refuse rows of a source that gives no more of an old row than its key.

    Every write is an insert there: what marks a row as deleted cannot be told from a new row.
    """
    if rows.before.type.get_field_index(rows.table.column(SOFT_DELETE_TIME).name) < 0:
        raise without_old_rows(rows.table)


def _require_old_rows(rows: Rows, updates: Flags) -> None:
    if rows.before.null_count and (updates & _numpy(rows.before.is_null())).any():
        raise without_old_rows(rows.table)


def without_old_rows(table: TableSchema) -> TableNotActiveActive:
    """Return why a table with soft delete cannot be captured from a source without old rows."""
    return TableNotActiveActive(
        f"table {table.id} has soft delete, and the source does not give old rows, by which a "
        "delete would be seen; leave the table out by filter.rules"
    )


# --- the mode is on ------------------------------------------------------------------------------


def newest_wins(rows: Rows, cluster_index: int, stamps: Stamps, counts: EventCounts) -> Rows:
    """Return a chunk as rows that the downstream takes if they are newer than its own.

    Deletes are dropped, and so are rows that another cluster wrote. `_tidb_origin_ts` becomes the
    moment of the write. An update that changes the primary key becomes two inserts, of the old row
    as deleted and of the new one.
    """
    keep = rows.op != Op.DELETE
    counts.add(HARD_DELETE, int((~keep).sum()))
    origin = _name(rows, ORIGIN_TS)
    if origin is not None:
        own = _numpy(rows.after.field(origin).is_null())
        counts.add(FOREIGN, int((keep & ~own).sum()))
        keep &= own
    if not keep.all():
        rows = rows.take(np.flatnonzero(keep))
    if not len(rows):
        return rows
    moved = _moved(rows)
    moments = _moments(rows, cluster_index, stamps)
    if moved.any():
        rows, moments = _with_old_keys(rows, moved, moments)
    if origin is None:
        return rows
    after = _replaced(rows.after, {origin: moments})
    return _made(rows, rows.batch.column("op"), rows.before, after)


def _moments(rows: Rows, cluster_index: int, stamps: Stamps) -> pa.Array:
    """Return when each row was written: as the row itself says, else as `stamps` does."""
    name = _name(rows, COMMIT_TS)
    own = pa.nulls(len(rows), pa.uint64())
    if name is not None:
        own = rows.after.field(name).cast(pa.uint64())
    if stamps is Stamps.BY_ROWS and not _stamped(rows, own).all():
        raise TableNotActiveActive(
            f"table {rows.table.id} has a row in its log that no trigger has stamped (its "
            f"{COMMIT_TS} is NULL, or that of the write before), and nobody can say whether it is "
            f"newer than another; {cure(rows.table.id, cluster_index)}; then make the changefeed "
            "anew"
        )
    made = rows.commit_ts & ~_LOW_BITS
    if stamps is Stamps.NEVER_WIN:
        made = np.zeros(len(rows), np.uint64)
    return pc.coalesce(own, pa.array(made | np.uint64(cluster_index), pa.uint64()))


def _stamped(rows: Rows, own: pa.Array) -> Flags:
    """Return which rows have a stamp that is above the one of the row's last write."""
    last = pa.scalar(0, pa.uint64())
    for name in (COMMIT_TS, ORIGIN_TS):
        column = rows.table.by_name.get(name)
        if column is not None and rows.before.type.get_field_index(column.name) >= 0:
            before = pc.if_else(rows.before.is_valid(), rows.before.field(column.name), None)
            last = pc.coalesce(before.cast(pa.uint64()), last)
    return _numpy(pc.fill_null(pc.greater(own, last), False))


def _moved(rows: Rows) -> Flags:
    """Return which rows are updates that change the primary key."""
    moved: Flags = np.zeros(len(rows), bool)
    updates: Flags = rows.op == Op.UPDATE
    if not updates.any():
        return moved
    _require_old_rows(rows, updates)
    for name in rows.table.primary_key:
        column = rows.table.column(name).name
        moved |= differs(rows.before.field(column), rows.after.field(column))
    moved &= updates
    return moved


def _with_old_keys(rows: Rows, moved: Flags, stamps: pa.Array) -> tuple[Rows, pa.Array]:
    """Put the row under its old key, marked as deleted, in front of each that got another key."""
    places = np.repeat(np.arange(len(rows)), 1 + moved)
    halves = moved[places]
    old = halves.copy()
    old[1:] &= places[1:] != places[:-1]
    op = rows.op[places]
    op[halves] = Op.INSERT
    where = pa.array(places)
    before = rows.before.take(pa.array(places, mask=halves))
    name = rows.table.column(SOFT_DELETE_TIME).name
    times = rows.before.field(name)
    marks = pc.if_else(pa.array(_marked(rows, rows.before)), times, _times(rows, name))
    buried = _replaced(rows.before, {name: marks})
    both = pa.concat_arrays([rows.after, buried])
    after = both.take(pa.array(np.where(old, places + len(rows), places)))
    taken = rows.take(where)
    return _made(taken, pa.array(op), before, after), stamps.take(where)


def _times(rows: Rows, name: str) -> pa.Array:
    """Return the time of each row's transaction, as the column writes times."""
    digits = rows.table.column(name).type.fraction_digits
    micros = (rows.commit_ts >> np.uint64(PHYSICAL_SHIFT)).astype(np.int64) * 1000
    texts = pc.strftime(pa.array(micros, pa.timestamp("us")), "%Y-%m-%d %H:%M:%S")
    shown = pc.utf8_slice_codeunits(texts, 0, 20 + digits if digits else 19)
    return shown.cast(rows.before.type.field(name).type)


# --- both ----------------------------------------------------------------------------------------


def _marked(rows: Rows, image: pa.StructArray) -> Flags:
    """Return which rows count as deleted: neither NULL, nor 0, nor the zero date."""
    name = rows.table.column(SOFT_DELETE_TIME).name
    if image.type.get_field_index(name) < 0:
        raise TableNotActiveActive(
            f"table {rows.table.id} has soft delete, and a row image without {name}; set "
            "binlog_row_image = FULL at the source"
        )
    times = image.field(name)
    if pa.types.is_large_string(times.type) or pa.types.is_string(times.type):
        none = pc.or_(pc.starts_with(times, _ZERO_DATE), pc.equal(times, "0"))
    else:
        none = pc.equal(times, pa.scalar(0, times.type))
    return ~_numpy(pc.fill_null(none, True)) & _numpy(image.is_valid())


def _name(rows: Rows, name: str) -> str | None:
    """Return a column's name as the new rows have it; None: they lack it."""
    column = rows.table.by_name.get(name)
    if column is None or rows.after.type.get_field_index(column.name) < 0:
        return None
    return column.name


def _replaced(images: pa.StructArray, columns: dict[str, pa.Array]) -> pa.StructArray:
    fields = list(images.type)
    arrays = [
        columns[f.name].cast(f.type) if f.name in columns else images.field(f.name) for f in fields
    ]
    return pa.StructArray.from_arrays(arrays, fields=fields, mask=images.is_null())


def _made(rows: Rows, op: pa.Array, before: pa.StructArray, after: pa.StructArray) -> Rows:
    columns = (rows.batch.column("commit_ts"), rows.batch.column("seq"))
    return make_rows(rows.table, op, *columns, before, after, rows.physical_id, rows.half)


def _numpy(flags: Any) -> Flags:
    mask: Flags = flags.to_numpy(zero_copy_only=False)
    return mask
