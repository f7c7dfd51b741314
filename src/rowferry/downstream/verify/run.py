"""One comparison from beginning to end: tables one after the other, each narrowed down."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rowferry.change.sqltype import Kind
from rowferry.change.table import Column, TableId, TableSchema
from rowferry.columnar.fields import Field, element_text
from rowferry.downstream.verify.comparison import A, B, Comparison, Hashes, compare_tables
from rowferry.downstream.verify.lake import LakeTable
from rowferry.downstream.verify.names import Names
from rowferry.downstream.verify.ranges import Ranges, can_sum
from rowferry.downstream.verify.repair import Repair
from rowferry.downstream.verify.side import DatabaseSide, DatabaseTable, Side, SideTable
from rowferry.downstream.verify.work import EQUAL, Differences, Sums, bucket_count, groups_of
from rowferry.mysql.key_ranges import Chunk
from rowferry.mysql.session import Flavour

_UNKNOWN_ROWS: Final = 1 << 26  # of a storage, for the number of buckets
_Groups = npt.NDArray[np.int32]


class ComparisonRunner(Protocol):
    """Carries out the work of a comparison, on Spark or in this process."""

    def narrowed(self, ranges: Ranges) -> tuple[tuple[int, int], list[Chunk]]:
        """Return how many rows each side has, and the key ranges that differ."""
        ...

    def sums(
        self, comparison: Comparison, tables: tuple[SideTable, SideTable], buckets: int
    ) -> tuple[Sums, Sums]:
        """Sum up the rows of both sides."""
        ...

    def differences(
        self, comparison: Comparison, tables: tuple[SideTable, SideTable], groups: _Groups
    ) -> Iterator[Differences]:
        """Compare the rows of the buckets that differ, group by group, in any order."""
        ...


@dataclass(frozen=True)
class VerifyRequest:
    """What is compared, and how.

    Attributes:
        ignored: columns that are left out, with wildcards.
        chunk_rows: rows of a key range, and about of what one task compares at once.
        tries: how often what differs is read; more than 1: writers may be at work.
        wait_s: between two tries.
        shown: rows of each kind that a result keeps for people.
        repairs: whether results come with statements.
    """

    names: Names
    ignored: tuple[str, ...] = ()
    chunk_rows: int = 100_000
    tries: int = 1
    wait_s: float = 2.0
    shown: int = 10
    repairs: bool = False


@dataclass
class TableResult:
    """What was found about one table.

    Attributes:
        rows: how many rows each side has; None: the table is not there, or could not be compared.
        only: rows that one side alone has, by side.
        changed: rows that differ under one key.
        columns: in how many changed rows each column differs.
        lone: columns that one side alone has, by side.
        samples: some rows, as (kind, key and values of A, those of B).
        online: writers may be at work, and what differs was read again.
    """

    name: TableId
    target: TableId
    rows: tuple[int | None, int | None] = (None, None)
    only: list[int] = field(default_factory=lambda: [0, 0])
    changed: int = 0
    columns: dict[str, int] = field(default_factory=dict)
    lone: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    samples: list[dict[str, Any]] = field(default_factory=list)
    missing: str = ""  # "a" or "b": the side that lacks the table
    tries: int = 1
    repair: Repair | None = None
    online: bool = False

    @property
    def is_equal(self) -> bool:
        """Whether nothing differs. Rows that only a moment told apart count where it was asked so.

        That is `online`: what differs is read again. Else a side that changes makes it unknown.
        """
        return self._nothing_differs and (self.online or not self.is_changing)

    @property
    def is_changing(self) -> bool:
        """Whether a side was written to meanwhile: no row differs, and yet the counts do."""
        return self._nothing_differs and self.rows[A] != self.rows[B]

    @property
    def _nothing_differs(self) -> bool:
        same_rows = not (self.only[A] or self.only[B] or self.changed)
        return same_rows and not self.missing and self.lone == ((), ())

    def to_json(self) -> dict[str, Any]:
        """Return the form for programs."""
        return {
            "table": str(self.name),
            "target": str(self.target),
            "equal": self.is_equal,
            "changing": self.is_changing,
            "rows": {"a": self.rows[A], "b": self.rows[B]},
            "only_in_a": self.only[A],
            "only_in_b": self.only[B],
            "changed": self.changed,
            "columns": self.columns,
            "columns_only_in_a": list(self.lone[A]),
            "columns_only_in_b": list(self.lone[B]),
            **({"table_missing_in": self.missing} if self.missing else {}),
            "tries": self.tries,
            "samples": self.samples,
        }


def verify(
    a: Side,
    b: Side,
    request: VerifyRequest,
    runner: ComparisonRunner,
    wait: Callable[[float], None] = time.sleep,
) -> Iterator[TableResult]:
    """Compare two sides; yield each table's result as it is known, in the order of names.

    Raises:
        BadInput: what is asked for cannot be compared.
        RowferryError: a side cannot be read.
    """
    names = request.names
    ours = a.schemas(names.keeps)
    wanted = {names.target(name) for name in ours}
    databases = {name.database for name in wanted}
    theirs = b.schemas(lambda name: name.database in databases)
    both, lone, extra = names.pairs(ours, theirs)
    tables = [(name, target, "") for name, target in both]
    tables += [(name, names.target(name), "b") for name in lone]
    tables += [(target, target, "a") for target in extra]
    for name, target, missing in sorted(tables):
        if missing:
            yield TableResult(name, target, missing=missing)
        else:
            pair = _Pair(a, b, ours[name], theirs[target], request, runner)
            yield pair.settle(wait)


class _Pair:
    """One table of both sides."""

    def __init__(
        self,
        a: Side,
        b: Side,
        ours: TableSchema,
        theirs: TableSchema,
        request: VerifyRequest,
        runner: ComparisonRunner,
    ) -> None:
        self._sides, self._schemas = (a, b), (ours, theirs)
        self._request, self._runner = request, runner
        self._tables = a.table(ours), b.table(theirs)
        keys = self._tables[A].key, self._tables[B].key
        compared = compare_tables(ours, theirs, keys, request.ignored)
        a_lake, b_lake = (isinstance(table, LakeTable) for table in self._tables)
        self._comparison = replace(compared, lakes=(a_lake, b_lake))
        self._groups: _Groups | None = None
        self._rows: tuple[int | None, int | None] = (None, None)
        self._keys: Hashes = np.zeros(0, np.uint64)  # of what differed in the last try

    def settle(self, wait: Callable[[float], None]) -> TableResult:
        """Compare, and compare again what differs until it does not, or tries are over.

        A row counts only if it differed in every try.
        """
        among: Hashes | None = None
        result = self._compared(None)
        for number in range(2, self._request.tries + 1):
            if not (result.only[A] or result.only[B] or result.changed):
                break
            among = self._keys
            if result.repair is not None:
                result.repair.close()
            wait(self._request.wait_s)
            self._look_again()
            result = self._compared(among)
            result.tries = number
        return result

    def _compared(self, among: Hashes | None) -> TableResult:
        comparison = self._comparison
        if self._groups is None:
            self._groups = self._differing_groups()
        a, b = (schema.id for schema in self._schemas)
        online = self._request.tries > 1
        result = TableResult(a, b, rows=self._rows, lone=comparison.lone, online=online)
        if self._request.repairs:
            target = self._sides[B]
            flavour = target.facts.flavour if isinstance(target, DatabaseSide) else Flavour.MYSQL
            result.repair = Repair(comparison, flavour)
        keys = [np.zeros(0, np.uint64)]
        if (self._groups != EQUAL).any():
            for differences in self._runner.differences(comparison, self._tables, self._groups):
                kept = differences if among is None else differences.among(among)
                if len(kept):
                    self._take(result, kept)
                    keys += [kept.keys] if self._request.tries > 1 else []
        self._keys = np.concatenate(keys)
        return result

    def _differing_groups(self) -> _Groups:
        """Find the buckets that differ; servers of one kind first find the key ranges."""
        comparison, chunk_rows = self._comparison, self._request.chunk_rows
        if not self._narrow():
            return np.full(1, EQUAL, np.int32)
        a, b = (side.cut(table) for side, table in zip(self._sides, self._tables, strict=True))
        self._tables = a, b
        known = [t for t in (a, b) if isinstance(t, DatabaseTable)]
        rows = max((sum(c.rows if c else 0 for c in t.chunks) for t in known), default=0)
        buckets = bucket_count(rows or _UNKNOWN_ROWS, chunk_rows)
        sums = self._runner.sums(comparison, (a, b), buckets)
        if self._rows == (None, None):
            self._rows = int(sums[A].counts.sum()), int(sums[B].counts.sum())
        return groups_of(sums[A], sums[B], chunk_rows)

    def _narrow(self) -> bool:
        """Leave only key ranges that differ, where servers can tell; False: none does."""
        one, two = self._tables
        if not can_sum(self._comparison, one, two):
            return True
        one = self._sides[A].cut(one)
        assert isinstance(one, DatabaseTable) and isinstance(two, DatabaseTable)
        self._rows, ranges = self._runner.narrowed(Ranges(self._comparison, (one, two)))
        a, b = (replace(table, chunks=tuple(ranges)) for table in (one, two))
        self._tables = a, b
        return bool(ranges)

    def _look_again(self) -> None:
        """Take in what a storage got meanwhile; a server's key ranges stay."""
        tables = [
            table if isinstance(table, DatabaseTable) else side.table(table.schema)
            for side, table in zip(self._sides, self._tables, strict=True)
        ]
        self._tables = tables[A], tables[B]

    def _take(self, result: TableResult, differences: Differences) -> None:
        result.only[A] += differences.only[A].num_rows
        result.only[B] += differences.only[B].num_rows
        result.changed += differences.changed[A].num_rows
        differing = self._comparison.differing(*differences.changed)
        for name, rows in differing.items():
            result.columns[name] = result.columns.get(name, 0) + int(rows.sum())
        if result.repair is not None:
            result.repair.add(differences)
        self._sample(result, differences, differing)

    def _sample(
        self,
        result: TableResult,
        differences: Differences,
        differing: dict[str, npt.NDArray[np.bool_]],
    ) -> None:
        had = {kind: sum(s["kind"] == kind for s in result.samples) for kind in _KINDS}
        for kind, rows in zip(_KINDS, (*differences.only, differences.changed[A]), strict=True):
            for place in range(min(rows.num_rows, self._request.shown - had[kind])):
                sample: dict[str, Any] = {"kind": kind}
                if kind == "changed":
                    names = [n for n, rows_ in differing.items() if rows_[place]]
                    sample["key"] = self._values(
                        A, differences.changed[A], place, self._comparison.key
                    )
                    sample["a"] = self._values(A, differences.changed[A], place, names)
                    sample["b"] = self._values(B, differences.changed[B], place, names)
                else:
                    side = A if kind == "only_in_a" else B
                    key = self._comparison.key or self._comparison.names
                    sample["key"] = self._values(side, rows, place, key)
                result.samples.append(sample)

    def _values(
        self, side: int, rows: pa.Table, place: int, names: list[str] | tuple[str, ...]
    ) -> dict[str, Any]:
        own = {pair[A].name: pair[side] for pair in self._comparison.columns}
        return {name: self._value(side, own[name], rows, place) for name in names}

    def _value(self, side: int, column: Column, rows: pa.Table, place: int) -> Any:
        """Return a value as people write it: of an ENUM or a SET, the names."""
        values = rows.column(column.name).slice(place, 1).combine_chunks()
        if column.type.kind in (Kind.ENUM, Kind.SET) and values.null_count == 0:
            values = element_text(self._schemas[side], Field(column, values))
        return _shown(values[0].as_py())


_KINDS: Final = ("only_in_a", "only_in_b", "changed")


def _shown(value: Any) -> Any:
    return f"0x{value.hex()}" if isinstance(value, bytes) else value
