"""What every sink promises; see `rowferry.flow.sink.contract`."""

from __future__ import annotations

import multiprocessing
import pickle
from dataclasses import replace
from itertools import chain
from typing import Any

import pytest
from sink_harness import (
    FEED,
    ITEMS,
    NOON,
    ORDERS,
    Bare,
    Frames,
    SinkHarness,
    encoded,
    segment,
    text_rows,
)

from rowferry.change.chunk import DdlKind, SchemaChange
from rowferry.change.plan import Output, Plan, Receipt, Segment
from rowferry.errors import Fenced, RowferryError, SinkError, SinkOwned, Verdict
from rowferry.flow.sink.contract import Owner
from rowferry.registry import SINKS
from rowferry.spec.changefeed import ChangefeedSpec

PROCESSES = multiprocessing.get_context("spawn")
PATIENCE_S = 120.0  # an upper bound for a machine under load, never reached by working code
ROWS = {0: [(0, [b"a\n", b"b\n"]), (0, [b"c\n"])]}
MORE = {0: [(0, [b"d\n"])]}


def values(content: dict[int, Frames]) -> list[bytes]:
    return list(chain.from_iterable(v for frames in content.values() for _, v in frames))


def counts(receipts: list[Receipt]) -> list[tuple[int, int, int, int]]:
    return [(r.segment, r.slice, r.rows, r.bytes) for r in receipts]


# --- before a run ---------------------------------------------------------------------------------


def test_probe_writes_nothing(sink: SinkHarness) -> None:
    sink.build().probe(Owner(FEED, 1))
    assert not sink.place.exists()


def test_probe_of_a_target_in_use_changes_nothing(sink: SinkHarness) -> None:
    one = sink.opened()
    plan = sink.plan(one, 1, segment(0, ORDERS))
    sink.publish(one, plan, sink.write(one, plan, ROWS))
    before = sink.traces()
    sink.build().probe(Owner(FEED, 2))
    assert sink.traces() == before != {}


def test_allocate_writes_nothing_and_can_be_called_again(sink: SinkHarness) -> None:
    one = sink.opened()
    before = sink.traces()
    first = sink.plan(one, 1, segment(0, ORDERS, ITEMS), segment(1, ORDERS))
    again = sink.plan(one, 1, segment(0, ORDERS, ITEMS), segment(1, ORDERS))
    assert sink.traces() == before
    assert again == first
    assert [(o.segment, o.slice) for o in first.outputs] == [(0, 0), (0, 1), (1, 0)]


def test_wishes_are_usable(sink: SinkHarness) -> None:
    one = sink.opened()
    assert one.segment_bytes(ORDERS.id) > 0
    assert one.flush_interval_s >= 0
    assert one.partition_label(NOON) == one.partition_label(NOON + 1)


# --- writing and publishing -----------------------------------------------------------------------


def test_nothing_is_visible_before_publish(sink: SinkHarness) -> None:
    one = sink.opened()
    plan = sink.plan(one, 1, segment(0, ORDERS))
    sink.write(one, plan, ROWS)
    assert sink.visible_rows() == []
    assert sink.watermark() is None


def test_published_rows_are_visible_in_order(sink: SinkHarness) -> None:
    one = sink.opened()
    content = {0: [(0, [b"a\n"])], 1: [(0, [b"b\n", b"c\n"])], 2: [(0, [b"d\n"])]}
    plan = sink.plan(one, 1, *(segment(i, ORDERS) for i in range(3)))
    receipts = sink.write(one, plan, content)
    assert counts(receipts) == [(0, 0, 1, 2), (1, 0, 2, 4), (2, 0, 1, 2)]
    sink.publish(one, plan, receipts)
    assert sink.visible_rows() == values(content)
    assert sink.watermark() == NOON


def test_repeat_publish_shows_rows_once(sink: SinkHarness) -> None:
    one = sink.opened()
    change = SchemaChange(NOON, DdlKind.ADD_COLUMN, "ALTER 1", ORDERS.id, ORDERS.at(NOON))
    plan = sink.plan(one, 1, segment(0, ORDERS), changes=[change])
    receipts = sink.write(one, plan, ROWS)
    sink.publish(one, plan, receipts)
    before = sink.traces()
    sink.publish(one, plan, receipts)
    sink.publish(sink.opened(1, None), plan, receipts)
    assert sink.traces() == before
    assert sink.visible_rows() == values(ROWS)
    assert sink.visible_changes() == ["ALTER 1"]


def test_schema_changes_come_in_order_and_the_watermark_last(sink: SinkHarness) -> None:
    one = sink.opened()
    changes = [
        SchemaChange(NOON + i, DdlKind.ADD_COLUMN, f"ALTER {i}", ORDERS.id, ORDERS.at(NOON + i))
        for i in range(3)
    ]
    plan = sink.plan(one, 1, changes=changes, watermark=NOON + 9)
    sink.publish(one, plan, [])
    assert sink.visible_changes() == ["ALTER 0", "ALTER 1", "ALTER 2"]
    assert sink.watermark() == NOON + 9


def test_a_plan_without_rows_moves_the_watermark(sink: SinkHarness) -> None:
    one = sink.opened()
    for number, mark in enumerate([NOON, None, NOON + 5], 1):
        plan = sink.plan(one, number, watermark=mark)
        sink.publish(one, plan, sink.write(one, plan, {}))
    assert sink.watermark() == NOON + 5


def test_the_watermark_never_goes_back(sink: SinkHarness) -> None:
    one = sink.opened()
    first = sink.plan(one, 1, watermark=NOON)
    second = sink.plan(one, 2, watermark=NOON + 5)
    sink.publish(one, first, [])
    sink.publish(one, second, [])
    sink.publish(one, first, [])
    assert sink.watermark() == NOON + 5


def test_an_output_without_rows(sink: SinkHarness) -> None:
    """It gets its receipt, and readers find no gap."""
    one = sink.opened()
    plan = sink.plan(one, 1, segment(0, ORDERS, ITEMS), segment(1, ORDERS))
    receipts = sink.write(one, plan, {1: [(0, [b"x\n"])]})
    assert counts(receipts) == [(0, 0, 0, 0), (0, 1, 0, 0), (1, 0, 1, 2)]
    sink.publish(one, plan, receipts)
    assert sink.visible_rows() == [b"x\n"]


def test_a_head_is_no_row(bytes_sink: SinkHarness) -> None:
    sink = bytes_sink
    one = sink.opened()
    plan = sink.plan(one, 1, segment(0, ORDERS))
    frames = [(0, encoded([b"head\n"])), (0, encoded([b"row\n"]))]
    object.__setattr__(frames[0][1], "rows", 0)
    receipts = sink.asks(
        lambda: list(one.write(plan.stretch.segments[0], plan.outputs_of(0), iter(frames)))
    )
    assert counts(receipts) == [(0, 0, 1, 9)]


# --- repeats, restarts, other processes -----------------------------------------------------------


def test_writing_twice_leaves_the_same(sink: SinkHarness) -> None:
    one = sink.opened()
    plan = sink.plan(one, 1, segment(0, ORDERS))
    first = sink.write(one, plan, ROWS)
    left = sink.traces()
    again = sink.write(sink.build(), plan, ROWS)
    assert counts(again) == counts(first)
    assert sink.traces() == left != {}


def test_the_sink_is_rebuilt_between_write_and_publish(sink: SinkHarness) -> None:
    """Tasks build their own from the spec; the driver may be another process by now."""
    plan = sink.plan(sink.opened(), 1, segment(0, ORDERS))
    receipts = pickle.loads(pickle.dumps(sink.write(sink.build(), plan, ROWS)))
    sink.publish(sink.opened(2), plan, receipts)
    assert sink.visible_rows() == values(ROWS)


def test_frames_cut_in_other_pieces_leave_the_same(sink: SinkHarness) -> None:
    one = sink.opened()
    plan = sink.plan(one, 1, segment(0, ORDERS))
    sink.write(one, plan, ROWS)
    left = sink.traces()
    sink.write(one, plan, {0: [(0, [v]) for v in values(ROWS)]})
    assert sink.traces() == left != {}


def _write_in_a_child(
    scheme: str, spec: Any, part: Any, outputs: Any, together: Any, answers: Any
) -> None:
    """Run in a child: all it has is JSON and what the plan says."""
    sink: Any = SINKS.load(scheme)(ChangefeedSpec.from_json(spec), Bare())
    given, segment = tuple(Output(*o) for o in outputs), Segment.from_json(part)
    together.wait(PATIENCE_S)
    if hasattr(sink, "write"):
        frames = ((place, encoded(v)) for place, v in ROWS[0])
        answers.put(counts(list(sink.write(segment, given, frames))))
        return
    rows = [(0, text_rows(ORDERS, v, n)) for (_, v), n in zip(ROWS[0], (0, 2), strict=True)]
    done = list(sink.write_rows(segment, given, [ORDERS], iter(rows)))
    size = sum(map(len, values(ROWS)))  # files are measured by their own bytes
    answers.put(counts([replace(r, bytes=size) for r in done]))


def test_two_processes_write_the_same_segment_at_once(healthy_sink: SinkHarness) -> None:
    sink = healthy_sink
    one = sink.opened()
    plan = sink.plan(one, 1, segment(0, ORDERS))
    together, answers = PROCESSES.Barrier(2), PROCESSES.Queue()
    outputs = [(o.segment, o.slice, o.target) for o in plan.outputs]
    part = plan.stretch.segments[0].to_json()
    arguments = (sink.scheme, sink.spec().to_json(), part, outputs, together, answers)
    children = [PROCESSES.Process(target=_write_in_a_child, args=arguments) for _ in range(2)]
    for child in children:
        child.start()
    found = [answers.get(timeout=PATIENCE_S) for _ in children]
    for child in children:
        child.join(PATIENCE_S)
    answers.close()
    answers.join_thread()
    assert found == [[(0, 0, 3, 6)]] * 2
    left = sink.traces()
    receipts = sink.write(one, plan, ROWS)
    assert sink.traces() == left
    sink.publish(one, plan, receipts)
    assert sink.visible_rows() == values(ROWS)


def test_micro_batch_after_micro_batch_through_restarts(sink: SinkHarness) -> None:
    """The state of the last published plan is all that a new process gets."""
    state: dict[str, Any] | None = None
    wanted: list[bytes] = []
    for number in range(1, 5):
        one = sink.opened(epoch=number, state=state)
        content = {0: [(0, [b"%d\n" % number])]}
        plan = sink.plan(one, number, segment(0, ORDERS), watermark=NOON + number)
        sink.publish(one, plan, sink.write(sink.build(), plan, content))
        state, wanted = plan.sink_state or state, [*wanted, *values(content)]
        one.close()
    assert sink.visible_rows() == wanted


def test_a_published_plan_may_be_unknown_to_the_next_process(sink: SinkHarness) -> None:
    """It died between making rows visible and noting so: the plan comes again, with old state."""
    one = sink.opened()
    plan = sink.plan(one, 1, segment(0, ORDERS))
    sink.publish(one, plan, sink.write(one, plan, ROWS))
    two = sink.opened(2, None)
    sink.publish(two, plan, sink.write(two, plan, ROWS))
    after = sink.plan(two, 2, segment(0, ORDERS))
    sink.publish(two, after, sink.write(two, after, MORE))
    assert sink.visible_rows() == values(ROWS) + values(MORE)


# --- discarding -----------------------------------------------------------------------------------


def test_a_discarded_plan_is_gone_and_the_next_takes_its_place(sink: SinkHarness) -> None:
    one = sink.opened()
    first = sink.plan(one, 1, segment(0, ORDERS))
    sink.publish(one, first, sink.write(one, first, ROWS))
    before = sink.traces()
    lost = sink.plan(one, 2, segment(0, ORDERS), segment(1, ITEMS))
    sink.write(one, lost, {0: [(0, [b"lost\n"])], 1: [(0, [b"lost\n"])]})
    sink.asks(lambda: one.discard(lost))
    assert sink.traces() == before
    sink.asks(lambda: one.discard(lost))
    again = sink.plan(one, 2, segment(0, ORDERS))
    sink.publish(one, again, sink.write(one, again, MORE))
    assert sink.visible_rows() == values(ROWS) + values(MORE)


def test_a_plan_that_nobody_ran_can_be_discarded(sink: SinkHarness) -> None:
    one = sink.opened()
    plan = sink.plan(one, 1, segment(0, ORDERS))
    sink.asks(lambda: sink.opened(2).discard(plan))
    assert sink.visible_rows() == []


# --- ownership ------------------------------------------------------------------------------------


def test_an_older_owner_changes_nothing_any_more(sink: SinkHarness) -> None:
    old = sink.opened(1)
    plan = sink.plan(old, 1, segment(0, ORDERS))
    receipts = sink.write(old, plan, ROWS)
    new = sink.opened(2)
    sink.publish(new, plan, receipts)
    after = sink.plan(new, 2, segment(0, ORDERS), watermark=NOON + 5)
    sink.publish(new, after, sink.write(new, after, MORE))
    before = sink.traces()
    late = Plan(2, 1, 0, plan.stretch, plan.outputs, None)
    for call in (
        lambda: sink.publish(old, late, receipts),
        lambda: sink.asks(lambda: old.discard(after)),
        lambda: sink.opened(1),
    ):
        with pytest.raises(Fenced) as raised:
            call()
        assert raised.value.verdict is Verdict.STOP
    assert sink.traces() == before


def test_a_zombie_can_only_repeat_its_recorded_plan(sink: SinkHarness) -> None:
    old = sink.opened(1)
    plan = sink.plan(old, 1, segment(0, ORDERS))
    sink.write(old, plan, ROWS)
    new = sink.opened(2)
    left = sink.traces()
    sink.write(old, plan, ROWS)
    assert sink.traces() == left
    with pytest.raises(SinkError):
        sink.write(old, plan, {0: [(0, [b"something else\n"])]})
    assert sink.traces() == left
    sink.publish(new, plan, sink.write(new, plan, ROWS))
    assert sink.visible_rows() == values(ROWS)


def test_another_changefeed_is_kept_out(sink: SinkHarness) -> None:
    one = sink.opened()
    plan = sink.plan(one, 1, segment(0, ORDERS))
    sink.publish(one, plan, sink.write(one, plan, ROWS))
    before = sink.traces()
    with pytest.raises(SinkOwned, match=FEED):
        sink.build("other").probe(Owner("other", 9))
    with pytest.raises(SinkOwned, match=FEED):
        sink.opened(9, None, "other")
    assert sink.traces() == before


# --- errors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["for now", "for good"])
def test_foreign_errors_are_wrapped_with_a_verdict(sink: SinkHarness, how: str) -> None:
    one = sink.opened()
    plan = sink.plan(one, 1, segment(0, ORDERS))
    sink.asks = lambda call: call()
    if how == "for now":
        sink.break_for_now()
    else:
        sink.break_for_good()
    with pytest.raises(RowferryError) as raised:
        sink.write(sink.build(), plan, ROWS)
    assert isinstance(raised.value, SinkError)
    assert raised.value.verdict is (Verdict.RETRY if how == "for now" else Verdict.STOP)
    assert str(sink.place) in str(raised.value)
    assert "\n" not in str(raised.value)


def test_an_error_while_reading_leaves_nothing_visible(sink: SinkHarness) -> None:
    """The source fails in the middle of a segment: what was written before must not count."""
    one = sink.opened()
    plan = sink.plan(one, 1, segment(0, ORDERS))
    before = sink.traces()

    def frames() -> Any:
        yield 0, [b"half\n"]
        raise ZeroDivisionError

    part, outputs = plan.stretch.segments[0], plan.outputs_of(0)
    with pytest.raises(ZeroDivisionError):
        sink.asks(lambda: sink.hand(one, part, outputs, frames()))
    assert sink.traces() == before
    sink.publish(one, plan, sink.write(one, plan, ROWS))
    assert sink.visible_rows() == values(ROWS)
