"""A data server: leads the ranges that the master assigns to it.

Every heartbeat's answer is the whole truth about what this server leads; it opens what is new,
closes what is gone, and takes over epochs, schema versions and freezes. Nothing else changes them.
"""

from __future__ import annotations

import logging
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from rowferry.errors import RowferryError, StoreDamaged, StoreRefused, StoreUnavailable
from rowferry.refstore import cdc as cdc_half
from rowferry.refstore.cdc import CdcRefused, cdc_error
from rowferry.refstore.guard import OPEN, StoreGuard
from rowferry.refstore.master.timestamps import Clock
from rowferry.refstore.meta import Fault, RangeMeta, RequestRefused
from rowferry.refstore.range import Open, Range, RangeOptions
from rowferry.refstore.rpc import Channels, RpcServer
from rowferry.refstore.split import require_whole, split
from rowferry.wire import range_cdc_pb2 as cdc
from rowferry.wire import store_pb2 as wire

HEARTBEAT_S = 0.2
_LOG = logging.getLogger(__name__)
A = TypeVar("A")


class DataServer:
    """One data server process."""

    def __init__(
        self,
        listen: str,
        master: str,
        data_dir: Path,
        options: RangeOptions,
        guard: StoreGuard = OPEN,
    ) -> None:
        self._master, self._options = master, options
        self._folder = data_dir / "ranges"
        self._folder.mkdir(parents=True, exist_ok=True)
        self._channels = Channels(guard.access)
        self._clock = Clock(self._timestamp)
        self._ranges: dict[int, Range] = {}
        self._born: dict[tuple[int, int], Range] = {}  # halves of a split that is not yet real
        self._failures: dict[int, str] = {}
        self._assigning = threading.Lock()  # guards everything about which ranges are led
        self._news = threading.Condition()  # guards the newest answer to a heartbeat
        self._answer: wire.HeartbeatReply | None = None
        self._answer_number = 0
        self._carried_out = 0
        self._heartbeat = 0
        self._cluster_id = 0
        self._stopping = threading.Event()
        self._server = RpcServer(
            {"StoreData": self._store_methods(), "RangeData": self._cdc_methods()}, guard
        )
        self.address = self._server.listen(listen)
        self._threads = [
            threading.Thread(target=self._beat, name="heartbeat", daemon=True),
            threading.Thread(target=self._follow, name="follow", daemon=True),
            threading.Thread(target=self._resolve, name="resolve", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Give the ranges back and stop; returns when everything is closed."""
        self._stopping.set()
        with self._news:
            self._news.notify_all()
        for thread in self._threads:
            thread.join()
        self._server.stop()
        with self._assigning:
            for held in [*self._ranges.values(), *self._born.values()]:
                held.close()
            self._ranges.clear()
        try:
            goodbye = wire.HeartbeatRequest(address=self.address, leaving=True)
            self._ask_master("Heartbeat", goodbye, wire.HeartbeatReply, 1.0)
        except StoreUnavailable:
            pass  # a master that is gone needs no goodbye
        self._channels.close()

    # --- the master ------------------------------------------------------------------------------

    def _ask_master(self, method: str, request: Any, answer: type[A], timeout_s: float = 5.0) -> A:
        service = "RangeMaster" if method.startswith("Get") else "StoreMaster"
        return self._channels.call(self._master, f"{service}/{method}", request, answer, timeout_s)

    def _timestamp(self) -> int:
        request = cdc.GetTimestampRequest(count=1)
        return self._ask_master("GetTimestamp", request, cdc.GetTimestampResponse).timestamp

    def _beat(self) -> None:
        """Say that we live; opening a large range must not keep us from it."""
        last_words = ""
        while not self._stopping.wait(HEARTBEAT_S):
            try:
                self._ask_for_assignments()
            except StoreRefused as err:
                if err.words != last_words:
                    last_words = err.words
                    _LOG.error("%s", err)
            except StoreUnavailable as err:
                _LOG.debug("the master does not answer", extra={"error": str(err)})

    def _ask_for_assignments(self) -> None:
        with self._news:
            self._heartbeat += 1
            number = self._heartbeat
        failures = [
            wire.RangeFailure(range_id=r, message=words)
            for r, words in list(self._failures.items())
        ]
        request = wire.HeartbeatRequest(address=self.address, failures=failures)
        reply = self._ask_master("Heartbeat", request, wire.HeartbeatReply)
        with self._news:
            if number > self._answer_number:
                self._answer, self._answer_number = reply, number
                self._news.notify_all()

    def _follow(self) -> None:
        while not self._stopping.is_set():
            with self._news:
                self._news.wait_for(
                    lambda: self._stopping.is_set() or self._answer_number > self._carried_out
                )
            if not self._stopping.is_set():
                self._carry_out()

    def _carry_out(self) -> None:
        """Make what we lead follow the newest answer."""
        with self._assigning:
            with self._news:
                reply, number = self._answer, self._answer_number
            if reply is None or number <= self._carried_out:
                return
            self._cluster_id = reply.cluster_id
            wanted = {a.route.range_id for a in reply.assignments}
            for range_id in [r for r in self._ranges if r not in wanted]:
                self._ranges.pop(range_id).close()
            for range_id in [r for r in self._failures if r not in wanted]:
                del self._failures[range_id]
            for assignment in reply.assignments:
                self._lead(assignment, number)
            self._drop_unborn(number)
            self._carried_out = number

    def _lead(self, assignment: wire.RangeAssignment, number: int) -> None:
        meta = RangeMeta.of(assignment.route)
        held = self._ranges.get(meta.range_id)
        if held is None or held.meta.version != meta.version:
            opened = self._born.pop((meta.range_id, meta.version), None) or self._opened(meta)
            if opened is None:
                return
            if held is not None:
                held.close()
                shutil.rmtree(held.folder, ignore_errors=True)
            held = self._ranges[meta.range_id] = opened
        held.assign(meta, assignment.schema_version, assignment.frozen, number)

    def _opened(self, meta: RangeMeta) -> Range | None:
        if meta.range_id in self._failures:
            return None
        try:
            self._clock.now()  # everything that a former leader closed lies below
            require_whole(self._folder / meta.folder, meta)
            return Range(self._folder / meta.folder, meta, self._clock, self._options)
        except BlockingIOError:
            return None  # its former leader has not let go yet; the next heartbeat tries again
        except StoreDamaged as err:
            self._failures[meta.range_id] = str(err)
            _LOG.error(
                "a range cannot be opened", extra={"range": meta.range_id, "error": str(err)}
            )
            return None

    def _drop_unborn(self, number: int) -> None:
        """Throw away the halves of a split that the master did not make real."""
        for key, half in list(self._born.items()):
            # The left half has the id of the whole; its parent's id may be of an earlier split.
            whole = self._ranges.get(half.meta.range_id)
            whole = whole or self._ranges.get(half.meta.parent_range_id)
            if whole is not None and (whole.frozen or number <= whole.frozen_at):
                continue
            half.close()
            if whole is not None:
                shutil.rmtree(half.folder, ignore_errors=True)
            # Else it is led elsewhere now, perhaps as this half: its files are not ours to judge.
            del self._born[key]

    # --- abandoned transactions ------------------------------------------------------------------

    def _resolve(self) -> None:
        while not self._stopping.wait(HEARTBEAT_S):
            for held in list(self._ranges.values()):
                for entry in held.abandoned():
                    try:
                        self._resolve_one(held, entry)
                    except (StoreUnavailable, RequestRefused):
                        pass  # its primary range cannot be asked now; the next round tries again

    def _resolve_one(self, held: Range, entry: Open) -> None:
        key = entry.request.primary_key
        asked = cdc.GetRoutesRequest(start_key=key, end_key=key + b"\x00")
        routes = self._ask_master("GetRoutes", asked, cdc.GetRoutesResponse).routes
        if not routes or not routes[0].leader:
            return
        request = wire.StatusRequest(key=key, start_ts=entry.start_ts)
        reply = self._channels.call(
            routes[0].leader, "StoreData/Status", request, wire.StatusReply, 2.0
        )
        if reply.fault.code:
            return
        if reply.status == wire.StatusReply.COMMITTED:
            held.commit(entry.start_ts, reply.commit_ts)
        elif reply.status == wire.StatusReply.ROLLED_BACK:
            held.roll_back(entry.start_ts)

    # --- requests --------------------------------------------------------------------------------

    def _range(self, range_id: int, epoch: cdc.RangeEpoch) -> Range:
        held = self._ranges.get(range_id)
        if held is None:
            words = self._failures.get(range_id)
            if words:
                raise RequestRefused(Fault.DAMAGED, words)
            raise RequestRefused(Fault.NOT_LEADER, f"{self.address} does not lead range {range_id}")
        held.check(epoch.conf_ver, epoch.version)
        return held

    def _at(self, target: wire.RangeTarget) -> Range:
        return self._range(target.range_id, target.epoch)

    def _store_methods(self) -> dict[str, tuple[type[Any], Callable[[Any], Any]]]:
        return {
            "Write": (wire.WriteRequest, _guarded(wire.WriteReply, self._write)),
            "Prepare": (wire.WriteRequest, _guarded(wire.EndReply, self._prepare)),
            "Commit": (wire.EndRequest, _guarded(wire.EndReply, self._commit)),
            "Rollback": (wire.EndRequest, _guarded(wire.EndReply, self._roll_back)),
            "Status": (wire.StatusRequest, _guarded(wire.StatusReply, self._status)),
            "Get": (wire.GetRequest, _guarded(wire.GetReply, self._get)),
            "Settle": (wire.SettleRequest, _guarded(wire.EndReply, self._settle)),
            "Drain": (wire.EndRequest, _guarded(wire.EndReply, self._drain)),
            "SplitRange": (wire.SplitRangeRequest, _guarded(wire.SplitRangeReply, self._split)),
            "CompactRange": (
                wire.CompactRangeRequest,
                _guarded(wire.CompactRangeReply, self._compact),
            ),
            "Nudge": (wire.NudgeRequest, self._nudge),
        }

    def _write(self, request: wire.WriteRequest) -> wire.WriteReply:
        return wire.WriteReply(commit_ts=self._at(request.target).write(request))

    def _prepare(self, request: wire.WriteRequest) -> wire.EndReply:
        self._at(request.target).prepare(request)
        return wire.EndReply()

    def _commit(self, request: wire.EndRequest) -> wire.EndReply:
        self._at(request.target).commit(request.start_ts, request.commit_ts)
        return wire.EndReply()

    def _roll_back(self, request: wire.EndRequest) -> wire.EndReply:
        self._at(request.target).roll_back(request.start_ts)
        return wire.EndReply()

    def _status(self, request: wire.StatusRequest) -> wire.StatusReply:
        for held in list(self._ranges.values()):
            if held.meta.holds(request.key):
                status, commit_ts = held.status(request.start_ts)
                return wire.StatusReply(status=status, commit_ts=commit_ts)
        raise RequestRefused(Fault.NOT_LEADER, f"{self.address} does not lead {request.key.hex()}")

    def _get(self, request: wire.GetRequest) -> wire.GetReply:
        rows = self._at(request.target).get(list(request.keys), request.read_ts)
        reply = wire.GetReply()
        for value in rows:
            reply.rows.add(found=value is not None, value=value or b"")
        return reply

    def _settle(self, request: wire.SettleRequest) -> wire.EndReply:
        self._at(request.target).settle(request.ts)
        return wire.EndReply()

    def _drain(self, request: wire.EndRequest) -> wire.EndReply:
        held = self._at(request.target)
        held.drain(self._heartbeat)
        return wire.EndReply()

    def _split(self, request: wire.SplitRangeRequest) -> wire.SplitRangeReply:
        held = self._at(request.target)
        # Draining may take as long as an abandoned transaction: heartbeats must go on meanwhile.
        held.drain(self._heartbeat)
        with self._assigning:
            held.check(request.target.epoch.conf_ver, request.target.epoch.version)
            halves = split(held, request.key, request.new_range_id, self._heartbeat)
            for half in halves:
                self._born[half.meta.range_id, half.meta.version] = half
        right = halves[1].meta
        return wire.SplitRangeReply(key=right.start, split_index=right.split_index)

    def _compact(self, request: wire.CompactRangeRequest) -> wire.CompactRangeReply:
        first = self._at(request.target).compact(request.through_index)
        return wire.CompactRangeReply(first_log_index=first)

    def _nudge(self, request: wire.NudgeRequest) -> wire.NudgeReply:
        try:
            self._ask_for_assignments()
            self._carry_out()
        except StoreUnavailable:
            pass  # the next heartbeat will do
        return wire.NudgeReply()

    # --- CDC -------------------------------------------------------------------------------------

    def _cdc_methods(self) -> dict[str, tuple[type[Any], Callable[[Any], Any]]]:
        return {
            "CdcRegister": (
                cdc.CdcRegisterRequest,
                self._cdc(
                    cdc.CdcRegisterResponse,
                    lambda held, request: cdc_half.register(held, request.subscriber_name),
                ),
            ),
            "CdcPullSnapshot": (
                cdc.CdcPullSnapshotRequest,
                self._cdc(cdc.CdcPullSnapshotResponse, cdc_half.pull_snapshot),
            ),
            "CdcPullLog": (
                cdc.CdcPullLogRequest,
                self._cdc(cdc.CdcPullLogResponse, cdc_half.pull_log),
            ),
        }

    def _cdc(self, answer: type[Any], serve: Callable[[Range, Any], Any]) -> Callable[[Any], Any]:
        def guarded(request: Any) -> Any:
            try:
                # Until the master has answered, none is known, and no range is led.
                asked, own = request.header.cluster_id, self._cluster_id
                if asked and own and asked != own:
                    words = f"this is cluster {own}, not {asked}"
                    raise CdcRefused(cdc.CDCError(code=cdc.CDCError.WRONG_CLUSTER, message=words))
                return serve(self._range(request.range_id, request.range_epoch), request)
            except CdcRefused as refused:
                return answer(error=refused.error)
            except RequestRefused as refused:
                return answer(error=self._located(refused, request.range_id))

        return guarded

    def _located(self, refused: RequestRefused, range_id: int) -> cdc.CDCError:
        """Add what the master knows: where the leader is, or that there is no such range."""
        error = cdc_error(refused)
        if error.code != cdc.CDCError.NOT_LEADER:
            return error
        routes = self._ask_master("GetRoutes", cdc.GetRoutesRequest(), cdc.GetRoutesResponse).routes
        owners = [r for r in routes if r.range_id == range_id]
        if not owners:
            error.code = cdc.CDCError.RANGE_NOT_FOUND
            error.message = f"there is no range {range_id}"
        elif owners[0].leader != self.address:
            error.leader = owners[0].leader
        return error


def _guarded(answer: type[Any], serve: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return the function with refusals as faults of its answer."""

    def guarded(request: Any) -> Any:
        try:
            return serve(request)
        except RequestRefused as refused:
            return answer(fault=refused.fault())
        except StoreUnavailable as err:
            return answer(fault=wire.StoreFault(code=Fault.BUSY, message=str(err)))
        except RowferryError as err:
            return answer(fault=wire.StoreFault(code=Fault.DAMAGED, message=str(err)))

    return guarded
