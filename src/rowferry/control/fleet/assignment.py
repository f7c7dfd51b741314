"""Who of a fleet should run which changefeeds: pure arithmetic, without a clock or a database.

Balanced means that no server runs two more than another. Every server judges by itself, from the
same rows; where two judge differently for a moment, the lease decides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil


def to_claim(
    free: Mapping[str, float], counts: Mapping[str, int], me: str, wait_s: float
) -> list[str]:
    """Return which of the free changefeeds this server should claim now, longest free first.

    Up to its fair share; and whatever its share, those that nobody else took for `wait_s`.

    Args:
        free: changefeeds that nobody holds, and for how many seconds they were seen so.
        counts: how many each server that is alive holds, this one among them.
        me: this server.
        wait_s: for how long others may be expected to come.
    """
    longest_first = sorted(free, key=lambda name: (-free[name], name))
    share = ceil((sum(counts.values()) + len(free)) / max(len(counts), 1))
    fewest = min(counts.values(), default=0)
    mine = counts.get(me, 0)
    chosen: list[str] = []
    for name in longest_first:
        waited = free[name] >= wait_s
        # Who has fewer comes first; the others leave it to them for a while.
        if waited or (mine + len(chosen) < share and mine <= fewest):
            chosen.append(name)
    return chosen


def to_hand_over(held: Sequence[str], counts: Mapping[str, int], me: str) -> str | None:
    """Return the changefeed that this server should hand over now; None: none.

    One at a time, by one server at a time: the one that holds most, the first by name among equals.
    """
    if not held or not counts:
        return None
    most = max(counts.values())
    if most - min(counts.values()) < 2:
        return None
    if me != min(name for name, count in counts.items() if count == most):
        return None
    return max(held)
