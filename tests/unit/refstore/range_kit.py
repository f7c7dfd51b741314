"""A range over a temporary folder with a clock that the test turns."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa

from rowferry.flow.capture.range_log.page import read_page
from rowferry.refstore import cdc as cdc_half
from rowferry.refstore.master.timestamps import Clock
from rowferry.refstore.meta import RangeMeta
from rowferry.refstore.range import Range, RangeOptions
from rowferry.refstore.rows.mutations import OP_DELETE, OP_PUT
from rowferry.refstore.rows.writes import Writes
from rowferry.wire import range_cdc_pb2 as cdc
from rowferry.wire import store_pb2 as wire

META = RangeMeta(7, b"a", b"z", physical_id=0)


class Timer:
    """Timestamps 1, 2, 3, … and a monotonic clock, both under the test's control."""

    def __init__(self, start: int = 100) -> None:
        self.ts = start
        self.seconds = 0.0

    def next(self) -> int:
        self.ts += 1
        return self.ts

    def monotonic(self) -> float:
        return self.seconds


def open_range(
    folder: Path, timer: Timer, options: RangeOptions | None = None, meta: RangeMeta = META
) -> Range:
    clock = Clock(timer.next, timer.monotonic)
    clock.now()
    return Range(folder, meta, clock, options or RangeOptions(), timer.monotonic)


def request(
    start_ts: int,
    rows: dict[bytes, bytes | None],
    primary: bool = True,
    ops: list[int] | None = None,
    read_ts: int | None = None,
) -> wire.WriteRequest:
    keys = sorted(rows)
    kinds = ops or [OP_DELETE if rows[k] is None else OP_PUT for k in keys]
    writes = Writes(
        pa.array(keys, pa.large_binary()),
        pa.array([rows[k] for k in keys], pa.large_binary()),
        np.array(kinds, np.uint8),
    )
    return wire.WriteRequest(
        start_ts=start_ts,
        read_ts=start_ts if read_ts is None else read_ts,
        mutations=writes.form(),
        primary_key=keys[0],
        primary=primary,
    )


def log_of(
    held: Range, after: int = 0, **more: int
) -> tuple[list[tuple[bytes, bytes, bytes | None, int]], cdc.CdcPullLogResponse]:
    """Return the log's entries (key, value, old value, commit-ts) and the answer's other fields."""
    epoch = cdc.RangeEpoch(conf_ver=held.meta.conf_ver, version=held.meta.version)
    asked = cdc.CdcPullLogRequest(
        range_id=held.meta.range_id, range_epoch=epoch, last_log_index=after, **more
    )
    page, rest = read_page(cdc_half.pull_log(held, asked), 2, "log")
    rows = []
    for i in range(len(page)):
        old = None
        if page.old_len[i] >= 0:
            at = int(page.old_at[i])
            old = page.raw[at : at + int(page.old_len[i])].tobytes()
        rows.append((page.key(i), page.value(i), old, int(page.commit_ts[i])))
    return rows, cdc.CdcPullLogResponse.FromString(rest)


def head_of(held: Range, after: int = 0, **more: int) -> cdc.CdcPullLogResponse:
    epoch = cdc.RangeEpoch(conf_ver=held.meta.conf_ver, version=held.meta.version)
    asked = cdc.CdcPullLogRequest(
        range_id=held.meta.range_id,
        range_epoch=epoch,
        last_log_index=after,
        head_only=True,
        **more,
    )
    return cdc.CdcPullLogResponse.FromString(cdc_half.pull_log(held, asked))


def snapshot_of(held: Range, version: int, **more: object) -> list[tuple[bytes, bytes, int]]:
    """Return all rows of a snapshot (key, value, commit-ts), pulled page by page."""
    rows: list[tuple[bytes, bytes, int]] = []
    end = False
    while not end:
        last = rows[-1][0].hex() if rows else ""
        asked = cdc.CdcPullSnapshotRequest(current_snapshot_version=version, last_key=last)
        for name, value in more.items():
            setattr(asked, name, value)
        page, rest = read_page(cdc_half.pull_snapshot(held, asked), 3, "snapshot")
        end = cdc.CdcPullSnapshotResponse.FromString(rest).end
        rows += [(page.key(i), page.value(i), int(page.commit_ts[i])) for i in range(len(page))]
    return rows
