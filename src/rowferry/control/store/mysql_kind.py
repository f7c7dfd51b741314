"""MySQL and MariaDB, on InnoDB: for a fleet of servers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event, text

from rowferry.control.store.kind import CONNECTIONS, DatabaseKind
from rowferry.errors import BadUri, MetaUnavailable
from rowferry.mysql.connection import Connection as ServerConnection
from rowferry.mysql.connection import SessionSettings, open_connection
from rowferry.mysql.login import Login, tls_context

SSL_MODES = ("disabled", "preferred", "required", "verify-ca", "verify-identity")
_FLAG = ("true", "false")
_CLEAR_OVER = ("verified-tls", "tls")
IDLE_S = 60  # the server ends a connection that is silent for so long, with its locks


class MysqlKind(DatabaseKind):
    """A database on a server.

    Writers read what is committed, and lock the rows that they decide by; readers see one state.
    """

    parameters = (
        "ssl-mode",
        "ssl-ca",
        "ssl-cert",
        "ssl-key",
        "get-server-public-key",
        "server-public-key-path",
        "clear-password-over",
    )

    def engine(self) -> Engine:
        """Return the source of connections."""
        wait_s, login = max(1, round(self.timeout_s)), self.login()
        tls_context(login)  # files that cannot be used are told before anybody waits for a server
        settings = SessionSettings(
            f"SESSION innodb_lock_wait_timeout = {wait_s}, lock_wait_timeout = {wait_s}, "
            f"wait_timeout = {IDLE_S}, sql_mode = 'STRICT_ALL_TABLES'",
            plain_backslashes=False,
            database=self.url.database,
            autocommit=False,
            typed=True,
            counts_matches=True,
        )

        def connect(*_: Any) -> ServerConnection[Any]:
            return open_connection(login, settings)

        engine = create_engine(
            self.url.set(drivername="mysql+pymysql", query={}),
            isolation_level="READ COMMITTED",
            pool_size=CONNECTIONS,
            max_overflow=0,  # one that is closed after use costs a login each time
            pool_timeout=2 * wait_s,
            pool_pre_ping=True,
            pool_use_lifo=True,
            hide_parameters=True,
        )
        event.listen(engine, "do_connect", connect)
        return engine

    def login(self) -> Login:
        """Return how to connect.

        Raises:
            BadUri: a parameter of the URL has a value that cannot be used.
        """
        mode = self._one_of("ssl-mode", SSL_MODES, "preferred")
        ca, cert, key = (self.parameter(f"ssl-{name}") for name in ("ca", "cert", "key"))
        wait_s = max(1, round(self.timeout_s))
        return Login(
            host=self.url.host or "localhost",
            port=self.url.port or 3306,
            user=self.url.username or "",
            password=self.url.password or "",
            ssl_mode=mode,
            ssl_ca=ca,
            ssl_cert=cert,
            ssl_key=key,
            connect_timeout_s=wait_s,
            read_timeout_s=2 * wait_s,
            takes_public_key=self._one_of("get-server-public-key", _FLAG, "false") == "true",
            public_key_path=self.parameter("server-public-key-path"),
            clear_password_over=self._one_of("clear-password-over", _CLEAR_OVER, "tls"),
            whose=f"meta database {self.name}",
        )

    def _one_of(self, name: str, allowed: tuple[str, ...], default: str) -> str:
        given = self.parameter(name) or default
        if given not in allowed:
            words = ", ".join(allowed)
            raise BadUri(f"meta database {self.name}: {name}={given}: allowed: {words}")
        return given

    def begin(self, connection: Connection, writes: bool) -> None:
        """Begin a transaction."""
        if not writes:
            connection.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        connection.exec_driver_sql(f"START TRANSACTION READ {'WRITE' if writes else 'ONLY'}")

    @contextmanager
    def alone(self, connection: Connection) -> Iterator[None]:
        """Hold a lock of the server that has this database's name."""
        # Making a table ends a transaction here, so its locks would not do.
        name = {"name": f"rowferry/{self.url.database}"[:64], "wait": max(1, round(self.timeout_s))}
        if connection.scalar(text("SELECT GET_LOCK(:name, :wait)"), name) != 1:
            raise MetaUnavailable(
                f"meta database {self.name}: another process is making its tables; try again"
            )
        try:
            yield
        finally:
            connection.execute(text("SELECT RELEASE_LOCK(:name)"), name)
