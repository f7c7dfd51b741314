"""The command line against a server that answers as it is told."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from cli_kit import FakeServer, Run, fake_server, runner


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeServer]:
    for name in ("TOKEN", "USER", "PASSWORD"):
        monkeypatch.delenv(f"ROWFERRY_{name}", raising=False)
    with fake_server() as fake:
        monkeypatch.setenv("ROWFERRY_SERVER", fake.url)
        yield fake


@pytest.fixture
def run(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Run:
    return runner(monkeypatch, capsys)
