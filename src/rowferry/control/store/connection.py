"""The database connection: opening, migrations, transactions, and its errors in our words."""

from __future__ import annotations

import functools
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import ParamSpec, TypeVar

from sqlalchemy import Connection, event, inspect, text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from rowferry.control.store.faults import in_our_words, is_refusal, leave_demoted, was_undone
from rowferry.control.store.kind import SEATS, kind_of
from rowferry.control.store.tables import REVISIONS, VERSION_TABLE
from rowferry.errors import BadUri, MetaDamaged, MetaUnavailable, StateError

BUSY_TIMEOUT_S = 5.0
WRITES = "rowferry_writes"  # marks connections whose transactions write
_TRIES = 6
_migrating = threading.Lock()  # Alembic keeps its context in a module, one for all threads

P = ParamSpec("P")
R = TypeVar("R")


class Database:
    """One meta database, open and, unless told otherwise, migrated to the newest schema version.

    Raises MetaUnavailable when it cannot be reached or written now, MetaDamaged when it is not a
    meta database that this version can read, BadUri when the URL cannot be used or the server does
    not let us in. No text shows a password.
    """

    def __init__(
        self, url: str, busy_timeout_s: float = BUSY_TIMEOUT_S, migrate: bool = True
    ) -> None:
        self._kind = kind_of(url, busy_timeout_s)
        self.name = self._kind.name
        self.engine = self._kind.engine()
        event.listen(self.engine, "begin", self._begin)
        event.listen(self.engine, "handle_error", leave_demoted)
        self._writing = self.engine.execution_options(**{WRITES: True})
        self._seats = threading.BoundedSemaphore(SEATS)
        try:
            with self._let_in():
                if migrate:
                    self.migrate()
                else:
                    self.version()
        except BaseException:
            self.close()
            raise

    @contextmanager
    def reading(self, doing: str) -> Iterator[Session]:
        """Open a transaction that sees one state of the database; `doing` completes "cannot …"."""
        with (
            self._our_errors(doing),
            self._seat(doing),
            Session(self.engine) as session,
            session.begin(),
        ):
            yield session

    @contextmanager
    def writing(self, doing: str) -> Iterator[Session]:
        """Open a transaction that writes; it commits unless an error leaves it.

        What it decides by must be locked first: on SQLite everything is, elsewhere what was
        selected `FOR UPDATE`.
        """
        with self._writing_in(doing, self._seat(doing)) as session:
            yield session

    @contextmanager
    def urgent(self, doing: str) -> Iterator[Session]:
        """Open a transaction that writes, as `writing` does, and waits for none of the others.

        For one thread at a time: leases must not end because there is much to do.
        """
        with self._writing_in(doing, nullcontext()) as session:
            yield session

    @contextmanager
    def _writing_in(self, doing: str, seat: AbstractContextManager[None]) -> Iterator[Session]:
        # The seat comes first: so few wait for the turn that an urgent one finds it soon, and who
        # has the turn waits for no seat. The seat is free again while what was committed is made
        # durable: then others commit, and the next call to the disk is for all of them.
        with self._our_errors(doing):
            with seat, self._kind.turn(), Session(self._writing) as session, session.begin():
                yield session
            self._kind.make_durable()

    @contextmanager
    def _seat(self, doing: str) -> Iterator[None]:
        """Wait until few enough are at work that a connection stays free."""
        if not self._seats.acquire(timeout=2 * self._kind.timeout_s):
            raise MetaUnavailable(
                f"cannot {doing}: meta database {self.name}: its {SEATS} connections are at work"
            )
        try:
            yield
        finally:
            self._seats.release()

    def version(self) -> str | None:
        """Return the schema version; None for an empty database."""
        with self._our_errors("open the store"), self.engine.connect() as connection:
            return self._version(connection)

    def migrate(self, revision: str = REVISIONS[-1]) -> None:
        """Bring the tables to a schema version. On repeat: nothing changes."""
        with self._our_errors("open the store"):
            with self.engine.connect() as connection:
                if self._version(connection) == revision:
                    return
            # Whoever comes second waits for the lock and then finds the work done.
            with _migrating, self._writing.begin() as connection, self._kind.alone(connection):
                if self._version(connection) != revision:
                    _upgrade(connection, revision)

    def forget_deleted(self) -> None:
        """Take from the file what was stored before and is not any more, where we can."""
        with self._our_errors("tidy up the store"):
            self._kind.forget_deleted(self.engine)

    def close(self) -> None:
        """Close all connections."""
        self.engine.dispose()

    def _begin(self, connection: Connection) -> None:
        writes = connection.get_execution_options().get(WRITES, False)
        self._kind.begin(connection, bool(writes))

    @contextmanager
    def _our_errors(self, doing: str) -> Iterator[None]:
        try:
            yield
        except SQLAlchemyError as err:
            raise in_our_words(err, f"cannot {doing}: meta database {self.name}") from err

    @contextmanager
    def _let_in(self) -> Iterator[None]:
        """Give a refusal at the door its own verdict; later it may be a failover that passes."""
        try:
            yield
        except StateError as err:
            if not is_refusal(err.__cause__):
                raise
            raise BadUri(
                f"{err.words}; check user, password, rights and TLS, and that the database exists"
            ) from err

    def _version(self, connection: Connection) -> str | None:
        tables = inspect(connection).get_table_names()
        if VERSION_TABLE not in tables:
            if tables:
                raise MetaDamaged(
                    f"{self.name} is the database of something else (it has the table "
                    f"{min(tables)!r}); name another one"
                )
            return None
        version: str | None = connection.scalar(text(f"SELECT version_num FROM {VERSION_TABLE}"))
        if version is not None and version not in REVISIONS:
            raise MetaDamaged(
                f"meta database {self.name} has schema version {version}, this version of Rowferry "
                f"knows {REVISIONS[-1]}; use the newer Rowferry that made it"
            )
        return version


def has_database(url: str, busy_timeout_s: float = BUSY_TIMEOUT_S) -> bool:
    """Return whether there is a meta database at this URL; makes none.

    Raises:
        BadUri: the URL is not one of a database that can be used.
        MetaUnavailable: its server cannot be reached now.
        MetaDamaged: it is not a meta database, or one of a newer version.
    """
    if kind_of(url, busy_timeout_s).file_is_missing():
        return False
    database = Database(url, busy_timeout_s, migrate=False)
    try:
        return database.version() is not None
    finally:
        database.close()


def undone_again(method: Callable[P, R]) -> Callable[P, R]:
    """Make a method that is one transaction run again when another one's locks or rows ended it.

    The database has then undone all of it, so that nobody need hear of it.
    """

    @functools.wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        for turn in range(1, _TRIES):
            try:
                return method(*args, **kwargs)
            except StateError as err:
                if not was_undone(err.__cause__):
                    raise
            time.sleep(random.uniform(0, 0.01 * 2**turn))  # so that two do not meet again
        return method(*args, **kwargs)

    return call


def _upgrade(connection: Connection, revision: str) -> None:
    from alembic import command  # costs 0.2 s, and is needed once in a database's life
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    config.attributes["connection"] = connection
    command.upgrade(config, revision)
