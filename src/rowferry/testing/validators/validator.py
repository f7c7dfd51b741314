"""What all validators share: how they take events and how they report."""

from __future__ import annotations

from typing import ClassVar

from rowferry.change.chunk import SchemaChange
from rowferry.testing.feed import DeliveredRows, Where

MOST_FAILURES = 100


class Validator:
    """Watches a feed for one promise. Subclasses override the notes that they need.

    Attributes:
        promise: which promise it watches, e.g. "P1".
        failures: what was broken, in words; after `MOST_FAILURES` only counted.
        unchecked: what this feed does not let it check, and why: a validator that checks less than
            its promise says so here.
    """

    promise: ClassVar[str]

    def __init__(self) -> None:
        self.failures: list[str] = []
        self.unchecked: list[str] = []
        self.failed = 0

    def note_rows(self, rows: DeliveredRows) -> None:
        """Take rows, in delivery order."""

    def note_schema_change(self, change: SchemaChange, where: Where) -> None:
        """Take a DDL."""

    def note_watermark(self, commit_ts: int, where: Where) -> None:
        """Take a watermark of one container ("" is all of them)."""

    def note_resolved(self, commit_ts: int) -> None:
        """Learn that every container's watermark has reached this commit-ts."""

    def finish(self) -> None:
        """The feed has ended: report what only the end can show."""

    def fail(self, words: str) -> None:
        """Report one broken promise."""
        self.failed += 1
        if self.failed <= MOST_FAILURES:
            self.failures.append(f"{self.promise}: {words}")

    def leave_unchecked(self, words: str) -> None:
        """Say once what is not checked, and why."""
        line = f"{self.promise}: {words}"
        if line not in self.unchecked:
            self.unchecked.append(line)
