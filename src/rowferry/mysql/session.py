"""Sessions that read a server: its log, its catalog, its tables. Errors are those of a source."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from rowferry.errors import (
    CorruptLog,
    LoginRefused,
    LogLost,
    OddAnswer,
    ReplicaIdTaken,
    RowferryError,
    SnapshotOutdated,
    SourceError,
    SourceMismatch,
    SourceMoved,
    SourceUnavailable,
    SourceUnsupported,
)
from rowferry.mysql.connection import Connection as Connection  # others take these from here
from rowferry.mysql.connection import SessionSettings, greeted_text, open_connection
from rowferry.mysql.flavour import LOGIN_SCHEMES as LOGIN_SCHEMES
from rowferry.mysql.flavour import NO_SUCH_FUNCTION, TIDB_QUERY, flavour_of
from rowferry.mysql.flavour import Flavour as Flavour
from rowferry.mysql.flavour import version_numbers as version_numbers
from rowferry.mysql.login import Login as Login
from rowferry.mysql.refusals import (
    ALTERED,
    RefusalKind,
    ServerRefusal,
    accepted,
    judged,
    refusal_of_number,
)

T = TypeVar("T")

# Server error numbers that mean something to whoever reads a log, and to nobody else.
_LOG_REFUSED: Final = frozenset({1236})
_UNREACHED: Final = frozenset({2002, 2003, 2005})
_ADDRESS: Final = "; start the server, or correct host and port in the URI"
_ID_TAKEN: Final = frozenset({4052})
_STOP: Final = frozenset({1064, 1193, 1231, 1049})
_READING: Final = SessionSettings("time_zone = '+00:00', sql_mode = ''", plain_backslashes=False)


@dataclass(frozen=True, slots=True)
class ServerFacts:
    """What a server says of itself.

    Attributes:
        identity: tells servers apart, e.g. after a failover: the uuid; on MariaDB its server id,
            which all nodes of a Galera cluster may share, with its host and port.
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
    return wrapped(lambda: open_connection(login, _READING), login)


def connect_to(login: Login, server: str) -> Connection[Any]:
    """Open a connection, as `connect`, to the server of this identity; empty: whichever answers.

    An address may lead to several servers, one after the other or in turn. Places of a log, and
    what was read at them, are one server's.

    Raises:
        SourceMoved: another one answers.
    """
    connection = connect(login)
    try:
        if server and (identity := facts(connection, login).identity) != server:
            raise SourceMoved(f"{login} is now {identity}, and {server} was read before")
    except BaseException:
        connection.close()
        raise
    return connection


def facts(connection: Connection[Any], login: Login) -> ServerFacts:
    """Ask a server who it is."""
    text, server_id, host, port = one_row(
        connection, login, "SELECT VERSION(), @@server_id, @@hostname, @@port"
    )
    flavour = flavour_of(text, _is_tidb(connection, login))
    is_maria = flavour is Flavour.MARIADB
    identity = f"server-id {server_id} on {host}:{port}" if is_maria else "TiDB"
    if flavour is Flavour.MYSQL:
        identity = one_row(connection, login, "SELECT @@server_uuid")[0]
    return ServerFacts(flavour, version_numbers(text), text, int(server_id), identity)


def _is_tidb(connection: Connection[Any], login: Login) -> bool:
    with judged(lambda refusal: as_ours(refusal, login)), accepted(NO_SUCH_FUNCTION):
        return bool(_fetched(connection, TIDB_QUERY, ()))
    return False


def greeted_version(connection: Connection[Any]) -> tuple[int, ...]:
    """Return the server's version as it told it when we connected; costs no round trip."""
    return version_numbers(greeted_text(connection))


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

    def judge(refusal: ServerRefusal) -> RowferryError:
        if refusal.number in ALTERED:
            return SnapshotOutdated(refusal.at(str(login)))
        return as_ours(refusal, login)

    with judged(judge):
        return _fetched(connection, sql, ())


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
    all_rows = rows(connection, login, sql, values)
    if not all_rows:
        raise SourceError(f"{login} gave no answer to: {sql}")
    return all_rows[0]


@contextmanager
def connected(login: Login) -> Iterator[Connection[Any]]:
    """Connect for a short while."""
    with closing(connect(login)) as connection:
        yield connection


def wrapped(call: Callable[[], T], login: Login) -> T:
    """Return what a call of the client library gives, its errors as ours."""
    with judged(lambda refusal: as_ours(refusal, login)):
        return call()


def as_ours(refusal: ServerRefusal, login: Login) -> RowferryError:
    """Return what a refusal means for whoever reads a log or its tables."""
    number, kind, text = refusal.number, refusal.kind, refusal.at(str(login))
    if kind in (RefusalKind.TLS, RefusalKind.TLS_BROKEN):
        return LoginRefused(f"{text}; check ssl-mode, ssl-ca and the server's certificate")
    if kind in (RefusalKind.LOGIN, RefusalKind.RIGHTS):
        return LoginRefused(f"{text}; check user, password, ssl-mode and privileges")
    if number in _LOG_REFUSED:
        return _log_refused(refusal.server_text, text)
    if number in _ID_TAKEN:
        return ReplicaIdTaken(f"{text}; choose another server-id")
    if kind is RefusalKind.MALFORMED:
        return OddAnswer(text)
    if number in _STOP or kind is RefusalKind.MODE:
        return SourceUnsupported(text)
    away = number in _UNREACHED or not refusal.heard
    return SourceUnavailable(f"{text}{_ADDRESS}" if away else text)


def _log_refused(words: str, text: str) -> RowferryError:
    """Return what a refusal to send the log means: the server has one number for all of them."""
    lower = words.lower()
    if "same server_uuid/server_id" in lower or "same server_id" in lower:
        return ReplicaIdTaken(f"{text}; choose another server-id")
    if "could not find first log file" in lower or "purged" in lower:
        return LogLost(f"{text}; make a new changefeed, or restore the log files")
    if "max_allowed_packet" in lower:
        return SourceUnsupported(
            f"{text}; run: {lasting('SET GLOBAL max_allowed_packet = 1073741824')}"
        )
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
    """Read the OK that answers a command; an error packet is raised as ours."""
    wrapped(lambda: connection._read_ok_packet(), login)  # type: ignore[attr-defined]


def check_end(connection: Connection[Any], login: Login, packet: bytes) -> None:
    """Look at the packet behind columns or rows that were read from the socket itself.

    Raises:
        SourceUnavailable: somebody else has changed the session; the connection is closed.
    """
    status = int.from_bytes(packet[3:5], "little")
    wrapped(lambda: connection.check_status(status), login)  # type: ignore[attr-defined]


def socket_of(connection: Connection[Any]) -> socket.socket:
    """Return the socket (or TLS socket) of a connection whose next bytes are an answer."""
    sock: socket.socket = connection._sock  # type: ignore[attr-defined]
    return sock


def error_of(packet: bytes, login: Login) -> RowferryError:
    """Return a server's error packet (without its header) as one of ours."""
    number = int.from_bytes(packet[1:3], "little")
    words = packet[9:] if packet[3:4] == b"#" else packet[3:]
    return as_ours(refusal_of_number(number, words.decode(errors="replace")), login)


def lasting(statement: str) -> str:
    """Return a `SET GLOBAL` with the line of the server's file that keeps it after a restart."""
    line = statement.removeprefix("SET GLOBAL ")
    return f"{statement} (to keep it after a restart: {line} below [mysqld] in the server's file)"
