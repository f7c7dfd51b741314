"""Where a task knows its lanes to be, whoever has noted it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa

from rowferry.change.plan import Topic
from rowferry.flow.encode.contract import Encoded
from rowferry.flow.sink.contract import Packet
from rowferry.flow.sink.sql.ledger import LaneNote, LanePlace
from rowferry.flow.sink.sql.noted_lanes import NotedLanes

HERE = LanePlace(7, 3, 0, 20)


class Notes:
    """A ledger and its sessions; `asked` counts how often it was read."""

    def __init__(self, **lanes: LanePlace) -> None:
        self.lanes, self.asked = lanes, 0

    def delivered(self, session: object) -> dict[str, LanePlace]:
        self.asked += 1
        return dict(self.lanes)

    @contextmanager
    def one(self) -> Iterator[None]:
        yield None


def noted(**lanes: LanePlace) -> NotedLanes[Any]:
    notes: Any = Notes(**lanes)
    return NotedLanes(notes, notes)


def packet(micro_batch: int, segment: int, exact: bool = True) -> Packet:
    nothing = Encoded(pa.array([], pa.large_binary()))
    return Packet(segment, 0, Topic("t", 1, 1, exact), 0, nothing, micro_batch)


def test_rows_that_are_durable() -> None:
    lanes = noted(t=HERE)
    assert lanes.rows_done(packet(7, 2), "t") > 1 << 60
    assert lanes.rows_done(packet(7, 3), "t") == 20
    assert lanes.rows_done(packet(7, 4), "t") == 0
    assert lanes.rows_done(packet(8, 3), "t") == 0
    assert lanes.rows_done(packet(7, 3, exact=False), "t") == 0
    assert lanes.rows_done(packet(7, 3), "other") == 0


def test_each_note_stands_behind_the_one_before_it() -> None:
    notes: Any = Notes(t=HERE)
    lanes: NotedLanes[Any] = NotedLanes(notes, notes)
    first, later = LanePlace(7, 4, 0, 5), LanePlace(8, 0, 0, 1)
    note = lanes.note("t", first)
    assert note == LaneNote("t", first, HERE)
    assert lanes.note("t", first) == note  # it is not there before it was committed
    lanes.moved(note)
    assert lanes.note("t", later) == LaneNote("t", later, first)
    assert lanes.note("other", later) == LaneNote("other", later, None)
    assert notes.asked == 1


def test_rows_that_come_once_more_take_no_note_back() -> None:
    """A snapshot that is read again comes from its beginning, and before what is noted."""
    lanes = noted(t=HERE)
    assert lanes.note("t", LanePlace(7, 3, 0, 20)) is None
    assert lanes.note("t", LanePlace(7, 1, 0, 99)) is None
    assert lanes.note("t", LanePlace(7, 3, 0, 21)) is not None
    # A meta database that was restored counts micro-batches once more.
    assert lanes.note("t", LanePlace(6, 9, 0, 9)) == LaneNote("t", LanePlace(6, 9, 0, 9), HERE)
