"""Which rows won, of a statement that lets the newest win: by what the server says of it."""

from __future__ import annotations

import re
from typing import Final

from rowferry.change.event_counts import LOST, WON

CONDITION: Final = "@cond"
_TAIL: Final = 1 << 16  # bytes at a statement's end in which its condition stands
_MARK: Final = CONDITION.encode()
_INFO: Final = re.compile(rb"Records: (\d+)\s+Duplicates: (\d+)")


def is_judged(statement: bytes) -> bool:
    """Return whether a statement lets the newest row win."""
    return statement.startswith(b"INSERT ") and _MARK in statement[-_TAIL:]


def judged_rows(affected: int, message: bytes) -> dict[str, int]:
    """Return how many rows won over another one and how many lost, by the server's answer.

    A row that was inserted counts once among the affected ones, a row that won twice, and one that
    lost not at all; nor does one that is there already, as after a replay. For several rows, the
    message tells how many there were and how many were changed.
    """
    info = _INFO.search(message or b"")
    rows, won = (int(info[1]), int(info[2])) if info else (1, int(affected == 2))
    inserted = affected - 2 * won
    return {WON: won, LOST: max(0, rows - won - inserted)}
