"""Sessions that write to the downstream: their settings, their statements, what is refused."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import IO, Any, Final

import psycopg
from psycopg.pq import TransactionStatus

from rowferry.change.event_counts import EventCounts
from rowferry.errors import SinkUnavailable, SinkUnwritable
from rowferry.flow.sink.postgresql.options import PostgresqlLogin
from rowferry.flow.sink.postgresql.refusals import PostgresqlRefusal, login_error
from rowferry.flow.sink.sql.session import SqlSessions
from rowferry.moment import moment

# The first version with generated columns, which are looked for.
_LEAST_VERSION: Final = 120_000
# Lines of COPY are read in UTC and with plain backslashes. A staging table has no statistics: what
# is joined with it is found by an index. Where a policy would hide rows, a statement fails instead
# of passing them over. What is committed is there also after a crash, whatever roles and databases
# are set to; a stronger promise stays.
_SETTINGS: Final = (
    "SET client_encoding = 'UTF8'; SET TimeZone = 'UTC'; SET DateStyle = 'ISO, YMD'; "
    "SET IntervalStyle = 'postgres'; SET standard_conforming_strings = on; SET bytea_output = hex; "
    "SET extra_float_digits = 1; SET client_min_messages = error; SET jit = off; "
    "SET default_transaction_isolation = 'read committed'; "
    "SET default_transaction_deferrable = off; SET idle_in_transaction_session_timeout = 0; "
    "SET row_security = off; SELECT set_config('synchronous_commit', 'on', false) "
    "WHERE current_setting('synchronous_commit') = 'off'"
)
MOST_TABLES: Final = 16  # of one transaction
_STAGES: Final = 2 * MOST_TABLES  # of a connection: each commit empties all of them
_COPY_BYTES: Final = 1 << 20
_LONGEST_MS: Final = (1 << 31) - 1  # servers take no longer time


class PostgresqlSession:
    """One connection. Not for use from several threads at once.

    Attributes:
        stages: the staging tables that it has, by what they are for; the last used is the last.
    """

    def __init__(self, login: PostgresqlLogin, connection: psycopg.Connection[Any]) -> None:
        self._login, self._connection = login, connection
        self.place = str(login)
        self.counts: EventCounts | None = None
        self.stages: OrderedDict[object, tuple[str, frozenset[str]]] = OrderedDict()
        self._numbered = 0

    def run(self, *statements: str) -> None:
        """Run statements that give no rows.

        Raises:
            PostgresqlRefusal: the server refuses one; those after it were not run.
            SinkUnavailable: the connection is lost.
        """
        for statement in statements:
            with self._wrapped():
                self._connection.execute(statement.encode(), prepare=False)
            if self.counts is not None:
                self.counts.call("statement", len(statement))

    def ask(self, sql: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Run one statement and return its rows. Raises as `run`."""
        with self._wrapped():
            cursor = self._connection.execute(sql.encode(), list(values) or None, prepare=False)
            return cursor.fetchall() if cursor.description else []

    def changed(self, sql: str) -> int:
        """Run one statement and return how many rows it changed. Raises as `run`."""
        with self._wrapped():
            return self._connection.execute(sql.encode(), prepare=False).rowcount

    def copy(self, statement: str, lines: memoryview) -> None:
        """Stream lines into a table. Raises as `run`."""
        with self._wrapped(), self._connection.cursor() as cursor:
            with cursor.copy(statement.encode()) as copying:
                for start in range(0, len(lines), _COPY_BYTES):
                    copying.write(lines[start : start + _COPY_BYTES])
        if self.counts is not None:
            self.counts.call("copy", len(lines))

    def copy_out(self, statement: str, into: IO[bytes]) -> None:
        """Write what a COPY TO STDOUT sends into a file. Raises as `run`."""
        with self._wrapped(), self._connection.cursor() as cursor:
            with cursor.copy(statement.encode()) as copying:
                for part in copying:
                    into.write(part)

    def begin(self, sql: str) -> list[tuple[Any, ...]]:
        """Begin a transaction with a query; return its rows.

        Raises as `run`: no transaction is open then, so that the session serves the next one.
        """
        self.run("BEGIN")
        try:
            return self.ask(sql)
        except PostgresqlRefusal:
            self.rollback()
            raise

    def rollback(self) -> None:
        """End the transaction: nothing of it stays. Raises as `run`."""
        self.run("ROLLBACK")

    def stage(self, purpose: object, columns: str, table: str) -> tuple[str, frozenset[str]]:
        """Return a staging table with some columns of a table, and which of them it computes.

        It is made where the session has none for the purpose; each commit empties it. Raises as
        `run`, and RuntimeError where one would be made inside a transaction, whose end might take
        it away.
        """
        if purpose in self.stages:
            self.stages.move_to_end(purpose)
            return self.stages[purpose]
        if self._connection.info.transaction_status is not TransactionStatus.IDLE:
            raise RuntimeError(f"no staging table was prepared for {table}")
        while len(self.stages) >= _STAGES:
            _, (oldest, _) = self.stages.popitem(last=False)
            self.run(f"DROP TABLE IF EXISTS pg_temp.{oldest}")
        self._numbered += 1
        name = f"rowferry_stage_{self._numbered}"
        self.run(
            f"CREATE TEMP TABLE {name} ON COMMIT DELETE ROWS AS SELECT {columns} FROM {table} "
            "WITH NO DATA"
        )
        computed = self.ask(
            "SELECT attname FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0 AND "
            "NOT attisdropped AND attgenerated <> ''",
            (table,),
        )
        self.stages[purpose] = name, frozenset(str(row[0]) for row in computed)
        return self.stages[purpose]

    def close(self) -> None:
        """Let the connection go; what was not committed is lost. Never raises."""
        with suppress(psycopg.Error):
            self._connection.close()

    @contextmanager
    def _wrapped(self) -> Iterator[None]:
        """Turn errors of the client library into ours."""
        try:
            yield
        except psycopg.Error as err:
            if err.sqlstate is None or self._connection.closed:
                raise SinkUnavailable(f"{self.place}: {_one_line(err)}") from err
            raise PostgresqlRefusal(err.sqlstate, _words(err), self.place) from err


def connect(login: PostgresqlLogin, *, read_s: float | None = None) -> PostgresqlSession:
    """Open a connection with autocommit, in UTC.

    Args:
        login: where and how.
        read_s: how long a statement may take; None: as the login says.

    Raises:
        SinkUnwritable: user, password, database or TLS are not accepted, or the database cannot
            hold what a source has.
        SinkUnavailable: nobody answers.
    """
    moment("connect to downstream (PostgreSQL)")
    login = login if read_s is None else replace(login, read_timeout_s=read_s)
    wait_s = max(2, round(login.connect_timeout_s))
    try:
        connection = psycopg.connect(
            host=login.host,
            port=login.port,
            user=login.user,
            password=login.password,
            dbname=login.database,
            sslmode=login.ssl_mode,
            sslrootcert=login.ssl_ca or None,
            sslcert=login.ssl_cert or None,
            sslkey=login.ssl_key or None,
            connect_timeout=wait_s,
            application_name="rowferry",
            keepalives_idle=wait_s,
            keepalives_interval=2,
            keepalives_count=3,
            tcp_user_timeout=2000 * wait_s,
            autocommit=True,
            prepare_threshold=None,  # a pool between us and the server may mix connections up
        )
    except psycopg.Error as err:
        raise login_error(str(err), str(login)) from err
    session = PostgresqlSession(login, connection)
    try:
        most_ms = min(round(login.read_timeout_s * 1000), _LONGEST_MS)
        session.run(f"{_SETTINGS}; SET statement_timeout = {most_ms}")
        _check(session, connection)
    except PostgresqlRefusal as err:
        session.close()
        raise err.as_error("connecting") from err
    except BaseException:
        session.close()
        raise
    return session


def _check(session: PostgresqlSession, connection: psycopg.Connection[Any]) -> None:
    if connection.info.server_version < _LEAST_VERSION:
        raise SinkUnwritable(
            f"{session.place} is PostgreSQL {connection.info.server_version // 10_000}, which is "
            "too old; use 12 or later"
        )
    encoding = connection.info.parameter_status("server_encoding")
    if encoding != "UTF8":
        raise SinkUnwritable(
            f"{session.place}: the database has the encoding {encoding}, which cannot hold every "
            "text of a source; make one with ENCODING 'UTF8'"
        )


class PostgresqlSessions(SqlSessions[PostgresqlSession]):
    """Connections for rows, kept for the next transaction. For use from several threads."""

    def __init__(self, login: PostgresqlLogin, counts: EventCounts | None = None) -> None:
        """Make none yet; `counts` takes what their sessions run."""
        super().__init__(counts)
        self._login = login

    def _open(self) -> PostgresqlSession:
        session = connect(self._login)
        session.counts = self.counts
        return session

    def __del__(self) -> None:
        """Let all connections go: a task's sink is given up without being closed."""
        self.close()


def _words(err: psycopg.Error) -> str:
    """Return the server's own sentence; its details would show whole rows."""
    column = f", column {err.diag.column_name}" if err.diag.column_name else ""
    return f"{' '.join((err.diag.message_primary or str(err)).split())}{column}"


def _one_line(err: psycopg.Error) -> str:
    return " ".join(str(err).split()) or type(err).__name__
