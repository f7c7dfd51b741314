"""Whole feeds through Spark: from the log over the network to the sink, and how far they lag."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
from mysql_load import Log, steady
from mysql_profile import Stopwatch, in_this_process, of_spark, tasks_in
from report import Figure

from rowferry.control.feed.lease import Holder
from rowferry.control.feed.loop import Loop, SegmentRunner, StepResult
from rowferry.control.feed.service import PreparedFeed, prepare
from rowferry.control.feed.supervise import Supervisor, Until
from rowferry.control.store.sql_store import open_store
from rowferry.spark.job import InProcessRunner, SparkRunner
from rowferry.spark.shared import DriverRunner, EitherRunner, Seats
from rowferry.testing.servers import Server

STEADY_TABLE = "steady.t"
A_TRANSACTION = 20  # rows
CATCH_UP_S = 30.0
FEED = "bench"


@dataclass(frozen=True)
class Target:
    """Where a measured feed writes to."""

    name: str
    parameters: str
    place: str = ""  # the sink's URI without parameters; empty: files in a folder of the feed
    config: str = ""

    def uri(self, folder: Path) -> str:
        """Return the sink's URI."""
        place = self.place or f"file://{folder / 'out'}"
        return f"{place}?{self.parameters}"


TARGETS = (
    Target("canal-json files", "protocol=canal-json"),
    Target("canal-json files, fsync=false", "protocol=canal-json&fsync=false"),
    Target("csv files", "protocol=csv"),
    Target("canal-json to the blackhole", "protocol=canal-json", "blackhole://"),
)
WRITE_BYTES = 8 << 20  # at once, where nothing but writing is measured
LAG_TARGETS = (
    Target("blackhole", "protocol=canal-json", "blackhole://"),
    Target("canal-json files, flush-interval=50ms", "protocol=canal-json&flush-interval=50ms"),
    Target("canal-json files, flush-interval=200ms", "protocol=canal-json&flush-interval=200ms"),
)


@dataclass
class Ended:
    """How a feed came to the end of the log."""

    seconds: float
    steps: list[StepResult]

    @property
    def rows(self) -> int:
        """Row changes that were delivered."""
        return sum(s.rows for s in self.steps)

    @property
    def bytes(self) -> int:
        """Bytes that were written."""
        return sum(s.bytes for s in self.steps)


class Feeds:
    """Runs feeds of one server, all with one runner."""

    def __init__(self, server: Server, folder: Path, runner: SparkRunner) -> None:
        self._server, self._folder, self.runner = server, folder, runner

    def figure(
        self, log: Log, target: Target, tries: int, before: Callable[[], None] = lambda: None
    ) -> Figure:
        """Deliver the log several times: the first warms up, the best of the others counts.

        `before` is called before each. The time is that from the first step to the one that finds
        the log's end: connecting, planning, the jobs, publishing and the meta database are in it.
        """
        found = []
        for _ in range(tries + 1):
            before()
            sent = self._bytes_sent()
            found.append(self.ended(log, target, self.runner))
            sent = self._bytes_sent() - sent
        best = min(found[1:], key=lambda e: e.seconds)
        more = {
            "s": round(best.seconds, 2),
            "first s": round(found[0].seconds, 2),
            "MB written": round(best.bytes / 1e6),
            "micro-batches": sum(s.rows > 0 for s in best.steps),
            "source sent, times the log": round(sent / log.size, 2),
        }
        size = log.size / best.seconds / 1e6
        return Figure(f"feed to {target.name}", best.rows / best.seconds, size, other=more)

    def floor(self, log: Log, feed: Figure, tries: int) -> Figure:
        """Write as many bytes as a feed did, with two threads and fsync, and nothing else."""
        size = int(feed.other["MB written"] * 1e6)
        piece = np.random.default_rng(1).bytes(WRITE_BYTES)
        folder = self._folder / "floor"
        folder.mkdir(parents=True, exist_ok=True)

        def write(number: int) -> None:
            handle = os.open(folder / str(number), os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            try:
                for left in range(size // 2, 0, -len(piece)):
                    os.write(handle, piece[:left])
                os.fsync(handle)
            finally:
                os.close(handle)

        times = []
        for _ in range(tries + 1):
            began = time.perf_counter()
            with ThreadPoolExecutor(2) as threads:
                list(threads.map(write, range(2)))
            times.append(time.perf_counter() - began)
        shutil.rmtree(folder)
        best = min(times)
        name = feed.name.replace("feed to", "write the bytes of")
        more = {"s": round(best, 2), "MB written": feed.other["MB written"]}
        return Figure(name, log.changes / best, log.size / best / 1e6, other=more)

    def _bytes_sent(self) -> int:
        """Return what the server has sent to all its clients."""
        return int(str(self._server.execute("SHOW GLOBAL STATUS LIKE 'Bytes_sent'")[0][1]))

    def profiles(self, log: Log, target: Target) -> Iterator[tuple[str, float, Stopwatch]]:
        """Say where the time goes: title, seconds in all, and seconds by stage."""
        watch = Stopwatch()
        with in_this_process(watch, driver=True):
            ended = self.ended(log, target, InProcessRunner())
        yield f"{log.name} to {target.name}, in one process on one core", ended.seconds, watch
        notes = self._folder / "profile"
        for _ in range(2):  # workers load what measures during the first
            watch = Stopwatch()
            shutil.rmtree(notes, ignore_errors=True)
            with of_spark(notes, watch):
                ended = self.ended(log, target, self.runner)
        watch.spent |= tasks_in(notes)
        yield f"{log.name} to {target.name}, through Spark on two cores", ended.seconds, watch

    def lag(self, target: Target, rows_a_second: int, seconds: float) -> dict[str, Any]:
        """Run a feed under a steady load: how old is a change when it is published?"""
        pool = ProcessPoolExecutor(1, mp_context=get_context("spawn"))
        runner = EitherRunner(DriverRunner(), lambda: self.runner, Seats(alone=True))
        with pool, self._feed(None, target, runner) as (loop, ready):
            published: list[tuple[float, int]] = []

            def note(step: StepResult) -> None:
                if step.rows:
                    published.append((time.time(), step.rows))

            with _running(loop, ready, note) as failed:
                self._wait(lambda: self._push(published), failed)  # one row, so that all is warm
                warm = sum(rows for _, rows in published)
                writing = pool.submit(
                    steady,
                    self._server.login,
                    STEADY_TABLE,
                    rows_a_second,
                    A_TRANSACTION,
                    seconds,
                )
                sent = np.array(writing.result())
                wanted = warm + len(sent) * A_TRANSACTION
                self._wait(lambda: sum(rows for _, rows in published) >= wanted, failed)
        at, counts = np.array([t for t, _ in published]), np.cumsum([n for _, n in published])
        place = np.searchsorted(counts, warm + A_TRANSACTION * np.arange(1, len(sent) + 1))
        lags = at[place] - sent
        reached = len(sent) * A_TRANSACTION / max(sent[-1] - sent[0], 1e-9)
        return {
            "target": target.name,
            "rows/s": round(reached),
            "p50 ms": round(1000 * float(np.percentile(lags, 50))),
            "p99 ms": round(1000 * float(np.percentile(lags, 99))),
            "max ms": round(1000 * float(lags.max())),
            "micro-batches": len(published),
        }

    def prepare_lag(self) -> None:
        """Make the table of the steady load."""
        self._server.script(
            "CREATE DATABASE steady",
            f"CREATE TABLE {STEADY_TABLE} (id BIGINT UNSIGNED AUTO_INCREMENT PRIMARY KEY, "
            "k INT UNSIGNED NOT NULL, c CHAR(120) NOT NULL, pad CHAR(60) NOT NULL)",
        )

    def _push(self, published: list[tuple[float, int]]) -> bool:
        """Write a row until a few have come through, one after the other."""
        self._server.execute(f"INSERT INTO {STEADY_TABLE} (k, c, pad) VALUES (1, '', '')")
        time.sleep(0.5)
        return len(published) >= 3

    def _wait(self, is_over: Any, failed: list[BaseException]) -> None:
        until = time.monotonic() + CATCH_UP_S
        while not is_over():
            if failed:
                raise failed[0]
            if time.monotonic() > until:
                raise SystemExit(f"the feed did not keep up within {CATCH_UP_S:.0f} s")
            time.sleep(0.02)

    def ended(self, log: Log, target: Target, runner: SegmentRunner) -> Ended:
        """Deliver the log once; all of its changes must come."""
        with self._feed(log, target, runner) as (loop, _):
            steps: list[StepResult] = []
            began = time.perf_counter()
            while not steps or not steps[-1].caught_up:
                steps.append(loop.step())
            ended = Ended(time.perf_counter() - began, steps)
        if ended.rows != log.changes:
            raise SystemExit(f"{log.name}: {ended.rows} of {log.changes} rows were delivered")
        return ended

    @contextmanager
    def _feed(
        self, log: Log | None, target: Target, runner: SegmentRunner
    ) -> Iterator[tuple[Loop, PreparedFeed]]:
        """Make a feed from a workload's place on; None: of the steady table, from now on."""
        folder = self._folder / "feed"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        config = folder / "feed.toml"
        database = log.database if log else STEADY_TABLE.partition(".")[0]
        config.write_text(f'[filter]\nrules = ["{database}.*"]\n{target.config}')
        place = f"&start-position={log.file}:{log.start}" if log else ""
        ready = prepare(
            f"{self._server.uri}?snapshot=never{place}", target.uri(folder), config, FEED
        )
        store = open_store(f"sqlite:///{folder / 'meta.db'}")
        try:
            store.create_changefeed(ready.spec)
            claim = store.claim(FEED, Holder.here(), time.time(), 36_000)
            loop = Loop(FEED, ready.flow, store, claim, runner, lambda: time.time_ns() // 1_000_000)
            try:
                yield loop, ready
            finally:
                loop.close()
        finally:
            store.close()
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _running(loop: Loop, ready: PreparedFeed, note: Any) -> Iterator[list[BaseException]]:
    """Let a supervisor run the loop in a thread; gives the list that its error comes into."""
    stop = threading.Event()
    failed: list[BaseException] = []
    supervisor = Supervisor(
        loop,
        move=lambda verb, error: True,
        tell_step=note,
        tell_fault=lambda error, wait_s: failed.append(error),
        flush_interval_s=ready.flow.sink.flush_interval_s,
        give_up_after_s=0.0,
    )

    def run() -> None:
        try:
            supervisor.run(Until(), stop, threading.Event())
        except BaseException as err:
            failed.append(err)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield failed
    finally:
        stop.set()
        thread.join()
