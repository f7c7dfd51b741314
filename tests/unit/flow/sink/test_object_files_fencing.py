"""A storage without locks: owners that were replaced, and crashes between any two writes."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import obstore
import pytest
from object_kit import Bucket, bucket_of, checkpoint_in, process, rows_in
from obstore.store import MemoryStore
from storage_kit import EMPLOYEE, NOON, Feed, name, numbers, segment, slice_of, table

from rowferry.change.chunk import DdlKind, SchemaChange
from rowferry.change.plan import Plan
from rowferry.errors import Fenced, PlanDiscarded, SinkUnavailable, SinkUnwritable
from rowferry.flow.sink.storage.reader import StoredSchema, read_storage

SLICE = slice_of(EMPLOYEE)
DAY = "hr/employee/100/2023-05-09"


def once(feed: Feed, operation: str, ending: str, do: Callable[[], object]) -> None:
    """Before that write of a process, which has checked all by then, let others do something."""
    files = bucket_of(feed)

    def before(what: str, path: str) -> None:
        if what == operation and path.endswith(ending):
            files.before = lambda *_: None
            do()

    files.before = before


@pytest.mark.parametrize(("passed", "header"), [(str, "If-None-Match"), (dict, "If-Match")])
def test_a_store_that_does_not_compare_is_refused(
    passed: type, header: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some take the header of a conditional put and put all the same."""
    put = obstore.put

    def blindly(*args: Any, mode: Any = "overwrite", **more: Any) -> Any:
        return put(*args, mode="overwrite" if isinstance(mode, passed) else mode, **more)

    monkeypatch.setattr(obstore, "put", blindly)
    store = MemoryStore()
    with pytest.raises(SinkUnwritable, match=f"without regard to {header}"):
        process(store, 1)
    assert list(Bucket(store).paths(9)) == []


def test_a_store_that_compares_is_asked_once() -> None:
    store = MemoryStore()
    process(store, 1)
    assert sorted(Bucket(store).paths(9)) == ["rowferry.owner"]
    heir = process(store, 2)
    assert bucket_of(heir).counts.take().get("call.delete", 0) == 0


def test_a_replaced_owner_cannot_move_metadata() -> None:
    store = MemoryStore()
    old = process(store, 1)
    old.run(segment(0, SLICE), content=b"one\n", watermark=NOON)
    plan = old.plan(watermark=NOON + 9)
    heir: list[Feed] = []
    once(old, "swap", "metadata", lambda: heir.append(process(store, 2)))
    with pytest.raises(SinkUnavailable, match="metadata was changed by somebody else"):
        old.publish(plan, [])
    assert checkpoint_in(store) == NOON
    heir[0].run(segment(0, SLICE), content=b"two\n", watermark=NOON + 5)
    assert rows_in(store) == [b"one\n", b"two\n"]
    assert checkpoint_in(store) == NOON + 5


def test_an_owner_is_verified_after_it_has_read_what_it_replaces() -> None:
    store = MemoryStore()
    old = process(store, 1)
    plan = old.plan(watermark=NOON)
    once(old, "get", "metadata", lambda: process(store, 2))
    with pytest.raises(Fenced):
        old.publish(plan, [])
    assert checkpoint_in(store) == 0


def test_a_replaced_owner_cannot_create_metadata() -> None:
    store = MemoryStore()
    old = process(store, 1)
    plan = old.plan(segment(0, SLICE), watermark=NOON)
    receipts = old.write(plan)
    once(old, "swap", "metadata", lambda: process(store, 2).sink.discard(plan))
    with pytest.raises(SinkUnavailable):
        old.publish(plan, receipts)
    assert checkpoint_in(store) == 0


def test_an_index_of_a_discarded_plan_shows_no_rows() -> None:
    """The replaced owner's last request arrives late; its numbers are empty by then."""
    store = MemoryStore()
    old = process(store, 1)
    plan = old.plan(segment(0, SLICE), segment(1, SLICE), watermark=NOON)
    receipts = old.write(plan, b"lost\n")
    heir: list[tuple[Feed, Plan]] = []

    def take_over() -> None:
        feed = process(store, 2)
        feed.sink.discard(plan)
        again = feed.plan(segment(0, SLICE), watermark=NOON)
        feed.write(again, b"kept\n")
        heir.append((feed, again))

    once(old, "swap", "CDC.index", take_over)
    with pytest.raises((Fenced, SinkUnavailable)):
        old.publish(plan, receipts)
    assert rows_in(store) == []
    feed, again = heir[0]
    assert numbers(again) == [3]
    receipts = feed.write(again, b"kept\n")
    with pytest.raises(SinkUnavailable, match="CDC.index was changed by somebody else"):
        feed.publish(again, receipts)  # it knew of no index yet; the next try reads it
    feed.publish(again, receipts)
    assert rows_in(store) == [b"kept\n"]


def test_a_late_task_of_a_discarded_plan_writes_nothing() -> None:
    store = MemoryStore()
    owner = process(store, 1)
    plan = owner.plan(segment(0, SLICE))
    task = process(store, 1)
    once(task, "create", name(1), lambda: owner.sink.discard(plan))
    with pytest.raises(PlanDiscarded):
        task.write(plan, b"late\n")
    owner.run(segment(0, SLICE), content=b"new\n")
    assert rows_in(store) == [b"new\n"]


def test_a_discard_holds_for_the_next_owner() -> None:
    """It died after it had begun to discard: nobody publishes that plan any more."""
    store = MemoryStore()
    old = process(store, 1)
    plan = old.plan(segment(0, SLICE), segment(1, SLICE))
    old.write(plan, b"lost\n")
    old.sink._ownership.count_discard()
    heir = process(store, 2)
    with pytest.raises(PlanDiscarded):
        heir.write(plan, b"lost\n")
    heir.sink.discard(plan)
    heir.run(segment(0, SLICE), content=b"new\n")
    assert rows_in(store) == [b"new\n"]


def test_a_replaced_owner_cannot_begin_a_discard() -> None:
    store = MemoryStore()
    old = process(store, 1)
    plan = old.plan(segment(0, SLICE))
    receipts = old.write(plan)
    once(old, "swap", "rowferry.owner", lambda: process(store, 2).publish(plan, receipts))
    with pytest.raises(Fenced):
        old.sink.discard(plan)
    assert rows_in(store) == [b"row\n"]
    mark = Bucket(store).get("rowferry.owner")
    assert mark is not None
    assert json.loads(mark.data) == {"changefeed": "feed", "epoch": 2, "discards": 0}


def test_two_first_owners_of_one_prefix() -> None:
    store = MemoryStore()
    other = process(MemoryStore(), 1)
    files = Bucket(store)
    other.sink._files = files
    other.sink._ownership._files = files
    once(other, "swap", "rowferry.owner", lambda: process(store, 5))
    with pytest.raises(Fenced):
        other.sink.open(other.sink._ownership._claimed(), None)


def test_numbers_of_discarded_plans_stay_taken_through_restarts() -> None:
    store = MemoryStore()
    one = process(store, 1)
    one.run(segment(0, SLICE), content=b"a\n")
    lost = one.plan(segment(0, SLICE), segment(1, SLICE))
    one.write(lost, b"lost\n")
    one.sink.discard(lost)
    two = process(store, 2)
    plan = two.plan(segment(0, SLICE))
    assert numbers(plan) == [4]
    two.publish(plan, two.write(plan, b"b\n"))
    assert rows_in(store) == [b"a\n", b"b\n"]
    files = Bucket(store)
    assert [e.name for e in files.entries(DAY)] == [*map(name, range(1, 5)), "meta"]


def test_a_new_owner_changes_metadata_and_its_meaning_stays() -> None:
    store = MemoryStore()
    process(store, 1).run(segment(0, SLICE), watermark=NOON)
    seen = set()
    for epoch in (2, 3, 10):
        before = Bucket(store).get("metadata")
        process(store, epoch)
        after = Bucket(store).get("metadata")
        assert before is not None
        assert after is not None
        seen |= {before.tag, after.tag}
        assert json.loads(after.data) == {"checkpoint-ts": NOON}
    assert len(seen) == 4


class Crash(Exception):
    """The process is gone."""


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_crash_at_any_write_leaves_nothing_half_visible(when: str) -> None:
    """The next process carries the recorded plan out again: no row is lost, none comes twice."""
    wide = table("wide", version=7)
    change = SchemaChange(NOON + 1, DdlKind.ADD_COLUMN, "ALTER", EMPLOYEE.id, EMPLOYEE.at(NOON + 1))
    parts = (segment(0, SLICE, slice_of(wide)), segment(1, SLICE))
    for count in range(300):
        store = MemoryStore()
        first = process(store, 1, EMPLOYEE, wide)
        first.run(segment(0, SLICE), content=b"old\n")
        plan = first.plan(*parts, changes=[change], watermark=NOON + 1)
        left = [count]

        def crash(what: str, path: str, left: list[int] = left) -> None:
            left[0] -= 1
            if left[0] < 0:
                raise Crash

        setattr(bucket_of(first), when, crash)
        try:
            first.publish(plan, first.write(plan, b"new\n"))
            done = True
        except Crash:
            done = False
        # What a reader sees between the two: whole files, and never a checkpoint ahead of them.
        assert rows_in(store) in ([b"old\n"], [b"new\n", b"old\n", b"new\n", b"new\n"]) or not done
        if not done and checkpoint_in(store) == NOON + 1:
            assert rows_in(store).count(b"new\n") == 3
        heir = process(store, 2, EMPLOYEE, wide)
        heir.publish(plan, heir.write(plan, b"new\n"))
        assert sorted(rows_in(store)) == [b"new\n"] * 3 + [b"old\n"]
        assert checkpoint_in(store) == NOON + 1
        texts = [
            s.document.query for s in read_storage(Bucket(store)) if isinstance(s, StoredSchema)
        ]
        assert texts.count("ALTER") == 1
        if done:
            assert count >= 8
            return
    pytest.fail("it crashed each time")
