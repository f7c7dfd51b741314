"""Waiting for the owner of a changefeed to leave it, and doing what only an owner may do."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from rowferry.control.feed.lease import Holder
from rowferry.control.feed.recorded import discard, has_made_changes
from rowferry.control.store.contract import FeedRecord, MetaStore
from rowferry.control.store.publishing import nothing_delivered
from rowferry.flow.assemble import Flow
from rowferry.flow.sink.contract import Owner

LEASE_S: Final = 30.0
PATIENCE_S: Final = 5.0  # how long an operator waits for an owner to come to its border


class Owners:
    """The owners of changefeeds, as an operator has to do with them."""

    def __init__(self, store: MetaStore, now: Callable[[], float]) -> None:
        self._store = store
        self._now = now

    def at_work(self, feed: FeedRecord) -> bool:
        """Return whether somebody may still be at work on it."""
        lease = feed.lease
        if lease is None or lease.expires_at <= self._now():
            return False
        return not lease.holder.is_dead(Holder.here())

    def wait_until_left(self, changefeed: str) -> FeedRecord | None:
        """Wait, not for long, until nobody is at work on it; returns it as it then is."""
        until = time.monotonic() + PATIENCE_S
        while True:
            feed = self._store.feed(changefeed)
            if feed is None or not self.at_work(feed) or time.monotonic() >= until:
                return feed
            time.sleep(0.05)

    def discard_pending(
        self,
        feed: FeedRecord,
        flow: Flow,
        why: str,
        anew: bool = False,
        leaves_made: bool = False,
    ) -> None:
        """Take a recorded, unfinished plan back, also what its tasks have left at the sink.

        `anew`: all will be delivered again, and what was need not be there any more. `leaves_made`:
        a plan stays that has made schema changes, whose end can be carried out by any settings.

        Raises:
            LeaseHeld: a server has not come to the end of its micro-batch yet.
        """
        left = self.wait_until_left(feed.id)
        # Whoever has not given it back may record a plan at any moment, and carry it out: also one
        # whose lease has run out, where it hangs and goes on later. A claim keeps it from that.
        if self._store.pending(feed.id) is None and (left is None or left.lease is None):
            return
        claim = self._store.claim(feed.id, Holder.here(), self._now(), LEASE_S)
        try:
            pending = self._store.pending(feed.id)
            if pending is not None:
                stored = self._store.state(feed.id)
                state = stored.sink_state
                if anew and state is not None:
                    state = nothing_delivered(state)
                flow.sink.open(Owner(feed.id, claim.epoch, made_ms=stored.made_ms), state)
                if leaves_made and has_made_changes(self._store, feed.id, flow, pending):
                    return
                discard(self._store, claim, flow, pending, f"{why}: rows may come again")
        finally:
            self._store.release(claim)
