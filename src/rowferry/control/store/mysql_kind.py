"""MySQL and MariaDB, on InnoDB: for a fleet of servers."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event, text

from rowferry.control.store.kind import DatabaseKind
from rowferry.errors import BadUri, MetaUnavailable
from rowferry.mysql.guarded_client import GuardedClient

SSL_MODES = ("disabled", "preferred", "required", "verify-ca", "verify-identity")
IDLE_S = 60  # the server ends a connection that is silent for so long, with its locks


def _connect(dialect: Any, record: Any, arguments: Any, named: Any) -> GuardedClient:
    """Connect by our own client, which keeps the password from whoever asks for it."""
    return GuardedClient(*arguments, **named)


class MysqlKind(DatabaseKind):
    """A database on a server.

    Writers read what is committed, and lock the rows that they decide by; readers see one state.
    """

    parameters = ("ssl-mode", "ssl-ca", "ssl-cert", "ssl-key", "get-server-public-key")

    def engine(self) -> Engine:
        """Return the source of connections."""
        wait_s = max(1, round(self.timeout_s))
        arguments: dict[str, Any] = {
            "charset": "utf8mb4",
            "connect_timeout": wait_s,
            "read_timeout": 2 * wait_s,
            "write_timeout": 2 * wait_s,
            "init_command": (
                f"SET SESSION innodb_lock_wait_timeout = {wait_s}, lock_wait_timeout = {wait_s}, "
                f"wait_timeout = {IDLE_S}, sql_mode = 'STRICT_ALL_TABLES'"
            ),
            "takes_public_key": self._takes_public_key(),
            **self._tls(),
        }
        engine = create_engine(
            self.url.set(drivername="mysql+pymysql", query={}),
            connect_args=arguments,
            isolation_level="READ COMMITTED",
            pool_size=4,
            max_overflow=6,
            pool_timeout=2 * wait_s,
            pool_pre_ping=True,
            pool_use_lifo=True,
            hide_parameters=True,
        )
        event.listen(engine, "do_connect", _connect)
        return engine

    def _takes_public_key(self) -> bool:
        given = self.parameter("get-server-public-key") or "false"
        if given not in ("true", "false"):
            raise BadUri(
                f"meta database {self.name}: get-server-public-key={given}: allowed: true, false"
            )
        return given == "true"

    def _tls(self) -> dict[str, Any]:
        mode = self.parameter("ssl-mode") or "preferred"
        if mode not in SSL_MODES:
            allowed = ", ".join(SSL_MODES)
            raise BadUri(f"meta database {self.name}: ssl-mode={mode}: allowed: {allowed}")
        ca, cert, key = (self.parameter(f"ssl-{name}") for name in ("ca", "cert", "key"))
        if mode == "disabled":
            return {"ssl_disabled": True}
        if mode == "preferred" and not (ca or cert or key):
            return {}  # the client uses TLS without checks where the server offers it
        try:
            context = ssl.create_default_context(cafile=ca or None)
            context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # servers' own are not strict
            context.check_hostname = mode == "verify-identity"
            if mode not in ("verify-ca", "verify-identity"):
                context.verify_mode = ssl.CERT_NONE
            if cert:
                context.load_cert_chain(cert, key or None)
        except (OSError, ssl.SSLError) as err:
            raise BadUri(
                f"meta database {self.name}: TLS files cannot be used ({err}); check ssl-ca, "
                "ssl-cert and ssl-key"
            ) from None
        return {"ssl": context}

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
