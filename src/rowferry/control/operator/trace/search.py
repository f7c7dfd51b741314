"""Every change of one row that a changefeed delivered: found in its output, joined with records."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple, cast

from rowferry.change.chunk import Op
from rowferry.change.published import PublishedBatch
from rowferry.change.table import TableSchema
from rowferry.control.operator.resnapshots import captured_schema
from rowferry.control.operator.trace.forms import Trace, TracedChange, TraceRequest
from rowferry.control.operator.trace.log import (
    LogFindings,
    LoggedChange,
    Versions,
    changes_in_log,
    is_of,
)
from rowferry.control.operator.trace.records import BatchRecords, batch_range, paired
from rowferry.control.store.contract import FeedRecord, MetaStore
from rowferry.downstream.consume.consumer import is_queue
from rowferry.downstream.consume.storage import is_storage
from rowferry.downstream.trace.delivered import DeliveredChange, OutputFindings, TraceLimits
from rowferry.downstream.trace.files import changes_in_files
from rowferry.downstream.trace.row_key import RowKey
from rowferry.errors import BadTrace
from rowferry.flow.assemble import Flow, assemble
from rowferry.flow.encode.contract import Codec, CommitTime
from rowferry.flow.sink.contract import TellsCommits
from rowferry.secrets.sources import SecretSources
from rowferry.spec.changefeed import ChangefeedSpec

_MOST_LOGGED: Final = 100_000  # changes of one row in micro-batches that are read again
_FROM_LOG: Final = "these are changes that were read from the log to be delivered there"


class SearchResult(NamedTuple):
    """Changes in any order, whether these are all, notes, and how much was looked at."""

    placed: list[_Placed]
    complete: bool
    notes: list[str]
    looked: dict[str, int]


def trace(
    store: MetaStore, feed: FeedRecord, request: TraceRequest, secrets: SecretSources
) -> Trace:
    """Return the changes of a row with its values; who may not see these gets them taken out.

    Raises:
        NoSuchTable: the changefeed does not capture it.
        BadTrace: the key or a limit cannot be, or the sink keeps nothing.
        SinkError: the output cannot be read.
    """
    began = time.monotonic()
    since, until = request.bounds()
    limits = TraceLimits(since, until, request.limit, began + request.seconds)
    spec = secrets.resolved(feed.spec)
    flow = assemble(spec)
    with flow.hiding.in_errors():
        try:
            if not flow.sink.TRAITS.keeps_rows:
                raise BadTrace(
                    f"changefeed {feed.id} writes to {spec.sink.scheme}://, which keeps nothing: "
                    "no row of it went anywhere; trace a changefeed with another sink"
                )
            schema = captured_schema(store, feed, request.table)
            key = RowKey.read(flow.decide.seen_as(schema), request.key)
            records = BatchRecords(store.published_batches(feed.id), schema, flow.capture)
            versions = {(v.table_id, v.version): v for v in store.state(feed.id).versions}
            search = _Search(flow, spec, schema, key, limits, records, versions)
            changes, complete, notes, looked = search.run(request.log)
        finally:
            flow.sink.close()
    newest = sorted(changes, key=_age)[-request.limit :]
    if len(changes) > len(newest):
        complete = False
        notes = [*notes, f"{len(changes) - len(newest)} older changes are not shown: --limit"]
    return Trace(
        feed.id,
        str(schema.id),
        key.shown(),
        tuple(one.traced for one in newest),
        complete,
        tuple(flow.hiding.hide(line) for line in notes),
        looked,
        time.monotonic() - began,
        values=True,
    )


def without_values(trace: Trace) -> Trace:
    """Return a trace for those who may see places, and no values."""
    bare = (replace(one, before=None, after=None) for one in trace.changes)
    return replace(trace, changes=tuple(bare), values=False)


@dataclass(frozen=True, slots=True)
class _Placed:
    """A change with its place among others.

    Attributes:
        least_ts: not before this commit-ts, where its own is not known.
    """

    traced: TracedChange
    order: tuple[int, ...]
    least_ts: int = 0


def _age(one: _Placed) -> tuple[int, tuple[int, ...]]:
    return (one.traced.commit_ts or one.least_ts, one.order)


def _least_ts(changes: Sequence[DeliveredChange]) -> list[int]:
    """Return for each change the highest commit-ts that lies before it in the same output."""
    least = [0] * len(changes)
    highest: dict[str, int] = {}
    for place in sorted(range(len(changes)), key=lambda p: changes[p].order):
        one = changes[place]
        least[place] = highest[one.output] = max(highest.get(one.output, 0), one.commit_ts)
    return least


class _Search:
    """One trace: the output, the records of published micro-batches, and the log."""

    def __init__(
        self,
        flow: Flow,
        spec: ChangefeedSpec,
        schema: TableSchema,
        key: RowKey,
        limits: TraceLimits,
        records: BatchRecords,
        versions: Versions,
    ) -> None:
        self._flow, self._spec, self._schema = flow, spec, schema
        self._key, self._limits, self._versions = key, limits, versions
        self._records = records

    def run(self, log: bool) -> SearchResult:
        """Look in the output, or in the log where that cannot be read."""
        scheme = self._spec.sink.scheme
        if is_storage(scheme):
            findings = changes_in_files(
                self._spec, self._flow.format, self._key, self._limits, self._is_out_of_bounds
            )
            return self._joined(findings, log)
        if is_queue(scheme):
            # Imported here: its library comes with an extra, which others need not have.
            from rowferry.downstream.trace.topics import changes_in_topics

            findings = changes_in_topics(
                self._spec,
                cast(Codec, self._flow.format),
                self._flow.sink.TRAITS,
                self._key,
                self._limits,
                self._records.partitions_in_use(self._schema),
            )
            return self._joined(findings, log)
        return self._from_log()

    def _is_out_of_bounds(self, path: str) -> bool:
        """Return whether a file holds nothing between the bounds, as far as that is recorded."""
        segment = self._records.segment_of(path)
        if segment is None:
            return False
        over = self._limits.until and segment.first_commit_ts > self._limits.until
        return bool(over) or segment.last_commit_ts < self._limits.since

    def _joined(self, findings: OutputFindings, log: bool) -> SearchResult:
        commit_time = getattr(self._flow.format, "commit_time", CommitTime("exact"))
        exact = commit_time.exactness == "exact"
        origins = [self._records.origin_of(one, exact) for one in findings.changes]
        logged = LogFindings()
        if log:
            wanted = {o.batch.micro_batch: o.batch for o in origins if o and o.batch}
            logged = self._read_log(tuple(wanted.values()), most=_MOST_LOGGED)
        pairs = paired(findings.changes, origins, logged.changes, exact)
        placed, least = [], _least_ts(findings.changes)
        for place, (one, origin) in enumerate(zip(findings.changes, origins, strict=True)):
            pair = pairs.get(place)
            traced = TracedChange(
                "snapshot" if origin and origin.snapshot else one.op.name.lower(),
                pair.change.commit_ts if pair else one.commit_ts,
                exact or pair is not None,
                origin.range if origin else None,
                pair.place if pair and pair.place else self._records.log_place(origin),
                one.place,
                one.key_only,
                one.before,
                one.after,
            )
            placed.append(_Placed(traced, one.order, least[place]))
        notes = [*findings.notes, *logged.notes]
        untold = sum(not one.traced.commit_ts for one in placed)
        if untold and commit_time.exactness != "none":
            notes.append(f"{untold} changes are messages that carry no commit-ts, such as deletes")
        if commit_time.exactness == "none" and findings.changes and not logged.changes:
            cure = "; --log looks them up" if any(o and o.batch for o in origins) else ""
            notes.append(f"commit-ts are not known: {commit_time.why}{cure}")
        looked = {**findings.looked, **logged.looked}
        return SearchResult(placed, findings.complete, notes, looked)

    def _from_log(self) -> SearchResult:
        """Read the log again: what was delivered cannot be read back."""
        findings = self._read_log(self._records.batches, self._limits.limit)
        if not self._records.batches:
            findings.stop("no micro-batch of this changefeed is recorded")
        commits = self._commits(findings)
        placed = [
            _Placed(
                TracedChange(
                    one.change.op.name.lower(),
                    one.change.commit_ts,
                    True,
                    batch_range([one.batch]),
                    one.place or self._records.shown(one.segment),
                    self._place(one, commits),
                    one.change.key_only,
                    one.change.before,
                    one.change.after,
                ),
                one.change.order,
            )
            for one in findings.changes
        ]
        notes = [f"a {self._spec.sink.scheme} sink cannot be read back: {_FROM_LOG}"]
        there, why = self._in_snapshot(findings)
        placed += [_Placed(there, ())] if there is not None else []
        notes += [*findings.notes, *([why] if why else [])]
        return SearchResult(placed, findings.complete, notes, findings.looked)

    def _in_snapshot(self, findings: LogFindings) -> tuple[TracedChange | None, str]:
        """Return the row as the table's first snapshot delivered it, or why that is not known.

        What was there when the table was read is what the row was before its first change since.
        """
        parts = [
            (batch, segment.first_commit_ts)
            for batch in self._records.batches
            for segment in batch.segments
            if segment.snapshot and any(is_of(one, self._schema) for one in segment.slices)
        ]
        if not parts or not findings.complete or findings.parked:
            return None, ""
        stamp = min(ts for _, ts in parts)
        batches = [batch for batch, ts in parts if ts == stamp]
        span = batch_range(batches)
        if not self._limits.holds(stamp):
            return None, ""
        if not findings.changes:
            return None, (
                f"the table was read at commit-ts {stamp}, by micro-batches {span.first} to "
                f"{span.last}: a row that was there, and did not change since, is not in the log"
            )
        first = min(findings.changes, key=lambda one: (one.change.commit_ts, one.change.order))
        if first.change.op is Op.INSERT:
            return None, ""
        place: dict[str, str] = {"target": f"{self._spec.sink.scheme}://{self._spec.sink.address}"}
        if self._flow.sink.TRAITS.writes_tables or isinstance(self._flow.sink, TellsCommits):
            place = {"table": str(self._key.table.written_as)}
        if isinstance(self._flow.sink, TellsCommits) and span.first == span.last:
            commits = self._flow.sink.commits_of(self._key.table, {span.last})
            place |= commits.get(span.last, {})
        change = first.change
        there = TracedChange(
            "snapshot", stamp, True, span, {}, place, change.key_only, None, change.before
        )
        return there, ""

    def _read_log(self, batches: Sequence[PublishedBatch], most: int) -> LogFindings:
        return changes_in_log(
            self._flow,
            batches,
            self._versions,
            self._schema,
            self._key,
            replace(self._limits, limit=most),
        )

    def _commits(self, findings: LogFindings) -> dict[int, dict[str, str]]:
        """Return which commits of the target hold the micro-batches of changes, where it tells."""
        sink = self._flow.sink
        if not isinstance(sink, TellsCommits) or not findings.changes:
            return {}
        return sink.commits_of(self._key.table, {o.batch.micro_batch for o in findings.changes})

    def _place(self, one: LoggedChange, commits: dict[int, dict[str, str]]) -> dict[str, str]:
        """Return where a change went, as far as the sink's kind tells it."""
        sink, table = self._flow.sink, str(self._key.table.written_as)
        if isinstance(sink, TellsCommits):
            output = self._records.output_of(one.batch, one.segment)
            file = {} if output is None else {"file": sink.file_of(output)}
            return {"table": table, **commits.get(one.batch.micro_batch, {}), **file}
        if sink.TRAITS.writes_tables:
            return {"table": table}
        return {"target": f"{self._spec.sink.scheme}://{self._spec.sink.address}"}
