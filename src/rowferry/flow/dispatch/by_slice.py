"""Dispatch for sinks without topics: each table version × partition has its own output."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, TypeAlias

from rowferry.change.chunk import Rows
from rowferry.change.plan import Output, Segment, TableSlice
from rowferry.errors import TableVersionUnknown
from rowferry.flow.dispatch.contract import Routed

_Key: TypeAlias = tuple[int, int, int | None]  # table id, version, partition


class BySlice:
    """Sends a chunk to the output of its table version and partition."""

    def route(self, segment: Segment, outputs: Sequence[Output], rows: Rows) -> Iterator[Routed]:
        """Yield the place of the rows' slice in the segment, with the rows."""
        yield Routed(place_of(segment, rows), rows)


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
