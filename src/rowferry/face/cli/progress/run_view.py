"""What `rowferry run` shows while it works."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Final

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from rowferry.change.position import physical_ms
from rowferry.errors import RowferryError
from rowferry.face.cli.output import CAUGHT_UP_MS, PLAIN_EVERY_S, counted, size
from rowferry.face.cli.progress.snapshot_bars import Bar, SnapshotNow, drawn, percent
from rowferry.face.cli.progress.speed import EndEstimate, Speed

if TYPE_CHECKING:  # the first line should not wait for the stages of a changefeed
    from rowferry.control.feed.loop import StepResult
    from rowferry.control.feed.under_way import StepProgress
    from rowferry.flow.capture.contract import SnapshotShare

_STARTING: Final = "starting"
_RUNNING: Final = "running"


class RunView:
    """The progress of one run: totals, speed, lag, and snapshots while their tasks run.

    `progress` may be called in any thread.
    """

    def __init__(self, console: Console, title: str) -> None:
        self._console = console
        self._title = title
        self._phase = _STARTING
        self._began = time.monotonic()
        self._speed = Speed(self._began)
        self._end = EndEstimate()
        self._lock = threading.Lock()
        self._last: StepResult | None = None
        self._under_way: tuple[int, int, int] = (0, 0, 0)  # micro-batch, rows, bytes
        self._snapshot: SnapshotNow | None = None
        self._unit = "rows"
        self._fault: str = ""
        self._furthest_ms = 1.0
        self._plain_at = 0.0
        self.published = False
        self.rows = 0
        self.bytes = 0
        self.micro_batches = 0
        self._live: Live | None = None

    def __enter__(self) -> RunView:
        if self._console.is_terminal:
            self._live = Live(
                get_renderable=self._render,
                console=self._console,
                refresh_per_second=5,
                transient=True,
            )
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def phase(self, words: str) -> None:
        """Say what the run is doing."""
        self._phase = words

    @property
    def is_starting(self) -> bool:
        """Whether nothing was begun yet."""
        return self._phase.startswith(_STARTING)

    def progress(self, progress: StepProgress) -> None:
        """Take in how far the step under way is."""
        now = time.monotonic()
        with self._lock:
            number, rows, volume = self._under_way
            if number != progress.micro_batch or progress.rows < rows:
                rows = volume = 0
                self._speed.begin(now)
            self._speed.add(now, progress.rows - rows, progress.bytes - volume)
            self._under_way = (progress.micro_batch, progress.rows, progress.bytes)
            self._unit = progress.unit
            first = self._snapshot is None
            self._show(now, progress.snapshots)
            if self._snapshot is not None:
                self._print_plain(now, at_once=first)

    def step(self, step: StepResult) -> None:
        """Take in what a step did."""
        now = time.monotonic()
        with self._lock:
            self._last = step
            if step.published:
                self._fault = ""
                self.published = True
                number, rows, volume = self._under_way
                if number != step.micro_batch:
                    rows = volume = 0
                self._speed.add(now, max(0, step.rows - rows), max(0, step.bytes - volume))
                self._under_way = (0, 0, 0)
                self.rows += step.rows
                self.bytes += step.bytes
                self.micro_batches += 1 if step.rows or step.schema_changes else 0
                self._show(now, step.snapshots)
            self._furthest_ms = max(self._furthest_ms, self._lag_ms() or 0)
            for words in step.warnings:
                self._console.print(f"warning: {words}", soft_wrap=True, markup=False)
            if step.published:
                self._print_plain(now)

    def fault(self, error: RowferryError, wait_s: float) -> None:
        """Take in an error that will be retried."""
        with self._lock:
            self._under_way = (0, 0, 0)
            self._fault = f"{error} (next try in {wait_s:.1f} s)"
        if self._live is None:
            self._console.print(f"warning: {self._fault}", soft_wrap=True, markup=False)

    def summary(self) -> str:
        """Return the run's result in one line."""
        took = time.monotonic() - self._began
        watermark = self._last.watermark if self._last else 0
        # Without one, nothing can be said to be complete: a snapshot has not ended.
        place = f"checkpoint-ts {watermark}" if watermark else "no checkpoint yet"
        return (
            f"{counted(self.rows, 'row')}, {size(self.bytes)} in "
            f"{counted(self.micro_batches, 'micro-batch')}, {took:.1f} s; {place}"
        )

    def _show(self, now: float, shares: tuple[SnapshotShare, ...]) -> None:
        from rowferry.control.feed.under_way import in_focus  # loaded by whoever calls this

        if not shares:
            self._snapshot = None
            self._end.clear()
            return
        done, total = sum(s.done for s in shares), sum(s.total for s in shares)
        self._end.add(now, done)
        self._snapshot = SnapshotNow(
            [(str(s.table), s.done, s.total) for s in in_focus(shares)],
            sum(s.done >= s.total for s in shares),
            len(shares),
            done,
            total,
            self._unit,
            self._end.left_s(now, total),
        )

    def _print_plain(self, now: float, at_once: bool = False) -> None:
        if self._live is None and (at_once or now - self._plain_at >= PLAIN_EVERY_S):
            self._plain_at = now
            self._console.print(self._line(), style=None, soft_wrap=True)

    def _lag_ms(self) -> float | None:
        if self._last is None or not self._last.watermark:
            return None
        return max(0.0, time.time() * 1000 - physical_ms(self._last.watermark))

    def _lag(self) -> str:
        lag_ms = self._lag_ms()
        return "—" if lag_ms is None else f"{lag_ms / 1000:.1f} s"

    def _bars(self) -> list[Bar]:
        """Return the bars: snapshots under way, or a log that is behind."""
        if self._snapshot is not None:
            return self._snapshot.bars()
        lag_ms = self._lag_ms() or 0
        if lag_ms <= CAUGHT_UP_MS:
            return []
        return [("catch-up", 1 - lag_ms / max(lag_ms, self._furthest_ms), "")]

    def _so_far(self) -> int:
        return self.rows + self._under_way[1]

    def _line(self) -> str:
        rows, volume = self._speed.rates(time.monotonic())
        now = self._snapshot
        snapshot = f"  snapshot {percent(now.share)}: {now.words()}" if now is not None else ""
        return (
            f"{self._so_far():,} rows  {rows:,.0f} rows/s  {volume / 1e6:.1f} MB/s  "
            f"lag {self._lag()}{snapshot}"
        )

    def _state(self) -> str:
        """Return what it is doing: of a changefeed that runs, its stage."""
        if self._phase != _RUNNING:
            return self._phase
        if self._snapshot is not None:
            return "snapshot"
        return "planning" if self._last is None else _RUNNING

    def _render(self) -> RenderableType:
        with self._lock:
            rows, volume = self._speed.rates(time.monotonic())
            line = Text.assemble(
                (self._title, "bold cyan"),
                f"  {self._state()}  ",
                (f"{self._so_far():,}", "bold"),
                " rows  ",
                (f"{rows:,.0f}", "bold green"),
                " rows/s  ",
                (f"{volume / 1e6:.1f}", "bold green"),
                " MB/s  lag ",
                (self._lag(), "bold yellow"),
            )
            parts: list[RenderableType] = [line]
            if bars := self._bars():
                parts.append(drawn(bars))
            if self._fault:
                parts.append(Text(f"  {self._fault}", style="yellow"))
            return Group(*parts)
