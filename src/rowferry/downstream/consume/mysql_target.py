"""A MySQL-compatible database that changes are applied to; the client library is owned here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import pymysql
from pymysql.converters import encoders

from rowferry.change.table import TableId
from rowferry.errors import BadUri, RowferryError, RowRejected, SinkUnavailable, SinkUnwritable
from rowferry.mysql.guarded_client import GuardedClient
from rowferry.mysql.login_options import LOGIN_OPTIONS
from rowferry.mysql.session import LOGIN_SCHEMES, Login, tls_context
from rowferry.spec.check import check_parameters
from rowferry.spec.option import OptionTable, read_options
from rowferry.spec.uri import Uri

_LOGIN: Final = OptionTable("--apply", LOGIN_OPTIONS)
_REFUSED: Final = frozenset({1044, 1045, 1130, 1142, 1143, 1227, 1698, 1820, 1862, 2026})
# Errors of a DDL that was carried out before: there already, or gone already.
_DONE: Final = frozenset({1007, 1008, 1050, 1051, 1060, 1061, 1068, 1091, 1507, 1517, 1826})


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
        check_parameters(uri, "--apply", (_LOGIN,))
        login = Login.of(uri, read_options(_LOGIN, dict(uri.parameters)))
        self._name = f"{host}:{port or 3306}"
        with self._wrapped("connecting"):
            self._connection = GuardedClient(
                host=login.host,
                port=login.port,
                user=login.user,
                password=login.password,
                charset="utf8mb4",
                autocommit=False,
                connect_timeout=max(1, int(login.connect_timeout_s)),
                max_allowed_packet=1 << 30,
                program_name="rowferry consume",
                init_command="SET time_zone = '+00:00', sql_mode = '', foreign_key_checks = 0",
                conv=encoders,  # what comes back stays text
                ssl=tls_context(login),
                ssl_disabled=login.ssl_mode == "disabled",
                takes_public_key=login.takes_public_key,
            )

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
        """Run a DDL with a default database; one that was carried out before is left out.

        Raises:
            RowRejected: the database refuses it.
        """
        with self._wrapped(_short(query)), self._connection.cursor() as cursor:
            if database:
                self._connection.select_db(database)
            # In a transaction MariaDB's EXCHANGE PARTITION waits for locks of its own.
            self._connection.autocommit(True)
            try:
                cursor.execute(query)
            except pymysql.err.MySQLError as err:
                if not err.args or err.args[0] not in _DONE:
                    raise
            self._connection.autocommit(False)

    def close(self) -> None:
        """Let the connection go; what was not committed is lost."""
        self._connection.close()

    @contextmanager
    def _wrapped(self, doing: str) -> Iterator[None]:
        try:
            yield
        except (pymysql.err.MySQLError, OSError) as err:
            raise self._as_error(err, doing) from err

    def _as_error(self, err: Exception, doing: str) -> RowferryError:
        number = err.args[0] if err.args and isinstance(err.args[0], int) else 0
        said = str(err.args[1]) if len(err.args) > 1 else str(err)
        words = f"{self._name}, {doing}: {said}"
        if number in _REFUSED:
            return SinkUnwritable(words)
        if isinstance(err, OSError) or 2000 <= number < 3000 or not number:
            return SinkUnavailable(words)
        return RowRejected(words)


def _short(sql: str) -> str:
    text = " ".join(sql.split())
    return text if len(text) <= 120 else f"{text[:117]}..."
