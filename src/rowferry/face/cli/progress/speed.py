"""How fast it goes, and when it will have ended."""

from __future__ import annotations

from collections import deque
from typing import Final

WINDOW_S: Final = 10.0
_LOOK_BACK_S: Final = 60.0
_LEAST_S: Final = 1.0  # what was seen for less says nothing about the end


class Speed:
    """Rows and bytes a second over the last seconds; what took long counts over all that time."""

    def __init__(self, now: float) -> None:
        self._began = self._last = now
        self._done: deque[tuple[float, float, int, int]] = deque()

    def begin(self, now: float) -> None:
        """Note that work begins: what is added next was done since now."""
        self._last = now

    def add(self, now: float, rows: int, size: int) -> None:
        """Note what was done since the last call."""
        if rows or size:
            self._done.append((min(self._last, now), now, rows, size))
        self._last = now

    def rates(self, now: float) -> tuple[float, float]:
        """Return rows and bytes a second."""
        start = max(self._began, now - WINDOW_S)
        while self._done and self._done[0][1] < start:
            self._done.popleft()
        span = max(now - start, 1e-3)
        rows = size = 0.0
        for since, until, some_rows, some_bytes in self._done:
            took = until - since
            share = (until - max(since, start)) / took if took > 0 else 1.0
            rows += some_rows * share
            size += some_bytes * share
        return rows / span, size / span


class EndEstimate:
    """When something that is counted will have ended, by its speed in the last minute."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()

    def add(self, now: float, done: int) -> None:
        """Note how much is done."""
        if self._seen and done < self._seen[-1][1]:
            self._seen.clear()  # it has begun anew
        self._seen.append((now, done))
        while len(self._seen) > 2 and now - self._seen[1][0] >= _LOOK_BACK_S:
            self._seen.popleft()

    def clear(self) -> None:
        """Forget all: it has ended."""
        self._seen.clear()

    def left_s(self, now: float, total: int) -> float | None:
        """Return how many seconds it will take from now on; None: not known yet."""
        if not self._seen:
            return None
        (since, first), (_, last) = self._seen[0], self._seen[-1]
        if now - since < _LEAST_S or last <= first:
            return None
        return max(0.0, total - last) * (now - since) / (last - first)


def duration(seconds: float) -> str:
    """Return a time for people: `25 s`, `3 min`, `2 h 10 min`."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 100:
        return f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60} min"
