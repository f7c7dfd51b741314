"""A feed from one server into another (or another database) in this process, step by step."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from zlib import crc32

from patience import PATIENCE_S
from rowferry.change.chunk import SchemaChange
from rowferry.change.plan import Plan, Receipt, TableSlice
from rowferry.change.position import PHYSICAL_SHIFT
from rowferry.change.resnapshot import Resnapshot
from rowferry.change.table import TableSchema
from rowferry.control.feed.lease import Holder
from rowferry.control.feed.loop import Loop, StepResult
from rowferry.control.operator.checks import prepare as preparing
from rowferry.control.store.sql_store import open_store
from rowferry.errors import RowferryError, SinkUnavailable, Verdict
from rowferry.flow.sink.mysql import schema_changes
from rowferry.spark.job import InProcessRunner
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.testing.servers import Relay, Server

NAME = "feed"


class Runner(InProcessRunner):
    """Runs plans here; `before` and `after` may fail, or disturb, in a run's place."""

    def __init__(self) -> None:
        self.segments = 0
        self.before: Callable[[Plan], None] = lambda plan: None
        self.after: Callable[[Plan], None] = lambda plan: None

    def run(
        self, spec: ChangefeedSpec, plan: Plan, tables: Mapping[TableSlice, TableSchema]
    ) -> list[Receipt]:
        self.before(plan)
        receipts = super().run(spec, plan, tables)
        self.segments = max(self.segments, len(plan.stretch.segments))
        self.after(plan)
        return receipts


class MySqlFeed:
    """One changefeed; `run` again is what another process would do."""

    def __init__(self, scene: Scene, folder: Path, query: str, config: str, source: str) -> None:
        self._scene, self._folder = scene, folder
        self.name = f"{NAME}-{scene.number}"
        self.query, self.config, self.source = query, config, source
        self.rules = f"['{scene.database}.*']"
        self.login = ""  # another user and password than the administrator's
        self.runner = Runner()
        self.faults: list[RowferryError] = []
        self._loop: Loop | None = None
        self.store = open_store(f"sqlite:///{folder}/meta.db")

    @property
    def sink_uri(self) -> str:
        uri = self._scene.target.uri
        if self._scene.relay is not None:
            uri = uri.replace(f":{self._scene.target.port}/", f":{self._scene.relay.port}/")
        if self.login:
            uri = re.sub(r"//.*@", f"//{self.login}@", uri)
        return f"{uri}?meta-database={self._scene.meta}&{self.query}"

    def prepare(self) -> preparing.PreparedFeed:
        """Check the feed as its creation does."""
        found = self._folder / "feed.toml"
        route = f"matcher = ['*.*']\ntarget-schema = '{self._scene.copy}'\n"
        own = self.config if "[filter]" in self.config else f"{self.config}\n[filter]\n"
        own = own.replace("[filter]\n", f"[filter]\nrules = {self.rules}\n")
        found.write_text(f"{own}\n[[sink.dispatchers]]\n{route}")
        feed = self.store.feed(self.name)
        return preparing.prepare(
            self._scene.source.uri + self.source,
            self.sink_uri,
            found,
            self.name,
            stored=lambda name: feed.spec if feed else None,
        )

    def run(self) -> None:
        """Begin, or begin again as another process would."""
        self.stop()
        prepared = self.prepare()
        self.notices = prepared.notices
        if self.store.feed(self.name) is None:
            self.store.create_changefeed(prepared.spec, 0)
        else:
            self.store.update_spec(self.name, prepared.spec)
        self.flow = prepared.flow
        self._claim = self.store.claim(self.name, Holder.here(), time.time(), 3600)
        self._loop = Loop(
            *(self.name, prepared.flow, self.store, self._claim, self.runner, _now_ms),
            resnapshots=self.resnapshots,
        )

    def resnapshots(self) -> tuple[Resnapshot, ...]:
        """Return what was asked for, as the owner of a changefeed sees it."""
        feed = self.store.feed(self.name)
        return feed.resnapshots if feed else ()

    @property
    def loop(self) -> Loop:
        """The loop of this run."""
        assert self._loop is not None, "the feed does not run"
        return self._loop

    @property
    def epoch(self) -> int:
        """The epoch of this run."""
        return self._claim.epoch

    def lose_answers_of_schema_changes(self) -> Callable[[], int]:
        """Lose the first answer to every schema change; the call tells how many were lost."""
        lost: set[str] = set()
        whole = schema_changes.SchemaChanges._execute

        def run(this: Any, change: SchemaChange, statement: str) -> None:
            whole(this, change, statement)
            if statement not in lost:
                lost.add(statement)
                raise SinkUnavailable("the answer was lost")

        sink: Any = self.flow.sink
        sink._changes._execute = run.__get__(sink._changes)
        return lambda: len(lost)

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
        if self._loop is None:
            self.run()
        assert self._loop is not None
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
        clock = self._scene.source.execute("SELECT FLOOR(UNIX_TIMESTAMP(NOW(3)) * 1000)")[0][0]
        wanted = int(str(clock)) << PHYSICAL_SHIFT
        end = time.monotonic() + PATIENCE_S
        while True:
            step = self.step()
            if step is not None and step.caught_up and step.watermark >= wanted:
                return
            assert time.monotonic() < end, f"it never caught up: {self.faults[-1:]}"
            time.sleep(0.01)


class Scene:
    """A database of a test's own, the database that its copy goes to, and one for our tables.

    Attributes:
        relay: through which the downstream is reached; None: straight.
    """

    def __init__(self, source: Server, target: Server, folder: Path, test: str) -> None:
        self.source, self.target, self._folder = source, target, folder
        self.relay: Relay | None = None
        name = re.sub(r"\W+", "_", test).lower().strip("_")
        self.number = f"{crc32(name.encode()):x}"
        self.database = f"{name[:30]}_{self.number}"
        self.copy, self.meta = f"{self.database}_copy", f"{self.database}_meta"
        self._feeds: list[MySqlFeed] = []
        source.script(
            f"DROP DATABASE IF EXISTS {self.database}",
            f"CREATE DATABASE {self.database} CHARACTER SET utf8mb4",
        )
        target.script(
            f"DROP DATABASE IF EXISTS {self.copy}",
            f"DROP DATABASE IF EXISTS {self.meta}",
            f"CREATE DATABASE {self.copy} CHARACTER SET utf8mb4",
        )

    def sql(self, *statements: str) -> None:
        """Run statements at the source, each a transaction, in a session of their own."""
        self.source.script(f"USE {self.database}", *statements)

    def at_target(self, *statements: str) -> None:
        """Run statements in the copy."""
        self.target.script(f"USE {self.copy}", *statements)

    def both(self, *statements: str) -> None:
        """Make the same tables on both sides."""
        self.sql(*statements)
        self.at_target(*statements)

    def feed(self, query: str = "", config: str = "", source: str = "") -> MySqlFeed:
        """Make a feed of the whole database; it begins with its first step."""
        folder = self._folder / f"feed{len(self._feeds)}"
        folder.mkdir(exist_ok=True)
        found = MySqlFeed(self, folder, query, config, source)
        self._feeds.append(found)
        return found

    def rows(self, table: str) -> tuple[list[object], list[object]]:
        """Return the rows of a table on both sides, each in some fixed order."""
        shape = self.source.execute(f"SHOW COLUMNS FROM {self.database}.{table}")
        hexed = {str(c[0]) for c in shape if str(c[1]).startswith("vector")}
        columns = ", ".join(f"HEX({c[0]})" if str(c[0]) in hexed else f"`{c[0]}`" for c in shape)
        here = self.source.execute(f"SELECT {columns} FROM {self.database}.{table}")
        there = self.target.execute(f"SELECT {columns} FROM {self.copy}.{table}")
        return sorted(here, key=repr), sorted(there, key=repr)

    def assert_same(self, *tables: str) -> int:
        """Compare tables; return how many rows there are."""
        count = 0
        for table in tables:
            here, there = self.rows(table)
            assert there == here, table
            count += len(here)
        return count

    def close(self) -> None:
        """Stop the feeds."""
        for feed in self._feeds:
            feed.stop()
            feed.store.close()


@contextmanager
def scene_of(source: Server, target: Server, folder: Path, test: str) -> Iterator[Scene]:
    """A scene that ends with its block, also where its test fails."""
    found = Scene(source, target, folder, test)
    try:
        yield found
    finally:
        found.close()


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
