"""P3: watermarks never go back, and no unseen change at or below one follows it."""

from __future__ import annotations

from typing import ClassVar

from rowferry.testing.feed import DeliveredRows, FeedFacts, RowRepetition, Where
from rowferry.testing.validators.oracle import DeliveryOracle
from rowferry.testing.validators.validator import Validator


class WatermarkHolds(Validator):
    """P3. In each container; a watermark of the container "" counts for all of them.

    While a table's snapshot is under way the watermark may stand at its `low` and rows at `low`
    still come: that needs the oracle's windows.
    """

    promise: ClassVar[str] = "P3"

    def __init__(self, facts: FeedFacts, oracle: DeliveryOracle | None = None) -> None:
        super().__init__()
        self._dated = facts.carries_commit_ts
        self._oracle = oracle
        self._marks: dict[str, int] = {}
        self._resolved = 0
        if not self._dated:
            self.leave_unchecked("rows behind a watermark: the feed carries no commit-ts")

    def note_watermark(self, commit_ts: int, where: Where) -> None:
        """Check that the watermark does not go back."""
        mark = self._marks.get(where.container, 0)
        if commit_ts < mark:
            self.fail(f"{where}: watermark {commit_ts} after {mark}")
        self._marks[where.container] = max(mark, commit_ts)

    def note_resolved(self, commit_ts: int) -> None:
        """Remember the watermark of the whole feed: it ends snapshots."""
        self._resolved = commit_ts

    def note_rows(self, rows: DeliveredRows) -> None:
        """Check that what is new is above the watermark."""
        if not self._dated:
            return
        mark = max(self._marks.get(rows.container, 0), self._marks.get("", 0))
        low = self._open_snapshot(rows)
        for i, (stamp, repetition) in enumerate(zip(rows.commit_ts, rows.repetitions, strict=True)):
            if (
                stamp <= mark
                and stamp != low
                and repetition in (RowRepetition.FIRST, RowRepetition.OTHER)
            ):
                self.fail(f"{rows.place(i)}: first seen after watermark {mark}")

    def _open_snapshot(self, rows: DeliveredRows) -> int | None:
        window = self._oracle.windows.get(rows.table) if self._oracle else None
        return window.low if window is not None and self._resolved < window.high else None
