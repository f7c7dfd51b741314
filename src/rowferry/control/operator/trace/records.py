"""Which published micro-batch, and which part of the log, a delivered change comes from."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rowferry.change.chunk import Op
from rowferry.change.plan import Output, Segment
from rowferry.change.position import physical_ms
from rowferry.change.published import PublishedBatch
from rowferry.change.table import TableSchema
from rowferry.control.operator.trace.forms import BatchRange
from rowferry.control.operator.trace.log import LoggedChange, is_of
from rowferry.downstream.trace.delivered import DeliveredChange
from rowferry.downstream.trace.files import output_path
from rowferry.flow.capture.contract import ShowsSegments, Source


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a change comes from.

    Attributes:
        batch: the micro-batch, where only one can be it.
        segments: the parts of the log, or of a snapshot, that can have held it, in their order.
        snapshot: it is a row that was there, and no change.
    """

    range: BatchRange
    batch: PublishedBatch | None
    segments: tuple[Segment, ...]
    snapshot: bool


class BatchRecords:
    """What is recorded of the micro-batches of one changefeed, for one table."""

    def __init__(
        self, batches: Sequence[PublishedBatch], table: TableSchema, source: Source
    ) -> None:
        self.batches, self._table = batches, table
        self._source = source if isinstance(source, ShowsSegments) else None
        self._by_path: dict[str, tuple[PublishedBatch, Segment]] = {}
        for batch in batches:
            segments = {s.ordinal: s for s in batch.segments} if batch.whole else {}
            for output in batch.outputs:
                if (path := output_path(output)) and output.segment in segments:
                    self._by_path[path] = (batch, segments[output.segment])

    def segment_of(self, path: str) -> Segment | None:
        """Return the segment whose rows a file holds; None: it is not recorded any more."""
        known = self._by_path.get(path)
        return known[1] if known else None

    def output_of(self, batch: PublishedBatch, segment: Segment) -> Output | None:
        """Return what the sink assigned to the table's rows of a segment; None: not one alone."""
        mine = [
            output
            for output in batch.outputs
            if output.segment == segment.ordinal
            and is_of(segment.slices[output.slice], self._table)
        ]
        return mine[0] if len(mine) == 1 else None

    def partitions_in_use(self, table: TableSchema) -> int:
        """Return how many partitions of the table's topic are written to; 0: not known."""
        for batch in reversed(self.batches):
            segments = {s.ordinal: s for s in batch.segments}
            for output in batch.outputs:
                slices = segments[output.segment].slices if output.segment in segments else ()
                if output.slice < len(slices) and is_of(slices[output.slice], table):
                    return int(output.target.get("partitions", 0))
        return 0

    def origin_of(self, change: DeliveredChange, exact: bool) -> Origin | None:
        """Return where a change comes from; None: that is not known any more.

        `exact`: its commit-ts is the whole one; else its milliseconds are, or it is not known.
        """
        known = self._by_path.get(change.path)
        if known is not None:
            batch, segment = known
            return Origin(batch_range([batch]), batch, (segment,), segment.snapshot)
        if not change.commit_ts:
            return None
        kinds = (False, True) if change.op is Op.INSERT else (False,)
        for snapshot in kinds:
            fitting = [b for b in self.batches if self._fits(b, change.commit_ts, snapshot, exact)]
            if fitting:
                only = fitting[0] if len(fitting) == 1 else None
                segments = tuple(
                    s
                    for batch in fitting
                    for s in batch.segments
                    if not batch.whole or self._holds(s, change.commit_ts, snapshot, exact)
                )
                whole = only if only is not None and only.whole else None
                return Origin(batch_range(fitting), whole, segments, snapshot)
        return None

    def _fits(self, batch: PublishedBatch, stamp: int, snapshot: bool, exact: bool) -> bool:
        if batch.whole:
            return any(self._holds(s, stamp, snapshot, exact) for s in batch.segments)
        if snapshot:
            return any(_within(ts, ts, stamp, exact) for ts in batch.snapshots)
        return bool(batch.first_ts) and _within(batch.first_ts, batch.last_ts, stamp, exact)

    def _holds(self, segment: Segment, stamp: int, snapshot: bool, exact: bool) -> bool:
        bounds = segment.first_commit_ts, segment.last_commit_ts
        same = segment.snapshot == snapshot and _within(*bounds, stamp, exact)
        return same and any(is_of(one, self._table) for one in segment.slices)

    # --- for people ------------------------------------------------------------------------------

    def shown(self, segment: Segment) -> dict[str, str]:
        """Return where a segment was read, in the source's words."""
        return {} if self._source is None else self._source.shown_segment(segment)

    def log_place(self, origin: Origin | None) -> Mapping[str, str]:
        """Return the part of the log that a change was read with, as small as it is known."""
        if origin is None or origin.snapshot or not origin.segments:
            return {}
        first, last = self.shown(origin.segments[0]), self.shown(origin.segments[-1])
        if first == last or not last:
            return first
        other = {} if first.get("file") == last.get("file") else {"to_file": last["file"]}
        return {**first, "to": last["to"], **other}


def batch_range(batches: Sequence[PublishedBatch]) -> BatchRange:
    """Return the numbers of micro-batches, and when the last of them was published."""
    return BatchRange(
        min(b.first_batch for b in batches),
        max(b.micro_batch for b in batches),
        max(b.published_at for b in batches),
    )


def _within(first: int, last: int, stamp: int, exact: bool) -> bool:
    if exact:
        return first <= stamp <= last
    return physical_ms(first) <= physical_ms(stamp) <= physical_ms(last)


def paired(
    changes: Sequence[DeliveredChange],
    origins: Sequence[Origin | None],
    logged: Sequence[LoggedChange],
    exact: bool,
) -> dict[int, LoggedChange]:
    """Return which change of the log each delivered one is, by its place; as far as that is sure.

    Where outputs do not tell the commit-ts, a micro-batch's changes of the row are the same in
    both, in the same order, or nothing is said.
    """
    of_batch: defaultdict[int, list[LoggedChange]] = defaultdict(list)
    for one in sorted(logged, key=lambda o: o.change.order):
        of_batch[one.batch.micro_batch].append(one)
    mine: defaultdict[int, list[int]] = defaultdict(list)
    for place, origin in enumerate(origins):
        if origin is not None and origin.batch is not None:
            mine[origin.batch.micro_batch].append(place)
    pairs: dict[int, LoggedChange] = {}
    for number, places in mine.items():
        there = of_batch[number]
        if exact:
            by_kind: dict[tuple[int, Op], LoggedChange] = {}
            for one in there:
                by_kind.setdefault((one.change.commit_ts, one.change.op), one)
            for place in places:
                pair = by_kind.get((changes[place].commit_ts, changes[place].op))
                if pair is not None:
                    pairs[place] = pair
            continue
        places.sort(key=lambda p: (changes[p].commit_ts, changes[p].order))
        if len(places) == len(there) and all(map(_alike, (changes[p] for p in places), there)):
            pairs |= dict(zip(places, there, strict=True))
    return pairs


def _alike(change: DeliveredChange, logged: LoggedChange) -> bool:
    """Return whether both can be the same, by what the output tells."""
    stamp = change.commit_ts
    same_time = not stamp or physical_ms(stamp) == physical_ms(logged.change.commit_ts)
    return same_time and change.op is logged.change.op
