"""Dispatch for sinks without topics: each table version × partition has its own output."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rowferry.change.chunk import Rows
from rowferry.change.plan import Output, Segment
from rowferry.errors import TableVersionUnknown
from rowferry.flow.dispatch.contract import Routed


class BySlice:
    """Sends a chunk to the output of its table version and partition."""

    def route(self, segment: Segment, outputs: Sequence[Output], rows: Rows) -> Iterator[Routed]:
        """Yield the place of the rows' slice in the segment, with the rows."""
        yield Routed(place_of(segment, rows), rows)


def place_of(segment: Segment, rows: Rows) -> int:
    """Return the place of the rows' slice in the segment.

    Raises:
        TableVersionUnknown: the segment was planned without it.
    """
    for place, one in enumerate(segment.slices):
        same_table = (one.table_id, one.version) == (rows.table.table_id, rows.table.version)
        if same_table and one.physical_id == rows.physical_id:
            return place
    raise TableVersionUnknown(
        f"segment {segment.ordinal} has no output for {rows.table.id} version "
        f"{rows.table.version}, partition {rows.physical_id}"
    )
