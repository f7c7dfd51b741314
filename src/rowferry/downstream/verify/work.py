"""What tasks do: sum up rows by bucket, pick the rows of buckets that differ, compare them.

A bucket is a part of the key's hash, so both sides put a row into the same one however they read
it. Buckets that differ are compared in groups, each of bounded size.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rowferry.downstream.verify import hash_kernels as kernels
from rowferry.downstream.verify.comparison import A, B, Comparison, Hashes

# No column of a table can have such names.
KEY, ROW = "\0key", "\0row"
_FEWEST_BUCKETS, _MOST_BUCKETS = 1 << 8, 1 << 16
EQUAL: Final = -1  # the group of a bucket that does not differ


def bucket_count(rows: int, chunk_rows: int) -> int:
    """Return how many buckets are used for about so many rows: a power of two."""
    wanted = max(_FEWEST_BUCKETS, min(_MOST_BUCKETS, rows // max(1, chunk_rows)))
    return 1 << (wanted - 1).bit_length()


@dataclass(frozen=True)
class Sums:
    """Rows of one side, counted and summed up by bucket."""

    counts: npt.NDArray[np.int64]
    sums: Hashes
    mixed: Hashes

    @classmethod
    def empty(cls, buckets: int) -> Sums:
        """Return the sums of nothing."""
        words = np.zeros(buckets, np.uint64)
        return cls(np.zeros(buckets, np.int64), words, words.copy())

    def add(self, keys: Hashes, rows: Hashes) -> None:
        """Take in some rows."""
        kernels.add_sums(keys, rows, self.counts, self.sums, self.mixed)

    def merge(self, other: Sums) -> None:
        """Take in what another task summed up."""
        self.counts.__iadd__(other.counts)
        self.sums.__iadd__(other.sums)
        self.mixed.__iadd__(other.mixed)

    def to_bytes(self) -> bytes:
        """Return its form between processes; `from_bytes` reads it back."""
        return b"".join(part.tobytes() for part in (self.counts, self.sums, self.mixed))

    @classmethod
    def from_bytes(cls, data: bytes) -> Sums:
        """Read what `to_bytes` wrote."""
        words = np.frombuffer(data, np.uint64).reshape(3, -1)
        return cls(words[0].astype(np.int64), words[1].copy(), words[2].copy())


def groups_of(a: Sums, b: Sums, most_rows: int) -> npt.NDArray[np.int32]:
    """Return each bucket's group: `EQUAL`, or a number; a group has about `most_rows` at most."""
    differ = (a.counts != b.counts) | (a.sums != b.sums) | (a.mixed != b.mixed)
    groups = np.full(len(differ), EQUAL, np.int32)
    before = np.cumsum(np.where(differ, a.counts + b.counts, 0)) - 1
    numbers = np.maximum(before[differ], 0) // max(1, 2 * most_rows)
    groups[differ] = np.unique(numbers, return_inverse=True)[1] if differ.any() else numbers
    return groups


def measure(comparison: Comparison, side: int, buckets: int, tables: Iterable[pa.Table]) -> Sums:
    """Sum up the rows of a side that come in."""
    sums = Sums.empty(buckets)
    for rows in tables:
        sums.add(*comparison.hashes(side, rows))
    return sums


def pick(
    comparison: Comparison,
    side: int,
    groups: npt.NDArray[np.int32],
    tables: Iterable[pa.Table],
) -> Iterator[tuple[int, bytes]]:
    """Yield the rows of differing buckets with their hashes, as frames by group."""
    mask = np.uint64(len(groups) - 1)
    for rows in tables:
        keys, whole = comparison.hashes(side, rows)
        mine = groups[(keys & mask).astype(np.int64)]
        places = np.flatnonzero(mine != EQUAL)
        if not len(places):
            continue
        order = places[np.argsort(mine[places], kind="stable")]
        hashed = rows.append_column(KEY, pa.array(keys)).append_column(ROW, pa.array(whole))
        sorted_rows = hashed.take(pa.array(order)).combine_chunks()
        numbers, starts = np.unique(mine[order], return_index=True)
        for number, start, stop in zip(numbers, starts, [*starts[1:], len(order)], strict=True):
            yield int(number), to_bytes(sorted_rows.slice(int(start), int(stop - start)))


@dataclass(frozen=True)
class Differences:
    """Rows that differ, some of a table.

    Attributes:
        only: rows that one side alone has, by side, in that side's columns.
        changed: rows that both sides have under one key, side by side.
    """

    only: tuple[pa.Table, pa.Table]
    changed: tuple[pa.Table, pa.Table]

    def __len__(self) -> int:
        return sum(t.num_rows for t in (*self.only, self.changed[A]))

    @property
    def keys(self) -> Hashes:
        """The hashes of the keys of all rows that differ."""
        parts = [t.column(KEY).to_numpy() for t in (*self.only, self.changed[A])]
        return np.concatenate(parts).astype(np.uint64)

    def among(self, keys: Hashes) -> Differences:
        """Return those whose keys are among some."""

        def kept(rows: pa.Table) -> pa.Table:
            return rows.filter(pa.array(np.isin(rows.column(KEY).to_numpy(), keys)))

        return Differences(
            (kept(self.only[A]), kept(self.only[B])), (kept(self.changed[A]), kept(self.changed[B]))
        )

    def to_bytes(self) -> list[bytes]:
        """Return its form between processes; `from_bytes` reads it back."""
        return [to_bytes(table) for table in (*self.only, *self.changed)]

    @classmethod
    def from_bytes(cls, frames: Sequence[bytes]) -> Differences:
        """Read what `to_bytes` wrote."""
        a, b, old, new = (from_bytes(frame) for frame in frames)
        return cls((a, b), (old, new))


def compare(comparison: Comparison, a: pa.Table, b: pa.Table) -> Differences:
    """Compare the rows of one group, as `pick` gave them.

    Equal rows are paired off, each as often as both sides have it. Of what is left, rows with the
    same key stand side by side; a key that a side has several times is not paired.
    """
    left = _unpaired(a, b)
    only = [a.take(pa.array(left[A])), b.take(pa.array(left[B]))]
    changed = [rows.slice(0, 0) for rows in only]
    if comparison.key:
        keys = [rows.column(KEY).to_numpy() for rows in only]
        _, at_a, at_b = np.intersect1d(_once(keys[A]), _once(keys[B]), return_indices=True)
        places = [np.flatnonzero(_is_once(k))[at] for k, at in zip(keys, (at_a, at_b), strict=True)]
        for side in (A, B):
            rest = np.ones(len(keys[side]), bool)
            rest[places[side]] = False
            changed[side] = only[side].take(pa.array(places[side]))
            only[side] = only[side].filter(pa.array(rest))
    return Differences((only[A], only[B]), (changed[A], changed[B]))


def _is_once(keys: Hashes) -> npt.NDArray[np.bool_]:
    _, place, times = np.unique(keys, return_inverse=True, return_counts=True)
    is_once: npt.NDArray[np.bool_] = times[place] == 1
    return is_once


def _once(keys: Hashes) -> Hashes:
    return keys[_is_once(keys)]


def _unpaired(a: pa.Table, b: pa.Table) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the places of the rows that have no equal one on the other side."""
    counts = a.num_rows, b.num_rows
    hashes = np.concatenate([t.column(ROW).to_numpy() for t in (a, b)]).astype(np.uint64)
    side = np.repeat(np.array([A, B]), counts)
    _, number = np.unique(hashes, return_inverse=True)
    totals = [np.bincount(number[side == s], minlength=len(hashes) or 1) for s in (A, B)]
    common = np.minimum(totals[A], totals[B])
    left = []
    for s in (A, B):
        mine = number[side == s]
        order = np.argsort(mine, kind="stable")
        ranked = mine[order]
        firsts = np.searchsorted(ranked, ranked)
        beyond = np.arange(len(ranked)) - firsts >= common[ranked]
        left.append(np.sort(order[beyond]))
    return left[A], left[B]


def empty_rows(comparison: Comparison, side: int) -> pa.Table:
    """Return no rows, in the form in which `pick` gives them."""
    schema = comparison.schemas[side]
    fields = [pa.field(n, schema.column(n).type.arrow) for n in comparison.wanted(side)]
    hashed = [pa.field(KEY, pa.uint64()), pa.field(ROW, pa.uint64())]
    return pa.schema(fields + hashed).empty_table()


def joined(comparison: Comparison, side: int, frames: Iterable[bytes]) -> pa.Table:
    """Return the rows of some frames of one side."""
    tables = [empty_rows(comparison, side)]
    wanted = tables[0].column_names
    tables += [from_bytes(frame).select(wanted) for frame in frames]
    return pa.concat_tables(tables).combine_chunks()


def to_bytes(rows: pa.Table) -> bytes:
    """Return rows as a frame; `from_bytes` reads it back."""
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    with pa.ipc.new_stream(sink, rows.schema, options=options) as writer:
        writer.write_table(rows)
    return bytes(sink.getvalue())


def from_bytes(frame: bytes | pa.Buffer) -> pa.Table:
    """Read what `to_bytes` wrote."""
    with pa.ipc.open_stream(frame) as reader:
        return reader.read_all()
