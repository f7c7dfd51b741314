"""Each test is in one lane, lanes are what the Makefile and CI run, and a run tells the truth."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest
from hypothesis import settings
from source_tree import ROOT

import lanes

MAKEFILE = (ROOT / "Makefile").read_text()
ALL = {f"tests/{p.relative_to(ROOT / 'tests').parts[0]}" for p in ROOT.glob("tests/**/test_*.py")}


def test_each_folder_of_tests_is_in_one_lane_or_has_a_target() -> None:
    first, rest = (lanes.folders_of(lane) for lane in lanes.LANES)
    apart = [f"tests/{name}" for name in lanes.APART]
    assert sorted([*first, *rest, *apart]) == sorted(ALL)
    assert {f"tests/{name}" for name in lanes.FIRST} == set(first)
    for folder in apart:
        assert f"pytest {folder}" in MAKEFILE, folder


def test_all_tests_are_in_folders() -> None:
    assert list((ROOT / "tests").glob("test_*.py")) == []


def test_a_new_folder_is_in_the_second_lane(tmp_path: Path) -> None:
    for place in ("unit/a", "slice", "newcomer", "tidb", "moments"):
        (tmp_path / "tests" / place).mkdir(parents=True)
        (tmp_path / "tests" / place / "test_x.py").touch()
    assert lanes.folders_of("first", tmp_path) == ["tests/slice", "tests/unit"]
    assert lanes.folders_of("rest", tmp_path) == ["tests/moments", "tests/newcomer"]


def planned(*targets: str) -> list[str]:
    """Return the lanes that `make` would run for these targets."""
    asked = subprocess.run(
        ["make", "--dry-run", *targets], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return re.findall(r"tests/lanes\.py +(\w+)", asked.stdout)


@pytest.mark.parametrize(
    ("targets", "wanted"),
    [
        (["test"], ["first"]),
        (["test-rest"], ["rest"]),
        (["test-all"], ["first", "rest"]),
        (["test", "test-all"], ["first", "rest"]),
    ],
)
def test_targets_run_their_lanes(targets: list[str], wanted: list[str]) -> None:
    assert planned(*targets) == wanted


def test_ci_runs_both() -> None:
    assert (ROOT / ".ci" / "run").read_text().endswith("\nexec make test test-all\n")


def test_dice_are_fixed_except_in_chaos(request: pytest.FixtureRequest) -> None:
    fixed, free = settings.get_profile("ci"), settings.get_profile("explore")
    assert (fixed.derandomize, free.derandomize) == (True, False)
    assert fixed.deadline is free.deadline is None  # no test asks for a quiet machine
    random = request.config.getoption("--seed") == "random"
    assert settings().derandomize is not random
    recipe = MAKEFILE.partition("\nchaos: setup")[2].partition("\n\n")[0]
    assert "pytest -q --dice random $(PROPERTIES)" in recipe


# --- the run of a lane ---------------------------------------------------------------------------

PASSES = "def test_one() -> None:\n    assert 1\n\n\ndef test_two() -> None:\n    assert 2\n"
COUNTS = """
import os
import pathlib

def test_once() -> None:
    with pathlib.Path(__file__).with_suffix(".ran").open("a") as ran:
        print(os.getpid(), file=ran)
"""


def suite(folder: Path, **files: str) -> Path:
    """Write a suite of one folder."""
    tests = folder / "tests" / "unit"
    tests.mkdir(parents=True)
    (folder / "pytest.ini").write_text("[pytest]\ntestpaths = tests\n")
    for name, text in files.items():
        (tests / f"test_{name}.py").write_text(text)
    return folder


def test_every_file_runs_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = suite(tmp_path, **{f"n{n}": COUNTS for n in range(9)}, both=PASSES)
    assert lanes.main(["first", "--processes", "2", "--beside", "true"], root) == 0
    ran = [p.read_text().splitlines() for p in root.rglob("*.ran")]
    assert [len(times) for times in ran] == [1] * 9
    said = capsys.readouterr().out
    assert re.search(r"^   unit +11 passed +\d+ s$", said, re.MULTILINE)
    assert re.search(r"^ +\d+ s in +2 tests of tests/unit/test_both.py$", said, re.MULTILINE)
    assert re.search(r"^== first lane: all passed: 11 tests in \d+ min \d+ s$", said, re.MULTILINE)


def test_files_that_take_long_begin_first() -> None:
    assert [name for name in lanes.LONG_FILES if not (ROOT / name).is_file()] == []
    told = lanes.Told()
    for name, seconds in (("tests/unit/test_a.py", 2), ("tests/unit/test_b.py", 9)):
        told.take(json.dumps([name, "passed", seconds, f"{name}::test"]))
    assert [line.split()[-1][-4] for line in lanes.slowest(told).splitlines()] == ["b", "a"]
    assert lanes.slowest(told, 1).split() == "9 s in 1 tests of tests/unit/test_b.py".split()


ORDERED = """
import pathlib

def test_it() -> None:
    name = pathlib.Path(__file__).name
    with pathlib.Path(__file__).with_name("order").open("a") as order:
        print(name, file=order)
"""


def test_a_long_file_is_claimed_before_others(tmp_path: Path) -> None:
    root = suite(tmp_path, a=ORDERED, z=ORDERED)
    (root / "conftest.py").write_text(
        "import lanes\nlanes.LONG_FILES = ('tests/unit/test_z.py',)\n"
    )
    assert lanes.main(["first", "--processes", "1"], root) == 0
    assert (root / "tests/unit/order").read_text().split() == ["test_z.py", "test_a.py"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (PASSES + "def test_wrong() -> None:\n    assert 3 == 4\n", "1 failed"),
        (PASSES + "def test_gone() -> None:\n    __import__('os')._exit(0)\n", "tests ran of 5"),
        ("import nowhere\n", "did not collect the same tests: nothing"),
        ("import pytest\ndef test_later() -> None:\n    pytest.skip('later')\n", "1 skipped"),
    ],
)
def test_what_did_not_pass_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, words: str
) -> None:
    root = suite(tmp_path, fine=PASSES, trouble=text)
    assert lanes.main(["first", "--processes", "1"], root) == 1
    assert words in capsys.readouterr().out.splitlines()[-1]


UNSTEADY = """
import pathlib

def test_it() -> None:
    ran = pathlib.Path(__file__).with_suffix(".ran")
    first = not ran.exists()
    ran.touch()
    assert not first, "only the first time"
"""


def test_very_few_that_fail_are_run_once_more(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    few = suite(tmp_path / "few", fine=PASSES, **{f"n{n}": UNSTEADY for n in range(2)})
    assert lanes.main(["first", "--processes", "1"], few) == 0
    said = capfd.readouterr().out
    assert "only the first time" in said
    assert said.count("NOT STEADY, passed only when it was run again: tests/unit/test_n") == 2
    many = suite(tmp_path / "many", fine=PASSES, **{f"n{n}": UNSTEADY for n in range(3)})
    assert lanes.main(["first", "--processes", "1"], many) == 1
    both = suite(tmp_path / "both", fine=UNSTEADY)
    assert lanes.main(["first", "--processes", "1", "--beside", "false"], both) == 1
    assert "once more" not in capfd.readouterr().out


def test_a_command_beside_that_fails_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = suite(tmp_path, fine=PASSES)
    wrong = "sh -c 'echo wrong type; exit 1'"
    assert lanes.main(["first", "--processes", "1", "--beside", wrong], root) == 1
    said = capsys.readouterr().out
    assert "wrong type" in said and "NOT PASSED: sh failed: 2 tests in" in said
