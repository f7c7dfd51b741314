"""The one way to connect to a MySQL-compatible server; how a session begins is data of the caller.

Errors are the client library's: `refusals.judged` turns them into the caller's own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from pymysql.connections import Connection as Connection  # others take it from here
from pymysql.constants import CLIENT
from pymysql.converters import conversions, encoders

from rowferry.mysql.guarded_client import GuardedClient
from rowferry.mysql.login import Login, tls_context

_AS_TEXT: Final[Any] = encoders  # all kinds of values can be sent; what comes back stays text
_TYPED: Final[Any] = conversions


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """How a session begins.

    Attributes:
        variables: what `SET` gets, in one statement before any other; empty: the server's own.
        plain_backslashes: whether the sql_mode among them has NO_BACKSLASH_ESCAPES; None: they set
            no sql_mode, and the server's own counts.
        database: the default database; None: no database.
        autocommit: every statement is a transaction of its own.
        joins: several statements may come in one go.
        typed: values come back as Python's own types; otherwise as text, bytes or None.
        counts_matches: an UPDATE tells how many rows it found, not how many it changed.
        patient: answers may take as long as they take, whatever the login says.
        watched: nobody else may change the sql_mode; for tests, which set it as users do, False.
        program: how the server lists the session.
    """

    variables: str = ""
    plain_backslashes: bool | None = None
    database: str | None = None
    autocommit: bool = True
    joins: bool = False
    typed: bool = False
    counts_matches: bool = False
    patient: bool = False
    watched: bool = True
    program: str = "rowferry"


class _Unwatched(GuardedClient):
    """A connection on which any sql_mode may be set."""

    def check_status(self, status: int) -> None:
        """Take whatever the server says."""


def open_connection(login: Login, settings: SessionSettings) -> GuardedClient:
    """Connect with utf8mb4.

    Raises:
        BadUri: the files for TLS cannot be used.
        MySQLError, OSError, EOFError, RuntimeError: what the client library says.
    """
    read_s = None if settings.patient else login.read_timeout_s
    write_s = read_s if login.write_timeout_s is None else login.write_timeout_s
    flags = CLIENT.MULTI_STATEMENTS if settings.joins else 0
    flags |= CLIENT.FOUND_ROWS if settings.counts_matches else 0
    client = GuardedClient if settings.watched else _Unwatched
    return client(
        host=login.host,
        port=login.port,
        user=login.user,
        password=login.password,
        database=settings.database,
        charset="utf8mb4",
        autocommit=settings.autocommit,
        connect_timeout=max(1, int(login.connect_timeout_s)),
        read_timeout=read_s,
        write_timeout=write_s,
        max_allowed_packet=1 << 30,
        program_name=settings.program,
        init_command=f"SET {settings.variables}" if settings.variables else None,
        plain_backslashes=settings.plain_backslashes,
        client_flag=flags,
        conv=_TYPED if settings.typed else _AS_TEXT,
        ssl=tls_context(login),
        ssl_disabled=login.ssl_mode == "disabled",
        takes_public_key=login.takes_public_key,
        public_key_path=login.public_key_path,
        clear_password_over=login.clear_password_over,
    )


def greeted_text(connection: Connection[Any]) -> str:
    """Return the server's version as it told it when we connected; costs no round trip."""
    return str(connection.get_server_info())  # type: ignore[no-untyped-call]
