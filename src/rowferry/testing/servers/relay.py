"""A TCP relay in front of a server: connections that break, hang or lose their answers."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import suppress
from typing import Final, Self

from rowferry.testing.servers.child import HOST

_PIECE: Final = 1 << 16


class Relay:
    """Hands bytes on between its port and a server's, until it is told otherwise.

    Attributes:
        port: where clients connect.
        server_port: where new connections lead to; those that are open stay where they are.
        delay_s: how long each piece of a request waits before it goes on.
    """

    def __init__(self, server_port: int) -> None:
        self.server_port = server_port
        self._listener = socket.create_server((HOST, 0))
        self.port = int(self._listener.getsockname()[1])
        self.delay_s = 0.0
        self._cut = False
        self._lose = 0
        self._break_after = -1
        self._guard = threading.Lock()
        self._open: set[socket.socket] = set()
        self._thread = threading.Thread(target=self._accept, daemon=True)

    def cut(self) -> None:
        """Break all connections, and refuse new ones."""
        self._cut = True
        self._drop_all()

    def heal(self) -> None:
        """Let connections be again, and forget every fault that was asked for."""
        self._cut, self._lose, self._break_after, self.delay_s = False, 0, -1, 0.0

    def lose_answers(self, count: int) -> None:
        """Let the next requests reach the server, and break the connection at each answer."""
        self._lose = count

    def break_after(self, sent_bytes: int) -> None:
        """Break the connection, once, after that many more bytes were sent to the server."""
        self._break_after = sent_bytes

    @property
    def broken(self) -> bool:
        """Whether the break or all losses that were asked for have happened."""
        return self._break_after < 0 and self._lose == 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()
        self._drop_all()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self._cut:
                client.close()
                continue
            try:
                server = socket.create_connection((HOST, self.server_port))
            except OSError:
                client.close()
                continue
            for one in (client, server):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._guard:
                self._open |= {client, server}
            for pair in ((client, server, True), (server, client, False)):
                threading.Thread(target=self._copy, args=pair, daemon=True).start()

    def _copy(self, source: socket.socket, target: socket.socket, asks: bool) -> None:
        with suppress(OSError):
            while piece := source.recv(_PIECE):
                if asks and self.delay_s:
                    time.sleep(self.delay_s)
                if self._fails(len(piece), asks):
                    break
                target.sendall(piece)
        self._drop(source, target)

    def _fails(self, length: int, asks: bool) -> bool:
        with self._guard:
            if asks and self._break_after >= 0:
                self._break_after -= length
                return self._break_after < 0
            if not asks and self._lose:
                self._lose -= 1
                return True
        return False

    def _drop_all(self) -> None:
        self._drop(*list(self._open))

    def _drop(self, *connections: socket.socket) -> None:
        for one in connections:
            with self._guard:
                self._open.discard(one)
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
