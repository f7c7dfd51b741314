"""Reads published micro-batches once more from the source's log, as long as that is kept.

It tells what no output tells: the transaction's place in the log, and its GTID. For sinks whose
output cannot be read back it tells the changes themselves.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from rowferry.change.plan import Segment, TableSlice
from rowferry.change.published import PublishedBatch
from rowferry.change.table import TableSchema
from rowferry.downstream.trace.delivered import DeliveredChange, TraceLimits, matching
from rowferry.downstream.trace.row_key import RowKey
from rowferry.errors import RowferryError
from rowferry.flow.assemble import Flow
from rowferry.flow.capture.contract import FindsTransactions
from rowferry.flow.parking import waiting

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
    """What reading the log again gave; see `OutputFindings`.

    Attributes:
        parked: how many changes of the row were parked instead of delivered.
    """

    changes: list[LoggedChange] = field(default_factory=list)
    parked: int = 0
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
    _look(findings, flow, batches, versions, table, key, limits)
    if findings.parked:
        findings.notes.append(
            f"{findings.parked} changes of the row were parked, and are not among these: rowferry "
            "changefeed quarantine list shows those that still are"
        )
    return findings


def _look(
    findings: LogFindings,
    flow: Flow,
    batches: Sequence[PublishedBatch],
    versions: Versions,
    table: TableSchema,
    key: RowKey,
    limits: TraceLimits,
) -> None:
    for batch in sorted(batches, key=lambda b: b.micro_batch, reverse=True):
        if not _in_bounds(batch, limits):
            continue
        if len(findings.changes) >= limits.limit or limits.is_over:
            why = "the time was up" if limits.is_over else "--limit was reached"
            findings.stop(f"micro-batches up to {batch.micro_batch} were not looked at: {why}")
            return
        if not batch.whole:
            findings.stop(
                f"micro-batches up to {batch.micro_batch} are too old, or too long, to be read "
                "again from the log"
            )
            continue
        findings.looked["micro-batches"] = findings.looked.get("micro-batches", 0) + 1
        for segment in _segments_of(batch, table):
            if segment.parked:
                findings.stop(
                    f"micro-batch {batch.micro_batch} has sent parked rows of the table again, "
                    "which the log does not show a second time"
                )
                continue
            try:
                changes, parked = _read(flow, batch, segment, versions, key, limits)
                findings.changes += changes
                findings.parked += parked
            except RowferryError as err:
                findings.stop(f"the log cannot be read again: [{err.code}] {err.words}")
                return
            except KeyError:
                findings.stop(
                    f"micro-batch {batch.micro_batch} is from before a schema change, and cannot "
                    "be read again"
                )


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
) -> tuple[list[LoggedChange], int]:
    """Return the row's changes that a segment has delivered, and how many it has parked."""
    tables: dict[TableSlice, TableSchema] = {
        one: versions[one.table_id, one.version] for one in segment.slices
    }
    keys = {one.table_id: one.keys for one in batch.parked}
    changes: list[DeliveredChange] = []
    parked = 0
    for captured in flow.capture.read(segment, tables):
        if captured.table.table_id != key.table.table_id or captured.table.id != key.table.id:
            continue
        for rows in flow.decide.rows(captured):
            order = (batch.micro_batch, segment.ordinal, len(changes) + parked)
            here = [*matching(rows, key, limits, lambda n: {}, "", order)]
            if here and (some := keys.get(rows.table.table_id)):
                sent = rows.take(np.flatnonzero(~waiting(rows, some)))
                left = [*matching(sent, key, limits, lambda n: {}, "", order)]
                parked += len(here) - len(left)
                here = left
            changes += here
    places: dict[int, dict[str, str]] = {}
    if changes and isinstance(flow.capture, FindsTransactions):
        places = flow.capture.transaction_places(segment, {c.commit_ts for c in changes})
    return [LoggedChange(c, batch, segment, places.get(c.commit_ts, {})) for c in changes], parked
