"""Guessing is slow: who fails to log in again and again waits longer each time."""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

_MOST_ORIGINS: Final = 4096


@dataclass(slots=True)
class Delays:
    """Counts failures by the address that they come from. Safe for use from several threads.

    Attributes:
        free: so many failures cost nothing: people mistype.
        first_s: the next one costs this, each further one twice as much.
        most_s: and never more than that; after as long without a failure all is forgotten.
    """

    free: int = 5
    first_s: float = 1.0
    most_s: float = 60.0
    clock: Callable[[], float] = time.monotonic
    _failed: OrderedDict[str, tuple[int, float]] = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def wait_s(self, origin: str) -> float:
        """Return how long somebody from there must wait before he may try again; 0: not at all."""
        with self._lock:
            count, last = self._failed.get(origin, (0, 0.0))
            if count <= self.free:
                return 0.0
            pause = min(self.most_s, self.first_s * 2.0 ** min(count - self.free - 1, 30))
            return max(0.0, last + pause - self.clock())

    def failed(self, origin: str) -> None:
        """Count a failure."""
        with self._lock:
            count, last = self._failed.pop(origin, (0, 0.0))
            now = self.clock()
            forgotten = count > 0 and now - last > 2 * self.most_s
            self._failed[origin] = (1 if forgotten else count + 1, now)
            while len(self._failed) > _MOST_ORIGINS:
                self._failed.popitem(last=False)
