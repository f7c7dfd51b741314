"""gRPC: a subscription to one table makes a changefeed, and ends it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from types import TracebackType
from typing import Any, Final, NoReturn, Self, TypeVar

import grpc

from rowferry.change.table import TableId
from rowferry.control.operations import Operations
from rowferry.control.store.contract import Feed
from rowferry.errors import (
    AccessDenied,
    BadInput,
    BadOption,
    ChangefeedExists,
    NoSuchChangefeed,
    NoSuchTable,
    RowferryError,
    Verdict,
)
from rowferry.face.gate import Gate, Tls, split_address
from rowferry.face.json_log import redacted
from rowferry.face.sources import Sources
from rowferry.face.subscription import Subscription, rule, subscribe_row
from rowferry.spec.changefeed_id import check_changefeed_id
from rowferry.wire import subscribe_pb2 as wire
from rowferry.wire import subscribe_pb2_grpc as stubs

LOG = logging.getLogger(__name__)
_THREADS: Final = 8
_GRACE_S: Final = 5.0
_OPTIONS: Final = (
    ("grpc.max_receive_message_length", 1 << 20),
    ("grpc.so_reuseport", 0),
)
_CODES: Final[tuple[tuple[type[RowferryError], grpc.StatusCode], ...]] = (
    (ChangefeedExists, grpc.StatusCode.ALREADY_EXISTS),
    (NoSuchChangefeed, grpc.StatusCode.NOT_FOUND),
    (NoSuchTable, grpc.StatusCode.NOT_FOUND),
    (BadInput, grpc.StatusCode.INVALID_ARGUMENT),
)
A = TypeVar("A")


class Subscriptions:
    """The methods of the service `rowferry.wire.Subscriptions`."""

    def __init__(self, operations: Operations, sources: Sources, gate: Gate) -> None:
        self._operations = operations
        self._sources = sources
        self._gate = gate

    def SubscribeCDC(  # noqa: N802 (the name on the wire)
        self, request: Any, context: grpc.ServicerContext
    ) -> Any:
        """Create the changefeed `subscriber_name` for one table, and return its row."""
        return self._answered(context, lambda: self._subscribe(request))

    def UnsubscribeCDC(  # noqa: N802 (the name on the wire)
        self, request: Any, context: grpc.ServicerContext
    ) -> Any:
        """Set `cancel`: the owner stops at the next border and removes the changefeed."""
        return self._answered(context, lambda: self._unsubscribe(request))

    def _subscribe(self, request: Any) -> Any:
        table = TableId(request.db_name, request.table_name)
        if not table.database or not table.table:
            raise BadOption("db_name and table_name must both be given")
        config = dict(request.sink.config)
        cluster = request.header.cluster_id
        wanted = Subscription(
            request.subscriber_name, table, request.sink.type.strip().lower(), config
        ).wanted("" if config.get("source_uri") else self._sources.choose(cluster))
        feed = self._operations.create(wanted).feed
        return wire.SubscribeCDCResponse(subscriber=self._row(feed, cluster, table))

    def _unsubscribe(self, request: Any) -> Any:
        name = check_changefeed_id(request.subscriber_name)
        table = TableId(request.db_name, request.table_name)
        seen = self._operations.see(name, 0.0)
        rules = list(seen.feed.spec.section("filter").get("rules", ()))
        if table.database or table.table:
            if table not in seen.tables and rules != [rule(table)]:
                raise NoSuchChangefeed(f"{name} does not subscribe to {table}; nothing was changed")
        elif len(seen.tables) == 1:
            table = seen.tables[0]
        ids = [r.table_id for r in seen.ranges if (r.database, r.table) == table]
        row = self._row(replace(seen.feed, cancel=True), request.header.cluster_id, table, ids)
        if self._operations.remove(name) is None:
            raise NoSuchChangefeed(f"there is no changefeed {name!r}")
        return wire.UnsubscribeCDCResponse(subscriber=row)

    def _row(self, feed: Feed, cluster: int, table: TableId, ids: list[int] | None = None) -> Any:
        found = subscribe_row(feed, cluster, table, ids[0] if ids else 0)
        return wire.CDCSubscriber(**asdict(found))

    def _answered(self, context: grpc.ServicerContext, work: Callable[[], A]) -> A:
        """Return what the work returns; its errors become status codes with one line."""
        pairs = {str(key): value for key, value in context.invocation_metadata()}
        if not self._gate.admits(str(pairs.get("authorization", ""))):
            denied = AccessDenied("a login is needed: send authorization in the metadata")
            _abort(context, grpc.StatusCode.UNAUTHENTICATED, str(denied))
        try:
            return work()
        except RowferryError as err:
            _abort(context, _code(err), redacted(str(err)))
        except Exception:
            LOG.exception("a subscription failed")
            words = "[RF-0000] the server failed inside; its log has the details"
            _abort(context, grpc.StatusCode.INTERNAL, words)


def _abort(context: grpc.ServicerContext, code: grpc.StatusCode, words: str) -> NoReturn:
    context.abort(code, words)
    raise AssertionError("abort returned")


def _code(error: RowferryError) -> grpc.StatusCode:
    for kind, code in _CODES:
        if isinstance(error, kind):
            return code
    if error.verdict is Verdict.STOP:
        return grpc.StatusCode.FAILED_PRECONDITION
    return grpc.StatusCode.UNAVAILABLE


class RpcServing:
    """A gRPC server that runs.

    Attributes:
        address: host:port, with the port that was chosen for 0.
    """

    def __init__(self, server: grpc.Server, pool: ThreadPoolExecutor, address: str) -> None:
        self.address = address
        self._server = server
        self._pool = pool

    def close(self) -> None:
        """Finish the calls under way, for a few seconds, and stop. On repeat: nothing."""
        self._server.stop(grace=_GRACE_S).wait()
        self._pool.shutdown(wait=False, cancel_futures=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def serve(
    operations: Operations,
    addr: str,
    tls: Tls | None = None,
    gate: Gate | None = None,
    sources: Sources | None = None,
) -> RpcServing:
    """Serve subscriptions at `HOST:PORT` (port 0: any free one) until the handle is closed.

    Raises:
        BadOption: the address is taken or of another form, or the TLS files cannot be used.
    """
    host, port = split_address(addr, "--grpc-addr")
    shown = f"[{host}]" if ":" in host else host
    if tls is not None:
        tls.check()
    pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="grpc")
    server = grpc.server(pool, options=_OPTIONS)
    methods = Subscriptions(operations, sources or Sources(), gate or Gate())
    stubs.add_SubscriptionsServicer_to_server(methods, server)  # type: ignore[no-untyped-call]
    try:
        bound = (
            server.add_secure_port(f"{shown}:{port}", _credentials(tls))
            if tls
            else server.add_insecure_port(f"{shown}:{port}")
        )
    except RuntimeError:
        bound = 0
    if not bound:
        pool.shutdown(wait=False)
        raise BadOption(f"--grpc-addr {addr}: cannot be used; is the address in use?")
    server.start()
    return RpcServing(server, pool, f"{shown}:{bound}")


def _credentials(tls: Tls) -> grpc.ServerCredentials:
    ca = tls.client_ca.read_bytes() if tls.client_ca else None
    return grpc.ssl_server_credentials(
        [(tls.key.read_bytes(), tls.cert.read_bytes())],
        root_certificates=ca,
        require_client_auth=ca is not None,
    )
