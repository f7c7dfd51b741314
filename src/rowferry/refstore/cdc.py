"""The range CDC protocol on top of one range: register, pull a snapshot, pull the log.

Answers are put together as bytes: protobuf messages that stand one after the other are one message.
"""

from __future__ import annotations

from rowferry.refstore.meta import Fault, RangeMeta, RequestRefused
from rowferry.refstore.range import Range
from rowferry.refstore.storage.kernels import SNAPSHOT_TAG
from rowferry.refstore.storage.snapshots import Snapshot
from rowferry.wire import range_cdc_pb2 as cdc

# A stock gRPC client takes 4 MB; a record may exceed the wish by its own size.
ANSWER_BYTES = 2 << 20


class CdcRefused(Exception):
    """A CDC request cannot be served; carries the protocol's error."""

    def __init__(self, error: cdc.CDCError) -> None:
        super().__init__(error.message)
        self.error = error


def cdc_error(refused: RequestRefused) -> cdc.CDCError:
    """Return a refusal in the protocol's words; a range that cannot be served has no leader."""
    stale = refused.code == Fault.STALE_EPOCH
    code = cdc.CDCError.STALE_EPOCH if stale else cdc.CDCError.NOT_LEADER
    return cdc.CDCError(code=code, message=str(refused))


def register(held: Range, subscriber: str) -> cdc.CdcRegisterResponse:
    """Make (or find) a snapshot of the present state and keep it for the subscriber."""
    reading = held.clock.reading()
    with held.changed:
        # Its next leader may have begun before the reading: that one's commits may lie below it.
        held.check(held.meta.conf_ver, held.meta.version)
        # The reading may be older than the last entry, which is in the snapshot.
        version, ts = held.log.last_index, max(held.closed_ts(reading), held.log.last_ts)
        newest = held.snapshots.newest()
        if newest is not None and newest.version == version:
            run, cuts = newest.run, newest.cuts
        else:
            run = held.state.whole().without_deleted((1 << 64) - 1)
            cuts = tuple(run.cuts(held.options.part_bytes))
        snapshot = Snapshot(version, ts, run, cuts)
        held.snapshots.keep(subscriber, snapshot)
    return cdc.CdcRegisterResponse(
        init_snapshot_version=version,
        snapshot_ts=ts,
        split_keys=[key.hex() for key in cuts],
        without_old_value=held.options.without_old_value,
    )


def pull_snapshot(held: Range, request: cdc.CdcPullSnapshotRequest) -> bytes:
    """Return the rows after `last_key` and below `end_key`, in key order."""
    version = request.current_snapshot_version
    with held.changed:
        snapshot = held.snapshots.get(version)
    if snapshot is None:
        raise CdcRefused(_no_snapshot(held.meta, version))
    run = snapshot.run
    start = _key(request.last_key) + b"\x00" if request.last_key else b""
    part = run.between(start, _key(request.end_key))
    sizes = part.pairs.key_len + part.pairs.value_len
    fit = int(sizes.cumsum().searchsorted(request.max_bytes or ANSWER_BYTES, side="right"))
    count = min(len(part), max(fit, 1))
    page = part.slice(0, count)
    rows, _ = page.pairs.entries(SNAPSHOT_TAG, page.commit_ts)
    tail = cdc.CdcPullSnapshotResponse(current_snapshot_version=version, end=count == len(part))
    return rows + tail.SerializeToString()


def _no_snapshot(meta: RangeMeta, version: int) -> cdc.CDCError:
    words = f"range {meta.range_id} has no snapshot {version}; register again"
    return cdc.CDCError(code=cdc.CDCError.SNAPSHOT_GONE, message=words)


def _key(text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError:
        raise RequestRefused(Fault.BAD_REQUEST, f"{text[:40]!r} is not a key in hex") from None


def pull_log(held: Range, request: cdc.CdcPullLogRequest) -> bytes:
    """Return the log after an index, or (`head_only`) the figures about it."""
    reading = held.clock.reading()
    with held.changed:
        held.check(request.range_epoch.conf_ver, request.range_epoch.version)
        log, after = held.log, request.last_log_index
        if after < log.base_index:
            words = f"the log of range {held.meta.range_id} begins at {log.base_index + 1}"
            raise CdcRefused(
                cdc.CDCError(
                    code=cdc.CDCError.LOG_COMPACTED,
                    message=words,
                    first_log_index=log.base_index + 1,
                )
            )
        until = min(request.until_index or log.last_index, log.last_index)
        closed = held.closed_ts(reading)
        if request.head_only:
            return _head(held, request, until, closed).SerializeToString()
        entries, last = log.pull(after, until, request.max_bytes or ANSWER_BYTES)
        if last < log.last_index:  # the answer was cut: what follows it is later than it
            closed = min(closed, log.ts_at(max(last, log.base_index) + 1) - 1)
    tail = cdc.CdcPullLogResponse(current_log_index=last, closed_ts=closed)
    return entries + tail.SerializeToString()


def _head(
    held: Range, request: cdc.CdcPullLogRequest, until: int, closed: int
) -> cdc.CdcPullLogResponse:
    log = held.log
    index_at_ts = log.index_at(request.at_ts) if request.at_ts else 0
    end = min(until, index_at_ts) if request.at_ts else until
    figures = log.figures(request.last_log_index, end, request.mark_bytes)
    return cdc.CdcPullLogResponse(
        current_log_index=log.last_index,
        closed_ts=closed,
        index_at_ts=index_at_ts,
        marks=[cdc.LogMark(index=i, commit_ts=ts, bytes=n) for i, ts, n in figures.marks],
        log_bytes=figures.bytes,
        log_entries=figures.entries,
        last_commit_ts=log.last_ts,
    )
