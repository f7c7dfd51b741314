"""What measures whole pages runs every benchmark that writes a table into one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

BENCH = Path(__file__).parents[3] / "bench"


def listed() -> dict[str, list[str]]:
    """Each benchmark's name, with its script and arguments, as the script tells them."""
    command = [sys.executable, str(BENCH / "page.py"), "--list"]
    told = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    lines = (line.split(": bench/", 1) for line in told.splitlines())
    return {name: what.split() for name, what in lines}


def test_every_script_that_writes_a_table_is_run() -> None:
    writers = {
        path.name
        for path in BENCH.glob("*.py")
        if "put_into_page(" in path.read_text() and "def put_into_page" not in path.read_text()
    }
    writers.remove("soak_page.py")  # an hour under load has a command of its own
    assert writers == {script for script, *_ in listed().values()}


def test_all_write_into_the_docs() -> None:
    assert all("--docs" in arguments for _, *arguments in listed().values())


def test_a_part_is_chosen_by_name() -> None:
    command = [sys.executable, str(BENCH / "page.py"), "--list", "--only"]
    found = subprocess.run([*command, "kafka,lakes"], check=False, capture_output=True, text=True)
    assert found.returncode == 2 and "there is no lakes; there are mariadb, mysql" in found.stderr
    found = subprocess.run([*command, "kafka"], check=True, capture_output=True, text=True)
    assert found.stdout == "kafka: bench/kafka.py --docs\n"
