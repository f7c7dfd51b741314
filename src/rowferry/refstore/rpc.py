"""gRPC plumbing of the store: channels, method handlers, and errors wrapped once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

import grpc

from rowferry.errors import BadInput, StoreRefused, StoreUnavailable
from rowferry.flow.capture.range_log.client_access import PLAIN, RangeAccess, refusal
from rowferry.refstore.guard import OPEN, StoreGuard

OPTIONS = (
    ("grpc.max_receive_message_length", 256 << 20),  # one entry of the log, at most
    ("grpc.max_send_message_length", -1),
    ("grpc.enable_retries", 0),
    ("grpc.so_reuseport", 0),
    # A server that was restarted is found again at once.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 300),
)
_THREADS = 32
A = TypeVar("A")


class Channels:
    """Open channels by address; calls raise StoreUnavailable when nobody answers."""

    def __init__(self, access: RangeAccess = PLAIN) -> None:
        self._access = access
        self._lock = threading.Lock()
        self._open: dict[str, grpc.Channel] = {}

    def _method(self, address: str, method: str, request: Any, read: Callable[[bytes], A]) -> Any:
        with self._lock:
            channel = self._open.get(address)
            if channel is None:
                channel = self._open[address] = self._access.channel(address, OPTIONS)
        return channel.unary_unary(
            f"/rowferry.wire.{method}",
            request_serializer=type(request).SerializeToString,
            response_deserializer=read,
        )

    def call(
        self, address: str, method: str, request: Any, answer: type[A], timeout_s: float = 10.0
    ) -> A:
        """Call `Service/Method` at an address.

        Raises:
            StoreUnavailable: nobody answered in time; whether the call had an effect is unknown.
            StoreRefused: the server does not let us in, or is not the one that it should be.
        """
        read: Callable[[bytes], A] = answer.FromString  # type: ignore[attr-defined]
        try:
            call = self._method(address, method, request, read)
            reply: A = call(request, timeout=timeout_s, metadata=self._access.metadata)
            return reply
        except grpc.RpcError as err:
            raise unavailable(address, method, err) from None
        except ValueError as err:  # the channel was closed meanwhile
            raise StoreUnavailable(f"{address}: {err}") from None

    def close(self) -> None:
        """Close all channels."""
        with self._lock:
            for channel in self._open.values():
                channel.close()
            self._open.clear()


def unavailable(address: str, method: str, err: grpc.RpcError) -> StoreUnavailable:
    """Return a transport error in our words."""
    if why := refusal(err):
        return StoreRefused(f"the range store at {address} and we do not come together: {why}")
    code = err.code().name if hasattr(err, "code") else "UNKNOWN"
    details = str(err.details() or "")[:200] if hasattr(err, "details") else ""
    return StoreUnavailable(f"{address} did not answer {method} ({code}: {details})")


class RpcServer:
    """A gRPC server of plain functions: request in, message or bytes out."""

    def __init__(
        self,
        services: Mapping[str, Mapping[str, tuple[type[Any], Callable[[Any], Any]]]],
        guard: StoreGuard = OPEN,
    ) -> None:
        self._guard = guard
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="rpc")
        self._server = grpc.server(self._pool, options=OPTIONS, interceptors=guard.interceptors())
        for service, methods in services.items():
            handlers = {name: _handler(kind, serve) for name, (kind, serve) in methods.items()}
            self._server.add_generic_rpc_handlers(
                (grpc.method_handlers_generic_handler(f"rowferry.wire.{service}", handlers),)
            )

    def listen(self, address: str) -> str:
        """Bind, start, and return host:port with the port that was chosen for 0.

        Raises:
            BadInput: the address cannot be used.
            BadOption: a file of the guard cannot be used.
        """
        host, colon, _ = address.rpartition(":")
        if not colon or not host:
            raise BadInput(f"--listen {address!r}: expected HOST:PORT")
        try:
            port = self._guard.bind(self._server, address)
        except RuntimeError:
            port = 0
        if not port:
            raise BadInput(f"--listen {address}: cannot bind; is the address in use?")
        self._server.start()
        return f"{host}:{port}"

    def stop(self) -> None:
        """Finish the calls under way, for a moment, and stop."""
        self._server.stop(grace=0.5).wait()
        self._pool.shutdown(wait=False, cancel_futures=True)


def _handler(kind: type[Any], serve: Callable[[Any], Any]) -> Any:
    def answer(request: Any, context: grpc.ServicerContext) -> bytes:
        reply = serve(request)
        return reply if isinstance(reply, bytes) else bytes(reply.SerializeToString())

    return grpc.unary_unary_rpc_method_handler(
        answer, request_deserializer=kind.FromString, response_serializer=None
    )


def gather(pool: ThreadPoolExecutor, jobs: Sequence[Callable[[], A]]) -> list[A]:
    """Run jobs side by side and return their results; all have ended when one's error is raised."""
    if len(jobs) == 1:
        return [jobs[0]()]
    futures: list[Future[A]] = [pool.submit(job) for job in jobs]
    for future in futures:
        future.exception()
    return [future.result() for future in futures]
