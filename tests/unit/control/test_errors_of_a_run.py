"""What a run at a shell shows of an error that lasts."""

from __future__ import annotations

from pathlib import Path

from rowferry.control.feed.lease import Holder
from rowferry.control.feed.service import show_again
from rowferry.control.lifecycle import FeedState, Verb
from rowferry.control.operator.operations import Operations
from rowferry.control.store.sql_store import open_store
from rowferry.errors import SinkUnavailable
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.uri import Uri


def test_an_error_that_lasts_is_shown_again_behind_a_resume(tmp_path: Path) -> None:
    store = open_store(f"sqlite:///{tmp_path / 'meta.db'}")
    source, sink = Uri.parse("range://127.0.0.1:1", "source"), Uri.parse("blackhole://", "sink")
    store.create_changefeed(ChangefeedSpec("feed", source, sink))
    claim = store.claim("feed", Holder.here(), 0.0, 60.0)
    error = SinkUnavailable("the disk is full")
    store.move(claim, Verb.FAULT, error)
    lines = len(store.history("feed"))
    show_again(store, claim, error)  # it is shown: each try would add a line
    assert len(store.history("feed")) == lines
    Operations(store).resume("feed")
    show_again(store, claim, error)
    feed = store.feed("feed")
    assert feed is not None
    assert (feed.state, feed.error) == (FeedState.WARNING, "the disk is full")
    Operations(store).pause("feed")
    show_again(store, claim, error)
    feed = store.feed("feed")
    assert feed is not None and feed.state is FeedState.STOPPED
    store.close()
