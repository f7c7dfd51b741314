"""Rows that are read again: which of them are meant, and which the target has in excess."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from rowferry.change.chunk import Op, Rows, make_rows
from rowferry.change.plan import Segment, TableSlice
from rowferry.change.sqltype import Kind
from rowferry.change.table import TableSchema
from rowferry.errors import BadEventFilter, ResnapshotRefused
from rowferry.flow.capture.contract import FindsMissing
from rowferry.flow.sink.contract import HoldsRows

if TYPE_CHECKING:
    from rowferry.flow.assemble import Flow

_ORDINAL_BITS: Final = 40
_SECOND_HALF: Final = 1 << 39  # removals come behind all rows of their segment
# Elements have numbers that may be others in the target.
_BY_NAME: Final = frozenset({Kind.ENUM, Kind.SET})


def reread_rows(
    flow: Flow,
    segment: Segment,
    tables: Mapping[TableSlice, TableSchema],
    captured: Iterator[Rows],
) -> Iterator[Rows]:
    """Yield the rows of a part that are meant; then deletes of what only the target has there.

    A key that the source lacks at any moment behind the part's place in the log may go: whatever
    came to it later is in the log behind that place, and follows.

    Raises:
        ResnapshotRefused: the expression cannot be used for a row.
    """
    table = tables[segment.slices[0]]
    keys: list[pa.Table] = []
    removing = _removes(flow, table)
    for rows in captured:
        if removing:
            keys.append(_key_table(table, rows.after))
        meant = _meant(flow, rows, segment.where)
        if len(meant):
            yield meant
    if removing:
        yield from _removals(flow, segment, table, keys)


def _removes(flow: Flow, table: TableSchema) -> bool:
    """Return whether the target can be asked for its rows, and has the keys of the source."""
    if not isinstance(flow.sink, HoldsRows) or not isinstance(flow.capture, FindsMissing):
        return False
    kinds = {table.column(name).type.kind for name in table.handle_key}
    if flow.decide.hides_rows:  # masks came since it was asked for: keys there are other ones
        return False
    return not kinds & _BY_NAME and flow.decide.removes_rows(table)


def _meant(flow: Flow, rows: Rows, where: str) -> Rows:
    try:
        return flow.decide.matching(rows, where)
    except BadEventFilter as err:
        raise ResnapshotRefused(err.words) from None


def _removals(
    flow: Flow, segment: Segment, table: TableSchema, keys: list[pa.Table]
) -> Iterator[Rows]:
    sink, source = flow.sink, flow.capture
    if not isinstance(sink, HoldsRows) or not isinstance(source, FindsMissing):
        return
    known = pa.concat_tables(keys) if keys else None
    columns = [c.name for c in table.columns] if segment.where else list(table.handle_key)
    seq = (segment.ordinal << _ORDINAL_BITS) | _SECOND_HALF
    for held in sink.held_rows(flow.decide.seen_as(table), source.part_of(segment), columns):
        if segment.where:
            try:
                held = held.filter(pa.array(flow.decide.is_true(table, held, segment.where)))
            except BadEventFilter as err:
                raise ResnapshotRefused(err.words) from None
        doubtful = _not_among(table, held, known)
        if not len(doubtful):
            continue
        gone = source.missing(segment, table, doubtful)
        if len(gone):
            yield _deletes(table, gone, segment, seq)
            seq += len(gone)


def _key_table(table: TableSchema, images: pa.StructArray) -> pa.Table:
    """Return the key of each image, in types that can be joined."""
    columns = [_joinable(images.field(name)) for name in table.handle_key]
    return pa.table(columns, names=list(table.handle_key))


def _joinable(values: pa.Array) -> pa.Array:
    if pa.types.is_large_string(values.type):
        return values.cast(pa.string())
    if pa.types.is_large_binary(values.type):
        return values.cast(pa.binary())
    return values


def _not_among(table: TableSchema, held: pa.StructArray, known: pa.Table | None) -> pa.StructArray:
    """Return the keys of held rows that are not among the known ones, compared by their bytes."""
    names = list(table.handle_key)
    keys = pa.StructArray.from_arrays([held.field(n) for n in names], names=names)
    if known is None or not len(known) or not len(held):
        return keys
    place = pa.array(np.arange(len(held)))
    mine = _key_table(table, held).append_column("\0place", place)
    left = mine.join(known, keys=names, join_type="left anti")
    return keys.take(left.column("\0place").combine_chunks().sort())


def _deletes(table: TableSchema, keys: pa.StructArray, segment: Segment, seq: int) -> Rows:
    count = len(keys)
    return make_rows(
        table,
        pa.array(np.full(count, int(Op.DELETE), np.int8)),
        pa.array(np.full(count, segment.first_commit_ts, np.uint64)),
        pa.array(np.arange(seq, seq + count)),
        keys,
        pa.nulls(count, table.image),
        segment.slices[0].physical_id,
    )
