"""A changefeed that is asked to stand still: where, for how long, and who may ask."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from loop_kit import Bench, forget_scripted_source, register_scripted_source
from server_kit import Fleet

from rowferry.control.feed.lease import Holder
from rowferry.control.operator.operations import Operations
from rowferry.control.store.contract import Hold, MetaStore
from rowferry.control.store.sql_store import open_store
from rowferry.errors import BadInput, IllegalMove, NotSupported
from rowferry.spec.uri import Uri

LATE = 2.0**31


def test_what_is_stored_is_what_other_versions_read() -> None:
    stored = {"id": "a", "until": 9.0, "place": None, "stands": "at", "micro_batch": 3}
    assert Hold.from_json(stored) == Hold("a", 9.0, None, "at", 3)
    assert Hold("a", 9.0, None, "at", 3).to_json() == stored


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MetaStore]:
    found = open_store(f"sqlite:///{tmp_path / 'meta.db'}")
    register_scripted_source()
    yield found
    forget_scripted_source()
    found.close()


def test_a_loop_stands_at_a_border_or_a_place(tmp_path: Path, store: MetaStore) -> None:
    bench = Bench(tmp_path / "out", store)
    bench.script.most = 3
    for number in range(9):
        bench.script.commit(number)
    holds: list[Hold | None] = [None]
    loop = bench.loop(hold=lambda: holds[-1])

    def ask(name: str, place: dict[str, Any] | None = None, published: int = 0) -> Hold:
        """Hold the loop and let it step until it says something; returns what it said."""
        before = holds[-1].id if holds[-1] else ""
        holds.append(Hold(name, LATE, place))
        store.hold("feed", Hold(name, LATE, place), instead_of=before)
        steps = [loop.step() for _ in range(4)]
        assert [s.published for s in steps] == [True] * published + [False] * (4 - published)
        found = store.feed("feed")
        assert found is not None and found.hold is not None and found.hold.id == name
        return found.hold

    loop.step()
    assert ask("a").reached == "at"
    assert ask("b", {"next": 7}, published=2) == Hold("b", LATE, {"next": 7}, "at", 3)
    assert store.state("feed").position == {"next": 7}
    assert ask("c", {"next": 5}).reached == "past"
    assert ask("d", {"next": 50}, published=1).reached == ""  # the log has not come so far
    holds.append(None)
    bench.script.commit(9)
    assert loop.step().rows == 1
    # What was recorded is carried out first, whoever recorded it.
    bench.script.commit(10)
    bench.journal.fail("before", "run", ValueError("killed"))
    with pytest.raises(ValueError, match="killed"):
        loop.step()
    holds.append(Hold("e", LATE))
    assert (loop.step().replayed, loop.step().published) == (True, False)


def test_a_member_lets_its_changefeed_stand_and_go_on(tmp_path: Path, store: MetaStore) -> None:
    fleet = Fleet(tmp_path, store)
    script = fleet.create("one", 1)

    def stands() -> str:
        feed = store.feed("one")
        return feed.hold.reached if feed and feed.hold else ""

    with fleet.member():
        fleet.until_delivered("one")
        store.hold("one", Hold("a", time.time() + 600))
        fleet.until(lambda: stands() == "at", "it stands")
        before = store.state("one").micro_batch
        script.commit(2)
    feed = store.feed("one")
    assert feed is not None
    with fleet.member():  # whoever has it next sees the hold, too
        fleet.until(lambda: bool((f := store.feed("one")) and f.epoch > feed.epoch), "a new owner")
        store.hold("one", Hold("b", time.time() + 600), instead_of="a")
        fleet.until(lambda: stands() == "at", "it stands again")
        assert store.state("one").micro_batch == before
        store.hold("one", Hold("c", time.time() + 0.05), instead_of="b")  # ends by itself
        fleet.until_delivered("one")


def test_who_can_be_held(tmp_path: Path, store: MetaStore) -> None:
    operations = Operations(store, now=lambda: 1000.0)
    bench = Bench(tmp_path / "out", store)
    place = {"server": "s", "file": "log.1", "offset": 4, "gtid": ""}
    for given, seconds, words in (
        (None, 0, "allowed: 1 to 3600"),
        (None, 3601, "allowed: 1 to 3600"),
    ):
        with pytest.raises(BadInput, match=words):
            operations.hold("feed", given, seconds)
    operations.pause("feed")
    with pytest.raises(IllegalMove, match="is stopped: only one that runs"):
        operations.hold("feed", place)
    operations.resume("feed")
    with pytest.raises(NotSupported, match="reads scripted://, a source that cannot stand still"):
        operations.hold("feed", place)
    source = Uri.parse("mysql://u@db:1/", "source")
    store.update_spec("feed", replace(bench.spec, source=source))
    me = Holder.here()
    store.claim("feed", me, 1000.0, 60.0)
    with pytest.raises(NotSupported, match="which is no server; run it by `rowferry server`"):
        operations.hold("feed", place)
    store.announce(me, "here:1", 1000.0)
    for wrong in ({**place, "offset": "4"}, {"file": "log.1"}):
        with pytest.raises(BadInput, match="needs exactly server, file, offset, gtid"):
            operations.hold("feed", wrong)
    found = operations.hold("feed", place, 30)
    assert found.hold is not None and found.hold == Hold(found.hold.id, 1030.0, place)
    assert (found.pending, found.micro_batch, found.lag_ms) == (False, 0, None)
    assert operations.held("feed") == found
    assert Operations(store, now=lambda: 1031.0).held("feed").hold is None
    assert operations.end_hold("feed", "another").hold == found.hold
    assert operations.end_hold("feed", found.hold.id).hold is None
