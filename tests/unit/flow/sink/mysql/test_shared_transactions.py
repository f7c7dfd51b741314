"""Which segments share transactions: those that are not cut by time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from rowferry.change.plan import Segment, Stretch, TableSlice, Topic
from rowferry.flow.assemble import assemble
from rowferry.flow.sink.mysql.lanes import last_of_shared
from rowferry.flow.sink.mysql.sink import MySqlSink
from rowferry.mysql.ddl.statement import parse_create
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.uri import Uri


def segments(*bounds: tuple[int, int], snapshots: tuple[int, ...] = ()) -> list[Segment]:
    return [
        Segment(n, {}, (), first, last, snapshot=n in snapshots)
        for n, (first, last) in enumerate(bounds)
    ]


@pytest.mark.parametrize(
    ("found", "ends"),
    [
        ([], {}),
        (segments((1, 5), (6, 6), (7, 9)), {}),  # a log in its own order
        (segments((1, 9), (1, 9)), {0: 1, 1: 1}),  # two tables
        (segments((1, 5), (6, 9), (1, 9)), {0: 2, 1: 2, 2: 2}),  # the first in two parts
        (segments((1, 5), (5, 6), (7, 9)), {0: 1, 1: 1}),
        (segments((3, 3), (3, 3), snapshots=(0, 1)), {}),  # parts of a snapshot
        (segments((3, 3), (1, 9), (4, 8), snapshots=(0,)), {1: 2, 2: 2}),
    ],
)
def test_last_of_shared(found: list[Segment], ends: dict[int, int]) -> None:
    assert last_of_shared(found) == ends


def test_topics_remember_it() -> None:
    for topic in (Topic("*", 1, 9, True, 4), Topic("*", 1, 9, False), Topic("*", 2, 9)):
        assert Topic.from_json(topic.to_json()) == topic
    assert "last_segment" not in Topic("*", 1, 9).to_json()


@pytest.mark.parametrize(
    ("atomicity", "ends"),
    [
        ("none", [None, None, None, None]),
        ("table", [None, None, 3, 3]),  # the second table has two partitions
        ("global", [3, 3, 3, 3]),
    ],
)
def test_lanes_share_what_their_atomicity_needs(
    monkeypatch: pytest.MonkeyPatch, atomicity: str, ends: list[int | None]
) -> None:
    uri = f"mysql://{'root'}@db:3307/?transaction-atomicity={atomicity}"
    source = Uri.parse("range://127.0.0.1:1", "source")
    sink = assemble(ChangefeedSpec("feed", source, Uri.parse(uri, "sink"), {})).sink
    monkeypatch.setattr(MySqlSink, "_judge", lambda self, stretch, tables: None)
    monkeypatch.setattr(MySqlSink, "_forget_notes", lambda self: None)
    one, other = (parse_create(f"CREATE TABLE {t} (n int KEY)", "s").at(1) for t in "ab")
    parts = [TableSlice(t.id, t.table_id, 1, n) for t, n in ((one, 1), (other, 2), (other, 3))]
    bounds = ((1, 5), (6, 9), (1, 9), (1, 9))
    places = zip(segments(*bounds), (parts[0], *parts), strict=True)
    cut = tuple(replace(segment, slices=(part,)) for segment, part in places)
    tables = dict(zip(parts, (one, other, other), strict=True))
    outputs, state = sink.allocate(Stretch(cut, (), {}), tables)
    assert [Topic.from_json(o.target).last_segment for o in outputs] == ends
    assert state == {"delivered": {"s": ["a", "b"]}}
