"""Object stores as child processes: what all of them share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Final, Self
from urllib.parse import urlsplit

import urllib3

from rowferry.testing.servers.certificates import Certificates
from rowferry.testing.servers.child import HOST, Living, free_port
from rowferry.testing.servers.programs import Program

BUCKET: Final = "rowferry"
_LIMIT: Final = urllib3.Timeout(10)
_http = urllib3.PoolManager(retries=False, timeout=_LIMIT)


class ObjectServer(Living, ABC):
    """A store on 127.0.0.1 with one bucket.

    Attributes:
        folder: holds its objects and its messages, `server.err`.
        port: where it listens.
        certificates: of a server that speaks TLS; None: of one that does not.
    """

    program: ClassVar[Program]
    certificates: Certificates | None = None

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder.absolute()
        self.port = 0

    # --- what differs ----------------------------------------------------------------------------

    @abstractmethod
    def arguments(self) -> list[str]:
        """Return what follows the program on the command line."""

    @abstractmethod
    def environment(self) -> dict[str, str]:
        """Return its environment."""

    @abstractmethod
    def answers(self) -> bool:
        """Whether the server does its work."""

    @abstractmethod
    def make_bucket(self) -> None:
        """Make the bucket; on repeat: nothing."""

    @abstractmethod
    def parameters(self) -> dict[str, str]:
        """Return the parameters of a sink URI: the endpoint, and how to log in."""

    @abstractmethod
    def uri(self, prefix: str, **parameters: str) -> str:
        """Return a sink URI for a prefix of the bucket."""

    # --- life ------------------------------------------------------------------------------------

    @classmethod
    def ensure(cls) -> Path:
        """Return the folder of the program; fetch it if it is not there."""
        return cls.program.ensure()

    @classmethod
    def start(cls, folder: Path) -> Self:
        """Make a store with an empty bucket and return when it answers.

        Raises:
            SourceUnavailable: it cannot be had, or does not start.
        """
        return cls(folder).begin()

    def begin(self) -> Self:
        """Do what `start` does."""
        self.ensure()
        (self.folder / "data").mkdir(parents=True)
        self._begin_at(self._launch)
        return self

    @property
    def endpoint(self) -> str:
        """Where the program itself listens."""
        return f"http{'s' if self.certificates else ''}://{HOST}:{self.port}"

    @property
    def client_port(self) -> int:
        """The port that clients connect to."""
        return urlsplit(self.parameters()["endpoint"]).port or 0

    def ask(
        self, method: str, path: str, headers: Mapping[str, str] | None = None, body: str = ""
    ) -> int:
        """Send a request and return the answer's status; 0: there was none."""
        http = _http
        if self.certificates:
            ca = str(self.certificates.ca)
            http = urllib3.PoolManager(retries=False, timeout=_LIMIT, ca_certs=ca)
        try:
            answer = http.request(method, self.endpoint + path, headers=headers, body=body)
        except urllib3.exceptions.HTTPError:
            return 0
        return answer.status

    def _launch(self) -> None:
        self.port = free_port()
        command = [*self.program.command(), *self.arguments()]
        self._run(command, self.folder / "server.err", self._is_ready, self.environment())

    def _is_ready(self, log_text: str) -> bool:
        if not self.answers():
            return False
        self.make_bucket()
        return True
