"""Files that were published are known: one that is gone is never made again in silence."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from object_kit import Bucket, sink_on
from obstore.store import MemoryStore
from storage_kit import (
    EMPLOYEE,
    NOON,
    Feed,
    name,
    numbers,
    segment,
    slice_of,
    storage,
    table,
    ts,
)

from rowferry.errors import RowferryError, SinkOwned, TargetLost, TargetWentBack, Verdict
from rowferry.flow.sink.contract import Owner
from rowferry.flow.sink.storage.files import Files
from rowferry.flow.sink.storage.local_files import LocalFiles
from rowferry.flow.sink.storage.sink import StorageSink

SLICE = slice_of(EMPLOYEE)
INDEX = "hr/employee/100/2023-05-09/meta/CDC.index"
LATER = ts("2023-05-09T13:00:00")
NOW = datetime(2023, 5, 10, tzinfo=UTC)


class Place:
    """A directory or a bucket, and the processes that use it one after the other."""

    def __init__(self, sink: Callable[..., StorageSink], files: Callable[[], Files]) -> None:
        self._sink, self._files = sink, files
        self.state: dict[str, Any] | None = None
        self.delivered = self.epoch = 0

    @property
    def files(self) -> Files:
        return self._files()

    def put(self, path: str, content: bytes | None) -> bytes:
        """Replace a file, as somebody else may; return what it held."""
        old = self.files.get(path)
        assert old is not None
        self.files.delete(path)
        if content is not None:
            self.files.create(path, content)
        return old.data

    def process(self, continues: bool = True, **more: Any) -> Feed:
        self.epoch += 1
        feed = Feed(self._sink(**more), EMPLOYEE)
        delivered = self.delivered if continues else 0
        feed.sink.open(Owner("feed", self.epoch, delivered, 1, continues), self.state)
        return feed

    def run(self, feed: Feed, watermark: int) -> None:
        plan = feed.run(segment(0, SLICE), watermark=watermark)
        self.state, self.delivered = plan.sink_state, watermark

    def stops(self, error: type[RowferryError], words: str) -> None:
        """A process after the other ends so, and leaves all as it is."""
        for _ in range(2):
            with pytest.raises(error, match=words) as said:
                self.process().plan(segment(0, SLICE))
            assert said.value.verdict is Verdict.STOP


@pytest.fixture(params=["file", "bucket"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    store, root = MemoryStore(), tmp_path / "out"

    def on_disk(**more: Any) -> StorageSink:
        return storage(root, now=lambda: NOW, **more)

    def in_bucket(**more: Any) -> StorageSink:
        return sink_on(Bucket(store), now=lambda: NOW, **more)

    if request.param == "file":
        found = Place(on_disk, lambda: LocalFiles(root, False))
    else:
        found = Place(in_bucket, lambda: Bucket(store))
    found.run(found.process(continues=False), NOON)
    return found


def test_metadata(place: Place) -> None:
    old = place.put("metadata", None)
    place.stops(TargetLost, rf'metadata is gone, .* put {{"checkpoint-ts":{NOON}}} into it')
    assert not place.files.exists("metadata")
    place.files.create("metadata", f'{{"checkpoint-ts":{NOON - 1}}}'.encode())
    place.stops(TargetWentBack, f"up to commit-ts {NOON - 1} only, .* up to {NOON}: older")
    place.put("metadata", old)
    feed = place.process()
    place.run(feed, NOON + 1)
    # While it runs: perhaps not at once, where what was seen last is compared first.
    place.put("metadata", None)
    plan = feed.plan(segment(0, SLICE), watermark=LATER)
    receipts = feed.write(plan)
    with pytest.raises(RowferryError):
        feed.publish(plan, receipts)
    with pytest.raises(TargetLost, match="metadata is gone"):
        feed.publish(plan, receipts)
    assert not place.files.exists("metadata")


def test_an_index(place: Place) -> None:
    feed = place.process()
    place.run(feed, NOON + 1)
    old = place.put(INDEX, None)
    place.stops(TargetLost, rf"CDC\.index is gone, which named {name(2)}; .*put the name into it")
    place.files.create(INDEX, f"{name(1)}\n".encode())
    place.stops(TargetWentBack, rf"CDC\.index names {name(1)}, but files up to {name(2)} were")
    place.put(INDEX, old)
    feed = place.process()
    place.run(feed, NOON + 2)
    place.put(INDEX, None)
    plan = feed.plan(segment(0, SLICE), watermark=LATER)
    receipts = feed.write(plan)
    with pytest.raises(RowferryError):
        feed.publish(plan, receipts)
    with pytest.raises(TargetLost, match="is gone, which named"):
        feed.publish(plan, receipts)
    assert not place.files.exists(INDEX)


def test_one_index_of_many(place: Place) -> None:
    """Where many directories are looked for with one list."""
    many = [EMPLOYEE, *(table(f"t{n}") for n in range(40))]
    place.files.delete(INDEX)
    place.files.delete(f"hr/employee/100/2023-05-09/{name(1)}")
    feed = place.process()
    feed.schemas = {(t.id, t.version): t for t in many}
    with pytest.raises(TargetLost, match=r"CDC\.index is gone"):
        feed.plan(segment(0, *map(slice_of, many)))


def test_all_of_it_and_the_cure(place: Place) -> None:
    everything = {p: place.files.get(p) for p in place.files.paths(9)}
    owner = place.put("rowferry.owner", None)
    lost = r"rowferry\.owner is gone, .*delete what is left and begin anew: .*reset --snapshot"
    place.stops(TargetLost, lost)
    place.files.create("rowferry.owner", owner)
    place.process()
    for path in everything:
        place.files.delete(path)
    place.stops(TargetLost, lost)
    assert list(place.files.paths(9)) == []
    # `reset --snapshot`: nothing is known any more, and numbers begin where there are none.
    assert place.state is not None
    place.state = {**place.state, "delivered": {}}
    feed = place.process(continues=False)
    assert numbers(feed.plan(segment(0, SLICE))) == [1]
    place.run(feed, NOON)
    place.run(place.process(), LATER)


def test_it_goes_while_it_runs(place: Place) -> None:
    feed = place.process()
    plan = feed.plan(segment(0, SLICE), watermark=LATER)
    receipts = feed.write(plan)
    more = feed.plan(segment(0, SLICE), watermark=LATER)
    place.put("rowferry.owner", None)
    for step in (
        lambda: feed.publish(plan, receipts),
        lambda: feed.write(more),
        lambda: feed.plan(segment(0, SLICE)),
    ):
        with pytest.raises(TargetLost, match=r"rowferry\.owner is gone"):
            step()


def test_a_new_changefeed_of_what_is_there_already(place: Place) -> None:
    place.put("rowferry.owner", None)
    with pytest.raises(SinkOwned, match=r"or restore rowferry\.owner if it is this changefeed's"):
        place.process(continues=False)


def test_days_that_are_removed_may_be_gone(place: Place) -> None:
    days = {"sink": {"cloud-storage-config": {"file-expiration-days": 1}}}
    place.put(INDEX, None)
    with pytest.raises(TargetLost):
        place.process(config=days).plan(segment(0, SLICE))
    old = segment(0, SLICE, at=ts("2023-05-07T12:00:00"))
    feed = place.process(config=days)
    place.state, place.delivered = feed.run(old, watermark=LATER).sink_state, LATER
    place.files.delete(INDEX.replace("-09", "-07"))
    assert numbers(place.process(config=days).plan(old)) == [2]


def test_a_state_of_before(place: Place) -> None:
    """Its key was another one; it is known all the same."""
    assert place.state is not None
    place.state = {"last": place.state["delivered"]}
    assert numbers(place.process().plan(segment(0, SLICE))) == [2]
    place.put(INDEX, None)
    place.stops(TargetLost, "is gone, which named")
    place.state = None
    assert numbers(place.process().plan(segment(0, SLICE)))
