"""A range source that lags, forgets or answers by halves: nothing is lost or waits for ever."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
from fake_ranges import FakeRanges, simple_table
from test_planner import Feed

from rowferry.change.chunk import DdlKind
from rowferry.change.plan import Segment
from rowferry.change.position import PHYSICAL_SHIFT, Stage
from rowferry.change.table import TableId
from rowferry.errors import CorruptLog, LogLost, SnapshotGone, SourceMismatch, SourceUnavailable
from rowferry.flow.capture.range_log import planner, read
from rowferry.flow.capture.range_log.client import KnownRange, LogHead
from rowferry.flow.capture.range_log.page import Page
from rowferry.flow.capture.range_log.reroute import patiently


class Faulty(FakeRanges):
    """Answers wrongly, as its fields say."""

    def __init__(self) -> None:
        super().__init__()
        self.ends_at: int | None = None  # the last index of all logs
        self.backwards = False
        self.hidden: set[int] = set()
        self.asked = 0

    def routes(self, start_key: bytes = b"", end_key: bytes = b"") -> list[KnownRange]:
        return [r for r in super().routes(start_key, end_key) if r.range_id not in self.hidden]

    def pull_log(
        self, route: KnownRange, last_index: int, until_index: int, max_bytes: int = 0
    ) -> tuple[Page, int]:
        if self.ends_at is not None:
            until_index = max(last_index, min(until_index, self.ends_at))
        page, reached = super().pull_log(route, last_index, until_index)
        return (page.take(slice(None, None, -1)) if self.backwards else page), reached  # type: ignore[arg-type]

    def pull_snapshot(
        self, route: KnownRange, version: int, last_key: str, end_key: str, max_bytes: int = 0
    ) -> tuple[Page, bool]:
        page, ended = super().pull_snapshot(route, version, last_key, end_key)
        if self.backwards and last_key:
            return super().pull_snapshot(route, version, "", end_key)[0], False
        return page, ended

    def heads(
        self, asked: list[tuple[KnownRange, int]], at_ts: int = 0, mark_bytes: int = 0
    ) -> list[LogHead]:
        self.asked += 1
        found = super().heads(asked, at_ts, mark_bytes)
        if self.ends_at is None:
            return found
        return [replace(h, last_index=min(h.last_index, self.ends_at)) for h in found]


@pytest.fixture
def store() -> Faulty:
    made = Faulty()
    made.ddl(DdlKind.CREATE_TABLE, simple_table())
    made.write(10, [{"id": i, "v": f"v{i}"} for i in range(30)])
    made.split(2, made.key(10, 15))
    return made


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (planner, read):
        monkeypatch.setattr(module, "patiently", partial(patiently, patience_s=0.0))


def in_the_log(store: Faulty, **kinds: bool) -> Feed:
    feed = Feed(store, **kinds)
    feed.catch_up()
    for i in range(8):
        store.write(10, [{"id": i, "v": "x"}, {"id": 15 + i, "v": "x"}], delete=[14])
    return feed


@pytest.mark.usefixtures("impatient")
def test_a_leader_that_lags_behind_the_plan_is_asked_again_later(store: Faulty) -> None:
    feed = in_the_log(store)

    def lag() -> None:
        store.ends_at = 3

    with pytest.raises(SourceUnavailable, match="the log ends at index 3"):
        feed.step(lag)
    store.ends_at = None
    feed.planner = feed.open()
    feed.catch_up()
    feed.check(10)


@pytest.mark.usefixtures("impatient")
def test_a_log_that_lost_what_was_read_stops_the_feed(store: Faulty) -> None:
    feed = in_the_log(store)
    feed.catch_up()
    store.ends_at = 3
    with pytest.raises(SourceMismatch, match="its log ends at index 3, but was read up to"):
        feed.step()


@pytest.mark.usefixtures("impatient")
def test_a_catalog_that_was_put_back_stops_the_feed(store: Faulty) -> None:
    feed = in_the_log(store)
    feed.catch_up()
    store.ranges[1].last_index -= 1
    with pytest.raises(SourceMismatch, match="range 1: its log ends at index"):
        feed.step()


def test_commit_ts_that_decrease_are_no_log(store: Faulty) -> None:
    store.page_rows = 100
    feed = in_the_log(store)
    store.backwards = True
    with pytest.raises(CorruptLog, match="commit-ts decrease in the log"):
        feed.step()


def test_a_snapshot_that_goes_back_is_no_snapshot(store: Faulty) -> None:
    store.backwards = True
    with pytest.raises(CorruptLog, match="a snapshot answer goes back to"):
        Feed(store).catch_up()


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("of_log", [True, False])
def test_keys_in_no_range_are_waited_for(store: Faulty, of_log: bool) -> None:
    feed = in_the_log(store) if of_log else Feed(store)

    def hide() -> None:
        # The range is cut in two, and the master does not tell of the second half.
        store.hidden.add(store.split(2, store.key(10, 2)))

    with pytest.raises(SourceUnavailable, match="no range holds key"):
        feed.step(hide)
    store.hidden.clear()
    feed.planner = feed.open()
    feed.catch_up()
    feed.check(10)


@pytest.mark.usefixtures("impatient")
def test_no_watermark_passes_ranges_that_the_master_does_not_tell_of(store: Faulty) -> None:
    feed = in_the_log(store)
    store.hidden.add(store.split(3, store.key(10, 20)))
    with pytest.raises(SourceUnavailable, match="table db.t has no range yet that holds key"):
        feed.step()
    store.hidden.clear()
    feed.catch_up()
    store.ddl(DdlKind.CREATE_TABLE, simple_table(11, "t1"))
    store.write(11, [{"id": 1, "v": "x"}])
    store.hidden.add(max(store.ranges))
    with pytest.raises(SourceUnavailable, match="table db.t1 has no range yet that holds key"):
        feed.catch_up()
    store.hidden.clear()
    feed.catch_up()
    feed.check(10, 11)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("which", [2, 3, 4])
def test_no_table_joins_without_all_its_ranges(store: Faulty, which: int) -> None:
    assert store.split(3, store.key(10, 20)) == 4
    feed = Feed(store)
    store.hidden.add(which)
    with pytest.raises(SourceUnavailable, match="table db.t has no range yet that holds key"):
        feed.catch_up()
    store.hidden.clear()
    feed.catch_up()
    feed.check(10)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("which", [2, 3])
def test_no_feed_begins_at_a_commit_ts_without_all_ranges(store: Faulty, which: int) -> None:
    start = store.write(10, [{"id": 1, "v": "before"}, {"id": 20, "v": "before"}])
    store.write(10, [{"id": 1, "v": "after"}, {"id": 20, "v": "after"}])
    feed = Feed(store, start)
    store.hidden.add(which)
    with pytest.raises(SourceUnavailable, match="table db.t has no range yet that holds key"):
        feed.catch_up()
    store.hidden.clear()
    feed.catch_up()
    assert [row for _, ts, row, _ in feed.seen if ts <= start] == []
    assert sorted(row for _, _, row, _ in feed.seen) == [1, 20]


@pytest.mark.usefixtures("impatient")
def test_a_range_that_was_split_twice_is_not_taken_for_its_half(store: Faulty) -> None:
    feed = in_the_log(store)
    feed.catch_up()
    store.write(10, [{"id": 28, "v": "of the last one"}])
    store.split(3, store.key(10, 20))
    store.hidden.add(store.split(4, store.key(10, 25)))
    with pytest.raises(SourceUnavailable, match="table db.t has no range yet that holds key"):
        feed.step()
    store.hidden.clear()
    feed.catch_up()
    feed.check(10)


def test_a_log_compacted_between_plan_and_read_is_the_planners_affair(store: Faulty) -> None:
    feed = in_the_log(store)
    with pytest.raises(SnapshotGone, match="can no longer be read"):
        feed.step(lambda: store.compact(2))
    feed.planner = feed.open()
    with pytest.raises(LogLost):
        feed.step()
    feed.kinds["resnapshot"] = True
    feed.planner = feed.open()
    feed.catch_up()
    feed.check(10)


@pytest.mark.usefixtures("impatient")
def test_a_table_starts_again_although_it_was_altered_in_the_lost_log(store: Faulty) -> None:
    feed = in_the_log(store, resnapshot=True)
    feed.catch_up()
    store.write(10, [{"id": 1, "v": "lost"}], delete=[2])
    store.ddl(DdlKind.ADD_COLUMN, simple_table(extra=("w",)))
    store.write(10, [{"id": 3, "v": "new", "w": "new"}])
    store.compact(2)
    feed.stretches.clear()
    feed.catch_up()
    told = [c.kind for s in feed.stretches for c in s.schema_changes]
    assert told == [DdlKind.DROP_TABLE, DdlKind.CREATE_TABLE]
    feed.check(10)


@pytest.mark.usefixtures("impatient")
def test_a_table_starts_again_under_the_name_that_it_got_in_the_lost_log(store: Faulty) -> None:
    feed = in_the_log(store, resnapshot=True)
    feed.catch_up()
    store.write(10, [{"id": 1, "v": "lost"}], delete=[2])
    store.ddl(DdlKind.RENAME_TABLE, simple_table(name="t9"), previous=TableId("db", "t"))
    store.ddl(DdlKind.CREATE_TABLE, simple_table(11))
    store.write(11, [{"id": 1, "v": "of another table"}])
    store.compact(2)
    feed.stretches.clear()
    feed.catch_up()
    told = [(c.kind, c.table.table) for s in feed.stretches for c in s.schema_changes]
    assert told == [
        (DdlKind.DROP_TABLE, "t"),
        (DdlKind.CREATE_TABLE, "t9"),
        (DdlKind.CREATE_TABLE, "t"),
    ]
    assert sorted(name.table for name in feed.tables) == ["t", "t9"]
    feed.check(10, 11)


@pytest.mark.usefixtures("impatient")
def test_a_table_does_not_start_again_under_the_name_of_another(store: Faulty) -> None:
    store.ddl(DdlKind.CREATE_TABLE, simple_table(11, "t9"))
    feed = in_the_log(store, resnapshot=True)
    feed.catch_up()
    store.write(10, [{"id": 1, "v": "lost"}])
    store.ddl(DdlKind.RENAME_TABLE, simple_table(11, "t8"), previous=TableId("db", "t9"))
    store.ddl(DdlKind.RENAME_TABLE, simple_table(name="t9"), previous=TableId("db", "t"))
    store.compact(2)
    with pytest.raises(LogLost):
        feed.catch_up()


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("how", [DdlKind.DROP_TABLE, DdlKind.RENAME_TABLE])
def test_a_table_that_is_gone_does_not_miss_its_lost_log(store: Faulty, how: DdlKind) -> None:
    store.ddl(DdlKind.CREATE_TABLE, simple_table(11, "t1"))
    feed = in_the_log(store, resnapshot=True)
    feed.catch_up()
    store.write(11, [{"id": 1, "v": "lost"}])
    store.write(10, [{"id": 1, "v": "kept"}])
    if how is DdlKind.DROP_TABLE:
        gone = store.drop(11)
    else:
        gone = store.ddl(how, simple_table(11, "u1"), previous=TableId("db", "t1"))
    store.compact(max(store.ranges))
    feed.stretches.clear()
    feed.catch_up()
    told = [c.kind for s in feed.stretches for c in s.schema_changes]
    assert told == [how]
    assert all(s.watermark is None or s.watermark >= gone for s in feed.stretches)
    feed.check(10)


def test_a_log_may_be_compacted_up_to_what_was_delivered(store: Faulty) -> None:
    feed = Feed(store)
    feed.appetite = replace(feed.appetite, stretch_bytes=1)
    feed.step()
    writes: list[dict[str, object]] = [{"id": i, "v": "x"} for i in range(0, 30, 3)]
    for i in range(6):
        store.write(10, [{**row, "v": f"x{i}"} for row in writes], delete=[1 + 3 * i])
    store.move_leader(2)
    store.move_leader(3)
    with pytest.raises(SnapshotGone):
        feed.step()
    feed.planner = feed.open()
    windows = 0
    for _ in range(100):
        stretch = feed.step()
        windows += sum("window" in s for g in stretch.segments for s in g.read.get("spans", ()))
        for progress in feed.ranges.values():
            if progress.stage is Stage.LOG:  # type: ignore[attr-defined]
                store.compact(progress.range_id, progress.last_log_index)  # type: ignore[attr-defined]
        if stretch.caught_up:
            break
    assert windows > 2
    feed.check(10)


def test_a_recorded_segment_is_read_from_its_own_cluster(store: Faulty) -> None:
    feed = in_the_log(store)
    feed.catch_up()
    segments: list[Segment] = [s for stretch in feed.stretches for s in stretch.segments]
    assert {s.snapshot for s in segments} == {True, False}
    for segment in segments:
        one = segment.slices[0]
        store.cluster_id = 0  # of a client that has asked nothing yet
        next(read.read_segment(store, segment, feed.versions[one.table_id, one.version]))  # type: ignore[arg-type]
        assert store.cluster_id == 7


def test_a_beginning_long_ago_is_found_by_halving(store: Faulty) -> None:
    start = store.write(10, [{"id": 1, "v": "before"}])
    store.now = (50 * 365 * 86_400_000) << PHYSICAL_SHIFT
    stamps = [store.write(10, [{"id": 1, "v": "after"}])]
    store.now += (400 * 86_400_000) << PHYSICAL_SHIFT
    stamps.append(store.write(10, [{"id": 20, "v": "after"}]))
    feed = Feed(store, start)
    day = 86_400_000 << PHYSICAL_SHIFT
    feed.appetite = replace(feed.appetite, partition_label=lambda ts: str(ts // day))
    feed.catch_up()
    assert [ts for _, ts, _, _ in feed.seen] == stamps
    assert store.asked < 300


def test_a_table_joins_with_a_snapshot_of_the_moment_in_which_it_was_seen(
    store: Faulty, impatient: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.ddl(DdlKind.CREATE_TABLE, simple_table(11, "u1"))
    store.write(11, [{"id": i, "v": "u"} for i in range(9)])
    feed = Feed(store)
    feed.catch_up()
    store.write(11, [{"id": 9, "v": "u"}])
    with monkeypatch.context() as coarse:
        coarse.setattr(store, "tick", lambda: store.now)
        feed.planner = feed.open("tu")
        feed.step()
    feed.catch_up()
    feed.check(10, 11)
