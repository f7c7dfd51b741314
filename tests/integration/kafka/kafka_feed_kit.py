"""A feed from a MySQL server to Kafka in this process, step by step, and what readers then see."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from zlib import crc32

from rowferry.change.chunk import Rows, SchemaChange, Watermark
from rowferry.change.plan import Plan, Receipt, TableSlice
from rowferry.change.position import PHYSICAL_SHIFT
from rowferry.change.resnapshot import Resnapshot
from rowferry.change.table import TableId, TableSchema
from rowferry.control.feed import service
from rowferry.control.feed.lease import Holder
from rowferry.control.feed.loop import Loop, StepResult
from rowferry.control.store.sql_store import open_store
from rowferry.downstream.consume.arrival import ArrivedRow, Where, row_changes
from rowferry.errors import RowferryError, Verdict
from rowferry.spark.job import InProcessRunner
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.testing.servers import Kafka, MySql

NAME = "feed"
PATIENCE_S = 600.0  # an upper bound for a machine under load, never reached by working code


class Statement(NamedTuple):
    """A schema change, as one partition has it."""

    change: SchemaChange
    where: Where


class Mark(NamedTuple):
    """A watermark, as one partition has it."""

    commit_ts: int
    where: Where


class Runner(InProcessRunner):
    """Runs plans here; `before` and `after` may fail, or disturb, in a run's place."""

    def __init__(self) -> None:
        self.segments = 0
        self.rereads: list[tuple[TableId, int]] = []  # parts that were read again, and their place
        self.before: Callable[[Plan], None] = lambda plan: None
        self.after: Callable[[Plan], None] = lambda plan: None

    def run(
        self, spec: ChangefeedSpec, plan: Plan, tables: Mapping[TableSlice, TableSchema]
    ) -> list[Receipt]:
        self.before(plan)
        receipts = super().run(spec, plan, tables)
        self.segments = max(self.segments, len(plan.stretch.segments))
        again = [s for s in plan.stretch.segments if s.reread]
        self.rereads += [(s.slices[0].table, s.first_commit_ts) for s in again]
        self.after(plan)
        return receipts


class KafkaFeed:
    """One changefeed; `run` again is what another process would do."""

    def __init__(
        self,
        scene: Scene,
        folder: Path,
        query: str,
        config: str = "",
        topic: str = "",
        address: str = "",
        source: str = "",
    ) -> None:
        self._scene, self._folder = scene, folder
        self.topic = topic or scene.database
        self.sink_uri = f"{address or 'kafka://' + scene.broker.bootstrap}/{self.topic}?{query}"
        self.config = config
        self._source = source
        self.runner = Runner()
        self.faults: list[RowferryError] = []
        self._loop: Loop | None = None
        self.store = open_store(f"sqlite:///{folder}/meta.db")
        self.run()

    def prepare(self) -> service.PreparedFeed:
        """Check the feed as its creation does."""
        found = self._folder / "feed.toml"
        rules = f"['{self._scene.database}.*']"
        own = self.config if "[filter]" in self.config else f"{self.config}\n[filter]\n"
        found.write_text(own.replace("[filter]\n", f"[filter]\nrules = {rules}\n"))
        feed = self.store.feed(NAME)
        return service.prepare(
            self._scene.server.uri + self._source,
            self.sink_uri,
            found,
            NAME,
            stored=lambda name: feed.spec if feed else None,
        )

    def run(self) -> None:
        """Begin, or begin again as another process would."""
        self.stop()
        prepared = self.prepare()
        self.notices = prepared.notices
        if self.store.feed(NAME) is None:
            self.store.create_changefeed(prepared.spec, 0)
        else:
            self.store.update_spec(NAME, prepared.spec)
        self.flow = prepared.flow
        self.codec = prepared.flow.encode
        self._claim = self.store.claim(NAME, Holder.here(), time.time(), 3600)
        self._loop = Loop(
            *(NAME, prepared.flow, self.store, self._claim, self.runner, _now_ms),
            resnapshots=self.resnapshots,
        )

    def resnapshots(self) -> tuple[Resnapshot, ...]:
        """Return what was asked for, as the owner of a changefeed sees it."""
        feed = self.store.feed(NAME)
        return feed.resnapshots if feed else ()

    def stop(self) -> None:
        """Let connections go; nothing that was not published is remembered."""
        if self._loop is not None:
            self._loop.close()
            self._loop = None
            self.store.release(self._claim)

    def step(self) -> StepResult | None:
        """Do one step; None: it failed in a way that a supervisor repeats.

        Raises:
            RowferryError: what would stop the feed.
        """
        assert self._loop is not None, "the feed does not run"
        try:
            return self._loop.step()
        except RowferryError as err:
            self.faults.append(err)
            if err.verdict is Verdict.STOP:
                raise
            if err.verdict is Verdict.REPLAN:
                self._loop.replan(str(err))
            return None

    def catch_up(self) -> None:
        """Step until everything that is in the source now is delivered."""
        clock = self._scene.server.execute("SELECT FLOOR(UNIX_TIMESTAMP(NOW(3)) * 1000)")[0][0]
        wanted = int(str(clock)) << PHYSICAL_SHIFT
        end = time.monotonic() + PATIENCE_S
        while True:
            step = self.step()
            if step is not None and step.caught_up and step.watermark >= wanted:
                return
            assert time.monotonic() < end, f"it never caught up: {self.faults[-1:]}"
            time.sleep(0.01)

    # --- what a reader sees ----------------------------------------------------------------------

    def read(self, topic: str = "") -> list[ArrivedRow | Statement | Mark]:
        """Return what is in a topic, partition by partition in order."""
        name = topic or self.topic
        found: list[ArrivedRow | Statement | Mark] = []
        for message in self._scene.broker.read_all(name):
            where = Where(str(message.partition), message.offset)
            for change in self.codec.decode_message(message.key, message.value):
                match change:
                    case Rows():
                        found += row_changes(change, where)
                    case SchemaChange():
                        found.append(Statement(change, where))
                    case Watermark():
                        found.append(Mark(change.commit_ts, where))
        return found

    def rows(self, topic: str = "") -> list[ArrivedRow]:
        """Return the rows of a topic, partition by partition in order."""
        return [one for one in self.read(topic) if isinstance(one, ArrivedRow)]

    def images(self, topic: str = "") -> list[dict[str, Any]]:
        """Return the new images of the rows of a topic."""
        return [row.after for row in self.rows(topic) if row.after is not None]


class Scene:
    """A database of a test's own, with a name that its topics have too."""

    def __init__(self, server: MySql, broker: Kafka, folder: Path, test: str) -> None:
        self.server, self.broker, self._folder = server, broker, folder
        name = re.sub(r"\W+", "_", test).lower().strip("_")
        self.database = f"{name[:40]}_{crc32(name.encode()):x}"
        self._feeds: list[KafkaFeed] = []
        server.script(
            f"DROP DATABASE IF EXISTS {self.database}", f"CREATE DATABASE {self.database}"
        )

    def sql(self, *statements: str) -> None:
        """Run statements, each a transaction, in a session of their own."""
        self.server.script(f"USE {self.database}", *statements)

    def feed(self, query: str, config: str = "", **more: str) -> KafkaFeed:
        """Make a feed of the whole database and create it."""
        folder = self._folder / f"feed{len(self._feeds)}"
        folder.mkdir(exist_ok=True)
        found = KafkaFeed(self, folder, query, config, **more)
        self._feeds.append(found)
        return found

    def topics(self) -> dict[str, int]:
        """Return the topics that have the database's name in theirs, with partition counts."""
        found = self.broker.topics()
        return {name: count for name, count in found.items() if self.database in name}

    def close(self) -> None:
        """Stop the feeds."""
        for feed in self._feeds:
            feed.stop()


@contextmanager
def scene_of(server: MySql, broker: Kafka, folder: Path, test: str) -> Iterator[Scene]:
    """A scene that ends with its block, also where its test fails."""
    found = Scene(server, broker, folder, test)
    try:
        yield found
    finally:
        found.close()


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
