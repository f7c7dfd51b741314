"""What is shown of a changefeed under way: bars, speed, and when it will have ended."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from rich.text import Text

from rowferry.change.table import TableId
from rowferry.control.feed.loop import StepResult
from rowferry.control.feed.under_way import StepProgress
from rowferry.face.cli.progress import run_view
from rowferry.face.cli.progress.run_view import RunView
from rowferry.face.cli.progress.snapshot_bars import SnapshotNow
from rowferry.face.cli.progress.speed import EndEstimate, Speed, duration
from rowferry.flow.capture.contract import SnapshotShare

ORDERS, PARTS = TableId("shop", "orders"), TableId("shop", "parts")


class Clock:
    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        patch.setattr(run_view.time, "monotonic", lambda: self.now)


def under_way(number: int, rows: int, *shares: SnapshotShare, done: int = 0) -> StepProgress:
    return StepProgress(number, 8, done, rows, rows * 10, shares, "rows", 0.0)


def test_rows_count_over_the_time_that_they_took() -> None:
    speed = Speed(0.0)
    speed.begin(100.0)
    speed.add(160.0, 600_000, 6_000_000)
    assert speed.rates(160.0) == (10_000.0, 100_000.0)
    assert speed.rates(165.0)[0] == 5_000.0
    assert speed.rates(171.0) == (0.0, 0.0)
    young = Speed(0.0)
    young.add(2.0, 100, 0)
    assert young.rates(4.0)[0] == 25.0


def test_the_end_is_estimated_by_the_last_minute() -> None:
    end = EndEstimate()
    assert end.left_s(0.0, 100) is None
    end.add(0.0, 0)
    end.add(0.5, 10)
    assert end.left_s(0.5, 100) is None  # too early to say
    end.add(10.0, 50)
    assert end.left_s(10.0, 100) == 10.0
    for second in range(20, 200, 10):
        end.add(float(second), 50 + second // 10)
    assert end.left_s(190.0, 100) == pytest.approx(310.0)
    end.add(191.0, 1)
    assert end.left_s(191.0, 100) is None  # another one has begun
    assert [duration(s) for s in (25.4, 99, 180, 7800)] == ["25 s", "99 s", "3 min", "2 h 10 min"]


def test_many_tables_are_one_bar_and_those_under_way() -> None:
    tables = [(f"a.t{n}", n, 10) for n in (3, 2, 10)]
    now = SnapshotNow(tables, 91, 100, 950, 1000, "rows", 61.0)
    assert [(name, round(share, 2)) for name, share, _ in now.bars()] == [
        ("snapshot all tables", 0.95),
        ("a.t3", 0.3),
        ("a.t2", 0.2),
    ]
    assert now.words() == "950 of about 1,000 rows, 91 of 100 tables, about 61 s left"
    assert SnapshotNow([("a.t", 2, 8)], 0, 1, 2, 8, "parts").bars() == [
        ("snapshot a.t", 0.25, "2 of 8 parts")
    ]


def test_a_run_shows_its_first_snapshot_while_tasks_run(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    screen = Console(file=io.StringIO(), force_terminal=True, width=120)
    view = RunView(screen, "feed")
    view.phase("running")
    half = SnapshotShare(ORDERS, 0, 2_000_000)
    view.progress(under_way(1, 0, half))
    clock.now += 5
    view.progress(under_way(1, 500_000, SnapshotShare(ORDERS, 500_000, 2_000_000), done=2))
    with screen.capture() as found:
        screen.print(view._render())
    text = Text.from_ansi(found.get()).plain
    assert "feed  snapshot  500,000 rows  100,000 rows/s" in text
    assert "snapshot shop.orders" in text and "25%" in text
    assert "500,000 of about 2,000,000 rows, about 15 s left" in text
    clock.now += 5
    view.step(StepResult(True, micro_batch=1, rows=1_000_000, snapshots=(half,)))
    assert view._so_far() == view.rows == 1_000_000
    assert view._speed.rates(clock.now)[0] == 100_000
    assert view.summary().endswith("no checkpoint yet")


def test_rows_of_a_step_that_failed_are_not_counted_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    Clock(monkeypatch)
    view = RunView(Console(file=io.StringIO()), "feed")
    view.progress(under_way(4, 900, SnapshotShare(PARTS, 9, 10)))
    view.progress(under_way(4, 0, SnapshotShare(PARTS, 0, 10)))
    view.progress(under_way(4, 300, SnapshotShare(PARTS, 3, 10)))
    assert view._so_far() == 300


def test_a_pipe_gets_a_line_at_once_and_then_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    pipe = Console(file=io.StringIO(), width=200)
    view = RunView(pipe, "feed")
    for rows in (0, 10, 20):
        view.progress(under_way(1, rows, SnapshotShare(PARTS, rows, 40)))
    clock.now += 6
    view.progress(under_way(1, 30, SnapshotShare(PARTS, 30, 40)))
    assert isinstance(pipe.file, io.StringIO)
    first, second = pipe.file.getvalue().splitlines()
    assert first.endswith("lag —  snapshot 0%: 0 of about 40 rows")
    assert second.endswith("snapshot 75%: 30 of about 40 rows, about 2 s left")


def test_a_run_is_starting_until_its_first_step_and_never_again() -> None:
    view = RunView(Console(file=io.StringIO()), "feed")
    found = []
    for phase in ("running", "stopping"):
        found.append(view.is_starting)
        view.phase(phase)
    assert (found, view.is_starting) == ([True, False], False)
