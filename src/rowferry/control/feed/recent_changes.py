"""The last changes that an owner has delivered: in its memory alone, nothing of it is stored."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Final

from rowferry.change.sampled_change import SampledChange, SampleMode

MOST_SAMPLED: Final = 20


class RecentChanges:
    """Keeps no more of them than the settings in force allow; used by several threads."""

    def __init__(self) -> None:
        self._mode = SampleMode.OFF
        self._changes: deque[SampledChange] = deque(maxlen=MOST_SAMPLED)

    def begin(self, mode: SampleMode) -> None:
        """Go on with these settings; where they are others, what was kept is forgotten."""
        if mode is not self._mode:
            self._changes.clear()
            self._mode = mode

    def add(self, changes: Iterable[SampledChange]) -> None:
        """Take in changes, in their order."""
        if self._mode is SampleMode.VALUES:
            self._changes.extend(changes)
        elif self._mode is SampleMode.MASKED:
            self._changes.extend(one.masked() for one in changes)

    def newest_first(self) -> tuple[SampledChange, ...]:
        """Return what is kept."""
        return tuple(self._changes.copy())[::-1]
