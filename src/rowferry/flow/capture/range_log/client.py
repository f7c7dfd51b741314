"""The gRPC client of the range CDC protocol: routes from the master, pulls from range leaders.

With `client_access` the only module of this source that imports grpc: every transport error leaves
here as one of ours.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import grpc
from google.protobuf.message import DecodeError as NoMessage

from rowferry.errors import (
    LoginRefused,
    LogLost,
    OddAnswer,
    RowferryError,
    SnapshotGone,
    SourceMismatch,
    SourceUnavailable,
)
from rowferry.flow.capture.range_log.client_access import PLAIN, RangeAccess, refusal
from rowferry.flow.capture.range_log.page import Page, read_page
from rowferry.moment import moment
from rowferry.wire import range_cdc_pb2 as pb

_SERVICE = "/rowferry.wire.RangeData/"
_MASTER = "/rowferry.wire.RangeMaster/"
_LOG_DATA = pb.CdcPullLogResponse.DESCRIPTOR.fields_by_name["log_data"].number
_SNAPSHOT_DATA = pb.CdcPullSnapshotResponse.DESCRIPTOR.fields_by_name["snapshot_data"].number
MOST_ANSWER = 256 << 20  # bytes: pages have 4 MiB, or one entry of the log
_OPTIONS = (
    ("grpc.max_send_message_length", -1),
    ("grpc.enable_retries", 0),
)
PAGE_BYTES = 4 << 20

T = TypeVar("T")


class Rerouted(Exception):
    """The route is out of date: ask the master again. Never leaves this source.

    `final` is what to raise if asking again does not help.
    """

    def __init__(self, words: str, final: RowferryError | None = None) -> None:
        super().__init__(words)
        self.final = final


@dataclass(frozen=True, slots=True)
class KnownRange:
    """One range as the master sees it."""

    range_id: int
    conf_ver: int
    version: int
    start_key: bytes
    end_key: bytes
    leader: str
    parent_range_id: int
    split_index: int
    physical_id: int
    dropped: bool


@dataclass(frozen=True, slots=True)
class Registration:
    """What a leader said when we registered: a new snapshot version."""

    version: int
    snapshot_ts: int
    split_keys: tuple[str, ...]
    without_old_value: bool


@dataclass(frozen=True, slots=True)
class LogHead:
    """Figures about a range's log after an index."""

    last_index: int
    closed_ts: int
    index_at_ts: int
    log_bytes: int
    log_entries: int
    last_commit_ts: int
    marks: tuple[tuple[int, int, int], ...]  # index, commit_ts, bytes


class RangeClient:
    """Talks to one cluster. Cheap to make; channels open when first used and are kept."""

    def __init__(
        self,
        master: str,
        subscriber: str,
        timeout_s: float = 10.0,
        access: RangeAccess = PLAIN,
    ) -> None:
        self.master = master
        self._access = access
        self.subscriber = subscriber
        self.cluster_id = 0  # 0: any; set from the first answer, then checked by the servers
        self._timeout_s = timeout_s
        self._channels: dict[str, grpc.Channel] = {}

    # --- the master ------------------------------------------------------------------------------

    def routes(self, start_key: bytes = b"", end_key: bytes = b"") -> list[KnownRange]:
        """Return the ranges that overlap [start_key, end_key), by start key."""
        request = pb.GetRoutesRequest(header=self._header(), start_key=start_key, end_key=end_key)
        answer = self._ask_master("GetRoutes", request, pb.GetRoutesResponse.FromString)
        if answer.error.code == pb.CDCError.WRONG_CLUSTER or (
            self.cluster_id and answer.cluster_id != self.cluster_id
        ):
            raise SourceMismatch(
                f"the master at {self.master} belongs to cluster {answer.cluster_id}, but this "
                f"changefeed reads cluster {self.cluster_id}; point it back, or create a new one"
            )
        self.cluster_id = answer.cluster_id
        return [
            KnownRange(
                r.range_id,
                r.epoch.conf_ver,
                r.epoch.version,
                r.start_key,
                r.end_key,
                r.leader,
                r.parent_range_id,
                r.split_index,
                r.physical_id,
                r.dropped,
            )
            for r in answer.routes
        ]

    def timestamp(self) -> int:
        """Return a fresh timestamp of the source."""
        request = pb.GetTimestampRequest(header=self._header(), count=1)
        answer = self._ask_master("GetTimestamp", request, pb.GetTimestampResponse.FromString)
        return int(answer.timestamp)

    def _ask_master(self, method: str, request: Any, read: Callable[[bytes], Any]) -> Any:
        moment("ask master")
        try:
            return self._call(self.master, _MASTER + method, request, read)
        except grpc.RpcError as err:
            _refuse(self.master, err)
            secure = "" if self._access.tls else ", and is it range+ssl:// (TLS)"
            raise SourceUnavailable(
                f"the master at {self.master} does not answer ({_words(err)}); "
                f"is it running, is the address right{secure}?"
            ) from None

    # --- range leaders ---------------------------------------------------------------------------

    def register(self, route: KnownRange) -> Registration:
        """Register at a range's leader, which makes a new snapshot version."""
        request = pb.CdcRegisterRequest(range_id=route.range_id, **self._common(route))
        moment("register at range")
        answer = self._ask(route, "CdcRegister", request, pb.CdcRegisterResponse.FromString)
        self._check(answer.error, route)
        return Registration(
            answer.init_snapshot_version,
            answer.snapshot_ts,
            tuple(answer.split_keys),
            answer.without_old_value,
        )

    def pull_snapshot(
        self,
        route: KnownRange,
        version: int,
        last_key: str,
        end_key: str,
        max_bytes: int = PAGE_BYTES,
    ) -> tuple[Page, bool]:
        """Return the next rows of a snapshot after `last_key`, and whether that was all."""
        request = pb.CdcPullSnapshotRequest(
            range_id=route.range_id,
            current_snapshot_version=version,
            last_key=last_key,
            end_key=end_key,
            max_bytes=max_bytes,
            **self._common(route),
        )
        moment("pull snapshot")
        raw = self._ask(route, "CdcPullSnapshot", request, bytes)
        page, rest = read_page(raw, _SNAPSHOT_DATA, f"range {route.range_id}, snapshot {version}")
        answer = pb.CdcPullSnapshotResponse.FromString(rest)
        self._check(answer.error, route, version=version)
        if answer.current_snapshot_version != version:
            raise SnapshotGone(f"range {route.range_id} no longer has snapshot {version}")
        return page, answer.end

    def pull_log(
        self, route: KnownRange, last_index: int, until_index: int, max_bytes: int = PAGE_BYTES
    ) -> tuple[Page, int]:
        """Return the next row changes in (last_index, until_index] and the index reached."""
        request = pb.CdcPullLogRequest(
            range_id=route.range_id,
            last_log_index=last_index,
            until_index=until_index,
            max_bytes=max_bytes,
            **self._common(route),
        )
        moment("pull log")
        raw = self._ask(route, "CdcPullLog", request, bytes)
        page, rest = read_page(raw, _LOG_DATA, f"range {route.range_id}, log after {last_index}")
        answer = pb.CdcPullLogResponse.FromString(rest)
        self._check(answer.error, route, index=last_index)
        return page, answer.current_log_index

    def heads(
        self, asked: Sequence[tuple[KnownRange, int]], at_ts: int = 0, mark_bytes: int = 0
    ) -> list[LogHead]:
        """Return figures about several logs, each after its index; all asked at once."""
        calls = []
        for route, last_index in asked:
            request = pb.CdcPullLogRequest(
                range_id=route.range_id,
                last_log_index=last_index,
                head_only=True,
                at_ts=at_ts,
                mark_bytes=mark_bytes,
                **self._common(route),
            )
            calls.append((route, last_index, self._begin(route, "CdcPullLog", request)))
        moment("read heads")
        return [self._head(route, index, call) for route, index, call in calls]

    def _head(self, route: KnownRange, last_index: int, call: Any) -> LogHead:
        try:
            answer = _answer(route.leader, lambda: pb.CdcPullLogResponse.FromString(call.result()))
        except grpc.RpcError as err:
            _refuse(route.leader, err)
            raise Rerouted(f"range {route.range_id} at {route.leader}: {_words(err)}") from None
        self._check(answer.error, route, index=last_index)
        return LogHead(
            answer.current_log_index,
            answer.closed_ts,
            answer.index_at_ts,
            answer.log_bytes,
            answer.log_entries,
            answer.last_commit_ts,
            tuple((m.index, m.commit_ts, m.bytes) for m in answer.marks),
        )

    # --- transport -------------------------------------------------------------------------------

    def _header(self) -> pb.RequestHeader:
        return pb.RequestHeader(cluster_id=self.cluster_id)

    def _common(self, route: KnownRange) -> dict[str, Any]:
        epoch = pb.RangeEpoch(conf_ver=route.conf_ver, version=route.version)
        return {
            "range_epoch": epoch,
            "subscriber_name": self.subscriber,
            "header": self._header(),
        }

    def _channel(self, address: str) -> grpc.Channel:
        channel = self._channels.get(address)
        if channel is None:
            channel = self._access.channel(
                address, (("grpc.max_receive_message_length", MOST_ANSWER), *_OPTIONS)
            )
            self._channels[address] = channel
        return channel

    def _call(self, address: str, method: str, request: Any, read: Callable[[bytes], T]) -> T:
        call = self._channel(address).unary_unary(
            method, request_serializer=type(request).SerializeToString, response_deserializer=bytes
        )
        metadata = self._access.metadata
        return _answer(
            address, lambda: read(call(request, timeout=self._timeout_s, metadata=metadata))
        )

    def _begin(self, route: KnownRange, method: str, request: Any) -> Any:
        moment("ask for head")
        if not route.leader:
            raise Rerouted(f"range {route.range_id} has no leader")
        call = self._channel(route.leader).unary_unary(
            _SERVICE + method,
            request_serializer=type(request).SerializeToString,
            response_deserializer=bytes,
        )
        return call.future(request, timeout=self._timeout_s, metadata=self._access.metadata)

    def _ask(self, route: KnownRange, method: str, request: Any, read: Callable[[bytes], T]) -> T:
        if not route.leader:
            raise Rerouted(f"range {route.range_id} has no leader")
        try:
            return self._call(route.leader, _SERVICE + method, request, read)
        except grpc.RpcError as err:
            _refuse(route.leader, err)
            raise Rerouted(f"range {route.range_id} at {route.leader}: {_words(err)}") from None

    def _check(
        self, error: pb.CDCError, route: KnownRange, version: int = 0, index: int = 0
    ) -> None:
        """Turn a leader's refusal into what this source does about it."""
        code = error.code
        if code == pb.CDCError.NONE:
            return
        name = f"range {route.range_id}"
        if code == pb.CDCError.LOG_COMPACTED:
            raise LogLost(
                f"{name}: the log after index {index} is gone, it now begins at "
                f"{error.first_log_index}; set on-log-lost = resnapshot to start the table again, "
                "or create a new changefeed"
            )
        if code in (pb.CDCError.SNAPSHOT_GONE, pb.CDCError.NOT_REGISTERED):
            raise SnapshotGone(f"{name} no longer has snapshot {version}")
        if code == pb.CDCError.WRONG_CLUSTER:
            raise SourceMismatch(f"{name}: {error.message}")
        # Not leader, stale epoch, range not found: the routes have changed.
        raise Rerouted(f"{name}: {error.message or pb.CDCError.Code.Name(code)}")

    def close(self) -> None:
        """Close all channels."""
        for channel in self._channels.values():
            channel.close()
        self._channels.clear()


def _answer(address: str, read: Callable[[], T]) -> T:
    """Return an answer; one that is too long or no message will not be better elsewhere."""
    try:
        return read()
    except NoMessage:
        raise OddAnswer(
            f"{address} answers with bytes that are no message of the range protocol"
        ) from None
    except grpc.RpcError as err:
        if "message larger than max" in _words(err):
            raise OddAnswer(f"{address} answers with more than {MOST_ANSWER} bytes") from None
        raise


def _refuse(address: str, err: grpc.RpcError) -> None:
    """Raise what asking again, or elsewhere, would not mend."""
    why = refusal(err)
    if why:
        raise LoginRefused(f"the range store at {address} and we do not come together: {why}")


def _words(err: grpc.RpcError) -> str:
    """Return a transport error in a few words: its status name and details."""
    code = err.code().name if hasattr(err, "code") and err.code() else "UNKNOWN"
    details = str(err.details() or "") if hasattr(err, "details") else ""
    return f"{code}: {details[:200]}".strip(": ")
