"""A table of secrets on a real server, feeds that mask them, and a search for what got out."""

from __future__ import annotations

import base64
import json
import logging
import secrets
import sqlite3
import time
from collections.abc import Iterable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from rowferry.change.plan import Plan, Receipt, TableSlice
from rowferry.change.position import PHYSICAL_SHIFT
from rowferry.change.table import TableSchema
from rowferry.control.feed import service
from rowferry.control.feed.lease import Holder
from rowferry.control.feed.loop import Loop
from rowferry.control.store.sql_store import open_store
from rowferry.errors import RowferryError, Verdict
from rowferry.spark.job import InProcessRunner
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.testing.servers import MySql

NAME = "masked"
SALT = "a salt that nobody can guess"
PATIENCE_S = 600.0  # an upper bound for a machine under load, never reached by working code
COLUMNS = (
    "id VARCHAR(40) PRIMARY KEY, uk BIGINT NOT NULL UNIQUE, c_null TEXT, c_const VARCHAR(60), "
    "c_hash VARCHAR(60) CHARACTER SET latin1, c_num BIGINT, c_cut VARCHAR(60), c_last VARCHAR(60), "
    "c_re VARCHAR(60), c_expr VARCHAR(60), c_blob BLOB, c_bin VARBINARY(40), c_json JSON, "
    "c_dec DECIMAL(30,4), plain VARCHAR(300), n INT"
)
MASKS = [
    {"columns": ["id", "uk", "c_hash", "c_num", "c_bin"], "action": "hash"},
    {"columns": ["c_null", "c_blob"], "action": "null"},
    {"columns": ["c_const"], "action": "constant", "value": "-"},
    {"columns": ["c_json"], "action": "constant", "value": "{}"},
    {"columns": ["c_cut"], "action": "truncate", "length": 2},
    {"columns": ["c_last", "c_dec"], "action": "keep-last", "length": 2},
    {"columns": ["c_re"], "action": "regex", "pattern": "[a-z0-9]+", "replacement": "x"},
    {"columns": ["c_expr"], "action": "expression", "expression": "left(c_expr, 1)"},
]
COMPUTED = [{"column": "twice", "type": "bigint", "expression": "n * 2"}]


class SecretRows:
    """Writes rows of random values and remembers all of them."""

    def __init__(self, server: MySql, database: str) -> None:
        self.server, self.database = server, database
        self.clear: list[bytes] = []
        server.script(
            f"DROP DATABASE IF EXISTS {database}",
            f"CREATE DATABASE {database}",
            f"CREATE TABLE {database}.t ({COLUMNS})",
        )

    def word(self) -> str:
        found = "q" + secrets.token_hex(14)
        self.clear.append(found.encode())
        return found

    def number(self) -> int:
        found = secrets.randbelow(10**16) + 10**17
        self.clear.append(str(found).encode())
        return found

    def blob(self) -> bytes:
        found = secrets.token_bytes(24)
        self.clear.append(found)
        return found

    def insert(self, n: int, plain: str = "plain", renamed: tuple[str, str] = ("", "")) -> str:
        """Write a row; returns its key."""
        key = self.word()
        values = (
            *(key, self.number(), self.word(), self.word(), self.word(), self.number()),
            *(self.word(), self.word(), self.word(), self.word(), self.blob(), self.blob()),
            *(json.dumps({"k": self.word()}), f"{self.number()}.1234", plain, n),
        )
        marks = ", ".join(["%s"] * len(values))
        names = ", ".join(part.split()[0] for part in COLUMNS.replace("(30,4)", "").split(", "))
        names = names.replace(*renamed) if renamed[0] else names
        into = f"INSERT INTO {self.database}.t ({names}) VALUES ({marks})"
        self.server.execute(into, *values)
        return key

    def update(self, key: str) -> None:
        self.server.execute(
            f"UPDATE {self.database}.t SET c_null = %s, c_hash = %s, n = n + 1 WHERE id = %s",
            *(self.word(), self.word(), key),
        )

    def rename(self, key: str) -> str:
        new = self.word()
        self.server.execute(f"UPDATE {self.database}.t SET id = %s WHERE id = %s", new, key)
        return new

    def delete(self, key: str) -> None:
        self.server.execute(f"DELETE FROM {self.database}.t WHERE id = %s", key)

    def traces(self, content: bytes) -> list[bytes]:
        """Return the values of which a form stands in some bytes."""
        return [one for one in self.clear if any(form in content for form in _forms(one))]

    def traces_in(self, *folders: Path) -> list[tuple[str, bytes]]:
        """Return the values that files hold, and where."""
        return [
            (str(path), one)
            for folder in folders
            for path in sorted(folder.rglob("*"))
            if path.is_file()
            for one in self.traces(_content(path))
        ]


def _forms(one: bytes) -> Iterable[bytes]:
    yield one
    yield one.hex().encode()
    yield one.hex().upper().encode()
    for shift in range(3):  # base64 has three ways to begin
        text = base64.b64encode(bytes(shift) + one)
        yield text[4 if shift else 0 : len(text) // 4 * 4 - 4]
    if one.isdigit():
        number = int(one)
        yield number.to_bytes(8, "little")
        yield number.to_bytes(8, "big")


def _content(path: Path) -> bytes:
    raw = path.read_bytes()
    if path.suffix == ".parquet" and raw[:4] == b"PAR1":
        shown = [
            v if isinstance(v, bytes) else str(v).encode()
            for column in pq.read_table(path).columns
            for v in column.to_pylist()
        ]
        return raw + b"\n".join(shown)
    return raw


def meta_dump(path: Path) -> bytes:
    """Return all that a SQLite meta database holds."""
    with closing(sqlite3.connect(path)) as connection:
        names = [r[0] for r in connection.execute("SELECT name FROM sqlite_master WHERE sql <> ''")]
        found = []
        for name in names:
            try:
                found += [repr(row) for row in connection.execute(f'SELECT * FROM "{name}"')]
            except sqlite3.OperationalError:
                continue  # an index
    return "\n".join(found).encode()


def config(database: str, **more: Any) -> dict[str, Any]:
    """Return settings that mask everything that is secret."""
    matcher = [f"{database}.*"]
    return {
        "filter": {"rules": matcher},
        "transform": {
            "salt": SALT,
            "masks": [{"matcher": matcher, **rule} for rule in MASKS],
            "computed": [{"matcher": matcher, **rule} for rule in COMPUTED],
        },
        **more,
    }


class _Looking(InProcessRunner):
    """Runs plans here, and looks at what is stored while they run."""

    def __init__(self, meta: Path, rows: SecretRows) -> None:
        self._meta, self._rows = meta, rows
        self.found: list[bytes] = []
        self.runs = 0

    def run(
        self, spec: ChangefeedSpec, plan: Plan, tables: Mapping[TableSlice, TableSchema]
    ) -> list[Receipt]:
        self.runs += 1
        self.found += self._rows.traces(meta_dump(self._meta))
        self.found += self._rows.traces(json.dumps(plan.to_json()).encode())
        return super().run(spec, plan, tables)


class MaskedFeed:
    """A feed in this process, step by step."""

    def __init__(
        self, rows: SecretRows, folder: Path, sink: str, settings: dict[str, Any], query: str = ""
    ) -> None:
        self.rows, self.folder = rows, folder
        self.meta = folder / "meta.db"
        self.prepared = service.prepare(rows.server.uri + query, sink, settings, NAME)
        self.store = open_store(f"sqlite:///{self.meta}")
        self.store.create_changefeed(self.prepared.spec, 0)
        self.runner = _Looking(self.meta, rows)
        self.words: list[str] = []
        self._handler = _Keeping(self.words)
        logging.getLogger().addHandler(self._handler)
        self._level = logging.getLogger("rowferry").level
        logging.getLogger("rowferry").setLevel(logging.DEBUG)
        self.claim = self.store.claim(NAME, Holder.here(), time.time(), 3600)
        self.loop = Loop(NAME, self.prepared.flow, self.store, self.claim, self.runner, _now_ms)

    def catch_up(self) -> None:
        """Step until everything is delivered; what stops the feed is raised, and kept as words."""
        wanted, end = _now_ms() << PHYSICAL_SHIFT, time.monotonic() + PATIENCE_S
        while True:
            try:
                step = self.loop.step()
            except RowferryError as err:
                self.words.append(str(err))
                if err.verdict is Verdict.STOP:
                    raise
                self.loop.replan(str(err)) if err.verdict is Verdict.REPLAN else time.sleep(0.05)
            else:
                if step.caught_up and step.watermark >= wanted:
                    return
            assert time.monotonic() < end, self.words[-1:]

    def close(self) -> None:
        self.loop.close()
        self.store.close()
        logging.getLogger().removeHandler(self._handler)
        logging.getLogger("rowferry").setLevel(self._level)

    def nothing_is_told(self, *contents: bytes) -> None:
        """Fail where a clear value is in the feed's folder, meta database, words, or elsewhere."""
        assert self.runner.runs and not self.runner.found, self.runner.found[:3]
        assert not self.rows.traces(meta_dump(self.meta))
        assert not self.rows.traces_in(self.folder)
        assert not self.rows.traces("\n".join(self.words).encode())
        for content in contents:
            assert not self.rows.traces(content)


class _Keeping(logging.Handler):
    def __init__(self, words: list[str]) -> None:
        super().__init__(logging.DEBUG)
        self._words = words
        self.setFormatter(logging.Formatter("%(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        self._words.append(self.format(record))


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
