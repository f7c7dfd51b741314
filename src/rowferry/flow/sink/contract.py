"""What a sink promises: probe asks the world, write makes durable, publish makes visible."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Protocol, runtime_checkable

import pyarrow as pa

from rowferry.change.chunk import Rows
from rowferry.change.plan import Output, Plan, Receipt, Segment, Stretch, TableSlice, Topic
from rowferry.change.quarantine import RefusedRows
from rowferry.change.table import TableId, TableSchema
from rowferry.flow.dispatch.contract import Dispatch
from rowferry.flow.encode.contract import Encoded
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.option import OptionTable
from rowferry.spec.sink_traits import SinkTraits as SinkTraits

# How to go on where something is gone to which a changefeed has delivered.
RESTORE: Final = (
    "restore it as it was and resume, or begin anew: rowferry changefeed reset --snapshot"
)


@dataclass(frozen=True, slots=True)
class Owner:
    """Who writes: the changefeed, its fencing epoch, and what the target must have.

    Attributes:
        delivered: the target has confirmed everything up to this commit-ts; 0: nothing is known.
        micro_batch: the number of the last one that the target has confirmed; 0: none.
        continues: whether it has confirmed any since the changefeed began, or was reset.
        captured: where it continues, the tables that are captured as far as it was delivered, as
            the target names them; others may be gone from there.
        newest: the number of the last micro-batch that the target can have; None: it is not known.
        made_ms: when the changefeed was made; tells it from others of its name, of other meta
            databases as well; 0: it is not known.
    """

    changefeed: str
    epoch: int
    delivered: int = 0
    micro_batch: int = 0
    continues: bool = False
    captured: frozenset[TableId] = frozenset()
    newest: int | None = None
    made_ms: int = 0


class Sink(Protocol):
    """A target. Built from the spec alone, so that tasks can build it too.

    It has one of three shapes. A `SegmentSink` writes each segment on its own, as bytes that a
    codec made. A `RowSink` does the same with the rows themselves. A `LaneSink` (`needs_shuffle`)
    gets its rows encoded, and brought together by lane first. `defaults` has what a simple sink
    does not care about.
    """

    TRAITS: ClassVar[SinkTraits]
    TABLES: ClassVar[tuple[OptionTable, ...]]

    def __init__(self, spec: ChangefeedSpec, codec: Any) -> None:
        """Build it; `codec` is the protocol's `Codec`, or its `RowFormat` for a sink of rows."""

    @property
    def dispatch(self) -> Dispatch:
        """What says where each row goes in this sink."""

    @property
    def flush_interval_s(self) -> float:
        """How long a quiet feed may gather changes before it writes them."""

    def probe(self, owner: Owner) -> None:
        """Ask the world whether this changefeed may write here; writes nothing.

        Raises SinkUnwritable, SinkOwned, SinkDamaged or SinkUnavailable.
        """

    def check_tables(self, tables: Sequence[TableSchema]) -> None:
        """Judge the captured tables when a changefeed is created.

        Raises:
            BadInput: one of them cannot go here; the text names it.
        """

    def open(self, owner: Owner, state: dict[str, Any] | None) -> None:
        """Claim the target for this owner (driver, once per run), before the first allocate.

        `state` is the `sink_state` of the last published plan. A new owner's claim makes every
        write of an older epoch that would change published content fail with Fenced. What must be
        there by what the owner or the state tells, and is not, is never made anew: it raises
        TargetLost or TargetWentBack, here or when the first plan is made.
        """

    @property
    def whole_transactions(self) -> bool:
        """Whether no segment may end inside a transaction."""

    @property
    def separates_partitions(self) -> bool:
        """Whether a table partition's rows go to a place of their own."""

    def segment_bytes(self, table: TableId) -> int:
        """Return how much log one segment of this table should hold."""

    def partition_label(self, commit_ts: int) -> str:
        """Return a text that differs where two commit-ts must not share a segment."""

    def allocate(
        self, stretch: Stretch, tables: Mapping[TableSlice, TableSchema]
    ) -> tuple[tuple[Output, ...], dict[str, Any] | None]:
        """Assign an output to every slice of every segment (driver); no change becomes visible.

        Returns the outputs and the sink's state once the plan is published; None: it is as before.
        What must be there from then on stands in it under the key `delivered`, which a reset to a
        new snapshot empties. Called again after a discard it may assign the same outputs.
        """

    def publish(
        self, plan: Plan, receipts: Sequence[Receipt], tables: Mapping[TableSlice, TableSchema]
    ) -> None:
        """Make the plan's work visible: rows, then its schema changes in order, then the watermark.

        On return: all of it is durable and visible. On raise: nothing is promised; the loop calls
        again with the same plan. On repeat: nothing becomes visible twice.
        """

    def discard(self, plan: Plan) -> bool:
        """Remove what tasks of a recorded but unpublished plan may have written.

        Returns whether readers may have seen something of it. On repeat: the same.
        """

    def close(self) -> None:
        """Let connections go."""


@runtime_checkable
class HasAdvice(Protocol):
    """A sink or codec that gives some tables less than it promises; the user should hear of it."""

    def advice(self, tables: Sequence[TableSchema]) -> list[str]:
        """Return what there is to know about these tables and what to do, a line each; pure."""


@runtime_checkable
class HoldsRows(Protocol):
    """A sink whose target holds the tables themselves, and can be asked for its rows.

    Where rows are read again, those go that only the target has.
    """

    def held_rows(
        self, table: TableSchema, part: Mapping[str, Any], columns: Sequence[str]
    ) -> Iterator[pa.StructArray]:
        """Yield these columns of the rows in a key range, in a task.

        `table` is as readers see it, `part` the range as the source names it (`part_of`).
        """


@runtime_checkable
class MarkReading(Protocol):
    """A sink that is a database server, and that a source may be, too."""

    def sees(self, mark: str) -> bool:
        """Return whether a session of this server holds a lock of this name."""

    def folds_names(self) -> bool:
        """Return whether the server takes names of tables that differ in case for one."""


@runtime_checkable
class NamesRefused(Protocol):
    """A sink that can tell which rows its target refuses, and go on with the others.

    Attributes:
        refused: where to note them while it is open; else the first one is raised. Whoever gets
            the notes carries the plan out again without those rows: all that a row stood in the
            way of is repeated.
    """

    refused: RefusedRows


@runtime_checkable
class Remembering(Protocol):
    """A sink that knows how far a plan came that is carried out again."""

    def has_rows_of(self, plan: Plan) -> bool:
        """Return whether all rows of a plan are there, and what follows them was begun.

        Then they must not be written again: a schema change behind them may have been run, and
        they have no place any more, or would come back.
        """


@runtime_checkable
class KeepsChanges(Protocol):
    """A sink whose schema changes stay made where their plan was given up before its end."""

    def has_changes_of(self, plan: Plan) -> bool:
        """Return whether a plan that was given up in this one's place has made its first change.

        Then its rows were written, too, and must not be once more: see `Remembering`.
        """


@runtime_checkable
class Leaving(Protocol):
    """A sink in which others wait for a changefeed, and must know when it is removed."""

    def leave(self) -> None:
        """Take away what others wait by; what was delivered stays. On repeat: nothing.

        Raises:
            SinkError: it cannot be done now.
        """


@runtime_checkable
class TellsCommits(Protocol):
    """A sink whose target keeps a history of its tables: which commit holds which micro-batch."""

    def commits_of(
        self, table: TableSchema, micro_batches: Collection[int]
    ) -> dict[int, dict[str, str]]:
        """Return the commits of a table as readers see it, by micro-batch, in the target's words.

        Of a micro-batch that the history does not hold any more there is nothing.
        """

    def file_of(self, output: Output) -> str:
        """Return the data file that was assigned to an output, as users know it."""


@dataclass(frozen=True, slots=True)
class TableStatus:
    """What one table of a target is made of.

    Attributes:
        directory: where the table is in the target.
        table: its name as readers of the target see it.
        version: how many commits it has had.
        rows: without those that were deleted.
        deleted: rows that lie in files and count no more.
        checkpoint_ts: up to where it has all changes, as its last commit tells; 0: unknown.
    """

    directory: str
    table: str
    changefeed: str
    mode: str
    version: int
    files: int
    rows: int
    deleted: int
    bytes: int
    checkpoint_ts: int = 0


@dataclass(frozen=True, slots=True)
class UpkeepPiece:
    """A bounded part of the upkeep of one table; `work` is JSON that only the sink understands.

    Attributes:
        bytes: how much of the target it reads.
    """

    work: dict[str, Any]
    bytes: int


@runtime_checkable
class HasUpkeep(Protocol):
    """A sink whose target needs looking after: its owner does it between two micro-batches.

    Nothing of it changes what readers see. Whatever is left undone, also by a crash, is found due
    again; what was written and not committed harms nobody.
    """

    def due_upkeep(self, most: int) -> tuple[UpkeepPiece, ...]:
        """Return what is due now, at most so many pieces, whose files nobody else writes (driver).

        What is small is done here and now.
        """

    def do_upkeep(self, work: dict[str, Any]) -> dict[str, Any]:
        """Carry out a piece, in a task; return what its commit is told, as JSON. Idempotent."""

    def commit_upkeep(self, done: Sequence[tuple[UpkeepPiece, dict[str, Any]]]) -> int:
        """Put what tasks made in the place of what was there (driver); return how many files went.

        A piece of which something was changed meanwhile is left out.

        Raises:
            Fenced: another owner has claimed the target.
        """

    def table_statuses(self) -> tuple[TableStatus, ...]:
        """Return what the tables are made of, from what the owner has at hand (driver)."""


class SegmentSink(Sink, Protocol):
    """A sink whose outputs belong to one segment each, so that tasks need not know each other."""

    def write(
        self, segment: Segment, outputs: Sequence[Output], frames: Iterator[tuple[int, Encoded]]
    ) -> Iterator[Receipt]:
        """Write the frames of one segment durably, in a task; `int` is the slice's place.

        Idempotent: run twice, or by two processes at once, it leaves the same. An output without
        frames is still written where the sink needs it (an empty file). Receipts come after all of
        the segment is durable.
        """


class RowSink(Sink, Protocol):
    """A sink that takes the rows themselves, as Arrow columns, where the protocol is of rows."""

    def write_rows(
        self,
        segment: Segment,
        outputs: Sequence[Output],
        tables: Sequence[TableSchema],
        rows: Iterator[tuple[int, Rows]],
    ) -> Iterator[Receipt]:
        """Write the rows of one segment durably, in a task; `int` is the slice's place.

        They are what `decide` has left, in the order of the log within each place. `tables` has the
        table of each place as readers see it, also of those without rows. All that `SegmentSink`
        promises of `write` holds: run twice, or with rows cut into other chunks, it leaves the
        same.
        """


@dataclass(frozen=True, slots=True)
class Packet:
    """Messages of one topic's partition from one segment, in order.

    Attributes:
        segment, number: its place in the order of the micro-batch.
        messages: `keys` and `values`; null keys where the format has none.
        micro_batch: the number of the plan that it belongs to.
        epoch: of whoever carries the plan out now; a replay may have a higher one.
    """

    segment: int
    number: int
    topic: Topic
    partition: int
    messages: Encoded
    micro_batch: int = 0
    epoch: int = 0


class LaneSink(Sink, Protocol):
    """A sink that keeps the order of each topic's partition across all segments."""

    def deliver(self, packets: Iterator[Packet]) -> None:
        """Send packets in the order in which they come, in a task.

        All packets of one topic's partition come to one call, ordered by segment and number. On
        return all of them are durable. On raise some may be; called again with the same packets it
        sends all of them again, in order.
        """
