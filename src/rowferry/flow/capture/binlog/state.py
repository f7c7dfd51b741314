"""What the planner must remember between stretches, and its JSON form (the stored position)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from rowferry.change.position import RangeProgress, Stage
from rowferry.change.table import TableId, TableSchema
from rowferry.flow.capture.announcements import Left
from rowferry.flow.capture.binlog.position import LogPosition
from rowferry.flow.capture.binlog.reread import Reread
from rowferry.mysql.snapshot_position import Place

# In the place of the key that a snapshot has reached, where it has reached none yet: readers have
# been told of the table. No key looks like this.
ANNOUNCED: Final = "ff"


@dataclass(slots=True)
class BinlogTable:
    """A captured table: its version in force, and how far its snapshot is.

    Attributes:
        read_as: the version by whose names of columns its snapshot is read, or was.
    """

    schema: TableSchema
    progress: RangeProgress
    read_as: TableSchema

    @property
    def low_ts(self) -> int:
        """The commit-ts of all its snapshot rows; 0: it was born inside the feed's log."""
        return self.progress.init_snapshot_ts

    @property
    def is_announced(self) -> bool:
        """Whether readers know of it: of its statement, or of rows."""
        return self.progress.stage is Stage.LOG or bool(self.progress.last_snapshot_key)

    def tell(self) -> None:
        """Note that readers know of a table whose snapshot has not begun."""
        if not self.is_announced:
            self.progress = self.progress.with_(last_snapshot_key=ANNOUNCED)


@dataclass(slots=True)
class BinlogState:
    """The planner's facts after a stretch.

    Attributes:
        log: where the log was read up to.
        started: the log has a beginning; before that no table has joined.
        tables: captured tables by table id; `put` and `forget` change them.
        next_table_id: the next number for a table that is met; servers give none.
        lows: of tables that joined later than the log's beginning: their snapshot's place, until
            the log has passed it.
        hold: the place behind all snapshots; until the log has passed it the watermark stands.
            Empty while their last parts are only planned: it must be found after they were read.
        unsettled_from: the commit-ts of the first snapshot that the log has not passed; 0: none.
        left: of tables that the filter has let go, by the names that readers know.
        rules: the filter in force, as text: when it changes, tables may join.
        finished: only a snapshot was wanted, and it is complete.
        rereads: tables that are read beside the log, by the id of whoever asked; those that join
            come first.
        reread_low: the place that the next part of them has; 0: none was taken.
    """

    log: LogPosition
    started: bool = False
    tables: dict[int, BinlogTable] = field(default_factory=dict)
    next_table_id: int = 1
    lows: dict[int, Place] = field(default_factory=dict)
    hold: Place | None = None
    unsettled_from: int = 0
    left: dict[TableId, Left] = field(default_factory=dict)
    rules: str = ""
    finished: bool = False
    rereads: dict[str, Reread] = field(default_factory=dict)
    reread_low: int = 0
    _by_name: dict[TableId, BinlogTable] | None = field(
        default=None, init=False, repr=False, compare=False
    )

    def take_id(self) -> int:
        """Return a table id that was never used."""
        self.next_table_id += 1
        return self.next_table_id - 1

    def to_position(self) -> dict[str, Any]:
        """Return the JSON form, without the progress rows (they have a table of their own)."""
        return {
            "log": self.log.to_json(),
            "started": self.started,
            "next_table_id": self.next_table_id,
            "lows": {str(k): v for k, v in self.lows.items()},
            "hold": self.hold,
            "unsettled_from": self.unsettled_from,
            "left": [[*name, one.table_id, one.looks] for name, one in self.left.items()],
            "rules": self.rules,
            "finished": self.finished,
            **self._rereads_form(),
        }

    def _rereads_form(self) -> dict[str, Any]:
        """Return what is read again; where nothing is, positions look as they always did."""
        if not self.rereads and not self.reread_low:
            return {}
        forms = [one.to_json() for one in self.rereads.values()]
        return {"rereads": forms, "reread_low": self.reread_low}

    @classmethod
    def from_position(
        cls,
        position: dict[str, Any],
        ranges: Iterable[RangeProgress],
        versions: Iterable[TableSchema],
    ) -> BinlogState:
        """Read what `to_position` wrote; a table's version in force is its newest one so far."""
        log = LogPosition.from_json(position["log"])
        newest: dict[int, TableSchema] = {}
        older: dict[int, list[TableSchema]] = {}
        for version in sorted(versions, key=lambda v: v.version):
            if version.version <= log.last_ts:
                newest[version.table_id] = version
                older.setdefault(version.table_id, []).append(version)
        state = cls(
            log=log,
            started=position["started"],
            next_table_id=position["next_table_id"],
            lows={int(k): v for k, v in position["lows"].items()},
            hold=position["hold"],
            unsettled_from=position.get("unsettled_from", 0),
            left={TableId(d, t): Left(*rest) for d, t, *rest in position.get("left", ())},
            rules=position["rules"],
            finished=position["finished"],
            reread_low=position.get("reread_low", 0),
        )
        rereads = (Reread.from_json(form) for form in position.get("rereads", ()))
        state.rereads = {one.id: one for one in rereads}
        for progress in ranges:
            schema = newest.get(progress.table_id)
            if schema is not None:  # else it was met behind this position, and will be again
                low_ts = progress.init_snapshot_ts
                at_low = [v for v in older[schema.table_id] if v.version <= low_ts]
                read_as = at_low[-1] if at_low else schema
                state.tables[progress.table_id] = BinlogTable(schema, progress, read_as)
        return state

    def put(self, schema: TableSchema, stage: Stage, low_ts: int = 0) -> BinlogTable:
        """Add a table, or go on with a new definition of one; whoever had its name is gone."""
        names = self.by_name()
        rival = names.get(schema.id)
        if rival is not None and rival.schema.table_id != schema.table_id:
            self.forget(rival.schema.table_id)
        known = self.tables.get(schema.table_id)
        if known is not None:
            if names.get(known.schema.id) is known:
                del names[known.schema.id]
            names[schema.id] = known
            if not self.is_unsettled(known):
                known.read_as = schema
            known.schema = schema
            known.progress = known.progress.with_(
                database=schema.id.database, table=schema.id.table
            )
            return known
        progress = RangeProgress(
            database=schema.id.database,
            table=schema.id.table,
            table_id=schema.table_id,
            physical_id=schema.table_id,
            range_id=schema.table_id,
            start_key="",
            end_key="",
            stage=stage,
            init_snapshot_ts=low_ts,
            current_snapshot_ts=low_ts,
        )
        table = BinlogTable(schema, progress, schema)
        self.tables[schema.table_id] = names[schema.id] = table
        return table

    def forget(self, table_id: int) -> None:
        """Let a table go."""
        gone = self.tables.pop(table_id, None)
        if gone is not None and self.by_name().get(gone.schema.id) is gone:
            del self.by_name()[gone.schema.id]
        self.lows.pop(table_id, None)

    def let_go(self, table_id: int) -> None:
        """Let a table go of which readers keep what they have."""
        gone = self.tables.get(table_id)
        if gone is not None and gone.is_announced:
            self.left[gone.schema.id] = Left.of(gone.schema)
        self.forget(table_id)

    def in_stage(self, stage: Stage) -> list[BinlogTable]:
        """Return the tables whose progress is at a stage, by id."""
        known = list(self.tables.values())  # at once: framing ahead may add one meanwhile
        tables = [t for t in known if t.progress.stage is stage]
        return sorted(tables, key=lambda t: t.schema.table_id)

    def is_unsettled(self, table: BinlogTable) -> bool:
        """Return whether a table was read at moments that the log has not passed."""
        return 0 < self.unsettled_from <= table.low_ts

    def is_joining(self, table_id: int) -> bool:
        """Return whether a table is read for the first time beside the log: readers lack rows."""
        return any(r.joins and r.table_id == table_id for r in list(self.rereads.values()))

    def by_name(self) -> dict[TableId, BinlogTable]:
        """Return the captured tables by name; not yours to change."""
        if self._by_name is None:
            self._by_name = {t.schema.id: t for t in self.tables.values()}
        return self._by_name
