"""The two lanes of the suite, and the run of one: its files are spread over processes.

A folder of tests is in one lane. The first one holds what every change must pass at once: style,
types, what needs no servers, the contracts, and `tests/slice`, a thin slice through every real
server. The rest is all other folders.

`python tests/lanes.py first` runs a lane. Each of its processes is a pytest that collects all of
the lane, and runs the files that no other has claimed. So a process that waits leaves the other
files to the others, and no list says who runs what. This process keeps the servers that all of them
use (`kept_servers.py`).

Very few tests that fail are run once more when all others are over, in a process of their own: what
passes then does not stop a change, and is named at the end. It is a defect all the same, of the
test or of the product, and what it said stands above.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest

ROOT: Final = Path(__file__).parents[1]
FIRST: Final = ("arch", "contract", "property", "slice", "unit", "vectors")
# Targets of their own run these, which need what takes long to fetch or to build.
APART: Final = ("spark_lake", "spark_versions", "tidb")
# Their files take minutes each: begun last, one of them would keep everybody waiting.
LONG: Final = ("slice", "moments", "chaos", "contract")
LANES: Final = ("first", "rest")
# Single files of the same kind, among folders of short ones.
LONG_FILES: Final = (
    "tests/integration/test_docs_examples.py",
    "tests/integration/test_run.py",
    "tests/integration/spark/test_datasource.py",
)
SLOWEST: Final = 12  # files that a run names at its end
MOST_AGAIN: Final = 2  # tests that are run once more; of more, something is broken


def folders_of(lane: str, root: Path = ROOT) -> list[str]:
    """Return the folders of a lane, in the order of their run: those named above, or all others."""
    tests = root / "tests"
    folders = {p.relative_to(tests).parts[0] for p in tests.rglob("test_*.py")} - {*APART}
    chosen = [f for f in sorted(folders) if (f in FIRST) == (lane == "first")]
    return [f"tests/{f}" for f in sorted(chosen, key=lambda f: f not in LONG)]


# --- inside of pytest ----------------------------------------------------------------------------


def pytest_addoption(parser: pytest.Parser) -> None:
    """This module is a plugin of the processes that share a lane."""
    parser.addoption("--claims", required=True, help="the folder of the run")


def pytest_configure(config: pytest.Config) -> None:
    """Claim files instead of running all."""
    config.pluginmanager.register(Claiming(Path(config.getoption("--claims"))))


class Claiming:
    """Runs the files that no other process of the run has claimed, and tells what came of them.

    `run` is the folder of the run: an empty file in `claims` for each claimed file of tests, and
    a file of lines by each process: how many tests there are, then each test's file, outcome and
    seconds.
    """

    def __init__(self, run: Path) -> None:
        self._claims = run / "claims"
        self._told = (run / f"{os.getpid()}.told").open("w", encoding="utf-8", buffering=1)
        self._outcomes: dict[str, str] = {}
        self._seconds: dict[str, float] = {}

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Run tests as pytest does, except for those of claimed files.

        The file after the last one is claimed before the last test of a file runs: its fixtures
        end by what comes next.
        """
        if session.testsfailed:
            raise session.Interrupted(f"{session.testsfailed} errors while collecting")
        self._tell({"tests": len(session.items)})
        mine = self._claimed(session.items)
        item = next(mine, None)
        while item is not None:
            after = next(mine, None)
            session.config.hook.pytest_runtest_protocol(item=item, nextitem=after)
            if session.shouldfail:
                raise session.Failed(session.shouldfail)
            if session.shouldstop:
                raise session.Interrupted(session.shouldstop)
            item = after
        return True

    def _claimed(self, items: Iterable[pytest.Item]) -> Iterator[pytest.Item]:
        files: dict[str, list[pytest.Item]] = {}
        for item in items:
            files.setdefault(item.nodeid.partition("::")[0], []).append(item)
        for name, tests in sorted(files.items(), key=lambda file: file[0] not in LONG_FILES):
            try:
                (self._claims / name.replace("/", "+")).touch(exist_ok=False)
            except FileExistsError:
                continue
            yield from tests

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note the phases of a test; the last one ends it."""
        name = report.nodeid
        self._seconds[name] = self._seconds.get(name, 0.0) + report.duration
        if report.outcome != "passed":
            self._outcomes[name] = report.outcome
        if report.when == "teardown":
            outcome = self._outcomes.pop(name, "passed")
            self._tell([name.partition("::")[0], outcome, self._seconds.pop(name), name])

    def _tell(self, what: object) -> None:
        self._told.write(json.dumps(what) + "\n")


# --- the run of a lane ---------------------------------------------------------------------------


@dataclass
class Part:
    """What came of one part of the tests."""

    outcomes: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0


@dataclass
class Told:
    """What the processes of a run have told: their counts of tests, and outcomes by file."""

    collected: set[int] = field(default_factory=set)
    files: dict[str, Part] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)

    def take(self, line: str) -> None:
        """Take one line of one process."""
        said: Any = json.loads(line)
        if isinstance(said, dict):
            self.collected.add(said["tests"])
            return
        name, outcome, seconds, test = said
        if outcome == "failed":
            self.failed.append(test)
        part = self.files.setdefault(name, Part())
        part.outcomes[outcome] += 1
        part.seconds += seconds

    def parts(self) -> dict[str, Part]:
        """Sum up by part of the suite: a folder of tests/, or of tests/integration/."""
        found: dict[str, Part] = {}
        for name, one in sorted(self.files.items()):
            folders = name.split("/")[1:-1]
            part = found.setdefault("/".join(folders[: 1 + (folders[0] == "integration")]), Part())
            part.outcomes += one.outcomes
            part.seconds += one.seconds
        return found

    def wrong(self) -> list[str]:
        """Say why this is no run in which every test passed; nothing when it is one."""
        ran: Counter[str] = sum((f.outcomes for f in self.files.values()), Counter())
        found = [f"{count} {outcome}" for outcome, count in ran.items() if outcome != "passed"]
        if len(self.collected) != 1:
            counts = ", ".join(map(str, sorted(self.collected))) or "nothing"
            found.append(f"the processes did not collect the same tests: {counts}")
        elif self.collected != {ran.total()}:
            found.append(f"{ran.total()} tests ran of {max(self.collected)}")
        return found


class Run:
    """One lane, run by some processes, and by commands beside them; it is waited for in `wait`."""

    def __init__(self, lane: str, root: Path, folder: Path, stack: ExitStack) -> None:
        self._lane, self._root = lane, root
        self._folder = folder
        self._stack = stack
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        (folder / "claims").mkdir(parents=True)

    def start(self, name: str, command: Sequence[str | Path]) -> None:
        """Start a command of this run; what it prints is kept for the case that it fails."""
        log = self._stack.enter_context((self._folder / f"{name}.log").open("wb"))
        paths = [str(ROOT / "tests"), *filter(None, [os.environ.get("PYTHONPATH")])]
        child = subprocess.Popen(
            command,
            cwd=self._root,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        self._stack.callback(_end, child)
        self._children[name] = child

    def start_pytest(self, processes: int, more: Sequence[str]) -> None:
        """Start the processes that share this lane's files."""
        pytest = [sys.executable, "-m", "pytest", "-p", "lanes", f"--claims={self._folder}", *more]
        for number in range(1, processes + 1):
            self.start(f"pytest-{number}", [*pytest, *folders_of(self._lane, self._root)])

    def wait(self) -> tuple[Told, list[str]]:
        """Wait for all; return what was told, and the names of what failed."""
        told, read, shown = Told(), {}, set()
        while True:
            over = all(child.poll() is not None for child in self._children.values())
            for path in self._folder.glob("*.told"):
                text = path.read_text("utf-8")
                new = text[read.get(path, 0) : text.rfind("\n") + 1]
                read[path] = read.get(path, 0) + len(new)
                for line in new.splitlines():
                    told.take(line)
            for name, part in told.files.items():
                if set(part.outcomes) != {"passed"} and name not in shown:
                    shown.add(name)
                    print(f"   not passed: a test of {name}", flush=True)
            if over:
                return told, [n for n, c in self._children.items() if c.returncode != 0]
            time.sleep(0.5)

    def print_log(self, name: str) -> None:
        """Print all that a command said."""
        print(f"== what {name} said", flush=True)
        print((self._folder / f"{name}.log").read_text("utf-8", "replace"), flush=True)


def _end(child: subprocess.Popen[bytes]) -> None:
    if child.poll() is None:
        child.terminate()
        child.wait()


def shown(told: Told) -> str:
    """Return a line for each part: what came of its tests, and how long they took in all."""
    lines = []
    for name, part in told.parts().items():
        outcomes = ", ".join(f"{count} {what}" for what, count in sorted(part.outcomes.items()))
        lines.append(f"   {name:24} {outcomes:24} {part.seconds:7.0f} s")
    return "\n".join(lines)


def slowest(told: Told, count: int = SLOWEST) -> str:
    """Return a line for each of the files that took longest, the longest first."""
    files = sorted(told.files.items(), key=lambda file: -file[1].seconds)[:count]
    return "\n".join(
        f"   {part.seconds:7.0f} s in {part.outcomes.total():4} tests of {name}"
        for name, part in files
    )


def main(arguments: Sequence[str] | None = None, root: Path = ROOT) -> int:
    """Run a lane; return the exit code."""
    parser = argparse.ArgumentParser(prog="lanes.py", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("lane", choices=LANES)
    parser.add_argument("--processes", type=int, default=(os.cpu_count() or 1) + 1)
    parser.add_argument("--beside", action="append", default=[], help="a command to run meanwhile")
    chosen, more = parser.parse_known_args(arguments)
    from kept_servers import Keeper  # what every process of a run would load, and one uses

    began = time.monotonic()
    print(f"== pytest: the tests of the {chosen.lane} lane in {chosen.processes} processes")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="lane-")))
        run = Run(chosen.lane, root, folder, stack)
        stack.enter_context(Keeper(folder))
        for command in chosen.beside:
            print(f"== beside: {command}", flush=True)
            words = shlex.split(command)
            run.start(Path(words[0]).name, words)
        run.start_pytest(chosen.processes, more)
        told, failed = run.wait()
        for name in failed:
            run.print_log(name)
    wrong = [*told.wrong(), *(f"{name} failed" for name in failed)]
    unsteady = told.failed if _only_tests(told, failed) and _pass_alone(told.failed, root) else []
    wrong = [] if unsteady else wrong
    print(f"{shown(told)}\n   the files that took longest:\n{slowest(told)}")
    minutes, seconds = divmod(round(time.monotonic() - began), 60)
    count = sum(f.outcomes.total() for f in told.files.values())
    result = f"NOT PASSED: {'; '.join(wrong)}" if wrong else "all passed"
    for test in unsteady:
        print(f"   NOT STEADY, passed only when it was run again: {test}")
    print(f"== {chosen.lane} lane: {result}: {count} tests in {minutes} min {seconds} s")
    return 1 if wrong else 0


def _only_tests(told: Told, failed: Sequence[str]) -> bool:
    """Return whether nothing else is wrong than that very few tests failed."""
    few = 0 < len(told.failed) <= MOST_AGAIN
    alone = told.wrong() == [f"{len(told.failed)} failed"]
    return few and alone and all(name.startswith("pytest-") for name in failed)


def _pass_alone(tests: Sequence[str], root: Path) -> bool:
    """Run tests once more, in a process of their own with servers of its own."""
    print(f"== once more: {', '.join(tests)}", flush=True)
    return subprocess.run([sys.executable, "-m", "pytest", *tests], cwd=root).returncode == 0


def end_with_the_run() -> None:
    """Let a request to end be an error here, so that processes and servers end with this one."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))


if __name__ == "__main__":
    end_with_the_run()
    sys.exit(main())
