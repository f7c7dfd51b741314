"""The work of a comparison in threads of this process, with the connections of its tables."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rowferry.downstream.rebuild.table import rebuild_here
from rowferry.downstream.verify.comparison import A, B, Comparison
from rowferry.downstream.verify.ranges import Ranges
from rowferry.downstream.verify.side import SideTable, StoredTable
from rowferry.downstream.verify.work import EQUAL, Differences, Sums, compare, joined, measure, pick
from rowferry.mysql.key_ranges import Chunk

_GROUPS_AT_ONCE: Final = 8  # of differing rows that are held in memory
_Part = tuple[int, SideTable, list[int]]


class ThreadRunner:
    """Runs a comparison's work in some threads; the rows of some groups are held at once.

    Servers do most of it: they sum up, and rows are read and hashed outside of Python's lock.
    """

    def __init__(self, threads: int = 1) -> None:
        self._threads = threads

    def narrowed(self, ranges: Ranges) -> tuple[tuple[int, int], list[Chunk]]:
        """Return how many rows each side has, and the key ranges that differ."""
        shares = self._shares(range(len(ranges.tables[A].chunks)))
        with ThreadPoolExecutor(self._threads) as pool:
            results = list(pool.map(ranges.differing, shares))
        rows = sum(counts[A] for counts, _ in results), sum(counts[B] for counts, _ in results)
        return rows, [chunk for _, some in results for chunk in some]

    def sums(
        self, comparison: Comparison, tables: tuple[SideTable, SideTable], buckets: int
    ) -> tuple[Sums, Sums]:
        """Sum up the rows of both sides."""

        def work(part: _Part) -> tuple[int, Sums]:
            return part[0], measure(comparison, part[0], buckets, _rows(comparison, part))

        totals = Sums.empty(buckets), Sums.empty(buckets)
        with ThreadPoolExecutor(self._threads) as pool:
            for side, sums in pool.map(work, self._parts(tables)):
                totals[side].merge(sums)
        return totals

    def differences(
        self,
        comparison: Comparison,
        tables: tuple[SideTable, SideTable],
        groups: npt.NDArray[np.int32],
    ) -> Iterator[Differences]:
        """Compare the rows of the buckets that differ, group by group."""
        for first in range(0, int(groups.max()) + 1, _GROUPS_AT_ONCE):
            inside = (groups >= first) & (groups < first + _GROUPS_AT_ONCE)
            some = np.where(inside, groups, EQUAL).astype(np.int32)
            yield from self._compared(comparison, tables, some)

    def _compared(
        self,
        comparison: Comparison,
        tables: tuple[SideTable, SideTable],
        groups: npt.NDArray[np.int32],
    ) -> Iterator[Differences]:
        def work(part: _Part) -> tuple[int, list[tuple[int, bytes]]]:
            return part[0], list(pick(comparison, part[0], groups, _rows(comparison, part)))

        frames: dict[int, tuple[list[bytes], list[bytes]]] = defaultdict(lambda: ([], []))
        with ThreadPoolExecutor(self._threads) as pool:
            for side, picked in pool.map(work, self._parts(tables)):
                for number, frame in picked:
                    frames[number][side].append(frame)
        for number in sorted(frames):
            sides = [joined(comparison, side, frames[number][side]) for side in (A, B)]
            yield compare(comparison, sides[A], sides[B])

    def _parts(self, tables: tuple[SideTable, SideTable]) -> list[_Part]:
        """Return shares of both tables, in turns: both servers work at the same time."""
        shares = [
            [[0]] if isinstance(t, StoredTable) else self._shares(range(t.pieces)) for t in tables
        ]
        longest = max(map(len, shares))
        return [
            (side, tables[side], shares[side][place])
            for place in range(longest)
            for side in (A, B)
            if place < len(shares[side])
        ]

    def _shares(self, numbers: Sequence[int]) -> list[list[int]]:
        """Deal out numbers: some for each thread, so that none is done long before the others."""
        count = max(1, min(len(numbers), 1 if self._threads == 1 else 4 * self._threads))
        return [list(numbers[place::count]) for place in range(count)]


def _rows(comparison: Comparison, part: _Part) -> Iterator[pa.Table]:
    side, table, numbers = part
    if isinstance(table, StoredTable):
        yield rebuild_here(table.plan)
    else:
        yield from table.read(numbers, comparison.wanted(side))
