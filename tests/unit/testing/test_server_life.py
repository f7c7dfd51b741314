"""How server programs are started, and tried again where somebody took their port."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest

from rowferry.errors import SourceUnavailable
from rowferry.testing.servers.child import Living

STAYS = "import time; print('serving', flush=True); time.sleep(60)"
TAKEN = "print('bind: Address already in use')"


class Scripted(Living):
    """Runs one script after the other, as often as it is launched."""

    def __init__(self, folder: Path, *scripts: str) -> None:
        super().__init__()
        self.messages = folder / "server.err"
        self.left = list(scripts)
        self.ended: list[signal.Signals] = []

    def begin(self) -> None:
        self._begin_at(self.launch)

    def restart(self) -> None:
        self._begin_again(self.launch)

    def launch(self) -> None:
        command = [sys.executable, "-c", self.left.pop(0)]
        self._run(command, self.messages, lambda said: "serving" in said)

    def _end(self, how: signal.Signals) -> None:
        if self._child is not None:
            self.ended.append(how)
        super()._end(how)


def test_a_taken_port_is_left_to_others(tmp_path: Path) -> None:
    with Scripted(tmp_path, TAKEN, TAKEN, STAYS) as server:
        server.begin()
        assert server.alive and not server.left
    assert not server.alive


def test_where_every_port_is_taken_it_is_said(tmp_path: Path) -> None:
    server = Scripted(tmp_path, *[TAKEN] * 9)
    with pytest.raises(SourceUnavailable, match="no port on .* stayed free"):
        server.begin()
    assert len(server.left) == 4


def test_a_program_that_ends_is_not_tried_again(tmp_path: Path) -> None:
    server = Scripted(tmp_path, "raise SystemExit('no such setting')", STAYS)
    with pytest.raises(SourceUnavailable, match="did not start: no such setting"):
        server.begin()
    assert len(server.left) == 1


def test_what_was_said_before_does_not_count(tmp_path: Path) -> None:
    with Scripted(tmp_path, STAYS, "print('gone')") as server:
        server.begin()
        with pytest.raises(SourceUnavailable, match="did not start: gone"):
            server.restart()
    assert server.ended == [signal.SIGTERM, signal.SIGKILL]


def test_a_port_that_was_taken_meanwhile_is_told(tmp_path: Path) -> None:
    with Scripted(tmp_path, STAYS, TAKEN) as server:
        server.begin()
        with pytest.raises(SourceUnavailable, match="was taken while the server was down"):
            server.restart()
        assert not server.alive
