"""The same rows in ever more tables, to files and S3: what each further table costs.

    .venv/bin/python bench/many_tables.py [--tables 10,100,1000,10000] [--rows 2000000] [--docs]

MySQL writes the rows in transactions of 200 rows, each into one table; one changefeed delivers
them through Spark on two cores. The ceiling is a bare client that puts the same objects. All share
the machine.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import mysql_load
from beside_bare import feeds_of, keep_run, scratch
from memory import KEEPS_NOTHING
from mysql_load import Run, make, make_numbers
from report import Figure, machine, put_into_page
from soak_plot import Line, chart
from storage import measured, places

from rowferry.testing.servers import Minio, MySql

A_TRANSACTION = 200
AIM = 0.25  # how much slower the many may be than the few
PLOT = Path(__file__).parents[1] / "docs" / "images" / "many-tables.svg"


def main() -> None:
    """Run what was asked for."""
    ask = argparse.ArgumentParser()
    ask.add_argument("--tables", default="10,100,1000,10000")
    ask.add_argument("--rows", type=int, default=2_000_000)
    ask.add_argument("--tries", type=int, default=2, help="the best of so many counts")
    ask.add_argument("--protocols", default="csv,canal-json")
    ask.add_argument("--docs", action="store_true", help="put table and plot into the docs")
    asked = ask.parse_args()
    counts = [int(n) for n in asked.tables.split(",")]
    mysql_load.WORKLOADS.update({f"tables-{n}": _shape(n, asked.rows) for n in counts})
    before = machine()
    figures: list[tuple[int, Figure]] = []
    with (
        scratch() as folder,
        MySql.start(folder / "server", options=("--max-binlog-size=1G",)) as server,
        Minio.start(folder / "minio") as minio,
        feeds_of(server, folder) as feeds,
    ):
        make_numbers(server, 1.0)
        backends = places(folder, minio)
        for count in counts:
            log = make(server, f"tables-{count}", 1.0)
            for place in backends:
                for protocol in asked.protocols.split(","):
                    figure = measured(feeds, log, place, f"protocol={protocol}", asked.tries)
                    print(f"{count} tables, {figure.name}: {figure.rows_per_s:,.0f} rows/s")
                    figures.append((count, figure))
    first = {f.name: f for count, f in figures if count == counts[0]}
    for _, figure in figures:
        figure.other["of the fewest"] = figure.rows_per_s / first[figure.name].rows_per_s
    named = [Figure(**{**vars(f), "name": f"{n} tables: {f.name}"}) for n, f in figures]
    keep_run("many-tables", before, named, rows=asked.rows)
    text = table(figures, asked.rows, before)
    print(text)
    if asked.docs:
        put_into_page("many tables", text)
        lines = [
            Line(name, [(float(n), f.rows_per_s) for n, f in figures if f.name == name])
            for name in first
        ]
        chart(PLOT, "Rows in more and more tables", "rows/s", lines, (), False, "tables")


def _shape(tables: int, rows: int) -> Callable[[Run, float], Callable[[], tuple[int, int]]]:
    def shape(run: Run, _scale: float) -> Callable[[], tuple[int, int]]:
        for number in range(tables):
            run(mysql_load.sysbench_table(f"t{number}") + KEEPS_NOTHING)

        def write() -> tuple[int, int]:
            turns, row = rows // A_TRANSACTION, mysql_load.sysbench_row("i")
            for turn in range(turns):
                run(
                    f"INSERT INTO t{turn % tables} (id, k, c, pad) SELECT i, {row} "
                    f"FROM numbers.n WHERE i <= {A_TRANSACTION}"
                )
            return A_TRANSACTION * turns, A_TRANSACTION * turns

        return write

    return shape


def table(figures: Sequence[tuple[int, Figure]], rows: int, about: dict[str, Any]) -> str:
    """Return figures as a table of a page."""
    lines = [
        f"{rows:,} rows, {about['cpu']}, {about['cores']} cores, {about['at'][:10]}, load "
        f"{about['load_average']} before the run.\n",
        "| tables | sink | rows/s | of the fewest tables | aim | objects | of bare puts | "
        "memory MB |",
        "|---:|---|---:|---:|---|---:|---:|---:|",
    ]
    for count, f in figures:
        share = f.other["of the fewest"]
        aim = "" if count != 1000 else "reached" if share >= 1 - AIM else f"missed ({1 - AIM:.0%})"
        lines.append(
            f"| {count:,} | {f.name} | {f.rows_per_s:,.0f} | {share:.0%} | {aim} | "
            f"{f.other['objects']:,} | {f.ratio:.0%} | {f.other['peak MB']:,} |"
        )
    return "\n".join([*lines, "", f"![Rows/s by tables](images/{PLOT.name})"]) + "\n"


if __name__ == "__main__":
    main()
