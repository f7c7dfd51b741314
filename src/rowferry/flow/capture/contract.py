"""What a source promises."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar, Protocol, runtime_checkable

from rowferry.change.chunk import Rows
from rowferry.change.plan import Receipt, Segment, Stretch, TableSlice
from rowferry.change.position import RangeProgress
from rowferry.change.table import TableId, TableSchema
from rowferry.flow.decide.contract import Decision
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.option import OptionTable


@dataclass(frozen=True, slots=True)
class SourceTraits:
    """What other stages may ask about a source."""

    carries_before_image: bool
    has_closed_timestamps: bool
    movable: bool = False  # positions hold at another address too (a replica that was promoted)
    has_places: bool = False  # planners can stand still at a place of the log: see `CanPauseAt`
    omits_columns: bool = False  # row images may lack columns


@dataclass(frozen=True, slots=True)
class Appetite:
    """How the next stretch should be cut.

    Attributes:
        segment_bytes: about this much log per segment for a table (the sink's wish).
        stretch_bytes: about this much log per micro-batch.
        partition_label: returns a text that differs when two commit-ts must not share a segment.
        until_ts: nothing after this commit-ts is planned; None: no end.
        until_place: nothing behind this place of the log is planned, by a source that knows places
            (see `CanPauseAt`); None: no end.
        whole_transactions: no segment may end inside a transaction.
        fewer_slices: each table in a segment costs an output of its own: of many tables, segments
            and stretches should be longer.
    """

    segment_bytes: Callable[[TableId], int]
    stretch_bytes: int
    partition_label: Callable[[int], str]
    until_ts: int | None = None
    whole_transactions: bool = False
    fewer_slices: bool = False
    until_place: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class SnapshotShare:
    """How much of a table's snapshot has been delivered, for the progress line."""

    table: TableId
    done_parts: int
    all_parts: int


def filter_text(spec: ChangefeedSpec) -> str:
    """Return what decides which tables are captured, as text: when it changes, tables may join."""
    words = ("case-sensitive", "force-replicate", "ignore-ineligible-table")
    rules = [spec.section("filter"), {w: spec.section("").get(w) for w in words}]
    return json.dumps(rules, sort_keys=True)


class Planner(Protocol):
    """The driver's half of a source: frames the log and says what comes next.

    Between `plan` calls it may hold connections and caches, never facts that matter: whatever it
    needs after a crash is in the `position` and `ranges` of the stretch that it gave.
    """

    def plan(self, appetite: Appetite) -> Stretch:
        """Return what comes next after the last planned stretch.

        With nothing to deliver the stretch has no segments and no schema changes, but may carry a
        higher watermark. A stretch ends at a transaction border. Deterministic only through being
        recorded: two calls may cut differently.
        """

    def table_versions(self) -> tuple[TableSchema, ...]:
        """Return the table versions that were met for the first time since the last call."""

    def snapshot_shares(self) -> tuple[SnapshotShare, ...]:
        """Return the tables whose snapshot is under way."""

    def warnings(self) -> tuple[str, ...]:
        """Return what an operator should know and has not been told yet, a line each."""

    def lag_ms(self) -> int | None:
        """Return how far the last planned watermark is behind the source's clock, if known."""

    def close(self) -> None:
        """Let connections go."""


@runtime_checkable
class HasNews(Protocol):
    """A planner that hears of changes by itself, so that a quiet source need not be asked."""

    def has_news(self) -> bool:
        """Return whether `plan` would now give more than a higher watermark; costs no I/O.

        False is never wrong for long: what was committed is heard of within a second.
        """


@runtime_checkable
class KnowsRetention(Protocol):
    """A planner that knows for how long its source keeps the log."""

    def retention_ms(self) -> int | None:
        """Return how long the log at the present position is still kept; None: not known."""


@runtime_checkable
class ChecksStart(Protocol):
    """A source whose settings can name the place of its log where a changefeed begins."""

    def check_beginning(self) -> None:
        """Make sure that a changefeed without any progress can begin where its settings say.

        Raises:
            BadOption: there is no such place.
            LogLost: the source has removed the log from there on.
            SourceMismatch: the source's log has not come that far.
        """


@runtime_checkable
class Marking(Protocol):
    """A source that is a database server, and that a sink may be, too."""

    def marked(self, mark: str) -> AbstractContextManager[None]:
        """Hold a lock of this name on the server, for as long as the block lasts; waits for none.

        It stands in nobody's way, and every session of this server, and of no other, can see it.
        """


@runtime_checkable
class Stamping(Protocol):
    """A source whose rows must say themselves when they were written, in the active-active mode."""

    def check_stamps(self, tables: Iterable[TableId]) -> None:
        """Make sure that whatever is written to these tables from now on says so.

        Raises:
            TableNotActiveActive: it does not, or for another cluster than the changefeed's.
        """


class PlannerPosition(Enum):
    """Where a planner stands, as seen from a place of the log."""

    BEFORE = ""
    AT = "at"
    PAST = "past"
    ELSEWHERE = "elsewhere"  # the place is one of another server


@runtime_checkable
class CanPauseAt(Protocol):
    """A planner that can stand still at a place of its log.

    A place is `{"server", "file", "offset", "gtid"}`: the identity of the server that told it, and
    the place between two transactions in that server's words.
    """

    def standing(self, place: Mapping[str, Any]) -> PlannerPosition:
        """Return where all that was planned ends; AT: with every captured row before the place."""


class Source(Protocol):
    """A database whose changes can be read. Built from the spec alone, in tasks too."""

    TABLES: ClassVar[tuple[OptionTable, ...]]
    # The commit-ts is too coarse to say which of two writes was later: triggers stamp rows.
    STAMPED_BY_ROWS: ClassVar[bool]
    notices: tuple[str, ...]  # what the user should know, from the last probe
    unnumbered: tuple[TableId, ...]  # partitioned tables whose rows do not tell their partition
    identity: str  # the source's own name, from the last probe; empty where it has none

    def __init__(self, spec: ChangefeedSpec) -> None: ...

    def traits(self) -> SourceTraits:
        """Return what the source can do, from its settings alone (no I/O)."""

    def probe(self, decision: Decision) -> tuple[TableSchema, ...]:
        """Ask the source whether a changefeed can run; writes nothing.

        Returns the present tables whose names the decision keeps, also those without a usable key.

        Raises an error of RF-1xxx or RF-3xxx with the cure in its words.
        """

    def cluster_id(self) -> int:
        """Return the source's own number, as the last probe saw it; 0 where it has none."""

    def planner(
        self,
        decision: Decision,
        position: dict[str, Any],
        ranges: tuple[RangeProgress, ...],
        versions: tuple[TableSchema, ...],
    ) -> Planner:
        """Open the driver's half after a published state (all empty: from the beginning)."""

    def read(self, segment: Segment, tables: Mapping[TableSlice, TableSchema]) -> Iterator[Rows]:
        """Read one segment, in a task: chunks in log order, equal on every call.

        `seq` of the rows starts at `segment.ordinal << 40`.
        """

    def found(self, segment: Segment) -> dict[str, Any] | None:
        """Return what reading a segment to its end told besides its rows, for `settle`."""

    def settle(self, stretch: Stretch, receipts: Sequence[Receipt]) -> dict[str, Any]:
        """Return the position behind a stretch, once tasks have told what only they could find."""

    def after_discard(self, position: dict[str, Any], stretch: Stretch) -> dict[str, Any]:
        """Return the position from which to plan again, once readers may have seen a stretch.

        The stretch was planned after `position` and is discarded. What it has shown stays with
        readers: where reading it again does not set that right, the next plan must.
        """
