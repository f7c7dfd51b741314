"""A changefeed that stands still for a while, so that somebody can look at both its ends at once.

A hold is a wish in the meta database with an end of its own: whoever asked for it may die, and the
changefeed goes on by itself. The owner sees it within a second or two and says where it stands.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any, Final

from rowferry.change.position import physical_ms
from rowferry.control.operator.operation_forms import Held
from rowferry.control.store.contract import FeedRecord, FleetServer, Hold, MetaStore
from rowferry.errors import BadInput, IllegalMove, NotSupported
from rowferry.flow.capture.contract import KnowsPlaces
from rowferry.registry import SOURCES

LONGEST_S: Final = 3600


def ask(
    store: MetaStore,
    feed: FeedRecord,
    owner: FleetServer | None,
    place: Mapping[str, Any] | None,
    seconds: int,
    instead_of: str,
    now: float,
) -> None:
    """Ask a changefeed to stand still, at a place of its source's log or at the next border."""
    if not 1 <= seconds <= LONGEST_S:
        raise BadInput(f"seconds {seconds}: allowed: 1 to {LONGEST_S}")
    if not feed.state.runs:
        raise IllegalMove(f"changefeed {feed.id} is {feed.state}: only one that runs can be held")
    if feed.lease is not None and owner is None:
        holder = feed.lease.holder
        raise NotSupported(
            f"changefeed {feed.id} is run by process {holder.pid} on {holder.host}, which is no "
            "server; run it by `rowferry server`"
        )
    source = SOURCES.load(feed.spec.source.scheme)(feed.spec)
    if not isinstance(source, KnowsPlaces):
        raise NotSupported(
            f"changefeed {feed.id} reads {feed.spec.source.scheme}://, a source that cannot stand "
            "still at a place of its log"
        )
    if place is not None:
        source.check_place(place)
    form = None if place is None else dict(place)
    store.hold(feed.id, Hold(uuid.uuid4().hex, now + seconds, form), instead_of)


def look(store: MetaStore, feed: FeedRecord, now: float) -> Held:
    """Return where a changefeed stands; the hold only if it is still in force.

    A plan that was recorded before this call is seen: as pending, or by its number.
    """
    pending = store.pending(feed.id) is not None  # first: then it cannot be missed
    fresh = store.feed(feed.id) or feed
    hold = fresh.hold if fresh.hold is not None and fresh.hold.until > now else None
    lag = round(now * 1000) - physical_ms(fresh.watermark) if fresh.watermark else None
    return Held(hold, pending, fresh.micro_batch, None if lag is None else max(0, lag))
