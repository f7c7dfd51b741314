"""Segments of many tables are joined: each table in each segment costs a file of its own.

A segment is framed as long as one task should read. With a thousand tables its files would be tiny
and many. So neighbours become one segment again, as long as there is work for all processors and no
table fills a file.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final, TypeAlias

from rowferry.change.plan import Segment, TableSlice
from rowferry.flow.capture.contract import Appetite

SliceBytes: TypeAlias = Mapping[TableSlice, int]

MANY: Final = 64  # tables; of fewer nothing is joined
BYTES_A_SLICE: Final = 256 << 10  # of log: so much of a table makes a file worth its cost
LONGEST: Final = 256 << 20
_SAME: Final = ("kind", "server", "file", "clamp_ms", "fixed_ts", "maria", "tail")


def join_segments(
    segments: Sequence[Segment], sizes: Sequence[SliceBytes | None], appetite: Appetite
) -> list[Segment]:
    """Return the segments, neighbours of many tables joined; order and rows stay.

    Args:
        segments: as they were framed.
        sizes: how much log each slice of each segment has; None: it stays alone.
        appetite: how long a table's part may be, and which dates may not share a segment.
    """
    total = sum(s.log_bytes for s in segments)
    longest = max(s.log_bytes for s in segments)
    share = total // max(2, os.cpu_count() or 1) + longest // 2  # they are shared out whole
    found: list[Segment] = []
    held: dict[TableSlice, int] | None = None  # of the last one found
    for segment, size in zip(segments, sizes, strict=True):
        if held is not None and size is not None:
            together = {one: held.get(one, 0) + size.get(one, 0) for one in {**held, **size}}
            most = min(len(together) * BYTES_A_SLICE, LONGEST, share)
            short = found[-1].log_bytes + segment.log_bytes <= most
            if len(together) >= MANY and short and _fit(together, appetite):
                whole = _joined(found[-1], segment, appetite)
                if whole is not None:
                    found[-1], held = whole, together
                    continue
        found.append(segment)
        held = dict(size) if size is not None else None
    return found


def _fit(sizes: SliceBytes, appetite: Appetite) -> bool:
    """Return whether no table has more than makes a whole file."""
    return all(size <= appetite.segment_bytes(one.table) for one, size in sizes.items())


def _joined(one: Segment, other: Segment, appetite: Appetite) -> Segment | None:
    """Return two segments as one; None: something lies between them, or they do not fit."""
    a, b = one.read, other.read
    if a["to"] != b["from"] or any(a[key] != b[key] for key in _SAME):
        return None
    if appetite.same_day(one.first_commit_ts) != appetite.same_day(other.last_commit_ts):
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
        payload=b"",
    )
