"""A meta database that several stores of one process, and other processes, have open."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, closing
from pathlib import Path

from rowferry.control.store.connection import Database
from rowferry.control.store.kind import SEATS
from rowferry.control.store.sql_store import open_store

LOOK = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1])
connection.execute("SELECT 1 FROM changefeeds").fetchall()
connection.close()
"""


def test_another_process_takes_no_log_away_that_is_in_use(tmp_path: Path) -> None:
    """A server has two stores. What is committed is in the log, and lost with it."""
    file, log = tmp_path / "meta.db", tmp_path / "meta.db-wal"
    with closing(open_store(f"sqlite:///{file}")) as first:
        assert first.feeds() == ()  # from now on it has a connection
        with closing(open_store(f"sqlite:///{file}")) as second:
            assert second.feeds() == ()
            with closing(sqlite3.connect(file)) as writer:
                writer.execute("CREATE TABLE kept (id INTEGER)")
            number = log.stat().st_ino
            subprocess.run([sys.executable, "-c", LOOK, str(file)], check=True)
            assert log.exists() and log.stat().st_ino == number


def test_leases_wait_for_no_writer_that_waits_for_readers(tmp_path: Path) -> None:
    """Whoever has the turn to write keeps all others waiting, leases among them."""
    database = Database(f"sqlite:///{tmp_path}/meta.db")
    written = threading.Event()

    def write() -> None:
        with database.writing("write"):
            pass
        written.set()

    with closing(database), ExitStack() as readers:
        for _ in range(SEATS):
            readers.enter_context(database.reading("read")).connection()
        writer = threading.Thread(target=write, daemon=True)
        writer.start()
        assert not written.wait(0.2), "the test means nothing: it has not waited"
        began = time.monotonic()
        with database.urgent("renew leases"):
            pass
        assert time.monotonic() - began < database._kind.timeout_s
        assert not written.is_set()
        readers.close()
        assert written.wait(database._kind.timeout_s)
        writer.join()
