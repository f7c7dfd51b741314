"""A feed into MariaDB for five kinds of load, beside hand-made statements, in one run.

    .venv/bin/python bench/mysql_sink.py [--scale 0.1] [--tries 3] [--loads insert,wide] [--local]

A MariaDB server writes the log; a changefeed carries it into a second one through Spark on two
cores (`--local`: in this process). The ceiling is what the second server takes: the same rows as
multi-row statements of the same size, made before the clock starts, from the same number of
connections in all, which the feed's two tasks share. Both servers, Spark and the loop share the
machine.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path

from report import RESULTS, Figure, load_average, machine, put_into_page

from rowferry.change.position import PHYSICAL_SHIFT
from rowferry.control.feed.lease import Holder
from rowferry.control.feed.loop import Loop, SegmentRunner
from rowferry.control.operator.checks.prepare import prepare
from rowferry.control.store.sql_store import open_store
from rowferry.spark.job import InProcessRunner, SparkRunner
from rowferry.spark.session import open_session
from rowferry.testing.servers import MariaDb

CONNECTIONS, ROWS = 16, 256
TASKS = 2
AIM = 0.7
HOT = 100
WIDE = 60
PAGE = Path(__file__).parents[1] / "docs" / "mysql-sink.md"
NARROW = "id int PRIMARY KEY, k int NOT NULL, c char(120) NOT NULL, pad char(60) NOT NULL"


@dataclass(frozen=True, slots=True)
class Load:
    """One kind of work.

    Attributes:
        shape: the table's columns.
        before: what the table holds when the clock starts.
        work: statements at the source that are the load.
        changes: how many row changes those are.
        by_hand: the same rows as statements for the second server, `{}` being the table.
    """

    name: str
    shape: str
    before: tuple[str, ...]
    work: tuple[str, ...]
    changes: int
    by_hand: Callable[[], Iterator[str]]


def text(column: str, size: int) -> str:
    """Return SQL for a text that differs from row to row."""
    return f"LEFT(REPEAT(SHA1({column}), 4), {size})"


def loads(count: int) -> Iterator[Load]:
    """Yield the loads, each of about so many changes."""
    made = f"INSERT INTO t SELECT seq, seq, {text('seq', 119)}, {text('seq', 59)} FROM seq_1_to_"
    pad = "x" * 119

    def rows(first: int, last: int) -> Iterator[str]:
        for start in range(first, last, ROWS):
            ids = range(start, min(start + ROWS, last))
            yield ",".join(f"({i},{i},'{pad}','{pad[:59]}')" for i in ids)

    def put(first: int, last: int) -> Iterator[str]:
        columns = ("id", "k", "c", "pad")
        end = ",".join(f"{c}=VALUES({c})" for c in columns)
        for values in rows(first, last):
            yield f"INSERT INTO {{}} VALUES {values} ON DUPLICATE KEY UPDATE {end}"

    def away(first: int, last: int) -> Iterator[str]:
        for start in range(first, last, ROWS):
            ids = ",".join(map(str, range(start, min(start + ROWS, last))))
            yield f"DELETE FROM {{}} WHERE id IN ({ids})"

    def hot() -> Iterator[str]:
        for _ in range(count // HOT):
            yield from put(1, HOT + 1)

    def broad() -> Iterator[str]:
        columns = ",".join(f"c{i}=VALUES(c{i})" for i in range(WIDE))
        for start in range(1, count // 10, ROWS):
            ids = range(start, min(start + ROWS, count // 10))
            values = ",".join(f"({i}" + f",'{'y' * 20}'" * WIDE + ")" for i in ids)
            yield f"INSERT INTO {{}} VALUES {values} ON DUPLICATE KEY UPDATE {columns}"

    change = f"UPDATE t SET k = k + 1, c = {text('k', 118)}"
    yield Load("insert", NARROW, (), (f"{made}{count}",), count, lambda: put(1, count + 1))
    yield Load("update", NARROW, (f"{made}{count}",), (change,), count, lambda: put(1, count + 1))
    third = count // 3
    yield Load(
        "mixed",
        NARROW,
        (f"{made}{2 * third}",),
        (
            f"{change} WHERE id <= {third}",
            f"DELETE FROM t WHERE id > {third}",
            made.replace("SELECT seq,", f"SELECT seq + {3 * third},") + str(third),
        ),
        3 * third,
        lambda: (
            s
            for parts in zip(
                put(1, third + 1),
                away(third + 1, 2 * third + 1),
                put(3 * third + 1, 4 * third + 1),
                strict=True,
            )
            for s in parts
        ),
    )
    yield Load(
        "hot keys", NARROW, (f"{made}{HOT}",), (change,) * (count // HOT), count // HOT * HOT, hot
    )
    shape = "id int PRIMARY KEY" + "".join(
        f", c{i} varchar(40) CHARACTER SET latin1" for i in range(WIDE)
    )
    filled = "INSERT INTO t SELECT seq" + f", '{'y' * 20}'" * WIDE + " FROM seq_1_to_"
    yield Load("wide", shape, (), (f"{filled}{count // 10}",), count // 10, broad)


def main() -> None:
    """Run what was asked for."""
    ask = argparse.ArgumentParser()
    ask.add_argument("--scale", type=float, default=1.0, help="1: 600,000 changes of each kind")
    ask.add_argument("--tries", type=int, default=3, help="the best of so many counts")
    ask.add_argument("--loads", default="", help="only these, with commas between them")
    ask.add_argument("--local", action="store_true", help="without Spark")
    ask.add_argument("--docs", action="store_true", help=f"put the table into {PAGE.name}")
    asked = ask.parse_args()
    before = machine()
    folder = Path(tempfile.mkdtemp(prefix="rowferry-bench-"))
    options = ("--innodb-buffer-pool-size=512M", "--innodb-log-file-size=512M")
    try:
        with (
            MariaDb.start(folder / "source", 1, options) as source,
            MariaDb.start(folder / "target", 2, options) as target,
        ):
            runner: SegmentRunner = InProcessRunner()
            if not asked.local:
                runner = SparkRunner(open_session("bench", folder / "logs", f"local[{TASKS}]"))
            try:
                race = Race(source, target, folder, runner)
                figures = [
                    f
                    for load in loads(int(600_000 * asked.scale))
                    if not asked.loads or load.name in asked.loads.split(",")
                    for f in race.figures(load, asked.tries)
                ]
            finally:
                runner.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    figs = [asdict(f) for f in figures]
    result = {**before, "load_average_after": load_average(), "figures": figs}
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "mysql_sink.json").write_text(json.dumps(result, indent=2) + "\n")
    shown = _table(figures, before)
    print(shown)
    if asked.docs:
        put_into_page("mysql sink", shown, PAGE)


class Race:
    """Runs loads through a feed and by hand."""

    def __init__(
        self, source: MariaDb, target: MariaDb, folder: Path, runner: SegmentRunner
    ) -> None:
        self._source, self._target, self._folder = source, target, folder
        self._runner, self._turn = runner, 0

    def figures(self, load: Load, tries: int) -> Iterator[Figure]:
        """Yield the best feed and the best ceiling of a load, tried by turns."""
        fed, by_hand = [], []
        for _ in range(tries + 1):  # the first warms up
            fed.append(self._feed(load))
            by_hand.append(self._by_hand(load))
        feed = Figure(f"{load.name}: feed", load.changes / min(fed[1:]))
        bare = Figure(f"{load.name}: statements by hand", load.changes / min(by_hand[1:]))
        feed.baseline, feed.ratio = bare.name, feed.rows_per_s / bare.rows_per_s
        for figure in (feed, bare):
            print(f"{figure.name}: {figure.rows_per_s:,.0f} rows/s", file=sys.stderr)
            yield figure

    def _feed(self, load: Load) -> float:
        self._turn += 1
        database = f"bench{self._turn}"
        for server in (self._source, self._target):
            made = (
                f"CREATE DATABASE {database}",
                f"USE {database}",
                f"CREATE TABLE t ({load.shape})",
            )
            server.script(*made, *load.before)
        config = self._folder / f"{database}.toml"
        config.write_text(f'[filter]\nrules = ["{database}.*"]\n')
        query = f"worker-count={CONNECTIONS // TASKS}&max-txn-row={ROWS}"
        ready = prepare(
            self._source.uri + "?snapshot=never", f"{self._target.uri}?{query}", config, database
        )
        store = open_store(f"sqlite:///{self._folder}/{database}.db")
        store.create_changefeed(ready.spec, 0)
        claim = store.claim(database, Holder.here(), time.time(), 3600)
        loop = Loop(
            database, ready.flow, store, claim, self._runner, lambda: time.time_ns() // 1_000_000
        )
        try:
            loop.step()
            self._source.script(f"USE {database}", *load.work)
            clock = self._source.execute("SELECT FLOOR(UNIX_TIMESTAMP(NOW(3)) * 1000)")[0][0]
            wanted = int(str(clock)) << PHYSICAL_SHIFT
            began = time.perf_counter()
            while True:
                step = loop.step()
                if step.caught_up and step.watermark >= wanted:
                    break
            seconds = time.perf_counter() - began
            self._compare(database)
            return seconds
        finally:
            loop.close()
            store.close()
            for server in (self._source, self._target):
                server.script(f"DROP DATABASE {database}")

    def _compare(self, database: str) -> None:
        sums = [
            s.execute(f"CHECKSUM TABLE {database}.t")[0][1] for s in (self._source, self._target)
        ]
        if sums[0] != sums[1]:
            sys.exit(f"{database}: the tables differ")

    def _by_hand(self, load: Load) -> float:
        database = "by_hand"
        self._target.script(
            f"CREATE DATABASE {database}",
            f"USE {database}",
            f"CREATE TABLE t ({load.shape})",
            *load.before,
        )
        statements = [s.format(f"{database}.t").encode() for s in load.by_hand()]

        def work(place: int) -> None:
            with closing(self._target.connect()) as connection:
                for statement in statements[place::CONNECTIONS]:
                    connection.query(statement)

        began = time.perf_counter()
        with ThreadPoolExecutor(CONNECTIONS) as pool:
            list(pool.map(work, range(CONNECTIONS)))
        seconds = time.perf_counter() - began
        self._target.script(f"DROP DATABASE {database}")
        return seconds


def _table(figures: list[Figure], about: dict[str, object]) -> str:
    lines = [
        f"{about['cpu']}, {about['cores']} cores, load {about['load_average']} before the run.\n",
        "| what | row changes/s | of the statements by hand | aim |",
        "|---|---|---|---|",
    ]
    for f in figures:
        share = f"{f.ratio:.0%}" if f.ratio else ""
        aim = ("reached" if f.ratio >= AIM else f"missed ({AIM:.0%})") if f.ratio else ""
        lines.append(f"| {f.name} | {f.rows_per_s:,.0f} | {share} | {aim} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
