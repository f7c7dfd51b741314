"""Connections to the downstream: login, TLS, statements; the client library is owned here."""

from __future__ import annotations

import re
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Any, Final

import pymysql
from pymysql.connections import Connection
from pymysql.constants import CLIENT
from pymysql.converters import encoders

from rowferry.errors import (
    BadUri,
    RowferryError,
    RowRejected,
    SinkUnavailable,
    SinkUnwritable,
    TargetLost,
)
from rowferry.flow.sink.contract import RESTORE
from rowferry.flow.sink.mysql.options import DownstreamLogin
from rowferry.moment import moment
from rowferry.mysql.guarded_client import GuardedClient

_LOGIN: Final = frozenset({1044, 1045, 1130, 1251, 1698, 1820, 1862, 3118, 4151})
_RIGHTS: Final = frozenset({1142, 1143, 1227, 1370})
_NO_TLS: Final = 2026
_TLS: Final = frozenset({_NO_TLS, 3159})
_READ_ONLY: Final = frozenset({1290, 1792, 1836, 1881})
# A deadlock, a lock that is not had in time, a write that met another (TiDB): the same may work.
_CONFLICT: Final = frozenset({1205, 1213, 8002, 8022, 8028, 9007})
_PASSING: Final = _CONFLICT | {1040, 1053, 1077, 1078, 1129, 1152, 1158, 1159, 1160, 1161, 1203}
_PASSING_MORE: Final = frozenset({1226, 1317, 3024, 8024, 9001, 9002, 9003, 9004, 9005})
_TOO_LONG: Final = 1153
GONE: Final = frozenset({1049, 1146})  # a database or a table, where it was seen before
_SHAPE: Final = {
    1054: "bring the table's columns in line with the source's, then resume the changefeed",
    1193: "use TiDB 6.5 or later",
    _TOO_LONG: "raise max_allowed_packet on the downstream, then resume the changefeed",
}
DUPLICATE: Final = 1062
# What a server that is not TiDB says to `tidb_version()`; the first one without a database.
_NO_SUCH_FUNCTION: Final = frozenset({1046, 1305})
# TiDB takes what is written so for a changefeed's: it is not sent on, roles of two-way replication
# let its DDLs pass, and rows that lost are counted. Where it has soft delete, it would else turn
# statements into others and hide rows.
_TIDB_SETTINGS: Final = (
    b"SET tidb_cdc_write_source = 1 /*T![softdelete] , tidb_translate_softdelete_sql = 0 */"
)
_KEPT_S: Final = 30.0  # how long a connection may lie idle
_AT_ROW: Final = re.compile(r"at row (\d+)")
# A row that does not fit is refused, not bent; what the source holds is taken as it is: zero
# dates, an id of 0, backslashes.
_ROW_MODE: Final = (
    "STRICT_ALL_TABLES,ALLOW_INVALID_DATES,NO_AUTO_VALUE_ON_ZERO,NO_BACKSLASH_ESCAPES"
)


class DownstreamFlavour(Enum):
    """Whose server it is."""

    MYSQL = "MySQL"
    MARIADB = "MariaDB"
    TIDB = "TiDB"


@dataclass(frozen=True, slots=True)
class DownstreamFacts:
    """What a server says of itself.

    Attributes:
        statement_bytes: the longest statement that it takes.
    """

    flavour: DownstreamFlavour
    version: str
    statement_bytes: int

    @property
    def lock(self) -> str:
        """How a row is read so that nobody changes it before the transaction ends."""
        return "FOR UPDATE" if self.flavour is DownstreamFlavour.TIDB else "LOCK IN SHARE MODE"

    @property
    def judges_fence(self) -> bool:
        """Whether one statement can read the fence under a lock and fail where it is another's."""
        return self.flavour is not DownstreamFlavour.TIDB

    @property
    def fence_slots(self) -> int:
        """Rows of the fence: where only exclusive locks exist, workers must not share one."""
        return 64 if self.flavour is DownstreamFlavour.TIDB else 1


class StatementRefused(Exception):
    """The downstream refused a statement; `number` is its error's.

    Whoever knows what the statement was about words it for people, by `as_error`.
    """

    def __init__(self, number: int, said: str, place: str) -> None:
        super().__init__(number, said)
        self.number, self.said, self.place = number, said, place

    @property
    def row(self) -> int | None:
        """The row of the statement that is at fault, from 0, where the server tells it."""
        found = _AT_ROW.search(self.said)
        return int(found[1]) - 1 if found else None

    @property
    def is_conflict(self) -> bool:
        """Whether it only met another transaction."""
        return self.number in _CONFLICT

    @property
    def is_about_table(self) -> bool:
        """Whether every row of the table would be refused."""
        shape = self.number in _SHAPE and self.number != _TOO_LONG
        return shape or self.number in _RIGHTS or self.number in GONE

    def as_error(self, about: str) -> RowferryError:
        """Return it as an error of ours, with its verdict."""
        words = f"{self.place}, {about}: {self.said} (error {self.number})"
        if self.number in _LOGIN:
            return SinkUnwritable(f"{words}; check user, password and ssl-mode")
        if self.number in _RIGHTS:
            return SinkUnwritable(f"{words}; grant the privilege, then resume the changefeed")
        if self.number in _TLS:
            return SinkUnwritable(f"{words}; check ssl-mode, ssl-ca and the server's certificate")
        if self.number in _READ_ONLY:
            return SinkUnavailable(f"{words}; it is read-only: make it writable")
        if self.number in _PASSING or self.number in _PASSING_MORE or 2000 <= self.number < 3000:
            return SinkUnavailable(words)
        if self.number in GONE:
            return TargetLost(f"{words}; it was there before: {RESTORE}")
        cure = _SHAPE.get(self.number, "correct the downstream so that it takes it, then resume")
        return RowRejected(f"{words}; {cure}")


class Session:
    """One connection. Not for use from several threads at once."""

    def __init__(self, login: DownstreamLogin, connection: Connection[Any], joins: bool) -> None:
        """Take a connection; `joins`: it takes several statements in one go."""
        self._login, self._connection, self._joins = login, connection, joins
        self.place = str(login)
        self.facts = _facts(self)

    def run(self, *statements: bytes, joined: bool = True) -> None:
        """Run statements that give no rows, in one go where `joined`.

        Raises:
            Refused: the server refuses one; those after it were not run.
            SinkUnavailable: the connection is lost.
        """
        self._refuse_too_long(statements)
        with _wrapped(self._login):
            size = sum(len(s) + 1 for s in statements)
            if (
                not (joined and self._joins)
                or len(statements) == 1
                or size >= self.facts.statement_bytes
            ):
                for statement in statements:
                    self._connection.query(statement)
                return
            self._connection.query(b";".join(statements))
            for _ in statements[1:]:
                self._connection.next_result()

    def _refuse_too_long(self, statements: Sequence[bytes]) -> None:
        """Refuse what the server would answer by breaking the connection, again and again."""
        longest, most = max(map(len, statements)), self.facts.statement_bytes
        if longest >= most:
            words = f"a statement of {longest} bytes, and max_allowed_packet is {most}"
            raise StatementRefused(_TOO_LONG, words, str(self._login))

    def ask(self, sql: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Run one statement and return its rows, every value as text.

        Raises:
            Refused, SinkUnavailable: as `run`.
        """
        with _wrapped(self._login), self._connection.cursor() as cursor:
            cursor.execute(sql, tuple(values) or None)
            return list(cursor.fetchall())

    def begin(self, sql: bytes) -> list[tuple[Any, ...]]:
        """Begin a transaction with a query; return its rows. Raises as `run`."""
        with _wrapped(self._login):
            if self._joins:
                self._connection.query(b"BEGIN;" + sql)
                self._connection.next_result()
            else:
                self._connection.query(b"BEGIN")
                self._connection.query(sql)
            result: Any = self._connection._result  # type: ignore[attr-defined]
            return list(result.rows or ())

    def rollback(self) -> None:
        """End the transaction: nothing of it stays. Raises as `run`."""
        self.run(b"ROLLBACK")

    def close(self) -> None:
        """Let the connection go; what was not committed is lost. Never raises."""
        self._connection._force_close()  # type: ignore[attr-defined]


def connect(
    login: DownstreamLogin, *, for_rows: bool = False, read_s: float | None = None
) -> Session:
    """Open a connection with autocommit and utf8mb4.

    Args:
        login: where and how.
        for_rows: it runs what the sql-rows codec writes: UTC, strict, without checks of foreign
            keys. Others run with the server's own settings.
        read_s: how long an answer may take; None: as the login says.

    Raises:
        SinkUnwritable: user, password or TLS are not accepted.
        SinkUnavailable: nobody answers.
        BadUri: the files for TLS cannot be used.
    """
    moment("connect to downstream")
    first = f"SET time_zone = '+00:00', sql_mode = '{_ROW_MODE}', foreign_key_checks = 0"
    try:
        with _wrapped(login):
            connection = GuardedClient(
                host=login.host,
                port=login.port,
                user=login.user,
                password=login.password,
                charset="utf8mb4",
                autocommit=True,
                connect_timeout=max(1, int(login.connect_s)),
                read_timeout=read_s or login.read_s,
                write_timeout=login.write_s,
                max_allowed_packet=1 << 30,
                program_name="rowferry",
                init_command=first if for_rows else None,
                client_flag=CLIENT.MULTI_STATEMENTS if for_rows else 0,
                conv=_TO_TEXT,
                ssl=_tls(login),
                ssl_disabled=login.ssl_mode == "disabled",
                takes_public_key=login.takes_public_key,
            )
        session = Session(login, connection, joins=for_rows)
        tidb = session.facts.flavour is DownstreamFlavour.TIDB
        if tidb:
            session.run(_TIDB_SETTINGS)
        if for_rows:
            session.run(b"SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
            if tidb:
                session.run(b"SET tidb_txn_mode = 'pessimistic'")
        return session
    except StatementRefused as err:
        raise err.as_error("connecting") from err


class Sessions:
    """Connections for rows, kept for the next transaction. For use from several threads."""

    def __init__(
        self,
        login: DownstreamLogin,
        settings: Callable[[DownstreamFacts], Sequence[bytes]] = lambda facts: (),
    ) -> None:
        """Make none yet; each new one begins with the statements that `settings` gives."""
        self._login, self._settings = login, settings
        self._idle: list[tuple[Session, float]] = []  # since when
        self._lock = threading.Lock()

    def take(self) -> Session:
        """Lend a connection until `give`; one that failed is closed instead.

        Raises:
            SinkUnwritable, SinkUnavailable: a new one cannot be had.
        """
        with self._lock:
            if self._idle and time.monotonic() - self._idle[-1][1] < _KEPT_S:
                return self._idle.pop()[0]
        self.close()  # servers end connections that are silent for long
        moment("lend connection")
        session = connect(self._login, for_rows=True)
        try:
            if first := self._settings(session.facts):
                session.run(*first)
        except StatementRefused as err:
            raise err.as_error("connecting") from err
        return session

    def give(self, session: Session) -> None:
        """Take a connection back."""
        with self._lock:
            self._idle.append((session, time.monotonic()))

    @contextmanager
    def one(self) -> Iterator[Session]:
        """Lend a connection for a block; one that failed is not kept."""
        session = self.take()
        try:
            yield session
        except BaseException:
            session.close()
            raise
        self.give(session)

    def close(self, keep: int = 0) -> None:
        """Let connections go that are not lent, all but the last `keep`."""
        with self._lock:
            cut = max(len(self._idle) - keep, 0)
            gone, self._idle = self._idle[:cut], self._idle[cut:]
        for session, _ in gone:
            session.close()


# --- pieces --------------------------------------------------------------------------------------

_TO_TEXT: Final[Any] = encoders  # all kinds of values can be sent; what comes back stays text


@lru_cache(maxsize=16)
def _tls(login: DownstreamLogin) -> ssl.SSLContext | None:
    if login.ssl_mode in ("disabled", "preferred") and not login.ssl_cert:
        return None
    try:
        context = ssl.create_default_context(cafile=login.ssl_ca or None)
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # servers' own certificates are not strict
        context.check_hostname = login.ssl_mode == "verify-identity"
        if not login.ssl_mode.startswith("verify-"):
            context.verify_mode = ssl.CERT_NONE
        if login.ssl_cert:
            context.load_cert_chain(login.ssl_cert, login.ssl_key)
    except (OSError, ssl.SSLError) as err:
        raise BadUri(
            f"TLS files of the sink cannot be used ({err}); check ssl-ca, ssl-cert and ssl-key"
        ) from None
    return context


def _facts(session: Session) -> DownstreamFacts:
    version, packet = session.ask("SELECT VERSION(), @@max_allowed_packet")[0]
    flavour = DownstreamFlavour.MYSQL
    if _is_tidb(session):
        flavour = DownstreamFlavour.TIDB
    elif "mariadb" in str(version).lower():
        flavour = DownstreamFlavour.MARIADB
    return DownstreamFacts(flavour, str(version), int(packet))


def _is_tidb(session: Session) -> bool:
    """Ask whether it is TiDB, whatever version it was told to show."""
    try:
        session.ask("SELECT tidb_version()")
    except StatementRefused as err:
        if err.number in _NO_SUCH_FUNCTION:
            return False
        raise
    return True


@contextmanager
def _wrapped(login: DownstreamLogin) -> Iterator[None]:
    """Turn errors of the client library into ours."""
    try:
        yield
    except pymysql.err.MySQLError as err:
        number, said = (*err.args, 0, "")[:2] if err.args else (0, "")
        cause = getattr(err, "original_exception", None)
        if number in _TLS or isinstance(cause, ssl.SSLCertVerificationError):
            raise StatementRefused(_NO_TLS, str(said), str(login)) from None
        if not isinstance(number, int) or number == 0 or 2000 <= number < 3000:
            raise SinkUnavailable(f"{login}: {said or err or 'the connection is lost'}") from None
        raise StatementRefused(number, str(said), str(login)) from None
    except (OSError, EOFError, RuntimeError) as err:
        raise SinkUnavailable(f"{login} did not answer: {err or type(err).__name__}") from None
