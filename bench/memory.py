"""What a feed takes in memory at its limits: a huge transaction, huge rows, very many tables.

    .venv/bin/python bench/memory.py [--gib 20] [--tables 10000] [--only transaction] [--docs]

MySQL writes each load into its log, from tables that keep no rows, and one changefeed delivers it
through Spark on two cores while driver, Java and workers are watched. The huge transaction is
encoded and thrown away, since its log takes the disk twice already; the other two go to files.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from typing import Any

import mysql_load
from beside_bare import feeds_of, keep_run, scratch
from mysql_feeds import Feeds, Target
from mysql_load import Log, Run, make, make_numbers
from process_memory import watched
from report import Figure, machine, put_into_page

from rowferry.testing.servers import MySql

AIM_MB = 600  # of the driver
ROW, STEP = 1 << 10, 1_000_000
COLUMNS, CELL, HUGE_ROWS = 100, 1 << 20, 9  # below the largest file of the log
ROWS_A_TABLE = 10
KEEPS_NOTHING = "ENGINE=BLACKHOLE"
FILES = Target("csv files", "protocol=csv&fsync=false")
NOTHING = Target("canal-json to the blackhole", "protocol=canal-json", "blackhole://")


def main() -> None:
    """Run what was asked for."""
    ask = argparse.ArgumentParser()
    ask.add_argument("--gib", type=float, default=20.0, help="of the huge transaction")
    ask.add_argument("--tables", type=int, default=10_000)
    ask.add_argument("--only", choices=("transaction", "huge-rows", "all-tables"))
    ask.add_argument("--docs", action="store_true", help="put the table into the docs")
    asked = ask.parse_args()
    loads: dict[str, tuple[str, Callable[..., Any], Target]] = {
        "transaction": (f"a transaction of {asked.gib:g} GiB", _transaction(asked.gib), NOTHING),
        "huge-rows": (f"rows of {COLUMNS} columns of 1 MiB", _huge_rows, FILES),
        "all-tables": (f"{asked.tables:,} tables", _tables(asked.tables), FILES),
    }
    mysql_load.WORKLOADS.update({name: shape for name, (_, shape, _) in loads.items()})
    before = machine()
    options = ("--max-binlog-size=1G", "--max-allowed-packet=1G", "--table-open-cache=400")
    figures = []
    with scratch() as folder, MySql.start(folder / "server", options=options) as server:
        make_numbers(server, 1.0)
        for name, (about, _, target) in loads.items():
            if asked.only in (None, name):
                log = make(server, name, 1.0)
                with feeds_of(server, folder) as feeds:
                    figures.append(_figure(feeds, log, about, target))
                server.script(f"DROP DATABASE {log.database}", "RESET BINARY LOGS AND GTIDS")
    keep_run("memory", before, figures)
    text = table(figures, before)
    print(text)
    if asked.docs:
        put_into_page("memory", text)


def _figure(feeds: Feeds, log: Log, about: str, target: Target) -> Figure:
    began = time.perf_counter()
    with watched() as memory:
        ended = feeds.ended(log, target, feeds.runner)
    seconds = time.perf_counter() - began
    more = {"to": target.name, "MB of log": round(log.size / 1e6), **memory.figures}
    return Figure(about, ended.rows / seconds, log.size / seconds / 1e6, other=more)


def _transaction(gib: float) -> Callable[[Run, float], Callable[[], tuple[int, int]]]:
    rows = int(gib * (1 << 30) / ROW)

    def shape(run: Run, _scale: float) -> Callable[[], tuple[int, int]]:
        run(f"CREATE TABLE t (id BIGINT PRIMARY KEY, body VARCHAR({ROW}) NOT NULL) {KEEPS_NOTHING}")

        def write() -> tuple[int, int]:
            run("BEGIN")
            for first in range(0, rows, STEP):
                run(
                    f"INSERT INTO t SELECT i + {first}, REPEAT(SHA2(i, 256), {ROW // 64 - 1}) "
                    f"FROM numbers.n WHERE i <= {min(STEP, rows - first)}"
                )
            run("COMMIT")
            return rows, rows

        return write

    return shape


def _huge_rows(run: Run, _scale: float) -> Callable[[], tuple[int, int]]:
    columns = ", ".join(f"c{n} LONGTEXT NOT NULL" for n in range(COLUMNS))
    run(f"CREATE TABLE t (id INT PRIMARY KEY, {columns}) {KEEPS_NOTHING}")

    def write() -> tuple[int, int]:
        values = ", ".join(f"REPEAT(SHA2(i + {n}, 256), {CELL // 64})" for n in range(COLUMNS))
        for row in range(1, HUGE_ROWS + 1):
            run(f"INSERT INTO t SELECT i, {values} FROM numbers.n WHERE i = {row}")
        return HUGE_ROWS, HUGE_ROWS

    return write


def _tables(count: int) -> Callable[[Run, float], Callable[[], tuple[int, int]]]:
    def shape(run: Run, _scale: float) -> Callable[[], tuple[int, int]]:
        for number in range(count):
            run(mysql_load.sysbench_table(f"t{number}") + KEEPS_NOTHING)

        def write() -> tuple[int, int]:
            row = mysql_load.sysbench_row("i")
            for number in range(count):
                run(
                    f"INSERT INTO t{number} (id, k, c, pad) SELECT i, {row} FROM numbers.n "
                    f"WHERE i <= {ROWS_A_TABLE}"
                )
            return count * ROWS_A_TABLE, count * ROWS_A_TABLE

        return write

    return shape


def table(figures: Sequence[Figure], about: dict[str, Any]) -> str:
    """Return figures as a table of a page."""
    lines = [
        f"{about['cpu']}, {about['cores']} cores, {about['at'][:10]}, load "
        f"{about['load_average']} before the run.\n",
        "| load | to | MB of log | MB/s of log | driver MB | aim | Java MB | largest worker MB | "
        "all MB |",
        "|---|---|---:|---:|---:|---|---:|---:|---:|",
    ]
    for f in figures:
        got = f.other
        aim = "reached" if got["driver MB"] <= AIM_MB else f"missed ({AIM_MB})"
        lines.append(
            f"| {f.name} | {got['to']} | {got['MB of log']:,} | {f.mb_per_s:,.0f} | "
            f"{got['driver MB']:,} | {aim} | {got['Java MB']:,} | {got['worker MB']:,} | "
            f"{got['all MB']:,} |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
