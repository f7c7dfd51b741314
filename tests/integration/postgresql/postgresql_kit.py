"""A feed from a server into a PostgreSQL database in this process, step by step."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

from patience import PATIENCE_S, patiently
from rowferry.change.position import PHYSICAL_SHIFT
from rowferry.control.feed.lease import Holder
from rowferry.control.feed.loop import Loop, StepResult
from rowferry.control.operator.checks import prepare as preparing
from rowferry.control.store.sql_store import open_store
from rowferry.errors import RowferryError, Verdict
from rowferry.spark.job import InProcessRunner
from rowferry.testing.servers import Postgres, Server


class PostgresqlFeed:
    """One changefeed; `run` again is what another process would do."""

    def __init__(self, scene: Scene, folder: Path, query: str, config: str) -> None:
        self._scene, self._folder = scene, folder
        self.name = f"feed-{scene.database.rpartition('_')[2]}"
        self.query, self.config = query, config
        self.rules = f"['{scene.database}.*']"
        self.faults: list[RowferryError] = []
        self._loop: Loop | None = None
        self.store = open_store(f"sqlite:///{folder}/meta.db")

    def run(self) -> None:
        """Begin, or begin again as another process would."""
        self.stop()
        file = self._folder / "feed.toml"
        file.write_text(f"{self.config}\n[filter]\nrules = {self.rules}\n")
        feed = self.store.feed(self.name)
        sink = f"{self._scene.postgres.url(self._scene.database)}?{self.query}"
        prepared = patiently(
            lambda: preparing.prepare(
                *(self._scene.source.uri, sink, file, self.name),
                stored=lambda name: feed and feed.spec,
            )
        )
        if feed is None:
            self.store.create_changefeed(prepared.spec, 0)
        else:
            self.store.update_spec(self.name, prepared.spec)
        self.flow, self.notices = prepared.flow, prepared.notices
        self._claim = self.store.claim(self.name, Holder.here(), time.time(), 3600)
        self._loop = Loop(
            *(self.name, prepared.flow, self.store, self._claim, InProcessRunner(), _now_ms)
        )

    def update(self, query: str) -> None:
        """Change the sink's settings, as an update does: an unfinished plan is dropped."""
        self.query = query
        self.run()
        self.give_up_plan("the sink was changed")

    def give_up_plan(self, why: str) -> None:
        """Discard what is pending; the next step plans anew."""
        loop = self._loop
        assert loop is not None
        patiently(lambda: loop.replan(why))

    @property
    def epoch(self) -> int:
        """The epoch of this run."""
        return self._claim.epoch

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
    """A database of a test's own at the source, and one of the same name in PostgreSQL."""

    def __init__(self, source: Server, postgres: Postgres, folder: Path, test: str) -> None:
        self.source, self.postgres, self._folder = source, postgres, folder
        word = re.sub(r"\W+", "_", test).lower().strip("_")[:30]
        self.database = f"{word}_{uuid4().hex[:8]}"
        self._feeds: list[PostgresqlFeed] = []
        source.script(f"CREATE DATABASE {self.database} CHARACTER SET utf8mb4")
        patiently(lambda: postgres.execute(f"CREATE DATABASE {self.database}"))

    def sql(self, *statements: str) -> None:
        """Run statements at the source, each a transaction, in a session of their own."""
        self.source.script(f"USE {self.database}", *statements)

    def pg(self, sql: str) -> list[tuple[Any, ...]]:
        """Run a statement in PostgreSQL; `$` stands for the schema."""
        return self.postgres.execute(sql.replace("$", self.database), self.database)

    def feed(self, query: str = "create-tables=true", config: str = "") -> PostgresqlFeed:
        """Make a feed of the whole database; it begins with its first step."""
        folder = self._folder / f"feed{len(self._feeds)}"
        folder.mkdir()
        self._feeds.append(PostgresqlFeed(self, folder, query, config))
        return self._feeds[-1]

    def close(self) -> None:
        """Stop the feeds, remove the databases."""
        for feed in self._feeds:
            feed.stop()
            feed.store.close()
        self.source.script(f"DROP DATABASE IF EXISTS {self.database}")
        # Sessions that do not end within five seconds keep the server from it.
        drop = f"DROP DATABASE IF EXISTS {self.database} WITH (FORCE)"
        patiently(lambda: self.postgres.execute(drop))


@contextmanager
def scene_of(source: Server, postgres: Postgres, folder: Path, test: str) -> Iterator[Scene]:
    """A scene that ends with its block, also where its test fails."""
    scene = Scene(source, postgres, folder, test)
    try:
        yield scene
    finally:
        scene.close()


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
