"""Sessions that write to the downstream: their settings, their statements, what is refused."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any, Final

from rowferry.change.event_counts import EventCounts
from rowferry.errors import RowferryError, RowRejected, SinkUnavailable, SinkUnwritable, TargetLost
from rowferry.flow.sink.contract import RESTORE
from rowferry.flow.sink.mysql.judged_rows import is_judged, judged_rows
from rowferry.flow.sink.sql.session import SqlRefusal, SqlSessions
from rowferry.moment import moment
from rowferry.mysql.connection import SessionSettings, open_connection
from rowferry.mysql.flavour import NO_SUCH_FUNCTION, TIDB_QUERY, Flavour, flavour_of
from rowferry.mysql.guarded_client import GuardedClient
from rowferry.mysql.login import Login
from rowferry.mysql.refusals import (
    GONE,
    NO_TLS,
    OF_A_ROW,
    TOO_LONG,
    RefusalKind,
    ServerRefusal,
    judged,
    kind_of_number,
)

_SHAPE: Final = {
    1054: "bring the table's columns in line with the source's, then resume the changefeed",
    1193: "use TiDB 6.5 or later",
    TOO_LONG: "raise max_allowed_packet on the downstream, then resume the changefeed",
}
_LOST: Final = (RefusalKind.NO_ANSWER, RefusalKind.MALFORMED, RefusalKind.TLS_BROKEN)
_FOR_NOW: Final = (*_LOST, RefusalKind.CONFLICT, RefusalKind.PASSING)
# TiDB takes what is written so for a changefeed's: it is not sent on, roles of two-way replication
# let its DDLs pass, and rows that lost are counted. Where it has soft delete, it would else turn
# statements into others and hide rows.
_TIDB_SETTINGS: Final = (
    b"SET tidb_cdc_write_source = 1 /*T![softdelete] , tidb_translate_softdelete_sql = 0 */"
)
_AT_ROW: Final = re.compile(r"at row (\d+)")
# A row that does not fit is refused, not bent; what the source holds is taken as it is: zero
# dates, an id of 0, backslashes.
_ROW_MODE: Final = (
    "STRICT_ALL_TABLES,ALLOW_INVALID_DATES,NO_AUTO_VALUE_ON_ZERO,NO_BACKSLASH_ESCAPES"
)
_FOR_ROWS: Final = SessionSettings(
    f"time_zone = '+00:00', sql_mode = '{_ROW_MODE}', foreign_key_checks = 0",
    plain_backslashes=True,
    joins=True,
)
_FOR_OTHERS: Final = SessionSettings()  # the server's own


@dataclass(frozen=True, slots=True)
class DownstreamFacts:
    """What a server says of itself.

    Attributes:
        statement_bytes: the longest statement that it takes.
    """

    flavour: Flavour
    version: str
    statement_bytes: int

    @property
    def lock(self) -> str:
        """How a row is read so that nobody changes it before the transaction ends."""
        return "FOR UPDATE" if self.flavour is Flavour.TIDB else "LOCK IN SHARE MODE"

    @property
    def judges_fence(self) -> bool:
        """Whether one statement can read the fence under a lock and fail where it is another's."""
        return self.flavour is not Flavour.TIDB

    @property
    def fence_slots(self) -> int:
        """Rows of the fence: where only exclusive locks exist, workers must not share one."""
        return 64 if self.flavour is Flavour.TIDB else 1


class StatementRefused(SqlRefusal):
    """The downstream refused a statement; `number` is its error's."""

    def __init__(self, number: int, server_text: str, place: str) -> None:
        super().__init__(number, server_text)
        self.number, self.server_text, self.place = number, server_text, place

    @property
    def kind(self) -> RefusalKind:
        """What the number means."""
        return kind_of_number(self.number)

    @property
    def row(self) -> int | None:
        """The row of the statement that is at fault, from 0, where the server tells it."""
        match = _AT_ROW.search(self.server_text)
        return int(match[1]) - 1 if match else None

    @property
    def is_conflict(self) -> bool:
        """Whether it only met another transaction."""
        return self.kind is RefusalKind.CONFLICT

    @property
    def is_about_table(self) -> bool:
        """Whether every row of the table would be refused."""
        shape = self.number in _SHAPE and self.number != TOO_LONG
        return shape or self.kind is RefusalKind.RIGHTS or self.number in GONE

    @property
    def is_about_row(self) -> bool:
        """Whether one row is refused for what it holds, and others may be taken."""
        return self.number in OF_A_ROW

    def as_error(self, about: str) -> RowferryError:
        """Return it as an error of ours, with its verdict."""
        words = f"{self.place}, {about}: {self.server_text} (error {self.number})"
        if self.kind is RefusalKind.LOGIN:
            return SinkUnwritable(f"{words}; check user, password and ssl-mode")
        if self.kind is RefusalKind.RIGHTS:
            return SinkUnwritable(f"{words}; grant the privilege, then resume the changefeed")
        if self.kind is RefusalKind.TLS:
            return SinkUnwritable(f"{words}; check ssl-mode, ssl-ca and the server's certificate")
        if self.kind is RefusalKind.READ_ONLY:
            return SinkUnavailable(f"{words}; it is read-only: make it writable")
        if self.kind in _FOR_NOW:
            return SinkUnavailable(words)
        if self.number in GONE:
            return TargetLost(f"{words}; it was there before: {RESTORE}")
        cure = _SHAPE.get(self.number, "correct the downstream so that it takes it, then resume")
        return RowRejected(f"{words}; {cure}")


class Session:
    """One connection. Not for use from several threads at once."""

    def __init__(self, login: Login, connection: GuardedClient, joins: bool) -> None:
        """Take a connection; `joins`: it takes several statements in one go."""
        self.counts: EventCounts | None = None
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
                    self._count(statement)
                return
            self._connection.query(b";".join(statements))
            self._count(statements[0])
            for statement in statements[1:]:
                self._connection.next_result()
                self._count(statement)

    def _count(self, statement: bytes) -> None:
        """Count a statement that was run, and whose rows won where the newest wins."""
        if self.counts is None:
            return
        self.counts.call("statement", len(statement))
        if is_judged(statement):
            result: Any = self._connection._result  # type: ignore[attr-defined]
            for name, rows in judged_rows(result.affected_rows, result.message).items():
                self.counts.add(name, rows)

    def set_mode(self, mode: str, *more: str) -> None:
        """Set the sql_mode, and other variables in the same statement. Raises as `run`."""
        with _wrapped(self._login):
            self._connection.set_mode(mode, *more)

    def _refuse_too_long(self, statements: Sequence[bytes]) -> None:
        """Refuse what the server would answer by breaking the connection, again and again."""
        longest, most = max(map(len, statements)), self.facts.statement_bytes
        if longest >= most:
            words = f"a statement of {longest} bytes, and max_allowed_packet is {most}"
            raise StatementRefused(TOO_LONG, words, str(self._login))

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


def connect(login: Login, *, for_rows: bool = False, read_s: float | None = None) -> Session:
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
    login = login if read_s is None else replace(login, read_timeout_s=read_s)
    try:
        with _wrapped(login):
            connection = open_connection(login, _FOR_ROWS if for_rows else _FOR_OTHERS)
        session = Session(login, connection, joins=for_rows)
        tidb = session.facts.flavour is Flavour.TIDB
        if tidb:
            session.run(_TIDB_SETTINGS)
        if for_rows:
            session.run(b"SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
            if tidb:
                session.run(b"SET tidb_txn_mode = 'pessimistic'")
        return session
    except StatementRefused as err:
        raise err.as_error("connecting") from err


class Sessions(SqlSessions[Session]):
    """Connections for rows, kept for the next transaction. For use from several threads."""

    def __init__(
        self,
        login: Login,
        settings: Callable[[DownstreamFacts], Sequence[bytes]] = lambda facts: (),
        counts: EventCounts | None = None,
    ) -> None:
        """Make none yet; each new one begins with the statements that `settings` gives.

        `counts` takes what their sessions run.
        """
        super().__init__(counts)
        self._login, self._settings = login, settings

    def _open(self) -> Session:
        session = connect(self._login, for_rows=True)
        session.counts = self.counts
        try:
            if first := self._settings(session.facts):
                session.run(*first)
        except StatementRefused as err:
            raise err.as_error("connecting") from err
        return session


# --- pieces --------------------------------------------------------------------------------------


def _facts(session: Session) -> DownstreamFacts:
    version, packet = session.ask("SELECT VERSION(), @@max_allowed_packet")[0]
    return DownstreamFacts(flavour_of(str(version), _is_tidb(session)), str(version), int(packet))


def _is_tidb(session: Session) -> bool:
    try:
        session.ask(TIDB_QUERY)
    except StatementRefused as err:
        if err.number in NO_SUCH_FUNCTION:
            return False
        raise
    return True


def _wrapped(login: Login) -> AbstractContextManager[None]:
    """Turn errors of the client library into ours."""

    def judge(refusal: ServerRefusal) -> Exception:
        if not refusal.heard:
            return SinkUnavailable(refusal.at(str(login)))
        if refusal.kind is RefusalKind.TLS:
            return StatementRefused(NO_TLS, refusal.server_text, str(login))
        if refusal.kind is RefusalKind.MODE:
            return SinkUnwritable(f"{login}: {refusal.server_text}")
        if refusal.kind in _LOST:
            return SinkUnavailable(f"{login}: {refusal.server_text}")
        return StatementRefused(refusal.number, refusal.server_text, str(login))

    return judged(judge)
