"""Three servers on one meta database under everything that can happen to them: nothing is lost.

Owners are killed, leases are stolen, the meta database is away for longer than a lease lasts, or
crashes, a server drains. All the while every directory keeps its promises, and in the end it holds
exactly its table, each row once.
"""

from __future__ import annotations

import random
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Protocol

import pytest

from rowferry.change.chunk import Rows
from rowferry.change.table import TableId
from rowferry.control.feed.lease import Holder
from rowferry.control.fleet.server import LEASE_S
from rowferry.control.lifecycle import FeedState
from rowferry.control.operator.operations import Operations, Wanted
from rowferry.control.store.contract import FeedRecord, MetaStore
from rowferry.control.store.sql_store import open_store
from rowferry.flow.assemble import assemble
from rowferry.refstore.client import Store
from rowferry.refstore.cluster import LocalCluster
from rowferry.testing.harness import ServerProcess, checkpoint, wait_for
from rowferry.testing.servers import Postgres
from rowferry.testing.servers.child import free_ports
from rowferry.testing.storage import storage_changes
from rowferry.testing.validators.layout import StorageLayout
from rowferry.testing.verify import verify_storage

WITHIN_S = 600.0
NAMES = [f"t{i}" for i in range(5)]
SNAPSHOT_ROWS = 10_000  # enough for a Spark job
A_TRANSACTION = 20  # rows


class Meta(Protocol):
    """A meta database to which things happen."""

    url: str

    def suffer(self, dice: random.Random) -> Iterator[None]:
        """Let things happen to it, one after the other; work should go on between them."""


class FileMeta:
    """SQLite: a file that others may keep locked."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.url = f"sqlite:///{file}"

    def suffer(self, dice: random.Random) -> Iterator[None]:
        """Let nobody write for longer than a lease lasts."""
        with closing(sqlite3.connect(self._file, timeout=60, isolation_level=None)) as connection:
            connection.execute("BEGIN EXCLUSIVE")
            time.sleep(LEASE_S + 1)
            connection.execute("ROLLBACK")
        yield


class ServerMeta:
    """PostgreSQL: a server that is stopped and started again, in order or by its death."""

    def __init__(self, server: Postgres) -> None:
        server.execute("CREATE DATABASE fleet")
        self._server = server
        self.url = server.url("fleet")

    def suffer(self, dice: random.Random) -> Iterator[None]:
        """Let it die and be back at once, stop in order, be away for longer than a lease lasts."""
        for _ in range(2):
            self._server.crash()
            self._server.restart()
            yield
            time.sleep(dice.uniform(0, 1))  # into whatever is done then
        self._server.restart()
        yield
        self._server.crash()
        time.sleep(LEASE_S + 1)
        self._server.restart()
        yield


class Fleet:
    """The servers that run, and what is seen of them in the meta database."""

    def __init__(self, folder: Path, meta: Meta) -> None:
        self.folder, self.meta = folder, meta
        self.store: MetaStore = open_store(meta.url)
        self.servers: list[ServerProcess] = []
        self._started = 0

    def start(self) -> ServerProcess:
        """Start one more server."""
        self._started += 1
        ports = [f"127.0.0.1:{port}" for port in free_ports(2)]
        arguments = ["--meta", self.meta.url, "--spark-master", "local[1]"]
        arguments += ["--addr", ports[0], "--grpc-addr", ports[1]]
        server = ServerProcess(arguments, self.folder / f"server-{self._started}")
        self.servers.append(server)
        return server

    def until_all_serve(self) -> None:
        """Wait until every server that lives has begun: one that finds no database ends."""

        def done() -> bool:
            return all("serving at" in s.printed() for s in self.servers if s.alive)

        wait_for(done, f"all servers ({self.printed()})", WITHIN_S)

    def feed(self, name: str) -> FeedRecord:
        """Return a changefeed."""
        found = self.store.feed(name)
        assert found is not None
        return found

    def owner(self, name: str) -> ServerProcess:
        """Return the server that runs a changefeed; waits until one does."""
        found: list[ServerProcess] = []

        def look() -> bool:
            lease = self.feed(name).lease
            pid = lease.holder.pid if lease and lease.expires_at > time.time() else 0
            found[:] = [s for s in self.servers if s.pid == pid and s.alive]
            return bool(found)

        wait_for(look, f"an owner of {name}", WITHIN_S)
        return found[0]

    def until_delivered(self, commit_ts: int) -> None:
        """Wait until every changefeed has delivered up to here."""

        def done() -> bool:
            return all(checkpoint(self.folder / name) >= commit_ts for name in NAMES)

        wait_for(done, f"commit-ts {commit_ts} everywhere ({self.printed()})", WITHIN_S)

    def printed(self) -> str:
        """Return where the servers' messages are, for a test that fails."""
        return ", ".join(str(s.output) for s in self.servers)

    def close(self) -> None:
        """Kill what still runs."""
        for server in self.servers:
            server.kill()
        self.store.close()


@contextmanager
def again_and_again(do: Callable[[], None], every_s: float) -> Iterator[None]:
    """Do something in a thread until the end of the block; what went wrong there is raised."""
    stop = threading.Event()

    def work() -> None:
        while not stop.wait(every_s):
            do()

    with ThreadPoolExecutor(1) as threads:
        working = threads.submit(work)
        try:
            yield
        finally:
            stop.set()
        working.result()


def write(store: Store, written: dict[str, int]) -> None:
    """Write a small transaction to each table."""
    for name in NAMES:
        first = written[name]
        with store.transaction() as work:
            work.insert(TableId("load", name), _rows(first, A_TRANSACTION))
        written[name] = first + A_TRANSACTION


def _rows(first: int, count: int) -> list[dict[str, object]]:
    return [{"id": i, "name": f"name-{i}-{'x' * 60}"} for i in range(first, first + count)]


@pytest.fixture(params=["sqlite", "postgres"])
def fleet(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Fleet]:
    with ExitStack() as open_things:
        meta: Meta = FileMeta(tmp_path / "meta.db")
        if request.param == "postgres":
            server = open_things.enter_context(Postgres.start(tmp_path / "postgres"))
            meta = ServerMeta(server)
        found = Fleet(tmp_path, meta)
        open_things.callback(found.close)
        yield found


def test_three_servers_lose_nothing(fleet: Fleet, tmp_path: Path, seed: int) -> None:
    dice = random.Random(seed)
    layouts = [StorageLayout(fleet.folder / name) for name in NAMES]
    with LocalCluster(tmp_path / "store", 2) as cluster, cluster.store() as store:
        for _ in range(3):
            fleet.start()
        store.ddl("CREATE DATABASE load")
        written = dict.fromkeys(NAMES, SNAPSHOT_ROWS)
        for name in NAMES:
            store.ddl(f"CREATE TABLE load.{name} (id bigint PRIMARY KEY, name varchar(80))")
            store.load(TableId("load", name), _rows(0, SNAPSHOT_ROWS))
            _create(fleet, name, f"range://{cluster.master_address}")
        with again_and_again(lambda: write(store, written), 0.1), watched(layouts):
            fleet.until_delivered(1)
            _kill_an_owner(fleet, dice)
            fleet.start()
            _steal_a_lease(fleet, dice)
            fleet.until_all_serve()
            fleet.until_delivered(store.timestamp())
            for _ in fleet.meta.suffer(dice):
                fleet.until_delivered(store.timestamp())
            assert sum(s.alive for s in fleet.servers) == 3, fleet.printed()
            drained = fleet.owner(dice.choice(NAMES))
            drained.terminate()
            assert drained.wait(WITHIN_S) == 0, drained.printed()[-2000:]
            _kill_an_owner(fleet, dice)
            fleet.until_delivered(store.timestamp())
        fleet.until_delivered(store.timestamp())
        ended = [s for s in fleet.servers if s.alive]
        for server in ended:
            server.terminate()
            assert server.wait(WITHIN_S) == 0, server.printed()[-2000:]
        left = {s.holder.pid for s in fleet.store.servers()}  # killed ones could not say goodbye
        assert left.isdisjoint(s.pid for s in (*ended, drained))
        for name, layout in zip(NAMES, layouts, strict=True):
            layout.finish()
            assert layout.failures == []
            assert fleet.feed(name).state is FeedState.NORMAL
            _check(fleet, name, store, written[name])


@contextmanager
def watched(layouts: list[StorageLayout]) -> Iterator[None]:
    """Look at the directories all the time: each keeps its promises at every moment."""

    def look() -> None:
        for layout in layouts:
            layout.observe()

    with again_and_again(look, 1.0):
        yield


def _create(fleet: Fleet, name: str, source: str) -> None:
    config = {
        "filter": {"rules": [f"load.{name}"]},
        "sink": {"csv": {"include-commit-ts": True}},
    }
    sink = f"file://{fleet.folder / name}?protocol=csv&flush-interval=200ms"
    Operations(fleet.store).create(Wanted(source, sink, name, config))


def _kill_an_owner(fleet: Fleet, dice: random.Random) -> None:
    """Kill a server at work; others take over what it had."""
    victim = fleet.owner(dice.choice(NAMES))
    held = [f for f in fleet.store.feeds() if f.lease and f.lease.holder.pid == victim.pid]
    victim.kill()
    for feed in held:
        wait_for(
            lambda feed=feed: fleet.feed(feed.id).epoch > feed.epoch,  # type: ignore[misc]
            f"the take-over of {feed.id}",
            WITHIN_S,
        )
        assert fleet.owner(feed.id) is not victim


def _steal_a_lease(fleet: Fleet, dice: random.Random) -> None:
    """Claim a changefeed over its owner's head: the owner is fenced, and nobody is confused."""
    name = dice.choice(NAMES)
    fleet.owner(name)
    later = 1e6  # when the owner's lease has run out; ours runs out a second from now
    thief = Holder("elsewhere", 1, "", 0, "thief")
    stolen = fleet.store.claim(name, thief, time.time() + later, 1.0 - later)
    wait_for(lambda: fleet.feed(name).epoch > stolen.epoch, f"a new owner of {name}", WITHIN_S)


def _check(fleet: Fleet, name: str, store: Store, expected: int) -> None:
    root, table = fleet.folder / name, TableId("load", name)
    codec = assemble(fleet.feed(name).spec).encode
    result = verify_storage(root, codec, store, [table])
    assert result.same, str(result)
    delivered = sum(len(c) for c in storage_changes(root, codec) if isinstance(c, Rows))
    assert delivered == result.equal == expected  # inserts only: a line each, none twice
