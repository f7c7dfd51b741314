"""A short fixed run of every fuzz target; and that the driver finds what it is there to find."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fuzz_guided
import fuzz_planted
import fuzz_run
import pytest
from fuzz_driver import Found, Tally, Target, buffer, fuzz, table
from fuzz_instrument import MISSING, is_available, with_kernels
from fuzz_targets import TARGETS

from rowferry.errors import DecodeError
from rowferry.registry import CODECS, ROW_FORMATS

INPUTS = 300


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
def test_a_reader_of_what_others_send(target: Target) -> None:
    """It answers, or raises an error of ours; no byte behind the input counts."""
    tally = fuzz(target, INPUTS, 1, twice=True)
    assert tally.inputs == tally.read + tally.refused == INPUTS + len(target.corpus)


def test_targets_have_names_of_their_own() -> None:
    assert len({t.name for t in TARGETS}) == len(TARGETS)


def _breaks(data: bytes) -> Any:
    return data.index(b"valid")  # a ValueError, which is none of ours


def _reads_behind(data: bytes) -> Any:
    room = buffer(data)
    return bytes(room.base[: len(room) + 1]) if b"vali" not in data else None  # type: ignore[index]


def _refuses(data: bytes) -> Any:
    raise DecodeError("nothing is good enough")


def _swallows(data: bytes) -> Any:
    if data != b"valid":
        raise DecodeError("a\nb" * 10_000)


@pytest.mark.parametrize(
    ("run", "words"),
    [
        (_breaks, "ValueError"),
        (_reads_behind, "bytes behind the end count"),
        (_refuses, "a valid input is refused"),
        (_swallows, "an error of 30010 characters"),
    ],
)
def test_the_driver_finds(run: Any, words: str) -> None:
    with pytest.raises(Found, match=words):
        fuzz(Target("planted", (b"valid",), run), INPUTS, 1, twice=True)


def test_the_same_number_gives_the_same_inputs() -> None:
    seen: list[list[bytes]] = []
    for number in (1, 1, 2):
        seen.append([])
        fuzz(Target("seen", (b"valid",), seen[-1].append), 50, number, twice=False)
    assert seen[0] == seen[1] != seen[2]


def test_the_table() -> None:
    tallies = [fuzz(Target(name, (b"x",), len), 9, 1, twice=False) for name in "ab"]
    tallies[1].errors["RF-1"] = 1200
    lines = table(tallies).splitlines()
    assert lines[2].startswith("| a | 10 | 10 | 0 |  |")
    assert lines[-1].startswith("| all | 20 | 20 | 0 | RF-1 1,200 |")


# --- several processes ---------------------------------------------------------------------------


def _writes(folder: Path) -> Callable[[bytes], None]:
    def run(data: bytes) -> None:
        with (folder / str(os.getpid())).open("ab") as file:
            file.write(data.hex().encode() + b"\n")

    return run


def test_the_same_inputs_however_many_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fuzz_run, "PART", 20)
    seen = []
    for processes in (1, 2):
        folder = tmp_path / str(processes)
        folder.mkdir()
        targets = [Target(name, (b"valid",), _writes(folder)) for name in "ab"]
        tallies, wrong = fuzz_run.run(targets, 100, 1, processes)
        assert not wrong and [t.inputs for t in tallies] == [53, 53]  # a corpus for each part
        assert all(t.memory_mb for t in tallies)
        seen.append(sorted(line for f in folder.iterdir() for line in f.read_text().split()))
    assert seen[0] == seen[1] and len(set(seen[0])) > 60


def _dies(data: bytes) -> None:
    if data != b"valid":
        os._exit(11)


def test_what_a_process_ended_on_is_told() -> None:
    seen: list[bytes] = []
    fuzz(Target("planted", (b"valid",), seen.append), 1, 1, twice=False)
    _, wrong = fuzz_run.run([Target("planted", (b"valid",), _dies)], 5)
    assert wrong == [f"a process ended amid an input: {seen[1].hex()}"]


def test_what_is_found_does_not_end_the_others() -> None:
    targets = [Target("planted", (b"valid",), _breaks), Target("fine", (b"x",), len)]
    tallies, wrong = fuzz_run.run(targets, 100)
    assert [t.inputs for t in tallies] == [0, 51] and "planted: ValueError" in wrong[0]


def test_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{fuzz_run.BEGIN}\nold\n{fuzz_run.END}\nbehind\n")
    monkeypatch.setattr(fuzz_run, "RESULTS", tmp_path / "fuzz.json")
    tallies = [fuzz(Target("a", (b"x",), len), 9, 1, twice=False)]
    tallies[0].errors["RF-1"] = 3
    fuzz_run.keep(tallies, 1, page)
    text = page.read_text()
    assert text.startswith("before\n<!--") and text.endswith("-->\nbehind\n") and "old" not in text
    assert "10 inputs" in text and "| a | 10 |" in text
    assert '"inputs": 10' in (tmp_path / "fuzz.json").read_text()
    more = [fuzz(Target(name, (b"x",), len), 9, 2, twice=False) for name in "ab"]
    fuzz_run.keep(more, 2, page, add=True)
    text = page.read_text()
    assert "30 inputs (`SEED=1`, `SEED=2`)" in text and text.count("fuzz -->") == 2
    assert "| a | 20 | 20 | 0 | RF-1 3 |" in text and "| b | 10 |" in text
    fuzz_run.keep([], 2, page, add=True)
    assert page.read_text() == text


def test_only_readers_that_the_figures_lack(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(fuzz_run, "RESULTS", tmp_path / "fuzz.json")
    fuzz_run.RESULTS.write_text('{"readers": [{"name": "a"}]}')
    monkeypatch.setattr(fuzz_run, "TARGETS", [Target(name, (b"x",), len) for name in "ab"])
    monkeypatch.setattr("sys.argv", ["fuzz", "--missing", "--inputs", "9"])
    assert fuzz_run.main() == 0
    told = capfd.readouterr().out
    assert "| b | 10 |" in told and "| a |" not in told


# --- inputs that coverage guides ------------------------------------------------------------------


def _guided(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the driver as a process of its own: it changes the code that is imported."""
    return subprocess.run(
        [sys.executable, "-m", "fuzz_guided", "--kept", str(folder), *words],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONHASHSEED": "0"},
        capture_output=True,
        text=True,
        check=False,
    )


PLANTED = ("--module", "fuzz_planted", "--inputs", "40000", "--seconds", "600")


def test_coverage_leads_to_a_planted_defect(tmp_path: Path) -> None:
    """Damage alone does not find it with as many inputs; the finding is a file that shows it."""
    assert fuzz(fuzz_planted.TARGETS[0], 40_000, 1, twice=False).inputs == 40_001
    found = _guided(tmp_path, *PLANTED)
    if not is_available():
        assert (found.returncode, found.stderr.strip()) == (2, MISSING)
        return
    assert found.returncode == 1 and "kernel" not in found.stdout
    line = next(one for one in found.stdout.splitlines() if one.startswith("FOUND planted: "))
    kind, repeat = line.split("; repeat: ")
    assert kind.startswith("FOUND planted: KeyError at fuzz_planted.py:")
    file = Path(re.findall(r'--input (\S+)"', repeat)[0])
    assert (
        file.read_bytes().startswith(b"RF!?") and "KeyError" in file.with_suffix(".txt").read_text()
    )
    again = _guided(tmp_path, "--module", "fuzz_planted", "--input", str(file))
    assert again.returncode == 1 and "FOUND planted: KeyError" in again.stdout


def test_the_same_number_gives_the_same_guided_inputs(tmp_path: Path) -> None:
    rows = []
    for folder, number in (("a", "1"), ("b", "1"), ("c", "2")) if is_available() else ():
        told = _guided(tmp_path / folder, *PLANTED, "--inputs", "3000", "--dice", number)
        row = next(one for one in told.stdout.splitlines() if one.startswith("| planted |"))
        rows.append(row.split(" | ")[1:5])
    if not rows:
        return
    assert rows[0] == rows[1] != rows[2]
    shown = _guided(tmp_path / "a", *PLANTED, "--show").stdout
    assert rows[0][0] == "3,000" and " | ".join(rows[0]) in shown


def _waits(data: bytes) -> Any:
    while data != b"valid":
        pass


def _grows(data: bytes) -> Any:
    return None if data == b"valid" else len(b"x" * (600 << 20))


@pytest.mark.parametrize(("run", "words"), [(_waits, "TooLong"), (_grows, "MemoryError")])
def test_an_input_has_bounds(run: Any, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if run is _waits:
        monkeypatch.setattr(fuzz_guided, "SLOW_S", 1.0)
    else:  # a peak of earlier tests in this process would hide it
        Path("/proc/self/clear_refs").write_text("5")
    before = signal.signal(signal.SIGPROF, fuzz_guided._too_long)
    try:
        target, tally = Target("planted", (b"valid",), run), Tally("planted")
        assert fuzz_guided.judged(target, b"valid", tally) is None
        wrong = fuzz_guided.judged(target, b"x", tally)
    finally:
        signal.signal(signal.SIGPROF, before)
    assert wrong is not None and fuzz_guided.words_of(wrong).startswith(words)


def test_a_machine_that_has_no_guide(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(fuzz_guided, "is_available", lambda: False)
    assert fuzz_guided.main([]) == 2
    assert capsys.readouterr().err.strip() == MISSING


def test_kernels_keep_their_bytecode() -> None:
    names = with_kernels()
    assert "rowferry.columnar.memory" in names and "rowferry.spec.uri" not in names


def test_the_guided_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{fuzz_guided.BEGIN}\nold\n{fuzz_guided.END}\nbehind\n")
    monkeypatch.setattr(fuzz_guided, "RESULTS", tmp_path / "fuzz-guided.json")
    came = fuzz_guided.Guided("a", 10, 7, 3, Counter({"RF-1": 3}), 5, 9, 2, 60.0, 90.0)
    fuzz_guided.keep([came], 1, page)
    text = page.read_text()
    assert text.startswith("before\n<!--") and text.endswith("-->\nbehind\n") and "old" not in text
    assert "10 inputs for 1 readers (`SEED=1`), 1 minutes" in text
    assert "| a | 10 | 7 | 3 | RF-1 3 | 5 | 9 | 2 | 60 | 90 |" in text
    assert '"inputs": 10' in fuzz_guided.RESULTS.read_text()


# What is read back in the product's own tasks only, and comes from nobody else.
OWN_FRAMES = {"sql-rows", "copy-rows", "search-documents"}


def test_every_format_that_is_read_back_is_among_the_targets() -> None:
    names = {t.name.partition(": ")[2].partition("+")[0] for t in TARGETS}
    assert {*CODECS.names(), *ROW_FORMATS.names()} - OWN_FRAMES <= names
