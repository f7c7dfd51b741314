"""Server programs as child processes: ports, start with this process's life, end."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, ClassVar, Final, Self

from rowferry.errors import SourceUnavailable

HOST: Final = "127.0.0.1"
_PORT_TRIES: Final = 5
START_S: Final = 120.0
_STOP_S: Final = 60.0
# What programs say, in small letters, whose port somebody else has.
_TAKEN: Final = ("already in use", "seems to be in use", "bind on tcp/ip port", "eaddrinuse")

# A child is killed when the thread that made it ends, so all are made by one that stays.
_parent = ThreadPoolExecutor(1, thread_name_prefix="servers")


class PortTaken(Exception):
    """Somebody else took the port first."""


class Elsewhere:
    """A server program that another process of this machine started, and ends."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def poll(self) -> int | None:
        """Return None while it runs, as a child does."""
        try:
            facts = Path(f"/proc/{self.pid}/stat").read_text("utf-8", "replace")
        except OSError:
            return -1
        return -1 if facts.rpartition(")")[2].split()[0] == "Z" else None


class Living:
    """The life of a server program: it is killed at the end of the block, and dies with us.

    A running server can be pickled. What another process loads is the same server, borrowed: the
    end of its block leaves it as it is, and whoever stops it is refused.
    """

    _at_once: ClassVar[signal.Signals] = signal.SIGKILL  # what ends a program that must not go on

    def __init__(self) -> None:
        self._child: subprocess.Popen[bytes] | Elsewhere | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_child": Elsewhere(self.pid)}

    def stop(self) -> None:
        """End the server in order. On repeat: nothing."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End the server at once, as a crash does. On repeat: nothing."""
        self._end(self._at_once)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if not isinstance(self._child, Elsewhere):
            self.kill()
            self._clear()

    def _clear(self) -> None:
        """Take away what the server kept and nobody reads; nothing, unless a kind says so."""

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self._child is not None and self._child.poll() is None

    @property
    def pid(self) -> int:
        """The process id.

        Raises:
            SourceUnavailable: the server is down.
        """
        if self._child is None:
            raise SourceUnavailable(f"the {type(self).__name__} server is down")
        return self._child.pid

    def _begin_at(self, launch: Callable[[], None]) -> None:
        """Launch at ports that `launch` chooses; at other ones where somebody took those first."""
        for _ in range(_PORT_TRIES):
            with suppress(PortTaken):
                return launch()
        raise SourceUnavailable(f"no port on {HOST} stayed free for a server to take it")

    def _begin_again(self, launch: Callable[[], None]) -> None:
        """Launch at the same ports, over the same data; the server is stopped if it runs."""
        self.stop()
        try:
            launch()
        except PortTaken:
            raise SourceUnavailable("its port was taken while the server was down") from None

    def _run(
        self,
        command: Sequence[str],
        messages: Path,
        answers: Callable[[str], bool],
        env: Mapping[str, str] | None = None,
        reason: Callable[[str], str] = lambda log_text: log_text.strip()[-600:],
    ) -> None:
        """Start the program and return when it answers; one that does not is ended.

        Args:
            command: the program and its arguments.
            messages: the file that all its output is added to.
            answers: whether it does its work, by what it has said so far or otherwise.
            env: its environment; this process's if None.
            reason: finds in what it said why it ended.

        Raises:
            PortTaken: somebody else has its port.
            SourceUnavailable: it ended, or does not answer in time.
        """
        begin = messages.stat().st_size if messages.exists() else 0
        self._child = spawn(command, messages, env)
        try:
            deadline = time.monotonic() + START_S
            while time.monotonic() < deadline:
                is_alive = self.alive
                log_text = messages.read_bytes()[begin:].decode(errors="replace")
                if not is_alive:
                    if any(words in log_text.lower() for words in _TAKEN):
                        raise PortTaken
                    raise SourceUnavailable(f"the server did not start: {reason(log_text)}")
                if answers(log_text):
                    return
                time.sleep(0.02)
            raise SourceUnavailable(f"the server did not answer within {START_S:.0f} s")
        except BaseException:
            self._end(self._at_once)
            raise

    def _end(self, how: signal.Signals) -> None:
        if isinstance(self._child, Elsewhere):
            name = type(self).__name__
            raise SourceUnavailable(f"others use this {name} server: start one of your own")
        child, self._child = self._child, None
        if child is not None:
            end(child, how)


def free_port() -> int:
    """Return a port that is free now."""
    return free_ports(1)[0]


def free_ports(count: int) -> list[int]:
    """Return different ports that are free now."""
    with ExitStack() as held:
        probes = [held.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind((HOST, 0))
        return [int(probe.getsockname()[1]) for probe in probes]


def spawn(
    command: Sequence[str],
    messages: Path,
    env: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> subprocess.Popen[bytes]:
    """Start a program that is killed when this process ends in any way.

    Args:
        command: the program and its arguments.
        messages: the file that all its output is added to.
        env: its environment; this process's if None.
        folder: where it runs; this process's if None.
    """
    whole = [_with_parent(), "--pdeathsig=KILL", "--", *command]
    with open(messages, "ab") as file:
        return _parent.submit(
            lambda: subprocess.Popen(
                whole,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                cwd=folder,
                env=env,
                start_new_session=True,  # an interrupt at the terminal is ours to hand on
            )
        ).result()


def end(child: subprocess.Popen[bytes], how: signal.Signals) -> None:
    """Send a signal and wait; a program that does not obey is killed."""
    child.send_signal(how)
    try:
        child.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


def _with_parent() -> str:
    program = shutil.which("setpriv")
    if program is None:
        raise SourceUnavailable("test servers need setpriv (Debian: apt-get install util-linux)")
    return program
