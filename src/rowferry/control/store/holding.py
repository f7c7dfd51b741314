"""Holds in the row of a changefeed: asked for, taken note of by the owner, ended."""

from __future__ import annotations

from dataclasses import replace

from sqlalchemy.orm import Session

from rowferry.control.feed.lease import Claim
from rowferry.control.store import fence
from rowferry.control.store.contract import Hold
from rowferry.control.store.rows import to_hold, to_text
from rowferry.errors import IllegalMove


def ask(session: Session, changefeed: str, hold: Hold, instead_of: str, now: float) -> None:
    """Store a hold, unless one of somebody else is in force."""
    row = fence.locked(session, changefeed)
    stored = to_hold(row)
    if stored is not None and stored.id not in (hold.id, instead_of) and stored.until > now:
        raise IllegalMove(
            f"changefeed {changefeed} is held by somebody else, for {stored.until - now:.0f} s at "
            "most; try again then"
        )
    if stored is None or stored.id != hold.id:
        row.hold = to_text(hold.to_json())


def end(session: Session, changefeed: str, which: str) -> None:
    """Forget a hold, if it is that one."""
    row = fence.locked(session, changefeed)
    stored = to_hold(row)
    if stored is not None and stored.id == which:
        row.hold = None


def answer(session: Session, claim: Claim, which: str, reached: str) -> None:
    """Note what the owner has reached, if that hold is still the one stored."""
    row = fence.locked(session, claim)
    stored = to_hold(row)
    if stored is not None and stored.id == which:
        answered = replace(stored, reached=reached, micro_batch=row.micro_batch)
        row.hold = to_text(answered.to_json())
