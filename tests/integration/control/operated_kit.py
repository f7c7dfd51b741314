"""A changefeed that operators change while it runs: its source, and an owner as a server is one."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Protocol

from rowferry.change.chunk import Op, Rows
from rowferry.change.plan import Plan, Receipt, TableSlice
from rowferry.change.table import TableId, TableSchema
from rowferry.control.feed.lease import Holder
from rowferry.control.feed.loop import Loop, StepResult
from rowferry.control.operator.operations import Operations, Wanted
from rowferry.control.store.contract import FeedRecord
from rowferry.control.store.sql_store import open_store
from rowferry.errors import RowferryError, SinkUnavailable, Verdict
from rowferry.flow.assemble import assemble
from rowferry.refstore.client import Store
from rowferry.refstore.cluster import LocalCluster
from rowferry.spark.job import InProcessRunner
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.testing.servers import Server
from rowferry.testing.storage import storage_changes

PATIENCE_S = 600.0


class Database(Protocol):
    """A source with tables `name (id bigint PRIMARY KEY, v varchar(40))` in one database."""

    uri: str
    database: str

    def create(self, table: str) -> None:
        """Create a table."""

    def insert(self, table: str, *ids: int) -> None:
        """Insert rows in one transaction."""

    def ids(self, table: str) -> list[int]:
        """Return the ids that a table holds."""


class SqlDatabase:
    """A database of a MySQL or MariaDB server."""

    def __init__(self, server: Server, database: str) -> None:
        self._server, self.database, self.uri = server, database, server.uri
        server.script(f"DROP DATABASE IF EXISTS {database}", f"CREATE DATABASE {database}")

    def create(self, table: str) -> None:
        self._server.execute(
            f"CREATE TABLE {self.database}.{table} (id bigint PRIMARY KEY, v varchar(40))"
        )

    def insert(self, table: str, *ids: int) -> None:
        rows = ", ".join(f"({i}, 'v{i}')" for i in ids)
        self._server.execute(f"INSERT INTO {self.database}.{table} VALUES {rows}")

    def ids(self, table: str) -> list[int]:
        found = self._server.execute(f"SELECT id FROM {self.database}.{table} ORDER BY id")
        return [int(str(row[0])) for row in found]


class RangeDatabase:
    """A database of a reference store."""

    def __init__(self, cluster: LocalCluster, store: Store, database: str) -> None:
        self._store, self.database = store, database
        self.uri = f"range://{cluster.master_address}"
        store.ddl(f"CREATE DATABASE {database}")

    def create(self, table: str) -> None:
        self._store.ddl(
            f"CREATE TABLE {self.database}.{table} (id bigint PRIMARY KEY, v varchar(40))",
            ranges=2,
            handles=(0, 99),
        )

    def insert(self, table: str, *ids: int) -> None:
        with self._store.transaction() as transaction:
            rows = [{"id": i, "v": f"v{i}"} for i in ids]
            transaction.insert(TableId(self.database, table), rows)

    def ids(self, table: str) -> list[int]:
        return sorted(self._store.scan(TableId(self.database, table)).column("id").to_pylist())


class Runner(InProcessRunner):
    """Runs plans here; `lose_answers` lets each of them end as if nobody had heard of it."""

    lose_answers = False

    def run(
        self, spec: ChangefeedSpec, plan: Plan, tables: Mapping[TableSlice, TableSchema]
    ) -> list[Receipt]:
        """Run a plan."""
        found = super().run(spec, plan, tables)
        if self.lose_answers:
            raise SinkUnavailable("the answer was lost")
        return found


class Operated:
    """One changefeed to a directory, its operator's desk, and its owner."""

    def __init__(self, source: Database, folder: Path) -> None:
        self.source, self.root = source, folder / "out"
        self._meta = folder / "meta.db"
        self.store = open_store(f"sqlite:///{self._meta}")
        self.desk = Operations(self.store)
        self.runner = Runner()
        self._loop: Loop | None = None
        self._running = 0  # the spec version that the loop was made of

    def name(self, table: str) -> str:
        return f"{self.source.database}.{table}"

    def create(self, *tables: str, uri: str = "") -> None:
        config = {"filter": {"rules": [self.name(t) for t in tables]}}
        sink = f"file://{self.root}?protocol=canal-json&enable-tidb-extension=true"
        self.desk.create(Wanted(uri or self.source.uri, sink, "feed", config))

    @property
    def feed(self) -> FeedRecord:
        found = self.store.feed("feed")
        assert found is not None
        return found

    def subscribed(self) -> list[str]:
        """Return the tables that `subscribe` lists, as somebody with an SQL client sees it."""
        with closing(sqlite3.connect(self._meta)) as connection:
            rows = connection.execute("SELECT table_name FROM subscribe ORDER BY table_name")
            return [name for (name,) in rows]

    # --- what a server does -----------------------------------------------------------------------

    def step(self) -> StepResult | None:
        """Look at the changefeed, then do one step; None: it does not run, or a step failed."""
        feed = self.feed
        if not feed.state.runs or feed.spec_version != self._running:
            self.leave()
        if not feed.state.runs:
            return None
        if self._loop is None:
            self._claim = self.store.claim("feed", Holder.here(), time.time(), 3600)
            flow = assemble(feed.spec)
            self._loop = Loop(
                *("feed", flow, self.store, self._claim, self.runner, _now_ms),
                until_ts=feed.spec.target_ts or None,
                spec_version=feed.spec_version,
            )
            self._running = feed.spec_version
        try:
            return self._loop.step()
        except RowferryError as err:
            if err.verdict is Verdict.STOP:
                raise
            return None

    def run_until(self, done: Callable[[StepResult], bool]) -> None:
        """Step until a step is as wanted."""
        end = time.monotonic() + PATIENCE_S
        while (step := self.step()) is None or not done(step):
            assert time.monotonic() < end, "it never came so far"

    def catch_up(self) -> None:
        """Step until each captured table has arrived."""
        end = time.monotonic() + PATIENCE_S
        while True:
            step = self.step()
            if step is not None and step.caught_up and self.has_arrived():
                return
            assert time.monotonic() < end, f"it never came so far: {self.arrived()}"

    def has_arrived(self) -> bool:
        """Return whether every captured table is as the source has it."""
        tables = [t.table for t in self.desk.see("feed").tables]
        return all(self.arrived_ids(t) == self.source.ids(t) for t in tables)

    def leave(self) -> None:
        """Let the changefeed go at its border."""
        if self._loop is not None:
            self._loop.close()
            self._loop = None
            self.store.release(self._claim)

    def close(self) -> None:
        """Let go of everything."""
        self.leave()
        self.store.close()

    # --- what a reader sees -----------------------------------------------------------------------

    def arrived(self) -> list[tuple[str, int, int]]:
        """Return table, id and commit-ts of each row that was inserted, in replay order."""
        found: list[tuple[str, int, int]] = []
        for rows in storage_changes(self.root, assemble(self.feed.spec).encode):
            if isinstance(rows, Rows):
                assert set(rows.batch.column("op").to_pylist()) == {int(Op.INSERT)}
                ids: Sequence[Any] = [row["id"] for row in rows.after.to_pylist()]
                name = rows.table.id.table
                found += [(name, i, t) for i, t in zip(ids, rows.commit_ts.tolist(), strict=True)]
        return found

    def arrived_ids(self, table: str) -> list[int]:
        """Return the ids of a table that have arrived, each once."""
        return sorted({i for name, i, _ in self.arrived() if name == table})

    def times(self, table: str, row: int) -> int:
        """Return how often a row has arrived."""
        return sum((name, i) == (table, row) for name, i, _ in self.arrived())


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
