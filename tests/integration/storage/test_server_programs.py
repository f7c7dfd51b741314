"""Programs from Go's, Node's and Python's registries: what is said where one cannot be had."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from rowferry.errors import SourceUnavailable
from rowferry.testing.servers.packages import Fetched
from rowferry.testing.servers.programs import (
    GoProgram,
    NodeProgram,
    PythonPackages,
)

TOYS = (
    (GoProgram("toy-go", "example.test/toy@v1", "toy"), "go", "golang"),
    (NodeProgram("toy-node", "toy@1", "toy/main.js"), "npm", "npm"),
    (PythonPackages("toy-python", ("toy==1", "more==2")), "python", "python3-pip"),
)


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine without any program; those in the folder can be found."""
    monkeypatch.setenv("ROWFERRY_SERVERS", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    (tmp_path / "bin").mkdir()
    monkeypatch.setattr(sys, "executable", "python")  # which is then looked for like the others
    return tmp_path / "bin"


def tool(machine: Path, name: str, script: str) -> None:
    (machine / name).write_text(f"#!/bin/sh\n{script}\n")
    (machine / name).chmod(0o755)


@pytest.mark.parametrize(("toy", "name", "debian"), TOYS)
def test_a_missing_tool_is_named(toy: Fetched, name: str, debian: str) -> None:
    with pytest.raises(SourceUnavailable, match=f"has no {name}; .*apt-get install {debian}"):
        toy.ensure()
    assert not toy.folder.exists()


@pytest.mark.parametrize(("toy", "name", "debian"), TOYS)
def test_a_failure_is_one_line_without_a_password(
    toy: Fetched, name: str, debian: str, machine: Path
) -> None:
    tool(machine, name, "echo fetching >&2; echo 'no https://<user>:<password>@host/x' >&2; exit 1")
    with pytest.raises(SourceUnavailable, match=f"cannot fetch {toy.name}: fetching no") as raised:
        toy.ensure()
    assert "password" not in str(raised.value)
    assert not toy.folder.exists()


def test_a_program_is_fetched_once(machine: Path) -> None:
    toy = GoProgram("toy-go", "example.test/toy@v1", "toy")
    tool(machine, "go", 'echo "$CGO_ENABLED $*" >>"$GOBIN/toy"')
    assert toy.ensure() == toy.ensure()
    assert (toy.folder / "toy").read_text() == "0 install -ldflags=-s -w example.test/toy@v1\n"
    assert toy.command() == [str(toy.folder / "toy")]


def test_packages_of_python_come_first(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    toy = PythonPackages("toy-python", ("toy==1", "more==2"))
    tool(machine, "python", 'while [ "$1" != --target ]; do shift; done; echo "$*" > "$2/said"')
    monkeypatch.setenv("PYTHONPATH", "elsewhere")
    assert toy.environment()["PYTHONPATH"] == f"{toy.folder}:elsewhere"
    assert (toy.folder / "said").read_text().endswith("root.part toy==1 more==2\n")
    monkeypatch.delenv("PYTHONPATH")
    assert toy.environment()["PYTHONPATH"] == str(toy.folder)
