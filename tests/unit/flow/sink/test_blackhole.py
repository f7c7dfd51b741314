from __future__ import annotations

from storage_kit import CSV, EMPLOYEE, OWNER, frame, segment, slice_of

from rowferry.change.plan import Plan, Receipt, Stretch
from rowferry.flow.sink.blackhole import Blackhole
from rowferry.registry import SINKS
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.uri import Uri


def test_everything_is_counted_and_nothing_kept() -> None:
    spec = ChangefeedSpec(
        "feed", Uri.parse("range://127.0.0.1:1", "source"), Uri.parse("blackhole://", "sink")
    )
    sink = SINKS.load("blackhole")(spec, CSV)
    assert isinstance(sink, Blackhole)
    sink.probe(OWNER)
    sink.open(OWNER, None)
    part = segment(0, slice_of(EMPLOYEE), slice_of(EMPLOYEE, 7))
    stretch = Stretch((part,), (), {})
    outputs, state = sink.allocate(stretch, {})
    assert [(o.segment, o.slice) for o in outputs] == [(0, 0), (0, 1)]
    frames = iter([(0, frame(b"head", rows=0)), (0, frame(b"a", b"bc")), (0, frame(b"d"))])
    receipts = list(sink.write(part, outputs, frames))
    assert receipts == [Receipt(0, 0, 3, 8), Receipt(0, 1, 0, 0)]
    plan = Plan(1, 1, 0, stretch, outputs, state)
    sink.publish(plan, receipts, {})
    sink.discard(plan)
    sink.close()
    assert sink.partition_label(1) == sink.partition_label(1 << 60)
    assert sink.segment_bytes(EMPLOYEE.id) > 0
