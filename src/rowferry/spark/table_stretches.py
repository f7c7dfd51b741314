"""One table's changes, planned stretch by stretch for Spark, which keeps the offsets.

An offset holds the source's state behind a stretch, and where the stretch's own segments lie. So a
batch that Spark runs again, in another process, reads exactly what was planned the first time.
Spark writes offsets into checkpoints, logs and reports of progress, where nobody expects rows: an
offset holds places in the log, never the log's bytes.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Self

from rowferry.change.chunk import DdlKind, SchemaChange
from rowferry.change.json_form import JsonForm
from rowferry.change.plan import Again, Segment, Stretch
from rowferry.change.position import RangeProgress, physical_ms
from rowferry.change.table import TableSchema
from rowferry.errors import NoSuchTable, PlanRefused, TableAltered, TableIneligible
from rowferry.flow.capture.contract import Appetite, Planner
from rowferry.spark.table_request import TableRequest

LOG = logging.getLogger(__name__)
SEGMENT_BYTES: Final = 32 << 20
CARRY_BYTES: Final = 100 << 10  # of a stretch's own bytes: tasks get few along, and fetch many
_KEPT_STRETCHES: Final = 2  # whose bytes are kept here: the one that runs, and one behind it
IDLE_S: Final = 60.0  # an offset that stands still would fall behind what the source keeps

_EMPTYING: Final = frozenset(
    {
        DdlKind.TRUNCATE_TABLE,
        DdlKind.TRUNCATE_PARTITION,
        DdlKind.DROP_PARTITION,
        DdlKind.EXCHANGE_PARTITION,
    }
)

Form = dict[str, Any]


@dataclass(frozen=True)
class Offset(JsonForm):
    """A place between two stretches, and the stretch before it.

    Attributes:
        feed: the name under which the source knows this query; empty: it has none yet.
        after: the digest of the offset that the stretch begins at.
        position, ranges, versions: what a planner needs to go on; empty: from the beginning.
        segments: the stretch, without bytes of the log; offsets from before 0.1.0 may have them.
        stop: why the query that reads the stretch must not go on behind it; empty: it may.
    """

    feed: str = ""
    after: str = ""
    position: Form | None = None
    ranges: tuple[RangeProgress, ...] = ()
    versions: tuple[TableSchema, ...] = ()
    segments: tuple[Segment, ...] = ()
    stop: str = ""

    def to_json(self) -> Form:
        """Return the JSON form; `from_json` reads it back."""
        return {} if self.position is None else super().to_json()

    @classmethod
    def from_json(cls, form: Mapping[str, Any]) -> Self:
        """Read what `to_json` wrote."""
        return super().from_json(form) if form else cls()

    def tables_of(self, segment: Segment) -> list[TableSchema]:
        """Return the definitions of a segment's slices, in their order."""
        by_key = {(v.table_id, v.version): v for v in self.versions}
        return [by_key[s.table_id, s.version] for s in segment.slices]


def digest(form: Form) -> str:
    """Return a short text that differs between offsets."""
    text = json.dumps(form, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class Stretches:
    """Plans one table's stretches for one query; not for use from several threads.

    A query has one schema. Where the table gets other columns, the query is stopped behind the
    stretch before that; begun again, it has the new columns. Rows from before an alteration that a
    query with the newest columns still has to read are given in these.
    """

    def __init__(
        self, request: TableRequest, fits: Callable[[TableSchema], bool], once: bool = False
    ) -> None:
        """Open nothing yet.

        Args:
            request: what is wanted.
            fits: whether a version of the table has the columns of the query.
            once: one stretch is planned and no more.
        """
        self._request = request
        self._fits = fits
        self._once = once
        self._appetite = Appetite(
            segment_bytes=lambda table: SEGMENT_BYTES,
            stretch_bytes=request.stretch_bytes,
            partition_label=lambda commit_ts: "",
        )
        self._planner: Planner | None = None
        self._at = ""  # digest of the offset that the planner goes on from
        self._ranges: dict[int, RangeProgress] = {}
        self._versions: dict[tuple[int, int], TableSchema] = {}
        self._position: Form | None = None
        self._answer: tuple[str, Form] | None = None  # digest of a start, and what followed
        self._answered_at = 0.0
        # By the digest of their end: a stretch's segments with the bytes that the planner has read.
        self._read_ahead: dict[str, tuple[Segment, ...]] = {}
        self._stopped_at = ""  # digest of an offset behind which this query must not go on
        self._admitted: set[tuple[int, int]] = set()
        self._bounded = False
        self._target_ms: int | None = None
        self._caught_up = False

    # --- what a query asks -----------------------------------------------------------------------

    def end_when_caught_up(self) -> None:
        """Let nothing follow once all that is in the source by now was planned."""
        self._bounded = True

    def follow(self, start: Form, everything: bool = False) -> Form:
        """Return the offset behind the next stretch; `start` itself: there is nothing new.

        With `everything` the stretch is all that the source holds, whatever its size.

        Raises:
            TableAltered: the table was altered, and this query's columns are not its columns.
        """
        here = digest(start)
        begin = Offset.from_json(start)
        if here == self._stopped_at:
            raise TableAltered(begin.stop)
        if self._answer is not None and self._answer[0] == here:
            return self._answer[1]
        if self._planner is None or self._at != here:
            self._open(begin)
        planned = self._plan(everything, begins=begin.position is None)
        if planned is None:
            return start
        segments, stop = planned
        if not segments and not stop and not self._must_move(begin):
            self._at = here
            return start
        end = self._offset(here, segments, stop).to_json()
        self._at, self._answer, self._answered_at = digest(end), (here, end), time.monotonic()
        self._keep(segments)
        if stop:
            self._stopped_at = self._at
        return end

    def between(self, start: Form, end: Form) -> list[tuple[Segment, list[TableSchema]]]:
        """Return the segments between two offsets of a query, with their tables' definitions.

        Raises:
            PlanRefused: `end` was not planned from `start`.
        """
        if start == end:
            return []
        behind = Offset.from_json(end)
        if behind.after != digest(start):
            raise PlanRefused("the checkpoint's offsets do not follow one another: it was changed")
        if behind.stop:
            self._stopped_at = digest(end)
        self._admit(version for s in behind.segments for version in behind.tables_of(s))
        segments = self._read_ahead.get(digest(end), behind.segments)
        return [(s, behind.tables_of(s)) for s in segments]

    def close(self) -> None:
        """Let connections go; the next use opens them again."""
        if self._planner is not None:
            self._planner.close()
            self._planner = None

    # --- planning --------------------------------------------------------------------------------

    def _open(self, begin: Offset) -> None:
        self.close()
        self._answer = None
        self._position = begin.position
        self._ranges = {r.range_id: r for r in begin.ranges}
        self._versions = {(v.table_id, v.version): v for v in begin.versions}
        self._answered_at = time.monotonic()
        request = self._request
        self._planner = request.source().planner(
            request.decision(), begin.position or {}, begin.ranges, begin.versions
        )

    def _plan(self, everything: bool, begins: bool) -> tuple[list[Segment], str] | None:
        """Return the next segments and why to stop behind them; None: the end is reached."""
        if self._bounded and self._caught_up:
            return None
        if not self._bounded:
            self._target_ms = None
        assert self._planner is not None
        segments: list[Segment] = []
        try:
            while True:
                stretch = self._planner.plan(self._appetite)
                segments += self._take(stretch)
                stop = self._why_stop(stretch)
                self._caught_up = self._is_caught_up(stretch)
                if not stop and self._passes_over(stretch, begins):
                    begins = False
                    continue
                enough = bool(segments) and not everything
                if stop or enough or self._caught_up or not (self._bounded or everything):
                    break
        except BaseException:
            self.close()  # it has moved on past what nobody will record
            raise
        return [replace(s, ordinal=place) for place, s in enumerate(segments)], stop

    def _take(self, stretch: Stretch) -> list[Segment]:
        """Note what a stretch says of the source's state; return the segments that are wanted."""
        assert self._planner is not None
        for words in self._planner.warnings():
            LOG.warning(words)
        self._position = stretch.position
        self._ranges.update({r.range_id: r for r in stretch.ranges})
        for gone in stretch.gone_ranges:
            self._ranges.pop(gone, None)
        for version in self._planner.table_versions():
            self._versions[version.table_id, version.version] = version
        wanted = [s for s in stretch.segments if not (self._request.starts_now and s.snapshot)]
        self._admit(self._versions[x.table_id, x.version] for s in wanted for x in s.slices)
        if not self._once and any(s.again is Again.NEVER for s in wanted):
            raise TableIneligible(
                f"{self._request.table} has no primary key and no unique key of NOT NULL columns, "
                "so a stream cannot begin with its rows; give it a key, or set "
                "startingPosition = now"
            )
        return wanted

    def _passes_over(self, stretch: Stretch, begins: bool) -> bool:
        """Return whether no offset is to lie behind a stretch: a snapshot is under way.

        Either it was only begun, or nothing of it is wanted. Gone on from inside one that nobody
        reads, a source whose snapshot is lost makes another, and leaves out the changes of the log
        that this one holds.
        """
        assert self._planner is not None
        skipped = self._request.starts_now and any(s.snapshot for s in stretch.segments)
        begun = begins and not stretch.segments
        return (skipped or begun) and bool(self._planner.snapshot_shares())

    def _is_caught_up(self, stretch: Stretch) -> bool:
        """Return whether all was planned that was in the source when the planner was opened."""
        assert self._planner is not None
        if stretch.caught_up or stretch.finished:
            return True
        if any(s.again is Again.NEVER for s in stretch.segments):
            return True  # such rows are of one moment, which only their task will know
        lag_ms = self._planner.lag_ms()
        if stretch.watermark is None or lag_ms is None:
            return False
        now_ms = physical_ms(stretch.watermark)
        if self._target_ms is None and lag_ms:
            self._target_ms = now_ms + lag_ms
        return self._target_ms is not None and now_ms >= self._target_ms

    def _must_move(self, begin: Offset) -> bool:
        """Return whether an offset without rows is due: the first one, and then now and then."""
        if begin.position is None:
            return True
        idle = time.monotonic() - self._answered_at > IDLE_S
        return idle and not self._bounded

    def _keep(self, segments: list[Segment]) -> None:
        """Keep the bytes of the stretch that was just planned, if few: its tasks fetch nothing.

        Tasks may be anywhere: memory that only this machine knows is not kept for them.
        """
        kept = tuple(replace(s, near=s.near_anywhere) for s in segments)
        if 0 < sum(s.bytes_here for s in kept) <= CARRY_BYTES:
            self._read_ahead[self._at] = kept
        while len(self._read_ahead) > _KEPT_STRETCHES:
            del self._read_ahead[next(iter(self._read_ahead))]

    def _offset(self, after: str, segments: list[Segment], stop: str) -> Offset:
        used = {(x.table_id, x.version) for s in segments for x in s.slices}
        # The one in force at the position, and one that was met already in what was read ahead.
        newest = sorted(self._versions, key=lambda key: key[1])[-2:]
        versions = [v for key, v in self._versions.items() if key in used or key in newest]
        return Offset(
            feed=self._request.spec.changefeed_id,
            after=after,
            position=self._position,
            ranges=tuple(self._ranges.values()),
            versions=tuple(versions),
            segments=tuple(replace(s, payload=b"", near=()) for s in segments),
            stop=stop,
        )

    # --- alterations -----------------------------------------------------------------------------

    def _admit(self, versions: Iterable[TableSchema]) -> None:
        """Refuse rows of a version that is newer than the query's columns."""
        for version in versions:
            key = (version.table_id, version.version)
            if key not in self._admitted:
                if not self._fits(version) and not self._is_newest():
                    raise TableAltered(self._altered(version.version))
                self._admitted.add(key)

    def _is_newest(self) -> bool:
        """Return whether the query has the columns that the table has now."""
        try:
            return self._fits(self._request.present())
        except NoSuchTable:
            return False

    def _why_stop(self, stretch: Stretch) -> str:
        for change in stretch.schema_changes:
            if words := self._concerns(change):
                return words
        return ""

    def _concerns(self, change: SchemaChange) -> str:
        """Return why a query cannot simply go on behind a schema change; empty: it can."""
        table, at = self._request.table, f"at commit-ts {change.commit_ts}"
        statement = f"({' '.join(change.query.split())[:100]})"
        again = "start the query again with the same checkpoint"
        if change.kind in _EMPTYING:
            return (
                f"{table} lost rows {at} {statement}, which no row of a stream can tell; "
                f"{again}, and it goes on behind that"
            )
        if not change.table.table and change.kind is not DdlKind.DROP_DATABASE:
            return ""  # the database's own settings
        if change.table != table or change.schema is None:
            return (
                f"{table} was dropped or renamed {at} {statement}; once there is a table of that "
                f"name again, {again}"
            )
        if self._fits(change.schema) or self._is_newest():
            return ""
        return self._altered(change.commit_ts, statement)

    def _altered(self, commit_ts: int, statement: str = "") -> str:
        words = f"{self._request.table} was altered at commit-ts {commit_ts} {statement}".rstrip()
        return (
            f"{words}, and this query has the columns of before; start it again with the same "
            "checkpoint, and it goes on with the new ones"
        )


def plan_all(
    request: TableRequest, fits: Callable[[TableSchema], bool]
) -> list[tuple[Segment, list[TableSchema]]]:
    """Return the segments of everything from the beginning until the source has nothing more.

    Raises:
        TableAltered: the table was altered meanwhile.
    """
    stretches = Stretches(request, fits, once=True)
    stretches.end_when_caught_up()
    try:
        start = Offset().to_json()
        end = stretches.follow(start, everything=True)
        if words := Offset.from_json(end).stop:
            raise TableAltered(words)
        return stretches.between(start, end)
    finally:
        stretches.close()
