"""The doctor: what this machine has, and what a changefeed that cannot be made is told."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from rowferry.control.operator.checks import health
from rowferry.control.operator.checks.health import FAILED, OK, WARNING, Health, java_version
from rowferry.face.cli.main import main

DEAD = "mysql://root@127.0.0.1:1"


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('openjdk version "25" 2025-09-16', 25),
        ('java version "1.8.0_401"', 8),
        ("no such thing", 0),
    ],
)
def test_versions_of_java(text: str, version: int) -> None:
    assert java_version(text) == version


def test_a_machine_without_java_and_with_a_full_disk(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    found = health._java()
    assert found.result == FAILED and "JAVA_HOME" in found.cure
    monkeypatch.setattr(health, "_LITTLE_DISK", 1 << 62)
    assert {h.result for h in health._disks(tmp_path / "not" / "there")} == {WARNING}
    monkeypatch.setattr(health, "_NO_DISK", 1 << 62)
    (first, _) = health._disks(tmp_path)
    assert first.result == FAILED and str(tmp_path) in first.words and first.cure


def call(
    capsys: pytest.CaptureFixture[str], patch: pytest.MonkeyPatch, *words: str
) -> tuple[int, str]:
    patch.setattr(sys, "argv", ["rowferry", "doctor", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0), capsys.readouterr().out


def test_the_command_tells_all_that_is_wrong_at_once(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    sink = f"file://{tmp_path}/out?protocol=csv"
    code, out = call(capsys, monkeypatch, DEAD, sink)
    lines = [line.split("\t") for line in out.splitlines()]
    assert lines[0] == ["check", "result", "what was found", "what helps"]
    found = {line[0]: line for line in lines[1:]}
    assert code == 1 and found["java"][1] == OK and found["spark"][1] == OK
    source = found["source: reach, rights, settings"]
    assert source[1] == FAILED and "correct host and port" in source[2] and source[3]
    assert found["sink: reach, rights"][1] == OK
    assert list(tmp_path.iterdir()) == []  # nothing was written
    code, out = call(capsys, monkeypatch, DEAD, sink, "--set", "sinc.x=1", "--output", "json")
    told = {one["check"]: Health(**one) for one in json.loads(out)}
    assert code == 1 and told["settings"].result == FAILED and "sinc" in told["settings"].words
    assert "sink: reach, rights" not in told
