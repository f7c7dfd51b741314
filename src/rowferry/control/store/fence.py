"""The lock and the fence of a changefeed's row, leases, and the lines of its history.

Every transaction that belongs to one changefeed first locks its row, so two of them never
interleave; the epoch in that row is the fence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from itertools import groupby
from typing import Any

from sqlalchemy import Connection, Row, and_, bindparam, delete, select, tuple_, update
from sqlalchemy.orm import Session

from rowferry.control.feed.lease import Claim, Holder
from rowferry.control.store.contract import Lease
from rowferry.control.store.rows import to_lease, to_ms, to_text
from rowferry.control.store.tables import (
    FeedRow,
    HistoryRow,
    LeaseRow,
    MetaTable,
    ProgressRow,
    SubscribeRow,
)
from rowferry.errors import Fenced, LeaseHeld, NoSuchChangefeed

# Kept of each changefeed: twice what is shown of it. A claim, an error or a change adds one.
HISTORY_LINES = 200
_FEEDS = MetaTable.metadata.tables["changefeeds"]
_MOVED = "epoch micro_batch published spec_version cluster_id watermark moved_at".split()
_MOVED_COLUMNS = (
    select(*(_FEEDS.c[name] for name in _MOVED))
    .where(_FEEDS.c.id == bindparam("feed"))
    .with_for_update()
)


def locked(session: Session, who: str | Claim) -> FeedRow:
    """Lock and return the changefeed's row; a claim must be the one in force.

    Raises:
        NoSuchChangefeed: there is none of this id.
        Fenced: the claim is not in force any more, or its changefeed was removed.
    """
    changefeed = who if isinstance(who, str) else who.changefeed
    row = session.scalar(select(FeedRow).where(FeedRow.id == changefeed).with_for_update())
    if isinstance(who, Claim):
        _check_in_force(who, row.epoch if row else None)
    if row is None:
        raise no_such(changefeed)
    if isinstance(who, str):
        _adopt(session, changefeed)
    return row


def _adopt(session: Session, changefeed: str) -> None:
    """Own the rows that a server of an older version wrote: they have but their name.

    Whoever claims a changefeed, or changes one that somebody else has, comes through here.
    """
    for table in (SubscribeRow, ProgressRow):
        unowned = and_(table.subscribe_name == changefeed, table.changefeed.is_(None))
        session.execute(update(table).where(unowned).values(changefeed=changefeed))


def locked_columns(connection: Connection, claim: Claim) -> Row[Any]:
    """Lock a changefeed's row like `locked`, and return only what a micro-batch moves.

    Many a micro-batch is recorded and published in a second: whole rows as objects cost more than
    all the rest.
    """
    row = connection.execute(_MOVED_COLUMNS, {"feed": claim.changefeed}).one_or_none()
    _check_in_force(claim, row.epoch if row else None)
    assert row is not None
    return row


def _check_in_force(claim: Claim, epoch: int | None) -> None:
    if epoch is None:
        raise Fenced(f"changefeed {claim.changefeed} was removed; stop running it")
    if epoch != claim.epoch:
        raise Fenced(
            f"changefeed {claim.changefeed} was taken over: epoch {epoch} is in force, this "
            f"process has {claim.epoch}; stop running it"
        )


def no_such(changefeed: str) -> NoSuchChangefeed:
    """Return the error for an id that is not stored."""
    return NoSuchChangefeed(f"there is no changefeed {changefeed!r}; list them to see their ids")


def take(
    session: Session,
    changefeed: str,
    holder: Holder,
    now: float,
    ttl_s: float,
    stale_end: float | None,
) -> Claim:
    """Give the lease to `holder` with the next epoch, unless someone else lives on it."""
    feed = locked(session, changefeed)
    row = session.get_one(LeaseRow, changefeed)
    lease = to_lease(row)
    if lease is not None and lease.expires_at != stale_end and _keeps_out(lease, holder, now):
        since = datetime.fromtimestamp(lease.claimed_at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        server = "" if lease.owner == str(lease.holder) else f" ({lease.owner})"
        raise LeaseHeld(
            f"changefeed {changefeed} is running on host {lease.holder.host}, pid "
            f"{lease.holder.pid}{server}, since {since}; stop it there first"
        )
    why = _why_free(lease, row.epoch, holder, now)
    row.epoch += 1
    feed.epoch = row.epoch
    row.holder = to_text(holder.to_json())
    row.owner = str(holder)
    row.claimed_at = to_ms(now)
    row.expires_at = to_ms(now + ttl_s)
    _show_owner(session, changefeed, str(holder))
    before = lease.owner if lease else ""
    details = {"by": str(holder), "epoch": row.epoch, "from": before, "why": why}
    note(session, changefeed, now, "claimed", details)
    return Claim(changefeed, holder, row.epoch, ttl_s)


def _why_free(lease: Lease | None, epoch: int, holder: Holder, now: float) -> str:
    """Return why a lease can be taken."""
    if lease is None:
        return "nobody had it" if epoch else "it is new"
    if lease.holder.instance == holder.instance:
        return "this process had it already"
    if lease.holder.is_dead(seen_by=holder):
        return f"the process of {lease.owner} has ended"
    if now < lease.expires_at:
        return f"{lease.owner} does not renew its lease, to which a wrong clock gave a late end"
    return (
        f"the lease of {lease.owner} ran out {now - lease.expires_at:.0f} s ago: it was killed, "
        "hangs, or does not reach the meta database"
    )


def _keeps_out(lease: Lease, holder: Holder, now: float) -> bool:
    """Return whether a lease keeps `holder` out. A process never keeps itself out."""
    return (
        now < lease.expires_at
        and lease.holder.instance != holder.instance
        and not lease.holder.is_dead(seen_by=holder)
    )


def extend(session: Session, claim: Claim, now: float) -> None:
    """Move the lease's end."""
    locked(session, claim)
    row = session.get_one(LeaseRow, claim.changefeed)
    if row.holder is None:
        raise Fenced(f"the lease of changefeed {claim.changefeed} was released; claim it again")
    row.expires_at = to_ms(now + claim.ttl_s)


def extend_all(session: Session, claims: Sequence[Claim], now: float) -> tuple[Claim, ...]:
    """Move the ends of leases that are in force; returns the claims whose lease is not.

    The epoch in the lease's own row decides, so that no changefeed's row is locked: a claim that
    comes between is seen the next time, and its epoch fences this one anyway.
    """
    row = LeaseRow
    rows = session.execute(
        select(row.changefeed, row.epoch).where(
            row.changefeed.in_([c.changefeed for c in claims]), row.holder.is_not(None)
        )
    )
    in_force = {(changefeed, epoch) for changefeed, epoch in rows}
    lost = tuple(c for c in claims if (c.changefeed, c.epoch) not in in_force)
    kept = sorted((c.ttl_s, c.changefeed, c.epoch) for c in claims if c not in lost)
    for ttl_s, same in groupby(kept, key=lambda key: key[0]):
        mine = tuple_(row.changefeed, row.epoch).in_([key[1:] for key in same])
        ends = {"expires_at": to_ms(now + ttl_s)}
        session.execute(
            update(row).where(mine, row.holder.is_not(None)).values(**ends),
            execution_options={"synchronize_session": False},
        )
    return lost


def give_back(session: Session, claim: Claim) -> None:
    """End the lease; the claim's epoch stays in force until the next one."""
    locked(session, claim)
    row = session.get_one(LeaseRow, claim.changefeed)
    row.holder = row.owner = None
    row.expires_at = 0
    _show_owner(session, claim.changefeed, "")


def end_lease(session: Session, changefeed: str) -> int:
    """Take the lease from whoever has it; returns the epoch that fences every claim so far."""
    row = session.get_one(LeaseRow, changefeed)
    row.epoch += 1
    row.holder = row.owner = None
    row.expires_at = 0
    _show_owner(session, changefeed, "")
    return row.epoch


def _show_owner(session: Session, changefeed: str, owner: str) -> None:
    mine = SubscribeRow.changefeed == changefeed
    session.execute(update(SubscribeRow).where(mine).values(owner=owner))


def note(
    session: Session, changefeed: str, now: float, what: str, details: Mapping[str, Any]
) -> None:
    """Add a line of history and let the oldest go."""
    session.add(
        HistoryRow(changefeed=changefeed, at=to_ms(now), what=what, details=to_text(dict(details)))
    )
    session.flush()
    mine = HistoryRow.changefeed == changefeed
    oldest = select(HistoryRow.id).where(mine).order_by(HistoryRow.id.desc())
    last_kept = session.scalar(oldest.offset(HISTORY_LINES - 1).limit(1))
    if last_kept is not None:
        session.execute(delete(HistoryRow).where(mine, HistoryRow.id < last_kept))
