"""The master: timestamps, routes, assignments, DDL and administration."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rowferry.errors import RowferryError, StoreUnavailable
from rowferry.refstore.guard import OPEN, StoreGuard
from rowferry.refstore.master.leaders import Leaders
from rowferry.refstore.master.schema_change import SchemaChangeQueue
from rowferry.refstore.master.timestamps import TimestampOracle
from rowferry.refstore.master.topology import DEAD_AFTER_S, Topology
from rowferry.refstore.meta import Fault
from rowferry.refstore.routing import NotHere, retried
from rowferry.refstore.rpc import Channels, RpcServer
from rowferry.wire import range_cdc_pb2 as cdc
from rowferry.wire import store_pb2 as wire

_ROUND_S = 0.2
_LOG = logging.getLogger(__name__)


class Master:
    """The master process."""

    def __init__(
        self,
        listen: str,
        data_dir: Path,
        cluster_id: int | None,
        fsync: bool,
        guard: StoreGuard = OPEN,
    ) -> None:
        folder = data_dir / "master"
        folder.mkdir(parents=True, exist_ok=True)
        self._topology = Topology(folder / "topology.json", cluster_id, fsync)
        self._oracle = TimestampOracle(folder / "timestamps.json", fsync)
        self._channels = Channels(guard.access)
        self._leaders = Leaders(self._topology, self._oracle, self._channels)
        self._schemas = SchemaChangeQueue(self._topology, self._leaders)
        self._stopping = threading.Event()
        self._started = time.monotonic()
        self._server = RpcServer(
            {"RangeMaster": self._range_methods(), "StoreMaster": self._methods()}, guard
        )
        self.address = self._server.listen(listen)
        self._rounds = threading.Thread(target=self._go_round, name="rounds", daemon=True)
        self._rounds.start()

    def stop(self) -> None:
        """Stop; returns when everything is closed."""
        self._stopping.set()
        self._rounds.join()
        self._server.stop()
        self._channels.close()

    def _go_round(self) -> None:
        while not self._stopping.wait(_ROUND_S):
            patience = time.monotonic() - self._started < 2 * DEAD_AFTER_S
            self._topology.give_out(patience)
            try:
                self._schemas.tidy()
            except (StoreUnavailable, NotHere) as err:
                _LOG.debug("the catalog cannot be read yet", extra={"error": str(err)})

    # --- what CDC readers ask --------------------------------------------------------------------

    def _range_methods(self) -> dict[str, tuple[type[Any], Callable[[Any], Any]]]:
        return {
            "GetRoutes": (cdc.GetRoutesRequest, self._routes),
            "GetTimestamp": (cdc.GetTimestampRequest, self._timestamp),
        }

    def _routes(self, request: cdc.GetRoutesRequest) -> cdc.GetRoutesResponse:
        own, asked = self._topology.cluster_id, request.header.cluster_id
        if asked and asked != own:
            words = f"this is cluster {own}, not {asked}"
            error = cdc.CDCError(code=cdc.CDCError.WRONG_CLUSTER, message=words)
            return cdc.GetRoutesResponse(error=error, cluster_id=own)
        ranges = self._topology.ranges(request.start_key, request.end_key)
        return cdc.GetRoutesResponse(routes=[r.route() for r in ranges], cluster_id=own)

    def _timestamp(self, request: cdc.GetTimestampRequest) -> cdc.GetTimestampResponse:
        return cdc.GetTimestampResponse(timestamp=self._oracle.next(request.count))

    # --- what clients and data servers ask -------------------------------------------------------

    def _methods(self) -> dict[str, tuple[type[Any], Callable[[Any], Any]]]:
        return {
            "Heartbeat": (wire.HeartbeatRequest, self._heartbeat),
            "Ddl": (wire.DdlRequest, _guarded(wire.DdlReply, self._ddl)),
            "Split": (wire.SplitRequest, _guarded(wire.SplitReply, self._split)),
            "MoveLeader": (
                wire.MoveLeaderRequest,
                _guarded(wire.MoveLeaderReply, self._move_leader),
            ),
            "ListServers": (wire.ListServersRequest, self._servers),
        }

    def _heartbeat(self, request: wire.HeartbeatRequest) -> wire.HeartbeatReply:
        failures = {f.range_id: f.message for f in request.failures}
        self._topology.beat(request.address, request.leaving, failures)
        reply = wire.HeartbeatReply(cluster_id=self._topology.cluster_id)
        # The freezes are read first: a range that is thawed meanwhile stays frozen a beat longer.
        frozen, known = set(self._topology.frozen), self._schemas.current
        for meta in self._topology.ranges():
            if meta.leader != request.address:
                continue
            unknown = meta.physical_id != 0 and known is None
            reply.assignments.add(
                route=meta.route(),
                schema_version=known.version_of(meta.physical_id) if known else 0,
                frozen=unknown or meta.range_id in frozen,
            )
        return reply

    def _ddl(self, request: wire.DdlRequest) -> wire.DdlReply:
        return wire.DdlReply(commit_ts=self._schemas.run(request))

    def _split(self, request: wire.SplitRequest) -> wire.SplitReply:
        self._topology.range(request.range_id)
        retried(lambda: self._topology.freeze([request.range_id]))
        meta = self._topology.range(request.range_id)
        try:
            new_range_id = self._topology.number("range")
            made = self._leaders.split(meta, request.key, new_range_id)
            self._topology.split(meta, made.key, new_range_id, made.split_index)
        finally:
            self._topology.thaw([meta.range_id])
            self._leaders.nudge()
        return wire.SplitReply(new_range_id=new_range_id)

    def _move_leader(self, request: wire.MoveLeaderRequest) -> wire.MoveLeaderReply:
        former = self._topology.range(request.range_id).leader
        address = self._topology.move(request.range_id, request.address)
        for server in (former, address):  # the former leader lets go first
            if server:
                self._leaders.nudge_one(server)
        return wire.MoveLeaderReply(address=address)

    def _servers(self, request: wire.ListServersRequest) -> wire.ListServersReply:
        reply = wire.ListServersReply(addresses=self._topology.living())
        for range_id, words in self._topology.failures().items():
            reply.failures.add(range_id=range_id, message=words)
        return reply


def _guarded(answer: type[Any], serve: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return the function with our errors as faults of its answer, as their whole text."""

    def guarded(request: Any) -> Any:
        try:
            return serve(request)
        except NotHere as err:
            words = str(StoreUnavailable(f"{err}; try again"))
        except RowferryError as err:
            words = str(err)
        return answer(fault=wire.StoreFault(code=Fault.REFUSED, message=words))

    return guarded
