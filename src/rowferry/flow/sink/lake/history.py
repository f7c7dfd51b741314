"""What a table of a lake was at each of its commits, and reading one of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from rowferry.change.position import PHYSICAL_SHIFT
from rowferry.errors import NoSuchVersion
from rowferry.flow.sink.lake.columns import arrow_type
from rowferry.flow.sink.lake.data_file import without_rows
from rowferry.flow.sink.lake.rewriting import struct_as
from rowferry.flow.sink.lake.stored_columns import StoredColumns

RowNumbers: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class TableCommit:
    """One commit of a table.

    Attributes:
        version: Delta's number of the version, or Iceberg's of the snapshot.
        at_ms: when it was made.
        checkpoint_ts: up to which commit-ts the tables were complete then; None: somebody else's
            commit, which does not tell.
        since_ts: up to which commit-ts they were before it.
        settled: this table was complete, too; else it was being filled.
    """

    version: int
    at_ms: int
    checkpoint_ts: int | None
    since_ts: int = 0
    settled: bool = True


@dataclass(frozen=True, slots=True)
class TablePart:
    """A data file of a version.

    Attributes:
        path: below the prefix.
        gone: its rows that count no more, ascending.
        held: columns that the file does not hold, each with the one value that its rows have.
    """

    path: str
    gone: RowNumbers
    held: dict[str, pa.Scalar]


@dataclass(frozen=True, slots=True)
class TableVersion:
    """A table at one of its commits.

    Attributes:
        key: the columns that name a row, as readers name them.
        mode: upsert or changelog.
        numbered: data files know their columns by numbers, else by names.
    """

    commit: TableCommit
    columns: StoredColumns
    key: tuple[str, ...]
    mode: str
    parts: tuple[TablePart, ...]
    numbered: bool

    def rows(self, part: TablePart, data: bytes, wanted: Sequence[str]) -> Iterator[pa.Table]:
        """Yield the rows of a data file's content, these columns of them, in some blocks."""
        names = {f.physical: f for f in self.columns.fields if f.name in wanted}
        file = pq.ParquetFile(pa.BufferReader(data))
        here = {name: column for column, name in self._names(file.schema_arrow) if name in names}
        first = 0
        for number in range(file.num_row_groups):
            rows = file.read_row_group(number, columns=list(here.values()))
            count = rows.num_rows
            low, high = np.searchsorted(part.gone, [first, first + count])
            arrays = []
            for name, field in names.items():
                kind = arrow_type(field.kind)
                if name in here:
                    arrays.append(struct_as(rows.column(here[name]), kind))
                else:
                    value = part.held.get(name, pa.scalar(None, kind))
                    arrays.append(pa.chunked_array([pa.repeat(value, count)], kind))
            chosen = pa.Table.from_arrays(arrays, [f.name for f in names.values()])
            yield without_rows(chosen, part.gone[low:high] - first)
            first += count

    def _names(self, schema: pa.Schema) -> Iterator[tuple[str, str]]:
        """Yield each column's name in a data file with the name by which the table knows it."""
        by_number = {str(f.id).encode(): f.physical for f in self.columns.fields}
        for field in schema:
            number = (field.metadata or {}).get(b"PARQUET:field_id", b"")
            yield field.name, by_number.get(number, "") if self.numbered else field.name


class TableHistory(Protocol):
    """The commits of one table that can still be read, and what it was at each of them."""

    @property
    def shown(self) -> str:
        """The table as users know it."""

    def commits(self) -> list[TableCommit]:
        """Return the commits that the table names, the oldest first; none: there is no table."""

    def begins(self) -> bool:
        """Return whether the oldest of them is the first that the table ever had."""

    def version(self, number: int | None = None) -> TableVersion:
        """Return the table at one of its commits; None: as it is now.

        Raises:
            NoSuchVersion: files of it were deleted.
            TargetUnfit, SinkDamaged: it cannot be read.
        """

    def require(self, number: int) -> None:
        """Raise NoSuchVersion where files of a version were deleted."""

    def readers(self, number: int) -> dict[str, str]:
        """Return how others read that version: the name of a reader, and what it is told."""


def commit_at(history: TableHistory, commit_ts: int, reached: int) -> TableCommit:
    """Return the first commit with which a table holds everything up to a commit-ts.

    It may hold more: what else came in the same micro-batch; its `checkpoint_ts` says up to where.
    Of several commits with one watermark it is the last: schema changes follow their rows.
    `reached` is up to where all tables of the lake are complete.

    Raises:
        NoSuchVersion: that moment is before the first commit, has expired, or is still to come.
    """
    commits = history.commits()
    shown = history.shown
    if not commits:
        raise NoSuchVersion(f"{shown} has no commits")
    spans = _complete(commits, reached)
    first = next((begin for begin, _ in spans if begin), 0)
    last = max(end for _, end in spans)
    if commit_ts > last:
        until = f"complete up to commit-ts {last} only" if last else "being filled"
        raise NoSuchVersion(
            f"{shown} is {until}, not up to {commit_ts} yet; wait for the changefeed, or name an "
            "earlier moment"
        )
    if commit_ts < first:
        why = "nothing earlier was ever there" if history.begins() else "earlier ones have expired"
        raise NoSuchVersion(
            f"{shown}: its first version is of commit-ts {first}, after {commit_ts}; {why}; name "
            "that moment or a later one"
        )
    place = next(i for i, (_, end) in enumerate(spans) if end >= commit_ts)
    while place + 1 < len(spans) and spans[place + 1][0] == spans[place][0]:
        place += 1
    return replace(commits[place], checkpoint_ts=max(spans[place]))


def _complete(commits: Sequence[TableCommit], reached: int) -> list[tuple[int, int]]:
    """Return between which commit-ts the table was complete as of each commit; 0: at none.

    Where the next commit tells that the lake was complete up to a moment before it, nothing of this
    table had changed up to there. Somebody else's commits change no rows.
    """
    spans: list[tuple[int, int]] = []
    for place, one in enumerate(commits):
        later = (c.since_ts for c in commits[place + 1 :] if c.checkpoint_ts is not None)
        until = next(later, reached)
        if one.checkpoint_ts is None:
            spans.append(spans[-1] if spans else (0, 0))
        elif one.settled:
            spans.append((one.checkpoint_ts, max(one.checkpoint_ts, until)))
        elif until > one.checkpoint_ts:  # it was filled, and then the watermark moved on
            spans.append((min(one.at_ms << PHYSICAL_SHIFT, until), until))
        else:
            spans.append((0, 0))
    return spans
