"""A front door, and ways to knock at it that no library would take part in."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from typing import Any, Self

from rowferry.control.operator.operations import Operations
from rowferry.face.about import About
from rowferry.face.gate import Gate
from rowferry.face.names import ServerNames
from rowferry.face.rest.app import create_app
from rowferry.face.rest.door import DoorPatience
from rowferry.face.rest.serving import BoundAddress, serve
from rowferry.face.rest.turns import Turns

ABOUT = About("ferry.example:8300", "0.1.0", 1_700_000_000.0, "here")
PATIENCE_S = 120.0  # of those who attack: only a server that hangs makes them wait


@dataclass(frozen=True)
class Said:
    """An answer."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def form(self) -> Any:
        return json.loads(self.body)

    @property
    def words(self) -> str:
        return str(self.form["error_msg"])


@dataclass(frozen=True)
class Front:
    """A server that listens."""

    host: str
    port: int

    @classmethod
    @contextmanager
    def started(
        cls,
        operations: Operations,
        gate: Gate | None = None,
        names: ServerNames | None = None,
        turns: Turns | None = None,
        most: int | None = None,
        patience: DoorPatience | None = None,
    ) -> Iterator[Self]:
        app = create_app(operations, ABOUT, gate, None, names, turns)
        with serve(app, BoundAddress("127.0.0.1:0", most), patience=patience) as serving:
            host, _, port = serving.address.rpartition(":")
            yield cls(host, int(port))

    def ask(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> Said:
        """Send one request, with these headers as they are."""
        content = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        talk = HTTPConnection(self.host, self.port, timeout=PATIENCE_S)
        try:
            talk.request(method, path, content, dict(headers or {}))
            answer = talk.getresponse()
            return Said(answer.status, dict(answer.headers), answer.read())
        finally:
            talk.close()

    def knock(self, sent: bytes = b"") -> socket.socket:
        """Connect, send some bytes, and leave it at that."""
        made = socket.create_connection((self.host, self.port), timeout=PATIENCE_S)
        made.sendall(sent)
        return made

    @contextmanager
    def crowd(self, count: int, sent: bytes) -> Iterator[list[socket.socket]]:
        """Connect so many times at once, each time with some bytes and nothing more."""
        with ExitStack() as held:
            yield [held.enter_context(self.knock(sent)) for _ in range(count)]


def is_ended(connection: socket.socket) -> bool:
    """Return whether the other side ends a connection; waits for it."""
    try:
        while connection.recv(65536):
            pass
    except ConnectionError:
        return True
    except TimeoutError:
        return False
    return True
