"""A client's way to range leaders: routes from the master, asked again when out of date."""

from __future__ import annotations

import threading
import time
from bisect import bisect_right
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from rowferry.errors import (
    StoreDamaged,
    StoreError,
    StoreUnavailable,
    TransactionAborted,
    from_text,
)
from rowferry.flow.capture.range_log.client_access import PLAIN, RangeAccess
from rowferry.refstore.meta import Fault, RangeMeta
from rowferry.refstore.rpc import Channels
from rowferry.wire import range_cdc_pb2 as cdc
from rowferry.wire import store_pb2 as wire

_PATIENCE_S = 15.0
_PAUSE_S = 0.05
A = TypeVar("A")


class SchemaMoved(Exception):
    """Rows were encoded for an older table version; never leaves the store's client."""


class NotHere(Exception):
    """The leader refused before doing anything; never leaves the store's client."""


def retried(
    ask: Callable[[], A], patience_s: float = _PATIENCE_S, forget: Callable[[], None] | None = None
) -> A:
    """Ask again while the store is unavailable, for a while; `forget` comes before each time."""
    end = time.monotonic() + patience_s
    while True:
        try:
            return ask()
        except (StoreUnavailable, NotHere) as err:
            if time.monotonic() > end:
                raise StoreUnavailable(getattr(err, "words", str(err))) from None
        time.sleep(_PAUSE_S)
        if forget is not None:
            forget()


class Routing:
    """Routes, channels and retries. All methods may be called from any thread."""

    def __init__(self, master: str, patience_s: float, access: RangeAccess = PLAIN) -> None:
        self.master = master
        self.patience_s = patience_s
        self.channels = Channels(access)
        self.pool = ThreadPoolExecutor(16, thread_name_prefix="store-client")
        self._lock = threading.Lock()
        self._routes: list[RangeMeta] = []

    def close(self) -> None:
        """Close the connections."""
        self.pool.shutdown(wait=False, cancel_futures=True)
        self.channels.close()

    def ask_master(self, method: str, request: Any, answer: type[A], timeout_s: float = 10.0) -> A:
        """Call the master; its errors are raised here."""
        service = "RangeMaster" if method.startswith("Get") else "StoreMaster"
        reply = self.channels.call(self.master, f"{service}/{method}", request, answer, timeout_s)
        fault = getattr(reply, "fault", None)
        if fault is not None and fault.code:
            raise from_text(fault.message) or StoreError(fault.message)
        return reply

    def timestamp(self, count: int = 1) -> int:
        """Return the last of `count` new timestamps."""
        request = cdc.GetTimestampRequest(count=count)
        return self.patiently(
            lambda: self.ask_master("GetTimestamp", request, cdc.GetTimestampResponse).timestamp
        )

    def patiently(self, ask: Callable[[], A]) -> A:
        """Ask again while the store is unavailable, up to our patience."""
        return retried(ask, self.patience_s, self.forget)

    def forget(self) -> None:
        """Ask the master for the routes before they are used again."""
        with self._lock:
            self._routes = []

    def routes(self) -> list[RangeMeta]:
        """Return all ranges by start key."""
        with self._lock:
            routes = self._routes
        if routes:
            return routes
        reply = self.ask_master("GetRoutes", cdc.GetRoutesRequest(), cdc.GetRoutesResponse)
        routes = [RangeMeta.of(r) for r in reply.routes]
        with self._lock:
            self._routes = routes
        return routes

    def at(self, key: bytes) -> RangeMeta:
        """Return the range that holds a key.

        Raises:
            NotHere: no such range is known now, or it has no leader.
        """
        routes = self.routes()
        place = bisect_right([r.start for r in routes], key) - 1
        if place < 0 or not routes[place].holds(key) or not routes[place].leader:
            self.forget()
            raise NotHere(f"no range with a leader holds key {key.hex()}")
        return routes[place]

    def call(
        self, meta: RangeMeta, method: str, request: Any, answer: type[A], timeout_s: float = 30.0
    ) -> A:
        """Call a range's leader.

        Raises:
            NotHere: nothing was done; ask again with new routes.
            StoreUnavailable: no answer; whether anything was done is unknown.
            SchemaMoved: read the table again and encode anew.
            TransactionAborted, StoreDamaged, StoreError: the leader's refusal.
        """
        reply: Any = self.channels.call(
            meta.leader, f"StoreData/{method}", request, answer, timeout_s
        )
        check_fault(reply.fault, f"range {meta.range_id}")
        result: A = reply
        return result


def check_fault(fault: wire.StoreFault, what: str) -> None:
    """Raise a leader's refusal as the error that says what to do."""
    words = f"{what}: {fault.message}"
    match fault.code:
        case Fault.NONE:
            return
        case Fault.NOT_LEADER | Fault.STALE_EPOCH | Fault.BUSY:
            raise NotHere(words)
        case Fault.SCHEMA_CHANGED:
            raise SchemaMoved(words)
        case Fault.CONFLICT | Fault.ROLLED_BACK:
            raise TransactionAborted(f"{words}; run the transaction again")
        case Fault.DAMAGED:
            raise from_text(fault.message) or StoreDamaged(words)
    raise StoreError(words)
