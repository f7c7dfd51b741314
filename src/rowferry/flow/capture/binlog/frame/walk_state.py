"""The state of a walk over the log: one array for compiled code, one name for each place of it.

The array is what kernels read and write: plain integers stay in registers, fields of a record do
not. Everything else reads and writes the same integers as attributes of `WalkState`. The order of
the attributes below is the order in the array, and nothing else says so.
"""

from __future__ import annotations

from itertools import count
from typing import Any, Final, Self, overload

import numpy as np
import numpy.typing as npt

NEVER: Final = 1 << 62  # a bound that no offset and no commit-ts reaches


class Place:
    """One integer of the state; `place` is its index in the array."""

    def __init__(self, place: int) -> None:
        self.place = place

    @overload
    def __get__(self, state: None, owner: Any) -> Place: ...
    @overload
    def __get__(self, state: WalkState, owner: Any) -> int: ...
    def __get__(self, state: WalkState | None, owner: Any) -> Place | int:
        return self if state is None else int(state.array[self.place])

    def __set__(self, state: WalkState, value: int) -> None:
        state.array[self.place] = value


_places = count()


def _place() -> Place:
    return Place(next(_places))


class WalkState:
    """Where a walk stands, its clock, the open transaction, and why it stopped.

    Attributes:
        array: all of it, as kernels have it.
    """

    # --- where it stands
    at = _place()  # index in the buffer of the next packet
    offset = _place()  # log offset behind the last event
    event_at = _place()  # index in the buffer of the event (its header) that stopped the walk
    event_end = _place()  # index behind it, checksum included

    # --- the clock
    last_ts = _place()  # commit-ts of the last transaction (or watermark)
    clamp_ms = _place()  # later times are not believed: the source's clock + AHEAD_MS
    clamped = _place()  # transactions whose time was clamped
    until_ts = _place()  # the walk ends before transactions above this commit-ts

    # --- the open transaction
    txn_ts = _place()  # its commit-ts; 0: none is open
    txn_at = _place()  # index in the buffer where it began (may be gone: negative)
    txn_offset = _place()  # log offset where it began
    txn_last_ts = _place()  # the clock before it
    alone = _place()  # 1: the next QUERY is the whole transaction
    half = _place()  # 1: it is an ALTER that only begins, or that failed
    in_txn = _place()  # 1: it has captured rows
    statement = _place()  # 1: inside a statement (a TABLE_MAP was seen, its last rows not yet)
    marked = _place()  # 1: it has a table whose rows say that it is not captured

    # --- who commits
    run_a = _place()  # uuid's first half, or domain
    run_b = _place()  # uuid's second half, or server id
    run_next = _place()  # the number that continues the run (MySQL), or last + 1 (MariaDB)
    run_open = _place()  # 1: these are set
    each = _place()  # 1: stop at every transaction (GTID), before it is taken
    accept = _place()  # 1: take the next GTID as it is; 2: also its time

    # --- the segment
    open = _place()  # 1: the caller has opened one
    cut_at = _place()  # log offset from which it should end
    day_end = _place()  # the last commit-ts of its date
    whole = _place()  # 1: segments end at borders only
    from_ts = _place()  # rows of transactions up to this commit-ts are not captured
    count = _place()  # captured rows events so far
    captured_ts = _place()  # commit-ts of the last transaction with captured rows
    captured_end = _place()  # log offset behind it
    pair_slot = _place()  # slot of the rows event that stopped the walk
    pair_partition = _place()  # its partition + 1; 0: none

    # --- what was collected
    collected = _place()  # how many events
    rows_at = _place()  # virtual place of the next rows event: gives `seq`

    __slots__ = ("array",)

    def __init__(self, array: npt.NDArray[np.int64] | None = None) -> None:
        """Begin with nothing, or with an array of another state."""
        self.array = np.zeros(STATE_SIZE, np.int64) if array is None else array

    @classmethod
    def without_bounds(cls) -> Self:
        """Return a state whose segment, date and end are never reached."""
        state = cls()
        state.until_ts = state.day_end = state.cut_at = NEVER
        return state

    def copy(self) -> WalkState:
        """Return another one with the same content."""
        return WalkState(self.array.copy())

    def take(self, other: WalkState) -> None:
        """Become equal to another one."""
        self.array[:] = other.array


STATE_SIZE: Final = next(_places)
