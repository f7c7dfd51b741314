"""When a command that reads a small table says its first word, has its first row, and ends.

python bench/first_row.py mysql://USER@HOST:PORT/ shop.orders [--runs 3]

The table should be small: what is measured is all that is around its rows. Each run is a process of
its own with a folder of its own; kernels are compiled already.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median

POLL_S = 0.01


@dataclass(frozen=True)
class Moments:
    """Seconds since the command was started."""

    first_line: float
    first_job: float  # Spark has started its first workers
    first_row: float  # the first file of rows has its name
    ended: float


def measured(source: str, table: str, folder: Path) -> Moments:
    out = folder / "out"
    words = [sys.executable, "-m", "rowferry", "run", "--source", source, "--table", table]
    words += ["--sink-uri", f"file://{out}?protocol=csv", "--until", "caught-up"]
    begin = time.monotonic()
    process = subprocess.Popen(words, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert process.stdout is not None
    os.set_blocking(process.stdout.fileno(), False)
    seen: dict[str, float] = {}
    said = b""
    while process.poll() is None:
        now = time.monotonic() - begin
        said += process.stdout.read() or b""
        if said:
            seen.setdefault("first_line", now)
        if _has_workers(process.pid):
            seen.setdefault("first_job", now)
        if any(p.stat().st_size for p in out.rglob("CDC*.csv")):
            seen.setdefault("first_row", now)
        time.sleep(POLL_S)
    if process.returncode:
        sys.exit((said + (process.stdout.read() or b"")).decode(errors="replace"))
    ended = time.monotonic() - begin
    return Moments(
        seen.get("first_line", ended),
        seen.get("first_job", ended),
        seen.get("first_row", ended),
        ended,
    )


def _has_workers(pid: int) -> bool:
    """Return whether Spark's Java process has started its daemon of Python."""
    return any(_is_daemon(one) for child in _children(pid) for one in _children(child))


def _children(pid: int) -> list[int]:
    try:
        threads = Path(f"/proc/{pid}/task").glob("*/children")
        return [int(word) for file in threads for word in file.read_text().split()]
    except OSError:
        return []


def _is_daemon(pid: int) -> bool:
    try:
        return b"-m\0rowferry.spark.daemon" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source")
    parser.add_argument("table")
    parser.add_argument("--runs", type=int, default=3)
    given = parser.parse_args()
    found = []
    for _ in range(given.runs):
        with tempfile.TemporaryDirectory() as folder:
            found.append(measured(given.source, given.table, Path(folder)))
    print("| until | s, median of", given.runs, "|")
    print("|---|---|")
    for name, words in (
        ("first_line", "the first line"),
        ("first_job", "Spark's first job begins"),
        ("first_row", "the first row is in its file"),
        ("ended", "the command has ended"),
    ):
        print(f"| {words} | {median(getattr(m, name) for m in found):.1f} |")
    print("load:", " ".join(f"{x:.1f}" for x in os.getloadavg()), "on", os.cpu_count(), "cores")


if __name__ == "__main__":
    main()
