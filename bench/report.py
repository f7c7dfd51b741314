"""Measuring and keeping results: best of several tries, ratios side by side, JSON per run."""

from __future__ import annotations

import json
import os
import platform
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
PERFORMANCE = Path(__file__).parents[1] / "docs" / "performance.md"


@dataclass
class Figure:
    """One measured thing."""

    name: str
    rows_per_s: float = 0.0
    mb_per_s: float = 0.0
    baseline: str = ""
    ratio: float = 0.0
    other: dict[str, Any] = field(default_factory=dict)


def best(work: Callable[[], object], tries: int = 5) -> float:
    """Seconds of the quickest of several tries: on a shared machine the least disturbed one."""
    found = []
    for _ in range(tries):
        began = time.perf_counter()
        work()
        found.append(time.perf_counter() - began)
    return min(found)


def one_core() -> None:
    """Keep this process on one core, so that figures are per core."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[-1]})


def machine() -> dict[str, Any]:
    """Say when and where a run took place."""
    return {
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "python": sys.version.split()[0],
        "machine": platform.machine(),
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9),
        "load_average": load_average(),
    }


def load_average() -> list[float]:
    """Return how many processes wanted to run in the last 1, 5 and 15 minutes."""
    return [round(n, 2) for n in os.getloadavg()]


def _cpu() -> str:
    with open("/proc/cpuinfo") as lines:
        names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def on_page(page: str, name: str, text: str) -> str:
    """Return a page with a run's tables between the two marks of that name."""
    begin, end = f"<!-- figures: {name} -->", f"<!-- end of figures: {name} -->"
    if page.count(begin) != 1 or page.count(end) != 1:
        raise SystemExit(f"the page lacks the marks {begin} and {end}")
    head, tail = page.split(begin)[0], page.split(end)[1]
    return f"{head}{begin}\n\n{text}\n{end}{tail}"


def put_into_page(name: str, text: str, place: Path = PERFORMANCE) -> None:
    """Write a run's tables between the marks of a page of the docs."""
    place.write_text(on_page(place.read_text(), name, text))


def keep(kind: str, figures: list[Figure]) -> Path:
    """Print the figures as a table and write them to bench/results/."""
    from rich.console import Console
    from rich.table import Table

    table = Table("what", "rows/s", "MB/s", "against", "ratio", "more", title=kind)
    for f in figures:
        more = ", ".join(f"{k} {v}" for k, v in (f.other or {}).items())
        table.add_row(
            f.name,
            f"{f.rows_per_s:,.0f}" if f.rows_per_s else "",
            f"{f.mb_per_s:,.1f}" if f.mb_per_s else "",
            f.baseline,
            f"{f.ratio:.1f}×" if f.ratio else "",
            more,
        )
    Console().print(table)
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{kind}.json"
    whole = {**machine(), "figures": [asdict(f) for f in figures]}
    path.write_text(json.dumps(whole, indent=2) + "\n")
    print(f"kept in {path.relative_to(Path.cwd())}" if path.is_relative_to(Path.cwd()) else path)
    return path
