"""What is shown while a changefeed on a server is watched."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from rowferry.face.cli.output import CAUGHT_UP_MS, COLOURS, PLAIN_EVERY_S
from rowferry.face.cli.progress.snapshot_bars import Bar, SnapshotNow, drawn, percent


class FeedView:
    """How far a changefeed on a server is: bars for its snapshots and for catching up."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._seen: Mapping[str, Any] = {}
        self._furthest_ms = 1
        self._plain_at = 0.0
        self._live: Live | None = None

    def __enter__(self) -> FeedView:
        if self._console.is_terminal:
            self._live = Live(
                get_renderable=self._render, console=self._console, refresh_per_second=4
            )
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()
        else:
            self._console.print(self._line(), soft_wrap=True)

    def show(self, seen: Mapping[str, Any]) -> None:
        """Take in what the server told."""
        self._seen = seen
        self._furthest_ms = max(self._furthest_ms, seen.get("lag_ms") or 0)
        now = time.monotonic()
        if self._live is None and now - self._plain_at >= PLAIN_EVERY_S:
            self._plain_at = now
            self._console.print(self._line(), soft_wrap=True)

    def _bars(self) -> list[Bar]:
        """Return the bars: snapshots under way, and how far the log is behind."""
        bars: list[Bar] = []
        if (snapshot := snapshot_of(self._seen)) is not None:
            bars += snapshot.bars()
        lag_ms = self._seen.get("lag_ms")
        if lag_ms is not None:
            share = 1.0 if lag_ms <= CAUGHT_UP_MS else 1 - lag_ms / self._furthest_ms
            bars.append(("catch-up", share, f"lag {lag_ms / 1000:.1f} s"))
        return bars

    def _head(self) -> Text:
        state = str(self._seen.get("state", ""))
        rows, volume = (self._seen.get(k) or 0 for k in ("rows_per_s", "bytes_per_s"))
        waits = state in ("normal", "warning", "pending") and not self._seen.get("owner")
        return Text.assemble(
            (str(self._seen.get("id", "")), "bold cyan"),
            "  ",
            (state, COLOURS.get(state, "")),
            f" ({phase})" if (phase := self._seen.get("phase")) else "",
            "  waits for a server" if waits else f"  {rows:,.0f} rows/s  {volume / 1e6:.1f} MB/s",
        )

    def _line(self) -> Text:
        words = [f"{name} {percent(share)} ({detail})" for name, share, detail in self._bars()]
        return Text.assemble(self._head(), "".join(f"  {w}" for w in words), *self._fault("  "))

    def _fault(self, lead: str) -> list[tuple[str, str]]:
        error = self._seen.get("error")
        return [(f"{lead}[{error['code']}] {error['message']}", "yellow")] if error else []

    def _render(self) -> RenderableType:
        faults = [Text(*fault) for fault in self._fault("  ")]
        return Group(self._head(), drawn(self._bars()), *faults)


def snapshot_of(seen: Mapping[str, Any]) -> SnapshotNow | None:
    """Return how far the snapshots are that a server tells of; None: none is under way."""
    total = seen.get("snapshot")
    if not total:
        return None
    left_ms = total["left_ms"]
    return SnapshotNow(
        [(one["table"], one["done"], one["all"]) for one in seen.get("snapshots") or ()],
        total["tables_done"],
        total["tables"],
        total["done"],
        total["all"],
        total["unit"],
        None if left_ms is None else left_ms / 1000,
    )
