"""What every sink with lanes promises; see `rowferry.flow.sink.contract`."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import pytest
from lane_harness import LaneHarness, packets, places
from sink_harness import FEED, ITEMS, NOON, ORDERS, segment

from rowferry.change.chunk import DdlKind, SchemaChange
from rowferry.change.plan import Plan, Topic
from rowferry.errors import RowferryError, SinkError, Verdict
from rowferry.flow.sink.contract import Owner, Packet

ROWS = [(0, 0, [b"a1", b"a2", b"a3"]), (0, 1, [b"b1"]), (0, 0, [b"a4"]), (1, 0, [b"a5", b"a6"])]


def of(lane: bytes, messages: list[bytes]) -> list[bytes]:
    return [m for m in messages if m.startswith(lane)]


def two_segments(lanes: LaneHarness, number: int = 1) -> tuple[Any, Plan]:
    sink = lanes.opened()
    return sink, lanes.plan(sink, number, segment(0, ORDERS), segment(1, ORDERS))


def test_probe_and_allocate_show_nothing(lane_sink: LaneHarness) -> None:
    lane_sink.build().probe(Owner(FEED, 1))
    sink = lane_sink.opened()
    first = lane_sink.plan(sink, 1, segment(0, ORDERS, ITEMS), segment(1, ORDERS))
    again = lane_sink.plan(sink, 1, segment(0, ORDERS, ITEMS), segment(1, ORDERS))
    assert again == first
    assert [(o.segment, o.slice) for o in first.outputs] == [(0, 0), (0, 1), (1, 0)]
    assert all(Topic.from_json(o.target).partitions >= 1 for o in first.outputs)
    assert lane_sink.received() == []


def test_wishes_are_usable(lane_sink: LaneHarness) -> None:
    sink = lane_sink.opened()
    assert sink.segment_bytes(ORDERS.id) > 0
    assert sink.flush_interval_s >= 0
    assert sink.partition_label(NOON) == sink.partition_label(NOON + 1)
    assert sink.TRAITS.needs_shuffle


def test_a_partition_keeps_its_order_over_packets_and_segments(lane_sink: LaneHarness) -> None:
    sink, plan = two_segments(lane_sink)
    sink.deliver(iter(packets(plan, ROWS)))
    found = lane_sink.received()
    assert of(b"a", found) == [b"a1", b"a2", b"a3", b"a4", b"a5", b"a6"]
    assert of(b"b", found) == [b"b1"]
    assert len(found) == 7


def test_many_packets_of_many_lanes(lane_sink: LaneHarness) -> None:
    sink, plan = two_segments(lane_sink)
    lanes = range(Topic.from_json(plan.outputs[0].target).partitions)
    content = [(0, n, [b"%d:%d" % (n, k)]) for k in range(9) for n in lanes]
    sink.deliver(iter(packets(plan, content)))
    found = lane_sink.received()
    for n in lanes:
        lane = b"%d:" % n
        assert of(lane, found) == [lane + b"%d" % k for k in range(9)]


def test_nothing_to_deliver(lane_sink: LaneHarness) -> None:
    lane_sink.build().deliver(iter([]))
    assert lane_sink.received() == []


def test_a_replay_sends_all_again_in_order(lane_sink: LaneHarness) -> None:
    """By another process: all it has is the spec and what the plan says."""
    sink, plan = two_segments(lane_sink)
    sink.deliver(iter(packets(plan, ROWS)))
    again = pickle.loads(pickle.dumps([p.messages.values for p in packets(plan, ROWS)]))
    assert [a.to_pylist() for a in again] == [list(values) for *_, values in ROWS]
    lane_sink.build().deliver(iter(packets(plan, ROWS)))
    found = of(b"a", lane_sink.received())
    assert found[:6] == [b"a1", b"a2", b"a3", b"a4", b"a5", b"a6"]
    assert found[6:] in ([], found[:6])  # readers see the repeat, or can tell that it is one


def test_an_error_while_reading_comes_through(lane_sink: LaneHarness) -> None:
    sink, plan = two_segments(lane_sink)

    def broken() -> Iterator[Packet]:
        yield packets(plan, ROWS)[0]
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        sink.deliver(broken())
    sink.deliver(iter(packets(plan, ROWS)))
    assert of(b"a", lane_sink.received())[-6:] == [b"a1", b"a2", b"a3", b"a4", b"a5", b"a6"]


def test_schema_changes_follow_the_rows_and_the_watermark_comes_last(
    lane_sink: LaneHarness,
) -> None:
    sink = lane_sink.opened()
    changes = [
        SchemaChange(NOON + i, DdlKind.ADD_COLUMN, f"ALTER {i}", ORDERS.id, ORDERS.at(NOON + i))
        for i in range(3)
    ]
    plan = lane_sink.plan(sink, 1, segment(0, ORDERS), changes=changes, watermark=NOON + 9)
    sink.deliver(iter(packets(plan, [(0, 0, [b"a1"])])))
    lane_sink.publish(lane_sink.opened(2), plan)  # the driver may be another process by now
    found = list(dict.fromkeys(lane_sink.received()))  # each partition may have its own
    assert found == [b"a1", b"ALTER 0", b"ALTER 1", b"ALTER 2", b"%d" % (NOON + 9)]
    lane_sink.publish(sink, plan)
    assert set(lane_sink.received()) == set(found)


def test_micro_batch_after_micro_batch_through_restarts(lane_sink: LaneHarness) -> None:
    state: dict[str, Any] | None = None
    for number in range(1, 4):
        sink = lane_sink.opened(number, state)
        plan = lane_sink.plan(sink, number, segment(0, ORDERS), watermark=NOON + number)
        lane_sink.build().deliver(iter(packets(plan, [(0, 0, [b"a%d" % number])])))
        lane_sink.publish(sink, plan)
        state = plan.sink_state or state
        sink.close()
    found = list(dict.fromkeys(lane_sink.received()))
    wanted = [(b"a%d" % n, b"%d" % (NOON + n)) for n in range(1, 4)]
    assert found == [message for pair in wanted for message in pair]


def test_a_discarded_plan_can_be_planned_again(lane_sink: LaneHarness) -> None:
    sink, plan = two_segments(lane_sink)
    sink.discard(plan)
    again = lane_sink.plan(sink, 1, segment(0, ORDERS), segment(1, ORDERS))
    assert places(again) == places(plan)


def test_what_is_planned_anew_is_not_taken_for_a_repeat(lane_sink: LaneHarness) -> None:
    """Its number is that of a plan of which readers have seen a part, and its content is not."""
    sink, plan = two_segments(lane_sink)
    sink.deliver(iter(packets(plan, [(0, 0, [b"a1", b"a2", b"a3"])])))
    sink.discard(plan)
    again = lane_sink.plan(sink, 1, segment(0, ORDERS), segment(1, ORDERS))
    sink.deliver(iter(packets(again, [(0, 0, [b"a4", b"a5"])])))
    assert of(b"a", lane_sink.received()) == [b"a1", b"a2", b"a3", b"a4", b"a5"]


@pytest.mark.parametrize("how", ["for now", "for good"])
def test_foreign_errors_are_wrapped_with_a_verdict(healthy_lanes: LaneHarness, how: str) -> None:
    sink, plan = two_segments(healthy_lanes)
    if how == "for now":
        healthy_lanes.break_for_now()
    else:
        healthy_lanes.break_for_good()
    with pytest.raises(RowferryError) as raised:
        sink.deliver(iter(packets(plan, ROWS)))
    assert isinstance(raised.value, SinkError)
    assert raised.value.verdict is (Verdict.RETRY if how == "for now" else Verdict.STOP)
    assert "127.0.0.1" in str(raised.value)
    assert "\n" not in str(raised.value)
