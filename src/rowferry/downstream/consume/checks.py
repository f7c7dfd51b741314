"""What is checked of all that arrives: order, repeats, watermarks.

Repeats are allowed: a feed that goes on after a failure sends again what it does not know to have
arrived. What was not seen before must come in order, and above the watermarks that came before it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from rowferry.change.table import TableId
from rowferry.downstream.consume.arrival import ArrivedRow, ArrivedStatement, Key, Where

MOST_SAMPLES: Final = 20


@dataclass(slots=True)
class ConsumeFindings:
    """How much arrived, and what was wrong with it; `samples` has the first faults in words."""

    rows: int = 0
    schema_changes: int = 0
    repeats: int = 0
    violations: int = 0
    samples: list[str] = field(default_factory=list)

    def fault(self, words: str) -> None:
        """Count something that must not be."""
        self.violations += 1
        if len(self.samples) < MOST_SAMPLES:
            self.samples.append(words)


class Checks:
    """Judges arrivals in the order in which each container (topic-partition or file) holds them.

    It remembers a number for every row and a commit-ts for every key. Rows without a key or without
    a commit-ts are only counted.
    """

    def __init__(self, findings: ConsumeFindings, from_beginning: bool = True) -> None:
        """Begin with nothing seen.

        Args:
            findings: where the results go.
            from_beginning: reading began at the first message. If not, a row at or below a
                container's first watermark may be a repeat of one that was not read.
        """
        self._findings = findings
        self._from_beginning = from_beginning
        self._marks: dict[str, int] = {}
        self._first_marks: dict[str, int] = {}
        self._seen: set[int] = set()
        self._statements: set[tuple[int, str, TableId]] = set()
        self._newest: dict[tuple[str, TableId, Key], int] = {}

    def note_row(self, row: ArrivedRow) -> bool:
        """Take a row; return whether it was seen before."""
        self._findings.rows += 1
        if not row.commit_ts or not row.table.handle_key:
            return False  # nothing tells it from an equal one
        place = (row.where.container, row.table.id, _hashable(row.key))
        identity = hash((place, row.commit_ts, row.op, _image_hash(row)))
        if identity in self._seen or self._before_the_start(row):
            self._findings.repeats += 1
            return True
        self._seen.add(identity)
        mark = self._marks.get(row.where.container, 0)
        newest = self._newest.get(place, 0)
        if row.commit_ts <= mark:
            self._findings.fault(f"{row}: first seen after the watermark {mark}")
        if row.commit_ts < newest:
            self._findings.fault(f"{row}: first seen after the key's change at {newest}")
        else:
            self._newest[place] = row.commit_ts
        return False

    def note_statement(self, statement: ArrivedStatement) -> bool:
        """Take a schema change; return whether it was seen before, here or elsewhere."""
        change = statement.change
        identity = (change.commit_ts, change.query, change.table)
        if identity in self._statements:
            return True  # some formats send it to every partition
        self._statements.add(identity)
        self._findings.schema_changes += 1
        mark = self._marks.get(statement.where.container, 0)
        if change.commit_ts <= mark:
            self._findings.fault(f"{statement}: first seen after the watermark {mark}")
        return False

    def note_watermark(self, commit_ts: int, where: Where) -> None:
        """Take a watermark of one container."""
        mark = self._marks.get(where.container, 0)
        self._first_marks.setdefault(where.container, commit_ts)
        if commit_ts < mark:
            self._findings.fault(f"{where}: the watermark goes back from {mark} to {commit_ts}")
        self._marks[where.container] = max(mark, commit_ts)

    def _before_the_start(self, row: ArrivedRow) -> bool:
        first = self._first_marks.get(row.where.container, 0)
        return not self._from_beginning and row.commit_ts <= first


def _image_hash(row: ArrivedRow) -> int:
    image = row.after if row.after is not None else row.before or {}
    return hash(_hashable(tuple(image.items())))


def _hashable(values: tuple[object, ...]) -> tuple[object, ...]:
    """Return the values; all that rows hold can be hashed, except lists from foreign formats."""
    try:
        hash(values)
    except TypeError:
        return tuple(repr(v) for v in values)
    return values
