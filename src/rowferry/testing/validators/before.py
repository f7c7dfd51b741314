"""P5: before-images equal the row's previous state."""

from __future__ import annotations

from typing import ClassVar

from rowferry.change.chunk import Op
from rowferry.testing.feed import DeliveredRows
from rowferry.testing.model import Row
from rowferry.testing.validators.oracle import DeliveryOracle
from rowferry.testing.validators.validator import Validator


class BeforeImagesTrue(Validator):
    """P5. Outside snapshot windows, each before-image is the row as the source held it.

    A delete's image may hold the key columns only where the feed's facts allow partial images.
    """

    promise: ClassVar[str] = "P5"

    def __init__(self, oracle: DeliveryOracle) -> None:
        super().__init__()
        self._oracle = oracle
        facts = oracle.facts
        if not facts.carries_before:
            self.leave_unchecked("updates: the feed carries no before-images")
        if not facts.carries_commit_ts:
            self.leave_unchecked("everything: the feed carries no commit-ts")

    def note_rows(self, rows: DeliveredRows) -> None:
        """Compare each before-image with the source's row."""
        oracle = self._oracle
        if not oracle.facts.carries_commit_ts:
            return
        partial = oracle.facts.partial_images
        for i, (op, stamp, key, before, after) in enumerate(
            zip(rows.ops, rows.commit_ts, rows.keys, rows.before, rows.after, strict=True)
        ):
            if oracle.in_window(rows.table, stamp):
                continue
            if op == Op.UPDATE and not oracle.facts.carries_before:
                continue
            wanted = [
                w.before
                for w in oracle.at(rows.table, key, stamp)
                if w.op == op and (partial or w.after == after)
            ]
            if wanted and not any(_equal(w, before, partial) for w in wanted):
                self.fail(f"{rows.place(i)}: before is {before}; the source held {wanted[0]}")


def _equal(wanted: Row | None, got: Row | None, partial: bool) -> bool:
    if wanted == got or not partial or wanted is None or got is None:
        return wanted == got
    return bool(got) and all(n in wanted and wanted[n] == v for n, v in got.items())
