"""MySQL and MariaDB as sources, beside other readers of the same log, in one run.

    .venv/bin/python bench/mysql.py [--server mysql] [--scale 0.1] [--profile] [--docs]

Each workload is written by the server, then every reader reads it before the next one is written.
Prints tables in Markdown and keeps the figures in bench/results/. Nothing is judged by time: the
table of aims says what was reached.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mysql_feeds import LAG_TARGETS, TARGETS, Feeds
from mysql_load import ABOUT, WORKLOADS, Log, make, make_numbers
from mysql_profile import Stopwatch
from mysql_rivals import Debezium, python_replication, raw_copy
from mysql_stages import OneCore
from report import RESULTS, Figure, load_average, machine, one_core, put_into_page

from rowferry.spark.job import SparkRunner
from rowferry.spark.session import open_session
from rowferry.testing.servers import MariaDb, MySql, Server

SERVERS: dict[str, type[Server]] = {"mariadb": MariaDb, "mysql": MySql}
SETTINGS = ("--max-binlog-size=1G", "--innodb-buffer-pool-size=512M")
SYNCED = tuple(t for t in TARGETS if not t.place and "fsync" not in t.parameters)
FLOORS = (
    ("sysbench", "canal-json files", 1.5),
    ("sysbench", "csv files", 1.5),
    ("wide", "canal-json files", 2.0),
)
PARTS = ("stages", "feeds", "raw", "python", "debezium", "lag")
PYTHON_ROWS = 50_000  # python-mysql-replication is given the first so many
RATE = 10_000
LEAST_SHARE = 0.005  # of a feed's time: stages below are kept, but not shown


def main() -> None:
    """Run what was asked for."""
    asked = _asked()
    before = machine()
    folder = Path(tempfile.mkdtemp(prefix="rowferry-bench-"))
    try:
        with SERVERS[asked.server].start(folder / "server", options=SETTINGS) as server:
            runner = SparkRunner(open_session("bench", folder / "logs", "local[2]"))
            try:
                found = Bench(server, folder, runner, asked).run()
            finally:
                runner.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    about = {**before, "load_average_after": load_average(), "scale": asked.scale}
    result = {**about, **found}
    text = rendered(result)
    print(text)
    kept = asked.results / f"mysql-{asked.server}.json"
    asked.results.mkdir(parents=True, exist_ok=True)
    kept.write_text(json.dumps(result, indent=2) + "\n")
    print(f"kept in {kept}", file=sys.stderr)
    if asked.docs:
        put_into_page(asked.server, text)


def _asked() -> argparse.Namespace:
    ask = argparse.ArgumentParser()
    ask.add_argument("--server", choices=SERVERS, default="mariadb")
    ask.add_argument("--scale", type=float, default=1.0, help="1: 1.6 million changes of sysbench")
    ask.add_argument("--tries", type=int, default=3, help="the best of so many counts")
    ask.add_argument("--workloads", type=_words(list(WORKLOADS)), default=list(WORKLOADS))
    ask.add_argument("--without", type=_words(PARTS), default=[], help=", ".join(PARTS))
    ask.add_argument("--lag-seconds", type=float, default=20.0)
    ask.add_argument("--profile", action="store_true", help="also: where a feed's time goes")
    ask.add_argument("--docs", action="store_true", help="put the tables into the docs")
    ask.add_argument("--results", type=Path, default=RESULTS, help="where to keep the figures")
    return ask.parse_args()


def _words(known: Sequence[str]) -> Any:
    def words(text: str) -> list[str]:
        found = text.split(",")
        if unknown := [w for w in found if w not in known]:
            raise argparse.ArgumentTypeError(f"{unknown[0]}: choose from {', '.join(known)}")
        return found

    return words


class Bench:
    """One run on one server."""

    def __init__(
        self, server: Server, folder: Path, runner: SparkRunner, asked: argparse.Namespace
    ) -> None:
        self._server, self._folder, self._asked = server, folder, asked
        self._feeds = Feeds(server, folder, runner)

    def run(self) -> dict[str, Any]:
        """Measure everything; returns what is kept."""
        make_numbers(self._server, self._asked.scale)
        workloads, profiles = [], []
        for name in self._asked.workloads:
            _say(f"writing {name}")
            log = make(self._server, name, self._asked.scale)
            figures = []
            for figure in self._figures(log):
                _say(f"  {figure.name}: {figure.rows_per_s:,.0f} rows/s")
                figures.append(figure)
            _against_raw(figures)
            workloads.append({**asdict(log), "figures": [asdict(f) for f in figures]})
            if self._asked.profile:
                profiles += [_profile(*p) for p in self._feeds.profiles(log, TARGETS[0])]
        lags = list(self._lags()) if "lag" not in self._asked.without else []
        return {
            "server": str(self._server.execute("SELECT VERSION()")[0][0]),
            "workloads": workloads,
            "lag": lags,
            "aims": aims(workloads, lags),
            "profiles": profiles,
        }

    def _figures(self, log: Log) -> Iterator[Figure]:
        server, tries, without = self._server, self._asked.tries, self._asked.without
        if "raw" not in without:
            yield raw_copy(server, log, self._folder / "raw", tries)
        if "stages" not in without:
            with _on_one_core():
                yield from OneCore(server.login, log, tries).figures()
        if "feeds" not in without:
            for target in TARGETS:
                feed = self._feeds.figure(log, target, tries)
                yield feed
                if target in SYNCED:
                    yield self._feeds.floor(log, feed, tries)
        if "python" not in without:
            yield python_replication(server, log, PYTHON_ROWS)
        if "debezium" not in without:
            yield from Debezium(server, self._folder / "debezium").figures(log)

    def _lags(self) -> Iterator[dict[str, Any]]:
        self._feeds.prepare_lag()
        for target in LAG_TARGETS:
            _say(f"lag: {target.name}")
            yield self._feeds.lag(target, RATE, self._asked.lag_seconds)


def _say(words: str) -> None:
    print(words, file=sys.stderr, flush=True)


@contextmanager
def _on_one_core() -> Iterator[None]:
    all_cores = os.sched_getaffinity(0)
    one_core()
    try:
        yield
    finally:
        os.sched_setaffinity(0, all_cores)


def _against_raw(figures: list[Figure]) -> None:
    """Note how much longer than the copy of the log each one takes."""
    raw = next((f for f in figures if f.name.endswith("--raw")), None)
    for figure in figures:
        if raw is not None and figure is not raw:
            figure.baseline, figure.ratio = raw.name, raw.rows_per_s / figure.rows_per_s
    by_name = {f.name: f for f in figures}
    for target in SYNCED:
        feed = by_name.get(f"feed to {target.name}")
        written = by_name.get(f"write the bytes of {target.name}")
        if raw is not None and feed is not None and written is not None:
            floor = 1 / raw.rows_per_s + 1 / written.rows_per_s
            feed.other["times copying and writing"] = round(1 / feed.rows_per_s / floor, 2)


def _profile(title: str, seconds: float, watch: Stopwatch) -> dict[str, Any]:
    stages = {name: asdict(spent) for name, spent in watch.spent.items()}
    return {"title": title, "seconds": seconds, "stages": stages}


# --- aims ----------------------------------------------------------------------------------------


def aims(workloads: list[dict[str, Any]], lags: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Put beside each aim what was measured; aims whose figures were left out are not there."""
    rate = {(w["name"], f["name"]): f for w in workloads for f in w["figures"]}
    decode = rate.get(("sysbench", "decode rows events to Arrow, from memory"))
    feed = rate.get(("sysbench", "feed to canal-json files"))
    single = rate.get(("single-rows", "feed to canal-json files"))
    json_rate = rate.get(("sysbench", "Debezium, as JSON"))
    found: list[tuple[str, float, float, bool]] = []
    if decode:
        words = "decode row images/s on one core, sysbench"
        found.append((words, 3e6, decode["other"]["images/s"], True))
    if feed:
        words = "log to canal-json files, row changes/s, sysbench"
        found.append((words, 5e5, feed["rows_per_s"], True))
    if feed and json_rate:
        times = feed["rows_per_s"] / json_rate["rows_per_s"]
        found.append(("the same against Debezium's JSON, times", 15, times, True))
    for workload, target, most in FLOORS:
        one = rate.get((workload, f"feed to {target}"))
        if one and "times copying and writing" in one["other"]:
            words = f"{workload} to {target}, against copying the log and writing the bytes, times"
            found.append((words, most, one["other"]["times copying and writing"], False))
    if single:
        words = "log to canal-json files, single-row transactions/s"
        found.append((words, 1e5, single["rows_per_s"], True))
    for lag in lags:
        words = f"at {RATE:,} changes/s, ms, {lag['target']}"
        slow = "200ms" in lag["target"]  # its own setting says that it may
        found.append((f"lag p99 {words}", 400 if slow else 150, lag["p99 ms"], False))
        found.append((f"lag p50 {words}", 200 if slow else 60, lag["p50 ms"], False))
    return [
        {
            "what": words,
            "aim": aim,
            "measured": round(measured, 2),
            "at least": at_least,
            "reached": measured >= aim if at_least else measured <= aim,
        }
        for words, aim, measured, at_least in found
    ]


# --- the tables ----------------------------------------------------------------------------------


def rendered(result: dict[str, Any]) -> str:
    """Return the tables of a run in Markdown."""
    loads = " → ".join(
        "/".join(f"{n:.1f}" for n in result[key]) for key in ("load_average", "load_average_after")
    )
    parts = [
        f"{result['server']}, on {result['cores']} cores ({result['cpu']}), "
        f"{result['memory_gb']} GB of memory; Python {result['python']}; {result['at'][:10]}; "
        f"scale {result['scale']:g}; load average before and after {loads}."
    ]
    for one in result["workloads"]:
        parts.append(
            f"**{one['name']}**: {ABOUT[one['name']]}; {one['changes']:,} row changes, "
            f"{one['images']:,} row images, {(one['end'] - one['start']) / 1e6:,.0f} MB of log."
        )
        parts.append(_figure_table(one["figures"]))
    if result["lag"]:
        parts.append(f"**lag** at {RATE:,} row changes/s:")
        parts.append(_table(list(result["lag"][0]), [list(lag.values()) for lag in result["lag"]]))
    if result["aims"]:
        rows = [
            [
                a["what"],
                f"{'≥' if a['at least'] else '≤'} {a['aim']:,.10g}",
                _short(a["measured"]),
                "yes" if a["reached"] else "no",
            ]
            for a in result["aims"]
        ]
        parts += ["**aims**:", _table(["what", "aim", "measured", "reached"], rows)]
    parts += [_profile_text(p) for p in result["profiles"]]
    return "\n\n".join(parts) + "\n"


def _figure_table(figures: list[dict[str, Any]]) -> str:
    rows = [
        [
            f["name"],
            _short(f["rows_per_s"]),
            _short(f["mb_per_s"]),
            f"{f['ratio']:.1f}×" if f["ratio"] else "",
            ", ".join(f"{k} {_short(v)}" for k, v in (f["other"] or {}).items()),
        ]
        for f in figures
    ]
    return _table(["what", "row changes/s", "MB/s of log", "time against --raw", "more"], rows)


def _profile_text(profile: dict[str, Any]) -> str:
    least = profile["seconds"] * LEAST_SHARE
    shown = [(n, s) for n, s in profile["stages"].items() if s["wall_s"] >= least]
    stages = sorted(shown, key=lambda stage: -stage[1]["wall_s"])
    rows = [[n, f"{s['wall_s']:.2f}", f"{s['cpu_s']:.2f}", f"{s['calls']:,}"] for n, s in stages]
    title = f"**where the time goes**: {profile['title']}, {profile['seconds']:.2f} s in all"
    return f"{title}\n\n{_table(['stage', 'seconds', 'CPU seconds', 'calls'], rows)}"


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:,.2g}"


def _table(head: list[str], rows: list[list[Any]]) -> str:
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)


if __name__ == "__main__":
    main()
