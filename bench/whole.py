"""The whole line: reference store → Spark → files, on one and on two cores.

    .venv/bin/python bench/whole.py [--rows N] [--memory-rows N] [--docs]

Measures rows/s of a snapshot and of a log, how both grow from one core to two, the memory of the
driver, the Java process and each worker, and the cycle of an empty micro-batch.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from process_memory import watched
from report import Figure, keep, machine, put_into_page
from stages import image

from rowferry.change.table import TableId
from rowferry.control.feed.lease import Holder
from rowferry.control.feed.loop import Loop, StepResult
from rowferry.control.feed.service import prepare
from rowferry.control.store.sql_store import open_store
from rowferry.refstore.client import Store
from rowferry.refstore.cluster import LocalCluster
from rowferry.spark.job import SparkRunner
from rowferry.spark.session import open_session

TABLE = TableId("bench", "t")
RANGES = 8
SQL = (
    "CREATE TABLE bench.t (id int unsigned PRIMARY KEY, k int unsigned NOT NULL, "
    "c char(120) NOT NULL, pad char(60) NOT NULL)"
)


def load(store: Store, first: int, count: int) -> None:
    part = 250_000
    for start in range(first, first + count, part):
        size = min(part, first + count - start)
        full = image(size)
        ids = pa.array(np.arange(start, start + size, dtype=np.uint64))
        columns = [ids, *(full.field(i) for i in range(1, 4))]
        store.load(TABLE, pa.StructArray.from_arrays(columns, fields=list(full.type)))


def feed(folder: Path, master: str, runner: SparkRunner, protocol: str) -> Loop:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    uri = f"file://{folder / 'out'}?protocol={protocol}"
    ready = prepare(f"range://{master}", uri, changefeed_id="bench")
    store = open_store(f"sqlite:///{folder / 'meta.db'}")
    store.create_changefeed(ready.spec)
    claim = store.claim("bench", Holder.here(), time.time(), 3600)
    return Loop("bench", ready.flow, store, claim, runner, lambda: time.time_ns() // 1_000_000)


def until_caught_up(loop: Loop) -> tuple[float, int, int]:
    """Seconds, rows and bytes until the loop has caught up."""
    began, rows, size = time.perf_counter(), 0, 0
    while True:
        step: StepResult = loop.step()
        rows, size = rows + step.rows, size + step.bytes
        if step.caught_up:
            return time.perf_counter() - began, rows, size


def main() -> None:
    ask = argparse.ArgumentParser()
    ask.add_argument("--rows", type=int, default=1_000_000, help="0: only --memory-rows")
    ask.add_argument("--memory-rows", type=int, default=0, help="also a snapshot of so many rows")
    ask.add_argument("--docs", action="store_true", help="put the table into the docs")
    asked = ask.parse_args()
    before = machine()
    figures: list[Figure] = []
    folder = Path(tempfile.mkdtemp(prefix="rowferry-bench-"))
    try:
        with LocalCluster(folder / "store", data_servers=2) as cluster, cluster.store() as store:
            store.ddl("CREATE DATABASE bench")
            store.ddl(SQL, ranges=RANGES, handles=(0, max(3 * asked.rows, asked.memory_rows)))
            if asked.rows:
                load(store, 0, asked.rows)
                figures += speeds(cluster, store, folder, asked.rows)
            if asked.memory_rows:
                load(store, 3 * asked.rows, max(0, asked.memory_rows - 3 * asked.rows))
                figures += [memory_of_snapshot(cluster, folder)]
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    keep("whole" if asked.rows else "memory", figures)
    if asked.docs:
        put_into_page("whole", page_table(figures, asked.rows, before))


def page_table(figures: list[Figure], rows: int, about: dict[str, Any]) -> str:
    """Return the figures for the page, in Markdown."""
    lines = [
        f"{rows:,} rows of sysbench's table in {RANGES} ranges, {about['cpu']}, {about['cores']} "
        f"cores, load {about['load_average']} before the run.\n",
        "| what | rows/s | MB/s | against one core | more |",
        "|---|---|---|---|---|",
    ]
    for f in figures:
        speed = f"{f.rows_per_s:,.0f} | {f.mb_per_s:,.0f}" if f.rows_per_s else " | "
        more = ", ".join(f"{k} {v}" for k, v in (f.other or {}).items())
        lines.append(f"| {f.name} | {speed} | {f'{f.ratio:.1f}×' if f.ratio else ''} | {more} |")
    return "\n".join(lines) + "\n"


def speeds(cluster: LocalCluster, store: Store, folder: Path, rows: int) -> list[Figure]:
    """One core, then two, each after a warm-up of its workers."""
    found: dict[str, Figure] = {}
    for cores in (1, 2):
        runner = SparkRunner(open_session("bench", folder / "logs", f"local[{cores}]"))
        warm = feed(folder / "warm", cluster.master_address, runner, "csv")
        until_caught_up(warm)
        warm.close()
        for protocol in ("csv", "parquet", "canal-json"):
            loop = feed(folder / protocol, cluster.master_address, runner, protocol)
            with watched() as memory:
                seconds, done, size = until_caught_up(loop)
            more = {"worker MB": round(memory.worker), "all MB": round(memory.together)}
            name = f"snapshot to {protocol}, {cores} core" + ("s" if cores > 1 else "")
            found[name] = Figure(name, done / seconds, size / seconds / 1e6, other=more)
            if protocol == "csv":
                found |= _log_and_cycle(loop, store, rows, cores)
            loop.close()
        runner.close()
    for name, figure in found.items():
        alone = found.get(name.replace("2 cores", "1 core"))
        if alone is not None and alone is not figure and alone.rows_per_s:
            figure.baseline, figure.ratio = "1 core", figure.rows_per_s / alone.rows_per_s
    return list(found.values())


def _log_and_cycle(loop: Loop, store: Store, rows: int, cores: int) -> dict[str, Figure]:
    load(store, cores * rows, rows)
    seconds, done, size = until_caught_up(loop)
    name = f"log to csv, {cores} core" + ("s" if cores > 1 else "")
    log = Figure(name, done / seconds, size / seconds / 1e6)
    cycles = []
    for _ in range(20):
        began = time.perf_counter()
        loop.step(publish_idle=False)
        cycles.append(time.perf_counter() - began)
    small = []
    for i in range(10):
        with store.transaction() as work:
            work.update(TABLE, [{"id": i, "k": i}])
        began = time.perf_counter()
        while not loop.step().rows:
            pass
        small.append(time.perf_counter() - began)
    other = {
        "empty ms": round(1000 * sorted(cycles)[len(cycles) // 2], 1),
        "one row ms": round(1000 * sorted(small)[len(small) // 2], 1),
    }
    cycle = f"micro-batch cycle, {cores} core" + ("s" if cores > 1 else "")
    return {name: log, cycle: Figure(cycle, other=other)}


def memory_of_snapshot(cluster: LocalCluster, folder: Path) -> Figure:
    runner = SparkRunner(open_session("bench", folder / "logs", "local[2]"))
    loop = feed(folder / "memory", cluster.master_address, runner, "csv")
    with watched() as memory:
        seconds, rows, size = until_caught_up(loop)
    loop.close()
    runner.close()
    return Figure(
        f"snapshot of {rows:,} rows", rows / seconds, size / seconds / 1e6, other=memory.figures
    )


if __name__ == "__main__":
    main()
