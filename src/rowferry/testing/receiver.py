"""An HTTP receiver that remembers what it was sent, and misbehaves when told to."""

from __future__ import annotations

import ssl
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto

from rowferry.testing.http_stub import HttpStub, StubRequests

KEY = "Idempotency-Key"


class ReceiverFault(Enum):
    """What a receiver may do instead of answering."""

    DROP = auto()  # it does not take the request, and closes the connection
    LOSE_ANSWER = auto()  # it takes it, and closes the connection
    HALF_ANSWER = auto()  # it takes it, and closes the connection within the answer's first line
    SILENCE = auto()  # it does not take it, and says nothing until it is closed
    ENDLESS_ANSWER = auto()  # it takes it, and its answer never ends


@dataclass(frozen=True, slots=True)
class Refusal:
    """A refusal: the request is not taken."""

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    words: bytes = b""


@dataclass(frozen=True, slots=True)
class ReceivedRequest:
    """What was sent; `body` is decompressed."""

    path: str
    headers: Mapping[str, str]
    body: bytes


class HttpReceiver(HttpStub):
    """Takes every POST, except as `faults` say: the next requests get them, one each (None: taken).

    Attributes:
        seen: every request, also those that were not taken.
        taken: those that were, in order, repeats among them.
    """

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.seen: list[ReceivedRequest] = []
        self.taken: list[ReceivedRequest] = []
        self.faults: deque[ReceiverFault | Refusal | None] = deque()
        super().__init__(_handler(self), tls)

    @property
    def uri(self) -> str:
        """Its address."""
        return f"{self.url}/changes"

    def once(self) -> list[ReceivedRequest]:
        """Return what was taken, each key's first request only."""
        by_key: dict[str, ReceivedRequest] = {}
        for request in list(self.taken):
            by_key.setdefault(request.headers.get(KEY, ""), request)
        return list(by_key.values())

    def note(self, request: ReceivedRequest) -> ReceiverFault | Refusal | None:
        """Remember a request; return what to do instead of taking it."""
        with self._lock:
            self.seen.append(request)
            fault = self.faults.popleft() if self.faults else None
            if not isinstance(fault, Refusal) and fault not in (
                ReceiverFault.DROP,
                ReceiverFault.SILENCE,
            ):
                self.taken.append(request)
            return fault


def _handler(receiver: HttpReceiver) -> type[StubRequests]:
    class Post(StubRequests):
        def do_POST(self) -> None:
            request = ReceivedRequest(self.path, dict(self.headers.items()), self.body())
            fault = receiver.note(request)
            match fault:
                case None:
                    self.answer(200, b"thanks")
                case Refusal():
                    self.answer(fault.status, fault.words, fault.headers)
                case _:
                    self._misbehave(fault)

        def _misbehave(self, fault: ReceiverFault) -> None:
            self.close_connection = True
            if fault is ReceiverFault.HALF_ANSWER:
                self.wfile.write(b"HTTP/1.1 2")
            elif fault is ReceiverFault.SILENCE:
                receiver.be_silent()
            elif fault is ReceiverFault.ENDLESS_ANSWER:
                self.wfile.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
                while True:  # until the other side has enough
                    self.wfile.write(b"10000\r\n" + b"x" * 65536 + b"\r\n")

    return Post
