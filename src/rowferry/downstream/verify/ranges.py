"""Key ranges compared by the servers themselves: no row leaves a server where sums agree.

Both servers hash each row of a range and give count and sum. A range that differs is halved as long
as it is worth it; what is left is read and compared elsewhere, so a sum that differs although the
rows are equal (0 and -0) costs time and nothing else.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final, TypeAlias

from rowferry.change.sqltype import Kind
from rowferry.change.table import Column, Index, TableSchema
from rowferry.downstream.verify.comparison import A, B, Comparison
from rowferry.downstream.verify.side import DatabaseTable, SideTable
from rowferry.mysql import key_ranges as chunks
from rowferry.mysql import session
from rowferry.mysql.key_ranges import Chunk

_Sums: TypeAlias = tuple[tuple[int, ...], tuple[int, ...]]

_BYTES: Final = frozenset({Kind.TEXT, Kind.BINARY, Kind.JSON, Kind.VECTOR})
_READ_AT_ONCE: Final = 1_000  # rows that are not worth another halving


def can_sum(comparison: Comparison, a: SideTable, b: SideTable) -> bool:
    """Return whether servers can compare: both of one kind, with one key in one order."""
    if not isinstance(a, DatabaseTable) or not isinstance(b, DatabaseTable):
        return False
    if a.masks is not None or b.masks is not None:
        return False  # servers do not know what a changefeed makes of their rows
    mine, theirs = a.schema.handle_index, b.schema.handle_index
    return (
        a.flavour is b.flavour
        and mine is not None
        and theirs is not None
        and bool(comparison.key)
        and _order(a.schema, mine) == _order(b.schema, theirs)
        and comparison.same_types
    )


def _order(schema: TableSchema, key: Index) -> list[tuple[str, str]]:
    """Return what decides the order of a key: its columns, and how texts in them compare."""
    return [(c.lower(), schema.column(c).type.collation) for c in key.columns]


@dataclass(frozen=True)
class Ranges:
    """The ranges of A, to be compared on both servers; tasks get it."""

    comparison: Comparison
    tables: tuple[DatabaseTable, DatabaseTable]

    def differing(self, numbers: list[int]) -> tuple[tuple[int, int], list[Chunk]]:
        """Return how many rows some ranges have on each side, and what of them differs."""
        rows, narrowed = [0, 0], list[Chunk]()
        with _Servers(self.comparison, self.tables) as servers:
            for number in numbers:
                chunk = self.tables[A].chunks[number]
                assert chunk is not None
                sums = servers.sums(chunk)
                rows[A] += sums[A][0]
                rows[B] += sums[B][0]
                narrowed += servers.halved(chunk, sums)
        return (rows[A], rows[B]), narrowed


class _Servers:
    """A connection to each server; both work at the same time."""

    def __init__(self, comparison: Comparison, tables: tuple[DatabaseTable, DatabaseTable]) -> None:
        self._comparison, self._tables = comparison, tables

    def __enter__(self) -> _Servers:
        with ExitStack() as opened:
            self._pool = opened.enter_context(ThreadPoolExecutor(2))
            self._connections = []
            for table in self._tables:
                self._connections.append(opened.enter_context(table.connected()))
            self._opened = opened.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    def halved(self, chunk: Chunk, sums: _Sums) -> list[Chunk]:
        """Return the parts of a range that differ, given its sums."""
        waiting, narrow = [(chunk, sums)], list[Chunk]()
        while waiting:
            here, (one, two) = waiting.pop()
            if one == two:
                continue
            halves = None
            if max(one[0], two[0]) > _READ_AT_ONCE and min(one[0], two[0]):
                halves = self._split(here, (one[0], two[0]))
            if halves is None:
                narrow.append(here)
            else:
                waiting += [(half, self.sums(half)) for half in halves[::-1]]
        return narrow

    def sums(self, chunk: Chunk) -> _Sums:
        """Return count and sums of a range on each server."""
        one, two = self._pool.map(lambda side: self._sum(side, chunk), (A, B))
        return one, two

    def _sum(self, side: int, chunk: Chunk) -> tuple[int, ...]:
        sql = sum_statement(self._comparison, side, chunk)
        row = session.one_row(self._connections[side], self._tables[side].login, sql)
        return tuple(int(value) for value in row)

    def _split(self, chunk: Chunk, rows: tuple[int, int]) -> tuple[Chunk, Chunk] | None:
        """Cut a range in the middle of what the side with more rows has."""
        side = A if rows[A] >= rows[B] else B
        table = self._tables[side]
        return chunks.split_chunk(
            self._connections[side], table.login, table.schema, chunk, rows[side] // 2
        )


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
