"""Counts of what happens inside stages, for those who watch: calls, retries, dropped rows.

They arise in tasks and on the driver; whoever carries them to the driver takes them from the stage
when its work is done. A count is named by what it is of and, where there are several kinds, a dot
and the kind: `call.put`, `dropped.hard-delete`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from typing import Final

CALLS: Final = "call"  # to the target, by what was asked of it
RETRIES: Final = "retry"  # of such calls, by ourselves
SENT_BYTES: Final = "sent-bytes"  # as they went out: compressed, with what surrounds them
DROPPED: Final = "dropped"  # rows that the row policy leaves out, by reason
CONFLICTS: Final = "conflict"  # rows that met another one at the target, by who won

PARKED: Final = "parked"  # rows that the target refused, and those behind them

HARD_DELETE: Final = f"{DROPPED}.hard-delete"
DELETED_ROW: Final = f"{DROPPED}.deleted-row"
FOREIGN: Final = f"{DROPPED}.foreign"
WON: Final = f"{CONFLICTS}.won"
LOST: Final = f"{CONFLICTS}.lost"


class EventCounts:
    """Counts since they were last taken. Safe for use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[str, int] = {}

    def __reduce__(self) -> tuple[type[EventCounts], tuple[()]]:
        return EventCounts, ()  # what is counted belongs to one process

    def add(self, name: str, count: int = 1) -> None:
        """Add to a count."""
        if count:
            with self._lock:
                self._counts[name] = self._counts.get(name, 0) + count

    def call(self, what: str, size: int = 0) -> None:
        """Count a call to the target, and the bytes that went out with it."""
        self.add(f"{CALLS}.{what}")
        self.add(SENT_BYTES, size)

    def take(self) -> dict[str, int]:
        """Return the counts, and begin anew."""
        with self._lock:
            taken, self._counts = self._counts, {}
        return taken


def summed(counts: Iterable[Mapping[str, int] | None]) -> dict[str, int]:
    """Return the sum of several counts."""
    total: dict[str, int] = {}
    for some in counts:
        for name, count in (some or {}).items():
            total[name] = total.get(name, 0) + count
    return total
