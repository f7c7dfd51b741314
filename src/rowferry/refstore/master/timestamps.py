"""Timestamps: the master gives them out, everyone else asks for them.

A timestamp is milliseconds since 1970 << 18, plus a counter; none is given twice, and none below an
earlier one, also after a restart with a clock that went back.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path

from rowferry.change.position import PHYSICAL_SHIFT
from rowferry.errors import StoreDamaged
from rowferry.refstore.storage.frames import replace_file

_AHEAD_MS = 3_000


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000


class TimestampOracle:
    """The master's source of timestamps.

    A bound is stored before any timestamp up to it is given out; a restart begins above the bound.
    """

    def __init__(self, path: Path, fsync: bool, wall_ms: Callable[[], int] = _wall_ms) -> None:
        self._path = path
        self._fsync = fsync
        self._wall_ms = wall_ms
        self._lock = threading.Lock()
        try:
            self._bound = int(json.loads(path.read_bytes())["bound"]) if path.exists() else 0
        except (ValueError, KeyError, TypeError) as err:
            raise StoreDamaged(f"{path.name} cannot be read: {err!r}; restore it") from err
        self._last = self._bound

    def next(self, count: int = 1) -> int:
        """Return the last of `count` new timestamps; the others are the ones just below it."""
        with self._lock:
            count = max(count, 1)
            now = self._wall_ms() << PHYSICAL_SHIFT
            last = max(self._last + count, now + count - 1)
            if last > self._bound:
                self._bound = last + (_AHEAD_MS << PHYSICAL_SHIFT)
                form = json.dumps({"bound": self._bound}).encode()
                replace_file(self._path, [form], self._fsync)
            self._last = last
            return last


class Clock:
    """A data server's view of the master's timestamps.

    `ask` fetches new ones; `last` is the highest one seen, so everything that is given out after
    this moment is above it.
    """

    def __init__(self, ask: Callable[[], int], monotonic: Callable[[], float] = time.monotonic):
        self._ask = ask
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._read_at = float("-inf")
        self.last = 0

    def saw(self, ts: int) -> None:
        """Note a timestamp that the master has given to someone."""
        with self._lock:
            self.last = max(self.last, ts)

    def now(self) -> int:
        """Return a new timestamp, above all given out before the call."""
        began = self._monotonic()
        ts = self._ask()
        with self._lock:
            self.last = max(self.last, ts)
            self._read_at = max(self._read_at, began)
        return ts

    def reading(self, max_age_ms: int = 50) -> int:
        """Return the highest timestamp seen, by a look at the master at most that old."""
        if self._monotonic() - self._read_at > max_age_ms / 1000:
            self.now()
        return self.last
