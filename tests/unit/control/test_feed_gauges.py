"""Gauges of every changefeed and of single tables: what vanishes, what grows, what is bounded."""

from __future__ import annotations

from dataclasses import replace

from rowferry.change.event_counts import EventCounts, summed
from rowferry.change.plan import Plan, Receipt, Segment, Stretch, TableSlice
from rowferry.change.table import TableId
from rowferry.control.feed.lease import Holder
from rowferry.control.feed.table_volumes import TableVolume, table_volumes
from rowferry.control.fleet.feed_gauges import FeedGauges
from rowferry.control.fleet.table_gauges import OTHER, TableGauges
from rowferry.control.lifecycle import FeedState
from rowferry.control.store.contract import FeedRecord, Lease
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.uri import Uri

NOW = 1_800_000_000.0
SPEC = ChangefeedSpec(
    "orders", Uri.parse("mysql://h:1/", "source"), Uri.parse("blackhole://", "sink"), {}
)


def ts(seconds: float) -> int:
    return int(seconds * 1000) << 18


def record(state: FeedState) -> FeedRecord:
    return FeedRecord(
        id="orders",
        state=state,
        spec=SPEC,
        spec_version=1,
        created_at=NOW - 1000,
        epoch=3,
        micro_batch=7,
        watermark=ts(NOW - 90),
        error="",
        error_code="",
        cancel=False,
        lease=None,
        moved_at=NOW - 60,
        kept_until=NOW + 600,
    )


def shown(gauges: FeedGauges | TableGauges) -> dict[tuple[str, ...], float]:
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in gauges.collect()
        for sample in family.samples
    }


def test_a_failed_one_stays_and_its_lag_grows() -> None:
    clock = [NOW]
    gauges = FeedGauges(clock=lambda: clock[0])
    gauges.look([record(FeedState.FAILED)])
    for passed in (0.0, 3600.0, 100_000.0):
        clock[0] = NOW + passed
        assert shown(gauges) == {
            ("rowferry_changefeed_state", "orders", "failed"): 1.0,
            ("rowferry_checkpoint_ts", "orders"): float(ts(NOW - 90)),
            ("rowferry_checkpoint_lag_seconds", "orders"): 90.0 + passed,
            ("rowferry_checkpoint_age_seconds", "orders"): 60.0 + passed,
            ("rowferry_retention_left_seconds", "orders"): 600.0 - passed,
            ("rowferry_quarantined_rows", "orders"): 0.0,
            ("rowferry_changefeed_owned", "orders"): 0.0,
        }
    gauges.look([])
    assert shown(gauges) == {}


def test_who_has_it_and_what_is_not_known() -> None:
    gauges = FeedGauges(clock=lambda: NOW)
    lease = Lease(Holder.here("a:8300"), NOW - 5, NOW + 1)
    new = replace(
        record(FeedState.NORMAL), lease=lease, watermark=0, moved_at=None, kept_until=None
    )
    gauges.look([new])
    found = shown(gauges)
    assert found["rowferry_changefeed_owned", "orders"] == 1.0
    # Without a checkpoint there is no lag; its age counts from the beginning.
    assert found["rowferry_checkpoint_age_seconds", "orders"] == 1000.0
    assert ("rowferry_checkpoint_lag_seconds", "orders") not in found
    assert ("rowferry_retention_left_seconds", "orders") not in found
    gauges.look([replace(new, lease=replace(lease, expires_at=NOW - 1))])
    assert shown(gauges)["rowferry_changefeed_owned", "orders"] == 0.0
    gauges.look([replace(new, parked=4)])
    assert shown(gauges)["rowferry_quarantined_rows", "orders"] == 4.0
    gauges.look([replace(record(FeedState.FINISHED))])
    assert set(shown(gauges)) == {
        ("rowferry_quarantined_rows", "orders"),
        ("rowferry_changefeed_state", "orders", "finished"),
        ("rowferry_checkpoint_ts", "orders"),
        ("rowferry_changefeed_owned", "orders"),
    }


def test_labels_of_tables_are_bounded() -> None:
    gauges = TableGauges(most=2, clock=lambda: NOW)
    names = [TableId("shop", f"t{i}") for i in range(5)]
    for place, name in enumerate(names):
        sent = {name: TableVolume(10 + place, 100, ts(NOW - 50 + place))}
        gauges.add("orders", sent, ts(NOW - 49))
    found = shown(gauges)
    assert {labels[2] for labels in found} == {"shop.t0", "shop.t1", OTHER}
    assert found["rowferry_table_rows_total", "orders", "shop.t1"] == 11
    assert found["rowferry_table_rows_total", "orders", OTHER] == 12 + 13 + 14
    assert found["rowferry_table_bytes_total", "orders", OTHER] == 300
    # A quiet table is as far behind as the checkpoint, a busy one as its own last change.
    assert found["rowferry_table_lag_seconds", "orders", "shop.t0"] == 49.0
    assert found["rowferry_table_lag_seconds", "orders", OTHER] == 46.0
    assert found["rowferry_table_last_change_seconds", "orders", "shop.t0"] == NOW - 50
    gauges.stop("orders")
    assert not any("lag" in labels[0] for labels in shown(gauges))
    gauges.forget("orders")
    assert shown(gauges) == {}


def test_receipts_say_what_was_sent_of_each_table() -> None:
    slices = tuple(TableSlice(TableId("shop", name), n, 1) for n, name in enumerate("ab"))
    segments = tuple(Segment(n, {}, slices, 1, 9) for n in range(2))
    plan = Plan(1, 1, 0, Stretch(segments, (), {}))
    receipts = [
        Receipt(0, 0, 3, 30, last_ts=5),
        Receipt(1, 0, 4, 40, last_ts=8),
        Receipt(1, 1, 0, 0),
    ]
    assert table_volumes(plan, receipts) == {TableId("shop", "a"): TableVolume(7, 70, 8)}


def test_counts_are_taken_once() -> None:
    counts = EventCounts()
    counts.call("put", 100)
    counts.call("put", 50)
    counts.add("retry", 0)
    assert counts.take() == {"call.put": 2, "sent-bytes": 150}
    assert counts.take() == {}
    assert summed([{"a": 1}, None, {"a": 2, "b": 3}]) == {"a": 3, "b": 3}
