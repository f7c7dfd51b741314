"""P1: every committed change at or below the watermark was delivered, and nothing else was."""

from __future__ import annotations

from typing import ClassVar

from rowferry.change.chunk import Op
from rowferry.change.table import TableId
from rowferry.testing.feed import DeliveredRows
from rowferry.testing.model import Key, Row
from rowferry.testing.validators.oracle import DeliveryOracle, ExpectedChange
from rowferry.testing.validators.validator import Validator


class NothingLostOrInvented(Validator):
    """P1. At each watermark every change at or below it has come; no row comes from nowhere.

    Without commit-ts in the feed a row is matched to the earliest change of its key with the same
    content that has not come yet, so an exact repeat may hide the loss of an equal later change.

    Args:
        oracle: what the source did.
        allow_repeats: False: a change that comes twice is a failure too.
    """

    promise: ClassVar[str] = "P1"

    def __init__(self, oracle: DeliveryOracle, allow_repeats: bool = True) -> None:
        super().__init__()
        self._oracle = oracle
        self._allow_repeats = allow_repeats
        self._snapshot: set[tuple[TableId, Key, str]] = set()
        self._came = bytearray(len(oracle.expected))
        self._checked = 0
        if not oracle.facts.carries_commit_ts:
            self.leave_unchecked("commit-ts of rows (the feed carries none): matched by content")

    def note_rows(self, rows: DeliveredRows) -> None:
        """Match each row with the change that it delivers."""
        places, expected, came = self._oracle.places, self._oracle.expected, self._came
        partial = self._oracle.facts.partial_images
        for i, (op, stamp, key, after) in enumerate(
            zip(rows.ops, rows.commit_ts, rows.keys, rows.after, strict=True)
        ):
            known = repeat = False
            for place in places.get((rows.table, key, stamp), ()):
                change = expected[place]
                if change.op == op and _same(change.after, after, partial):
                    known, repeat = True, bool(came[place])
                    came[place] = 1
                    if not repeat:
                        break
            if not known:
                self._judge_stranger(rows, i)
            elif repeat and not self._allow_repeats:
                self.fail(f"repeated: {rows.place(i)}")

    def note_resolved(self, commit_ts: int) -> None:
        """Report what should have come by now."""
        expected = self._oracle.expected
        while self._checked < len(expected) and expected[self._checked].commit_ts <= commit_ts:
            change = expected[self._checked]
            if change.required and not self._came[self._checked]:
                self.fail(f"lost: {_words(change)} had not come at watermark {commit_ts}")
            self._checked += 1

    def _judge_stranger(self, rows: DeliveredRows, i: int) -> None:
        table, key, stamp = rows.table, rows.keys[i], rows.commit_ts[i]
        oracle = self._oracle
        if rows.ops[i] == Op.INSERT and oracle.is_snapshot_row(table, key, stamp, rows.after[i]):
            row = (table, key, repr(rows.after[i]))
            if row in self._snapshot and not self._allow_repeats:
                self.fail(f"repeated: {rows.place(i)}")
            self._snapshot.add(row)
            return
        wanted = oracle.at(table, key, stamp)
        if not wanted:
            self.fail(f"invented: {rows.place(i)}: the source made no such change")
            return
        self.fail(
            f"invented: {rows.place(i)} has {rows.after[i]}; the source made "
            + ", ".join(f"{c.op.name.lower()} {c.after}" for c in wanted[:3])
        )


def _same(wanted: Row | None, got: Row | None, partial: bool) -> bool:
    if wanted == got:
        return True
    if not partial or wanted is None or got is None:
        return False
    return all(name in wanted and wanted[name] == value for name, value in got.items())


def _words(change: ExpectedChange) -> str:
    return f"{change.table} {change.key} {change.op.name.lower()} at {change.commit_ts}"
