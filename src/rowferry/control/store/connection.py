"""The database connection: opening, migrations, transactions, and its errors in our words."""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, create_engine, event, inspect, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import (
    ArgumentError,
    DBAPIError,
    IntegrityError,
    InterfaceError,
    OperationalError,
    SQLAlchemyError,
)
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.orm import Session

from rowferry.control.store.tables import REVISIONS, VERSION_TABLE
from rowferry.errors import BadUri, Fenced, MetaDamaged, MetaUnavailable, StateError

BUSY_TIMEOUT_S = 5.0
_WRITES = "rowferry_writes"
# SQLite's own codes for "this is not what you think it is"; other codes may pass with time.
_SQLITE_DAMAGED = (sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_migrating = threading.Lock()  # Alembic keeps its context in a module, one for all threads


class Database:
    """One meta database, open and migrated to the newest schema version.

    Raises MetaUnavailable when it cannot be reached or written now, MetaDamaged when it is not a
    meta database that this version can read, BadUri when the URL cannot be used. No text shows a
    password.
    """

    def __init__(self, url: str, busy_timeout_s: float = BUSY_TIMEOUT_S) -> None:
        parsed = _parse(url)
        self.name = parsed.render_as_string(hide_password=True)
        path = Path(parsed.database or "")
        _make_file(path, self.name)
        _use_wal(path, self.name, busy_timeout_s)
        # Python's driver must neither begin nor commit by itself: the `begin` event does.
        arguments = {"timeout": busy_timeout_s, "isolation_level": None}
        self.engine = create_engine(parsed, connect_args=arguments, max_overflow=-1)
        event.listen(self.engine, "connect", _prepare_sqlite)
        event.listen(self.engine, "begin", _begin_sqlite)
        self._writing = self.engine.execution_options(**{_WRITES: True})
        try:
            self._migrate()
        except BaseException:
            self.close()
            raise

    @contextmanager
    def reading(self, doing: str) -> Iterator[Session]:
        """Open a transaction that sees one state of the database; `doing` completes "cannot …"."""
        with self._our_errors(doing), Session(self.engine) as session, session.begin():
            yield session

    @contextmanager
    def writing(self, doing: str) -> Iterator[Session]:
        """Open a transaction that is alone from its start; it commits unless an error leaves it."""
        with self._our_errors(doing), Session(self._writing) as session, session.begin():
            yield session

    def close(self) -> None:
        """Close all connections."""
        self.engine.dispose()

    @contextmanager
    def _our_errors(self, doing: str) -> Iterator[None]:
        try:
            yield
        except SQLAlchemyError as err:
            raise in_our_words(err, f"cannot {doing}: meta database {self.name}") from err

    def _migrate(self) -> None:
        with self._our_errors("open the store"):
            with self.engine.connect() as connection:
                if self._version(connection) == REVISIONS[-1]:
                    return
            # Whoever comes second waits for the write lock and then finds the work done.
            with _migrating, self._writing.begin() as connection:
                if self._version(connection) != REVISIONS[-1]:
                    _upgrade(connection)

    def _version(self, connection: Connection) -> str | None:
        """Return the schema version; None for an empty database."""
        tables = inspect(connection).get_table_names()
        if VERSION_TABLE not in tables:
            if tables:
                raise MetaDamaged(
                    f"{self.name} is the database of something else (it has the table "
                    f"{min(tables)!r}); name another file"
                )
            return None
        found: str | None = connection.scalar(text(f"SELECT version_num FROM {VERSION_TABLE}"))
        if found is not None and found not in REVISIONS:
            raise MetaDamaged(
                f"meta database {self.name} has schema version {found}, this version of Rowferry "
                f"knows {REVISIONS[-1]}; use the newer Rowferry that made it"
            )
        return found


def has_database(url: str) -> bool:
    """Return whether there is a database at this URL; makes none.

    Raises:
        BadUri: the URL is not one of a database that can be used.
    """
    return Path(_parse(url).database or "").exists()


def _upgrade(connection: Connection) -> None:
    from alembic import command  # costs 0.2 s, and is needed once in a database's life
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    config.attributes["connection"] = connection
    command.upgrade(config, "head")


def _parse(url: str) -> URL:
    try:
        parsed = make_url(url)
    except ArgumentError:
        raise BadUri("the meta database URL cannot be parsed; write sqlite:///path") from None
    shown = parsed.render_as_string(hide_password=True)
    if parsed.drivername not in ("sqlite", "sqlite+pysqlite"):
        raise BadUri(f"meta database {shown}: only sqlite:///path can be used")
    if not parsed.database or parsed.database == ":memory:" or parsed.query:
        raise BadUri(f"meta database {shown}: name a file, as sqlite:///path, without parameters")
    return parsed


def _make_file(path: Path, name: str) -> None:
    """Make the file and its directory; only we may read it, because settings hold passwords."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))
    except OSError as err:
        raise MetaUnavailable(
            f"meta database {name} cannot be written: {err.strerror}; name a file that can be"
        ) from err


def _use_wal(path: Path, name: str, busy_timeout_s: float) -> None:
    """Let readers and the writer work side by side; the file remembers it.

    SQLite does not always wait for others when it changes the mode, so we do.
    """
    deadline = time.monotonic() + busy_timeout_s
    while True:
        try:
            with closing(sqlite3.connect(path, timeout=busy_timeout_s)) as connection:
                connection.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.Error as err:
            if time.monotonic() >= deadline or not _is_busy(err):
                raise _sqlite_words(err, f"cannot open meta database {name}") from err
        time.sleep(0.02)


def _prepare_sqlite(connection: Any, _record: Any) -> None:
    connection.execute("PRAGMA foreign_keys=ON")


def _begin_sqlite(connection: Connection) -> None:
    # A transaction that reads first and writes later fails at once when another one wrote between;
    # one that takes the write lock at its start waits for it.
    writes = connection.get_execution_options().get(_WRITES, False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _is_busy(err: BaseException) -> bool:
    return getattr(err, "sqlite_errorcode", 0) & 0xFF in (
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
    )


def _sqlite_words(err: sqlite3.Error, where: str) -> StateError:
    if getattr(err, "sqlite_errorcode", 0) & 0xFF in _SQLITE_DAMAGED:
        return MetaDamaged(f"{where}: {err}")
    return MetaUnavailable(f"{where}: {err}")


def in_our_words(err: SQLAlchemyError, where: str) -> StateError:
    """Return the database library's error as ours, with the verdict that fits it."""
    if isinstance(err, PoolTimeout):
        return MetaUnavailable(f"{where}: all connections are busy")
    if not isinstance(err, DBAPIError):
        return MetaDamaged(f"{where}: {err}")
    if isinstance(err, IntegrityError):
        return Fenced(f"{where}: another process wrote the same rows: {err.orig}")
    if isinstance(err.orig, sqlite3.Error):
        return _sqlite_words(err.orig, where)
    if isinstance(err, OperationalError | InterfaceError) or err.connection_invalidated:
        return MetaUnavailable(f"{where}: {err.orig}")
    return MetaDamaged(f"{where}: {err.orig}")
