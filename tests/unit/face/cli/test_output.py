"""What is shown on a terminal: tables and progress bars."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console
from rich.text import Text

from rowferry.change.position import PHYSICAL_SHIFT
from rowferry.change.table import TableId
from rowferry.control.feed.loop import StepResult
from rowferry.errors import BadOption
from rowferry.face.cli import output
from rowferry.face.cli.output import Printer
from rowferry.face.cli.progress import run_view
from rowferry.face.cli.progress.feed_view import FeedView
from rowferry.face.cli.progress.run_view import RunView
from rowferry.face.cli.remote.changefeed_forms import show_list
from rowferry.flow.capture.contract import SnapshotShare


def terminal() -> Console:
    return Console(file=io.StringIO(), force_terminal=True, width=100, color_system="standard")


def shown(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_terminal_gets_tables_and_a_pipe_json(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = terminal()
    monkeypatch.setattr(output, "consoles", lambda: (screen, screen))
    printer = Printer()
    assert not printer.as_json
    assert Printer("json").as_json
    printer.table(("id", "state"), [("[x]", "failed"), ("y", None)])
    text = shown(screen)
    assert "[x]" in text and "\x1b[1;31mfailed" in text
    feed = {
        "id": "z",
        "state": "failed",
        "source_uri": "mysql://h/?a=b",
        "sink_uri": "blackhole://",
    }
    error = {"code": "RF-4001", "message": "it is gone", "cure": "Wait."}
    show_list(printer, [{**feed, "error": error}, {**feed, "id": "w"}])
    lines = [Text.from_ansi(line).plain.split() for line in shown(screen).splitlines()]
    assert lines[-3:] == [
        ["z", "failed", "0", "mysql://h", "blackhole://"],
        ["w", "failed", "0", "mysql://h", "blackhole://"],
        ["z:", "[RF-4001]", "it", "is", "gone", "Wait."],
    ]
    printer.table(("id", "state"), [("n" * 300, "stopped")])
    assert "stopped" in shown(screen)  # a long name leaves room for the rest
    pipe = Console(file=io.StringIO())
    monkeypatch.setattr(output, "consoles", lambda: (pipe, pipe))
    assert Printer().as_json
    assert not Printer("table").as_json
    with pytest.raises(BadOption, match="yaml"):
        Printer("yaml")


def test_bars_for_snapshots_and_catching_up() -> None:
    screen = terminal()
    seen: dict[str, Any] = {"id": "x", "state": "warning", "rows_per_s": None, "owner": "h:1"}
    with FeedView(screen) as view:
        view.show({**seen, "lag_ms": None, "owner": None})
        assert "waits for a server" in str(view._head())
        view.show({**seen, "lag_ms": 60_000})
        view.show(
            {
                **seen,
                "lag_ms": 15_000,
                "phase": "snapshot",
                "snapshots": [{"table": "a.t", "done": 1, "all": 4}],
                "snapshot": {
                    "done": 1,
                    "all": 4,
                    "unit": "parts",
                    "tables_done": 0,
                    "tables": 1,
                    "left_ms": 9000,
                },
                "error": {"code": "RF-4001", "message": "[gone]"},
            }
        )
    text = shown(screen)
    assert "snapshot a.t" in text and "1 of 4 parts, about 9 s left" in text
    assert "warning (snapshot)" in Text.from_ansi(text).plain
    assert "catch-up" in text and "lag 15.0 s" in text
    assert "[RF-4001] [gone]" in text
    assert [round(share, 2) for _, share, _ in view._bars()] == [0.25, 0.75]


def test_bars_of_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    screen, now = terminal(), 1_700_000_000.0
    monkeypatch.setattr(run_view.time, "time", lambda: now)

    def behind(seconds: float, *shares: SnapshotShare) -> StepResult:
        stamp = round((now - seconds) * 1000) << PHYSICAL_SHIFT
        return StepResult(published=True, rows=3, watermark=stamp, snapshots=shares)

    with RunView(screen, "feed") as view:
        view.step(behind(80, SnapshotShare(TableId("a", "t"), 1, 4)))
        assert view._bars() == [("snapshot a.t", 0.25, "1 of about 4 rows")]
        view.step(behind(20))
        assert view._bars() == [("catch-up", 0.75, "")]
    text = Text.from_ansi(shown(screen)).plain
    assert "catch-up" in text and "75%" in text and "lag 20.0 s" in text
    view.step(behind(1))
    assert view._bars() == []
