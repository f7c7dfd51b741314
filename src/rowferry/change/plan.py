"""What one micro-batch will do, written down before anything runs.

A `Stretch` is the source's part: which segments to read and what follows them. A `Plan` adds the
micro-batch's number, the clock reading that encoders use, and the outputs that the sink assigned.
Everything here has a JSON form, because the plan is stored as pending in the meta database and a
restart runs exactly what was stored.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Protocol
from zlib import crc32

from rowferry.change.chunk import SchemaChange
from rowferry.change.json_form import FormRules, JsonForm, ListForm
from rowferry.change.position import RangeProgress
from rowferry.change.quarantine import PlanQuarantine
from rowferry.change.table import TableId


@dataclass(frozen=True, slots=True)
class TableSlice(ListForm):
    """The rows of one table version (and one table partition) inside a segment."""

    FORM = FormRules(spread=("table",))

    table: TableId
    table_id: int
    version: int
    physical_id: int | None = None


class Again(Enum):
    """What reading a segment a second time gives."""

    SAME = "same"  # the same rows
    EQUIVALENT = "as-good"  # rows of a later moment, which fit the plan as well
    NEVER = "never"  # rows that do not fit the plan any more: it must be made anew


class NearBytes(Protocol):
    """A part of what a segment reads, in the memory of this machine."""

    @property
    def nbytes(self) -> int:
        """How long it is."""
        ...

    @property
    def travels(self) -> bool:
        """Whether it goes along to another machine; else only processes of this one find it."""
        ...


@dataclass(frozen=True, slots=True)
class Segment(JsonForm):
    """One stretch of the log (or one part of a snapshot) that one task reads.

    Attributes:
        ordinal: place in the order of the micro-batch, from 0.
        read: where to read; only the source that planned it understands it.
        slices: every table version × partition that can occur in it.
        first_commit_ts, last_commit_ts: bounds of the rows in it; both fall on one commit date.
        log_bytes: size of what is read, as far as the planner knows.
        snapshot: rows are the table's initial content, not changes.
        payload: the bytes themselves, where they are nowhere else, and in plans of old versions.
        again: what a second read gives.
        share: of a snapshot, how much of its table it is, in the source's unit.
        reread: readers may have these rows: a part of a table is read again beside the log.
        where: only rows for which this expression is true are meant; empty: all.
        beside: a small part that is read between two stretches of the log, which others wait for.
        parked: rows that were parked are sent again; `payload` has them while the plan runs.
        upkeep: no rows are moved, but a part of the target is kept in shape: `read` is the sink's.
        near: where a process of this machine finds what is read without asking the source; no part
            of the plan, which is the same without it. Only the source understands it.
    """

    FORM = FormRules(
        brief=True,
        kept=("log_bytes", "snapshot", "payload", "again"),
        late=("log_bytes", "snapshot", "again"),
        unstored=("near",),
    )

    ordinal: int
    read: dict[str, Any]
    slices: tuple[TableSlice, ...]
    first_commit_ts: int
    last_commit_ts: int
    log_bytes: int = 0
    snapshot: bool = False
    payload: bytes = b""
    again: Again = Again.SAME
    share: int = 0
    reread: bool = False
    where: str = ""
    beside: bool = False
    parked: bool = False
    upkeep: bool = False
    near: tuple[NearBytes, ...] = field(default=(), compare=False, repr=False)

    @property
    def bytes_here(self) -> int:
        """How much there is to read without asking the source; 0: that is asked for all."""
        return len(self.payload) or sum(piece.nbytes for piece in self.near)

    @property
    def near_anywhere(self) -> tuple[NearBytes, ...]:
        """What of `near` serves a process of another machine: all of it, or nothing."""
        return self.near if all(piece.travels for piece in self.near) else ()


@dataclass(frozen=True, slots=True)
class Stretch(JsonForm):
    """The source's answer to "what comes next".

    Attributes:
        segments: what to read; may be empty (only schema changes, or only time has passed).
        schema_changes: DDLs that follow the rows, in order, with no captured row between them.
        position: the source's own state after this stretch (JSON), stored as it is.
        ranges: progress rows that change with this stretch.
        gone_ranges: range ids whose progress rows end with it.
        watermark: the resolved commit-ts after it; None: it does not move.
        caught_up: nothing more was in the source when this was planned.
        finished: nothing will follow: what was asked for is complete.
        follows: all that the source had sent was taken, and it had hardly more: what comes next is
            new. No part of what is stored.
    """

    FORM = FormRules(late=("finished",), unstored=("follows",))

    segments: tuple[Segment, ...]
    schema_changes: tuple[SchemaChange, ...]
    position: dict[str, Any]
    ranges: tuple[RangeProgress, ...] = ()
    gone_ranges: tuple[int, ...] = ()
    watermark: int | None = None
    caught_up: bool = False
    finished: bool = False
    follows: bool = field(default=False, compare=False)


@dataclass(frozen=True, slots=True)
class Output(ListForm):
    """What a sink assigned to one slice of one segment, e.g. a file's directory and number."""

    segment: int
    slice: int
    target: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Topic(JsonForm):
    """What a queue's sink assigns to a slice: where its rows go, and what fits there.

    Attributes:
        partitions: how many of the topic's partitions are in use, from 0; more may exist.
        max_message_bytes: the largest message that the queue takes.
        exact: a replay gives the same messages; a snapshot that is read again need not.
        last_segment: of those that share transactions with the slice's own; None: it shares none.
        lineage: the name under which a queue knows repeats, the same each time that the plan is
            carried out; "": it does not look for any.
        whole: the topic is one piece: its one partition has no name of its own.
        lanes: partitions of one lane, as `lane_of` has it, go through one task; 0: each has its
            own way.
        batch_bytes: what every topic of the plan takes at once; 0: nobody asks.
        attempt: another one for each run, and where a plan was taken back: what was made before may
            never have arrived; "": the codec does not ask.
    """

    FORM = FormRules(
        order=("name", "partitions", "max_message_bytes", "last_segment"),
        brief=True,
        keys={"name": "topic", "max_message_bytes": "limit"},
    )

    name: str
    partitions: int
    max_message_bytes: int
    exact: bool = True
    last_segment: int | None = None
    lineage: str = ""
    whole: bool = False
    lanes: int = 0
    batch_bytes: int = 0
    attempt: str = ""

    def lane_of(self, partition: int) -> int:
        """Return a number that decides which task sends to a partition."""
        place = crc32(self.name.encode()) + partition
        return place % self.lanes if self.lanes else place


@dataclass(frozen=True, slots=True)
class RedoStep:
    """Half of carrying out a plan by way of the redo log.

    Attributes:
        directory: of the try in the redo log.
        keeps: segments are read and kept there; else what was kept is written downstream.
    """

    directory: str
    keeps: bool


@dataclass(frozen=True, slots=True)
class Plan(JsonForm):
    """One micro-batch, complete: what `pending` holds in the meta database.

    Attributes:
        micro_batch: our own number, from 1, without gaps.
        spec_version: the version of the changefeed's settings that it runs with.
        planned_at_ms: the only clock reading that encoders may use.
        outputs: what the sink assigned, for every slice of every segment.
        sink_state: the sink's own state after this micro-batch (JSON), stored when published.
        quarantine: whose rows are parked instead of sent, or sent again; None: nobody's.
        epoch: of whoever carries it out now; not stored.
        redo: which half is carried out now, where there is a redo log; not stored.
    """

    FORM = FormRules(brief=True, kept=("outputs", "sink_state"), unstored=("epoch", "redo"))

    micro_batch: int
    spec_version: int
    planned_at_ms: int
    stretch: Stretch
    outputs: tuple[Output, ...] = ()
    sink_state: dict[str, Any] | None = None
    quarantine: PlanQuarantine | None = None
    epoch: int = 0
    redo: RedoStep | None = None

    def outputs_of(self, segment: int) -> tuple[Output, ...]:
        """Return the outputs of one segment, by slice."""
        return tuple(o for o in self.outputs if o.segment == segment)

    def with_(self, **changes: Any) -> Plan:
        """Return a copy with some fields changed."""
        return replace(self, **changes)


@dataclass(frozen=True, slots=True)
class Volume:
    """Row changes, and their size as columns in memory."""

    rows: int = 0
    bytes: int = 0

    def plus(self, rows: int, size: int) -> Volume:
        """Return it with some more."""
        return Volume(self.rows + rows, self.bytes + size)


@dataclass(frozen=True, slots=True)
class Receipt:
    """What one task reports for one output: the only thing that crosses from task to driver."""

    segment: int
    slice: int
    rows: int
    bytes: int
    source_bytes: int = 0
    note: dict[str, Any] | None = None  # the sink's own words, e.g. "the file was already there"
    source_facts: dict[str, Any] | None = (
        None  # the source's own words, e.g. where a snapshot stands
    )
    captured: Volume = Volume()  # of the whole segment, in one of its receipts
    decided: Volume = Volume()  # what was left of that when filters and row policy had decided
    last_ts: int = 0  # the greatest commit-ts of its rows; 0: there are none
    counts: dict[str, int] | None = None  # what happened in the task: see `change.event_counts`
    sample: list[dict[str, Any]] | None = None  # the last changes of a segment: `SampledChange`
    quarantine: dict[str, Any] | None = None  # rows that are parked, keys that were refused

    @property
    def is_of_output(self) -> bool:
        """Whether it is about an output; else only its counts say something."""
        return self.segment >= 0

    @classmethod
    def of_counts(cls, counts: dict[str, int]) -> Receipt:
        """Return one that carries counts alone, of a task that has no output of its own."""
        return cls(-1, -1, 0, 0, counts=counts)

    @classmethod
    def of_quarantine(cls, quarantine: dict[str, Any]) -> Receipt:
        """Return one that carries parked rows, or refused keys, alone."""
        return cls(-1, -1, 0, 0, quarantine=quarantine)
