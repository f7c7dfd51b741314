"""MySQL's log to storage: scenarios × formats × files and S3, beside bare puts of the same bytes.

    .venv/bin/python bench/storage.py [--scale 0.1] [--tries 2] [--scenarios common,wide] [--docs]

Each scenario's log is written by the server and delivered through Spark on two cores. What the feed
wrote is then read back and put again, under other names, by sixteen threads of a bare obstore
client, and files are brought to disk as the sink's are: that is the ceiling. Server, MinIO and
Spark share the machine.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import mysql_load
import obstore
from mysql_feeds import Feeds, Target
from mysql_load import Log, Run, make, make_numbers
from obstore.store import LocalStore, S3Store
from process_memory import watched
from report import RESULTS, Figure, load_average, machine, put_into_page

from rowferry.spark.job import SparkRunner
from rowferry.spark.session import open_session
from rowferry.testing.servers import Minio, MySql

AIM, DROP = 0.5, 0.25
LARGE_ROW = 64 << 10


def _large_rows(run: Run, scale: float) -> Callable[[], tuple[int, int]]:
    rows = round(8_000 * scale)
    run("CREATE TABLE t (id INT PRIMARY KEY, body MEDIUMTEXT NOT NULL)")

    def write() -> tuple[int, int]:
        text = f"REPEAT(SHA2(i, 256), {LARGE_ROW // 64})"
        for first in range(0, rows, 500):
            upper = min(rows, first + 500)
            run(f"INSERT INTO t SELECT i, {text} FROM numbers.n WHERE i > {first} AND i <= {upper}")
        return rows, rows

    return write


TABLE_ROWS, A_TRANSACTION = 4_000_000, 200


def _tables(count: int) -> Callable[[Run, float], Callable[[], tuple[int, int]]]:
    """Return a workload of the same rows over so many tables, each transaction in one of them."""

    def shape(run: Run, scale: float) -> Callable[[], tuple[int, int]]:
        for number in range(count):
            run(mysql_load.sysbench_table(f"t{number}"))

        def write() -> tuple[int, int]:
            turns = round(TABLE_ROWS * scale) // A_TRANSACTION
            row = mysql_load.sysbench_row("i")
            for turn in range(turns):
                run(
                    f"INSERT INTO t{turn % count} (k, c, pad) SELECT {row} FROM numbers.n "
                    f"WHERE i <= {A_TRANSACTION}"
                )
            return A_TRANSACTION * turns, A_TRANSACTION * turns

        return write

    return shape


SCENARIOS = {
    "common": mysql_load.WORKLOADS["sysbench"],
    "big-data": _large_rows,
    "ten-tables": _tables(10),
    "thousand-tables": _tables(1000),
    "wide": mysql_load.WORKLOADS["wide"],
}
ABOUT = {
    "common": "sysbench's table, {common:,} changes",
    "big-data": f"{{big-data:,}} rows of {LARGE_ROW >> 10} KiB",
    "ten-tables": f"{{ten-tables:,}} rows in ten tables, {A_TRANSACTION} in a transaction",
    "thousand-tables": "the same in a thousand tables",
    "wide": "a table of 200 columns, {wide:,} changes",
}
VARIANTS = ("", "&file-size=8388608", "&flush-interval=1s")


@dataclass
class Place:
    """A backend: where feeds write, and a bare client for the same place."""

    name: str
    uri: Callable[[str, str], str]
    store: Any
    settle: Callable[[], None]  # after bare puts


def main() -> None:
    """Run what was asked for."""
    ask = argparse.ArgumentParser()
    ask.add_argument("--scale", type=float, default=1.0)
    ask.add_argument("--tries", type=int, default=2, help="the best of so many counts")
    ask.add_argument("--scenarios", default=",".join(SCENARIOS))
    ask.add_argument("--docs", action="store_true", help="put the table into the docs")
    asked = ask.parse_args()
    mysql_load.WORKLOADS.update(SCENARIOS)
    before = machine()
    folder = Path(tempfile.mkdtemp(prefix="rowferry-bench-"))
    try:
        with (
            MySql.start(folder / "server", options=("--max-binlog-size=1G",)) as server,
            Minio.start(folder / "minio") as minio,
        ):
            backends = places(folder, minio)
            make_numbers(server, asked.scale)
            runner = SparkRunner(open_session("bench", folder / "logs", "local[2]"))
            try:
                feeds = Feeds(server, folder, runner)
                figures, changes = [], {}
                for scenario in asked.scenarios.split(","):
                    log = make(server, scenario, asked.scale)
                    changes[scenario] = log.changes
                    found = _scenario(feeds, log, backends, asked)
                    figures += [(scenario, figure) for figure in found]
            finally:
                runner.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    text = _table(figures, before, changes)
    RESULTS.mkdir(exist_ok=True)
    kept = [{"scenario": s, **asdict(f)} for s, f in figures]
    about = {**before, "load_average_after": load_average(), "scale": asked.scale}
    (RESULTS / "storage.json").write_text(json.dumps({**about, "figures": kept}, indent=2) + "\n")
    print(text)
    if asked.docs:
        put_into_page("storage", text)


def places(folder: Path, minio: Minio) -> list[Place]:
    """Return the backends, once for a folder."""
    root = folder / "files"
    root.mkdir()
    login = minio.parameters()
    s3 = S3Store(
        minio.uri("").split("://")[1].split("/")[0].split("?")[0],
        endpoint=login["endpoint"],
        access_key_id=minio.user,
        secret_access_key=minio.password,
        region="us-east-1",
        virtual_hosted_style_request=False,
        client_options={"allow_http": True},
    )

    def to_s3(name: str, parameters: str) -> str:
        uri = minio.uri(name)
        return f"{uri}{'&' if '?' in uri else '?'}{parameters}"

    return [
        Place(
            "file",
            lambda name, query: f"file://{root / name}?{query}",
            LocalStore(root),
            os.sync,
        ),
        Place("s3", to_s3, s3, lambda: None),
    ]


def _scenario(
    feeds: Feeds, log: Log, backends: list[Place], asked: argparse.Namespace
) -> Iterator[Figure]:
    for place in backends:
        for protocol in ("csv", "parquet", "canal-json"):
            variants = VARIANTS if log.name == "common" and protocol == "csv" else VARIANTS[:1]
            for variant in variants:
                figure = measured(feeds, log, place, f"protocol={protocol}{variant}", asked.tries)
                print(f"{log.name} {figure.name}: {figure.rows_per_s:,.0f}/s", file=sys.stderr)
                yield figure


_numbers = itertools.count()
_warm: set[tuple[str, str]] = set()  # where and how workers have written already


class _Sink(Target):
    """A target whose whole URI is given."""

    def uri(self, folder: Path) -> str:
        return self.place


def measured(feeds: Feeds, log: Log, place: Place, parameters: str, tries: int) -> Figure:
    """Deliver a log several times, and set the best beside bare puts of the same objects."""
    number = next(_numbers)
    warm_up = (place.name, parameters) not in _warm  # more files may be more tasks, and workers
    _warm.add((place.name, parameters))
    found = []
    prefix = ""
    with watched() as memory:
        for turn in range(tries + warm_up):
            prefix = f"{log.name}-{number}-{turn}"
            target = _Sink(parameters, parameters, place.uri(prefix, parameters))
            found.append(feeds.ended(log, target, feeds.runner))
            if turn + 1 < tries + warm_up:
                _clear(place, prefix)
    best = min(found[warm_up:], key=lambda e: e.seconds)
    objects = [
        (o["path"], bytes(obstore.get(place.store, o["path"]).bytes()))
        for batch in obstore.list(place.store, prefix=prefix)
        for o in batch
    ]
    size = sum(len(data) for _, data in objects)
    bare = min(_bare_puts(place, objects, turn) for turn in range(tries))
    figure = Figure(f"{place.name}, {parameters.removeprefix('protocol=')}")
    figure.rows_per_s, figure.mb_per_s = best.rows / best.seconds, size / best.seconds / 1e6
    figure.baseline, figure.ratio = "bare puts", bare / best.seconds
    figure.other = {
        "s": round(best.seconds, 2),
        "bare s": round(bare, 2),
        "objects": len(objects),
        "MB": round(size / 1e6),
        "peak MB": round(memory.together),
    }
    _clear(place, prefix)
    return figure


def _clear(place: Place, prefix: str) -> None:
    for batch in obstore.list(place.store, prefix=prefix):
        obstore.delete(place.store, [o["path"] for o in batch])


def _bare_puts(place: Place, objects: list[tuple[str, bytes]], turn: int) -> float:
    """Return the seconds that plain puts of the same objects take."""
    began = time.perf_counter()
    with ThreadPoolExecutor(16) as pool:
        names = [f"bare-{turn}/{path}" for path, _ in objects]
        list(
            pool.map(
                lambda name, data: obstore.put(place.store, name, data),
                names,
                [data for _, data in objects],
            )
        )
    place.settle()
    seconds = time.perf_counter() - began
    obstore.delete(place.store, names)
    return seconds


def _table(
    figures: list[tuple[str, Figure]], about: dict[str, Any], changes: dict[str, int]
) -> str:
    load = f"load {about['load_average']} before the run and {load_average()} after it"
    lines = [
        f"{about['cpu']}, {about['cores']} cores, {load}.\n",
        "| scenario | sink | row changes/s | MB/s | objects | of bare puts | peak memory |",
        "|---|---|---|---|---|---|---|",
    ]
    for scenario, f in figures:
        other = f.other or {}
        lines.append(
            f"| {scenario} | {f.name} | {f.rows_per_s:,.0f} | {f.mb_per_s:,.0f} | "
            f"{other['objects']} | {f.ratio:.0%} | {other['peak MB']} MB |"
        )
    said = "; ".join(f"{name}: {ABOUT[name].format(**changes)}" for name in changes)
    text = "\n".join(lines) + f"\n\n{said}. The aim is {AIM:.0%} of bare puts.\n"
    return text + _drops(figures)


def _drops(figures: list[tuple[str, Figure]]) -> str:
    """Return how much slower a thousand tables are than ten, and the same of bare puts."""
    few, many = (
        {f.name: f for scenario, f in figures if scenario == wanted}
        for wanted in ("ten-tables", "thousand-tables")
    )
    parts = [
        f"{name} {1 - many[name].rows_per_s / few[name].rows_per_s:.0%} "
        f"(bare puts take {_bare_s(many[name]) / _bare_s(few[name]):.1f} times as long)"
        for name in few
        if name in many
    ]
    if not parts:
        return ""
    return (
        f"\nWith a thousand tables in place of ten, row changes/s drop by: {'; '.join(parts)}. "
        f"The aim is {DROP:.0%} at most.\n"
    )


def _bare_s(figure: Figure) -> float:
    return max(float((figure.other or {})["bare s"]), 0.01)


if __name__ == "__main__":
    main()
