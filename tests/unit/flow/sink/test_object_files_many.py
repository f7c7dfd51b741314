"""Many new directories at once, on a storage without locks: one list finds what is there."""

from __future__ import annotations

import pytest
from object_kit import Bucket, bucket_of, process, rows_in
from obstore.store import MemoryStore
from storage_kit import NOON, Feed, name, numbers, segment, slice_of, table

from rowferry.errors import SinkUnavailable
from rowferry.flow.sink.storage.files import Stored

TABLES = [table(f"t{n:02}") for n in range(40)]
ALL = segment(0, *map(slice_of, TABLES))
DAY = "hr/{}/100/2023-05-09"


def read_paths(feed: Feed) -> list[str]:
    """Note every object that a process reads from now on."""
    found: list[str] = []

    def before(operation: str, path: str) -> None:
        if operation == "get":
            found.append(path)

    bucket_of(feed).before = before
    return found


def test_new_directories_are_not_asked_one_by_one() -> None:
    store = MemoryStore()
    feed = process(store, 1, *TABLES)
    read = read_paths(feed)
    plan = feed.run(ALL)
    assert numbers(plan) == [1] * len(TABLES)
    assert not [p for p in read if p.startswith("hr/")]
    assert len(rows_in(store)) == len(TABLES)
    assert numbers(feed.run(ALL)) == [2] * len(TABLES)
    assert len(rows_in(store)) == 2 * len(TABLES)


def test_numbers_go_on_where_something_is_there() -> None:
    store = MemoryStore()
    first = process(store, 1, *TABLES[:3])
    for _ in range(3):
        first.run(segment(0, *map(slice_of, TABLES[:3])))
    files = Bucket(store)
    for number in (1, 2, 3):
        files.delete(f"{DAY.format('t01')}/{name(number)}")  # cleaned; its index still says 3
    files.create(f"{DAY.format('t02')}/{name(4)}", b"")  # of a plan that was given up
    files.create(f"{DAY.format('t03')}/{name(7)}", b"")
    found = numbers(process(store, 2, *TABLES).plan(ALL))
    one_by_one = [numbers(process(store, 3, t).plan(segment(0, slice_of(t))))[0] for t in TABLES]
    assert found == one_by_one
    assert found[:5] == [4, 4, 5, 8, 1]


def test_a_long_history_is_not_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    process(store, 1, *TABLES).run(ALL)
    monkeypatch.setattr("rowferry.flow.sink.storage.file_numbers._LISTED_FOR_EACH", 2)
    feed = process(store, 2, *TABLES)
    assert bucket_of(feed).survey(2 * len(TABLES)) is None
    assert numbers(feed.run(ALL)) == [2] * len(TABLES)


def test_what_came_after_the_list_is_seen_at_the_next_try() -> None:
    store = MemoryStore()
    feed = process(store, 1, *TABLES)
    plan = feed.plan(ALL, watermark=NOON)
    receipts = feed.write(plan)
    index = f"{DAY.format('t07')}/meta/CDC.index"
    Bucket(store).create(index, f"{name(1)}\n".encode() + b" ")
    with pytest.raises(SinkUnavailable, match="changed by somebody else"):
        feed.publish(plan, receipts)
    stale = bucket_of(feed).recall(index)
    assert stale is not None
    Bucket(store).delete(index)
    feed.sink._files.prepare()
    feed.publish(plan, receipts)
    assert len(rows_in(store)) == len(TABLES)


def test_a_list_counts_no_longer_than_what_was_written_since_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else an index that was written behind the list is taken for one that is gone."""
    monkeypatch.setattr("rowferry.flow.sink.storage.object_files._RECALLED", 3)
    store = MemoryStore()
    feed = process(store, 1, *TABLES)
    for _ in range(3):
        feed.run(ALL)
    assert len(rows_in(store)) == 3 * len(TABLES)


def test_what_another_thread_lets_go_was_seen_all_the_same() -> None:
    bucket = Bucket(MemoryStore())
    stored = Stored(b"CDC000001.csv\n", "tag")

    class Seen(dict[str, Stored | None]):
        """Let go, for there is too much of it, right behind a look into it."""

        def __contains__(self, path: object) -> bool:
            there = super().__contains__(path)
            bucket._seen, bucket._surveyed = {}, None
            return there

    bucket._seen = Seen({"a/meta/CDC.index": stored})
    assert bucket.recall("a/meta/CDC.index") == stored
