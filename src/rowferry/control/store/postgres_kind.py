"""PostgreSQL: for a fleet of servers."""

from __future__ import annotations

import logging
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import psycopg
from psycopg.abc import RV, PQGen
from sqlalchemy import Connection, Engine, create_engine, event, text

from rowferry.control.store.kind import CONNECTIONS, DatabaseKind

# Of a batch that fails it logs what it also raises.
logging.getLogger("psycopg").setLevel(logging.ERROR)

_MAKING_TABLES = 0x726F7766  # the number of the lock; locks belong to one database


class PostgresKind(DatabaseKind):
    """A database on a server.

    Writers read what is committed, and lock the rows that they decide by; readers see one state.
    """

    parameters = ("sslmode", "sslrootcert", "sslcert", "sslkey", "sslcrl")

    def engine(self) -> Engine:
        """Return the source of connections."""
        wait_s = max(1, round(self.timeout_s))
        arguments: dict[str, Any] = {
            "connect_timeout": wait_s,
            "application_name": "rowferry",
            "prepare_threshold": None,  # a pool between us and the server may mix connections up
            "keepalives_idle": wait_s,
            "keepalives_interval": 2,
            "keepalives_count": 3,
            "tcp_user_timeout": 2000 * wait_s,
            **{name: self.parameter(name) for name in self.parameters if self.parameter(name)},
        }
        engine = create_engine(
            self.url.set(drivername="postgresql+psycopg", query={}),
            connect_args=arguments,
            isolation_level="READ COMMITTED",
            pool_size=CONNECTIONS,
            max_overflow=0,  # one that is closed after use costs the server a process each time
            pool_timeout=2 * wait_s,
            pool_pre_ping=True,
            pool_use_lifo=True,
            hide_parameters=True,
        )

        def connect(_dialect: Any, _record: Any, args: Any, parameters: Any) -> Any:
            made = _Impatient.connect(*args, **parameters)
            made.answer_s = 2.0 * wait_s
            return made

        def prepare(made: Any, _record: Any) -> None:
            made.execute(
                f"SET lock_timeout = '{wait_s}s'; SET statement_timeout = '{2 * wait_s}s'; "
                f"SET idle_in_transaction_session_timeout = '{2 * wait_s}s'"
            )
            made.commit()

        event.listen(engine, "do_connect", connect)
        event.listen(engine, "connect", prepare)
        return engine

    def begin(self, connection: Connection, writes: bool) -> None:
        """Begin a transaction."""
        if not writes:
            connection.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")

    @contextmanager
    def alone(self, connection: Connection) -> Iterator[None]:
        """Hold a lock until the transaction ends, which also undoes tables made by halves."""
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _MAKING_TABLES})
        yield


MOST_ANSWER = 256 << 20  # bytes of one answer; the library holds all of it
_TURNS: Final = 8  # pieces of an answer between two looks at its length, each of which costs calls
# Where TCP_INFO has the bytes that a connection has received: a u64.
_RECEIVED = slice(128, 136)


class _Impatient(psycopg.Connection[Any]):
    """A connection that ends itself when the server does not answer, or without end.

    The server's own limits do not help against a server that hangs, or is not the real one.
    """

    answer_s = 60.0

    def wait(self, gen: PQGen[RV], *args: Any, **kwargs: Any) -> RV:
        """Wait for an answer, but not for ever."""
        return super().wait(self._in_time(gen), *args, **kwargs)

    def _in_time(self, gen: PQGen[RV]) -> PQGen[RV]:
        """Hand on what a generator asks for and gets, until it is too late."""
        deadline, most, turn = time.monotonic() + self.answer_s, 0, 0
        try:
            wanted = next(gen)
            while True:
                ready = yield wanted
                turn += 1
                if turn % _TURNS == 0:  # most answers are over before it
                    most = most or self._received() + MOST_ANSWER
                    if self._received() > most:
                        self.pgconn.finish()
                        raise psycopg.OperationalError(
                            f"the server's answer is longer than {MOST_ANSWER} bytes"
                        )
                if not ready and time.monotonic() > deadline:
                    self.pgconn.finish()
                    raise psycopg.OperationalError(
                        f"the server did not answer within {self.answer_s:.0f} s"
                    )
                wanted = gen.send(ready)
        except StopIteration as end:
            result: RV = end.value
            return result

    def _received(self) -> int:
        """Return how many bytes have come so far; 0 where the system does not count them."""
        try:
            seen = socket.socket(fileno=self.pgconn.socket)
        except (OSError, psycopg.Error):
            return 0
        try:
            info = seen.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
        except OSError:  # a socket of this machine alone
            return 0
        finally:
            seen.detach()  # it stays the library's
        return int.from_bytes(info[_RECEIVED], sys.byteorder)
