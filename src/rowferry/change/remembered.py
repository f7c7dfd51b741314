"""Answers that are kept because they cost time, and forgotten before they cost memory."""

from __future__ import annotations

from typing import Final, TypeVar

K = TypeVar("K")
V = TypeVar("V")
MOST: Final = 8192


class Remembered(dict[K, V]):
    """Answers by question: at most `most`. When one more comes, all others are forgotten.

    For what can be found out again at any time: a server meets new tables and table versions for
    as long as it runs. An answer that is outdated by the next one belongs under the same key.
    """

    def __init__(self, most: int = MOST) -> None:
        super().__init__()
        self._most = most

    def __setitem__(self, key: K, value: V) -> None:
        if len(self) >= self._most and key not in self:
            self.clear()
        super().__setitem__(key, value)
