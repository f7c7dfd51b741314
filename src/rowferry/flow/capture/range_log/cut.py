"""Where to cut logs: commit dates, sizes, indexes. Pure functions over leaders' figures."""

from __future__ import annotations

from collections.abc import Sequence

from rowferry.flow.capture.range_log.client import LogHead


def stretch_end(heads: Sequence[LogHead], most_bytes: int, ceiling: int) -> int:
    """Return the commit-ts up to which all logs together hold about `most_bytes`."""
    if sum(h.log_bytes for h in heads) <= most_bytes:
        return ceiling
    for cut in _cuts(heads, most_bytes):
        return min(cut, ceiling)
    return ceiling


def size_cuts(heads: Sequence[LogHead], wish_bytes: int) -> list[int]:
    """Return commit-ts that cut the logs of one table into slices of about `wish_bytes`."""
    if sum(h.log_bytes for h in heads) <= wish_bytes * 3 // 2:
        return []
    return _cuts(heads, wish_bytes)


def _cuts(heads: Sequence[LogHead], wish_bytes: int) -> list[int]:
    steps: list[tuple[int, int]] = []
    for head in heads:
        before = 0
        for _, commit_ts, size in head.marks:
            steps.append((commit_ts, size - before))
            before = size
    cuts: list[int] = []
    gathered = 0
    for commit_ts, size in sorted(steps):
        gathered += size
        if gathered >= wish_bytes:
            if not cuts or commit_ts > cuts[-1]:
                cuts.append(commit_ts)
            gathered = 0
    return cuts


def index_window(head: LogHead, start: int, after: int, until: int) -> tuple[int, int, int]:
    """Return (from, until, bytes) in log indexes that surely hold all entries in (after, until].

    Marks are the only known points between `start` and the end, so the window may hold a little
    more on both sides; the reader drops by commit-ts what is outside.
    """
    begin, end = start, head.index_at_ts
    begin_bytes, end_bytes = 0, head.log_bytes
    for index, commit_ts, size in head.marks:
        if commit_ts <= after and index > begin:
            begin, begin_bytes = index, size
        if commit_ts > until:
            end, end_bytes = min(end, index), size
            break
    return begin, end, max(0, end_bytes - begin_bytes)
