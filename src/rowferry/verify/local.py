"""The work of a comparison in this process, one part after the other."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rowferry.flow.capture.binlog.chunks import Chunk
from rowferry.rebuild.table import rebuild_here
from rowferry.verify.comparison import A, B, Comparison
from rowferry.verify.ranges import Ranges
from rowferry.verify.side import DatabaseTable, SideTable
from rowferry.verify.work import Differences, Sums, compare, joined, measure, pick


class InProcessRunner:
    """Holds one table's differing rows at once: for tests and small tables."""

    def narrowed(self, ranges: Ranges) -> tuple[tuple[int, int], list[Chunk]]:
        """Return how many rows each side has, and the key ranges that differ."""
        return ranges.differing(list(range(len(ranges.tables[A].chunks))))

    def sums(
        self, comparison: Comparison, tables: tuple[SideTable, SideTable], buckets: int
    ) -> tuple[Sums, Sums]:
        """Sum up the rows of both sides."""
        a, b = (
            measure(comparison, side, buckets, _rows(comparison, side, table))
            for side, table in enumerate(tables)
        )
        return a, b

    def differences(
        self,
        comparison: Comparison,
        tables: tuple[SideTable, SideTable],
        groups: npt.NDArray[np.int32],
    ) -> Iterator[Differences]:
        """Compare the rows of the buckets that differ, group by group."""
        frames: dict[int, tuple[list[bytes], list[bytes]]] = defaultdict(lambda: ([], []))
        for side, table in enumerate(tables):
            for number, frame in pick(comparison, side, groups, _rows(comparison, side, table)):
                frames[number][side].append(frame)
        for number in sorted(frames):
            sides = [joined(comparison, side, frames[number][side]) for side in (A, B)]
            yield compare(comparison, sides[A], sides[B])


def _rows(comparison: Comparison, side: int, table: SideTable) -> Iterator[pa.Table]:
    if isinstance(table, DatabaseTable):
        yield from table.read(range(len(table.chunks)), comparison.wanted(side))
    else:
        yield rebuild_here(table.plan)
