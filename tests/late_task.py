"""A task that Spark has given up: it stands still, and writes when nobody thinks of it any more."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeAlias

from patience import PATIENCE_S
from rowferry.errors import RowferryError

Task: TypeAlias = Callable[[], object]


class LateTask:
    """Runs one task in a thread, until it is about to write."""

    def __init__(self, at: str) -> None:
        """Hold it up at the first moment of this name."""
        self._at = at
        self._stands, self._may_go = threading.Event(), threading.Event()
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None

    def __enter__(self) -> LateTask:
        return self

    def __exit__(self, *_: object) -> None:
        self.go_on()

    def __call__(self, task: Task) -> None:
        """Begin a task, unless one is held up; return when it is, or has had nothing to write."""
        if self._stands.is_set():
            return

        def run() -> None:
            try:
                task()
            except RowferryError as err:
                self._error = err

        self._thread = threading.Thread(target=run)
        self._thread.start()
        while not self._stands.wait(0.05) and self._thread.is_alive():
            pass

    def holds(self, name: str) -> None:
        """Hold it up, as `watched` calls it; a task may have threads of its own."""
        if name == self._at and not self._stands.is_set():
            self._stands.set()
            assert self._may_go.wait(PATIENCE_S)

    def go_on(self) -> BaseException | None:
        """Let it write, and return how that ended."""
        self._may_go.set()
        if self._thread is not None:
            self._thread.join(PATIENCE_S)
        return self._error
