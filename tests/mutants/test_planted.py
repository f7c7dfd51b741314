"""The list of planted defects fits the sources, and the page shows it."""

from __future__ import annotations

import os
import re
from pathlib import Path

import planted
import pytest
import run_mutants
from planted import PACKAGE, ROOT, Copy, ListIsRotten, Mutant, read_list

LEAST = 60
MUTANTS = read_list()
SOURCES = ROOT / "src" / PACKAGE


def test_there_are_enough_and_each_has_its_name() -> None:
    names = [m.id for m in MUTANTS]
    assert len(names) >= LEAST
    assert sorted(set(names)) == sorted(names)
    assert [n for n in names if not re.fullmatch(r"[a-z]+(-[a-z]+)*", n)] == []


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.id)
def test_each_defect_can_be_planted(mutant: Mutant) -> None:
    text = (SOURCES / mutant.file).read_text()
    with_it = mutant.planted_in(text)
    assert with_it != text
    compile(with_it, mutant.file, "exec")
    assert "njit" not in text, "compiled code would have to be compiled anew"


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.id)
def test_each_defect_says_who_suffers(mutant: Mutant) -> None:
    assert re.fullmatch(r"P([1-9]|10)", mutant.promise)
    assert mutant.breaks.endswith(".") and "|" not in mutant.breaks


@pytest.mark.parametrize("text", ["nothing of it", "a = 1\na = 1\n"])
def test_a_text_that_does_not_stand_there_once_is_told(text: str) -> None:
    mutant = Mutant("some-defect", "x.py", "P1", "It breaks.", "a = 1\n", "a = 2\n")
    with pytest.raises(
        ListIsRotten, match=r"^some-defect: its old text stands [02] times in x\.py"
    ):
        mutant.planted_in(text)


def test_a_defect_goes_as_it_came(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sources = tmp_path / "here" / "src" / PACKAGE
    sources.mkdir(parents=True)
    (sources / "x.py").write_text("a = 1\n")
    os.utime(sources / "x.py", ns=(5_000, 5_000))
    monkeypatch.setattr(planted, "ROOT", tmp_path / "here")
    copy = Copy(tmp_path / "there")
    place = copy.path / PACKAGE / "x.py"
    with copy.with_(Mutant("some-defect", "x.py", "P1", "It breaks.", "a = 1\n", "a = 2\n")):
        assert place.read_text() == "a = 2\n"
    assert place.read_text() == "a = 1\n" == (sources / "x.py").read_text()
    assert place.stat().st_mtime_ns == 5_000


def test_the_page_shows_the_list_and_the_last_results() -> None:
    page = run_mutants.PAGE.read_text()
    shown = page.split(run_mutants.BEGIN)[1].split(run_mutants.END)[0].strip()
    wanted = run_mutants.table(MUTANTS, run_mutants.read_results()).strip()
    assert shown == wanted, "run: make mutants ARGS=--table"


@pytest.mark.parametrize(
    ("code", "notes", "how"),
    [
        (0, {"run": 9}, run_mutants.SURVIVED),
        (1, {"run": 3, "test": "tests/moments/test_x.py::test_y"}, run_mutants.CAUGHT),
        (None, {"run": 3}, run_mutants.ENDLESS),
        (4, {}, run_mutants.CRASHES),
        (1, {"test": "tests/mutants/ordinary.py::test_an_ordinary_feed_runs[http]"}, "crashes"),
    ],
)
def test_what_stops_an_ordinary_feed_does_not_count(
    code: int | None, notes: dict[str, object], how: str
) -> None:
    assert run_mutants._how(code, notes) == how
