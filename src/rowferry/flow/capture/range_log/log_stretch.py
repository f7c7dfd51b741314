"""One stretch of the logs of all ranges: how far it reaches, and its segments."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Any

from rowferry.change.chunk import SchemaChange
from rowferry.change.plan import Segment
from rowferry.change.position import PHYSICAL_SHIFT, RangeProgress
from rowferry.flow.capture.contract import Appetite
from rowferry.flow.capture.label_end import label_end
from rowferry.flow.capture.range_log.client import KnownRange, LogHead, RangeClient
from rowferry.flow.capture.range_log.snapshot import slice_of
from rowferry.flow.capture.range_log.state import RangeState

MARK_BYTES = 4 << 20
FEW_DAYS = 3

Active = tuple[RangeProgress, KnownRange, LogHead]


def reach(
    client: RangeClient,
    state: RangeState,
    behind: list[tuple[RangeProgress, KnownRange]],
    ceiling: int,
    appetite: Appetite,
) -> tuple[list[Active], int, int]:
    """Return the logs with rows, and the first and last commit-ts of one date and size."""
    first = state.resolved_ts + 1
    if not behind:
        return [], first, ceiling
    asked = [(r, p.last_log_index) for p, r in behind]
    for empty_days in count():
        today = min(ceiling, label_end(first, ceiling, appetite.partition_label))
        heads = client.heads(asked, at_ts=today, mark_bytes=MARK_BYTES)
        end = stretch_end(heads, appetite.stretch_bytes, today)
        if end < today:
            heads = client.heads(asked, at_ts=end, mark_bytes=MARK_BYTES)
            today = end
        active = [
            (p, r, h)
            for (p, r), h in zip(behind, heads, strict=True)
            if h.index_at_ts > p.last_log_index
        ]
        if active or today >= ceiling:
            break
        first = today + 1
        if empty_days >= FEW_DAYS:
            first = _before_rows(client, asked, first, ceiling)
    return active, first, today


def _before_rows(
    client: RangeClient, asked: list[tuple[KnownRange, int]], first: int, ceiling: int
) -> int:
    """Return a commit-ts from `first` on that is shortly before the next row, if there is one.

    Years may lie between: they are halved, not walked through.
    """
    end = ceiling
    while end - first > 1 << PHYSICAL_SHIFT:
        middle = (first + end) // 2
        heads = client.heads(asked, at_ts=middle)
        if any(h.index_at_ts > index for h, (_, index) in zip(heads, asked, strict=True)):
            end = middle
        else:
            first = middle + 1
    return first


def cut_logs(
    state: RangeState,
    active: list[Active],
    bounds: tuple[int, int],
    ddls: list[SchemaChange],
    appetite: Appetite,
    by_range: bool,
) -> list[Segment]:
    """Return the segments of a stretch: by table or partition, or by range, and by size."""
    first, ceiling = bounds
    groups: dict[tuple[int, int], list[Active]] = {}
    for one in active:
        progress = one[0]
        part = progress.range_id if by_range else 0
        groups.setdefault((progress.physical_id, part), []).append(one)
    segments: list[Segment] = []
    for group in groups.values():
        group.sort(key=lambda one: one[0].start_key)
        table = state.tables[group[0][0].table_id]
        cuts = size_cuts([h for _, _, h in group], appetite.segment_bytes(table.schema.id))
        after = 0
        for until in [*(c for c in cuts if c < ceiling), ceiling]:
            spans = [s for one in group if (s := _span(state, one, after, until, ddls))]
            if spans:
                head = {"kind": "log", "after_ts": after, "until_ts": until, "spans": spans}
                head["without_old_value"] = state.without_old_value
                head["cluster_id"] = state.cluster_id
                size = sum(s.pop("bytes") for s in spans)
                mine = (slice_of(table, group[0][0].physical_id),)
                begin = min(max(after + 1, first), until)
                segments.append(Segment(len(segments), head, mine, begin, until, size))
            after = until
    return segments


def _span(
    state: RangeState, one: Active, after: int, until: int, ddls: list[SchemaChange]
) -> dict[str, Any] | None:
    """Return where one range's share of (after, until] lies; None: nothing of it."""
    progress, _, head = one
    begin, end, size = index_window(head, progress.last_log_index, after, until)
    if end <= begin:
        return None
    span: dict[str, Any] = {
        "range_id": progress.range_id,
        "start": progress.start_key,
        "end": progress.end_key,
        "from": begin,
        "until": end,
        "bytes": size,
    }
    table = state.tables[progress.table_id]
    newest = progress.current_snapshot_ts
    lost = progress.current_snapshot_version != progress.init_snapshot_version
    if lost and state.resolved_ts < newest:
        altered = table.schema.version > table.low or any(
            c.schema and c.schema.table_id == progress.table_id and c.commit_ts <= newest
            for c in ddls
        )
        if not altered:  # else the images after the DDL carry what the snapshot rows could not
            # From here on, not from the first snapshot: that log may be gone, and the last
            # change of a key that this span holds is not before it.
            span["window"] = [begin, progress.current_snapshot_version, newest]
    return span


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
