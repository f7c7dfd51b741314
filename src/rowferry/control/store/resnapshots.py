"""Resnapshots in the row of a changefeed: asked for, cancelled, ended by the owner."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from sqlalchemy.orm import Session

from rowferry.change.resnapshot import Resnapshot, ResnapshotOutcome
from rowferry.change.table import TableId
from rowferry.control.feed.lease import Claim
from rowferry.control.store import fence
from rowferry.control.store.rows import resnapshots_of, to_text
from rowferry.control.store.tables import FeedRow
from rowferry.errors import IllegalMove

MOST_OPEN: Final = 100
_KEPT: Final = 20  # of those that ended


def ask(session: Session, changefeed: str, wanted: Resnapshot, now: float) -> None:
    """Add one behind all others."""
    row = fence.locked(session, changefeed)
    known = resnapshots_of(row)
    if any(one.id == wanted.id for one in known):
        return
    if sum(one.is_open for one in known) >= MOST_OPEN:
        raise IllegalMove(
            f"changefeed {changefeed} has {MOST_OPEN} resnapshots to do already; wait for some, or "
            "cancel them"
        )
    _write(row, (*known, wanted))
    details = {"id": wanted.id, "table": str(wanted.table), "where": wanted.where}
    fence.note(session, changefeed, now, "resnapshot asked", details)


def end(session: Session, who: str | Claim, ended: Resnapshot, now: float) -> bool:
    """Note how an open one ended; returns whether there was one."""
    row = fence.locked(session, who)
    known = resnapshots_of(row)
    mine = next((one for one in known if one.id == ended.id and one.is_open), None)
    if mine is None:
        return False
    done = replace(
        mine, outcome=ended.outcome, rows=ended.rows, words=ended.words, ended_at=round(now, 3)
    )
    _write(row, tuple(done if one is mine else one for one in known))
    details = {
        "id": mine.id,
        "table": str(mine.table),
        "outcome": ended.outcome.value,
        "rows": ended.rows,
        "why": ended.words,
    }
    fence.note(session, row.id, now, "resnapshot ended", details)
    return True


def cancelled(which: str) -> Resnapshot:
    """Return how a cancelled one ends."""
    return Resnapshot(which, TableId("", ""), outcome=ResnapshotOutcome.CANCELLED)


def _write(row: FeedRow, known: tuple[Resnapshot, ...]) -> None:
    over = [one for one in known if not one.is_open]
    forgotten = {one.id for one in over[: max(0, len(over) - _KEPT)]}
    row.resnapshots = to_text([one.to_json() for one in known if one.id not in forgotten])
