"""What a source promises."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, ClassVar, Protocol, runtime_checkable

import pyarrow as pa

from rowferry.change.chunk import Rows
from rowferry.change.dialect import SourceDialect
from rowferry.change.plan import Receipt, Segment, Stretch, TableSlice
from rowferry.change.position import RangeProgress
from rowferry.change.resnapshot import Resnapshot
from rowferry.change.table import TableId, TableSchema
from rowferry.flow.decide.contract import Decision
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.option import OptionTable
from rowferry.spec.uri_form import UriForm


@dataclass(frozen=True, slots=True)
class SourceTraits:
    """What other stages may ask about a source."""

    carries_before_image: bool
    has_closed_timestamps: bool
    movable: bool = False  # positions hold at another address too (a replica that was promoted)
    omits_columns: bool = False  # row images may lack columns
    snapshot_unit: str = "rows"  # what shares of snapshots are counted in
    rereads: bool = False  # rows can be read again beside the log: see `Rereading`


def no_table(table: TableSchema) -> bool:
    """Return false."""
    return False


@dataclass(frozen=True, slots=True)
class Appetite:
    """How the next stretch should be cut.

    Attributes:
        segment_bytes: about this much log per segment for a table (the sink's wish).
        stretch_bytes: about this much log per micro-batch.
        snapshot_bytes: the same of snapshots, which can be cut anywhere; None: as much.
        partition_label: returns a text that differs when two commit-ts must not share a segment.
        until_ts: nothing after this commit-ts is planned; None: no end.
        until_place: nothing behind this place of the log is planned, by a source that knows places
            (see `CanPauseAt`); None: no end.
        whole_transactions: no segment may end inside a transaction.
        fewer_slices: each table in a segment costs an output of its own: of many tables, segments
            and stretches should be longer.
        by_partition: each partition of a table goes to an output of its own. Else the rows of all
            partitions must come in the order of the log, as rows may move between them.
        hides_key: says of which tables no key of a row may be part of a plan or a position.
        resnapshots: what is to be read again beside the log, by a source that can.
        reread_bytes: about this much of it per micro-batch.
    """

    segment_bytes: Callable[[TableId], int]
    stretch_bytes: int
    partition_label: Callable[[int], str]
    until_ts: int | None = None
    whole_transactions: bool = False
    fewer_slices: bool = False
    by_partition: bool = False
    until_place: Mapping[str, Any] | None = None
    snapshot_bytes: int | None = field(default=None, compare=False)  # changes all the time
    hides_key: Callable[[TableSchema], bool] = no_table
    resnapshots: tuple[Resnapshot, ...] = field(default=(), compare=False)
    reread_bytes: int = field(default=1 << 20, compare=False)


@dataclass(frozen=True, slots=True)
class SnapshotShare:
    """How much of a table's snapshot is done, in the source's unit; both are estimates.

    See `SourceTraits.snapshot_unit` and `Segment.share`.
    """

    table: TableId
    done: int
    total: int


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
        """Return the tables whose snapshots will not have ended with the last planned stretch.

        Each as it will stand then; those that wait for their first part are among them.
        """

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
class Rereading(Protocol):
    """A planner that lets rows be read again beside the log, as `Appetite.resnapshots` asks.

    A part of them is a stretch of its own, whose segments are marked `reread`.
    """

    def ended_resnapshots(self) -> tuple[Resnapshot, ...]:
        """Return those that ended by what was planned, until they are not asked for any more.

        Of each, the id, the outcome, the rows and the words count.
        """


@runtime_checkable
class FindsMissing(Protocol):
    """A source that can say of keys whether it has rows of them."""

    def part_of(self, segment: Segment) -> dict[str, Any]:
        """Return the key range that a segment reads again, as `HoldsRows` of a sink takes it."""

    def missing(self, segment: Segment, table: TableSchema, keys: pa.StructArray) -> pa.StructArray:
        """Return the keys of which there is no row now, where the segment was read.

        They are images of the handle key's columns.
        """


@dataclass(frozen=True, slots=True)
class LogKept:
    """For how long a source keeps its log, which setting says so, and how to make it longer."""

    keep_s: float
    setting: str
    cure: str


@runtime_checkable
class KnowsHealth(Protocol):
    """A source that can be asked about its clock and its log, before there is a changefeed."""

    def health(self) -> tuple[int, LogKept | None]:
        """Return the source's clock in milliseconds, and how long log is kept; None: for ever."""


@dataclass(frozen=True, slots=True)
class ListedTable:
    """A table that could be captured; `rows` is the source's own estimate, None: it has none."""

    name: str
    rows: int | None = None


@runtime_checkable
class ListsTables(Protocol):
    """A source that names its tables without looking at each of them."""

    def databases(self, most: int) -> tuple[str, ...]:
        """Return the names of the databases that the user may see, sorted, at most so many."""

    def tables_of(self, database: str, most: int) -> tuple[ListedTable, ...]:
        """Return the tables of a database that the user may see, sorted, at most so many."""


@runtime_checkable
class HasForm(Protocol):
    """A source that says how people fill in its URI; of others all parts are asked for."""

    FORM: ClassVar[UriForm]


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

    A place is between two transactions, in the source's own form: see `KnowsPlaces`.
    """

    def place_reached(self, place: Mapping[str, Any]) -> PlannerPosition:
        """Return where all that was planned ends; AT: with every captured row before the place."""


@runtime_checkable
class KnowsPlaces(Protocol):
    """A source that can be told a place of its log; its planners are `CanPauseAt`."""

    def check_place(self, place: Mapping[str, Any]) -> None:
        """Raise BadInput unless that is a place in the source's own form."""


@runtime_checkable
class ShowsPosition(Protocol):
    """A source that can say where a position stands; nobody else looks into one.

    The class itself can, too: nothing is asked of the source.
    """

    def shown_position(self, position: Mapping[str, Any]) -> dict[str, str]:
        """Return it for people: in its own words, by their names; empty: at the beginning."""


@runtime_checkable
class KeepsLog(Protocol):
    """A source that keeps log in memory for all changefeeds of the process; its class knows."""

    def kept_log_bytes(self) -> int:
        """Return how much memory that takes now."""


@runtime_checkable
class BeginsAtPosition(Protocol):
    """A source that can begin just where a position stands; the class itself can say so, too.

    A watermark may be above times in the log behind it: a commit-ts alone does not tell the place.
    """

    def start_at(self, position: Mapping[str, Any], commit_ts: int) -> dict[str, str]:
        """Return parameters that say where, beside `start-ts`; empty: it stands elsewhere."""


@runtime_checkable
class BeginsAtPlace(Protocol):
    """A source that can begin at a place that people write; the class itself can say so, too."""

    def start_option(self, place: str) -> str:
        """Return the key of the option that takes a place of such a form."""


@runtime_checkable
class ShowsSegments(Protocol):
    """A source that can say where a segment was read; the class itself can, too."""

    def shown_segment(self, segment: Segment) -> dict[str, str]:
        """Return it for people: in its own words, by their names; empty: not in the log."""


@runtime_checkable
class FindsTransactions(Protocol):
    """A source whose log tells where each transaction begins, as long as it is kept."""

    def transaction_places(
        self, segment: Segment, wanted: Collection[int]
    ) -> dict[int, dict[str, str]]:
        """Return the place of transactions of a segment, by commit-ts; as far as it is known.

        Raises an error of the source where this part of the log is not there any more.
        """


class Source(Protocol):
    """A database whose changes can be read. Built from the spec alone, in tasks too."""

    TABLES: ClassVar[tuple[OptionTable, ...]]
    DIALECT: ClassVar[SourceDialect]  # its words: of names, types and statements
    # The commit-ts is too coarse to say which of two writes was later: triggers stamp rows.
    STAMPED_BY_ROWS: ClassVar[bool]
    # Keys of rows are in its positions, also where `Appetite.hides_key` asks for none.
    KEEPS_KEYS: ClassVar[bool]
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

    def facts_read(self, segment: Segment) -> dict[str, Any] | None:
        """Return what reading a segment to its end told besides its rows, for `settle`."""

    def settle(self, stretch: Stretch, receipts: Sequence[Receipt]) -> dict[str, Any]:
        """Return the position behind a stretch, once tasks have told what only they could find."""

    def after_discard(self, position: dict[str, Any], stretch: Stretch) -> dict[str, Any]:
        """Return the position from which to plan again, once readers may have seen a stretch.

        The stretch was planned after `position` and is discarded. What it has shown stays with
        readers: where reading it again does not set that right, the next plan must.
        """
