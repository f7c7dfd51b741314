"""The master's calls to range leaders: draining, splitting, and the catalog's rows."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from itertools import accumulate

from rowferry.errors import StoreUnavailable
from rowferry.refstore.master.timestamps import TimestampOracle
from rowferry.refstore.master.topology import CATALOG_RANGE, Topology
from rowferry.refstore.meta import RangeMeta
from rowferry.refstore.routing import NotHere, check_fault, retried
from rowferry.refstore.rpc import Channels
from rowferry.wire import range_cdc_pb2 as cdc
from rowferry.wire import store_pb2 as wire

_PUT, _DELETE = 0, 3  # of Mutations.ops


class Leaders:
    """Calls to the leaders of ranges, found through the topology."""

    def __init__(self, topology: Topology, oracle: TimestampOracle, channels: Channels) -> None:
        self._topology, self._oracle, self._channels = topology, oracle, channels

    def nudge(self) -> None:
        """Let all living servers take over their assignments now."""
        for address in self._topology.living():
            self.nudge_one(address)

    def nudge_one(self, address: str) -> None:
        """Let one server take over its assignments now, if it answers."""
        try:
            self._channels.call(
                address, "StoreData/Nudge", wire.NudgeRequest(), wire.NudgeReply, 5.0
            )
        except StoreUnavailable:
            pass  # its next heartbeat will do

    def _leader(self, range_id: int) -> RangeMeta:
        meta = self._topology.range(range_id)
        if not meta.leader:
            raise StoreUnavailable(f"range {range_id} has no leader yet")
        return meta

    def drain(self, range_ids: Iterable[int]) -> None:
        """Return when no transaction is open in any of the ranges, which must be frozen."""

        def ask(range_id: int) -> None:
            meta = self._leader(range_id)
            request = wire.EndRequest(target=meta.target())
            reply = self._channels.call(
                meta.leader, "StoreData/Drain", request, wire.EndReply, 15.0
            )
            check_fault(reply.fault, f"range {range_id}")

        for range_id in range_ids:
            retried(partial(ask, range_id))

    def split(self, meta: RangeMeta, key: bytes, new_range_id: int) -> wire.SplitRangeReply:
        """Let a leader write both halves' files."""
        if not meta.leader:
            raise StoreUnavailable(f"range {meta.range_id} has no leader yet; try again")
        request = wire.SplitRangeRequest(target=meta.target(), key=key, new_range_id=new_range_id)
        reply = self._channels.call(
            meta.leader, "StoreData/SplitRange", request, wire.SplitRangeReply, 120.0
        )
        check_fault(reply.fault, f"split of range {meta.range_id}")
        return reply

    def write_catalog(self, rows: dict[bytes, bytes | None]) -> int:
        """Write catalog rows in one transaction; returns its commit-ts.

        Raises:
            StoreUnavailable: not now; it may have been written all the same, but never twice.
        """
        keys = sorted(rows)
        values = [rows[key] for key in keys]
        mutations = wire.Mutations(
            keys=b"".join(keys),
            key_ends=_ends(keys),
            values=b"".join(v or b"" for v in values),
            value_ends=_ends([v or b"" for v in values]),
            ops=bytes(_DELETE if v is None else _PUT for v in values),
        )

        unanswered: list[int] = []

        def ask() -> int:
            meta = self._leader(CATALOG_RANGE)
            while unanswered:  # its answer was lost: the write itself perhaps was not
                commit_ts = self._outcome(meta, keys[0], unanswered[-1])
                if commit_ts:
                    return commit_ts
                unanswered.pop()
            now = self._oracle.next()
            request = wire.WriteRequest(
                target=meta.target(), start_ts=now, read_ts=now, mutations=mutations
            )
            unanswered.append(now)
            reply = self._channels.call(meta.leader, "StoreData/Write", request, wire.WriteReply)
            unanswered.pop()
            check_fault(reply.fault, "catalog")
            return int(reply.commit_ts)

        return retried(ask)

    def _outcome(self, meta: RangeMeta, key: bytes, start_ts: int) -> int:
        """Return the commit-ts of a write whose answer was lost; 0: it is rolled back for good."""
        request = wire.StatusRequest(key=key, start_ts=start_ts)
        reply = self._channels.call(meta.leader, "StoreData/Status", request, wire.StatusReply)
        check_fault(reply.fault, "catalog")
        if reply.status == wire.StatusReply.PENDING:
            raise StoreUnavailable("the last write to the catalog has not ended yet")
        return int(reply.commit_ts)

    def catalog_rows(self) -> list[tuple[bytes, bytes, int]]:
        """Return the catalog's rows (key, value, commit-ts); raises if not possible now."""
        return snapshot_rows(self._channels, self._leader(CATALOG_RANGE))


def _ends(parts: list[bytes]) -> bytes:
    return b"".join(end.to_bytes(8, "little") for end in accumulate(map(len, parts)))


def snapshot_rows(channels: Channels, meta: RangeMeta) -> list[tuple[bytes, bytes, int]]:
    """Return a small range's rows: key, value, commit-ts.

    Raises:
        NotHere, StoreUnavailable: not now; ask again with new routes.
    """
    epoch = meta.target().epoch
    asked = cdc.CdcRegisterRequest(
        range_id=meta.range_id, range_epoch=epoch, subscriber_name="catalog"
    )
    made = channels.call(meta.leader, "RangeData/CdcRegister", asked, cdc.CdcRegisterResponse)
    _check(made.error)
    rows: list[tuple[bytes, bytes, int]] = []
    while True:
        request = cdc.CdcPullSnapshotRequest(
            range_id=meta.range_id,
            range_epoch=epoch,
            current_snapshot_version=made.init_snapshot_version,
            last_key=rows[-1][0].hex() if rows else "",
        )
        page = channels.call(
            meta.leader, "RangeData/CdcPullSnapshot", request, cdc.CdcPullSnapshotResponse
        )
        _check(page.error)
        rows += [(row.key, row.value, row.commit_ts) for row in page.snapshot_data]
        if page.end:
            return rows


def _check(error: cdc.CDCError) -> None:
    if error.code:
        raise NotHere(error.message)
