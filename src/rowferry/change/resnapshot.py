"""An operator's wish that rows of one table are read and delivered again, beside the log."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from rowferry.change.json_form import FormRules, JsonForm
from rowferry.change.table import TableId


class ResnapshotOutcome(Enum):
    """How a resnapshot has ended."""

    OPEN = ""  # it has not
    DONE = "done"
    CANCELLED = "cancelled"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Resnapshot(JsonForm):
    """Which rows are meant, and how it ended.

    Attributes:
        first, last: values of the key's columns, in index order, as people write them; both rows
            belong to it. Empty: from the first row, up to the last one.
        where: only rows for which this expression (as in event filters) is true; empty: all.
        asked_at, ended_at: seconds since 1970; 0: not yet.
        rows: how many were delivered again, about.
        words: why it ended so, for people; often empty.
    """

    FORM = FormRules(brief=True)

    id: str
    table: TableId
    first: tuple[str, ...] = ()
    last: tuple[str, ...] = ()
    where: str = ""
    asked_at: float = 0.0
    ended_at: float = 0.0
    outcome: ResnapshotOutcome = ResnapshotOutcome.OPEN
    rows: int = 0
    words: str = ""

    @property
    def is_open(self) -> bool:
        """Whether there is still something to do."""
        return self.outcome is ResnapshotOutcome.OPEN
