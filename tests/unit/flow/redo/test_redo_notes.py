"""What the redo log notes: at which point of the source the downstream is, and when at none."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from rowferry.change.plan import Plan, Segment, Stretch, Topic
from rowferry.downstream.redo.apply import RedoState, find_log
from rowferry.errors import SinkUnavailable
from rowferry.flow.encode.contract import Encoded
from rowferry.flow.named_storage import files_at
from rowferry.flow.redo.log import RedoLog
from rowferry.flow.sink.contract import Owner, Packet
from rowferry.moment import watched
from rowferry.spec.uri import Uri

FEED = "feed"


@pytest.fixture
def place(tmp_path: Path) -> Uri:
    """Where the log is."""
    return Uri.parse(f"file://{tmp_path}/redo", "storage")


def opened(
    place: Uri, epoch: int, micro_batch: int, delivered: int, begins: bool = False
) -> RedoLog:
    log = RedoLog(files_at(place, "a redo log"), FEED, "mysql", {"sink": {"a": 1}})
    log.open(Owner(FEED, epoch, delivered, micro_batch, continues=not begins))
    return log


def state_of(place: Uri) -> RedoState:
    return find_log(place, FEED)[1]


def plan_of(number: int, watermark: int | None) -> Plan:
    return Plan(number, 1, 0, Stretch((Segment(0, {}, (), 1, 2),), (), {}, watermark=watermark))


def keep(log: RedoLog, number: int, watermark: int | None, delivered: int = 0) -> None:
    """Keep a micro-batch of one segment."""

    def packets() -> Iterator[Packet]:
        yield Packet(
            0, 0, Topic("db.t", 1, 1 << 30), 0, Encoded(pa.array([b"v"], pa.large_binary()))
        )

    log.keep(log.begin(plan_of(number, watermark), {}, delivered), 0, packets())
    log.all_kept(plan_of(number, watermark))


def test_without_a_watermark_there_is_no_point(place: Uri) -> None:
    log = opened(place, 1, 5, 50)
    assert state_of(place).resolved_ts == 0  # nobody knows, until a micro-batch says it
    log.reached(6, 60)
    assert state_of(place).resolved_ts == 60
    keep(log, 7, None)
    assert (state_of(place).checkpoint_ts, state_of(place).resolved_ts) == (60, 0)
    log.reached(7, 0)
    log.reached(8, None)
    assert state_of(place).resolved_ts == 0
    log = opened(place, 2, 8, 60)  # what the meta database calls delivered is not all that was
    assert state_of(place).resolved_ts == 0
    keep(log, 9, 90)
    assert state_of(place).resolved_ts == 90
    log.reached(9, 90)
    assert state_of(place).reached.config == {"sink": {"a": 1}}


def test_a_plan_that_was_given_up_and_had_no_watermark(place: Uri) -> None:
    log = opened(place, 1, 5, 50)
    log.reached(6, 60)
    keep(log, 7, 70)
    keep(log, 7, None)
    assert state_of(place).resolved_ts == 0


def test_a_reset_forgets_what_was_kept(place: Uri) -> None:
    """The number of the micro-batch stays: what was kept is the next one, of another plan."""
    log = opened(place, 1, 5, 50)
    log.reached(6, 60)
    keep(log, 7, 70)
    assert state_of(place).resolved_ts == 70
    log = opened(place, 3, 6, 0, begins=True)
    assert (state_of(place).kept, state_of(place).resolved_ts) == (None, 0)  # a part may be there
    keep(log, 7, 65)
    assert state_of(place).resolved_ts == 0  # and may be there still
    log.reached(7, 65)
    assert state_of(place).resolved_ts == 0
    log.reached(8, 80)
    assert state_of(place).resolved_ts == 80


@pytest.mark.parametrize("watermark", [70, None])
def test_a_note_that_never_came(place: Uri, watermark: int | None) -> None:
    """What was kept says where the downstream is; without it the watermark alone has moved."""
    log = opened(place, 1, 5, 50)
    log.reached(6, 60)
    keep(log, 7, watermark)
    log = opened(place, 2, 7, watermark or 60)
    assert state_of(place).reached.micro_batch == 7
    assert state_of(place).resolved_ts == (watermark or 0)
    log.catch_up(9, 90)
    assert state_of(place).reached.micro_batch == 8
    assert state_of(place).resolved_ts == (90 if watermark else 0)


def test_a_note_that_could_not_be_written_comes_later(place: Uri) -> None:
    log = opened(place, 1, 5, 50)

    def away(name: str) -> None:
        if name == "note what is reached in redo log":
            raise SinkUnavailable("gone")

    with watched(away), pytest.raises(SinkUnavailable):
        log.reached(6, 60)
    with watched(away), pytest.raises(SinkUnavailable):
        log.catch_up(7, 60)
    log.catch_up(7, 60)
    assert (state_of(place).reached.micro_batch, state_of(place).resolved_ts) == (6, 60)


def test_a_changefeed_goes_on_behind_apply(place: Uri) -> None:
    """It carries out again what is whole downstream; until it begins to, that stays so."""
    log = opened(place, 1, 5, 50)
    log.reached(6, 60)
    keep(log, 7, 70)
    state = state_of(place)
    log.note_applied(2, state.reached, state.kept)
    assert (state_of(place).kept, state_of(place).resolved_ts) == (None, 70)
    assert state_of(place).reached.applied
    for epoch in (2, 3):
        log = opened(place, epoch, 6, 60)
        assert state_of(place).reached.micro_batch == 7
        assert (state_of(place).kept, state_of(place).resolved_ts) == (None, 70)
        assert not state_of(place).reached.applied
    keep(log, 7, 70, 60)
    state = state_of(place)
    assert state.kept is not None
    assert (state.reached.micro_batch, state.resolved_ts) == (6, 70)
    log.reached(7, 70)
    assert (state_of(place).kept, state_of(place).resolved_ts) == (None, 70)
