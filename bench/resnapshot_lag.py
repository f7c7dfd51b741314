"""What other tables notice while one is read again: their lag with and without it.

    python bench/resnapshot_lag.py [--seconds 25] [--rows 1000000] [--tries 2] [--docs]

A writer commits to a small table all the time while a changefeed delivers it; a row's lag is the
time from its commit until its micro-batch was published. The same is measured in turns without a
resnapshot and beside one of a large table, which begins anew whenever it has ended. Prints the 50th
and 99th percentile of both, for sinks that gather rows for a while (`flush-interval`) and for one
that does not. The source is MySQL, whose log tells moments of commits to the microsecond; the
changefeed is stepped by the product's own supervisor, without Spark.
"""

from __future__ import annotations

import argparse
import threading
import time
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from report import Figure, keep, machine, put_into_page

from rowferry.change.position import physical_ms
from rowferry.change.resnapshot import Resnapshot
from rowferry.change.table import TableId
from rowferry.control.feed.lease import Holder
from rowferry.control.feed.loop import Loop, StepResult
from rowferry.control.feed.supervise import Supervisor, Until
from rowferry.control.operator.checks.prepare import prepare
from rowferry.control.store.sql_store import open_store
from rowferry.spark.job import InProcessRunner
from rowferry.testing.servers import MySql, Server

DATABASE = "again"
LARGE = TableId(DATABASE, "large")
PAUSE_S = 0.01
MOST_RATIO = 1.2  # of the p99 beside a resnapshot to the one without: the aim
SINKS = {
    "files": "file://{folder}/{name}?protocol=canal-json",
    "files, flush-interval=1s": "file://{folder}/{name}?protocol=canal-json&flush-interval=1s",
    "blackhole": "blackhole://",
}


@dataclass
class Lags:
    """Of one sink: milliseconds without and beside a resnapshot, and how much was read again."""

    alone: list[float] = field(default_factory=list)
    beside: list[float] = field(default_factory=list)
    rows_per_s: float = 0.0

    def ratio(self, part: float) -> float:
        """Return how much longer a part of all took beside a resnapshot."""
        return share(self.beside, part) / share(self.alone, part)


def main() -> None:
    """Measure, and print a line for each case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=25.0)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--tries", type=int, default=2)
    parser.add_argument("--docs", action="store_true", help="write the table of the docs")
    given = parser.parse_args()
    about = machine()
    found = {}
    with TemporaryDirectory() as folder, MySql.start(Path(folder) / "server", 7) as server:
        make_tables(server, given.rows)
        for number, (name, form) in enumerate(SINKS.items()):
            sink = form.format(folder=folder, name=f"out{number}")
            bench = Bench(server, Path(folder), f"bench-{number}", sink)
            found[name] = bench.lags(given.seconds, given.tries)
            bench.close()
    figures = [
        Figure(f"{name}, {case}", other={"p50_ms": share(seen, 0.5), "p99_ms": share(seen, 0.99)})
        for name, lags in found.items()
        for case, seen in (("alone", lags.alone), ("beside", lags.beside))
    ]
    keep("resnapshot_lag", figures)
    print(text(found, about))
    if given.docs:
        put_into_page("resnapshot lag", text(found, about))


def text(found: dict[str, Lags], about: dict[str, Any]) -> str:
    """Return the table of the docs."""
    lines = [
        "| sink | lag p50, ms: alone | beside | p99, ms: alone | beside | ratio of p99 | aim | "
        "rows/s read again |",
        "|---|---:|---:|---:|---:|---:|---|---:|",
    ]
    for name, lags in found.items():
        ratio = lags.ratio(0.99)
        times = [share(seen, part) for part in (0.5, 0.99) for seen in (lags.alone, lags.beside)]
        aim = f"{'reached' if ratio <= MOST_RATIO else '**missed**'} (≤ {MOST_RATIO:.2f})"
        shown = " | ".join(f"{one:,.0f}" for one in times)
        lines.append(f"| {name} | {shown} | {ratio:.2f} | {aim} | {lags.rows_per_s:,.0f} |")
    return "\n".join(lines) + (
        f"\n\nOn {about['cores']} cores of {about['cpu']}, load average "
        f"{about['load_average'][0]}, {about['at'][:10]}.\n"
    )


def make_tables(server: Server, rows: int) -> None:
    """Make a large table, and one that is written to."""
    server.script(
        f"CREATE DATABASE {DATABASE}",
        f"USE {DATABASE}",
        f"CREATE TABLE {LARGE} (id int PRIMARY KEY, v varchar(100))",
        "SET SESSION cte_max_recursion_depth = 1000000000",
        f"INSERT INTO {LARGE} WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 "
        f"FROM n WHERE i < {rows}) SELECT i, REPEAT('x', 80) FROM n",
        f"CREATE TABLE {DATABASE}.small (id bigint AUTO_INCREMENT PRIMARY KEY, v int)",
    )


class Bench:
    """One changefeed in this process, and a writer."""

    def __init__(self, server: Server, folder: Path, feed: str, sink: str) -> None:
        config = folder / "feed.toml"
        config.write_text(f"[filter]\nrules = ['{DATABASE}.*']\n")
        prepared = prepare(server.uri, sink, config, feed)
        self._server, self._feed = server, feed
        self._store = open_store(f"sqlite:///{folder}/meta.db")
        self._store.create_changefeed(prepared.spec, 0)
        claim = self._store.claim(feed, Holder.here(), time.time(), 36_000)
        self._wanted: tuple[Resnapshot, ...] = ()
        self._loop = Loop(
            *(feed, prepared.flow, self._store, claim, InProcessRunner()),
            lambda: time.time_ns() // 1_000_000,
            resnapshots=lambda: self._wanted,
        )
        self._flush_s = prepared.flow.sink.flush_interval_s
        self._numbers = count(1)
        self._resnapshot = False
        self._mark = self._read_again = 0
        self._seen: list[float] = []

    def lags(self, seconds: float, tries: int) -> Lags:
        """Measure both cases in turns."""
        self._run(Until(caught_up=True), threading.Event())
        self._measure(min(seconds, 5.0), resnapshot=True)  # what is done once, is done
        lags, self._read_again = Lags(), 0
        for _ in range(tries):
            lags.alone += self._measure(seconds, resnapshot=False)
            lags.beside += self._measure(seconds, resnapshot=True)
        lags.rows_per_s = self._read_again / (tries * seconds)
        return lags

    def close(self) -> None:
        """Let connections go."""
        self._loop.close()
        self._store.close()

    def _measure(self, seconds: float, resnapshot: bool) -> list[float]:
        """Return the lags of the small table's rows, in milliseconds."""
        self._resnapshot, stop = resnapshot, threading.Event()
        self._look()
        writer = threading.Thread(target=self._write, args=(stop,))
        timer = threading.Timer(seconds, stop.set)
        writer.start()
        timer.start()
        self._mark, self._seen = self._loop.watermark, []
        self._run(Until(), stop)
        writer.join()
        return self._seen

    def _run(self, until: Until, stop: threading.Event) -> None:
        """Step as the product does."""

        def fault(err: Exception, wait_s: float) -> None:
            raise err

        Supervisor(
            self._loop, lambda verb, error: True, self._stepped, fault, self._flush_s, 0.0
        ).run(until, stop, threading.Event())

    def _stepped(self, step: StepResult) -> None:
        """Note the lags of what a step moved the watermark over."""
        now = time.time() * 1000
        if step.snapshots and self._wanted:
            self._read_again += step.rows
        if step.watermark > self._mark:
            first, last = physical_ms(self._mark), physical_ms(step.watermark)
            if self._mark:  # what was committed at any moment between two watermarks
                self._seen += [now - at for at in range(first, last, 5)]
            self._mark = step.watermark
        self._look()

    def _look(self) -> None:
        """Look what is to be read again, and ask for the next one when all have ended."""
        known = self._store.feed(self._feed)
        self._wanted = tuple(one for one in known.resnapshots if one.is_open) if known else ()
        if self._resnapshot and not self._wanted:
            self._store.ask_resnapshot(self._feed, Resnapshot(f"{next(self._numbers)}", LARGE))

    def _write(self, stop: threading.Event) -> None:
        connection = self._server.connect(DATABASE)
        with connection.cursor() as cursor:
            while not stop.wait(PAUSE_S):
                cursor.execute("INSERT INTO small (v) VALUES (1)")
        connection.close()


def share(values: list[float], part: float) -> float:
    """Return the value below which a part of all lies."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * part))] if ordered else 0.0


if __name__ == "__main__":
    main()
