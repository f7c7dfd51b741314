"""Segments of many tables are joined: each table in each segment costs a file of its own.

A segment is framed as long as one task should read. With a thousand tables its files would be tiny
and many. So neighbours become one segment again, as long as no table fills a file; for that all
processors have work, several tasks then read the same stretch of log, each for other tables.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final, TypeAlias, cast

from rowferry.change.plan import Segment, TableSlice
from rowferry.flow.capture.binlog.frame.kept_log import KeptBytes, joined_run
from rowferry.flow.capture.contract import Appetite

SliceBytes: TypeAlias = Mapping[TableSlice, int]

MANY: Final = 64  # tables; of fewer nothing is joined
BYTES_A_SLICE: Final = 256 << 10  # of log: so much of a table makes a file worth its cost
LONGEST: Final = 256 << 20
READERS: Final = 4  # of one stretch: reading again costs less than a second file of each table
LEAST_PART: Final = 4 << 20  # of log: so much is worth a reader of its own
_BYTES_A_FILE: Final = 64 << 10  # of log, whose way takes as long as the making of a file
_SAME: Final = ("kind", "server", "file", "clamp_ms", "fixed_ts", "maria", "tail")


def join_segments(
    segments: Sequence[Segment], sizes: Sequence[SliceBytes | None], appetite: Appetite
) -> list[Segment]:
    """Return the segments, neighbours of many tables joined, then divided by table.

    Every table's rows stay, in their order.

    Args:
        segments: as they were framed.
        sizes: how much log each slice of each segment has; None: it stays alone.
        appetite: how long a table's part may be, and which dates may not share a segment.
    """
    processors = max(2, os.cpu_count() or 1)
    total = max(1, sum(s.log_bytes for s in segments))
    joined = []
    for segment, size in _joined_all(segments, sizes, appetite, processors):
        wanted = -(-segment.log_bytes * processors // total)  # shares of the whole
        count = min(wanted, READERS, segment.log_bytes // LEAST_PART)
        if size is None or _is_carried(segment) or count < 2:
            joined.append(segment)
        else:
            joined += _divided(segment, size, count)
    return joined


def _joined_all(
    segments: Sequence[Segment],
    sizes: Sequence[SliceBytes | None],
    appetite: Appetite,
    processors: int,
) -> Iterator[tuple[Segment, SliceBytes | None]]:
    """Yield the segments, neighbours joined; with the sizes, where there are many tables."""
    total = sum(s.log_bytes for s in segments)
    longest = max((s.log_bytes for s in segments), default=0)
    share = total // -(-processors // READERS) + longest // 2  # they are shared out whole
    last: Segment | None = None
    held: dict[TableSlice, int] | None = None  # of the last one
    for segment, size in zip(segments, sizes, strict=True):
        if last is not None and held is not None and size is not None:
            together = {one: held.get(one, 0) + size.get(one, 0) for one in {**held, **size}}
            most = min(len(together) * BYTES_A_SLICE, LONGEST, share)
            short = last.log_bytes + segment.log_bytes <= most
            if len(together) >= MANY and short and _fit(together, appetite):
                whole = _joined(last, segment, appetite)
                if whole is not None:
                    last, held = whole, together
                    continue
        if last is not None:
            yield last, _if_many(held)
        last, held = segment, dict(size) if size is not None else None
    if last is not None:
        yield last, _if_many(held)


def _if_many(sizes: SliceBytes | None) -> SliceBytes | None:
    return sizes if sizes is not None and len(sizes) >= MANY else None


def _divided(segment: Segment, sizes: SliceBytes, count: int) -> list[Segment]:
    """Return segments of the same stretch, each with a part of the tables, about equally long."""
    by_table: dict[int, list[TableSlice]] = {}
    for one in segment.slices:  # partitions of a table stay together: a reader knows all or none
        by_table.setdefault(one.table_id, []).append(one)
    weights = {
        table: sum(sizes.get(one, 0) + _BYTES_A_FILE for one in slices)
        for table, slices in by_table.items()
    }
    loads, part_of = [0] * count, {}
    for table in sorted(by_table, key=lambda table: -weights[table]):
        part_of[table] = loads.index(min(loads))
        loads[part_of[table]] += weights[table]
    parts = [
        _only(segment, [one for one in segment.slices if part_of[one.table_id] == part])
        for part in range(count)
        if loads[part]
    ]
    return _with_shares(segment, parts, sizes)


def _only(segment: Segment, slices: Sequence[TableSlice]) -> Segment:
    """Return the segment for these slices alone."""
    place_of = {one: place for place, one in enumerate(slices)}
    names = [
        [*name, place_of[segment.slices[place]]]
        for *name, place in segment.read["names"]
        if segment.slices[place] in place_of
    ]
    return replace(segment, read={**segment.read, "names": names}, slices=tuple(slices))


def _with_shares(whole: Segment, parts: Sequence[Segment], sizes: SliceBytes) -> list[Segment]:
    """Return the parts with log bytes that add up to those of the whole."""
    own = [sum(sizes.get(one, 0) for one in part.slices) for part in parts]
    total = max(1, sum(own))
    shares = [whole.log_bytes * size // total for size in own]
    shares[0] += whole.log_bytes - sum(shares)
    return [replace(p, log_bytes=share) for p, share in zip(parts, shares, strict=True)]


def _fit(sizes: SliceBytes, appetite: Appetite) -> bool:
    """Return whether no table has more than makes a whole file."""
    return all(size <= appetite.segment_bytes(one.table) for one, size in sizes.items())


def _joined(one: Segment, other: Segment, appetite: Appetite) -> Segment | None:
    """Return two segments as one; None: something lies between them, or they do not fit."""
    a, b = one.read, other.read
    if a["to"] != b["from"] or any(a[key] != b[key] for key in _SAME):
        return None
    if appetite.partition_label(one.first_commit_ts) != appetite.partition_label(
        other.last_commit_ts
    ):
        return None
    slices = tuple(dict.fromkeys((*one.slices, *other.slices)))
    place_of = {piece: place for place, piece in enumerate(slices)}
    if len({(s.table_id, s.physical_id) for s in slices}) != len(slices):
        return None  # a table goes on with another version
    names: dict[tuple[str, str, int], int] = {}
    for segment in (one, other):
        for database, table, partition, place in segment.read["names"]:
            wanted = place_of[segment.slices[place]]
            if names.setdefault((database, table, partition), wanted) != wanted:
                return None
    return replace(
        one,
        read={**a, "to": b["to"], "names": [[*name, place] for name, place in names.items()]},
        slices=slices,
        last_commit_ts=other.last_commit_ts,
        log_bytes=one.log_bytes + other.log_bytes,
        near=joined_run([*_pieces(one), *_pieces(other)]) if one.near and other.near else (),
    )


def _pieces(segment: Segment) -> tuple[KeptBytes, ...]:
    return cast(tuple[KeptBytes, ...], segment.near)


def _is_carried(segment: Segment) -> bool:
    """Return whether a segment, as it was framed, has few bytes that it takes along."""
    return len(segment.near) == 1 and bool(_pieces(segment)[0].data)
