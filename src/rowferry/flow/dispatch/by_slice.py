"""Dispatch for sinks without topics: each table version × partition has its own output."""

from __future__ import annotations

from collections.abc import Iterator

from rowferry.change.chunk import Rows
from rowferry.change.plan import Segment
from rowferry.errors import TableVersionUnknown


class BySlice:
    """Sends a chunk to the output of its table version and partition."""

    def route(self, segment: Segment, rows: Rows) -> Iterator[tuple[int, Rows]]:
        """Yield the place of the rows' slice in the segment, with the rows."""
        for place, one in enumerate(segment.slices):
            same_table = (one.table_id, one.version) == (rows.table.table_id, rows.table.version)
            if same_table and one.physical_id == rows.physical_id:
                yield place, rows
                return
        raise TableVersionUnknown(
            f"segment {segment.ordinal} has no output for {rows.table.id} version "
            f"{rows.table.version}, partition {rows.physical_id}"
        )
