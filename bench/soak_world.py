"""All that takes part in a soak run: sources, sinks, meta database, servers and changefeeds."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from soak_copy import Receiver
from soak_load import Source

from rowferry.control.operator.operations import Operations, Wanted
from rowferry.control.store.sql_store import open_store
from rowferry.testing.harness import ServerProcess
from rowferry.testing.servers import Kafka, MariaDb, MySql, Postgres
from rowferry.testing.servers.child import free_port

SHARES = (("kafka", 0.2), ("mysql", 0.15), ("http", 0.15))  # the others go to files
STUCK = "24h"  # the failing one is to be tried again all the time
SLOW_S = 1.0
_MANY = ("--max-connections=800", "--table-open-cache=3000", "--innodb-buffer-pool-size=256M")


@dataclass(frozen=True)
class Planned:
    """A changefeed: `kind` is its sink's, `number` also names its database."""

    number: int
    kind: str
    source: str

    @property
    def id(self) -> str:
        """Its id."""
        return f"{self.kind}-{self.number:03}"

    @property
    def database(self) -> str:
        """The database whose tables it captures."""
        return f"soak{self.number:03}"


def plan_feeds(count: int) -> list[Planned]:
    """Return so many changefeeds: one slow, one failing, the others by their shares."""
    kinds = ["slow", "failing"]
    for kind, share in SHARES:
        kinds += [kind] * max(1, round(count * share))
    kinds += ["files"] * max(1, count - len(kinds))
    return [Planned(n, kind, ("mysql", "mariadb")[n % 2]) for n, kind in enumerate(kinds)]


class Member:
    """One `rowferry server` that is restarted now and then; its folders stay the same."""

    def __init__(self, name: str, folder: Path, meta: str) -> None:
        self.name, self.folder = name, folder / f"server-{name}"
        self.work, self.temporary = self.folder / "work", self.folder / "tmp"
        self.temporary.mkdir(parents=True)
        self.address = f"127.0.0.1:{free_port()}"
        self._arguments = [
            *("--addr", self.address, "--grpc-addr", f"127.0.0.1:{free_port()}"),
            *("--meta", meta, "--work-dir", str(self.work)),
            *("--spark-conf", f"spark.local.dir={self.temporary}"),
        ]
        self.process: ServerProcess | None = None

    def start(self) -> None:
        """Start it; it answers some seconds later."""
        with _environment("TMPDIR", str(self.temporary)):
            self.process = ServerProcess(self._arguments, self.folder)

    def kill(self) -> None:
        """End it at once."""
        if self.process is not None:
            self.process.kill()

    def drain(self) -> None:
        """End it in order; one that does not end is killed, and TimeoutExpired raised."""
        if self.process is not None and self.process.alive:
            self.process.terminate()
            self.process.wait(180)

    @property
    def output(self) -> Path:
        """What it printed, over all its lives."""
        return self.folder / "server.out"


@contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


class World:
    """Everything, from its start to its end; whatever happens, every process is ended."""

    def __init__(self, folder: Path, feeds: Sequence[Planned], tables: int, servers: int) -> None:
        self.folder, self.feeds = folder, feeds
        self._tables, self._servers = tables, servers
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            keep = stack.enter_context
            self.mysql = keep(MySql.start(self.folder / "mysql", 1, _MANY))
            self.mariadb = keep(MariaDb.start(self.folder / "mariadb", 2, _MANY))
            self.target = keep(MariaDb.start(self.folder / "target", 3, _MANY))
            self.broker = keep(Kafka.start(self.folder / "kafka"))
            self.meta = keep(Postgres.start(self.folder / "postgres"))
            self.receiver = keep(Receiver())
            self.meta.execute("CREATE DATABASE rowferry")
            self.meta_url = self.meta.url("rowferry")
            self.sources = {
                name: Source(server, self.databases(name), self._tables, dice)
                for name, server, dice in (("mysql", self.mysql, 7), ("mariadb", self.mariadb, 17))
            }
            for source in self.sources.values():
                stack.callback(source.stop)
            self.members = [
                Member(chr(ord("a") + n), self.folder, self.meta_url) for n in range(self._servers)
            ]
            for member in self.members:
                stack.callback(member.kill)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def databases(self, source: str) -> list[str]:
        """Return the databases of one of the sources."""
        return [feed.database for feed in self.feeds if feed.source == source]

    def make_tables(self) -> None:
        """Create the tables of both sources."""
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda source: source.make_tables(), self.sources.values()))

    def create_feeds(self) -> None:
        """Create all changefeeds."""
        with closing(open_store(self.meta_url)) as store:
            operations = Operations(store)
            for feed in self.feeds:
                if feed.kind == "slow":
                    self.receiver.slow_s[feed.id] = SLOW_S
                source = self.sources[feed.source].server.uri
                operations.create(Wanted(source, self._sink(feed), feed.id, self._config(feed)))

    def files_of(self, feed: Planned) -> Path:
        """Return where a changefeed to files writes."""
        return self.folder / "out" / feed.id

    def sink_uri(self, feed: Planned) -> str:
        """Return a sink's URI."""
        return self._sink(feed)

    def resume(self, feed: Planned) -> None:
        """Let a changefeed try again at once, instead of after its back-off."""
        with closing(open_store(self.meta_url)) as store:
            operations = Operations(store)
            operations.pause(feed.id)
            deadline = time.monotonic() + 60
            while True:
                try:
                    operations.resume(feed.id)
                    return
                except Exception:
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(1)

    def _sink(self, feed: Planned) -> str:
        match feed.kind:
            case "files":
                protocol = "csv" if feed.number % 4 < 2 else "canal-json"
                return f"file://{self.files_of(feed)}?protocol={protocol}&flush-interval=2s"
            case "kafka":
                asked = "protocol=canal-json&enable-tidb-extension=true&partition-num=1"
                return f"kafka://{self.broker.bootstrap}/{feed.id}?{asked}"
            case "mysql":
                login = self.target.login
                who = f"{login.user}:{login.password}@{login.host}:{login.port}"
                return f"mysql://{who}/?worker-count=2"
            case _:
                return f"http://127.0.0.1:{self.receiver.port}/{feed.id}?timeout=5s"

    def _config(self, feed: Planned) -> dict[str, Any]:
        config: dict[str, Any] = {
            "filter": {"rules": [f"{feed.database}.*"]},
            "changefeed-error-stuck-duration": STUCK,
        }
        if feed.kind == "mysql":
            config["sink"] = {"mysql-config": {"create-tables": True}}
        return config
