"""SQLite: one file, for one machine."""

from __future__ import annotations

import errno
import os
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, create_engine, event

from rowferry.control.store.faults import is_busy, sqlite_words
from rowferry.control.store.kind import DatabaseKind
from rowferry.errors import BadUri, MetaUnavailable

_making = threading.Lock()
_turns: dict[str, threading.Lock] = {}  # of each file that this process writes


class SqliteKind(DatabaseKind):
    """A file; whoever writes has the whole of it for himself."""

    def __init__(self, url: URL, timeout_s: float) -> None:
        super().__init__(url, timeout_s)
        self._one = _turns.setdefault(os.path.abspath(url.database or ""), threading.Lock())
        self._durable = _GroupSync(Path(f"{url.database}-wal"))

    def check(self) -> None:
        """Raise BadUri unless the URL is that of a file."""
        if not self.url.database or self.url.database == ":memory:" or self.url.query:
            raise BadUri(
                f"meta database {self.name}: name a file, as sqlite:///path, without parameters"
            )

    @property
    def _path(self) -> Path:
        return Path(self.url.database or "")

    def engine(self) -> Engine:
        """Return the source of connections; makes the file where there is none."""
        _make_file(self._path, self.name)
        _use_wal(self._path, self.name, self.timeout_s)
        # Python's driver must neither begin nor commit by itself: `begin` does.
        arguments = {"timeout": self.timeout_s, "isolation_level": None}
        engine = create_engine(
            self.url, connect_args=arguments, max_overflow=-1, hide_parameters=True
        )
        event.listen(engine, "connect", _prepare)
        return engine

    def begin(self, connection: Connection, writes: bool) -> None:
        """Begin a transaction."""
        # One that reads first and writes later fails at once when another one wrote between; one
        # that takes the write lock at its start waits for it.
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Let the threads of this process write one after the other.

        SQLite itself has no queue: whoever finds it busy sleeps and tries again, and of many
        threads some would never find it free.
        """
        if not self._one.acquire(timeout=2 * self.timeout_s):
            raise MetaUnavailable(f"meta database {self.name}: too many threads wait to write")
        try:
            yield
        finally:
            self._one.release()

    def make_durable(self) -> None:
        """Wait for the disk, with all threads that have written by now."""
        self._durable.sync()

    def alone(self, connection: Connection) -> AbstractContextManager[None]:
        """Do nothing: the transaction has the write lock."""
        return nullcontext()

    def forget_deleted(self, engine: Engine) -> None:
        """Write the file anew, and empty its log."""
        engine.dispose()  # nothing of ours may be open
        with closing(sqlite3.connect(self._path, timeout=self.timeout_s)) as connection:
            try:
                connection.execute("VACUUM")
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            except sqlite3.Error as err:
                raise sqlite_words(err, f"cannot tidy up meta database {self.name}") from err

    def file_is_missing(self) -> bool:
        """Return whether there is no such file."""
        return not self._path.exists()


def _make_file(path: Path, name: str) -> None:
    """Make the file and its directory; only we may read it, because settings hold passwords.

    A file that is there is not opened: to close it again would end all locks that SQLite has on it
    for this process, and the next process that closes it would take away the log that is in use.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _making:  # nobody else of this process may have it open before it is closed here
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    except FileExistsError:
        if path.is_dir():
            raise _unwritable(name, os.strerror(errno.EISDIR)) from None
        if not os.access(path, os.R_OK | os.W_OK):
            raise _unwritable(name, os.strerror(errno.EACCES)) from None
    except OSError as err:
        raise _unwritable(name, err.strerror or str(err)) from err


def _unwritable(name: str, why: str) -> MetaUnavailable:
    return MetaUnavailable(
        f"meta database {name} cannot be written: {why}; name a file that can be"
    )


def _use_wal(path: Path, name: str, timeout_s: float) -> None:
    """Let readers and the writer work side by side; the file remembers it.

    SQLite does not always wait for others when it changes the mode, so we do.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            with closing(sqlite3.connect(path, timeout=timeout_s)) as connection:
                connection.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.Error as err:
            if time.monotonic() >= deadline or not is_busy(err):
                raise sqlite_words(err, f"cannot open meta database {name}") from err
        time.sleep(0.02)


def _prepare(connection: Any, _record: Any) -> None:
    connection.execute("PRAGMA foreign_keys=ON")
    # A commit alone does not wait for the disk; `_GroupSync` does. SQLite itself still does so
    # before it moves content from the log into the database.
    connection.execute("PRAGMA synchronous=NORMAL")


class _GroupSync:
    """Makes SQLite's log durable, for all threads that wait at that moment with one call."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._changed = threading.Condition()
        self._begun = 0  # calls that were begun, and that ended well
        self._ended = 0
        self._busy = False

    def sync(self) -> None:
        """Return when everything that was written before is on the disk.

        Raises:
            MetaUnavailable: the disk does not take it.
        """
        with self._changed:
            wanted = self._begun + 1  # one that is under way may have begun too early
            while self._busy and self._ended < wanted:
                self._changed.wait()
            if self._ended >= wanted:
                return
            self._begun, self._busy = self._begun + 1, True
            mine = self._begun
        try:
            descriptor = os.open(self._log, os.O_RDWR)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            with self._changed:
                self._ended = max(self._ended, mine)
        except FileNotFoundError:
            pass  # SQLite has moved all of it into the database
        except OSError as err:
            words = f"the meta database cannot be made durable: {err.strerror}"
            raise MetaUnavailable(words) from err
        finally:
            with self._changed:
                self._busy = False
                self._changed.notify_all()
