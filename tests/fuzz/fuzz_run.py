"""`make fuzz`: so many inputs for all readers, in proportion to their shares; prints a table.

The inputs come in parts of fixed size, each with dice of its own: the same number gives the same
inputs, however many processes share them. A process that ends amid an input leaves it behind.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import mmap
import multiprocessing
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from fuzz_driver import Found, Tally, Target, fuzz, limit_memory, most_memory_mb, table
from fuzz_targets import TARGETS

PART: Final = 20_000  # inputs of one target that a process takes at a time
ROOT: Final = Path(__file__).parents[2]
RESULTS: Final = ROOT / "bench" / "results" / "fuzz.json"
PAGE: Final = ROOT / "docs" / "security.md"
BEGIN, END = "<!-- figures: fuzz -->", "<!-- end of figures: fuzz -->"
_LONGEST: Final = 1 << 20  # an input that is left behind is cut there

_known: dict[str, Target] = {}
_left: mmap.mmap | None = None


def spread(inputs: int, targets: list[Target]) -> dict[str, int]:
    """Return how many inputs each target gets."""
    shares = sum(t.share for t in targets)
    return {t.name: max(1, inputs * t.share // shares) for t in targets}


def parts(inputs: int, targets: list[Target]) -> list[tuple[str, int, int]]:
    """Return the pieces of work: a target's name, which part of its inputs, how many they are.

    All targets have their first part before any has its second: what is wrong shows early.
    """
    counts = spread(inputs, targets)
    found = [
        (name, at // PART, min(PART, count - at))
        for name, count in counts.items()
        for at in range(0, count, PART)
    ]
    return sorted(found, key=lambda piece: piece[1])


def _begin(targets: list[Target], folder: str) -> None:
    """Make a process ready: bounded, and with a place for the input that it has in hand."""
    global _left
    faulthandler.enable()
    limit_memory()
    _known.update({t.name: t for t in targets})
    file = Path(folder) / multiprocessing.current_process().name
    with file.open("w+b") as left:
        left.truncate(_LONGEST + 8)
        _left = mmap.mmap(left.fileno(), 0)


def _note(data: bytes) -> None:
    assert _left is not None
    size = min(len(data), _LONGEST)
    _left[:8] = size.to_bytes(8, "little")
    _left[8 : 8 + size] = data[:size]


def _run(name: str, part: int, inputs: int, number: int, twice: bool) -> Tally:
    most_memory_mb()
    found = fuzz(_known[name], inputs, number, twice, part, _note)
    found.memory_mb = most_memory_mb()
    return found


@contextmanager
def _pool(targets: list[Target], processes: int, folder: str) -> Iterator[ProcessPoolExecutor]:
    context = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(processes, context, _begin, (targets, folder)) as pool:
        yield pool


def _left_behind(folder: str) -> str:
    """Return the inputs that processes had in hand."""
    found = []
    for file in sorted(Path(folder).iterdir()):
        data = file.read_bytes()
        found.append(data[8 : 8 + int.from_bytes(data[:8], "little")].hex())
    return " or ".join(found)


def run(
    targets: list[Target],
    inputs: int,
    number: int = 1,
    processes: int = 1,
    twice: bool = False,
    most_s: float = float("inf"),
) -> tuple[list[Tally], list[str]]:
    """Give all targets their inputs; return what came of them, and what was found.

    After `most_s` seconds nothing new is begun.
    """
    tallies = {t.name: Tally(t.name) for t in targets}
    pieces, wrong, begun = parts(inputs, targets), [], time.monotonic()
    with (
        tempfile.TemporaryDirectory(prefix="rowferry-fuzz-") as folder,
        _pool(targets, processes, folder) as pool,
    ):
        jobs: dict[Future[Tally], str] = {
            pool.submit(_run, *piece, number, twice): piece[0] for piece in pieces
        }
        for done, job in enumerate(as_completed(jobs), start=1):
            name = jobs[job]
            try:
                tallies[name].add(job.result())
            except Found as found:
                wrong.append(str(found))
            except BrokenProcessPool:
                wrong.append(f"a process ended amid an input: {_left_behind(folder)}")
                break
            total = sum(t.inputs for t in tallies.values())
            took = time.monotonic() - begun
            print(
                f"{done}/{len(pieces)} {name}: {total:,} inputs, {took:,.0f} s",
                file=sys.stderr,
                flush=True,
            )
            if took > most_s:
                pool.shutdown(wait=False, cancel_futures=True)
                break
    return list(tallies.values()), wrong


def keep(tallies: list[Tally], number: int, page: Path, add: bool = False) -> None:
    """Write the figures to bench/results and into the page; `add`: to those of earlier runs."""
    sys.path.insert(0, str(ROOT / "bench"))
    from report import machine

    sums = {one.name: one for one in tallies}
    numbers = [number]
    if add:
        before = json.loads(RESULTS.read_text())
        numbers = list(dict.fromkeys([*before["numbers"], number]))
        for old in before["readers"]:
            found = Tally(**{**old, "errors": Counter(old["errors"])})
            sums.setdefault(found.name, Tally(found.name)).add(found)
    ordered = [sums[t.name] for t in TARGETS if t.name in sums]
    ordered += [one for name, one in sums.items() if one not in ordered]
    whole = {**machine(), "numbers": numbers, "readers": [vars(one) for one in ordered]}
    RESULTS.write_text(json.dumps(whole, indent=2) + "\n")
    inputs, seconds = sum(t.inputs for t in ordered), sum(t.seconds for t in ordered)
    dice = ", ".join(f"`SEED={n}`" for n in numbers)
    text = (
        f"{inputs:,} inputs ({dice}), {seconds / 60:,.0f} minutes of one core: no crash, no hang, "
        "no error but ours. *Memory* is the most that a process had, with all libraries.\n\n"
        f"{table(ordered)}\n"
    )
    old = page.read_text()
    page.write_text(f"{old.split(BEGIN)[0]}{BEGIN}\n\n{text}\n{END}{old.split(END)[1]}")


def main() -> int:
    """Run; 1: an input was found that a reader must not answer as it does."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--dice", type=int, default=1)
    parser.add_argument("--only", action="append", help="readers whose names begin so")
    parser.add_argument("--missing", action="store_true", help="readers that the figures lack")
    parser.add_argument("--twice", action="store_true", help="compare with other bytes behind")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin nothing after")
    parser.add_argument("--docs", action="store_true", help="write the figures into docs/")
    parser.add_argument("--add", action="store_true", help="to the figures of earlier runs")
    asked = parser.parse_args()
    chosen = [t for t in TARGETS if t.name.startswith(tuple(asked.only or [""]))]
    if asked.missing:
        known = {one["name"] for one in json.loads(RESULTS.read_text())["readers"]}
        chosen = [t for t in chosen if t.name not in known]
    tallies, wrong = run(
        chosen, asked.inputs, asked.dice, asked.processes, asked.twice, 60 * asked.minutes
    )
    print(table(tallies))
    for line in wrong:
        print(f"FOUND {line}", flush=True)
    if asked.docs and not wrong:
        keep(tallies, asked.dice, PAGE, asked.add)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
