"""A web server that answers whatever a test wants, and keeps what it was asked."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Asked:
    """A request as it came."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True)
class Answer:
    """What is answered; without a length, until the pieces end."""

    pieces: Iterable[bytes] = ()
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)


def as_json(content: Any, status: int = 200) -> Answer:
    """Return an answer that is JSON."""
    return Answer([json.dumps(content).encode()], status)


@dataclass(frozen=True)
class Rogue:
    """The server: its address, and the requests so far."""

    port: int
    seen: list[Asked]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@contextmanager
def rogue(answer: Callable[[Asked], Answer]) -> Iterator[Rogue]:
    """Serve at a free port of this machine."""
    seen: list[Asked] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def _any(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            seen.append(Asked(self.command, self.path, dict(self.headers), body))
            said = answer(seen[-1])
            self.send_response(said.status)
            for key, value in said.headers.items():
                self.send_header(key, value)
            self.send_header("Connection", "close")
            self.end_headers()
            try:
                for piece in said.pieces:
                    self.wfile.write(piece)
            except OSError:
                pass  # the client has had enough

        do_GET = do_POST = do_PUT = do_DELETE = do_HEAD = _any

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield Rogue(server.server_port, seen)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
