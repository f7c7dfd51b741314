"""A whole store on this machine: a master and data servers as child processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from rowferry.errors import StoreUnavailable
from rowferry.flow.capture.range_log.client_access import PLAIN, RangeAccess
from rowferry.refstore.client import Store

_READY = "listening on "
_MODULE = "rowferry.face.cli.refstore"


class _Process:
    """A server process."""

    def __init__(self, arguments: list[str], log: Path) -> None:
        self._log = log
        with open(log, "ab") as errors:
            self._child = subprocess.Popen(
                [sys.executable, "-m", _MODULE, *arguments, "--with-parent"],
                stdout=subprocess.PIPE,
                stderr=errors,
                stdin=subprocess.PIPE,  # held open by us: its end is the end of the server
                start_new_session=True,  # an interrupt at the terminal is ours to hand on
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )
        self.address = ""

    def wait_ready(self) -> None:
        """Return when the process says where it listens."""
        assert self._child.stdout is not None
        line = self._child.stdout.readline().decode().strip()
        if not line.startswith(_READY):
            self.end(signal.SIGKILL)
            last_line = self._log.read_text(errors="replace").strip().splitlines()[-1:]
            raise StoreUnavailable(f"a store process did not start: {' '.join(last_line) or line}")
        self.address = line.removeprefix(_READY)

    @property
    def pid(self) -> int:
        """The process id."""
        return self._child.pid

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        return self._child.poll() is None

    def end(self, how: signal.Signals) -> int:
        """Send a signal and wait for the end; a process that ignores it is killed.

        Returns the exit code.
        """
        if self.alive:
            self._child.send_signal(how)
        try:
            self._child.wait(10)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
        for pipe in (self._child.stdin, self._child.stdout):
            if pipe is not None:
                pipe.close()
        return self._child.returncode


class LocalCluster:
    """A master and data servers on 127.0.0.1, over one folder; all stop at the end of the block.

    Servers keep their addresses over kills and restarts. Their messages go to `*.stderr` files in
    the folder.
    """

    def __init__(
        self,
        data_dir: Path,
        data_servers: int = 2,
        cluster_id: int | None = None,
        data_options: tuple[str, ...] = (),
        guard_options: tuple[str, ...] = (),
        access: RangeAccess = PLAIN,
    ) -> None:
        """Make a cluster; `guard_options` are for its servers, `access` is for their clients."""
        self._guard_options, self._access = guard_options, access
        self.data_dir = data_dir
        self._count = data_servers
        self._cluster_id = cluster_id
        self._data_options = data_options
        self._master: _Process | None = None
        self._servers: list[_Process] = []

    def __enter__(self) -> LocalCluster:
        self.data_dir.mkdir(parents=True, exist_ok=True)
        try:
            self._master = self._start_master("127.0.0.1:0")
            self._master.wait_ready()
            for number in range(self._count):
                self._servers.append(self._start_server(number, "127.0.0.1:0"))
            for process in self._servers:
                process.wait_ready()
            self.wait_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Stop every process; returns when all have ended."""
        for process in self._servers:
            process.end(signal.SIGTERM)
        self._servers = []
        if self._master is not None:
            self._master.end(signal.SIGTERM)
            self._master = None

    def _start_master(self, listen: str) -> _Process:
        more = ["--cluster-id", str(self._cluster_id)] if self._cluster_id is not None else []
        more += self._guard_options
        arguments = ["master", "--listen", listen, "--data-dir", str(self.data_dir), *more]
        return _Process(arguments, self.data_dir / "master.stderr")

    def _start_server(self, number: int, listen: str) -> _Process:
        arguments = ["data", "--listen", listen, "--master", self.master_address]
        arguments += ["--data-dir", str(self.data_dir), *self._data_options]
        arguments += self._guard_options
        return _Process(arguments, self.data_dir / f"data-{number}.stderr")

    @property
    def master_address(self) -> str:
        """Where the master listens."""
        if self._master is None:
            raise StoreUnavailable("the cluster is not running")
        return self._master.address

    @property
    def addresses(self) -> list[str]:
        """Where the data servers listen, also those that were killed."""
        return [p.address for p in self._servers]

    def pid(self, number: int) -> int:
        """Return the process id of a data server."""
        return self._servers[number].pid

    def store(self) -> Store:
        """Return a new client."""
        return Store(self.master_address, access=self._access)

    def wait_ready(self) -> None:
        """Return when every range has a leader that answers."""
        with self.store() as store:
            store.wait_ready(sum(p.alive for p in self._servers))

    def kill(self, number: int) -> None:
        """Kill a data server at once (SIGKILL)."""
        self._servers[number].end(signal.SIGKILL)

    def stop_server(self, number: int, how: signal.Signals = signal.SIGTERM) -> int:
        """End a data server with a signal; returns its exit code."""
        return self._servers[number].end(how)

    def restart(self, *numbers: int) -> None:
        """Start data servers again at their addresses, stopping those that run."""
        for number in numbers:
            self._servers[number].end(signal.SIGTERM)
            self._servers[number] = self._start_server(number, self._servers[number].address)
        for number in numbers:
            self._servers[number].wait_ready()

    def kill_master(self) -> None:
        """Kill the master at once (SIGKILL)."""
        if self._master is not None:
            self._master.end(signal.SIGKILL)

    def restart_master(self) -> None:
        """Start the master again at its address, stopping it first if it runs."""
        if self._master is not None:
            self._master.end(signal.SIGTERM)
            self._master = self._start_master(self._master.address)
            self._master.wait_ready()
