"""Splitting a range: both halves get folders of their own; the master then makes them the truth."""

from __future__ import annotations

import shutil
from pathlib import Path

from rowferry.errors import StoreDamaged
from rowferry.refstore.meta import Fault, RangeMeta, RequestRefused
from rowferry.refstore.range import Range
from rowferry.refstore.storage.checkpoint import NAME as CHECKPOINT
from rowferry.refstore.storage.checkpoint import Checkpoint


def split(held: Range, key: bytes, new_range_id: int, heartbeat: int) -> tuple[Range, Range]:
    """Return both halves, open and durable; the range itself is drained and stays as it is.

    Both keep the log with its indexes, for their own keys, and the snapshots. Whatever an earlier,
    unfinished split left in their folders is thrown away.
    """
    held.drain(heartbeat)
    with held.changed:
        kept = held.checkpoint()
        key = key or middle(kept, held.meta)
        if not (held.meta.start < key < held.meta.end):
            words = f"key {key.hex()} does not lie inside range {held.meta.range_id}"
            raise RequestRefused(Fault.BAD_REQUEST, words)
        left, right = held.meta.halves(key, new_range_id, held.log.last_index)
        return _half(held, left, kept), _half(held, right, kept)


def middle(kept: Checkpoint, meta: RangeMeta) -> bytes:
    """Return the key that halves the rows."""
    if len(kept.run) < 2:
        raise RequestRefused(
            Fault.BAD_REQUEST, f"range {meta.range_id} has too few rows; give a key"
        )
    return kept.run.pairs.key(len(kept.run) // 2)


def require_whole(folder: Path, meta: RangeMeta) -> None:
    """Raise StoreDamaged if a split made this range and its files are gone: it is not empty."""
    if meta.version > 1 and not (folder / CHECKPOINT).exists():
        raise StoreDamaged(
            f"range {meta.range_id} was made by a split, but its files in {meta.folder} are gone; "
            "restore them from a copy"
        )


def _half(held: Range, meta: RangeMeta, kept: Checkpoint) -> Range:
    folder = held.folder.parent / meta.folder
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    fsync = held.options.fsync
    run = kept.run.between(meta.start, meta.end)
    Checkpoint(kept.index, run, kept.decided, kept.forgotten_ts).write(folder, fsync)
    held.log.write_span(folder, meta.start, meta.end)
    held.journal.write_fence(folder)
    half = Range(folder, meta, held.clock, held.options)
    half.schema_version = held.schema_version
    half.snapshots.inherit(held.snapshots, meta.start, meta.end)
    return half
