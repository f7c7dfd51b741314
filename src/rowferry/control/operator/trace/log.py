"""Reads published micro-batches once more from the source's log, as long as that is kept.

It tells what no output tells: the transaction's place in the log, and its GTID. For sinks whose
output cannot be read back it tells the changes themselves.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from rowferry.change.plan import Segment, TableSlice
from rowferry.change.published import PublishedBatch
from rowferry.change.table import TableSchema
from rowferry.downstream.trace.delivered import DeliveredChange, TraceLimits, matching
from rowferry.downstream.trace.row_key import RowKey
from rowferry.errors import RowferryError
from rowferry.flow.assemble import Flow
from rowferry.flow.capture.contract import FindsTransactions

Versions = Mapping[tuple[int, int], TableSchema]


@dataclass(frozen=True, slots=True)
class LoggedChange:
    """A change of the row as the log has it."""

    change: DeliveredChange
    batch: PublishedBatch
    segment: Segment
    place: Mapping[str, str]


@dataclass(slots=True)
class LogFindings:
    """What reading the log again gave; see `OutputFindings`."""

    changes: list[LoggedChange] = field(default_factory=list)
    complete: bool = True
    notes: list[str] = field(default_factory=list)
    looked: dict[str, int] = field(default_factory=dict)

    def stop(self, why: str) -> None:
        """Note that not everything was looked at, once for each reason."""
        self.complete = False
        if why not in self.notes:
            self.notes.append(why)


def changes_in_log(
    flow: Flow,
    batches: Sequence[PublishedBatch],
    versions: Versions,
    table: TableSchema,
    key: RowKey,
    limits: TraceLimits,
) -> LogFindings:
    """Return the changes of a row that micro-batches read from the log, the newest ones first."""
    findings = LogFindings()
    for batch in sorted(batches, key=lambda b: b.micro_batch, reverse=True):
        if not _in_bounds(batch, limits):
            continue
        if len(findings.changes) >= limits.limit or limits.is_over:
            why = "the time was up" if limits.is_over else "--limit was reached"
            findings.stop(f"micro-batches up to {batch.micro_batch} were not looked at: {why}")
            return findings
        if not batch.whole:
            findings.stop(
                f"micro-batches up to {batch.micro_batch} are too old, or too long, to be read "
                "again from the log"
            )
            continue
        findings.looked["micro-batches"] = findings.looked.get("micro-batches", 0) + 1
        for segment in _segments_of(batch, table):
            try:
                findings.changes += _read(flow, batch, segment, versions, key, limits)
            except RowferryError as err:
                findings.stop(f"the log cannot be read again: [{err.code}] {err.words}")
                return findings
            except KeyError:
                findings.stop(
                    f"micro-batch {batch.micro_batch} is from before a schema change, and cannot "
                    "be read again"
                )
    return findings


def _in_bounds(batch: PublishedBatch, limits: TraceLimits) -> bool:
    if not batch.first_ts or batch.last_ts < limits.since:
        return False
    return not limits.until or batch.first_ts <= limits.until


def _segments_of(batch: PublishedBatch, table: TableSchema) -> Iterator[Segment]:
    """Yield what was read of the log for a table; a snapshot's rows of then are gone."""
    for segment in batch.segments:
        if not segment.snapshot and any(is_of(one, table) for one in segment.slices):
            yield segment


def is_of(one: TableSlice, table: TableSchema) -> bool:
    """Return whether a slice is of a table; an id survives a rename."""
    return one.table_id == table.table_id if table.table_id else one.table == table.id


def _read(
    flow: Flow,
    batch: PublishedBatch,
    segment: Segment,
    versions: Versions,
    key: RowKey,
    limits: TraceLimits,
) -> list[LoggedChange]:
    tables: dict[TableSlice, TableSchema] = {
        one: versions[one.table_id, one.version] for one in segment.slices
    }
    changes: list[DeliveredChange] = []
    for captured in flow.capture.read(segment, tables):
        if captured.table.table_id != key.table.table_id or captured.table.id != key.table.id:
            continue
        for rows in flow.decide.rows(captured):
            order = (batch.micro_batch, segment.ordinal, len(changes))
            changes += matching(rows, key, limits, lambda n: {}, "", order)
    places: dict[int, dict[str, str]] = {}
    if changes and isinstance(flow.capture, FindsTransactions):
        places = flow.capture.transaction_places(segment, {c.commit_ts for c in changes})
    return [LoggedChange(c, batch, segment, places.get(c.commit_ts, {})) for c in changes]
