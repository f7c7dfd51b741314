"""Small HTTP servers for tests: each listens for a block's time, in threads of its own."""

from __future__ import annotations

import gzip
import socket
import ssl
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, Self

_HOST: Final = "127.0.0.1"


class StubRequests(BaseHTTPRequestHandler):
    """The requests of one connection."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def body(self) -> bytes:
        """Return what was sent, decompressed."""
        sent = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        return gzip.decompress(sent) if self.headers.get("Content-Encoding") == "gzip" else sent

    def answer(self, status: int, words: bytes, headers: Mapping[str, str] | None = None) -> None:
        """Answer the request."""
        known = {"Content-Length": str(len(words)), **(headers or {})}
        self.send_response(status)
        for name, value in known.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(words)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


class HttpStub:
    """A server on a free port of this machine.

    Attributes:
        host: its host and port.
        url: its address, without a path.
    """

    def __init__(self, requests: type[StubRequests], tls: ssl.SSLContext | None = None) -> None:
        """Listen; what `requests` asks of the stub is asked when the block has begun."""
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._server = _Server((_HOST, 0), requests)
        self.port: int = self._server.server_address[1]
        self.host = f"{_HOST}:{self.port}"
        self.url = f"http://{self.host}"
        if tls is not None:
            self.url = f"https://{self.host}"
            self._server.socket = tls.wrap_socket(
                self._server.socket, server_side=True, do_handshake_on_connect=False
            )
        # One that is kept for a whole process, as storages are, does not keep that from ending.
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.02,), daemon=True
        )

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop: connections are closed, and nobody listens any more. On repeat: nothing."""
        if not self._closing.is_set():
            self._closing.set()
            self._server.shutdown()
            self._server.cut()
            self._server.server_close()
            self._thread.join()

    def be_silent(self) -> None:
        """Return when the server is closed."""
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
