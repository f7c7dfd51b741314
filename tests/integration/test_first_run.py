"""The first run: kernels are compiled, it tells how far it is, and ends as a whole."""

from __future__ import annotations

import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

WORDS = "compiling kernels for this processor, once"


class FirstRun:
    """`rowferry warm` with an empty cache, on a terminal."""

    def __init__(self, cache: Path) -> None:
        self._cache = cache
        self._screen, theirs = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "rowferry", "warm"],
            env={**os.environ, "NUMBA_CACHE_DIR": str(cache), "TERM": "xterm", "COLUMNS": "120"},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)

    def compiling(self) -> psutil.Process:
        """Return the process that compiles, when its first machine code is there."""
        while not self.compiled():
            assert self.process.poll() is None, self.shown()
            time.sleep(0.02)
        (child,) = psutil.Process(self.process.pid).children()
        return child

    def compiled(self) -> int:
        """Return how many kernels have machine code."""
        return len(list(self._cache.rglob("*.nbi")))

    def shown(self) -> str:
        """Return what is on the screen until the process has ended."""
        seen = b""
        try:
            while piece := os.read(self._screen, 65536):
                seen += piece
        except OSError:  # the other side is closed
            pass
        return seen.decode(errors="replace")

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._screen)


@pytest.fixture
def first_run(tmp_path: Path) -> Iterator[FirstRun]:
    run = FirstRun(tmp_path / "cache")
    yield run
    run.close()


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL], ids=str)
def test_whoever_ends_it_while_it_compiles_leaves_no_process(
    first_run: FirstRun, how: signal.Signals
) -> None:
    child = first_run.compiling()
    first_run.process.send_signal(how)
    shown = first_run.shown()
    assert first_run.process.wait() != 0
    compiled = first_run.compiled()
    gone, alive = psutil.wait_procs([child], timeout=60)
    assert (gone, alive) == ([child], [])
    assert first_run.compiled() <= compiled + 1  # it did not go on until it had something to tell
    assert WORDS in shown and "━" in shown and re.search(r"\d+/\d+ modules", shown)


def test_piped_it_tells_in_lines_how_far_it_is(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "rowferry", "warm"],
        env={**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    line = process.stderr.readline()
    (child,) = psutil.Process(process.pid).children()
    process.terminate()
    process.communicate()
    assert re.fullmatch(rf"{WORDS}: 0 of \d+ modules\n", line)
    assert psutil.wait_procs([child], timeout=60)[1] == []
