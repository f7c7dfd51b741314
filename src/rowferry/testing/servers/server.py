"""MySQL and MariaDB servers as child processes, each with its own data directory and port."""

from __future__ import annotations

import secrets
import shutil
import signal
import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Final, Self

from rowferry.errors import RowferryError
from rowferry.mysql.connection import Connection, SessionSettings, open_connection
from rowferry.mysql.session import Flavour, Login, wrapped
from rowferry.testing.servers.child import HOST, Living, free_port
from rowferry.testing.servers.packages import Packages, cache, locked

Row = tuple[str | bytes | None, ...]

USER: Final = "rowferry"
_READ_S: Final = 600.0


class Server(Living, ABC):
    """A server on 127.0.0.1.

    The end of its block ends the server and takes its data away, which are many megabytes; its
    messages stay. `stop` and `kill` keep the data for `restart`. Statements are run as an
    administrator with all privileges. Every value that comes back is text, bytes or None.

    Attributes:
        folder: holds the data directory and the server's messages, `server.err`.
        login: how to connect as the administrator; its password is made anew for each server.
    """

    flavour: ClassVar[Flavour]
    packages: ClassVar[Packages]
    first_statements: ClassVar[str] = "--init-file"  # the setting that names their file

    def __init__(self, folder: Path, server_id: int, options: Sequence[str]) -> None:
        super().__init__()
        self.folder = folder.absolute()
        self.datadir = self.folder / "data"
        self.server_id = server_id
        self.options = tuple(options)
        self.host = HOST
        self.port = 0
        self._password = secrets.token_hex(12)
        self._admin: Connection[Any] | None = None
        self._lock = threading.RLock()

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        del state["_lock"], state["_admin"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _lock=threading.RLock(), _admin=None)

    # --- what differs ----------------------------------------------------------------------------

    @classmethod
    @abstractmethod
    def program(cls) -> list[str]:
        """Return the start of the server's command line."""

    @classmethod
    @abstractmethod
    def initialize(cls, datadir: Path) -> None:
        """Fill an empty data directory."""

    @abstractmethod
    def settings(self) -> list[str]:
        """Return the settings that this flavour adds."""

    # --- life ------------------------------------------------------------------------------------

    @classmethod
    def start(cls, folder: Path, server_id: int = 1, options: Sequence[str] = ()) -> Self:
        """Make a server and return when it answers.

        Args:
            folder: made if it is not there; must hold no server.
            server_id: the server's id; differs between servers that replicate.
            options: settings like `--binlog-row-image=MINIMAL`; they win over the defaults.

        Raises:
            SourceUnavailable: the server cannot be had, or does not start.
        """
        server = cls(folder, server_id, options)
        template = cls.ensure()
        server.folder.mkdir(parents=True, exist_ok=True)
        shutil.copytree(template, server.datadir)

        def launch() -> None:
            server.port = free_port()
            server._launch(first=True)

        server._begin_at(launch)
        return server

    @classmethod
    def ensure(cls) -> Path:
        """Return a fresh data directory to copy; fetch the server and make it if need be."""
        cls.packages.ensure()
        template = cache() / cls.packages.name / "data"
        if not template.exists():
            with locked(cls.packages.name):
                if not template.exists():
                    part = template.with_name("data.part")
                    shutil.rmtree(part, ignore_errors=True)
                    cls.initialize(part)
                    part.rename(template)
        return template

    def _clear(self) -> None:
        shutil.rmtree(self.datadir, ignore_errors=True)

    def restart(self, *more: str) -> None:
        """Start the server again, at the same port, over the same data; stop it first if it runs.

        Args:
            more: settings to add, from now on.
        """
        self.options += more
        self._begin_again(lambda: self._launch(first=False))

    # --- access ----------------------------------------------------------------------------------

    @property
    def login(self) -> Login:
        """How the product connects."""
        return Login(self.host, self.port, USER, self._password)

    @property
    def uri(self) -> str:
        """The source's URI, with the password."""
        return f"mysql://{USER}:{self._password}@{self.host}:{self.port}/"

    def connect(self, database: str | None = None) -> Connection[Any]:
        """Open a connection with autocommit, utf8mb4, UTC and an empty sql_mode; yours to close."""
        login = replace(
            self.login, ssl_mode="disabled", read_timeout_s=_READ_S, takes_public_key=True
        )
        settings = SessionSettings(
            "time_zone = '+00:00', sql_mode = ''", database=database, watched=False
        )
        return wrapped(lambda: open_connection(login, settings), login)

    def execute(self, sql: str, *values: object) -> list[Row]:
        """Run one statement on the server's own connection and return its rows.

        That connection stays, so `USE` and `SET` last until the server stops.
        """
        with self._lock:
            if self._admin is None:
                self._admin = self.connect()
            return _rows(self._admin, self.login, sql, values)

    def script(self, *statements: str) -> None:
        """Run statements one after the other, on a connection of their own."""
        with closing(self.connect()) as connection:
            for sql in statements:
                _rows(connection, self.login, sql, ())

    # --- the process -----------------------------------------------------------------------------

    def _launch(self, first: bool) -> None:
        command = [*self.program(), *self._arguments()]
        if first:
            self._write_first_statements()
            command.append(f"{self.first_statements}={self._first}")
        try:
            self._run(command, self._messages, self._answers, reason=_reason)
        finally:
            self._first.unlink(missing_ok=True)

    def _arguments(self) -> list[str]:
        return [
            "--no-defaults",
            f"--datadir={self.datadir}",
            f"--port={self.port}",
            f"--bind-address={HOST}",
            "--socket=server.sock",  # relative to the data directory: such a path is never too long
            "--pid-file=server.pid",
            f"--tmpdir={self.folder}",  # another server that starts must not clear ours away
            f"--server-id={self.server_id}",
            "--log-bin=binlog",
            "--binlog-row-metadata=FULL",
            "--binlog-row-image=FULL",
            "--sync-binlog=0",
            "--skip-name-resolve",
            "--secure-file-priv=",
            "--performance-schema=OFF",
            "--innodb-buffer-pool-size=96M",
            "--innodb-flush-log-at-trx-commit=2",
            "--max-allowed-packet=1G",
            "--character-set-server=utf8mb4",
            *self.settings(),
            *self.options,
        ]

    @property
    def _messages(self) -> Path:
        return self.folder / "server.err"

    @property
    def _first(self) -> Path:
        return self.folder / "first.sql"

    def _write_first_statements(self) -> None:
        """Make the administrator before the port opens, and leave no trace of it in the log."""
        self._first.touch(0o600)
        self._first.write_text(
            "SET sql_log_bin = 0;\n"
            f"CREATE USER '{USER}'@'%' IDENTIFIED BY '{self._password}';\n"
            f"GRANT ALL PRIVILEGES ON *.* TO '{USER}'@'%' WITH GRANT OPTION;\n"
        )

    def _answers(self, log_text: str) -> bool:
        try:
            self.connect().close()
        except RowferryError:
            return False
        return True

    def _end(self, how: signal.Signals) -> None:
        with self._lock:
            if self._admin is not None:
                self._admin.close()
                self._admin = None
        super()._end(how)


def _reason(log_text: str) -> str:
    errors = [line for line in log_text.splitlines() if "ERROR" in line]
    return " ".join(errors[:3]) or log_text[-300:]


def _rows(
    connection: Connection[Any], login: Login, sql: str, values: Sequence[object]
) -> list[Row]:
    def attempt() -> list[Row]:
        with connection.cursor() as cursor:
            cursor.execute(sql, tuple(values) or None)
            return [tuple(row) for row in cursor.fetchall()]

    return wrapped(attempt, login)
