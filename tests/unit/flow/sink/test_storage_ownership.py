"""Who may write: claims, take-overs, zombies, and what probe says before anything is written."""

from __future__ import annotations

import fcntl
import json
import multiprocessing
import os
import threading
from pathlib import Path

import pytest
from storage_kit import (
    EMPLOYEE,
    NOON,
    OWNER,
    Feed,
    files_in,
    frame,
    name,
    numbers,
    opened,
    segment,
    slice_of,
    storage,
)

from rowferry.errors import (
    Fenced,
    RowferryError,
    SinkDamaged,
    SinkOwned,
    SinkUnavailable,
    SinkUnwritable,
    TargetLost,
)
from rowferry.flow.sink.contract import Owner
from rowferry.flow.sink.storage.local_files import LocalFiles
from rowferry.flow.sink.storage.schema_file import of_table

SLICE = slice_of(EMPLOYEE)
DAY = "hr/employee/100/2023-05-09"


def tree(root: Path) -> dict[str, bytes | None]:
    return {str(p): p.read_bytes() if p.is_file() else None for p in root.rglob("*")}


def mark(root: Path) -> dict[str, object]:
    found: dict[str, object] = json.loads((root / "rowferry.owner").read_text())
    return found


# --- claims ---------------------------------------------------------------------------------------


def test_open_makes_the_directory_and_its_mark(tmp_path: Path) -> None:
    root = tmp_path / "a" / "b"
    opened(root)
    assert mark(root) == {"changefeed": "feed", "epoch": 1, "discards": 0}


def test_another_changefeed_is_refused_by_name(tmp_path: Path) -> None:
    opened(tmp_path)
    for refused in (storage(tmp_path).probe, lambda o: storage(tmp_path).open(o, None)):
        with pytest.raises(
            SinkOwned, match="belongs to changefeed 'feed'; choose another sink URI"
        ):
            refused(Owner("other", 9))
    assert mark(tmp_path)["changefeed"] == "feed"


def test_a_higher_epoch_takes_over_and_a_lower_one_is_fenced(tmp_path: Path) -> None:
    opened(tmp_path)
    storage(tmp_path).open(Owner("feed", 3), None)
    assert mark(tmp_path)["epoch"] == 3
    with pytest.raises(Fenced, match="epoch 3, ours is 2"):
        storage(tmp_path).open(Owner("feed", 2), None)
    with pytest.raises(SinkOwned, match="earlier changefeed"):
        storage(tmp_path).probe(Owner("feed", 2))
    storage(tmp_path).probe(Owner("feed", 3))
    storage(tmp_path).open(Owner("feed", 3), None)


def test_a_take_over_keeps_the_count_of_discards(tmp_path: Path) -> None:
    feed = opened(tmp_path)
    feed.sink.discard(feed.plan(segment(0, SLICE)))
    storage(tmp_path).open(Owner("feed", 2), None)
    assert mark(tmp_path) == {"changefeed": "feed", "epoch": 2, "discards": 1}


def test_a_new_owner_rewrites_metadata_with_the_same_content(tmp_path: Path) -> None:
    opened(tmp_path).run(watermark=NOON)
    before = (tmp_path / "metadata").stat().st_ino, (tmp_path / "metadata").read_bytes()
    keep = os.open(tmp_path / "metadata", os.O_RDONLY)  # so that its number is not given again
    storage(tmp_path).open(Owner("feed", 2), None)
    os.close(keep)
    assert (tmp_path / "metadata").stat().st_ino != before[0]
    assert (tmp_path / "metadata").read_bytes() == before[1]


# --- zombies --------------------------------------------------------------------------------------


def test_a_fenced_owner_publishes_nothing(tmp_path: Path) -> None:
    zombie = opened(tmp_path)
    plan = zombie.plan(segment(0, SLICE), watermark=NOON)
    receipts = zombie.write(plan)
    storage(tmp_path).open(Owner("feed", 2), None)
    before = tree(tmp_path)
    with pytest.raises(Fenced):
        zombie.publish(plan, receipts)
    with pytest.raises(Fenced):
        zombie.sink.discard(plan)
    with pytest.raises(Fenced):
        zombie.sink._advance_indexes({DAY: 1})
    with pytest.raises(Fenced):
        zombie.sink._advance_metadata(NOON)
    assert tree(tmp_path) == before


def test_a_sink_that_was_never_opened_publishes_nothing(tmp_path: Path) -> None:
    feed = opened(tmp_path)
    plan = feed.plan(segment(0, SLICE))
    with pytest.raises(Fenced, match="open the sink first"):
        Feed(storage(tmp_path)).publish(plan, feed.write(plan))


def test_a_zombie_repeats_its_recorded_plan_and_nothing_else(tmp_path: Path) -> None:
    zombie = opened(tmp_path)
    plan = zombie.plan(segment(0, SLICE), watermark=NOON)
    heir = Feed(storage(tmp_path))
    heir.sink.open(Owner("feed", 2), None)
    heir.publish(plan, heir.write(plan))
    after = files_in(tmp_path)
    receipts = zombie.write(plan)
    assert receipts[0].note == {"path": f"{DAY}/{name(1)}", "already": True}
    with pytest.raises(Fenced):
        zombie.publish(plan, receipts)
    assert files_in(tmp_path) == after
    assert numbers(heir.plan(segment(0, SLICE))) == [2]


def _race(root: Path, epoch: int, rounds: int) -> None:
    """Publish micro-batch after micro-batch until done, or until fenced."""
    feed = Feed(storage(root))
    try:
        feed.sink.open(Owner("feed", epoch), None)
        for number in range(rounds):
            plan = feed.plan(segment(0, SLICE), watermark=NOON + 1000 * epoch + number)
            feed.publish(plan, feed.write(plan, b"same\n"))
    except Fenced:
        os._exit(3)
    os._exit(0)


def test_owners_that_race_leave_a_whole_directory(tmp_path: Path) -> None:
    fork = multiprocessing.get_context("spawn")
    owners = [fork.Process(target=_race, args=(tmp_path, epoch, 40)) for epoch in (1, 2, 3)]
    for owner in owners:
        owner.start()
    for owner in owners:
        owner.join(120)
    # The highest epoch is never fenced; the others finished before it came, or were.
    assert owners[2].exitcode == 0
    assert {o.exitcode for o in owners} <= {0, 3}
    files = files_in(tmp_path)
    last = int(files[f"{DAY}/meta/CDC.index"][3:23])
    data = [f"{DAY}/{name(n)}" for n in range(1, last + 1)]
    assert [files[path] for path in data] == [b"same\n"] * last
    assert last >= 40
    assert json.loads(files["metadata"])["checkpoint-ts"] == NOON + 3000 + 39
    assert mark(tmp_path)["epoch"] == 3


def test_two_tasks_that_write_the_same_at_once(tmp_path: Path) -> None:
    feed = opened(tmp_path)
    plan = feed.plan(segment(0, SLICE))
    meet = threading.Barrier(8)
    notes: list[bool] = []

    def task() -> None:
        sink = storage(tmp_path)

        def frames():  # type: ignore[no-untyped-def]
            yield 0, frame(b"a" * 100_000)
            meet.wait(120)
            yield 0, frame(b"b" * 100_000)

        (receipt,) = sink.write(plan.stretch.segments[0], plan.outputs, frames())
        assert receipt.note is not None
        notes.append(receipt.note["already"])

    threads = [threading.Thread(target=task) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert sorted(notes) == [False] + [True] * 7
    assert files_in(tmp_path) == {f"{DAY}/{name(1)}": b"a" * 100_000 + b"b" * 100_000}


def test_a_lock_that_is_held_for_too_long_is_told(tmp_path: Path) -> None:
    opened(tmp_path)
    handle = os.open(tmp_path / "rowferry.lock", os.O_RDWR)
    fcntl.flock(handle, fcntl.LOCK_EX)
    try:
        with (
            pytest.raises(SinkUnavailable, match="rowferry.lock has been locked"),
            LocalFiles(tmp_path, lock_wait_s=0.01).locked(),
        ):
            pytest.fail("two were let in")
    finally:
        os.close(handle)
    with LocalFiles(tmp_path, lock_wait_s=0).locked():
        pass


def test_the_lock_lets_one_in_or_many_shared(tmp_path: Path) -> None:
    files = LocalFiles(tmp_path, lock_wait_s=0)
    with files.locked(shared=True), files.locked(shared=True), pytest.raises(SinkUnavailable):
        with files.locked():
            pytest.fail("let in beside shared ones")
    with files.locked(), pytest.raises(SinkUnavailable), files.locked(shared=True):
        pytest.fail("let in beside an exclusive one")


# --- probe ----------------------------------------------------------------------------------------


def refused_without_a_trace(root: Path, error: type[RowferryError], words: str) -> None:
    before = tree(root.parent)
    with pytest.raises(error, match=words):
        storage(root).probe(OWNER)
    assert tree(root.parent) == before
    with pytest.raises(error, match=words):
        opened(root).plan(segment(0, SLICE))


def test_probe_takes_a_missing_directory_and_makes_nothing(tmp_path: Path) -> None:
    storage(tmp_path / "a" / "b").probe(OWNER)
    assert tree(tmp_path) == {}


def test_probe_takes_files_of_no_feed(tmp_path: Path) -> None:
    (tmp_path / "lost+found").mkdir()
    (tmp_path / "README").write_text("mine")
    storage(tmp_path).probe(OWNER)


def test_probe_takes_its_own_output(tmp_path: Path) -> None:
    opened(tmp_path).run(segment(0, SLICE))
    before = tree(tmp_path)
    storage(tmp_path).probe(OWNER)
    assert tree(tmp_path) == before


@pytest.mark.parametrize("below", ["", "/deeper/still"])
def test_a_file_in_place_of_the_directory(tmp_path: Path, below: str) -> None:
    (tmp_path / "file").write_text("x")
    refused_without_a_trace(Path(f"{tmp_path}/file{below}"), SinkUnwritable, "is not a directory")


def test_a_dangling_link_in_place_of_the_directory(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    refused_without_a_trace(tmp_path / "link", SinkUnwritable, "is not a directory")


def test_a_directory_without_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The superuser may write anywhere, so the system's answer is scripted.
    (tmp_path / "root").mkdir()
    monkeypatch.setattr(os, "access", lambda *_: False)
    refused_without_a_trace(tmp_path / "root", SinkUnwritable, "cannot be written by this user")


@pytest.mark.parametrize(
    "path", ["metadata", "hr/meta/schema_1_0000000001.json", "hr/t/meta/schema_1_0000000001.json"]
)
def test_output_without_a_mark_is_somebody_elses(tmp_path: Path, path: str) -> None:
    place = tmp_path / "root" / path
    place.parent.mkdir(parents=True)
    place.write_text("{}")
    refused_without_a_trace(tmp_path / "root", SinkOwned, f"another feed .*{place.name}")


@pytest.mark.parametrize(
    "content",
    ["", "x", "[]", "{}", '{"checkpoint-ts":-1}', '{"checkpoint-ts":"1"}']
    + ['{"checkpoint-ts":1.5}', '{"checkpoint-ts":true}', '{"checkpoint-ts":null}', "[" * 100000],
)
def test_damaged_metadata(tmp_path: Path, content: str) -> None:
    opened(tmp_path / "root").run(watermark=1)
    (tmp_path / "root" / "metadata").write_text(content)
    refused_without_a_trace(tmp_path / "root", SinkDamaged, "root/metadata is not .* put that")


@pytest.mark.parametrize(
    "content", ["", "x", '{"changefeed":1,"epoch":1}', '{"changefeed":"feed"}', "null"]
)
def test_a_damaged_mark(tmp_path: Path, content: str) -> None:
    opened(tmp_path / "root")
    (tmp_path / "root" / "rowferry.owner").write_text(content)
    refused_without_a_trace(tmp_path / "root", SinkDamaged, "rowferry.owner does not say")


def test_the_cure_for_a_damaged_mark_works(tmp_path: Path) -> None:
    opened(tmp_path).run(segment(0, SLICE))
    (tmp_path / "rowferry.owner").write_text('{"changefeed": "feed", "epoch": 0}')
    storage(tmp_path).probe(OWNER)
    assert numbers(opened(tmp_path).plan(segment(0, SLICE))) == [2]


@pytest.mark.parametrize(
    "content",
    ["", "\n", "5", "CDC000001.csv", f"{name(1)}\n{name(2)}\n", f"{name(0)}\n"]
    + [f"{name(1)[:-3]}json\n", f"../{name(1)}\n", "CDC00000000000000000001.csv \n", "\xff"],
)
def test_a_damaged_index(tmp_path: Path, content: str) -> None:
    opened(tmp_path / "root").run(segment(0, SLICE))
    (tmp_path / "root" / DAY / "meta" / "CDC.index").write_bytes(content.encode("latin-1"))
    refused_without_a_trace(tmp_path / "root", SinkDamaged, "CDC.index holds .* write the name of")


def test_a_mark_that_vanished_stops_publishing(tmp_path: Path) -> None:
    feed = opened(tmp_path)
    plan = feed.plan(segment(0, SLICE))
    receipts = feed.write(plan)
    (tmp_path / "rowferry.owner").unlink()
    with pytest.raises(TargetLost, match="rowferry.owner is gone"):
        feed.publish(plan, receipts)
    assert of_table(EMPLOYEE).path not in files_in(tmp_path)
