"""What the log tells of a changefeed."""

from __future__ import annotations

import logging

import pytest

from rowferry.change.table import TableId
from rowferry.control.feed.diary import EVERY_S, FeedDiary
from rowferry.control.feed.loop import StepResult
from rowferry.errors import SinkUnavailable
from rowferry.flow.capture.contract import SnapshotShare


def test_a_line_at_first_then_one_a_minute_and_every_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    now = 0.0
    diary = FeedDiary("feed", lambda: now)
    share = SnapshotShare(TableId("a", "t"), 5, 20)
    diary.step(StepResult(published=False, warnings=("odd",)))
    diary.step(StepResult(True, rows=5, bytes=50, snapshots=(share,)))
    diary.step(StepResult(True, rows=7, bytes=70, watermark=1 << 60))
    now = EVERY_S + 1
    diary.step(StepResult(True, rows=1, bytes=10, watermark=1 << 60))
    diary.fault(SinkUnavailable("away"), 3.0)
    assert caplog.messages == [
        "changefeed feed: odd",
        "changefeed feed: 5 rows, 50 bytes in 1 micro-batches since the last line; "
        "no checkpoint yet, snapshot 5 of 20",
        "changefeed feed: 8 rows, 80 bytes in 2 micro-batches since the last line; "
        f"checkpoint {1 << 60} (2109-05-15T07:35:11+00:00)",
        "changefeed feed: next try in 3 s: [RF-4001] away",
    ]
