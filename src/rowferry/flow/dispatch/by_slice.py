"""Dispatch for sinks without topics: each table version × partition has its own output."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, TypeAlias

import numpy as np
import pyarrow as pa

from rowferry.change.chunk import Op, Rows, make_rows
from rowferry.change.plan import Output, Segment, TableSlice
from rowferry.errors import TableVersionUnknown
from rowferry.flow.dispatch.contract import Routed

_Key: TypeAlias = tuple[int, int, int | None]  # table id, version, partition


class BySlice:
    """Sends a chunk to the output of its table version and partition.

    Of an update that moves a row to another partition, which comes once for each of the two, only
    the half goes on that is the partition's own: outputs of different partitions have no order, so
    no output may tell of a key that lives in another.
    """

    def route(self, segment: Segment, outputs: Sequence[Output], rows: Rows) -> Iterator[Routed]:
        """Yield the place of the rows' slice in the segment, with the rows."""
        own = rows if rows.half is None else _own_half(rows, rows.half)
        if own is rows or len(own):
            yield Routed(place_of(segment, rows), own)


def _own_half(rows: Rows, half: Op) -> Rows:
    """Return the deletes (or inserts) among rows; updates that were not split count as both."""
    own = rows.take(np.flatnonzero((rows.op == half) | (rows.op == Op.UPDATE)))
    goes = half is Op.DELETE
    return make_rows(
        own.table,
        pa.array(np.full(len(own), half, np.int8)),
        own.batch.column("commit_ts"),
        own.batch.column("seq"),
        own.before if goes else pa.nulls(len(own), own.before.type),
        pa.nulls(len(own), own.after.type) if goes else own.after,
        own.physical_id,
    )


class _Places:
    """The places of a segment's slices; kept for the next chunk, mostly one of that segment."""

    def __init__(self) -> None:
        self._last: tuple[tuple[TableSlice, ...], dict[_Key, int]] = ((), {})

    def of(self, slices: tuple[TableSlice, ...]) -> dict[_Key, int]:
        known = self._last
        if known[0] is not slices:
            places = enumerate(slices)
            by_key = {(s.table_id, s.version, s.physical_id): place for place, s in places}
            known = self._last = (slices, by_key)
        return known[1]


_PLACES: Final = _Places()


def place_of(segment: Segment, rows: Rows) -> int:
    """Return the place of the rows' slice in the segment.

    Raises:
        TableVersionUnknown: the segment was planned without it.
    """
    key = (rows.table.table_id, rows.table.version, rows.physical_id)
    place = _PLACES.of(segment.slices).get(key)
    if place is not None:
        return place
    raise TableVersionUnknown(
        f"segment {segment.ordinal} has no output for {rows.table.id} version "
        f"{rows.table.version}, partition {rows.physical_id}"
    )
