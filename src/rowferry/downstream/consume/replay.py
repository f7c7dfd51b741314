"""Holding changes back until every container's watermark has passed them."""

from __future__ import annotations

from collections.abc import Iterable

from rowferry.downstream.consume.arrival import Arrival, ArrivedStatement


class ChangeReplay:
    """Gives changes in commit order, as soon as nothing older can come any more.

    A container's watermark says that all at or below it has arrived there. What all containers have
    passed is resolved: a transaction is whole there.
    """

    def __init__(self, containers: Iterable[str]) -> None:
        self._marks = dict.fromkeys(containers, 0)
        self._waiting: list[Arrival] = []

    @property
    def resolved(self) -> int:
        """The smallest watermark of all containers."""
        return min(self._marks.values(), default=0)

    @property
    def waiting(self) -> int:
        """How many changes have arrived and are held back."""
        return len(self._waiting)

    def include(self, container: str) -> None:
        """Wait for one more container from now on."""
        self._marks.setdefault(container, 0)

    def add(self, arrival: Arrival, seen: bool) -> None:
        """Take a change; a repeat of what the container's watermark has passed is left out.

        Above the watermark repeats are kept: the last of them follow each other as they should,
        which single ones, taken out of several changes of a key, would not.
        """
        if not (seen and arrival.commit_ts <= self._marks[arrival.where.container]):
            self._waiting.append(arrival)

    def mark(self, container: str, commit_ts: int) -> None:
        """Take a container's watermark."""
        self._marks[container] = max(self._marks[container], commit_ts)

    def ready(self, most: int | None = None) -> list[Arrival]:
        """Return what is resolved, in commit order, and forget it.

        At one commit-ts schema changes come first: a table must be there before its rows.

        Args:
            most: nothing above this commit-ts.
        """
        until = self.resolved if most is None else min(self.resolved, most)
        resolved = [a for a in self._waiting if a.commit_ts <= until]
        if resolved:
            self._waiting = [a for a in self._waiting if a.commit_ts > until]
        return sorted(resolved, key=lambda a: (a.commit_ts, not isinstance(a, ArrivedStatement)))
