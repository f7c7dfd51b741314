"""PostgreSQL servers as child processes, each with its own data directory and port."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import Any, ClassVar, Final, Self

import psycopg

from rowferry.errors import SourceUnavailable
from rowferry.testing.servers.certificates import Certificates
from rowferry.testing.servers.child import HOST, START_S, Living, free_port
from rowferry.testing.servers.packages import Packages, cache, locked

PACKAGES: Final = Packages("postgresql-15", "bookworm", ("postgresql-15",))
USER: Final = "rowferry"
_HOME: Final = Path("usr/lib/postgresql/15")  # the program finds its files from where it stands
_SHARE: Final = Path("usr/share/postgresql/15")
_NOBODY: Final = 65534
_GONE_S: Final = 120.0
_READY: Final = "database system is ready to accept connections"
_STILL_USED: Final = "is still in use"


class Postgres(Living):
    """A server on 127.0.0.1.

    Attributes:
        folder: holds the server's messages, `server.err`.
        certificates: the server takes connections with and without TLS.
    """

    certificates: Certificates
    _at_once: ClassVar = signal.SIGQUIT  # it also ends its children, and leaves no memory behind

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder.absolute()
        self.host = HOST
        self.port = 0
        self._password = secrets.token_hex(12)
        self._home: Path | None = None

    @classmethod
    def start(cls, folder: Path) -> Self:
        """Make a server and return when it answers.

        Raises:
            SourceUnavailable: the server cannot be had, or does not start.
        """
        server = cls(folder)
        template = cls.ensure()
        server.folder.mkdir(parents=True, exist_ok=True)
        server.certificates = Certificates.make(server.folder / "certificates")
        server._home = _open_home()
        try:
            shutil.copytree(template, server._data)
            pair = server._data / "server.pem"  # where it may read it, and nobody else
            shutil.copy(server.certificates.server, pair)
            pair.chmod(0o600)
            _give_away(server._data)

            def launch() -> None:
                server.port = free_port()
                server._launch()

            server._begin_at(launch)
            server._set_password()
            return server
        except BaseException:
            server.kill()
            raise

    @classmethod
    def ensure(cls) -> Path:
        """Return a fresh data directory to copy; fetch the server and make it if need be."""
        PACKAGES.ensure()
        template = cache() / PACKAGES.name / "data"
        if not template.exists():
            with locked(PACKAGES.name):
                if not template.exists():
                    _initialize(template)
        return template

    # --- life ------------------------------------------------------------------------------------

    def stop(self) -> None:
        """End the server in order; connections are cut. On repeat: nothing."""
        self._end(signal.SIGINT)

    def crash(self) -> None:
        """Kill the server's first process with -9; `restart` recovers its data."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """Start the server again, at the same port, over the same data; stop it if it runs."""
        deadline = time.monotonic() + _GONE_S
        while True:
            try:
                return self._begin_again(self._launch)
            except SourceUnavailable as err:
                # The children of one that was killed see it soon, and go.
                if _STILL_USED not in str(err) or time.monotonic() > deadline:
                    raise
                time.sleep(0.1)

    def kill(self) -> None:
        """End the server at once, and remove its data."""
        super().kill()
        if self._home is not None:
            shutil.rmtree(self._home, ignore_errors=True)

    # --- access ----------------------------------------------------------------------------------

    def url(self, database: str) -> str:
        """Return the URL of a database, with the password."""
        return f"postgresql://{USER}:{self._password}@{self.host}:{self.port}/{database}"

    def execute(self, sql: str, database: str = "postgres") -> list[tuple[Any, ...]]:
        """Run one statement as an administrator and return its rows.

        Raises:
            SourceUnavailable: the server does not answer, or refuses the statement.
        """
        try:
            with closing(self.connect(database)) as connection:
                cursor = connection.execute(sql.encode())
                return cursor.fetchall() if cursor.description else []
        except psycopg.Error as err:
            raise SourceUnavailable(f"PostgreSQL at port {self.port}: {err}") from err

    def connect(self, database: str) -> psycopg.Connection[Any]:
        """Open a connection with autocommit as an administrator; yours to close."""
        return psycopg.connect(
            host=self.host,
            port=self.port,
            user=USER,
            password=self._password,
            dbname=database,
            autocommit=True,
            connect_timeout=round(START_S),  # a machine may be busy
        )

    # --- the process -----------------------------------------------------------------------------

    @property
    def _data(self) -> Path:
        if self._home is None:
            raise SourceUnavailable("the server was never started")
        return self._home / "data"

    @property
    def _messages(self) -> Path:
        return self.folder / "server.err"

    def _launch(self) -> None:
        settings = {
            "listen_addresses": HOST,
            "port": self.port,
            "unix_socket_directories": "",
            "fsync": "off",
            "full_page_writes": "off",
            "shared_buffers": "32MB",
            "max_connections": 200,  # of all processes that share it
            "timezone": "GMT",
            "log_timezone": "GMT",
            "ssl": "on",
            "ssl_cert_file": "server.pem",
            "ssl_key_file": "server.pem",
        }
        command = [*_loader(), str(self._data.parent / _HOME / "bin" / "postgres")]
        command += ["-D", str(self._data), *(f"--{name}={v}" for name, v in settings.items())]
        self._run(_as_nobody(command), self._messages, lambda log_text: _READY in log_text)

    def _set_password(self) -> None:
        self.execute(f"ALTER USER {USER} PASSWORD '{self._password}'")
        (self._data / "pg_hba.conf").write_text("host all all 127.0.0.1/32 scram-sha-256\n")
        self.execute("SELECT pg_reload_conf()")


# --- the program, which refuses to run as root ---------------------------------------------------


def _open_home() -> Path:
    """Make a folder that every user can reach, with the program in it.

    The one that a root process must run the server as may be kept out of the cache.
    """
    home = Path(tempfile.mkdtemp(prefix="rowferry-postgres-"))
    home.chmod(0o755)
    (home / _HOME / "bin").mkdir(parents=True)
    (home / _SHARE).parent.mkdir(parents=True)
    shutil.copy(PACKAGES.folder / _HOME / "bin" / "postgres", home / _HOME / "bin" / "postgres")
    (home / _HOME / "lib").symlink_to(PACKAGES.folder / _HOME / "lib")
    (home / _SHARE).symlink_to(PACKAGES.folder / _SHARE)
    return home


def _initialize(template: Path) -> None:
    """Make a data directory to copy."""
    home = _open_home()
    try:
        # The program that fills the directory starts the server that stands beside it.
        front = home / "bin"
        front.mkdir()
        shutil.copy(PACKAGES.folder / _HOME / "bin" / "initdb", front / "initdb")
        server = " ".join([*_loader(), str(home / _HOME / "bin" / "postgres")])
        (front / "postgres").write_text(f'#!/bin/sh\nexec {server} "$@"\n')
        (front / "postgres").chmod(0o755)
        (home / "data").mkdir(0o700)
        _give_away(home / "data")
        command = [*_loader(), str(front / "initdb"), "-D", str(home / "data")]
        command += ["-L", str(home / _SHARE), f"--username={USER}", "--auth=trust", "--no-sync"]
        command += ["--encoding=UTF8", "--locale=C"]
        result = subprocess.run(_as_nobody(command), capture_output=True, text=True, check=False)
        if result.returncode != 0:
            last_lines = " ".join(result.stderr.strip().splitlines()[-3:])
            raise SourceUnavailable(f"a data directory cannot be made: {last_lines}")
        part = template.with_name("data.part")
        shutil.rmtree(part, ignore_errors=True)
        shutil.copytree(home / "data", part)
        part.rename(template)
    finally:
        shutil.rmtree(home, ignore_errors=True)


def _loader() -> list[str]:
    """Return the start of a command that runs a program with the packages' own libraries."""
    return PACKAGES.program("")[:-1]


def _as_nobody(command: list[str]) -> list[str]:
    """Return a command that runs as a user without rights, but can read all that we can."""
    if os.geteuid() != 0:
        return command
    return [
        "setpriv",
        f"--reuid={_NOBODY}",
        f"--regid={_NOBODY}",
        "--clear-groups",
        "--inh-caps=+dac_override",
        "--ambient-caps=+dac_override",
        "--pdeathsig=KILL",  # it does not outlive a change of the user
        "--",
        *command,
    ]


def _give_away(data: Path) -> None:
    """Make a data directory the server's own, as it demands."""
    data.chmod(0o700)
    if os.geteuid() == 0:
        for path in (data, *data.rglob("*")):
            os.chown(path, _NOBODY, _NOBODY)
