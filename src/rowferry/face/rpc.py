"""gRPC: a subscription to one table makes a changefeed of its own; the server of all services."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from typing import Any, Final, Self

import grpc

from rowferry.change.table import TableId
from rowferry.control.operator.operations import Operations, Wanted
from rowferry.control.store.contract import FeedRecord, Subscribed
from rowferry.errors import BadOption, ChangefeedExists, NoSuchChangefeed
from rowferry.face.descriptors import share_of_descriptors
from rowferry.face.fresh import Fresh
from rowferry.face.gate import Gate, Tls, split_address
from rowferry.face.rpc_calls import Calls, RpcMethods
from rowferry.face.rpc_declared import DeclarationMethods
from rowferry.face.rpc_quarantine import QuarantineMethods
from rowferry.face.rpc_resnapshots import ResnapshotMethods
from rowferry.face.rpc_traces import TraceMethods
from rowferry.face.sources import Sources
from rowferry.face.subscription import Subscription, check_subscriber_name, rule
from rowferry.spec.uri import Uri
from rowferry.wire import (
    declare_pb2_grpc,
    quarantine_pb2_grpc,
    resnapshot_pb2_grpc,
    trace_pb2_grpc,
)
from rowferry.wire import subscribe_pb2 as wire
from rowferry.wire import subscribe_pb2_grpc as stubs

LOG = logging.getLogger(__name__)
_GRACE_S: Final = 5.0
_MOST_CLUSTER: Final = 2**63 - 1  # what the meta database holds
_MOST_CALLS: Final = 32  # under way at once, each in a thread; the next ones are refused
_MOST_CONNECTIONS: Final = 256
_OPTIONS: Final = (
    ("grpc.max_receive_message_length", 1 << 20),
    ("grpc.max_metadata_size", 16 << 10),
    ("grpc.max_concurrent_streams", 16),
    ("grpc.server_handshake_timeout_ms", 10_000),
    ("grpc.max_connection_idle_ms", 300_000),
    ("grpc.http2.min_ping_interval_without_data_ms", 60_000),
    ("grpc.http2.max_ping_strikes", 2),
    ("grpc.so_reuseport", 0),
)
_FURTHER_SERVICES: Final[tuple[tuple[type[RpcMethods], Callable[..., None]], ...]] = (
    (ResnapshotMethods, resnapshot_pb2_grpc.add_ResnapshotsServicer_to_server),
    (TraceMethods, trace_pb2_grpc.add_TracesServicer_to_server),
    (QuarantineMethods, quarantine_pb2_grpc.add_QuarantineServicer_to_server),
    (DeclarationMethods, declare_pb2_grpc.add_DeclarationsServicer_to_server),
)


class SubscriptionMethods(RpcMethods):
    """The methods of the service `rowferry.wire.Subscriptions`."""

    def __init__(self, operations: Operations, sources: Sources, calls: Calls) -> None:
        super().__init__(operations, calls)
        self._store, self._sources = operations.store, sources

    def SubscribeCDC(self, request: Any, context: grpc.ServicerContext) -> Any:
        """Subscribe to one table: make its changefeed, and return the stored row."""
        return self._calls.answered(context, lambda: self._subscribe(request))

    def UnsubscribeCDC(self, request: Any, context: grpc.ServicerContext) -> Any:
        """Set `cancel` of one table: its owner stops at the next border and removes it."""
        return self._calls.answered(context, lambda: self._unsubscribe(request))

    def _subscribe(self, request: Any) -> Any:
        name, table = check_subscriber_name(request.subscriber_name), _table(request)
        if not table.database or not table.table:
            raise BadOption("db_name and table_name must both be given")
        config, cluster = dict(request.sink.config), request.header.cluster_id
        if cluster > _MOST_CLUSTER:
            raise BadOption(f"header.cluster_id {cluster}: at most {_MOST_CLUSTER} is allowed")
        asked = Subscription(name, table, request.sink.type.strip().lower(), config, cluster)
        source = config.get("source_uri") or self._sources.choose(cluster)
        self._refuse_again(asked, Uri.parse(source, "source").address)
        feed = self._created(asked, source)
        for row in self._store.subscribed(name):
            if row.changefeed == feed.id and (row.db_name, row.table_name) == table:
                return wire.SubscribeCDCResponse(subscriber=_answer(row))
        raise NoSuchChangefeed(f"{name} was unsubscribed from {table} at once")

    def _refuse_again(self, asked: Subscription, place: str) -> None:
        """Refuse a table that the subscriber has, before anybody is asked about it.

        Two requests at once may both come through here; the meta database takes one of them.
        """
        for row in self._store.subscribed(asked.name):
            feed = self._store.feed(row.changefeed)
            if (row.db_name, row.table_name) == asked.table:
                if feed is None or feed.spec.source.address == place:
                    raise ChangefeedExists(
                        f"subscriber {asked.name} has table {asked.table} already; unsubscribe it "
                        "first, or use another name"
                    )

    def _created(self, asked: Subscription, source: str) -> FeedRecord:
        """Make the changefeed, under the first of its ids that is free."""
        address = Uri.parse(source, "source").address
        is_called = self._sources.calls(asked.cluster_id, address)

        def wanted(changefeed_id: str) -> Wanted:
            only = 0 if is_called else asked.cluster_id
            return replace(asked.wanted(source, changefeed_id), only_cluster=only)

        *others, last = asked.changefeed_ids
        for one in others:
            if self._store.feed(one) is None:
                try:
                    return self._operations.create(wanted(one)).feed
                except ChangefeedExists:
                    if self._store.feed(one) is None:
                        raise  # not the id: the subscriber has the table
        return self._operations.create(wanted(last)).feed

    def _unsubscribe(self, request: Any) -> Any:
        name, table = check_subscriber_name(request.subscriber_name), _table(request)
        rows = self._store.subscribed(name)
        feeds = {row.changefeed: self._store.feed(row.changefeed) for row in rows}
        own = [r for r in rows if (feed := feeds[r.changefeed]) and feed.subscriber == name]
        cluster = request.header.cluster_id
        if not own:
            if rows and not self._of_cluster(rows, cluster, feeds):
                raise NoSuchChangefeed(
                    f"{name} reads no table of cluster {cluster}; nothing was changed"
                )
            return wire.UnsubscribeCDCResponse(subscriber=self._removed(name, table, request))
        if table.database or table.table:
            own = [r for r in own if (r.db_name, r.table_name) == table]
        own = self._of_cluster(own, cluster, feeds)
        if not own:
            what = f"table {table}" if table.table else "a table"
            whose = f" of cluster {cluster}" if cluster else ""
            raise NoSuchChangefeed(
                f"{name} does not subscribe to {what}{whose}; nothing was changed"
            )
        if len(own) > 1:
            known = ", ".join(f"{r.db_name}.{r.table_name} of cluster {r.cluster_id}" for r in own)
            raise BadOption(
                f"{name} subscribes to {known}; name one by db_name, table_name and the header's "
                "cluster_id"
            )
        if self._operations.remove(own[0].changefeed) is None:
            raise NoSuchChangefeed(f"{name} does not subscribe to {table} any more")
        return wire.UnsubscribeCDCResponse(subscriber=_answer(replace(own[0], cancel=1)))

    def _of_cluster(
        self, rows: Iterable[Subscribed], cluster: int, feeds: Mapping[str, FeedRecord | None]
    ) -> list[Subscribed]:
        """Return the rows of a cluster, also where the id is only what this server calls it."""
        return [
            row
            for row in rows
            if cluster in (0, row.cluster_id)
            or (
                (feed := feeds[row.changefeed])
                and self._sources.calls(cluster, feed.spec.source.address)
            )
        ]

    def _removed(self, name: str, table: TableId, request: Any) -> Any:
        """Remove a changefeed that was made for no subscription, with all its tables."""
        seen = self._operations.see(name, 0.0)
        feed, rules = seen.feed, list(seen.feed.spec.section("filter").get("rules", ()))
        if table.database or table.table:
            if table not in seen.tables and rules != [rule(table)]:
                raise NoSuchChangefeed(f"{name} does not subscribe to {table}; nothing was changed")
        elif len(seen.tables) == 1:
            table = seen.tables[0]
        ids = [r.table_id for r in seen.ranges if (r.database, r.table) == table]
        row = Subscribed(
            cluster_id=request.header.cluster_id,
            db_name=table.database,
            table_name=table.table,
            subscribe_name=name,
            db_id=None,
            table_id=ids[0] if ids else 0,
            master_addrs=feed.spec.source.address,
            sink=str(feed.spec.sink),
            cancel=1,
            owner=feed.lease.owner if feed.lease else "",
            changefeed=name,
        )
        stored = (r for r in self._store.subscribed(name) if (r.db_name, r.table_name) == table)
        row = replace(next(stored, row), cancel=1)
        if self._operations.remove(name) is None:
            raise NoSuchChangefeed(f"there is no changefeed {name!r}")
        return _answer(row)


def _table(request: Any) -> TableId:
    return TableId(request.db_name, request.table_name)


def _answer(row: Subscribed) -> Any:
    fields = asdict(row)
    del fields["changefeed"]
    return wire.CDCSubscriber(**(fields | {"db_id": row.db_id or 0}))


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

    def __exit__(self, *error: object) -> None:
        self.close()


def serve(
    operations: Operations,
    addr: str,
    tls: Tls | None = None,
    gate: Gate | None = None,
    sources: Sources | None = None,
    connections: int | None = None,
) -> RpcServing:
    """Serve all services at `HOST:PORT` (port 0: any free one) until the handle is closed.

    It keeps so many `connections`, by default a share of our descriptors.

    Raises:
        BadOption: the address is taken or of another form, or the TLS files cannot be used.
    """
    host, port = split_address(addr, "--grpc-addr")
    shown = f"[{host}]" if ":" in host else host
    if tls is not None:
        tls.check()
    # A call learns whose it is in its thread only: none may wait for one behind another's.
    pool = ThreadPoolExecutor(_MOST_CALLS, thread_name_prefix="grpc")
    most = min(_MOST_CONNECTIONS, share_of_descriptors()) if connections is None else connections
    options = (*_OPTIONS, ("grpc.max_allowed_incoming_connections", most))
    server = grpc.server(pool, options=options, maximum_concurrent_rpcs=_MOST_CALLS)
    calls = Calls(gate or Gate())
    methods = SubscriptionMethods(operations, sources or Sources(), calls)
    stubs.add_SubscriptionsServicer_to_server(methods, server)  # type: ignore[no-untyped-call]
    for kind, add in _FURTHER_SERVICES:
        add(kind(operations, calls), server)
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
    """Return credentials that are the files' at each handshake."""

    def read() -> Any:
        tls.check()  # gRPC itself says nothing of what is wrong
        ca = tls.client_ca.read_bytes() if tls.client_ca else None
        pair = (tls.key.read_bytes(), tls.cert.read_bytes())
        return grpc.ssl_server_certificate_configuration([pair], root_certificates=ca)

    fresh = Fresh(tls.paths, read)
    first = last = fresh.get()

    def newer() -> Any:
        nonlocal last
        before, last = last, fresh.get()
        return None if last is before else last

    return grpc.dynamic_ssl_server_credentials(
        first, newer, require_client_authentication=tls.client_ca is not None
    )
