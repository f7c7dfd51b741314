"""Bars of snapshots: one for all tables, and one for each of those in focus."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from rich.progress_bar import ProgressBar
from rich.table import Table

from rowferry.face.cli.progress.speed import duration

MOST_TABLES: Final = 6
_WIDTH: Final = 30

Bar = tuple[str, float, str]  # its name, its share from 0 to 1, and words


@dataclass(frozen=True, slots=True)
class SnapshotNow:
    """How far all snapshots of a changefeed are; tables hold name, done and all."""

    tables: Sequence[tuple[str, int, int]]
    tables_done: int
    all_tables: int
    done: int
    total: int
    unit: str
    left_s: float | None = None

    @property
    def share(self) -> float:
        """From 0 to 1."""
        return min(1.0, self.done / max(self.total, 1))

    def words(self) -> str:
        """Return it in words: `820,000 of about 2,000,000 rows, about 25 s left`."""
        about = "about " if self.unit == "rows" else ""
        text = f"{self.done:,} of {about}{self.total:,} {self.unit}"
        if self.all_tables > 1:
            text += f", {self.tables_done:,} of {self.all_tables:,} tables"
        return text if self.left_s is None else f"{text}, about {duration(self.left_s)} left"

    def bars(self) -> list[Bar]:
        """Return the bar of all tables, and of those in focus."""
        name = self.tables[0][0] if self.all_tables == 1 and self.tables else "all tables"
        bars = [(f"snapshot {name}", self.share, self.words())]
        if self.all_tables > 1:
            under_way = [one for one in self.tables if one[1] < one[2]]
            bars += [
                (table, min(1.0, done / max(total, 1)), f"{done:,}/{total:,}")
                for table, done, total in under_way[:MOST_TABLES]
            ]
        return bars


def drawn(bars: Iterable[Bar]) -> Table:
    """Return bars as a terminal shows them."""
    grid = Table.grid(padding=(0, 1))
    grid.add_column(no_wrap=True)
    grid.add_column(no_wrap=True)
    grid.add_column(no_wrap=True, justify="right")
    for name, share, words in bars:
        grid.add_row(f"  {name}", ProgressBar(100, 100 * share, _WIDTH), f"{percent(share)}", words)
    return grid


def percent(share: float) -> str:
    """Return a share as whole percents; 100 only at the end."""
    return f"{int(100 * share)}%"
