"""What is found in an output, and how far to look."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from rowferry.change.chunk import Op, Rows
from rowferry.downstream.trace.row_key import RowKey

Image: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True)
class TraceLimits:
    """How far to look.

    Attributes:
        since, until: only changes from this commit-ts on, up to that one; 0: no such limit.
        limit: this many changes, the newest, are enough.
        ends_at: by the monotonic clock: what is not read by then stays unread.
    """

    since: int
    until: int
    limit: int
    ends_at: float

    @property
    def is_over(self) -> bool:
        """Whether the time is up."""
        return time.monotonic() >= self.ends_at

    def holds(self, commit_ts: int) -> bool:
        """Return whether a commit-ts lies between the bounds; one that is not known does."""
        if not commit_ts:
            return True
        return self.since <= commit_ts and (not self.until or commit_ts <= self.until)


@dataclass(frozen=True, slots=True)
class DeliveredChange:
    """A change of the row as it lies in the output.

    Attributes:
        commit_ts: 0 where the format does not carry it.
        place: where it lies, in the words of its kind of sink.
        path: of its file, as the plan named it; empty where there are no files.
        order: its place among the others of one output, for equal commit-ts.
        output: which of several outputs with an order of their own it lies in.
        key_only: the columns beside the handle key did not fit into the message.
    """

    op: Op
    commit_ts: int
    before: Image | None
    after: Image | None
    place: dict[str, Any]
    path: str = ""
    order: tuple[int, ...] = ()
    key_only: bool = False
    output: str = ""


@dataclass(slots=True)
class OutputFindings:
    """What a look at an output gave.

    Attributes:
        complete: everything between the bounds was looked at.
        exact: the format tells the whole commit-ts; else its millisecond, or nothing.
        notes: what could not be looked at, and why, a line each.
        looked: how much was looked at, by what it is.
    """

    changes: list[DeliveredChange] = field(default_factory=list)
    complete: bool = True
    notes: list[str] = field(default_factory=list)
    looked: dict[str, int] = field(default_factory=dict)

    def count(self, what: str, more: int = 1) -> None:
        """Add to what was looked at."""
        self.looked[what] = self.looked.get(what, 0) + more

    def stop(self, why: str) -> None:
        """Note that not everything was looked at."""
        self.complete = False
        self.notes.append(why)


PlaceOf: TypeAlias = Callable[[int], dict[str, Any]]


def matching(
    rows: Rows,
    key: RowKey,
    limits: TraceLimits,
    place_of: PlaceOf,
    path: str,
    order: tuple[int, ...],
    output: str = "",
) -> Iterator[DeliveredChange]:
    """Yield the changes of the row in a chunk; `place_of` is given the number of the row in it."""
    hits = np.flatnonzero(key.in_rows(rows))
    if not len(hits):
        return
    part = rows.take(hits)
    images = part.before.to_pylist(), part.after.to_pylist()
    columns = part.op.tolist(), part.commit_ts.tolist()
    for number, op, stamp, before, after in zip(hits.tolist(), *columns, *images, strict=True):
        if limits.holds(stamp):
            yield DeliveredChange(
                Op(op),
                stamp,
                before,
                after,
                place_of(number),
                path,
                (*order, number),
                rows.key_only,
                output,
            )
