"""Queueing services as child processes: what all of them share."""

from __future__ import annotations

import os
import signal
import time
from abc import ABC, abstractmethod
from pathlib import Path
from typing import ClassVar, Final, NamedTuple, Self

from rowferry.errors import SourceUnavailable
from rowferry.testing.servers.certificates import Certificates
from rowferry.testing.servers.child import HOST, PORT_TRIES, Living, PortTaken, free_ports, spawn
from rowferry.testing.servers.packages import Fetched

_START_S: Final = 120.0


class QueuedMessage(NamedTuple):
    """A message as a reader sees it."""

    partition: int
    key: bytes | None
    value: bytes | None
    id: str


class QueueServer(Living, ABC):
    """A service on 127.0.0.1.

    Attributes:
        folder: holds its data and its messages, `server.err`.
        port: where it listens; `tls_port`: with TLS, where it speaks it.
    """

    fetched: ClassVar[Fetched]

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder.absolute()
        self.port = self.tls_port = 0
        self.certificates = Certificates.make(self.folder / "certificates")

    # --- what differs ----------------------------------------------------------------------------

    @abstractmethod
    def command(self) -> list[str]:
        """Return the command that starts it."""

    @abstractmethod
    def answers(self) -> bool:
        """Whether the server does its work."""

    @abstractmethod
    def read_all(self, topic: str) -> list[QueuedMessage]:
        """Return every message of a topic, those of a partition in their order."""

    def environment(self) -> dict[str, str]:
        """Return its environment."""
        return dict(os.environ)

    # --- life ------------------------------------------------------------------------------------

    @classmethod
    def ensure(cls) -> Path:
        """Return the folder of the program; fetch it if it is not there."""
        return cls.fetched.ensure()

    @classmethod
    def start(cls, folder: Path) -> Self:
        """Start one and return when it answers.

        Raises:
            SourceUnavailable: it cannot be had, or does not start.
        """
        cls.ensure()
        server = cls(folder)
        (server.folder / "data").mkdir(parents=True)
        for _ in range(PORT_TRIES):
            server.port, server.tls_port = free_ports(2)
            try:
                server._launch()
            except PortTaken:
                continue
            return server
        raise SourceUnavailable(f"no port on {HOST} stayed free for a server to take it")

    @property
    def address(self) -> str:
        """Where it listens."""
        return f"{HOST}:{self.port}"

    def crash(self) -> None:
        """Kill it with -9; `restart` finds what it had stored."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """Start it again, at the same ports, over the same data; stop it if it runs."""
        self.stop()
        self._launch()

    def _launch(self) -> None:
        messages = self.folder / "server.err"
        begin = messages.stat().st_size if messages.exists() else 0
        self._child = spawn(self.command(), messages, self.environment())
        try:
            deadline = time.monotonic() + _START_S
            while not self.answers():
                log_text = messages.read_bytes()[begin:].decode(errors="replace")
                if not self.alive:
                    if "already in use" in log_text or "eaddrinuse" in log_text:
                        raise PortTaken
                    raise SourceUnavailable(f"the server did not start: {log_text.strip()[-600:]}")
                if time.monotonic() > deadline:
                    raise SourceUnavailable(f"the server did not answer within {_START_S:.0f} s")
                time.sleep(0.02)
        except BaseException:
            self.kill()
            raise
