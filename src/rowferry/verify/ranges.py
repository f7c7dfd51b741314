"""Key ranges compared by the servers themselves: no row leaves a server where sums agree.

Both servers hash each row of a range and give count and sum. A range that differs is halved as long
as it is worth it; what is left is read and compared elsewhere, so a sum that differs although the
rows are equal (0 and -0) costs time and nothing else.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from typing import Any, Final

from rowferry.change.sqltype import Kind
from rowferry.change.table import Column
from rowferry.flow.capture.binlog import chunks, session
from rowferry.flow.capture.binlog.chunks import Chunk
from rowferry.verify.comparison import A, B, Comparison
from rowferry.verify.side import DatabaseTable, SideTable

_BYTES: Final = frozenset({Kind.TEXT, Kind.BINARY, Kind.JSON, Kind.VECTOR})
_READ_AT_ONCE: Final = 1_000  # rows that are not worth another halving


def can_sum(comparison: Comparison, a: SideTable, b: SideTable) -> bool:
    """Return whether servers can compare: both of one kind, with one key in one order."""
    if not isinstance(a, DatabaseTable) or not isinstance(b, DatabaseTable):
        return False
    mine, theirs = a.schema.handle_index, b.schema.handle_index
    return (
        a.flavour is b.flavour
        and mine is not None
        and theirs is not None
        and bool(comparison.key)
        and [c.lower() for c in mine.columns] == [c.lower() for c in theirs.columns]
        and a.collations == b.collations
        and comparison.same_types
    )


@dataclass(frozen=True)
class Ranges:
    """The ranges of A, to be compared on both servers; tasks get it."""

    comparison: Comparison
    tables: tuple[DatabaseTable, DatabaseTable]

    def differing(self, numbers: list[int]) -> tuple[tuple[int, int], list[Chunk]]:
        """Return how many rows some ranges have on each side, and what of them differs."""
        a, b = self.tables
        with closing(session.connect(a.login)) as one, closing(session.connect(b.login)) as two:
            for connection, table in ((one, a), (two, b)):
                session.rows(connection, table.login, chunks.SETTINGS)
            counted, found = [0, 0], list[Chunk]()
            for number in numbers:
                chunk = a.chunks[number]
                assert chunk is not None
                sums = self._sums((one, two), chunk)
                counted[A] += sums[A][0]
                counted[B] += sums[B][0]
                found += self._halved((one, two), chunk, sums)
            return (counted[A], counted[B]), found

    def _halved(
        self, connections: tuple[Any, Any], chunk: Chunk, sums: list[tuple[int, ...]]
    ) -> list[Chunk]:
        """Return the parts of a range that differ, given its sums."""
        waiting, found = [(chunk, sums)], list[Chunk]()
        while waiting:
            here, (one, two) = waiting.pop()
            if one == two:
                continue
            larger = A if one[0] >= two[0] else B
            rows = max(one[0], two[0])
            table = self.tables[larger]
            halves = None
            if rows > _READ_AT_ONCE and min(one[0], two[0]):
                halves = chunks.split_chunk(
                    connections[larger], table.login, table.schema, here, rows // 2
                )
            if halves is None:
                found.append(here)
            else:
                waiting += [(half, self._sums(connections, half)) for half in halves[::-1]]
        return found

    def _sums(self, connections: tuple[Any, Any], chunk: Chunk) -> list[tuple[int, ...]]:
        found = []
        for side, connection in enumerate(connections):
            table = self.tables[side]
            sql = sum_statement(self.comparison, side, chunk)
            row = session.one_row(connection, table.login, sql)
            found.append(tuple(int(value) for value in row))
        return found


def sum_statement(comparison: Comparison, side: int, chunk: Chunk) -> str:
    """Return the SELECT that gives count and sums of a range.

    Sums are made of 128 bits of each row's SHA-256: CRC-32 would not see values that change places,
    and newer servers have no MD5.
    """
    schema = comparison.schemas[side]
    texts = ", ".join(f"IFNULL({_text(pair[side])}, 'n')" for pair in comparison.columns)
    where = chunks.condition(schema, chunk.lower, chunk.upper)
    source = chunks.keyed_table(schema, partition=chunk.partition)
    halves = ", ".join(
        f"BIT_XOR(CAST(CONV(SUBSTRING(h, {start}, 16), 16, 10) AS UNSIGNED))" for start in (1, 17)
    )
    return (
        f"SELECT COUNT(*), {halves} FROM "
        f"(SELECT SHA2(CONCAT_WS(',', {texts}), 256) AS h FROM {source}{where}) AS hashed"
    )


def _text(column: Column) -> str:
    """Return a value's text, which never holds a comma, nor is `n`."""
    if column.type.kind in _BYTES:
        return f"SHA2({chunks.quoted(column.name)}, 256)"
    return chunks.exact(column)
