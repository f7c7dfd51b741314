"""The meta stores under test: each kind of database, and some that are cut short in every call."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
import pymysql
from sqlalchemy import Engine, delete, event, select
from sqlalchemy.exc import OperationalError

from rowferry.control.store.connection import WRITES, Database
from rowferry.control.store.kind import kind_of
from rowferry.control.store.sql_store import SqlStore
from rowferry.control.store.tables import MetaTable
from rowferry.errors import MetaUnavailable
from rowferry.testing.servers import Postgres, Server

PATIENCE_S = 120.0  # an upper bound for a machine under load, never reached by working code


class Place:
    """A database beside the store: what an administrator sees and does in it."""

    def __init__(self, url: str) -> None:
        self.url = url
        self._engine = kind_of(url, PATIENCE_S).engine()

    def sql(self, statement: str) -> list[Any]:
        with self._engine.begin() as connection:
            found = connection.exec_driver_sql(statement)
            return [tuple(row) for row in found] if found.returns_rows else []

    def everything(self) -> dict[str, list[str]]:
        with self._engine.begin() as connection:
            return {
                table.name: sorted(str(tuple(row)) for row in connection.execute(select(table)))
                for table in MetaTable.metadata.sorted_tables
            }

    def clear(self) -> None:
        with self._engine.begin() as connection:
            for table in reversed(MetaTable.metadata.sorted_tables):
                connection.execute(delete(table))

    def close(self) -> None:
        self._engine.dispose()


def url_of(server: Server | Postgres, name: str) -> str:
    """Return the URL of a database on a server."""
    if isinstance(server, Postgres):
        return server.url(name)
    return f"{server.uri}{name}?ssl-mode=disabled"  # reading certificates takes a while


@contextmanager
def new_database(server: Server | Postgres, name: str) -> Iterator[str]:
    """Make a database on a server for a while; gives its URL."""
    server.execute(f"CREATE DATABASE {name}")
    try:
        yield url_of(server, name)
    finally:
        how = " WITH (FORCE)" if isinstance(server, Postgres) else ""
        server.execute(f"DROP DATABASE {name}{how}")


# --- stores that behave badly --------------------------------------------------------------------


def _locked() -> Exception:
    found = sqlite3.OperationalError("database is locked")
    found.sqlite_errorcode = sqlite3.SQLITE_BUSY
    return found


def _lost() -> Exception:
    return pymysql.err.OperationalError(2013, "Lost connection to MySQL server during query")


def _deadlock() -> Exception:
    return psycopg.errors.DeadlockDetected("deadlock detected")


class CutShort:
    """A store of which every call is cut short once, each time at another statement.

    Where the store cannot know whether it may run the transaction again, the caller does what the
    supervisor does about MetaUnavailable: it calls again.
    """

    def __init__(self, store: SqlStore, error: Callable[[], Exception], heard: bool) -> None:
        self._store = store
        self._error = error
        self._heard = heard
        self._calls = 0
        self._countdown: int | None = None
        self.cuts = 0

    @contextmanager
    def cutting(self) -> Iterator[None]:
        names = ("do_execute", "do_executemany", "do_execute_no_params")
        hooks: list[tuple[str, Callable[..., Any]]] = [(n, self._statement) for n in names]
        hooks.append(("commit", self._commit))
        engine: Engine = self._store.database.engine
        for name, hook in hooks:
            event.listen(engine, name, hook)
        yield
        for name, hook in hooks:
            event.remove(engine, name, hook)

    def _statement(self, _cursor: Any, _sql: str, *more: Any) -> None:
        if self._countdown is None or self._spares(more[-1].root_connection):
            return
        self._countdown -= 1
        if self._countdown < 0:
            self._countdown = None
            self.cuts += 1
            raise self._error()

    def _commit(self, connection: Any) -> None:
        if self._countdown is not None and not self._spares(connection):
            self._countdown = None
            self.cuts += 1
            raise OperationalError("COMMIT", None, self._error())

    def _spares(self, connection: Any) -> bool:
        """Return whether it leaves this transaction alone: readers wait for nobody."""
        return not self._heard and not connection.get_execution_options().get(WRITES)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            self._calls += 1
            self._countdown = self._calls % 9
            try:
                return found(*args, **kwargs)
            except MetaUnavailable:
                assert self._heard and self._countdown is None
                return found(*args, **kwargs)
            finally:
                self._countdown = None

        return call


class AnswersLost:
    """A store of which every call is carried out, but the first answer is lost: it is made again.

    Left out are those where the second call must see that the first one happened.
    """

    def __init__(self, store: SqlStore) -> None:
        self._store = store

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)
        if name in ("create_changefeed", "remove", "move", "note", "close"):
            return found

        def call(*args: Any, **kwargs: Any) -> Any:
            found(*args, **kwargs)
            return found(*args, **kwargs)

        return call


# --- all of them ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Variant:
    """A kind of database, and how the store on it behaves."""

    kind: str
    behaviour: Callable[[SqlStore], Any] = lambda store: store


VARIANTS = {
    "sqlite": Variant("sqlite"),
    "sqlite-locked": Variant("sqlite", lambda s: CutShort(s, _locked, heard=True)),
    "sqlite-answers-lost": Variant("sqlite", AnswersLost),
    "mysql": Variant("mysql"),
    "mariadb-cut-off": Variant("mariadb", lambda s: CutShort(s, _lost, heard=True)),
    "postgres-deadlocked": Variant("postgres", lambda s: CutShort(s, _deadlock, heard=False)),
}


@contextmanager
def behaving(variant: Variant, database: Database, now: float) -> Iterator[Any]:
    """Give the store of a variant; one that must be cut short was."""
    found = variant.behaviour(SqlStore(database, lambda: now))
    if not isinstance(found, CutShort):
        yield found
        return
    with found.cutting():
        yield found
    assert found.cuts > 0  # it was as bad as it should be


@contextmanager
def opened(url: str) -> Iterator[tuple[Database, Place]]:
    """Open a database for the store and for the administrator."""
    with closing(Database(url)) as database, closing(Place(url)) as place:
        yield database, place
