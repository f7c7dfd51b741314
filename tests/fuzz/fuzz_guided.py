"""`make fuzz-guided`: inputs that grow by what they reach in a reader; prints a table.

libFuzzer (through atheris) keeps each input that took a branch which none before it took, and goes
on from there. It asks the same targets as `make fuzz`, under the same rule: an answer, or an error
of ours. An input may take so much time of a core and so much memory, and no more.

Every target has a process of its own, forked from one that has imported all of them. What it found
does not end it: findings of one kind at one place count once, and each is a file.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import resource
import shutil
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

from fuzz_instrument import MISSING, instrumented, is_available

if TYPE_CHECKING:
    from fuzz_driver import Tally, Target

ROOT: Final = Path(__file__).parents[2]
KEPT: Final = ROOT / ".cache" / "fuzz"
RESULTS: Final = ROOT / "bench" / "results" / "fuzz-guided.json"
PAGE: Final = ROOT / "docs" / "security.md"
BEGIN, END = "<!-- figures: fuzz-guided -->", "<!-- end of figures: fuzz-guided -->"
SLOW_S: Final = 10.0  # of a core, for one input
GREEDY_MB: Final = 512  # that one input adds to the most that the process had
_STUCK_S: Final = 600  # of the clock: amid a call of a library, where no signal is seen
_SMALLEST: Final = 4096  # bytes that an input may have at least
_REACHED: Final = re.compile(r"^#\d+\s+([A-Za-z]+)\s+cov: (\d+) ft: \d+ corp: (\d+)/", re.MULTILINE)


@dataclass
class Guided:
    """What came of a target's inputs.

    Attributes:
        errors: by code.
        begun, reached: branches that the inputs at the start, and all inputs, took.
        corpus: inputs of which each takes a branch that no smaller one takes.
        found: a line for each kind of finding.
    """

    name: str
    inputs: int = 0
    read: int = 0
    refused: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    begun: int = 0
    reached: int = 0
    corpus: int = 0
    core_s: float = 0.0
    seconds: float = 0.0
    memory_mb: int = 0
    found: list[str] = field(default_factory=list)


class TooLong(BaseException):
    """An input takes longer than any may; no reader catches it."""


def folder_name(name: str) -> str:
    """Return the folder of a target."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def repeat_line(name: str, file: Path) -> str:
    """Return what shows a finding again."""
    return f'repeat: make fuzz-guided ONLY="{name}" ARGS="--input {file}"'


# --- one input ------------------------------------------------------------------------------------


def _too_long(_number: int, _frame: Any) -> NoReturn:
    raise TooLong(f"more than {SLOW_S:.0f} s of a core")


def judged(target: Target, data: bytes, tally: Tally) -> BaseException | None:
    """Return what is wrong with a target's answer to an input; None: nothing is."""
    from fuzz_driver import Found, answer

    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    signal.setitimer(signal.ITIMER_PROF, SLOW_S)
    try:
        answer(target, data, tally)
    except Found as found:
        return found.__cause__ or found
    except TooLong as late:
        return late
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - most >> 10
    return MemoryError(f"{grown} MB for one input") if grown > GREEDY_MB else None


def place_of(wrong: BaseException) -> str:
    """Return a finding's kind: the error's, and the innermost line of ours."""
    lines = traceback.extract_tb(wrong.__traceback__)
    ours = [one for one in lines if "/rowferry/" in one.filename] or lines
    where = f" at {Path(ours[-1].filename).name}:{ours[-1].lineno}" if ours else ""
    return type(wrong).__name__ + where


def words_of(wrong: BaseException) -> str:
    """Return a finding as a line."""
    return f"{place_of(wrong)} ({str(wrong)[:200]!r})"


# --- one target -----------------------------------------------------------------------------------


class Session:
    """The process of one target: it never comes back from `run`."""

    def __init__(self, target: Target, folder: Path, seconds: float, most: int, dice: int) -> None:
        from fuzz_driver import Tally

        self.target = target
        self.folder = folder
        self.most = most
        self.dice = dice
        self.tally = Tally(target.name)
        self.ends = time.monotonic() + seconds
        self.found: dict[str, str] = {}
        self.begun = time.monotonic()

    def run(self) -> NoReturn:
        """Guide until the time is over."""
        import atheris
        from fuzz_driver import limit_memory

        limit_memory()
        signal.signal(signal.SIGPROF, _too_long)
        seeds = self._write("seeds", {self._name(d): d for d in self.target.corpus})
        words = [
            '"' + "".join(f"\\x{byte:02x}" for byte in word) + '"' for word in self.target.words
        ]
        text = "\n".join(["# words of the format", *words, ""])
        self._write("words", {"words": text.encode()})
        (self.folder / "corpus").mkdir(exist_ok=True)
        for data in self.target.corpus:  # also loads what is imported late
            before = self.tally.refused
            self.one(data)
            if self.tally.refused > before:
                self.note(AssertionError("a valid input is refused"), data)
        longest = max((_SMALLEST, *(2 * len(data) for data in self.target.corpus)))
        options: dict[str, object] = {
            "seed": self.dice,
            "max_len": longest,
            "len_control": 0,
            "timeout": _STUCK_S,
            "rss_limit_mb": 0,  # the bounds are our own
            "malloc_limit_mb": 0,
            "artifact_prefix": f"{self.folder}/found/",
        }
        if words:
            options["dict"] = self.folder / "words" / "words"
        written = [f"-{key}={value}" for key, value in options.items()]
        atheris.Setup(["fuzz", *written, str(self.folder / "corpus"), str(seeds)], self.one)
        atheris.Fuzz()
        raise AssertionError("it ends by itself")

    def one(self, data: bytes) -> None:
        """Give one input; ends the process when it was the last one."""
        wrong = judged(self.target, data, self.tally)
        self.tally.inputs += 1
        if wrong is not None:
            self.note(wrong, data)
        if self.tally.inputs >= self.most or time.monotonic() > self.ends:
            self.finish()

    def note(self, wrong: BaseException, data: bytes) -> None:
        """Keep what was found, once for each kind; the smallest input of it."""
        kind = place_of(wrong)
        file = self.folder / "found" / hashlib.sha1(kind.encode()).hexdigest()[:12]
        if kind in self.found and file.stat().st_size <= len(data):
            return
        file.write_bytes(data)
        told = "".join(traceback.format_exception(wrong))
        file.with_suffix(".txt").write_text(f"{self.target.name}\n{data!r}\n\n{told}")
        self.found[kind] = (
            f"{self.target.name}: {words_of(wrong)}; {repeat_line(self.target.name, file)}"
        )

    def finish(self) -> NoReturn:
        """Leave what came of it, and end."""
        used = resource.getrusage(resource.RUSAGE_SELF)
        came = Guided(
            self.target.name,
            self.tally.inputs,
            self.tally.read,
            self.tally.refused,
            self.tally.errors,
            core_s=used.ru_utime + used.ru_stime,
            seconds=time.monotonic() - self.begun,
            memory_mb=used.ru_maxrss >> 10,
            found=list(self.found.values()),
        )
        (self.folder / "came.json").write_text(json.dumps(vars(came)))
        os._exit(0)

    def _write(self, name: str, files: dict[str, bytes]) -> Path:
        folder = self.folder / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for file, data in files.items():
            (folder / file).write_bytes(data)
        return folder

    @staticmethod
    def _name(data: bytes) -> str:
        return hashlib.sha1(data).hexdigest()


def guide(
    target: Target, kept: Path, seconds: float, most: int = sys.maxsize, dice: int = 1
) -> Guided:
    """Guide one target in a process of its own; return what came of it.

    Args:
        target: whom to ask.
        kept: where its inputs stay, for the next time; each target has a folder there.
        seconds: how long, by the clock.
        most: how many inputs at most.
        dice: the number that decides about all of them, with the inputs that are kept.
    """
    folder = kept / folder_name(target.name)
    (folder / "found").mkdir(parents=True, exist_ok=True)
    (folder / "came.json").unlink(missing_ok=True)
    before = set((folder / "found").iterdir())
    log = folder / "log"
    process = os.fork()
    if not process:
        with log.open("wb") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        try:
            Session(target, folder, seconds, most, dice).run()
        except BaseException:
            traceback.print_exc()
        os._exit(1)
    _, status = os.waitpid(process, 0)
    came = last(target, kept)
    if came is None:
        came = Guided(target.name)
        left = sorted(f for f in (folder / "found").glob("*-*") if f not in before)
        lines = [repeat_line(target.name, file) for file in left] or [f"see {log}"]
        came.found += [f"{target.name}: the process ended ({status}); {line}" for line in lines]
    return came


def last(target: Target, kept: Path) -> Guided | None:
    """Return what came of a target when it was last asked; None: it was not, or did not end."""
    folder = kept / folder_name(target.name)
    try:
        form = json.loads((folder / "came.json").read_text())
    except FileNotFoundError:
        return None
    came = Guided(**{**form, "errors": Counter(form["errors"])})
    steps = _REACHED.findall((folder / "log").read_text(errors="replace"))
    came.begun = next((int(cov) for word, cov, _ in steps if word == "INITED"), 0)
    came.reached, came.corpus = (int(steps[-1][1]), int(steps[-1][2])) if steps else (0, 0)
    return came


# --- all targets ----------------------------------------------------------------------------------


def table(all_came: Sequence[Guided]) -> str:
    """Return what came of all targets as a table in Markdown."""
    lines = [
        "| reader | inputs | read | refused | errors | branches, at first | branches reached "
        "| inputs kept | core s | seconds |",
        "|---|---:|---:|---:|---|---:|---:|---:|---:|---:|",
    ]
    for came in all_came:
        errors = ", ".join(f"{code} {count:,}" for code, count in came.errors.most_common())
        lines.append(
            f"| {came.name} | {came.inputs:,} | {came.read:,} | {came.refused:,} | {errors} "
            f"| {came.begun:,} | {came.reached:,} | {came.corpus:,} | {came.core_s:,.0f} "
            f"| {came.seconds:,.0f} |"
        )
    return "\n".join(lines)


def keep(figures: Sequence[Guided], dice: int, page: Path = PAGE) -> None:
    """Write the figures to bench/results and into the page."""
    sys.path.insert(0, str(ROOT / "bench"))
    from report import machine

    readers = [vars(came) for came in figures]
    RESULTS.write_text(json.dumps({**machine(), "dice": dice, "readers": readers}, indent=2) + "\n")
    inputs, core = sum(c.inputs for c in figures), sum(c.core_s for c in figures)
    text = (
        f"{inputs:,} inputs for {len(figures)} readers (`SEED={dice}`), {core / 60:,.0f} minutes "
        "of one core: no error but ours, none beyond its bounds.\n\n"
        f"{table(figures)}\n"
    )
    old = page.read_text()
    page.write_text(f"{old.split(BEGIN)[0]}{BEGIN}\n\n{text}\n{END}{old.split(END)[1]}")


def repeated(targets: Sequence[Target], file: Path) -> int:
    """Show what each target makes of an input; 1: something is wrong with it."""
    from fuzz_driver import Tally, limit_memory

    limit_memory()
    signal.signal(signal.SIGPROF, _too_long)
    ends = 0
    for target in targets:
        tally = Tally(target.name)
        wrong = judged(target, file.read_bytes(), tally)
        if wrong is not None:
            ends = 1
            traceback.print_exception(wrong)
            print(f"FOUND {target.name}: {words_of(wrong)}", flush=True)
        else:
            print(f"{target.name}: {'read' if tally.read else ', '.join(tally.errors)}", flush=True)
    return ends


def main(words: Sequence[str] | None = None) -> int:
    """Run; 1: an input was found that a reader must not answer as it does."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60, help="for each reader")
    parser.add_argument("--inputs", type=int, default=sys.maxsize, help="for each, at most")
    parser.add_argument("--dice", type=int, default=1)
    parser.add_argument("--only", action="append", help="readers whose names begin so")
    parser.add_argument("--input", type=Path, help="a file: show what readers make of it")
    parser.add_argument("--kept", type=Path, default=KEPT, help="where inputs stay")
    parser.add_argument("--fresh", action="store_true", help="forget the inputs of earlier runs")
    parser.add_argument("--show", action="store_true", help="what came of all readers so far")
    parser.add_argument("--docs", action="store_true", help="write that into docs/")
    parser.add_argument("--module", default="fuzz_targets", help="where the targets are")
    asked = parser.parse_args(words)
    if not is_available():
        print(MISSING, file=sys.stderr)
        return 2
    targets = instrumented(asked.module)
    chosen = [t for t in targets if t.name.startswith(tuple(asked.only or [""]))]
    if asked.input:
        return repeated(chosen, asked.input)
    all_came = []
    for number, target in enumerate(() if asked.show else chosen, start=1):
        if asked.fresh:
            shutil.rmtree(asked.kept / folder_name(target.name), ignore_errors=True)
        came = guide(target, asked.kept, asked.seconds, asked.inputs, asked.dice)
        all_came.append(came)
        print(
            f"{number}/{len(chosen)} {came.name}: {came.inputs:,} inputs, {came.reached:,} "
            f"branches, {len(came.found)} findings",
            file=sys.stderr,
            flush=True,
        )
        for line in came.found:
            print(f"FOUND {line}", flush=True)
    if asked.show or asked.docs:  # of all readers, whenever they were asked
        everyone = [last(target, asked.kept) for target in targets]
        all_came = [came for came in everyone if came is not None]
    print(table(all_came))
    if asked.docs:
        keep(all_came, asked.dice)
    return int(any(came.found for came in all_came))


if __name__ == "__main__":
    sys.exit(main())
