"""A front before a search server: it asks for a login, keeps a log, misbehaves when told to.

Requests go on to the real server, and its answers come back.
"""

from __future__ import annotations

import json
import socket
import ssl
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.client import HTTPConnection

from rowferry.testing.http_stub import HttpStub, StubRequests
from rowferry.testing.receiver import ReceiverFault, Refusal


@dataclass(frozen=True, slots=True)
class FrontRequest:
    """What was sent; `body` is decompressed."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class NoRoom:
    """The documents at these places of a bulk are not taken (429); the others are."""

    places: tuple[int, ...]


Fault = ReceiverFault | Refusal | NoRoom | None
Guard = Callable[[FrontRequest], Refusal | None]


class SearchFront(HttpStub):
    """Passes requests on, except as `faults` say: the next bulks get them, one each.

    Attributes:
        taken: what went on to the server, in order, repeats among them.
        refused: what the guard refused.
        faults: for bulks; for all requests where `faults_for_all`.
    """

    def __init__(
        self, upstream: str, tls: ssl.SSLContext | None = None, guard: Guard | None = None
    ) -> None:
        self.upstream = upstream
        self.guard = guard
        self.taken: list[FrontRequest] = []
        self.refused: list[FrontRequest] = []
        self.faults: deque[Fault] = deque()
        self.faults_for_all = False
        super().__init__(_handler(self), tls)

    @property
    def address(self) -> str:
        """Host and port."""
        return self.host

    def next_fault(self, request: FrontRequest) -> Fault:
        """Return what to do instead of passing a request on."""
        with self._lock:
            if self.guard is not None and (refusal := self.guard(request)) is not None:
                self.refused.append(request)
                return refusal
            is_bulk = request.path.startswith("/_bulk")
            fault = self.faults.popleft() if self.faults and self._faulty(is_bulk) else None
            lost = (ReceiverFault.DROP, ReceiverFault.SILENCE)
            if not isinstance(fault, Refusal) and fault not in lost:
                self.taken.append(request)
            return fault

    def _faulty(self, is_bulk: bool) -> bool:
        return is_bulk or self.faults_for_all

    def passed_on(self, request: FrontRequest, fault: Fault) -> tuple[int, bytes]:
        """Return the server's answer to a request."""
        body = request.body
        refused = fault.places if isinstance(fault, NoRoom) else ()
        if refused:
            lines = _items(body)
            body = b"".join(item for n, item in enumerate(lines) if n not in refused)
        connection = HTTPConnection(self.upstream, timeout=60)
        try:
            kind = request.headers.get("Content-Type", "application/json")
            path = request.path.partition("?")[0] if refused else request.path
            connection.request(request.method, path, body or None, {"Content-Type": kind})
            answer = connection.getresponse()
            status, words = answer.status, answer.read()
        finally:
            connection.close()
        return status, _with_refusals(words, refused) if refused else words


def _items(body: bytes) -> list[bytes]:
    """Return the items of a bulk: an action, and the document behind it."""
    items: list[bytes] = []
    lines = iter(body.splitlines(keepends=True))
    for line in lines:
        items.append(line if b'"delete"' in line[:12] else line + next(lines))
    return items


def _with_refusals(words: bytes, places: tuple[int, ...]) -> bytes:
    answer = json.loads(words)
    for place in sorted(places):
        error = {"type": "rejected_execution_exception", "reason": "the queue is full"}
        answer["items"].insert(place, {"index": {"status": 429, "error": error}})
    return json.dumps({**answer, "errors": True}).encode()


def _handler(front: SearchFront) -> type[StubRequests]:
    class Pass(StubRequests):
        def _pass(self) -> None:
            headers = dict(self.headers.items())
            request = FrontRequest(self.command, self.path, headers, self.body())
            fault = front.next_fault(request)
            if isinstance(fault, Refusal):
                self.answer(fault.status, fault.words, fault.headers)
                return
            if fault is ReceiverFault.SILENCE:
                front.be_silent()
            if fault in (ReceiverFault.DROP, ReceiverFault.SILENCE):
                self._hang_up()
                return
            status, words = front.passed_on(request, fault)
            if fault is ReceiverFault.LOSE_ANSWER:
                self._hang_up()
                return
            self.answer(status, words)

        do_GET = do_POST = do_PUT = do_DELETE = do_HEAD = _pass

        def _hang_up(self) -> None:
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)

    return Pass
