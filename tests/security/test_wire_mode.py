"""Somebody between us and a real server changes the session's sql_mode: it is noticed at once."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from dataclasses import replace
from typing import Any, Final

import pymysql
import pytest
from pymysql.constants import CLIENT
from sqlalchemy.exc import SQLAlchemyError
from wire_rogue_kit import OK, Answer, honest, rogue

from rowferry.change.sqltype import SqlType
from rowferry.change.table import Column, TableId, TableSchema
from rowferry.control.store.faults import in_our_words, is_refusal
from rowferry.control.store.kind import kind_of
from rowferry.downstream.consume.mysql_target import MySqlTarget
from rowferry.errors import RowferryError, Verdict
from rowferry.flow.assemble import option_tables, sink_traits
from rowferry.flow.sink.mysql import session as downstream
from rowferry.flow.sink.mysql.options import read_settings
from rowferry.mysql import session as upstream
from rowferry.mysql.guarded_client import GuardedClient
from rowferry.mysql.resultset import ResultSet
from rowferry.mysql.session import Login
from rowferry.spec.build import build_spec
from rowferry.spec.uri import Uri
from rowferry.testing.servers import MySql

QUERY: Final = b"\x03"
NEVER: Final = b"\0never"
ON, OFF = "SET sql_mode = 'NO_BACKSLASH_ESCAPES'", "SET sql_mode = ''"


class Meddler:
    """Stands before a server and sends it statements of its own, whose answers nobody sees.

    Attributes:
        before: it meddles before a statement that holds this.
        says: what it sends.
        seen: all statements that clients have sent.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self.before, self.says = NEVER, ""
        self.seen: list[bytes] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._thread = threading.Thread(target=self._take, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join()

    def _take(self) -> None:
        with suppress(OSError):
            while True:
                client = self._listener.accept()[0]
                server = socket.create_connection(("127.0.0.1", self._port))
                threading.Thread(target=self._pass, args=(client, server), daemon=True).start()

    def _pass(self, client: socket.socket, server: socket.socket) -> None:
        """Pass packets on."""
        back = threading.Event()
        back.set()
        threading.Thread(target=self._back, args=(server, client, back), daemon=True).start()
        with suppress(OSError, EOFError), client, server:
            while True:
                head, body = _packet(client)
                if body[:1] == QUERY and head[3] == 0:
                    self.seen.append(body[1:])
                    if self.before in body:
                        self._meddle(server, back)
                server.sendall(head + body)

    def _meddle(self, server: socket.socket, back: threading.Event) -> None:
        back.clear()
        body = QUERY + self.says.encode()
        server.sendall(len(body).to_bytes(3, "little") + b"\0" + body)
        back.wait(10)  # until the answer was swallowed

    def _back(self, server: socket.socket, client: socket.socket, back: threading.Event) -> None:
        with suppress(OSError, EOFError):
            while True:
                head, body = _packet(server)
                if not back.is_set():
                    back.set()
                    continue
                client.sendall(head + body)


def _packet(talk: socket.socket) -> tuple[bytes, bytes]:
    head = _exactly(talk, 4)
    return head, _exactly(talk, int.from_bytes(head[:3], "little"))


def _exactly(talk: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        more = talk.recv(size - len(found))
        if not more:
            raise EOFError
        found += more
    return found


# --- the clients ---------------------------------------------------------------------------------

TABLE: Final = TableSchema(TableId("d", "t"), 1, 1, (Column(1, "a", SqlType("bigint")),))
Ask = Callable[[str], Any]
Opened = Callable[[Login], AbstractContextManager[Ask]]


@contextmanager
def _source(login: Login) -> Iterator[Ask]:
    with upstream.connected(login) as connection:
        yield lambda sql: upstream.rows(connection, login, sql)


@contextmanager
def _snapshot(login: Login) -> Iterator[Ask]:
    with upstream.connected(login) as connection:

        def ask(sql: str) -> Any:
            if not sql.startswith("SELECT"):
                return upstream.rows(connection, login, sql)
            return list(ResultSet(connection, login, sql, {}).read(TABLE))

        yield ask


def _sink(for_rows: bool) -> Opened:
    @contextmanager
    def opened(login: Login) -> Iterator[Ask]:
        spec, _ = build_spec(
            "range://127.0.0.1:1", _uri(login), None, "f", tables=option_tables, sinks=sink_traits
        )
        session = downstream.connect(read_settings(spec).login, for_rows=for_rows)
        if not for_rows:
            session.set_mode("ANSI_QUOTES", "foreign_key_checks = 0")
        yield session.ask
        session.close()

    return opened


@contextmanager
def _consume(login: Login) -> Iterator[Ask]:
    target = MySqlTarget(Uri.parse(_uri(login), "--apply"))
    yield target.execute
    with suppress(pymysql.err.Error):
        target.close()


@contextmanager
def _meta(login: Login) -> Iterator[Ask]:
    engine = kind_of(_uri(login, "mysql"), 5.0).engine()
    try:
        with engine.connect() as connection:

            def ask(sql: str) -> Any:
                return connection.exec_driver_sql(sql)

            yield lambda sql: _as_ours(lambda: ask(sql))
    finally:
        engine.dispose()


def _as_ours(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except SQLAlchemyError as err:
        raise in_our_words(err, "meta") from err


def _uri(login: Login, database: str = "") -> str:
    return (
        f"mysql://{login.user}:{login.password}@127.0.0.1:{login.port}/{database}?"
        "ssl-mode=disabled&get-server-public-key=true"
    )


CLIENTS: Final[dict[str, tuple[Opened, str]]] = {
    "source": (_source, ON),
    "snapshot": (_snapshot, ON),
    "rows": (_sink(for_rows=True), OFF),
    "ddl": (_sink(for_rows=False), ON),
    "consume": (_consume, ON),
    "meta": (_meta, ON),
}


@pytest.fixture(scope="module", params=["mysql", "mariadb"])
def server(request: pytest.FixtureRequest) -> MySql:
    found: MySql = request.getfixturevalue(f"{request.param}_server")
    return found


@pytest.fixture
def meddler(server: MySql) -> Iterator[Meddler]:
    found = Meddler(server.port)
    yield found
    found.close()


@pytest.mark.parametrize("name", CLIENTS)
@pytest.mark.parametrize("when", ["DO 7", "SELECT 7 AS a"])
def test_a_changed_mode_ends_the_session(
    server: MySql, meddler: Meddler, name: str, when: str
) -> None:
    """By what ends a statement (OK), and what ends rows (EOF)."""
    opened, says = CLIENTS[name]
    login = replace(server.login, port=meddler.port, ssl_mode="disabled", takes_public_key=True)
    with opened(login) as ask:
        ask("SELECT 1 AS a")
        meddler.before, meddler.says = when.encode(), says
        with pytest.raises(RowferryError, match="changed the session's sql_mode") as said:
            ask(when)
        assert said.value.verdict is Verdict.RETRY
        meddler.before = NEVER
        with pytest.raises(RowferryError):
            ask("SELECT 2 AS a")
        assert meddler.seen[-1] == when.encode(), "nothing more is sent"


def _other_mode(command: bytes) -> Answer:
    """Answer as a server whose sessions have NO_BACKSLASH_ESCAPES, whatever they are told."""
    answer = b"".join(honest(command))
    return [answer.replace(OK, b"\0\0\0\2\2\0\0")]


@pytest.mark.parametrize("name", ["source", "rows", "consume", "meta"])
def test_a_mode_that_is_not_taken(name: str) -> None:
    opened, _ = CLIENTS[name]
    with rogue(honest if name == "rows" else _other_mode) as found:
        login = Login("127.0.0.1", found.port, "u", "p", "disabled")
        with pytest.raises((RowferryError, SQLAlchemyError), match="set otherwise") as said:
            with opened(login):
                pass
        assert any(b"sql_mode" in c for c in found.commands)
    if isinstance(said.value, RowferryError):
        assert said.value.verdict is Verdict.STOP
    else:
        assert is_refusal(said.value)


def test_a_mode_of_ours_may_change(server: MySql) -> None:
    """Also in a transaction, in several statements at once, and in programs on the server."""
    with closing(_client(server)) as client:
        for mode in ("", "ANSI_QUOTES,NO_BACKSLASH_ESCAPES", "STRICT_ALL_TABLES"):
            client.set_mode(mode, "foreign_key_checks = 0")
            with client.cursor() as cursor:
                cursor.execute("BEGIN; SELECT 1 UNION SELECT 2; COMMIT")
                while cursor.nextset():
                    pass
            client.ping(reconnect=False)
        with pytest.raises(pymysql.err.ProgrammingError):
            client.query("nonsense")
        client.query("DO 1")


def _client(server: MySql) -> GuardedClient:
    login = server.login
    return GuardedClient(
        host=login.host,
        port=login.port,
        user=login.user,
        password=login.password,
        client_flag=CLIENT.MULTI_STATEMENTS,
    )
