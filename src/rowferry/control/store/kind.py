"""The kinds of database that can be the meta database: what each one needs beyond its SQL.

A kind makes the engine, begins transactions, and keeps others out while tables are made.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, nullcontext
from typing import ClassVar, Final

from sqlalchemy import URL, Connection, Engine
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError

from rowferry.errors import BadUri

FORMS = (
    "sqlite:///path, mysql://<user>:<password>@<host>:<port>/<database> (also mariadb://) or "
    "postgresql://<user>:<password>@<host>:<port>/<database>"
)

SEATS: Final = 10  # connections of a process that are at work at once; whoever needs one more waits
CONNECTIONS: Final = SEATS + 1  # that it keeps open to a server: one is for what cannot wait


class DatabaseKind(ABC):
    """One meta database's kind and address.

    No call on it waits for ever: `timeout_s` bounds the wait for a connection and for a lock, twice
    that the wait for any answer.

    Attributes:
        name: the URL without its password, for people.
    """

    parameters: ClassVar[Collection[str]] = ()  # what may follow `?` in the URL

    def __init__(self, url: URL, timeout_s: float) -> None:
        self.url = url
        self.name = url.render_as_string(hide_password=True)
        self.timeout_s = timeout_s

    def check(self) -> None:
        """Raise BadUri where the URL lacks something, or has something that nobody knows."""
        if not self.url.host or not self.url.database:
            raise BadUri(f"meta database {self.name}: name its server and its database: {FORMS}")
        unknown = sorted(set(self.url.query) - set(self.parameters))
        if unknown:
            known = ", ".join(self.parameters)
            raise BadUri(
                f"meta database {self.name}: unknown parameter {unknown[0]!r}; known: {known}"
            )

    def parameter(self, name: str) -> str:
        """Return a parameter of the URL; empty where it has none."""
        value = self.url.query.get(name, "")
        return value if isinstance(value, str) else value[-1]

    @abstractmethod
    def engine(self) -> Engine:
        """Return the source of connections; nothing is opened yet."""

    @abstractmethod
    def begin(self, connection: Connection, writes: bool) -> None:
        """Begin a transaction: one that sees one state, or one that locks and writes."""

    def turn(self) -> AbstractContextManager[None]:
        """Wait until this process may begin to write; most databases let all begin at once."""
        return nullcontext()

    def make_durable(self) -> None:  # noqa: B027 - most have done so when a commit is answered
        """Return when all that was committed outlives a failure of the machine.

        Raises:
            MetaUnavailable: the disk does not take it.
        """

    @abstractmethod
    def alone(self, connection: Connection) -> AbstractContextManager[None]:
        """Keep other processes from making tables until the block ends."""

    def forget_deleted(self, engine: Engine) -> None:  # noqa: B027 - most have nothing to do
        """Overwrite what was deleted, where the database is a file of ours; others do it alone."""

    def file_is_missing(self) -> bool:
        """Return whether the database is a file that does not exist."""
        return False


def kind_of(url: str, timeout_s: float) -> DatabaseKind:
    """Return the kind that a URL names.

    Raises:
        BadUri: it is not one of a database that can be used.
    """
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError):
        raise BadUri(f"the meta database URL cannot be parsed; write {FORMS}") from None
    make = _KINDS.get(parsed.drivername)
    if make is None:
        shown = parsed.render_as_string(hide_password=True)
        raise BadUri(f"meta database {shown}: write {FORMS}")
    kind = make(parsed, timeout_s)
    kind.check()
    return kind


# Imported where needed: each brings a client library.


def _sqlite(url: URL, timeout_s: float) -> DatabaseKind:
    from rowferry.control.store.sqlite_kind import SqliteKind

    return SqliteKind(url, timeout_s)


def _mysql(url: URL, timeout_s: float) -> DatabaseKind:
    from rowferry.control.store.mysql_kind import MysqlKind

    return MysqlKind(url, timeout_s)


def _postgres(url: URL, timeout_s: float) -> DatabaseKind:
    from rowferry.control.store.postgres_kind import PostgresKind

    return PostgresKind(url, timeout_s)


_KINDS: dict[str, Callable[[URL, float], DatabaseKind]] = {
    "sqlite": _sqlite,
    "sqlite+pysqlite": _sqlite,
    "mysql": _mysql,
    "mysql+pymysql": _mysql,
    "mariadb": _mysql,
    "mariadb+pymysql": _mysql,
    "postgres": _postgres,
    "postgresql": _postgres,
    "postgresql+psycopg": _postgres,
}
