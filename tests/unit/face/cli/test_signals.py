"""Ctrl-C is answered at once, whatever the work is doing."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from rowferry.face.cli.signals import stop_on_signal

PATIENCE_S = 60.0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_is_told_at_once_and_the_old_answer_comes_back(number: signal.Signals) -> None:
    told = threading.Event()
    before = signal.getsignal(number)
    with stop_on_signal(told.set) as stop:
        assert not stop.is_set()
        os.kill(os.getpid(), number)
        assert told.wait(PATIENCE_S)  # while this thread, the one that works, does not look
        assert stop.is_set()
    assert signal.getsignal(number) is before


def test_without_a_signal_nothing_is_told() -> None:
    told: list[str] = []
    with stop_on_signal(lambda: told.append("heard")) as stop:
        pass
    answering = [t for t in threading.enumerate() if t.name == "signals"]
    for thread in answering:
        thread.join(PATIENCE_S)
    assert not stop.is_set() and told == []


def test_a_run_answers_while_it_still_asks_its_source(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # it takes the call, and says nothing
        source = f"mysql://root@127.0.0.1:{silent.getsockname()[1]}"
        command = [sys.executable, "-m", "rowferry", "run", "--source", source]
        process = subprocess.Popen(
            [*command, "--sink-uri", f"file://{tmp_path}/out?protocol=csv"],
            stdout=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
        )
        with process:
            assert process.stdout is not None
            assert "asking source and sink" in process.stdout.readline()
            process.send_signal(signal.SIGINT)
            told = process.stdout.readline()
            assert told == "stopping: nothing has begun; again to stop now\n"
            process.send_signal(signal.SIGINT)
            assert process.wait(PATIENCE_S) == -signal.SIGINT
    assert list(tmp_path.iterdir()) == []
