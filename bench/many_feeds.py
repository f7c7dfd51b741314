"""Many changefeeds on one server: how far each lags, and what the server takes.

    .venv/bin/python bench/many_feeds.py [--feeds 50] [--seconds 30] [--transactions 100]

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
from contextlib import closing
from pathlib import Path

import numpy as np
from report import Figure, keep

from rowferry.change.position import physical_ms
from rowferry.control.operator.operations import Operations, Wanted
from rowferry.control.store.contract import MetaStore
from rowferry.control.store.sql_store import open_store
from rowferry.testing.harness import ServerProcess, wait_for
from rowferry.testing.servers import MySql
from rowferry.testing.servers.child import free_port

ROWS = 10  # of a transaction
_TICK = os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Measure what was asked for."""
    ask = argparse.ArgumentParser()
    ask.add_argument("--feeds", type=int, default=50)
    ask.add_argument("--seconds", type=float, default=30.0)
    ask.add_argument("--transactions", type=float, default=100.0, help="in a second, over all")
    ask.add_argument("--idle", action="store_true", help="measure without load, too")
    ask.add_argument("--log", type=Path, help="keep the server's messages in this file")
    asked = ask.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="rowferry-many-"))
    figures = []
    try:
        with MySql.start(folder / "mysql") as source:
            _make_tables(source, asked.feeds)
            meta = f"sqlite:///{folder / 'meta.db'}"
            addresses = [f"127.0.0.1:{free_port()}" for _ in range(2)]
            command = ["--meta", meta, "--addr", addresses[0], "--grpc-addr", addresses[1]]
            with closing(open_store(meta)) as store, ServerProcess(command, folder) as server:
                _create(store, source, asked.feeds, folder)
                wait_for(lambda: _all_run(store, asked.feeds), "all changefeeds", 300)
                time.sleep(5)
                rates = ([0.0] if asked.idle else []) + [asked.transactions]
                for rate in rates:
                    load = (asked.feeds, rate, asked.seconds)
                    figures.append(_measure(store, source, server, *load))
                if asked.log:
                    shutil.copy(server.output, asked.log)
                server.terminate()
                print("drained, exit code", server.wait(120))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    keep("many-feeds", figures)


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
    writer = threading.Thread(target=_write, args=(source, feeds, rate, stop))
    if rate:
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
    if rate:
        writer.join()
    p50, p99, worst = (round(float(np.percentile(lags, q)) / 1000, 2) for q in (50, 99, 100))
    more = {
        "lag s p50": p50,
        "p99": p99,
        "worst": worst,
        "RSS MB": peak >> 20,
        "cores": round((_cpu(server.pid) - used) / took, 2),
        "micro-batches/s": round(batches / took, 1),
    }
    print(feeds, "feeds,", rate, "transactions/s:", more, file=sys.stderr)
    return Figure(f"{feeds} changefeeds, {rate:.0f} transactions/s", rate * ROWS, other=more)


def _write(source: MySql, feeds: int, rate: float, stop: threading.Event) -> None:
    dice = random.Random(7)
    rows = ", ".join(["(1, REPEAT('c', 100), 'pad')"] * ROWS)
    with closing(source.connect()) as connection, connection.cursor() as cursor:
        begin, done = time.monotonic(), 0
        while not stop.is_set():
            table = dice.randrange(feeds)
            cursor.execute(f"INSERT INTO many.t{table} (k, c, pad) VALUES {rows}")
            connection.commit()
            done += 1
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
