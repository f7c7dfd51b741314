"""What the shell shows: colours and a live line on a terminal, plain lines when piped."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from rowferry.errors import BadOption, RowferryError

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


class Printer:
    """Prints a command's answer: as a table for people, or as JSON for programs."""

    def __init__(self, form: str | None = None) -> None:
        """Choose the form: `table`, `json`, or by whether standard output is a terminal."""
        if form not in (None, "table", "json"):
            raise BadOption(f"--output {form!r}: allowed: table | json")
        self.out, self.err = consoles()
        self.form = form
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

    def answer(self, value: Any, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        """Print a value as JSON, or these rows of it as a table."""
        if self.as_json:
            self.value(value)
        else:
            self.table(columns, rows)

    def fault(self, name: str, words: str, cure: str) -> None:
        """Print what is wrong with something, and what helps."""
        line = Text.assemble((name, "bold"), ": ", (words, "red"), f"  {cure}" if cure else "")
        self.out.print(line, soft_wrap=True)


COLOURS = {
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
    return Text(text, COLOURS.get(text, ""))
