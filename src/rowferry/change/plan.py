"""What one micro-batch will do, written down before anything runs.

A `Stretch` is the source's part: which segments to read and what follows them. A `Plan` adds the
micro-batch's number, the clock reading that encoders use, and the outputs that the sink assigned.
Everything here has a JSON form, because the plan is stored as pending in the meta database and a
restart runs exactly what was stored.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

from rowferry.change.chunk import SchemaChange
from rowferry.change.position import RangeProgress
from rowferry.change.table import TableId


@dataclass(frozen=True, slots=True)
class TableSlice:
    """The rows of one table version (and one table partition) inside a segment."""

    table: TableId
    table_id: int
    version: int
    physical_id: int | None = None

    def to_json(self) -> list[Any]:
        """Return the JSON form; `from_json` reads it back."""
        return [*self.table, self.table_id, self.version, self.physical_id]

    @classmethod
    def from_json(cls, form: list[Any]) -> TableSlice:
        """Read what `to_json` wrote."""
        return cls(TableId(form[0], form[1]), *form[2:])


class Again(Enum):
    """What reading a segment a second time gives."""

    SAME = "same"  # the same rows
    EQUIVALENT = "as-good"  # rows of a later moment, which fit the plan as well
    NEVER = "never"  # rows that do not fit the plan any more: it must be made anew


@dataclass(frozen=True, slots=True)
class Segment:
    """One stretch of the log (or one part of a snapshot) that one task reads.

    Attributes:
        ordinal: place in the order of the micro-batch, from 0.
        read: where to read; only the source that planned it understands it.
        slices: every table version × partition that can occur in it.
        first_commit_ts, last_commit_ts: bounds of the rows in it; both fall on one commit date.
        log_bytes: size of what is read, as far as the planner knows.
        snapshot: rows are the table's initial content, not changes.
        payload: the bytes themselves, only where they are few.
        again: what a second read gives.
    """

    ordinal: int
    read: dict[str, Any]
    slices: tuple[TableSlice, ...]
    first_commit_ts: int
    last_commit_ts: int
    log_bytes: int = 0
    snapshot: bool = False
    payload: bytes = b""
    again: Again = Again.SAME

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form; `from_json` reads it back."""
        return {
            "ordinal": self.ordinal,
            "read": self.read,
            "slices": [s.to_json() for s in self.slices],
            "first_commit_ts": self.first_commit_ts,
            "last_commit_ts": self.last_commit_ts,
            "log_bytes": self.log_bytes,
            "snapshot": self.snapshot,
            "payload": b64encode(self.payload).decode(),
            "again": self.again.value,
        }

    @classmethod
    def from_json(cls, form: dict[str, Any]) -> Segment:
        """Read what `to_json` wrote."""
        return cls(
            **{
                **form,
                "slices": tuple(TableSlice.from_json(s) for s in form["slices"]),
                "payload": b64decode(form["payload"]),
                "again": Again(form.get("again", "same")),
            }
        )


@dataclass(frozen=True, slots=True)
class Stretch:
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
    """

    segments: tuple[Segment, ...]
    schema_changes: tuple[SchemaChange, ...]
    position: dict[str, Any]
    ranges: tuple[RangeProgress, ...] = ()
    gone_ranges: tuple[int, ...] = ()
    watermark: int | None = None
    caught_up: bool = False
    finished: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form; `from_json` reads it back."""
        return {
            "segments": [s.to_json() for s in self.segments],
            "schema_changes": [s.to_json() for s in self.schema_changes],
            "position": self.position,
            "ranges": [r.to_json() for r in self.ranges],
            "gone_ranges": list(self.gone_ranges),
            "watermark": self.watermark,
            "caught_up": self.caught_up,
            "finished": self.finished,
        }

    @classmethod
    def from_json(cls, form: dict[str, Any]) -> Stretch:
        """Read what `to_json` wrote."""
        return cls(
            segments=tuple(Segment.from_json(s) for s in form["segments"]),
            schema_changes=tuple(SchemaChange.from_json(s) for s in form["schema_changes"]),
            position=form["position"],
            ranges=tuple(RangeProgress.from_json(r) for r in form["ranges"]),
            gone_ranges=tuple(form["gone_ranges"]),
            watermark=form["watermark"],
            caught_up=form["caught_up"],
            finished=form.get("finished", False),
        )


@dataclass(frozen=True, slots=True)
class Output:
    """What a sink assigned to one slice of one segment, e.g. a file's directory and number."""

    segment: int
    slice: int
    target: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Topic:
    """What a queue's sink assigns to a slice: where its rows go, and what fits there.

    Attributes:
        partitions: how many of the topic's partitions are in use, from 0; more may exist.
        max_message_bytes: the largest message that the queue takes.
        exact: a replay gives the same messages; a snapshot that is read again need not.
        last_segment: of those that share transactions with the slice's own; None: it shares none.
    """

    name: str
    partitions: int
    max_message_bytes: int
    exact: bool = True
    last_segment: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the form in which it is an output's target; `from_json` reads it back."""
        found = {"topic": self.name, "partitions": self.partitions, "limit": self.max_message_bytes}
        if self.last_segment is not None:
            found["last_segment"] = self.last_segment
        return found if self.exact else {**found, "exact": False}

    @classmethod
    def from_json(cls, form: dict[str, Any]) -> Topic:
        """Read what `to_json` wrote."""
        name, partitions, limit = form["topic"], form["partitions"], form["limit"]
        return cls(name, partitions, limit, form.get("exact", True), form.get("last_segment"))


@dataclass(frozen=True, slots=True)
class Plan:
    """One micro-batch, complete: what `pending` holds in the meta database.

    Attributes:
        micro_batch: our own number, from 1, without gaps.
        spec_version: the version of the changefeed's settings that it runs with.
        planned_at_ms: the only clock reading that encoders may use.
        outputs: what the sink assigned, for every slice of every segment.
        sink_state: the sink's own state after this micro-batch (JSON), stored when published.
        epoch: of whoever carries it out now; not stored.
    """

    micro_batch: int
    spec_version: int
    planned_at_ms: int
    stretch: Stretch
    outputs: tuple[Output, ...] = ()
    sink_state: dict[str, Any] | None = None
    epoch: int = 0

    def outputs_of(self, segment: int) -> tuple[Output, ...]:
        """Return the outputs of one segment, by slice."""
        return tuple(o for o in self.outputs if o.segment == segment)

    def with_(self, **changes: Any) -> Plan:
        """Return a copy with some fields changed."""
        return replace(self, **changes)

    def to_json(self) -> dict[str, Any]:
        """Return the JSON form; `from_json` reads it back."""
        return {
            "micro_batch": self.micro_batch,
            "spec_version": self.spec_version,
            "planned_at_ms": self.planned_at_ms,
            "stretch": self.stretch.to_json(),
            "outputs": [[o.segment, o.slice, o.target] for o in self.outputs],
            "sink_state": self.sink_state,
        }

    @classmethod
    def from_json(cls, form: dict[str, Any]) -> Plan:
        """Read what `to_json` wrote."""
        return cls(
            micro_batch=form["micro_batch"],
            spec_version=form["spec_version"],
            planned_at_ms=form["planned_at_ms"],
            stretch=Stretch.from_json(form["stretch"]),
            outputs=tuple(Output(*o) for o in form["outputs"]),
            sink_state=form["sink_state"],
        )


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
    found: dict[str, Any] | None = None  # the source's own words, e.g. where a snapshot stands
    captured: Volume = Volume()  # of the whole segment, in one of its receipts
    decided: Volume = Volume()  # what was left of that when filters and row policy had decided
