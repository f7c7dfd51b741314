"""Removes a changefeed that no server knows: one that `rowferry run` made."""

from __future__ import annotations

import time

from rowferry.control.feed.lease import Holder
from rowferry.control.feed.leaving import leave_sink
from rowferry.control.store.connection import has_database
from rowferry.control.store.contract import FeedRecord
from rowferry.control.store.sql_store import open_store
from rowferry.secrets.sources import NO_STORE, SecretSources
from rowferry.spec.sealing import SecretKeys

_LEASE_S = 30.0


def remove_local(
    meta_url: str,
    changefeed: str,
    keys: SecretKeys | None = None,
    secrets: SecretSources = NO_STORE,
) -> FeedRecord | None:
    """Forget a changefeed and how far it came; None: the meta database does not know it.

    What it wrote stays. The database stays as well: it remembers the epoch. `keys` and `secrets`
    are for the sink's login, where others may wait for the changefeed.

    Raises:
        LeaseHeld: it is running; stop it first.
    """
    if not has_database(meta_url):
        return None
    store = open_store(meta_url, keys=keys)
    try:
        feed = store.feed(changefeed)
        if feed is None:
            return None
        claim = store.claim(changefeed, Holder.here(), time.time(), _LEASE_S)
        leave_sink(feed.spec, secrets)
        store.remove(claim)
        return feed
    finally:
        store.close()
