"""`rowferry run` and `rowferry server` as processes that tests start, watch and kill."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar, Self

from rowferry.testing.servers.child import spawn


class RunProcess:
    """One `rowferry run` in its own session; killed at the end of the block, and dies with us."""

    COMMAND: ClassVar[str] = "run"

    def __init__(self, arguments: Sequence[str], folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.output = folder / f"{self.COMMAND}.out"
        self._child = spawn(
            [sys.executable, "-m", "rowferry", self.COMMAND, *arguments],
            self.output,
            {**os.environ, "PYTHONUNBUFFERED": "1", "COLUMNS": "200"},
            folder,
        )

    @property
    def pid(self) -> int:
        """The process id."""
        return self._child.pid

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self._child.poll() is None

    def kill(self) -> None:
        """End it at once, as a crash would; Spark's Java process follows by itself."""
        if self.alive:
            self._child.kill()
        self._child.wait()

    def interrupt(self) -> None:
        """Ask it to stop, as Ctrl-C does."""
        self._child.send_signal(signal.SIGINT)

    def wait(self, timeout_s: float) -> int:
        """Return its exit code; it is killed, and TimeoutExpired raised, when it takes longer."""
        try:
            return self._child.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise

    def printed(self) -> str:
        """Return what it printed so far."""
        return self.output.read_text(errors="replace")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.kill()


class ServerProcess(RunProcess):
    """One `rowferry server`; `terminate` lets it drain."""

    COMMAND = "server"
    # What changefeeds may name is the matter of tests of its own.
    ALLOWED: ClassVar = ("--allow-root", "/", "--allow-file", "/", "--allow-host", "*")

    def __init__(self, arguments: Sequence[str], folder: Path) -> None:
        super().__init__([*arguments, *self.ALLOWED], folder)

    def terminate(self) -> None:
        """Ask it to drain, as an init system does."""
        self._child.terminate()


def checkpoint(root: Path) -> int:
    """Return the checkpoint-ts of a storage directory; 0 before there is one."""
    try:
        return int(json.loads((root / "metadata").read_text())["checkpoint-ts"])
    except FileNotFoundError:
        return 0


def wait_for(done: Callable[[], bool], what: str, timeout_s: float, step_s: float = 0.1) -> None:
    """Return when `done()` is true.

    Raises:
        TimeoutError: it was not within `timeout_s`.
    """
    deadline = time.monotonic() + timeout_s
    while not done():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {timeout_s:.0f} s")
        time.sleep(step_s)
