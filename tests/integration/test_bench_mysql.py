"""The benchmark of MySQL sources runs, on very little, and its tables hold what was measured."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
BENCH = ROOT / "bench"


def run(folder: Path, *arguments: str) -> tuple[dict[str, Any], str]:
    """Run the benchmark; returns the figures that it kept, and what it printed."""
    command = [sys.executable, str(BENCH / "mysql.py"), "--results", str(folder), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
    assert done.returncode == 0, done.stderr[-2000:]
    (kept,) = folder.glob("mysql-*.json")
    found: dict[str, Any] = json.loads(kept.read_text())
    return found, done.stdout


def test_a_tiny_run_measures_every_part(tmp_path: Path) -> None:
    """Debezium is left out: building it takes a network and a minute."""
    workloads, lags = ["sysbench", "wide"], ["blackhole", "canal-json", "canal-json"]
    tiny = ["--scale", "0.003", "--tries", "1", "--lag-seconds", "1", "--profile"]
    chosen = ["--workloads", ",".join(workloads), "--without", "debezium"]
    result, shown = run(tmp_path, "--server", "mariadb", *tiny, *chosen)
    assert [w["name"] for w in result["workloads"]] == workloads
    for workload in result["workloads"]:
        names = [f["name"] for f in workload["figures"]]
        assert len(names) == len(set(names)) == 15
        assert all(f["rows_per_s"] > 0 and f["mb_per_s"] > 0 for f in workload["figures"])
        assert all(f"| {name} |" in shown for name in names)
    assert [lag["target"].split()[0] for lag in result["lag"]] == lags
    assert all(0 < lag["p50 ms"] <= lag["p99 ms"] <= lag["max ms"] for lag in result["lag"])
    assert len(result["profiles"]) == 2 * len(workloads)
    for profile in result["profiles"]:
        assert {"frame and checksum", "decode", "encode", "write"} <= set(profile["stages"])


# --- the tables ----------------------------------------------------------------------------------


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCH))
    import mysql

    found: ModuleType = mysql
    return found


def test_tables_go_between_the_marks_of_their_name(script: ModuleType) -> None:
    report = sys.modules["report"]
    page = (ROOT / "docs" / "performance.md").read_text()
    for name in ("mariadb", "mysql", "kafka", "queues"):
        changed = report.on_page(page, name, "| new |")
        assert "| new |" in changed
        assert report.on_page(changed, name, "| newer |").count("| new |") == 0
    with pytest.raises(SystemExit, match="lacks the marks"):
        report.on_page("no marks", "mysql", "")


def test_aims_say_whether_they_were_reached(script: ModuleType) -> None:
    more = {"times copying and writing": 1.7}
    feed = {"name": "feed to canal-json files", "rows_per_s": 600_000.0, "other": more}
    debezium = {"name": "Debezium, as JSON", "rows_per_s": 60_000.0, "ratio": 0.0}
    workloads = [{"name": "sysbench", "figures": [feed, debezium]}]
    found = script.aims(workloads, [{"target": "blackhole", "p99 ms": 140, "p50 ms": 61}])
    assert [(a["measured"], a["reached"]) for a in found] == [
        (600_000, True),
        (10, False),
        (1.7, False),
        (140, True),
        (61, False),
    ]
