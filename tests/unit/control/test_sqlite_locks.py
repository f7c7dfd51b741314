"""A meta database that several stores of one process, and other processes, have open."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

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
