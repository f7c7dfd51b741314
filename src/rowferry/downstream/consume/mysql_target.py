"""A MySQL-compatible database that changes are applied to."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, Final

from rowferry.change.table import TableId
from rowferry.errors import (
    BadUri,
    RowferryError,
    RowRejected,
    SinkUnavailable,
    SinkUnwritable,
)
from rowferry.mysql.connection import SessionSettings, open_connection
from rowferry.mysql.ddl.partly_done import partly_done
from rowferry.mysql.flavour import LOGIN_SCHEMES
from rowferry.mysql.login import Login
from rowferry.mysql.login_options import LoginOptions
from rowferry.mysql.refusals import RefusalKind, ServerRefusal, judged
from rowferry.spec.check import check_parameters
from rowferry.spec.uri import Uri

_ROW_MODE: Final = "NO_AUTO_VALUE_ON_ZERO"  # a key 0 is no wish for the next number
_SETTINGS: Final = SessionSettings(
    f"time_zone = '+00:00', sql_mode = '{_ROW_MODE}', foreign_key_checks = 0",
    plain_backslashes=False,
    autocommit=False,
    patient=True,  # a DDL may take hours
    program="rowferry consume",
)
_REFUSED: Final = (RefusalKind.LOGIN, RefusalKind.RIGHTS, RefusalKind.TLS, RefusalKind.MODE)
_LOST: Final = (  # what was asked for may have been done
    RefusalKind.NO_ANSWER,
    RefusalKind.MALFORMED,
    RefusalKind.TLS_BROKEN,
    RefusalKind.PASSING,
)


class _ApplyLogin(LoginOptions, section="--apply"):
    """How to connect, as parameters of `--apply`."""


def quoted(name: str) -> str:
    """Return a name as SQL writes it."""
    return f"`{name.replace('`', '``')}`"


def quoted_table(table: TableId) -> str:
    """Return a table's whole name as SQL writes it."""
    return f"{quoted(table.database)}.{quoted(table.table)}"


class MySqlTarget:
    """One connection, in UTC, without strict mode and without checks of foreign keys."""

    def __init__(self, uri: Uri) -> None:
        """Connect.

        Raises:
            BadUri: it names no user, host or port that can be used.
            SinkUnwritable: the login is refused.
            SinkUnavailable: nobody answers.
        """
        host, _, port = uri.address.rpartition(":") if ":" in uri.address else (uri.address, "", "")
        if uri.scheme not in LOGIN_SCHEMES or not host or not uri.user:
            raise BadUri(f"--apply {uri}: write mysql://<user>:<password>@<host>:<port>/")
        if uri.path not in ("", "/") or (port and not port.isdecimal()):
            raise BadUri(f"--apply {uri}: write user, password, host and port, and no database")
        check_parameters(uri, "--apply", (_ApplyLogin.TABLE,))
        login = Login.of(uri, _ApplyLogin.read(dict(uri.parameters)))
        self._name = f"{host}:{port or 3306}"
        with self._wrapped("connecting"):
            self._connection = open_connection(replace(login, whose="--apply"), _SETTINGS)

    def execute(self, sql: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Run one statement inside the transaction and return its rows.

        Raises:
            RowRejected: the database refuses it.
            SinkUnavailable: the connection is lost.
        """
        with self._wrapped(_short(sql)), self._connection.cursor() as cursor:
            cursor.execute(sql, tuple(values) or None)
            return list(cursor.fetchall())

    def execute_many(self, sql: str, rows: Sequence[Sequence[object]]) -> None:
        """Run one statement for many rows, a few round trips in all.

        Raises:
            RowRejected, SinkUnavailable: as `execute`.
        """
        with self._wrapped(_short(sql)), self._connection.cursor() as cursor:
            cursor.executemany(sql, [tuple(row) for row in rows])

    def commit(self) -> None:
        """End the transaction: what was executed stays."""
        with self._wrapped("COMMIT"):
            self._connection.commit()

    def change_schema(self, database: str, query: str) -> None:
        """Run a DDL with a default database; what of it was carried out before is left out.

        Raises:
            RowRejected: the database refuses it; or a table should get a name that another has.
        """
        with self._wrapped(_short(query)), self._connection.cursor() as cursor:
            if database:
                self._connection.select_db(database)
            # In a transaction MariaDB's EXCHANGE PARTITION waits for locks of its own.
            self._connection.autocommit(True)
            self._connection.set_mode("")
            left = query
            while left:
                try:
                    with judged(_StatementRefused):
                        cursor.execute(left)
                    break
                except _StatementRefused as err:
                    rest = partly_done(left, database, err.refusal.number, self.execute)
                    if rest is None:
                        raise self._error(_short(left), err.refusal) from None
                    left = rest
            self._connection.set_mode(_ROW_MODE)
            self._connection.autocommit(False)

    def close(self) -> None:
        """Let the connection go; what was not committed is lost."""
        self._connection.close()

    def _wrapped(self, doing: str) -> AbstractContextManager[None]:
        return judged(lambda refusal: self._error(doing, refusal))

    def _error(self, doing: str, refusal: ServerRefusal) -> RowferryError:
        words = f"{self._name}, {doing}: {refusal.server_text}"
        if refusal.kind in _REFUSED:
            return SinkUnwritable(words)
        return SinkUnavailable(words) if refusal.kind in _LOST else RowRejected(words)


class _StatementRefused(Exception):
    """A DDL is refused, whatever for. It never leaves this module."""

    def __init__(self, refusal: ServerRefusal) -> None:
        super().__init__(refusal.server_text)
        self.refusal = refusal


def _short(sql: str) -> str:
    text = " ".join(sql.split())
    return text if len(text) <= 120 else f"{text[:117]}..."
