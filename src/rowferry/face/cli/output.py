"""What the shell shows: colours and a live line on a terminal, plain lines when piped."""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from rowferry.change.position import physical_ms
from rowferry.errors import BadOption, RowferryError

if TYPE_CHECKING:  # clients of a server need not wait for the stages of a changefeed
    from rowferry.control.feed.loop import StepResult

WINDOW_S = 5.0
PLAIN_EVERY_S = 5.0
CAUGHT_UP_MS = 5000  # a changefeed with less lag has caught up


def consoles() -> tuple[Console, Console]:
    """Return the consoles of standard output and standard error."""
    return Console(highlight=False), Console(stderr=True, highlight=False)


def show_error(console: Console, error: RowferryError) -> None:
    """Show an error as one line: its code, then its words."""
    from rowferry.face.json_log import redacted  # only errors need it

    line = Text.assemble((f"[{error.code}]", "bold red"), " ", redacted(error.words))
    console.print(line, soft_wrap=True)


def size(count: float) -> str:
    """Return a number of bytes for people: `12.3 MB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000 or unit == "GB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    raise AssertionError


def counted(count: int, noun: str) -> str:
    """Return a number with its noun: `1 table`, `2,000 tables`, `2 micro-batches`."""
    ending = "" if count == 1 else "es" if noun.endswith("ch") else "s"
    return f"{count:,} {noun}{ending}"


class RunView:
    """The progress of one run: totals, speed over the last seconds, lag, snapshots under way."""

    def __init__(self, console: Console, title: str) -> None:
        self._console = console
        self._title = title
        self._phase = "starting"
        self._began = time.monotonic()
        self._recent: deque[tuple[float, int, int]] = deque()
        self._last: StepResult | None = None
        self._fault: str = ""
        self._furthest_ms = 1.0
        self._plain_at = 0.0
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

    def step(self, step: StepResult) -> None:
        """Take in what a step did."""
        now = time.monotonic()
        self._last = step
        if step.published:
            self._fault = ""
            self.rows += step.rows
            self.bytes += step.bytes
            self.micro_batches += 1 if step.rows or step.schema_changes else 0
            self._recent.append((now, step.rows, step.bytes))
        self._furthest_ms = max(self._furthest_ms, self._lag_ms() or 0)
        while self._recent and now - self._recent[0][0] > WINDOW_S:
            self._recent.popleft()
        for words in step.warnings:
            self._console.print(f"warning: {words}", soft_wrap=True, markup=False)
        if self._live is None and step.published and now - self._plain_at >= PLAIN_EVERY_S:
            self._plain_at = now
            self._console.print(self._line(), style=None, soft_wrap=True)

    def fault(self, error: RowferryError, wait_s: float) -> None:
        """Take in an error that will be retried."""
        self._fault = f"{error} (next try in {wait_s:.1f} s)"
        if self._live is None:
            self._console.print(f"warning: {self._fault}", soft_wrap=True, markup=False)

    def summary(self) -> str:
        """Return the run's result in one line."""
        took = time.monotonic() - self._began
        return (
            f"{counted(self.rows, 'row')}, {size(self.bytes)} in "
            f"{counted(self.micro_batches, 'micro-batch')}, "
            f"{took:.1f} s; checkpoint-ts {self._last.watermark if self._last else 0}"
        )

    def _rates(self) -> tuple[float, float]:
        if not self._recent:
            return 0.0, 0.0
        span = max(time.monotonic() - self._recent[0][0], 1.0)
        return sum(r for _, r, _ in self._recent) / span, sum(b for *_, b in self._recent) / span

    def _lag_ms(self) -> float | None:
        if self._last is None or not self._last.watermark:
            return None
        return max(0.0, time.time() * 1000 - physical_ms(self._last.watermark))

    def _lag(self) -> str:
        lag_ms = self._lag_ms()
        return "—" if lag_ms is None else f"{lag_ms / 1000:.1f} s"

    def _bars(self) -> list[tuple[str, float]]:
        """Return name and share of each bar: snapshots under way, and a log that is behind."""
        shares = self._last.snapshots if self._last else ()
        bars = [(str(s.table), s.done_parts / max(s.all_parts, 1)) for s in shares]
        lag_ms = self._lag_ms() or 0
        if lag_ms > CAUGHT_UP_MS and not bars:
            bars.append(("catch-up", 1 - lag_ms / max(lag_ms, self._furthest_ms)))
        return bars

    def _line(self) -> str:
        rows, volume = self._rates()
        shares = [
            f"{s.table} {100 * s.done_parts // max(s.all_parts, 1)}%"
            for s in (self._last.snapshots if self._last else ())
        ]
        snapshot = f"  snapshot {', '.join(shares)}" if shares else ""
        return (
            f"{self.rows:,} rows  {rows:,.0f} rows/s  {volume / 1e6:.1f} MB/s  lag {self._lag()}"
            f"{snapshot}"
        )

    def _render(self) -> RenderableType:
        rows, volume = self._rates()
        line = Text.assemble(
            (self._title, "bold cyan"),
            f"  {self._phase}  ",
            (f"{self.rows:,}", "bold"),
            " rows  ",
            (f"{rows:,.0f}", "bold green"),
            " rows/s  ",
            (f"{volume / 1e6:.1f}", "bold green"),
            " MB/s  lag ",
            (self._lag(), "bold yellow"),
        )
        parts: list[RenderableType] = [line]
        grid = Table.grid(padding=(0, 1))
        for name, share in self._bars():
            grid.add_row(f"  {name}", ProgressBar(100, 100 * share, 30), f"{100 * share:.0f}%")
        if grid.rows:
            parts.append(grid)
        if self._fault:
            parts.append(Text(f"  {self._fault}", style="yellow"))
        return Group(*parts)


class Printer:
    """Prints a command's answer: as a table for people, or as JSON for programs."""

    def __init__(self, form: str | None = None) -> None:
        """Choose the form: `table`, `json`, or by whether standard output is a terminal."""
        if form not in (None, "table", "json"):
            raise BadOption(f"--output {form!r}: allowed: table | json")
        self.out, self.err = consoles()
        self.as_json = form == "json" if form else not self.out.is_terminal

    def value(self, value: Any) -> None:
        """Print a value as JSON."""
        self.text(json.dumps(value, indent=2, ensure_ascii=False) + "\n")

    def text(self, text: str) -> None:
        """Print a text as it is."""
        self.out.file.write(text)
        self.out.file.flush()

    def note(self, words: str) -> None:
        """Tell something that is not part of the answer."""
        self.err.print(f"note: {words}", markup=False, soft_wrap=True)

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        """Print a table: aligned on a terminal, else with tabs between the cells."""
        if not self.out.is_terminal:
            for row in (columns, *rows):
                self.text("\t".join(_cell(cell) for cell in row) + "\n")
            return
        table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
        lines = [[_coloured(cell) for cell in row] for row in rows]
        share = self.out.width * 2 // 5
        fits = all(line[0].cell_len <= share for line in lines)
        for place, name in enumerate(columns):
            first = place == 0  # whole, unless one long name would leave no room for the others
            width = None if fits or not first else share
            table.add_column(name, overflow="fold", no_wrap=first and fits, max_width=width)
        for line in lines:
            table.add_row(*line)
        self.out.print(table)

    def fault(self, name: str, words: str, cure: str) -> None:
        """Print what is wrong with something, and what helps."""
        line = Text.assemble((name, "bold"), ": ", (words, "red"), f"  {cure}" if cure else "")
        self.out.print(line, soft_wrap=True)


_COLOURS = {
    "normal": "green",
    "warning": "yellow",
    "pending": "yellow",
    "failed": "bold red",
    "stopped": "cyan",
    "finished": "blue",
}


def _cell(value: Any) -> str:
    return "" if value is None else " ".join(str(value).split())


def _coloured(value: Any) -> Text:
    text = _cell(value)
    return Text(text, _COLOURS.get(text, ""))


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

    def _bars(self) -> list[tuple[str, float, str]]:
        """Return name, share and words of each bar."""
        bars = []
        for one in self._seen.get("snapshots") or ():
            share = one["done"] / max(one["all"], 1)
            bars.append((f"snapshot {one['table']}", share, f"{one['done']}/{one['all']}"))
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
            (state, _COLOURS.get(state, "")),
            "  waits for a server" if waits else f"  {rows:,.0f} rows/s  {volume / 1e6:.1f} MB/s",
        )

    def _line(self) -> Text:
        words = [f"{name} {100 * share:.0f}% ({told})" for name, share, told in self._bars()]
        return Text.assemble(self._head(), "".join(f"  {w}" for w in words), *self._fault("  "))

    def _fault(self, lead: str) -> list[tuple[str, str]]:
        error = self._seen.get("error")
        return [(f"{lead}[{error['code']}] {error['message']}", "yellow")] if error else []

    def _render(self) -> RenderableType:
        grid = Table.grid(padding=(0, 1))
        for name, share, told in self._bars():
            grid.add_row(f"  {name}", ProgressBar(100, 100 * share, 30), told)
        faults = [Text(*fault) for fault in self._fault("  ")]
        return Group(self._head(), grid, *faults)
