"""Queueing services as child processes: what all of them share."""

from __future__ import annotations

import os
import signal
from abc import ABC, abstractmethod
from pathlib import Path
from typing import ClassVar, NamedTuple, Self

from rowferry.testing.servers.certificates import Certificates
from rowferry.testing.servers.child import HOST, Living, free_ports
from rowferry.testing.servers.packages import Fetched


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

        def launch() -> None:
            server.port, server.tls_port = free_ports(2)
            server._launch()

        server._begin_at(launch)
        return server

    @property
    def address(self) -> str:
        """Where it listens."""
        return f"{HOST}:{self.port}"

    def crash(self) -> None:
        """Kill it with -9; `restart` finds what it had stored."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """Start it again, at the same ports, over the same data; stop it if it runs."""
        self._begin_again(self._launch)

    def _launch(self) -> None:
        messages = self.folder / "server.err"
        self._run(self.command(), messages, lambda _: self.answers(), self.environment())
