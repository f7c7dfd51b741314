"""A snapshot of one large table, beside tools that dump it, in one run.

    .venv/bin/python bench/snapshots.py [--server mysql] [--rows 20000000] [--docs]

A table like sysbench's is filled, without a trace in the log. Then it is delivered to csv and
canal-json files, to Kafka and to a MariaDB server, each time by a new changefeed through Spark on
two cores, from the first step until it has caught up. Beside that `mydumper` with two threads,
the server's own dump program and Debezium's snapshot read the same table: the first two write
files, Debezium counts events. All servers share the machine. Nothing is judged by time: the table
says which aims were reached.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from beside_bare import keep_run, scratch
from mysql_feeds import FEED, Target
from mysql_load import make_numbers, sysbench_row, sysbench_table
from mysql_rivals import Debezium, run_tool
from process_memory import watched
from report import Figure, load_average, machine, put_into_page

from rowferry.control.feed.lease import Holder
from rowferry.control.feed.loop import Loop
from rowferry.control.feed.service import prepare
from rowferry.control.store.sql_store import open_store
from rowferry.mysql.session import Flavour
from rowferry.spark.job import SparkRunner
from rowferry.spark.session import open_session
from rowferry.testing.servers import MariaDb, MySql, Server
from rowferry.testing.servers.kafka import Kafka
from rowferry.testing.servers.packages import Packages

SERVERS: dict[str, type[Server]] = {"mariadb": MariaDb, "mysql": MySql}
SETTINGS = ("--max-binlog-size=1G", "--innodb-buffer-pool-size=1G")
MYDUMPER = Packages("mydumper", "sid", ("mydumper",))
MYSQL_DUMP = Packages("mysql-dump", "sid", ("mysql-client",))
DATABASE, TABLE = "snap", "t"
STEP = 1_000_000
AIM = 0.8
LIMIT_S = 3600
PARTS = ("csv", "canal-json", "kafka", "mysql", "mydumper", "dump", "debezium")


def main() -> None:
    """Run what was asked for."""
    ask = argparse.ArgumentParser()
    ask.add_argument("--server", choices=SERVERS, default="mariadb")
    ask.add_argument("--rows", type=int, default=20_000_000)
    ask.add_argument("--parts", default=",".join(PARTS), help="only these")
    ask.add_argument("--docs", action="store_true", help="put the table into the docs")
    asked = ask.parse_args()
    parts = asked.parts.split(",")
    if unknown := [p for p in parts if p not in PARTS]:
        ask.error(f"{unknown[0]}: choose from {', '.join(PARTS)}")
    before = machine()
    with scratch() as folder:
        kind = SERVERS[asked.server]
        with kind.start(folder / "server", options=SETTINGS) as server:
            fill(server, asked.rows)
            version = str(server.execute("SELECT VERSION()")[0][0])
            figures = []
            for figure in [*_tools(server, folder, asked.rows, parts)]:
                figures.append(figure)
            figures = [*_feeds(server, folder, asked.rows, parts), *figures]
    beside(figures)
    keep_run(f"snapshots-{asked.server}", before, figures, rows=asked.rows)
    text = table(figures, f"{version}, {asked.rows:,} rows of sysbench's table", before)
    print(text)
    if asked.docs:
        put_into_page(f"snapshots {asked.server}", text)


def fill(server: Server, rows: int) -> None:
    """Make the table and its rows; the log does not hold them."""
    make_numbers(server, 1.0)
    _say(f"filling {rows:,} rows")
    server.script(f"CREATE DATABASE {DATABASE}")
    server.script(f"USE {DATABASE}", sysbench_table(TABLE))
    for first in range(0, rows, STEP):
        count = min(STEP, rows - first)
        server.script(
            "SET sql_log_bin = 0",
            f"USE {DATABASE}",
            f"INSERT INTO {TABLE} (k, c, pad) SELECT {sysbench_row('i')} FROM numbers.n "
            f"WHERE i <= {count}",
        )
    server.script(f"ANALYZE TABLE {DATABASE}.{TABLE}")


# --- feeds ---------------------------------------------------------------------------------------


def _feeds(server: Server, folder: Path, rows: int, parts: Sequence[str]) -> Iterator[Figure]:
    with ExitStack() as stack:
        targets = [
            Target(f"{p} files", f"protocol={p}") for p in ("csv", "canal-json") if p in parts
        ]
        if "kafka" in parts:
            broker = stack.enter_context(Kafka.start(folder / "kafka"))
            place = f"kafka://{broker.bootstrap}/snapshot"
            targets.append(Target("Kafka, canal-json", "protocol=canal-json", place))
        if "mysql" in parts:
            other = stack.enter_context(
                MariaDb.start(folder / "target", 2, ("--innodb-buffer-pool-size=1G",))
            )
            created = "[sink.mysql-config]\ncreate-tables = true\n"
            targets.append(Target("MariaDB", "worker-count=8", other.uri, created))
        runner = SparkRunner(open_session("bench", folder / "logs", "local[2]"))
        stack.callback(runner.close)
        for number, target in enumerate(targets):
            if not number:  # what every worker does once
                _snapshot(server, folder, Target("nothing", "protocol=csv", "blackhole://"), runner)
            figure = _snapshot(server, folder, target, runner)
            if figure.other["rows"] != rows:
                raise SystemExit(f"{target.name}: {figure.other['rows']:,} of {rows:,} rows came")
            _say(f"{figure.name}: {figure.rows_per_s:,.0f} rows/s")
            yield figure


def _snapshot(server: Server, folder: Path, target: Target, runner: SparkRunner) -> Figure:
    """Deliver the table by a new changefeed, and nothing else."""
    place = folder / "feed"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    config = place / "feed.toml"
    config.write_text(f'[filter]\nrules = ["{DATABASE}.*"]\n{target.config}')
    ready = prepare(server.uri, target.uri(place), config, FEED)
    store = open_store(f"sqlite:///{place / 'meta.db'}")
    store.create_changefeed(ready.spec)
    claim = store.claim(FEED, Holder.here(), time.time(), 36_000)
    loop = Loop(FEED, ready.flow, store, claim, runner, lambda: time.time_ns() // 1_000_000)
    rows = size = batches = 0
    try:
        with watched() as memory:
            began = time.perf_counter()
            while True:
                step = loop.step()
                rows, size = rows + step.rows, size + step.bytes
                batches += step.rows > 0
                if step.caught_up:
                    break
            seconds = time.perf_counter() - began
    finally:
        loop.close()
        store.close()
        shutil.rmtree(place, ignore_errors=True)
    more = {"s": round(seconds, 1), "rows": rows, "micro-batches": batches, **memory.figures}
    return Figure(f"feed to {target.name}", rows / seconds, size / seconds / 1e6, other=more)


# --- others --------------------------------------------------------------------------------------


def _tools(server: Server, folder: Path, rows: int, parts: Sequence[str]) -> Iterator[Figure]:
    if "mydumper" in parts:
        yield _timed(server, folder, *_mydumper(server, folder / "dump"), rows)
    if "dump" in parts:
        yield _timed(server, folder, *_own_dump(server, folder / "dump"), rows)
    if "debezium" in parts:
        engine = Debezium(server, folder / "debezium")
        for json in (False, True):
            figure = engine.snapshot(DATABASE, rows, json)
            _say(f"{figure.name}: {figure.rows_per_s:,.0f} rows/s")
            yield figure


def _timed(server: Server, folder: Path, name: str, command: list[str], rows: int) -> Figure:
    place = folder / "dump"
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    began = time.perf_counter()
    run_tool(command, {"MYSQL_PWD": server.login.password}, LIMIT_S)
    seconds = time.perf_counter() - began
    size = sum(p.stat().st_size for p in place.rglob("*") if p.is_file())
    shutil.rmtree(place)
    if size < 100 * rows:
        raise SystemExit(f"{name} wrote {size:,} bytes only, for {rows:,} rows")
    figure = Figure(name, rows / seconds, size / seconds / 1e6, other={"s": round(seconds, 1)})
    _say(f"{figure.name}: {figure.rows_per_s:,.0f} rows/s")
    return figure


def _mydumper(server: Server, place: Path) -> tuple[str, list[str]]:
    """Return mydumper's command; older versions write SQL only."""
    program = MYDUMPER.program("usr/bin/mydumper")
    known = subprocess.run([*program, "--help"], capture_output=True, text=True, check=False).stdout
    csv = ["--format", "CSV"] if "--format" in known else ["--csv"] if "--csv" in known else []
    login = server.login
    return f"mydumper, {'csv' if csv else 'SQL'}", [
        *program,
        f"--host={login.host}",
        f"--port={login.port}",
        f"--user={login.user}",
        f"--password={login.password}",
        f"--database={DATABASE}",
        f"--outputdir={place}",
        "--threads=2",
        "--rows=500000",
        "--trx-tables" if "--trx-tables" in known else "--trx-consistency-only",
        *csv,
    ]


def _own_dump(server: Server, place: Path) -> tuple[str, list[str]]:
    login = server.login
    is_mysql = server.flavour is Flavour.MYSQL
    name = "mysqldump" if is_mysql else "mariadb-dump"
    packages = MYSQL_DUMP if is_mysql else server.packages
    return name, [
        *packages.program(f"usr/bin/{name}"),
        "--no-defaults",
        f"--host={login.host}",
        f"--port={login.port}",
        f"--user={login.user}",
        "--single-transaction",
        "--quick",
        f"--result-file={place / 'dump.sql'}",
        DATABASE,
    ]


# --- what is shown -------------------------------------------------------------------------------


def beside(figures: Sequence[Figure]) -> None:
    """Set each line beside mydumper's speed, where it was measured."""
    bare = next((f for f in figures if f.name.startswith("mydumper")), None)
    for figure in figures:
        if bare is not None and figure is not bare:
            figure.baseline, figure.ratio = "mydumper", figure.rows_per_s / bare.rows_per_s


def table(figures: Sequence[Figure], what: str, about: dict[str, Any]) -> str:
    """Return figures as a table of a page."""
    lines = [
        f"{what}, {about['cpu']}, {about['cores']} cores, {about['at'][:10]}, load "
        f"{about['load_average']} before the run and {load_average()} after it.\n",
        "| what | rows/s | MB/s written | of mydumper | aim | more |",
        "|---|---|---|---|---|---|",
    ]
    for f in figures:
        aim = ""
        if f.name == "feed to csv files" and f.ratio:
            aim = "reached" if f.ratio >= AIM else f"missed ({AIM:.0%})"
        share = f"{f.ratio:.0%}" if f.ratio else ""
        more = ", ".join(f"{k} {v:,}" for k, v in f.other.items() if k != "rows")
        lines.append(
            f"| {f.name} | {f.rows_per_s:,.0f} | {f.mb_per_s:,.0f} | {share} | {aim} | {more} |"
        )
    return "\n".join(lines) + "\n"


def _say(words: str) -> None:
    print(time.strftime("%H:%M:%S"), words, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
