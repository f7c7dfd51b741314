"""What files say, read again when they have changed: certificates, users, tokens, keys."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from rowferry.errors import RowferryError

LOG = logging.getLogger(__name__)
EVERY_S = 2.0

T = TypeVar("T")


class Fresh(Generic[T]):
    """A value made from files. Safe for use from several threads."""

    def __init__(
        self, paths: Sequence[Path], read: Callable[[], T], every_s: float | None = None
    ) -> None:
        """Read the files for the first time; raises what `read` raises."""
        self._paths, self._read = tuple(paths), read
        self._every_s = EVERY_S if every_s is None else every_s
        self._lock = threading.Lock()
        self._marks = self._seen()
        self._value = read()
        self._looked_at = time.monotonic()

    def get(self) -> T:
        """Return what the files say, or said before they became unusable."""
        with self._lock:
            now = time.monotonic()
            if now - self._looked_at < self._every_s:
                return self._value
            self._looked_at, marks = now, self._seen()
            if marks == self._marks:
                return self._value
            try:
                self._value = self._read()
                LOG.info("read again: %s", ", ".join(map(str, self._paths)))
            except RowferryError as err:
                LOG.error(
                    "a file has changed and cannot be used; what it said before counts: %s", err
                )
            self._marks = marks
            return self._value

    def _seen(self) -> tuple[tuple[int, int, int] | None, ...]:
        return tuple(_mark(path) for path in self._paths)


def _mark(path: Path) -> tuple[int, int, int] | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
