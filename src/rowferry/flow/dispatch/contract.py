"""What a dispatch promises."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from rowferry.change.chunk import Rows
from rowferry.change.plan import Segment


class Dispatch(Protocol):
    """Says to which of a segment's outputs each row goes."""

    def route(self, segment: Segment, rows: Rows) -> Iterator[tuple[int, Rows]]:
        """Yield (place of the slice in the segment, rows), order kept inside each slice."""
