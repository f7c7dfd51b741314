"""How snapshots of ranges are cut into segments, and how far they are."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rowferry.change.plan import Segment, TableSlice
from rowferry.change.position import RangeProgress, Stage
from rowferry.flow.capture.contract import Appetite, SnapshotShare
from rowferry.flow.capture.range_log.state import RangeState, RangeTable

PART_BYTES = 8 << 20  # what a leader's split_keys aim at


def cut_snapshots(state: RangeState, appetite: Appetite) -> list[Segment]:
    """Return segments for the next parts of all snapshots, and move the state behind them.

    Parts of a range are taken in key order, so that its last key says how far it is.
    """
    segments: list[Segment] = []
    left = appetite.snapshot_bytes or appetite.stretch_bytes
    for progress in state.in_snapshot():
        if left <= 0:
            break
        if progress.end_key and progress.last_snapshot_key >= progress.end_key:
            # A split cut it off behind what was delivered: nothing of it is left.
            state.ranges[progress.range_id] = _done(progress)
            continue
        table = state.tables[progress.table_id]
        wish = max(1, appetite.segment_bytes(table.schema.id) // PART_BYTES)
        bounds = [b for b in state.parts.get(progress.range_id, []) if _inside(b, progress)]
        while left > 0:
            taken, bounds = bounds[:wish], bounds[wish:]
            last = taken[-1] if bounds else ""  # empty: up to the end of the range
            size = max(1, len(taken)) * PART_BYTES
            part = _part(progress, last)
            mine = slice_of(table, progress.physical_id)
            _add(segments, part, size, wish * PART_BYTES, mine, table.low, len(taken) + (not last))
            left -= size
            progress = progress.with_(last_snapshot_key=last) if last else _done(progress)
            state.ranges[progress.range_id] = progress
            if not last:
                break
    if not state.in_snapshot():
        state.parts.clear()
    return segments


def shares(state: RangeState) -> tuple[SnapshotShare, ...]:
    """Return the tables whose snapshot has not ended, in parts."""
    shares_left = []
    of_tables: dict[int, list[RangeProgress]] = {}
    for progress in state.ranges.values():
        of_tables.setdefault(progress.table_id, []).append(progress)
    for table_id, table in state.tables.items():
        mine = of_tables.get(table_id, [])
        if all(r.stage is Stage.LOG for r in mine):
            continue
        total = sum(len(state.parts.get(r.range_id, ())) + 1 for r in mine)
        done = sum(_parts_done(r, state.parts.get(r.range_id, [])) for r in mine)
        shares_left.append(SnapshotShare(table.schema.id, done, total))
    return tuple(shares_left)


def slice_of(table: RangeTable, physical_id: int) -> TableSlice:
    """Return the slice that a physical table's rows belong to now."""
    schema = table.schema
    own = physical_id if schema.partitioning is not None else None
    return TableSlice(schema.id, schema.table_id, schema.version, own)


def _done(progress: RangeProgress) -> RangeProgress:
    return progress.with_(stage=Stage.LOG, last_log_index=progress.init_snapshot_version)


def _inside(bound: str, progress: RangeProgress) -> bool:
    """Return whether a cut lies in what is left of a range's snapshot."""
    after = max(progress.last_snapshot_key, progress.start_key)
    return after < bound and (not progress.end_key or bound < progress.end_key)


def _parts_done(progress: RangeProgress, bounds: list[str]) -> int:
    if progress.stage is Stage.LOG:
        return len(bounds) + 1
    return sum(1 for b in bounds if b <= progress.last_snapshot_key)


def _part(progress: RangeProgress, last: str) -> dict[str, Any]:
    """Return where to read: after the last key delivered, up to and including `last`."""
    return {
        "range_id": progress.range_id,
        "version": progress.current_snapshot_version,
        "start": progress.start_key,
        "last": progress.last_snapshot_key,
        "end": last + "00" if last else progress.end_key,
    }


def _add(
    segments: list[Segment],
    part: dict[str, Any],
    size: int,
    most: int,
    mine: TableSlice,
    low: int,
    share: int,
) -> None:
    """Add a part, to the last segment if it is the same table's and stays small enough."""
    if segments and segments[-1].slices == (mine,) and segments[-1].log_bytes + size <= most:
        last = segments[-1]
        last.read["parts"].append(part)
        segments[-1] = replace(last, log_bytes=last.log_bytes + size, share=last.share + share)
        return
    read = {"kind": "snapshot", "commit_ts": low, "parts": [part]}
    segments.append(
        Segment(len(segments), read, (mine,), low, low, size, snapshot=True, share=share)
    )
