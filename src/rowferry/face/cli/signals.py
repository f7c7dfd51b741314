"""Ctrl-C and SIGTERM, as an event that long work looks at."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

_CURSOR: Final = b"\x1b[?25h"


@contextmanager
def stop_on_signal(tell: Callable[[], None] | None = None) -> Iterator[threading.Event]:
    """Yield an event that the first Ctrl-C or SIGTERM sets; a second one ends the process.

    `tell` is called at the first one, at once and in a thread of its own: whoever has pressed the
    keys must not wait for an answer until the work looks at the event.
    """
    stop = threading.Event()
    asked = threading.Event()
    ended = False

    def ask(number: int, frame: FrameType | None) -> None:
        if stop.is_set():
            if sys.stdout.isatty():
                os.write(sys.stdout.fileno(), _CURSOR)  # progress hides it, and will not end itself
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        stop.set()
        asked.set()

    def answer() -> None:
        asked.wait()
        if tell is not None and not ended:
            tell()

    if tell is not None:
        threading.Thread(target=answer, name="signals", daemon=True).start()
    old = {n: signal.signal(n, ask) for n in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        ended = True
        asked.set()
        for number, handler in old.items():
            signal.signal(number, handler)
