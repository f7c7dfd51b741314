"""How a changefeed grows with a Spark cluster: one worker of one core, then two, then on paper.

    .venv/bin/python bench/cluster.py [--scale 1] [--tries 2] [--docs]

A Spark standalone cluster on this machine carries MySQL's log to csv files. The processor time of
the driver, of Java, of tasks and of the source is taken apart. Runs with segments of two lengths,
and with many tables, tell what the driver spends on each megabyte, segment and table; from
these constants follow the predictions, which are arithmetic and not measurements. Two cores are
shared by all processes: the times of two workers show how work is shared out, not how a cluster of
two machines would do.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from beside_bare import keep_run, logged, scratch
from mysql_feeds import Feeds, Target
from mysql_load import Log, make
from report import Figure, machine, put_into_page
from soak_plot import Line, chart

from rowferry.change.plan import Plan, Receipt, TableSlice
from rowferry.change.table import TableSchema
from rowferry.control.feed.loop import SegmentRunner
from rowferry.spark.job import SparkRunner
from rowferry.spark.session import open_session
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.testing.servers import MySql
from rowferry.testing.servers.spark.cluster import SparkCluster

PAGE = Path(__file__).parents[1] / "docs" / "scaling.md"
LONG = Target("csv files", "protocol=csv&fsync=false")
SHORT = Target("csv files of 8 MB", "protocol=csv&fsync=false&file-size=8388608")
WORKERS = (1, 2)
CORES = (1, 2, 4, 8, 16, 32, 64)
GOALS = ((100, 1_000), (1_000, 1_000), (100, 100_000))  # MB/s of log, tables in a minute


@dataclass(frozen=True)
class Spent:
    """Processor time of one delivery, in core seconds, and what it delivered."""

    seconds: float
    driver: float
    java: float
    tasks: float
    source: float
    megabytes: float
    segments: int
    files: int


@dataclass(frozen=True)
class Model:
    """What things cost, in core seconds.

    Attributes:
        task_mb: tasks, for a megabyte of log.
        driver_mb: the driver, for a megabyte of log.
        driver_segment: the driver, for a segment.
        driver_file: the driver, for a file, which is a table that has rows in a micro-batch.
        task_file: tasks, for a file.
        source_mb: the source, for a megabyte of log that it sends to the driver and to a task.
    """

    task_mb: float
    driver_mb: float
    driver_segment: float
    driver_file: float
    task_file: float
    source_mb: float

    def driver_limit(self, segment_mb: float) -> float:
        """Return the MB/s of log at which the driver's one core is busy all the time."""
        return 1 / (self.driver_mb + self.driver_segment / segment_mb)

    def speed(self, cores: int, segment_mb: float) -> float:
        """Return the MB/s of log that so many cores of tasks reach, with few tables."""
        return min(cores / self.task_mb, self.driver_limit(segment_mb))

    def needed(self, mb_s: float, files_s: float, segment_mb: float) -> tuple[float, float]:
        """Return the cores that tasks need, and the share of the driver's core."""
        tasks = mb_s * self.task_mb + files_s * self.task_file
        driver = mb_s * (self.driver_mb + self.driver_segment / segment_mb)
        return tasks, driver + files_s * self.driver_file


def main() -> None:
    """Run what was asked for."""
    ask = argparse.ArgumentParser()
    ask.add_argument("--scale", type=float, default=1.0, help="1: 1.6 million changes")
    ask.add_argument("--tries", type=int, default=2, help="the best of so many counts")
    ask.add_argument("--docs", action="store_true", help="put the tables into the docs")
    asked = ask.parse_args()
    before = machine()
    runs: dict[str, Spent] = {}
    with scratch() as folder, logged(folder, asked.scale) as (server, log):
        tables = make(server, "many-tables", asked.scale)
        for workers in WORKERS:
            with _cluster(server, folder, workers) as (cluster, feeds):
                runs[f"{workers}"] = _best(server, cluster, feeds, log, LONG, asked.tries)
                if workers == WORKERS[-1]:
                    runs["short"] = _best(server, cluster, feeds, log, SHORT, asked.tries)
                    runs["tables"] = _best(server, cluster, feeds, tables, LONG, asked.tries)
    model = fitted(runs)
    figures = [
        Figure(name, mb_per_s=s.megabytes / s.seconds, other=vars_of(s)) for name, s in runs.items()
    ]
    figures.append(Figure("model", other=vars_of(model)))
    keep_run("cluster", before, figures, scale=asked.scale)
    text = page(runs, model, before)
    print(text)
    if asked.docs:
        put_into_page("scaling", text, PAGE)
        points = [(float(n), model.speed(n, _segment_mb(runs))) for n in CORES]
        lines = [Line("predicted, few tables", points)]
        measured = [(float(n), runs[f"{n}"].megabytes / runs[f"{n}"].seconds) for n in WORKERS]
        lines.append(Line("measured, all on two cores", measured))
        image = PAGE.parent / "images" / "scaling-cores.svg"
        chart(image, "Log to csv files", "MB/s", lines, (), log=False, along="cores of tasks")


def vars_of(thing: Any) -> dict[str, Any]:
    """Return a dataclass's numbers, rounded for people."""
    return {k: float(f"{getattr(thing, k):.3g}") for k in thing.__dataclass_fields__}


def fitted(runs: dict[str, Spent]) -> Model:
    """Return the constants that the runs' processor times give."""
    long, short, tables = runs[f"{WORKERS[-1]}"], runs["short"], runs["tables"]
    segment = max(0.0, (short.driver - long.driver) / max(1, short.segments - long.segments))
    megabyte = max(0.0, long.driver - segment * long.segments) / long.megabytes
    rest = tables.driver - megabyte * tables.megabytes - segment * tables.segments
    task_mb = long.tasks / long.megabytes
    task_rest = tables.tasks - task_mb * tables.megabytes
    return Model(
        task_mb=task_mb,
        driver_mb=megabyte,
        driver_segment=segment,
        driver_file=max(0.0, rest) / tables.files,
        task_file=max(0.0, task_rest) / tables.files,
        source_mb=long.source / long.megabytes,
    )


# --- measuring -----------------------------------------------------------------------------------


@contextmanager
def _cluster(server: MySql, folder: Path, workers: int) -> Iterator[tuple[SparkCluster, Feeds]]:
    with SparkCluster(folder / f"spark-{workers}", workers, "1g") as cluster:
        session = open_session("bench", folder / "logs", cluster.master, cluster.settings)
        runner = SparkRunner(session)
        try:
            yield cluster, Feeds(server, folder, runner)
        finally:
            runner.close()


def _best(
    server: MySql, cluster: SparkCluster, feeds: Feeds, log: Log, target: Target, tries: int
) -> Spent:
    """Deliver a log several times; the first warms up, the quickest of the others counts."""
    spent = [_once(server, cluster, feeds, log, target) for _ in range(tries + 1)]
    best = min(spent[1:], key=lambda s: s.seconds)
    print(f"{log.name} to {target.name}: {best}", flush=True)
    return best


class _Counting:
    """A runner that counts the segments it is given."""

    def __init__(self, runner: SegmentRunner) -> None:
        self._runner, self.segments = runner, 0

    def run(
        self, spec: ChangefeedSpec, plan: Plan, tables: Mapping[TableSlice, TableSchema]
    ) -> list[Receipt]:
        """Run a plan."""
        self.segments += len(plan.stretch.segments)
        return self._runner.run(spec, plan, tables)

    def close(self) -> None:
        """Nothing of its own is open."""


def _once(server: MySql, cluster: SparkCluster, feeds: Feeds, log: Log, target: Target) -> Spent:
    before = _used(server, cluster)
    counting = _Counting(feeds.runner)
    ended = feeds.ended(log, target, counting)
    after = _used(server, cluster)
    driver, java, tasks, source = (b - a for a, b in zip(before, after, strict=True))
    return Spent(
        seconds=ended.seconds,
        driver=driver,
        java=java,
        tasks=tasks,
        source=source,
        megabytes=log.size / 1e6,
        segments=counting.segments,
        files=sum(len(step.tables) for step in ended.steps),
    )


def _used(server: MySql, cluster: SparkCluster) -> tuple[float, float, float, float]:
    """Return core seconds of the driver, of all Java, of Python workers and of the source."""
    me = os.getpid()
    java = tasks = 0.0
    for process in [psutil.Process(pid) for pid in cluster.executors()]:
        java += _of(process)
        tasks += sum(map(_of, process.children(recursive=True)))
    for child in psutil.Process(me).children(recursive=True):
        try:
            if "org.apache.spark.deploy.SparkSubmit" in " ".join(child.cmdline()):
                java += _of(child)
        except psutil.Error:
            continue
    return _of(psutil.Process(me)), java, tasks, _of(psutil.Process(server.pid))


def _of(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.Error:
        return 0.0
    # Workers are forked by a daemon of Python: those that have ended count with it.
    return float(times.user + times.system + times.children_user + times.children_system)


# --- what is shown -------------------------------------------------------------------------------


def _segment_mb(runs: dict[str, Spent]) -> float:
    long = runs[f"{WORKERS[-1]}"]
    return long.megabytes / max(1, long.segments)


def page(runs: dict[str, Spent], model: Model, about: dict[str, Any]) -> str:
    """Return the tables of the page."""
    names = {
        **{f"{n}": f"sysbench, {n} worker{'s' * (n > 1)} of one core" for n in WORKERS},
        "short": f"the same, {WORKERS[-1]} workers, short segments",
        "tables": f"many tables, {WORKERS[-1]} workers",
    }
    segment_mb = _segment_mb(runs)
    lines = [
        f"{about['cpu']}, {about['cores']} cores, {about['at'][:10]}, load "
        f"{about['load_average']} before the run.\n",
        "| run | MB of log | segments | files | s | MB/s | core s: tasks | driver | Java | "
        "source |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for key, s in runs.items():
        lines.append(
            f"| {names[key]} | {s.megabytes:,.0f} | {s.segments:,} | {s.files:,} | {s.seconds:.2f} "
            f"| {s.megabytes / s.seconds:,.0f} | {s.tasks:.2f} | {s.driver:.2f} | {s.java:.2f} | "
            f"{s.source:.2f} |"
        )
    lines += [
        "",
        "| constant | core ms |",
        "|---|---:|",
        f"| tasks, for a megabyte of log | {1000 * model.task_mb:.3g} |",
        f"| tasks, for a file | {1000 * model.task_file:.3g} |",
        f"| driver, for a megabyte of log | {1000 * model.driver_mb:.3g} |",
        f"| driver, for a segment | {1000 * model.driver_segment:.3g} |",
        f"| driver, for a file | {1000 * model.driver_file:.3g} |",
        f"| source, for a megabyte of log | {1000 * model.source_mb:.3g} |",
        "",
        "| log | tables with rows in a minute | cores that tasks need | of the driver's one core |",
        "|---|---:|---:|---|",
    ]
    for mb_s, tables in GOALS:
        tasks, driver = model.needed(mb_s, tables / 60, segment_mb)
        fits = "" if driver <= 1 else " — more than it has"
        lines.append(f"| {mb_s:,} MB/s | {tables:,} | {tasks:.1f} | {driver:.0%}{fits} |")
    limit = model.driver_limit(segment_mb)
    lines += [
        "",
        f"With segments of {segment_mb:.0f} MB and few tables the driver's core is busy all the "
        f"time at {limit:,.0f} MB/s of log; tasks need {limit * model.task_mb:.0f} cores for that.",
        "",
        "![MB/s of log by cores of tasks](images/scaling-cores.svg)",
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
