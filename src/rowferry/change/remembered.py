"""Answers that are kept because they cost time, and forgotten before they cost memory."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TypeVar

K = TypeVar("K")
V = TypeVar("V")
MOST: Final = 8192
KEPT_S: Final = 600.0


class Remembered(dict[K, V]):
    """Answers by question, at most `most`, for about `kept_s` seconds.

    When one comes that is too many or too late, all others are forgotten. For what can be found out
    again at any time: a server meets new tables and table versions for as long as it runs, and to
    find out all that is still in use every few minutes costs less than to note what is. An answer
    that is outdated by the next one belongs under the same key.
    """

    def __init__(
        self,
        most: int = MOST,
        kept_s: float = KEPT_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self._most, self._kept_s, self._clock = most, kept_s, clock
        self._until = clock() + kept_s

    def __setitem__(self, key: K, value: V) -> None:
        if key not in self and (len(self) >= self._most or self._clock() >= self._until):
            self.clear()
            self._until = self._clock() + self._kept_s
        super().__setitem__(key, value)
