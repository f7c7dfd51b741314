"""Fetching servers from a Maven repository: what is said when they cannot be had."""

from __future__ import annotations

from pathlib import Path

import pytest

from rowferry.errors import SourceUnavailable
from rowferry.testing.servers import Kafka
from rowferry.testing.servers.maven import Jars, java

TOY = Jars("toy", ("rowferry.invalid:no-such-library:1",))


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ROWFERRY_SERVERS", str(tmp_path / "cache"))
    return tmp_path / "cache"


def refusal(jars: Jars) -> str:
    with pytest.raises(SourceUnavailable) as caught:
        jars.ensure()
    assert not jars.folder.exists()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def program(folder: Path, name: str, text: str) -> Path:
    """Write a shell script that stands for a tool."""
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return folder


def test_a_machine_without_java(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    assert "need Java 17 or newer and found none" in refusal(TOY)
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    with pytest.raises(SourceUnavailable, match="JAVA_HOME"):
        java()


def test_a_machine_without_maven(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(program(tmp_path / "bin", "java", "")))
    assert "toy cannot be had: this machine has no mvn" in refusal(TOY)


def test_a_repository_that_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = program(tmp_path / "bin", "java", "")
    login = "somebody:hidden" + "@"
    program(folder, "mvn", f"echo '[ERROR] no library at http://{login}mirror/x'; exit 1")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    said = refusal(TOY)
    assert "cannot fetch toy: no library at http://***@mirror/x" in said
    assert "hidden" not in said


def test_what_was_fetched_is_not_fetched_again(monkeypatch: pytest.MonkeyPatch) -> None:
    Kafka.jars.folder.mkdir(parents=True)
    monkeypatch.setenv("PATH", "/nowhere")
    assert Kafka.jars.ensure() == Kafka.jars.folder
