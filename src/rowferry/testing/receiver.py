"""An HTTP receiver that remembers what it was sent, and misbehaves when told to."""

from __future__ import annotations

import gzip
import socket
import ssl
import threading
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

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


class HttpReceiver:
    """Takes every POST, except as `faults` say: the next requests get them, one each (None: taken).

    Attributes:
        seen: every request, also those that were not taken.
        taken: those that were, in order, repeats among them.
    """

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.seen: list[ReceivedRequest] = []
        self.taken: list[ReceivedRequest] = []
        self.faults: deque[ReceiverFault | Refusal | None] = deque()
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._server = _Server(("127.0.0.1", 0), _handler(self))
        self.port: int = self._server.server_address[1]
        self.scheme = "http"
        if tls is not None:
            self.scheme = "https"
            self._server.socket = tls.wrap_socket(
                self._server.socket, server_side=True, do_handshake_on_connect=False
            )
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def uri(self) -> str:
        """Its address."""
        return f"{self.scheme}://127.0.0.1:{self.port}/changes"

    def close(self) -> None:
        """Stop: connections are closed, and nobody listens any more."""
        if not self._closing.is_set():
            self._closing.set()
            self._server.shutdown()
            self._server.cut()
            self._server.server_close()
            self._thread.join()

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

    def be_silent(self) -> None:
        """Return when the receiver is closed."""
        self._closing.wait()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, *arguments: Any) -> None:
        self._connections: set[socket.socket] = set()
        super().__init__(*arguments)

    def process_request(self, request: Any, client_address: Any) -> None:
        self._connections.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._connections.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away is no news."""

    def cut(self) -> None:
        """Close the connections that are open."""
        for connection in list(self._connections):
            super().shutdown_request(connection)


def _handler(receiver: HttpReceiver) -> type[BaseHTTPRequestHandler]:
    class Post(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            fault = receiver.note(ReceivedRequest(self.path, dict(self.headers.items()), body))
            match fault:
                case None:
                    self._answer(Refusal(200, words=b"thanks"))
                case Refusal():
                    self._answer(fault)
                case _:
                    self._misbehave(fault)

        def _answer(self, answer: Refusal) -> None:
            self.send_response(answer.status)
            for name, value in answer.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(answer.words)))
            self.end_headers()
            self.wfile.write(answer.words)

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

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

    return Post
