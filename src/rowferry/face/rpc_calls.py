"""gRPC calls of every service: who calls, how many at once, and errors as status codes."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, NoReturn, TypeVar
from urllib.parse import unquote

import grpc

from rowferry.control.operator.actor import current_actor
from rowferry.control.operator.operations import Operations
from rowferry.errors import (
    AccessDenied,
    BadInput,
    ChangefeedExists,
    LoginDelayed,
    NoSuchChangefeed,
    NoSuchTable,
    RoleTooLow,
    RowferryError,
    ServerBusy,
    Verdict,
)
from rowferry.face.delays import network_of
from rowferry.face.gate import Gate
from rowferry.face.json_log import redacted

LOG = logging.getLogger(__name__)
_LONGEST: Final = 2000  # bytes of an error; each may become three
_MOST_OF_ONE: Final = 8  # calls under way of one client's address, of all services together
_CODES: Final[tuple[tuple[type[RowferryError], grpc.StatusCode], ...]] = (
    (ChangefeedExists, grpc.StatusCode.ALREADY_EXISTS),
    (NoSuchChangefeed, grpc.StatusCode.NOT_FOUND),
    (NoSuchTable, grpc.StatusCode.NOT_FOUND),
    (LoginDelayed, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (ServerBusy, grpc.StatusCode.RESOURCE_EXHAUSTED),
    (AccessDenied, grpc.StatusCode.UNAUTHENTICATED),
    (RoleTooLow, grpc.StatusCode.PERMISSION_DENIED),
    (BadInput, grpc.StatusCode.INVALID_ARGUMENT),
)
A = TypeVar("A")


class Calls:
    """Lets calls in by the gate, and turns their errors into status codes."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._shares = Shares(_MOST_OF_ONE)

    def answered(self, context: grpc.ServicerContext, work: Callable[[], A]) -> A:
        """Return what the work returns; its errors become status codes with one line."""
        pairs = {str(key): value for key, value in context.invocation_metadata()}
        origin = _origin(context.peer())
        try:
            with self._shares.taken(origin):
                word = str(pairs.get("authorization", ""))
                current_actor.set(self._gate.admit(word, origin, "grpc"))
                return work()
        except RowferryError as err:
            _abort(context, _code(err), redacted(str(err)))
        except Exception:
            LOG.exception("a call failed")
            words = "[RF-0000] the server failed inside; its log has the details"
            _abort(context, grpc.StatusCode.INTERNAL, words)


class RpcMethods:
    """The methods of one service; they are named as on the wire."""

    def __init__(self, operations: Operations, calls: Calls) -> None:
        self._operations, self._calls = operations, calls


def _abort(context: grpc.ServicerContext, code: grpc.StatusCode, words: str) -> NoReturn:
    # Details are a header: a client takes no long one, and would not say what is wrong.
    raw = words.encode()
    short = raw[:_LONGEST].decode(errors="ignore") + "…"
    context.abort(code, words if len(raw) <= _LONGEST else short)
    raise AssertionError("abort returned")


def _origin(peer: str) -> str:
    """Return the address in `ipv4:10.0.0.1:4711` or `ipv6:%5B::1%5D:4711`, as gRPC names a peer."""
    return unquote(peer).partition(":")[2].rpartition(":")[0].strip("[]") or peer


def _code(error: RowferryError) -> grpc.StatusCode:
    for kind, code in _CODES:
        if isinstance(error, kind):
            return code
    if error.verdict is Verdict.STOP:
        return grpc.StatusCode.FAILED_PRECONDITION
    return grpc.StatusCode.UNAVAILABLE


class Shares:
    """How many calls each address has under way, so that none of them takes all turns.

    Addresses of IPv6 count by their networks of 64 bits: one client may have all of such a network.
    For use from several threads.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._taken: Counter[str] = Counter()
        self._lock = threading.Lock()

    @contextmanager
    def taken(self, origin: str) -> Iterator[None]:
        """Take a turn until the block ends.

        Raises:
            ServerBusy: the address has as many as it may.
        """
        key = network_of(origin)
        with self._lock:
            if self._taken[key] >= self._most:
                raise ServerBusy(
                    f"{self._most} calls of this client are being carried out, the most that may "
                    "be at once; nothing was done"
                )
            self._taken[key] += 1
        try:
            yield
        finally:
            with self._lock:
                self._taken[key] -= 1
                if not self._taken[key]:
                    del self._taken[key]
