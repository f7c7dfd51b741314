"""The sink whose purpose is to keep nothing: it counts, and that is all that it promises."""

from __future__ import annotations

import pytest
from sink_harness import FEED, ITEMS, ORDERS, Bare, SinkHarness, encoded, segment

from rowferry.change.plan import Plan, Stretch
from rowferry.flow.sink.blackhole import Blackhole
from rowferry.flow.sink.contract import Owner
from rowferry.registry import SINKS
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.uri import Uri


@pytest.fixture
def sink() -> Blackhole:
    spec = ChangefeedSpec(
        FEED, Uri.parse("range://127.0.0.1:1", "source"), Uri.parse("blackhole://", "sink")
    )
    return Blackhole(ChangefeedSpec.from_json(spec.to_json()), Bare())


def test_no_other_sink_is_outside_of_the_suite() -> None:
    """A harness cannot say of itself that nothing can be read back."""
    assert [name for name in SINKS.names() if SINKS.load(name) is Blackhole] == ["blackhole"]
    assert SinkHarness.__abstractmethods__ >= {"visible_rows", "visible_changes", "watermark"}


def test_what_comes_is_counted_whatever_was_before(sink: Blackhole) -> None:
    sink.probe(Owner(FEED, 1))
    sink.open(Owner(FEED, 1), None)
    stretch = Stretch((segment(0, ORDERS, ITEMS),), (), {})
    outputs, state = sink.allocate(stretch, {})
    plan = Plan.from_json(Plan(1, 1, 0, stretch, outputs, state).to_json())
    frames = [(0, encoded([b"a\n", b"b\n"])), (0, encoded([b"c\n"]))]
    for _ in range(2):
        receipts = list(sink.write(plan.stretch.segments[0], plan.outputs_of(0), iter(frames)))
        assert [(r.segment, r.slice, r.rows, r.bytes) for r in receipts] == [
            (0, 0, 3, 6),
            (0, 1, 0, 0),
        ]
        sink.publish(plan, receipts, {})
    sink.open(Owner("other", 9), None)  # any number of changefeeds may share it
    assert not sink.discard(plan)


def test_an_error_while_reading_comes_through(sink: Blackhole) -> None:
    stretch = Stretch((segment(0, ORDERS),), (), {})
    outputs, _ = sink.allocate(stretch, {})

    def broken() -> object:
        yield 0, encoded([b"half\n"])
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        list(sink.write(stretch.segments[0], outputs, broken()))  # type: ignore[arg-type]
