"""How far the micro-batch under way is, and with it the snapshots."""

from __future__ import annotations

from rowferry.change.plan import Segment, TableSlice
from rowferry.change.table import TableId
from rowferry.control.feed.loop import StepResult
from rowferry.control.feed.running import _Meter
from rowferry.control.feed.under_way import (
    FIRST_BYTES,
    LONGEST_S,
    SnapshotPace,
    StepProgress,
    UnderWay,
    in_focus,
)
from rowferry.flow.capture.contract import SnapshotShare

ORDERS, PARTS = TableId("shop", "orders"), TableId("shop", "parts")


def part(ordinal: int, table: TableId, share: int, size: int = 1) -> Segment:
    slices = (TableSlice(table, 1, 1),)
    return Segment(ordinal, {}, slices, 1, 1, size, snapshot=True, share=share)


def test_a_snapshot_from_its_plan_to_its_end() -> None:
    told: list[StepProgress] = []
    work = UnderWay("rows", told.append)
    first = [part(0, ORDERS, 40), part(1, ORDERS, 40)]
    work.begin(1, first, [SnapshotShare(ORDERS, 80, 100), SnapshotShare(PARTS, 0, 9)])
    assert told[-1].snapshots == (SnapshotShare(ORDERS, 0, 100), SnapshotShare(PARTS, 0, 9))
    assert (told[-1].parts, told[-1].done_parts, told[-1].unit) == (2, 0, "rows")
    work.part(1, 41, 500)
    work.part(1, 41, 500)  # a repeat
    assert told[-1].snapshots[0] == SnapshotShare(ORDERS, 40, 100)
    assert (told[-1].done_parts, told[-1].rows, told[-1].bytes) == (1, 41, 500)
    assert len(told) == 2
    assert work.end()[0] == SnapshotShare(ORDERS, 80, 100)
    # The second plan ends both tables: nobody tells of them any more.
    work.begin(2, [part(0, ORDERS, 25), part(1, PARTS, 9)], [])
    assert told[-1].snapshots == (SnapshotShare(ORDERS, 75, 100), SnapshotShare(PARTS, 0, 9))
    work.part(0, 25, 1)
    assert told[-1].snapshots[0] == SnapshotShare(ORDERS, 100, 100)
    assert work.end() == ()
    work.begin(3, [], [])
    assert told[-1].snapshots == ()


def test_a_plan_of_an_earlier_process_is_counted_by_its_segments() -> None:
    told: list[StepProgress] = []
    work = UnderWay("parts", told.append)
    work.begin(7, [part(0, ORDERS, 3), part(1, ORDERS, 2)], None)
    work.part(1, 10, 10)
    assert told[-1].snapshots == (SnapshotShare(ORDERS, 2, 5),)


def test_a_plan_that_is_run_again_begins_anew() -> None:
    told: list[StepProgress] = []
    work = UnderWay("rows", told.append)
    plan = [part(0, ORDERS, 40), part(1, ORDERS, 40)]
    work.begin(1, plan, [SnapshotShare(ORDERS, 80, 100)])
    work.part(0, 40, 1)
    work.begin(1, plan, None)  # the step failed: the plan is a recorded one now
    assert told[-1].snapshots == (SnapshotShare(ORDERS, 0, 100),)
    assert (told[-1].rows, told[-1].done_parts) == (0, 0)


def test_of_many_tables_those_under_way_are_shown_first() -> None:
    shares = [SnapshotShare(TableId("a", f"t{n}"), done, 10) for n, done in enumerate((10, 0, 5))]
    assert [s.done for s in in_focus(shares)] == [5, 0, 10]
    assert len(in_focus([shares[0]] * 100)) == 20


def test_a_micro_batch_of_a_snapshot_takes_some_seconds() -> None:
    pace = SnapshotPace(512 << 20)
    assert pace.next_bytes == FIRST_BYTES
    pace.took([part(0, ORDERS, 1, FIRST_BYTES)], 1.0)
    assert pace.next_bytes == 4 * FIRST_BYTES  # not more at once
    pace.took([part(0, ORDERS, 1, 256 << 20)], 2 * LONGEST_S)
    assert pace.next_bytes == 128 << 20
    pace.took([part(0, ORDERS, 1, 128 << 20)], 100.0)
    assert pace.next_bytes == FIRST_BYTES
    pace.took([part(0, ORDERS, 1, 400 << 20)], 2.0)
    assert pace.next_bytes == 512 << 20
    log = Segment(0, {}, (), 1, 1, 1 << 20)
    pace.took([log], 100.0)
    assert pace.next_bytes == 512 << 20  # a log's stretch says nothing
    assert SnapshotPace(1 << 20).next_bytes == 1 << 20


def test_a_meter_counts_rows_when_they_are_done_and_a_repeat_once() -> None:
    meter = _Meter(0)
    assert not meter.has_begun
    share = SnapshotShare(ORDERS, 0, 100)
    meter.add_progress(StepProgress(1, 2, 0, 0, 0, (share,), "rows", 0.0))
    assert meter.has_begun and meter.is_due
    first = meter.sample(10.0)
    assert (first.rows, first.unit, first.totals) == (0, "rows", (0, 1, 0, 100))
    assert first.snapshots == (("shop.orders", 0, 100),)
    assert not meter.is_due
    some = SnapshotShare(ORDERS, 60, 100)
    meter.add_progress(StepProgress(1, 2, 1, 60, 600, (some,), "rows", 1.0))
    assert (meter.sample(11.0).rows, meter.sample(12.0).rows) == (60, 0)
    meter.add_progress(StepProgress(1, 2, 0, 0, 0, (share,), "rows", 0.0))  # it is run again
    meter.add_progress(StepProgress(1, 2, 1, 60, 600, (some,), "rows", 1.0))
    meter.add(StepResult(True, micro_batch=1, rows=100, bytes=1000))
    last = meter.sample(13.0)
    assert (last.rows, last.bytes, last.unit, last.snapshots) == (40, 400, "", ())
    meter.add(StepResult(True, micro_batch=2, rows=5, bytes=50))
    assert meter.sample(14.0).rows == 5
