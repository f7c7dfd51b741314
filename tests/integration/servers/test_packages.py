"""Fetching servers: what is said when they cannot be had."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from rowferry.errors import SourceUnavailable
from rowferry.testing.servers import packages
from rowferry.testing.servers.packages import Packages

TOY = Packages("toy", "sid", ("no-such-package",))


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ROWFERRY_SERVERS", str(tmp_path / "cache"))
    return tmp_path / "cache"


def refusal(packages: Packages) -> str:
    with pytest.raises(SourceUnavailable) as caught:
        packages.ensure()
    assert not packages.folder.exists()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_machine_without_apt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert "no-such-package cannot be had: this machine has no apt-get" in refusal(TOY)


def test_a_mirror_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    login = "somebody:hidden" + "@"
    monkeypatch.setattr(packages, "_mirror", lambda: f"http://{login}127.0.0.1:1/debian")
    said = refusal(TOY)
    assert "cannot read the index of Debian sid: " in said
    assert "127.0.0.1" in said
    assert "hidden" not in said


def test_the_mirror_is_the_one_of_this_machine() -> None:
    shown = subprocess.run(
        ["apt-get", "--print-uris", "update"], capture_output=True, text=True, check=False
    )
    assert packages._mirror() in shown.stdout


def test_unpacked_packages_are_not_fetched_again(monkeypatch: pytest.MonkeyPatch) -> None:
    TOY.folder.mkdir(parents=True)
    monkeypatch.setenv("PATH", "/nowhere")
    assert TOY.ensure() == TOY.folder


def test_the_command_fails_in_one_line(own_cache: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "rowferry.testing.servers"],
        env={"PATH": "/nowhere", "ROWFERRY_SERVERS": str(own_cache)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 1
    assert len(result.stderr.splitlines()) == 1, result.stderr
    assert re.search("this machine has no (apt-get|go|mvn|npm)", result.stderr)
