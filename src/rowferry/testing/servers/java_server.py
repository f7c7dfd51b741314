"""Servers written in Java as child processes, started fast."""

from __future__ import annotations

import shutil
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Final, Self

from rowferry.testing.servers.child import Living, free_ports
from rowferry.testing.servers.maven import Jars, java
from rowferry.testing.servers.packages import cache, locked

# A test's server lives for seconds: it is not worth much compiling, nor a collector's threads.
_FRUGAL: Final = ("-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto")


class JavaServer(Living, ABC):
    """A server on 127.0.0.1.

    Attributes:
        folder: holds its data and its messages, `server.err`.
    """

    jars: ClassVar[Jars]

    def __init__(self, folder: Path, ports: int = 1, java_options: Sequence[str] = ()) -> None:
        super().__init__()
        self.folder = folder.absolute()
        self.java_options = tuple(java_options)
        self._ports = [0] * ports

    # --- what differs ----------------------------------------------------------------------------

    @abstractmethod
    def arguments(self) -> list[str]:
        """Return what follows Java's own options on the command line."""

    @abstractmethod
    def prepare(self) -> None:
        """Write the files that the server reads at its start; its ports are known."""

    @abstractmethod
    def answers(self) -> bool:
        """Whether the server does its work."""

    @classmethod
    def trial(cls, folder: Path) -> Self:
        """Make a server, not started, that stands for all others."""
        return cls(folder)

    # --- life ------------------------------------------------------------------------------------

    @classmethod
    def ensure(cls) -> Path:
        """Return the folder of the program; fetch it if it is not there."""
        root = cls.jars.ensure()
        if not cls._classes().exists():
            with locked(cls.jars.name):
                if not cls._classes().exists():
                    cls._keep_classes()
        return root

    @classmethod
    def _classes(cls) -> Path:
        """Where Java keeps the loaded classes for later starts, which then take half the time."""
        return cache() / cls.jars.name / "classes.jsa"

    @classmethod
    def _keep_classes(cls) -> None:
        part = cls._classes().with_suffix(".part")
        part.unlink(missing_ok=True)
        with tempfile.TemporaryDirectory() as folder, cls.trial(Path(folder)) as server:
            server.java_options = (f"-XX:ArchiveClassesAtExit={part}",)
            server._begin()
            server.stop()
        if not part.exists():
            part.touch()  # this Java cannot: starts are slower, and nobody tries again
        part.rename(cls._classes())

    def _begin(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)

        def launch() -> None:
            self._ports = free_ports(len(self._ports))
            self._launch()

        self._begin_at(launch)

    def restart(self) -> None:
        """Start the server again, at the same port, over the same data; stop it first if it runs.

        Raises:
            SourceUnavailable: it does not start, or its port was taken meanwhile.
        """
        self._begin_again(self._launch)

    # --- the process -----------------------------------------------------------------------------

    def _launch(self) -> None:
        self.prepare()
        kept = self._classes()
        fast = [f"-XX:SharedArchiveFile={kept}"] if kept.exists() and kept.stat().st_size else []
        command = [java(), *_FRUGAL, *fast, *self.java_options, *self.arguments()]
        messages = self.folder / "server.err"
        self._run(command, messages, lambda _: self.answers(), reason=_reason)


def clear(folder: Path) -> Path:
    """Make a folder empty and return it."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def _reason(log_text: str) -> str:
    """Return the line of a stack trace that names the cause."""
    lines = [line.strip() for line in log_text.splitlines() if line.strip()]
    causes = [line for line in lines if "Exception:" in line or " ERROR " in line]
    return (causes or lines[-1:] or ["it said nothing"])[-1][:400]
