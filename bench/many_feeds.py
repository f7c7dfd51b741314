"""Many changefeeds on one server: how far each lags, and what the server takes.

    .venv/bin/python bench/many_feeds.py [--feeds 50,100,200] [--seconds 30] [--transactions 1000]

One MySQL server with a table for each changefeed, one `rowferry server`, one meta database in a
file. Transactions of some rows are spread over all tables at a steady rate. Twice a second the lag
of every changefeed is read from the meta database: the clock minus its checkpoint. Half of the
changefeeds write files, half nothing. Server, source and this script share the machine.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
from report import Figure, keep, machine, put_into_page
from soak_plot import Line, chart

from rowferry.change.position import physical_ms
from rowferry.control.operator.operations import Operations, Wanted
from rowferry.control.store.contract import MetaStore
from rowferry.control.store.sql_store import open_store
from rowferry.testing.harness import ServerProcess, wait_for
from rowferry.testing.servers import MySql
from rowferry.testing.servers.child import free_port

ROWS = 10  # of a transaction
WRITERS = 2
LAG_S, MEMORY_MB = 2.0, 2_000  # aims
PLOT = Path(__file__).parents[1] / "docs" / "images" / "many-feeds.svg"
_TICK = os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Measure what was asked for."""
    ask = argparse.ArgumentParser()
    ask.add_argument("--feeds", default="50", help="how many; several numbers, one after the other")
    ask.add_argument("--seconds", type=float, default=30.0)
    ask.add_argument("--transactions", type=float, default=100.0, help="in a second, over all")
    ask.add_argument("--idle", action="store_true", help="measure without load, too")
    ask.add_argument("--log", type=Path, help="keep the server's messages in this file")
    ask.add_argument("--docs", action="store_true", help="put table and plot into the docs")
    asked = ask.parse_args()
    before = machine()
    figures = [f for count in map(int, asked.feeds.split(",")) for f in _figures(asked, count)]
    keep("many-feeds", figures)
    if asked.docs:
        put_into_page("many feeds", page_table(figures, before))
        _draw([f for f in figures if f.rows_per_s])


def _figures(asked: argparse.Namespace, feeds: int) -> Iterator[Figure]:
    folder = Path(tempfile.mkdtemp(prefix="rowferry-many-"))
    try:
        # Each changefeed has connections of its own until it shares the reader of the log.
        with MySql.start(folder / "mysql", options=("--max-connections=800",)) as source:
            _make_tables(source, feeds)
            meta = f"sqlite:///{folder / 'meta.db'}"
            addresses = [f"127.0.0.1:{free_port()}" for _ in range(2)]
            command = ["--meta", meta, "--addr", addresses[0], "--grpc-addr", addresses[1]]
            with closing(open_store(meta)) as store, ServerProcess(command, folder) as server:
                _create(store, source, feeds, folder)
                wait_for(lambda: _all_run(store, feeds), "all changefeeds", 300)
                time.sleep(5)
                rates = ([0.0] if asked.idle else []) + [asked.transactions]
                for rate in rates:
                    yield _measure(store, source, server, feeds, rate, asked.seconds)
                if asked.log:
                    shutil.copy(server.output, asked.log)
                server.terminate()
                print("drained, exit code", server.wait(120))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def page_table(figures: list[Figure], about: dict[str, Any]) -> str:
    """Return the figures for the page, in Markdown."""
    lines = [
        f"{about['cpu']}, {about['cores']} cores, {about['at'][:10]}, load "
        f"{about['load_average']} before the run.\n",
        "| what | written/s | lag p50 s | p99 | aim | worst | claims lost | memory MB | aim | "
        "cores | micro-batches/s |",
        "|---|---:|---:|---:|---|---:|---:|---:|---|---:|---:|",
    ]
    for f in figures:
        got = f.other
        lag = "reached" if got["p99"] <= LAG_S else f"missed ({LAG_S:g})"
        memory = "reached" if got["RSS MB"] <= MEMORY_MB else f"missed ({MEMORY_MB:,})"
        lines.append(
            f"| {f.name} | {got['written/s']} | {got['lag s p50']} | {got['p99']} | {lag} | "
            f"{got['worst']} | {got['claims lost']} | {got['RSS MB']:,} | {memory} | "
            f"{got['cores']} | {got['micro-batches/s']} |"
        )
    return "\n".join([*lines, "", f"![Lag by changefeeds](images/{PLOT.name})"]) + "\n"


def _draw(figures: list[Figure]) -> None:
    """Plot lag against the number of changefeeds."""
    lines = [
        Line(name, [(float(f.other["feeds"]), f.other[key]) for f in figures])
        for name, key in (("p50", "lag s p50"), ("p99", "p99"))
    ]
    chart(PLOT, "Lag of all changefeeds of one server", "s", lines, (), False, "changefeeds")


def _make_tables(source: MySql, count: int) -> None:
    source.script(
        "CREATE DATABASE many",
        *(
            f"CREATE TABLE many.t{i} (id bigint AUTO_INCREMENT PRIMARY KEY, k int, c char(120), "
            "pad char(60))"
            for i in range(count)
        ),
    )


def _create(store: MetaStore, source: MySql, count: int, folder: Path) -> None:
    operations = Operations(store)
    for i in range(count):
        files = f"file://{folder}/out/t{i}?protocol=canal-json&flush-interval=1s"
        sink = files if i % 2 else "blackhole://?protocol=canal-json"
        rules = {"filter": {"rules": [f"many.t{i}"]}}
        operations.create(Wanted(source.uri, sink, f"feed-{i}", rules))


def _all_run(store: MetaStore, count: int) -> bool:
    feeds = store.feeds()
    return len(feeds) == count and all(f.watermark for f in feeds)


def _measure(
    store: MetaStore, source: MySql, server: ServerProcess, feeds: int, rate: float, seconds: float
) -> Figure:
    stop = threading.Event()
    written = [0] * WRITERS
    lost = _claims_lost(store)
    load = [
        (source, feeds, rate / WRITERS, stop, written, n) for n in range(WRITERS if rate else 0)
    ]
    writers = [threading.Thread(target=_write, args=arguments) for arguments in load]
    for writer in writers:
        writer.start()
    lags: list[float] = []
    worst_of: dict[str, float] = {}
    peak, began, used = 0, time.monotonic(), _cpu(server.pid)
    batches = sum(f.micro_batch for f in store.feeds())
    while time.monotonic() - began < seconds:
        now = time.time() * 1000
        for feed in store.feeds():
            lag = now - physical_ms(feed.watermark)
            lags.append(lag)
            worst_of[feed.id] = max(worst_of.get(feed.id, 0.0), lag)
        peak = max(peak, _rss(server.pid))
        time.sleep(0.5)
    took = time.monotonic() - began
    batches = sum(f.micro_batch for f in store.feeds()) - batches
    stop.set()
    for writer in writers:
        writer.join()
    p50, p99, worst = (round(float(np.percentile(lags, q)) / 1000, 2) for q in (50, 99, 100))
    more = {
        "feeds": feeds,
        "written/s": round(sum(written) / took),
        "claims lost": _claims_lost(store) - lost,
        "lag s p50": p50,
        "p99": p99,
        "worst": worst,
        "RSS MB": peak >> 20,
        "cores": round((_cpu(server.pid) - used) / took, 2),
        "micro-batches/s": round(batches / took, 1),
    }
    print(feeds, "feeds,", rate, "transactions/s:", more, file=sys.stderr)
    return Figure(f"{feeds} changefeeds, {rate:.0f} transactions/s", rate * ROWS, other=more)


def _claims_lost(store: MetaStore) -> int:
    notes = (note for feed in store.feeds() for note in store.history(feed.id))
    return sum(note.what == "lost" for note in notes)


def _write(
    source: MySql, feeds: int, rate: float, stop: threading.Event, written: list[int], place: int
) -> None:
    dice = random.Random(place)
    rows = ", ".join(["(1, REPEAT('c', 100), 'pad')"] * ROWS)
    with closing(source.connect()) as connection, connection.cursor() as cursor:
        begin, done = time.monotonic(), 0
        while not stop.is_set():
            table = dice.randrange(feeds)
            cursor.execute(f"INSERT INTO many.t{table} (k, c, pad) VALUES {rows}")
            done += 1
            written[place] = done
            stop.wait(max(0.0, begin + done / rate - time.monotonic()))


def _tree(pid: int) -> list[int]:
    """Return a process and all below it."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            children.setdefault(parent, []).append(int(entry.name))
    found, left = [], [pid]
    while left:
        found.append(left.pop())
        left += children.get(found[-1], [])
    return found


def _rss(pid: int) -> int:
    """Return the memory of a process and all below it; what they share counts once for each."""
    total = 0
    for one in _tree(pid):
        try:
            total += int(Path(f"/proc/{one}/statm").read_text().split()[1])
        except OSError:
            continue
    return total * os.sysconf("SC_PAGE_SIZE")


def _cpu(pid: int) -> float:
    """Return the seconds of processor time of a process and all below it."""
    total = 0
    for one in _tree(pid):
        try:
            fields = Path(f"/proc/{one}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        total += int(fields[11]) + int(fields[12])
    return total / _TICK


if __name__ == "__main__":
    main()
