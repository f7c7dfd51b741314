"""A feed of one database that runs in this process, as a supervisor would run it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from rowferry.change.chunk import Rows, SchemaChange
from rowferry.change.plan import Plan, Receipt, TableSlice
from rowferry.change.position import PHYSICAL_SHIFT
from rowferry.change.resnapshot import Resnapshot
from rowferry.change.table import TableId, TableSchema
from rowferry.control.feed import service
from rowferry.control.feed.lease import Holder
from rowferry.control.feed.loop import STRETCH_BYTES, Loop, StepResult
from rowferry.control.store.sql_store import open_store
from rowferry.errors import RowferryError, Verdict
from rowferry.flow.encode.contract import Codec
from rowferry.spark.job import InProcessRunner
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.testing.feed import Consumer, WatchedFeed
from rowferry.testing.harness import checkpoint
from rowferry.testing.mysql_history import JOURNAL, read_rows
from rowferry.testing.nemesis_judge import FACTS
from rowferry.testing.nemesis_watch import Sight, deliver_sights, see
from rowferry.testing.rebuild import compare, rebuild
from rowferry.testing.servers import Server
from rowferry.testing.storage import StorageDecoder, storage_changes
from rowferry.testing.validators import (
    DeliveryOracle,
    PerKeyOrder,
    SnapshotWindow,
    StorageLayout,
    WatermarkHolds,
)

PATIENCE_S = 600.0  # an upper bound for a machine under load, never reached by working code
NAME = "feed"


class LateRunner(InProcessRunner):
    """Begins a while after the planning, as on a busy cluster."""

    def __init__(self, wait_s: float) -> None:
        self._wait_s = wait_s
        self.begun_inside = 0  # segments of the log that begin inside a transaction
        self.rereads: list[tuple[TableId, int]] = []  # parts that were read again, and their place

    def run(
        self, spec: ChangefeedSpec, plan: Plan, tables: Mapping[TableSlice, TableSchema]
    ) -> list[Receipt]:
        time.sleep(self._wait_s)
        self.begun_inside += sum(bool(s.read.get("txn_ts")) for s in plan.stretch.segments)
        again = [s for s in plan.stretch.segments if s.reread]
        self.rereads += [(s.slices[0].table, s.first_commit_ts) for s in again]
        return super().run(spec, plan, tables)


class Ferry:
    """The feed, and what a reader of its files saw after each step."""

    def __init__(
        self,
        server: Server,
        folder: Path,
        database: str,
        protocol: str = "canal-json",
        stretch_bytes: int = STRETCH_BYTES,
        wait_s: float = 0.0,
    ) -> None:
        self.server = server
        self.database = database
        self.root = folder / "out"
        self.facts = FACTS[protocol]
        config = folder / "feed.toml"
        config.write_text(
            f'[filter]\nrules = ["{database}.*"]\n[sink.csv]\ninclude-commit-ts = true\n'
            if protocol == "csv"
            else f'[filter]\nrules = ["{database}.*"]\n'
        )
        extension = "&enable-tidb-extension=true" if protocol == "canal-json" else ""
        sink = f"file://{self.root}?protocol={protocol}{extension}"
        uri = server.uri.replace("mysql://", f"{server.flavour.value}://")
        prepared = service.prepare(uri, sink, config, NAME)
        self._flow = prepared.flow
        self.codec = prepared.flow.encode
        self.schemas = {t.id: t for t in prepared.tables}
        self.store = open_store(f"sqlite:///{folder}/meta.db")
        self.store.create_changefeed(prepared.spec, 0)
        claim = self.store.claim(NAME, Holder.here(), time.time(), 3600)
        self.runner = LateRunner(wait_s)
        self.loop = Loop(
            NAME,
            prepared.flow,
            self.store,
            claim,
            self.runner,
            lambda: time.time_ns() // 1_000_000,
            stretch_bytes=stretch_bytes,
            resnapshots=self.resnapshots,
        )
        self.layout = StorageLayout(self.root)
        self.sights: list[Sight] = []
        self.faults: list[RowferryError] = []
        self.schema_changes = 0
        self.first_watermark = 0
        self.lows: dict[str, int] = {}  # of the first snapshots

    def resnapshots(self) -> tuple[Resnapshot, ...]:
        """Return what was asked for, as the owner of a changefeed sees it."""
        feed = self.store.feed(NAME)
        return feed.resnapshots if feed else ()

    def step(self) -> StepResult | None:
        """Do one step; None: it failed in a way that a supervisor repeats.

        Raises:
            RowferryError: what would stop the feed.
        """
        try:
            step = self.loop.step()
        except RowferryError as err:
            self.faults.append(err)
            if err.verdict is Verdict.STOP:
                raise
            if err.verdict is Verdict.REPLAN:
                self.loop.replan(str(err))
            time.sleep(0.02)
            return None
        self.schema_changes += step.schema_changes
        if not self.first_watermark and step.watermark:
            self.first_watermark = step.watermark
            ranges = self.store.state(NAME).ranges
            self.lows = {r.table: r.init_snapshot_ts for r in ranges if r.init_snapshot_ts}
        self._look()
        return step

    def run_for(self, seconds: float, enough: Callable[[], bool] = lambda: True) -> None:
        """Step for a while, and until there is enough."""
        began = time.monotonic()
        while time.monotonic() < began + seconds or not enough():
            self.step()
            assert time.monotonic() < began + PATIENCE_S, "there was never enough"

    def catch_up(self) -> None:
        """Step until everything that is in the source now is delivered."""
        clock = self.server.execute("SELECT FLOOR(UNIX_TIMESTAMP(NOW(3)) * 1000)")[0][0]
        wanted = int(str(clock)) << PHYSICAL_SHIFT
        end = time.monotonic() + PATIENCE_S
        while True:
            step = self.step()
            if step is not None and step.caught_up and step.watermark >= wanted:
                return
            assert time.monotonic() < end, f"it never caught up: {self.faults[-1:]}"

    def close(self) -> None:
        self.loop.close()

    def _look(self) -> None:
        found = checkpoint(self.root)
        if not self.sights or found != self.sights[-1].checkpoint_ts:
            self.sights.append(see(self.root, found))
        self.layout.observe()

    # --- afterwards -------------------------------------------------------------------------------

    def windows(self) -> list[SnapshotWindow]:
        """Return when each table's snapshot was taken."""
        return [
            SnapshotWindow(TableId(r.database, r.table), self.lows[r.table], self.first_watermark)
            for r in self.store.state(NAME).ranges
            if r.table in self.lows
        ]

    def reread_windows(self) -> list[SnapshotWindow]:
        """Return when parts of tables were read again: up to the next watermark."""
        marks = [s.checkpoint_ts for s in self.sights]
        return [
            SnapshotWindow(table, low, min(m for m in marks if m > low))
            for table, low in self.runner.rereads
        ]

    def commit_ts(self) -> dict[int, int]:
        """Return the commit-ts that each transaction got, by token, as the journal's rows tell.

        The journal's own snapshots do not tell: their rows have the snapshots'.
        """
        found: dict[int, int] = {}
        lows = {w.low for w in self.windows()} | {low for _, low in self.runner.rereads}
        for rows in storage_changes(self.root, self.codec):
            if isinstance(rows, Rows) and rows.table.id.table == JOURNAL:
                for token, stamp in zip(
                    rows.after.field("token").to_pylist(), rows.commit_ts.tolist(), strict=True
                ):
                    if stamp not in lows:
                        assert found.setdefault(token, stamp) == stamp, "it came with two commit-ts"
        return found

    def judge(self, oracle: DeliveryOracle | None, *validators: Consumer) -> list[str]:
        """Return how the files break a promise, read as they grew."""
        feed = WatchedFeed(self.facts, validators)
        deliver_sights(self.root, self.codec, self.sights, feed)
        feed.finish()
        failures = [f for v in validators for f in v.failures]
        if oracle is not None:
            decoder = StorageDecoder(self.root, self.codec)
            last = StorageLayout(self.root, oracle, decoder, allow_repeats=True)
            last.finish()
            failures += last.failures
        self.layout.finish()
        return failures + self.layout.failures

    def differences(self) -> str:
        """Return how the tables rebuilt from the files differ from the source's; empty: not."""
        schemas = {t.id: t for t in self._flow.capture.probe(self._flow.decide)}
        keys = {name: t.handle_key for name, t in schemas.items()}
        found = rebuild(self.root, self.codec, keys)
        expected = {name: read_rows(self.server, t) for name, t in schemas.items()}
        result = compare(found, {n: r for n, r in expected.items() if n in found or r})
        return "" if result.same else str(result)


def wrong_versions(root: Path, codec: Codec) -> list[str]:
    """Return the rows that were written with a table version that was not in force."""
    ends: dict[TableId, list[int]] = {}
    found = list(storage_changes(root, codec))
    for change in found:
        if isinstance(change, SchemaChange):
            ends.setdefault(change.table, []).append(change.commit_ts)
            if change.previous is not None:
                ends.setdefault(change.previous, []).append(change.commit_ts)
    wrong = []
    for rows in found:
        if isinstance(rows, Rows) and len(rows):
            version, stamps = rows.table.version, rows.commit_ts
            end = min((e for e in ends.get(rows.table.id, []) if e > version), default=1 << 63)
            if stamps.min() < version or stamps.max() >= end:
                wrong.append(f"{rows.table.id}: {stamps.min()}-{stamps.max()} in {version}-{end}")
    return wrong


class Stepping(Protocol):
    """A feed of files that is run step by step."""

    root: Path
    step: Callable[[], StepResult | None]

    @property
    def codec(self) -> Codec:
        """What reads its files."""


class Watched:
    """Looks at a feed's files after each of its steps, from now on."""

    def __init__(self, feed: Stepping, protocol: str = "canal-json") -> None:
        self._feed = feed
        self._facts = FACTS[protocol]
        self._layout = StorageLayout(feed.root)
        self._sights: list[Sight] = []
        step = feed.step

        def watched() -> StepResult | None:
            done = step()
            self._look()
            return done

        feed.step = watched
        self._look()

    def failures(self) -> list[str]:
        """Return how the files break a promise, read as they grew."""
        order, marks = PerKeyOrder(self._facts), WatermarkHolds(self._facts)
        feed = WatchedFeed(self._facts, (order, marks))
        deliver_sights(self._feed.root, self._feed.codec, self._sights, feed)
        feed.finish()
        self._layout.observe()
        return order.failures + marks.failures + self._layout.failures

    def _look(self) -> None:
        found = checkpoint(self._feed.root)
        if not self._sights or found != self._sights[-1].checkpoint_ts:
            self._sights.append(see(self._feed.root, found))
        self._layout.observe()


@contextmanager
def every(seconds: float, act: Callable[[], None]) -> Iterator[None]:
    """Do something again and again, in a thread, while the block runs."""
    stop = threading.Event()
    failed: list[BaseException] = []

    def run() -> None:
        try:
            while not stop.wait(seconds):
                act()
        except BaseException as err:
            failed.append(err)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
    if failed:
        raise failed[0]
