"""P2: a key's changes come in commit order, repeats are identical, a key keeps its partition."""

from __future__ import annotations

from typing import ClassVar

from rowferry.change.table import TableId
from rowferry.testing.feed import DeliveredRows, FeedFacts, RowRepetition
from rowferry.testing.model import Key, Row
from rowferry.testing.validators.oracle import DeliveryOracle
from rowferry.testing.validators.validator import Validator


class PerKeyOrder(Validator):
    """P2. The first occurrences of a key's changes are in commit order; a repeat is the same bytes.

    With an oracle, several changes of a key in one transaction must come in its order,
    and a changed repeat of the newest change is found; without one these two are left unchecked.
    """

    promise: ClassVar[str] = "P2"

    def __init__(self, facts: FeedFacts, oracle: DeliveryOracle | None = None) -> None:
        super().__init__()
        self._facts = facts
        self._oracle = oracle
        self._last: dict[TableId, dict[Key, int]] = {}
        self._homes: dict[TableId, dict[Key, str]] = {}
        self._came: dict[tuple[TableId, Key, int], int] = {}
        self._resolved = 0
        if not facts.carries_commit_ts:
            self.leave_unchecked("order and repeats: the feed carries no commit-ts")
        if oracle is None:
            self.leave_unchecked("order inside a transaction: no history was given")

    def note_resolved(self, commit_ts: int) -> None:
        """Remember the watermark: it ends snapshots."""
        self._resolved = commit_ts

    def note_rows(self, rows: DeliveredRows) -> None:
        """Check each row against what came before it."""
        if self._facts.key_affinity:
            self._check_homes(rows)
        if not self._facts.carries_commit_ts:
            return
        last = self._last.setdefault(rows.table, {})
        several = self._oracle.places if self._oracle else {}
        for i, (key, stamp, repetition) in enumerate(
            zip(rows.keys, rows.commit_ts, rows.repetitions, strict=True)
        ):
            if repetition is RowRepetition.REPEAT:
                continue
            newest = last.get(key, -1)
            if repetition is RowRepetition.REWRITTEN:
                self.fail(f"{rows.place(i)}: a repeat with other bytes")
            elif repetition is RowRepetition.FIRST:
                if stamp < newest:
                    self.fail(f"{rows.place(i)}: first seen after the change at {newest}")
                else:
                    last[key] = stamp
                if len(several.get((rows.table, key, stamp), ())) > 1:
                    self._check_inside(rows, i)
            elif not self._snapshot_again(rows.table, stamp):
                self._check_inside(rows, i)

    def _snapshot_again(self, table: TableId, stamp: int) -> bool:
        if self._oracle is None:
            return False
        again = self._oracle.rereads.get((table, stamp))
        if again is not None:
            return self._resolved < again.high
        window = self._oracle.windows.get(table)
        return window is not None and stamp == window.low and self._resolved < window.high

    def _check_inside(self, rows: DeliveredRows, i: int) -> None:
        """Check one of several different rows of a key at one commit-ts."""
        key, stamp = rows.keys[i], rows.commit_ts[i]
        if self._oracle is None:
            if stamp < self._last[rows.table].get(key, -1):
                self.fail(f"{rows.place(i)}: a repeat with another content")
            return
        wanted: list[tuple[int, Row | None]] = []
        for change in self._oracle.at(rows.table, key, stamp):
            if (change.op, change.after) not in wanted:  # an equal later one looks like a repeat
                wanted.append((change.op, change.after))
        place = self._came.get((rows.table, key, stamp), 0)
        here = (rows.ops[i], rows.after[i])
        if wanted[place : place + 1] == [here]:
            self._came[rows.table, key, stamp] = place + 1
        elif here in wanted[place:]:
            self.fail(f"{rows.place(i)}: out of order inside its transaction")
        elif here not in wanted[:place]:
            self.fail(f"{rows.place(i)}: a repeat with another content")

    def _check_homes(self, rows: DeliveredRows) -> None:
        homes = self._homes.setdefault(rows.table, {})
        for i, key in enumerate(rows.keys):
            home = homes.setdefault(key, rows.container)
            if home != rows.container:
                self.fail(f"{rows.place(i)}: the key was on {home} before")
