"""Plants defects one by one in a copy of the sources, and sees whether somebody notices.

    make mutants [ARGS="--only id,id --limit 300 --table"]

A defect counts as caught when a test of `tests/moments` or `tests/histories` fails with it, while
an ordinary short feed still runs: what stops everything needs no searcher. Without a defect all
of these tests pass, which is seen first.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hunt import COPIES, KINDS, ORDERS, Orders
from planted import ROOT, Copy, Mutant, read_list
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

HERE = Path(__file__).parent
ORDINARY, HINTED = "mutants/ordinary.py", "moments/hinted.py"
SEARCHERS = ("tests/moments", "tests/histories")
RESULTS = ROOT / "bench" / "results" / "mutants.json"
PAGE = ROOT / "docs" / "guarantees.md"
BEGIN, END = "<!-- planted defects -->", "<!-- end of planted defects -->"
LIMIT_S = 600
_FEED = "test_an_ordinary_feed_runs"
CAUGHT, SURVIVED, CRASHES, ENDLESS = "caught", "survived", "crashes", "no end"
# Which sink an ordinary feed must still reach with a defect in these files; all others: storage.
SINKS = {
    "flow/sink/kafka/": "kafka",
    "flow/sink/queue/": "kafka",
    "flow/sink/packing.py": "kafka",
    "flow/dispatch/partition_rule.py": "kafka",
    "flow/dispatch/by_neighbours.py": "mysql",
    "flow/sink/mysql/": "mysql",
    "flow/sink/sql/": "mysql",
    "flow/sink/http/": "http",
    "flow/sink/lake/iceberg/": "iceberg",
    "flow/sink/lake/": "delta",
}


@dataclass(frozen=True)
class Outcome:
    """What became of a planted defect.

    Attributes:
        how: caught, survived, crashes (an ordinary feed does not run), no end (in time).
        by: the test that failed; words: what it said; seconds: after how long.
    """

    id: str
    how: str
    by: str = ""
    words: str = ""
    seconds: float = 0.0


def main() -> int:
    """Run what was asked for; 1: something was not caught."""
    ask = argparse.ArgumentParser()
    ask.add_argument("--only", default="", help="these ids only, with commas between them")
    ask.add_argument("--limit", type=float, default=LIMIT_S, help="seconds for each defect")
    ask.add_argument("--first-only", action="store_true", help="only what a defect names")
    ask.add_argument(
        "--control",
        choices=("first", "only", "none"),
        default="first",
        help="the run without a defect: before all others, alone, or not at all",
    )
    ask.add_argument("--table", action="store_true", help="write the page's table, run nothing")
    asked = ask.parse_args()
    known = read_list()
    if asked.table:
        write_table(known, read_results())
        return 0
    if missing := [where for where in SEARCHERS if not (ROOT / where).exists()]:
        ask.error(f"there is no {' and no '.join(missing)}")
    wanted = set(filter(None, asked.only.split(",")))
    if strange := wanted - {m.id for m in known}:
        ask.error(f"no such defect: {', '.join(sorted(strange))}")
    chosen = [m for m in known if not wanted or m.id in wanted]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that servers and files go
    outcomes = hunt_all(chosen, asked.limit, asked.first_only, asked.control)
    write_table(known, read_results())
    missed = [o for o in outcomes if o.how != CAUGHT]
    for one in missed:
        print(f"{one.how}: {one.id} {one.by} {one.words}")
    print(f"{len(outcomes) - len(missed)} of {len(outcomes)} caught")
    return 1 if missed else 0


def hunt_all(
    mutants: Sequence[Mutant], limit_s: float, first_only: bool, control: str
) -> list[Outcome]:
    """Plant each defect, and return what became of it; results are kept as they come."""
    outcomes: list[Outcome] = []
    with ExitStack() as held, _progress() as progress:
        folder = Path(tempfile.mkdtemp(prefix="rowferry-mutants-"))
        held.callback(shutil.rmtree, folder, ignore_errors=True)
        bar = progress.add_task("servers", total=len(mutants))
        servers = {
            name: [
                held.enter_context(kind.start(folder / str(number) / name))
                for number in range(COPIES.get(name, 1))
            ]
            for name, kind in KINDS.items()
        }
        copy = Copy(folder)
        hunter = Hunter(folder, copy, servers, limit_s, first_only)
        if control != "none":
            progress.update(bar, description="without a defect")
            sound = hunter.hunt(*mutants, sound=True)
            if sound.how != SURVIVED:
                raise SystemExit(f"without a defect: {sound.how} {sound.words}\n{sound.by}")
        for mutant in mutants if control != "only" else ():
            progress.update(bar, description=mutant.id)
            with copy.with_(mutant):
                outcome = hunter.hunt(mutant)
            outcomes.append(outcome)
            keep(outcome)
            progress.console.print(
                f"{outcome.how:9} {outcome.seconds:6.1f} s  {mutant.id}  {outcome.by}",
                markup=False,
                soft_wrap=True,
            )
            progress.advance(bar)
    return outcomes


def _progress() -> Progress:
    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, TextColumn("{task.description}"))


class Hunter:
    """Runs the searchers over the copy, one process for each defect."""

    def __init__(
        self,
        folder: Path,
        copy: Copy,
        servers: Mapping[str, Sequence[Any]],
        limit_s: float,
        first_only: bool,
    ) -> None:
        self._folder, self._copy, self._servers = folder, copy, servers
        self._limit_s, self._first_only = limit_s, first_only

    def hunt(self, *mutants: Mutant, sound: bool = False) -> Outcome:
        """Run until the first test fails; `sound`: none of them is planted."""
        self._tidy()
        name = "sound" if sound else mutants[0].id
        scratch = self._folder / "run"
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir()
        report, orders = scratch / "report.json", scratch / "orders"
        ordinary = ORDINARY if sound else f"{ORDINARY}::{_FEED}[{_sink(mutants[0])}]"
        first = tuple(dict.fromkeys(h for m in mutants for h in m.first))
        told = Orders(
            sources=str(self._copy.path),
            first=first,
            sound=sound,
            servers=self._servers,
            report=str(report),
        )
        orders.write_bytes(pickle.dumps(told))
        limit_s = self._limit_s * max(1, len(mutants) if sound else 1)
        where = [f"tests/{ordinary}", f"tests/{HINTED}"]
        where += [one for one in first if one.startswith("tests/")]
        if not self._first_only:
            where += SEARCHERS
        command = [
            *(sys.executable, "-m", "pytest", "-q", "-p", "hunt", "-p", "no:cacheprovider"),
            *(() if sound else ("-x",)),
            *("--timeout", str(int(limit_s)), f"--basetemp={scratch}/tmp", *where),
        ]
        paths = os.pathsep.join([str(self._copy.path), str(HERE)])
        env = {**os.environ, "PYTHONPATH": paths, ORDERS: str(orders)}
        began = time.monotonic()
        with open(self._folder / f"{name}.log", "wb") as log:
            child = subprocess.Popen(
                command, cwd=ROOT, env=env, stdout=log, stderr=log, start_new_session=True
            )
            try:
                code: int | None = child.wait(limit_s)
            except subprocess.TimeoutExpired:
                code = None
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(child.pid, signal.SIGKILL)
                child.wait()
        notes = json.loads(report.read_text()) if report.exists() else {}
        seconds = notes.get("seconds", round(time.monotonic() - began, 1))
        by = "\n".join(notes.get("failed", ())) if sound else notes.get("test", "")
        return Outcome(name, _how(code, notes), by, _said(notes), seconds)

    def _tidy(self) -> None:
        """Leave nothing of an earlier hunt on the servers."""
        for broker in self._servers["kafka"]:
            for topic in broker.topics():
                broker.delete_topic(topic)
        databases = [s for name, some in self._servers.items() if name != "kafka" for s in some]
        for server in databases:  # by a new connection: a history may have cut all others
            with closing(server.connect()) as connection, connection.cursor() as cursor:
                cursor.execute("XA RECOVER")
                for number, size, _, xid in cursor.fetchall():
                    name = xid if isinstance(xid, bytes) else str(xid).encode()
                    first, second = name[: int(size)].hex(), name[int(size) :].hex()
                    cursor.execute(f"XA ROLLBACK X'{first}', X'{second}', {number}")
                cursor.execute("SHOW DATABASES")
                for (database,) in cursor.fetchall():
                    if database not in ("mysql", "information_schema", "performance_schema", "sys"):
                        quoted = str(database).replace("`", "``")
                        cursor.execute(f"DROP DATABASE `{quoted}`")
                cursor.execute("FLUSH BINARY LOGS")


def _sink(mutant: Mutant) -> str:
    return next((sink for start, sink in SINKS.items() if mutant.file.startswith(start)), "storage")


def _how(code: int | None, notes: Mapping[str, Any]) -> str:
    if ORDINARY in notes.get("test", "") or (code not in (0, None) and "test" not in notes):
        return CRASHES
    if "test" in notes:
        return CAUGHT
    return SURVIVED if code == 0 else ENDLESS


def _said(notes: Mapping[str, Any]) -> str:
    return str(notes.get("words", ""))


# --- results and the page ------------------------------------------------------------------------


def read_results() -> dict[str, Outcome]:
    """Return what the last runs gave, by id."""
    if not RESULTS.exists():
        return {}
    kept = json.loads(RESULTS.read_text())
    return {one["id"]: Outcome(**one) for one in kept["mutants"]}


def keep(outcome: Outcome) -> None:
    """Put an outcome among the results; those of defects that are no longer listed go."""
    found = {**read_results(), outcome.id: outcome}
    listed = [found[m.id] for m in read_list() if m.id in found]
    whole = {
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "caught": sum(1 for o in listed if o.how == CAUGHT),
        "mutants": [asdict(o) for o in listed],
    }
    RESULTS.write_text(json.dumps(whole, indent=1, ensure_ascii=False) + "\n")


def write_table(mutants: Sequence[Mutant], outcomes: Mapping[str, Outcome]) -> None:
    """Put the table into the page."""
    page = PAGE.read_text()
    head, tail = page.split(BEGIN)[0], page.split(END)[1]
    PAGE.write_text(f"{head}{BEGIN}\n\n{table(mutants, outcomes)}\n{END}{tail}")


def table(mutants: Sequence[Mutant], outcomes: Mapping[str, Outcome]) -> str:
    """Return the list of defects and who notices them, for the page."""
    nobody = Outcome("", "not run yet")
    found = [outcomes.get(m.id, nobody) for m in mutants]
    caught = sum(1 for o in found if o.how == CAUGHT)
    lines = [
        f"{caught} of {len(mutants)} are noticed ({100 * caught // max(1, len(mutants))} %).",
        "",
        "| planted | what it breaks | promise | noticed by | after |",
        "|---|---|---|---|---|",
    ]
    for mutant, outcome in zip(mutants, found, strict=True):
        noticed = outcome.how == CAUGHT
        by = _shown(outcome.by) if noticed else f"**{outcome.how}**"
        after = f"{outcome.seconds:.0f} s" if noticed else ""
        lines.append(f"| {mutant.id} | {mutant.breaks} | {mutant.promise} | {by} | {after} |")
    return "\n".join(lines) + "\n"


def _shown(test: str) -> str:
    file, _, name = test.partition("::")
    if HINTED in file:
        what, _, case = name.partition("[")
        return f"{what.removeprefix('test_')} `{case.removesuffix(']')}`"
    return f"`{Path(file).parent.name}`: `{name}`"


if __name__ == "__main__":
    sys.exit(main())
