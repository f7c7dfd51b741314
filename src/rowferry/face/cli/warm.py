"""`rowferry warm`, and what other commands do at their first run: compile, and tell how far it is.

It is done in a process of its own: what compiling needs in memory goes with it, and so does that
process when this one is ended, in whatever way.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from rowferry.errors import EngineError
from rowferry.face.cli.output import PLAIN_EVERY_S, consoles
from rowferry.warm import is_compiled

_WORDS = "compiling kernels for this processor, once"


def warm_command() -> None:
    """Compile the kernels ahead of time, so that the first run need not."""
    out, err = consoles()
    if not compile_kernels(err):
        out.print("all kernels are compiled")


def compile_kernels(console: Console) -> bool:
    """Compile what the cache lacks, telling how far it is; returns whether there was something.

    Raises:
        EngineError: the process that compiles has failed.
    """
    if is_compiled():
        return False
    began = time.monotonic()
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed}/{task.total} modules"),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    ) as progress:
        task = progress.add_task(_WORDS, total=None)
        shown_at = 0.0
        for done, of in _compiling():
            progress.update(task, completed=done, total=of)
            now = time.monotonic()
            if not console.is_terminal and now - shown_at >= PLAIN_EVERY_S:
                shown_at = now
                console.print(f"{_WORDS}: {done} of {of} modules", soft_wrap=True)
    console.print(f"kernels are compiled ({time.monotonic() - began:.0f} s)", soft_wrap=True)
    return True


def _compiling() -> Iterator[tuple[int, int]]:
    """Yield how many modules are done, and of how many."""
    child = subprocess.Popen(
        [sys.executable, "-m", "rowferry.warm", "--for-parent"],
        stdin=subprocess.PIPE,  # held open by us: its end is the end of the child
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # an interrupt at the terminal is ours to hand on
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    assert child.stdout is not None and child.stderr is not None
    try:
        for line in child.stdout:
            done, _, of = line.strip().partition("/")
            yield int(done), int(of)
        last_line = child.stderr.read().strip().splitlines()[-1:]
        if child.wait():
            raise EngineError(f"kernels could not be compiled: {' '.join(last_line)}")
    finally:
        child.kill()
        child.wait()
