"""Connections to a MySQL or MariaDB server: login, TLS, statements; errors are wrapped here."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache
from typing import Any, Final, TypeVar

import pymysql
from pymysql.connections import Connection as Connection  # others take it from here

from rowferry.errors import (
    BadUri,
    CorruptLog,
    LoginRefused,
    LogLost,
    OddAnswer,
    ReplicaIdTaken,
    RowferryError,
    SnapshotOutdated,
    SourceError,
    SourceMismatch,
    SourceUnavailable,
    SourceUnsupported,
)
from rowferry.mysql import login_options as opt
from rowferry.mysql.guarded_client import GuardedClient
from rowferry.mysql.wary_connection import MALFORMED
from rowferry.spec.option import Options
from rowferry.spec.uri import Uri, host_port

T = TypeVar("T")

# Server error numbers that no retry cures, by what they mean.
_LOGIN: Final = frozenset(
    {1044, 1045, 1130, 1142, 1143, 1227, 1251, 1370, 1401, 1698, 1820, 1862, 3118, 4151}
)
_TLS: Final = frozenset({2026, 3159})
_LOG_REFUSED: Final = frozenset({1236})
_ID_TAKEN: Final = frozenset({4052})
_STOP: Final = frozenset({1064, 1193, 1231, 1049})
# Of a statement that names a captured table: it is not what it was when it was looked at.
ALTERED: Final = frozenset(
    {
        1049,  # no such database
        1054,  # no such column
        1146,  # no such table
        1176,  # no such key
        1347,  # a view now
        1412,  # altered since the transaction began
        1505,  # not partitioned any more
        1735,  # no such partition
        1747,  # the same
    }
)
# What a server that is not TiDB says to `tidb_version()`; the first one without a database.
NO_SUCH_FUNCTION: Final = frozenset({1046, 1305})


class Flavour(Enum):
    """Whose server it is: they differ in GTIDs, events and statements. TiDB has no log to read."""

    MYSQL = "mysql"
    MARIADB = "mariadb"
    TIDB = "tidb"


# Schemes of URIs by which one logs in to a server, whosever it is.
LOGIN_SCHEMES: Final = tuple(flavour.value for flavour in Flavour)


@dataclass(frozen=True, slots=True)
class Login:
    """Where and how to connect. `str()` shows no secret."""

    host: str
    port: int
    user: str
    password: str = field(repr=False)
    ssl_mode: str = "preferred"
    ssl_ca: str = ""
    ssl_cert: str = ""
    ssl_key: str = ""
    connect_timeout_s: float = 10.0
    read_timeout_s: float = 60.0
    takes_public_key: bool = False

    @classmethod
    def of(cls, uri: Uri, options: Options) -> Login:
        """Read a source URI, `mysql://<user>:<password>@<host>:<port>/`.

        Raises:
            BadUri: no user, no host, a port that is no number, or a path.
        """
        host, _, port = uri.address.rpartition(":") if ":" in uri.address else (uri.address, "", "")
        if not host or "," in host or (port and not port.isdecimal()) or not uri.user:
            raise BadUri(
                f"{uri} is no MySQL source; write mysql://<user>:<password>@<host>:<port>/"
            )
        if uri.path not in ("", "/"):
            raise BadUri(f"{uri} names a database; choose tables with filter.rules instead")
        return cls(
            host=host.strip("[]"),
            port=int(port or 3306),
            user=uri.user,
            password=uri.password,
            ssl_mode=options[opt.SSL_MODE],
            ssl_ca=options[opt.SSL_CA],
            ssl_cert=options[opt.SSL_CERT],
            ssl_key=options[opt.SSL_KEY],
            connect_timeout_s=options[opt.CONNECT_TIMEOUT].total_seconds(),
            read_timeout_s=options[opt.READ_TIMEOUT].total_seconds(),
            takes_public_key=options[opt.GET_PUBLIC_KEY],
        )

    def __str__(self) -> str:
        return f"{self.user}@{host_port(self.host, self.port)}"

    def __repr__(self) -> str:
        return f"Login({self})"


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """What a server says of itself.

    Attributes:
        identity: tells servers apart, e.g. after a failover: the uuid; on MariaDB its server id.
    """

    flavour: Flavour
    version: tuple[int, int, int]
    version_text: str
    server_id: int
    identity: str


def connect(login: Login) -> Connection[Any]:
    """Open a connection with autocommit, utf8mb4, UTC and an empty sql_mode.

    Raises:
        LoginRefused: user, password or TLS are not accepted; retrying cannot help.
        SourceUnavailable: no answer; a later try may work.
    """

    def attempt() -> Connection[Any]:
        return GuardedClient(
            host=login.host,
            port=login.port,
            user=login.user,
            password=login.password,
            charset="utf8mb4",
            autocommit=True,
            connect_timeout=max(1, int(login.connect_timeout_s)),
            read_timeout=login.read_timeout_s,
            write_timeout=login.read_timeout_s,
            max_allowed_packet=1 << 30,
            program_name="rowferry",
            init_command="SET time_zone = '+00:00', sql_mode = ''",
            conv={int: _as_text},  # values come as text, and may be given as numbers
            ssl=tls_context(login),
            ssl_disabled=login.ssl_mode == "disabled",
            takes_public_key=login.takes_public_key,
        )

    return wrapped(attempt, login)


def _as_text(value: Any, _: Any = None) -> str:
    return str(value)


@lru_cache(maxsize=16)
def tls_context(login: Login) -> ssl.SSLContext | None:
    """Return the TLS settings of a login; None: those of the client, nothing is checked.

    Raises:
        BadUri: the files cannot be used.
    """
    if login.ssl_mode in ("disabled", "preferred") and not (login.ssl_ca or login.ssl_cert):
        return None  # the client uses TLS without checks where the server offers it
    try:
        context = ssl.create_default_context(cafile=login.ssl_ca or None)
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # servers' own certificates are not strict
        context.check_hostname = login.ssl_mode == "verify-identity"
        if login.ssl_mode not in ("verify-ca", "verify-identity"):
            context.verify_mode = ssl.CERT_NONE
        if login.ssl_cert:
            context.load_cert_chain(login.ssl_cert, login.ssl_key or None)
    except (OSError, ssl.SSLError) as err:
        raise BadUri(
            f"TLS files of the source cannot be used ({err}); check ssl-ca, ssl-cert and ssl-key"
        ) from None
    return context


def facts(connection: Connection[Any], login: Login) -> ServerFacts:
    """Ask a server who it is."""
    text, server_id = one_row(connection, login, "SELECT VERSION(), @@server_id")
    if _is_tidb(connection, login):
        flavour, identity = Flavour.TIDB, "TiDB"
    elif "mariadb" in text.lower():
        flavour, identity = Flavour.MARIADB, f"server-id {server_id}"
    else:
        flavour = Flavour.MYSQL
        identity = one_row(connection, login, "SELECT @@server_uuid")[0]
    return ServerFacts(flavour, version_numbers(text), text, int(server_id), identity)


def _is_tidb(connection: Connection[Any], login: Login) -> bool:
    """Ask whether it is TiDB, whatever version it was told to show."""

    def attempt() -> bool:
        try:
            with connection.cursor() as cursor:
                return bool(cursor.execute("SELECT tidb_version()"))
        except pymysql.err.MySQLError as err:
            if err.args and err.args[0] in NO_SUCH_FUNCTION:
                return False
            raise

    return wrapped(attempt, login)


def greeted_version(connection: Connection[Any]) -> tuple[int, ...]:
    """Return the server's version as it told it when we connected; costs no round trip."""
    return version_numbers(str(connection.get_server_info()))  # type: ignore[no-untyped-call]


def version_numbers(text: str) -> tuple[int, int, int]:
    """Return the three numbers of a version like `10.11.6-MariaDB-log`."""
    parts = text.split("-")[0].split(".")
    numbers = [int("".join(c for c in p if c.isdecimal()) or 0) for p in parts[:3]]
    return (numbers + [0, 0, 0])[0], (numbers + [0, 0, 0])[1], (numbers + [0, 0, 0])[2]


def rows(
    connection: Connection[Any], login: Login, sql: str, values: Sequence[Any] = ()
) -> list[tuple[Any, ...]]:
    """Run one statement and return its rows; every value is text, bytes or None.

    Statements take values as `%s`.
    """
    return wrapped(lambda: _fetched(connection, sql, values), login)


def rows_of_table(connection: Connection[Any], login: Login, sql: str) -> list[tuple[Any, ...]]:
    """Run one statement that names a captured table, as `rows` does.

    Raises:
        SnapshotOutdated: the table is gone, or has changed; the log tells what became of it.
    """

    def attempt() -> list[tuple[Any, ...]]:
        try:
            return _fetched(connection, sql, ())
        except pymysql.err.MySQLError as err:
            if err.args and err.args[0] in ALTERED:
                raise SnapshotOutdated(f"{login}: error {err.args[0]}: {err.args[-1]}") from None
            raise

    return wrapped(attempt, login)


def _fetched(connection: Connection[Any], sql: str, values: Sequence[Any]) -> list[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(sql, tuple(values) or None)
        return [tuple(row) for row in cursor.fetchall()]


def one_row(
    connection: Connection[Any], login: Login, sql: str, values: Sequence[Any] = ()
) -> tuple[Any, ...]:
    """Run one statement and return its first row.

    Raises:
        SourceError: it gave none.
    """
    found = rows(connection, login, sql, values)
    if not found:
        raise SourceError(f"{login} gave no answer to: {sql}")
    return found[0]


@contextmanager
def connected(login: Login) -> Iterator[Connection[Any]]:
    """Connect for a short while."""
    with closing(connect(login)) as connection:
        yield connection


def wrapped(call: Callable[[], T], login: Login) -> T:
    """Return what a call of the client library gives, its errors as ours."""
    try:
        return call()
    except RowferryError:
        raise
    except pymysql.err.MySQLError as err:
        raise as_ours(err, login) from None
    except (OSError, EOFError, RuntimeError) as err:
        raise SourceUnavailable(f"{login} did not answer: {err or type(err).__name__}") from None


def as_ours(err: pymysql.err.MySQLError, login: Login) -> RowferryError:
    """Return a client library's error as one of ours, by its number."""
    number, words = (*err.args, "", "")[:2] if err.args else (0, "")
    text = f"{login}: error {number}: {words}" if number else f"{login}: {words or err}"
    if number in _TLS or isinstance(getattr(err, "original_exception", None), ssl.SSLError):
        return LoginRefused(f"{text}; check ssl-mode, ssl-ca and the server's certificate")
    if number in _LOGIN:
        return LoginRefused(f"{text}; check user, password, ssl-mode and privileges")
    if number in _LOG_REFUSED:
        return _log_refused(str(words), text)
    if number in _ID_TAKEN:
        return ReplicaIdTaken(f"{text}; choose another server-id")
    if number == MALFORMED:
        return OddAnswer(text)
    if number in _STOP:
        return SourceUnsupported(text)
    return SourceUnavailable(text)


def _log_refused(words: str, text: str) -> RowferryError:
    """Return what a refusal to send the log means: the server has one number for all of them."""
    lower = words.lower()
    if "same server_uuid/server_id" in lower or "same server_id" in lower:
        return ReplicaIdTaken(f"{text}; choose another server-id")
    if "could not find first log file" in lower or "purged" in lower:
        return LogLost(f"{text}; make a new changefeed, or restore the log files")
    if "max_allowed_packet" in lower:
        return SourceUnsupported(f"{text}; run: SET GLOBAL max_allowed_packet = 1073741824")
    if "impossible position" in lower or "position >" in lower:
        return SourceMismatch(f"{text}; the position lies behind the end of the log")
    if "crc" in lower or "checksum" in lower or "truncated" in lower or "corrupt" in lower:
        return CorruptLog(text)
    return LogLost(text)


# --- below the client library: commands and packets that it does not know -------------------------


def send_command(connection: Connection[Any], login: Login, command: int, body: bytes) -> None:
    """Send one command; its answer is read from `socket_of`, or by `read_answer`."""
    wrapped(lambda: connection._execute_command(command, body), login)  # type: ignore[attr-defined]


def read_answer(connection: Connection[Any], login: Login) -> None:
    """Read the packet that answers a command; an error packet is raised as ours."""
    wrapped(lambda: connection._read_packet(), login)  # type: ignore[no-untyped-call]


def socket_of(connection: Connection[Any]) -> socket.socket:
    """Return the socket (or TLS socket) of a connection whose next bytes are an answer."""
    found: socket.socket = connection._sock  # type: ignore[attr-defined]
    return found


def error_of(packet: bytes, login: Login) -> RowferryError:
    """Return a server's error packet (without its header) as one of ours."""
    number = int.from_bytes(packet[1:3], "little")
    words = packet[9:] if packet[3:4] == b"#" else packet[3:]
    return as_ours(pymysql.err.OperationalError(number, words.decode(errors="replace")), login)
