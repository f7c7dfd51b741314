"""A consumer's copy of the tables, made from the feed alone."""

from __future__ import annotations

from typing import TypeAlias

from rowferry.change.chunk import Op, SchemaChange
from rowferry.change.table import TableId, TableSchema
from rowferry.errors import BadInput
from rowferry.testing.feed import DeliveredRows
from rowferry.testing.model import Key, RowChange, TableStates, add_touched
from rowferry.testing.validators.oracle import DeliveryOracle

Touched: TypeAlias = dict[TableId, set[Key] | None]
_Waiting: TypeAlias = tuple[int, int, RowChange | SchemaChange, Key | None]  # commit-ts, rank


class Replica:
    """Applies a feed as a careful consumer does: up to each watermark, in commit order.

    Rows wait until a watermark covers them and are then applied in commit order, at one commit-ts
    in delivery order, DDLs first. Rows at or below the last watermark are repeats: no change.
    A table's snapshot and log wait until the watermark has passed the snapshot's window. DDLs come
    from the feed, or from the history where the feed carries none.
    """

    def __init__(self, oracle: DeliveryOracle) -> None:
        self.states = TableStates()
        self._oracle = oracle
        self._dated = oracle.facts.carries_commit_ts
        self._carries_ddl = oracle.facts.schema_changes_go_to != "nowhere"
        self._waiting: list[_Waiting] = []
        self._resolved = oracle.start_ts
        self._begin()

    def _begin(self) -> None:
        """Start from what the reader has: rows at `start_ts` of tables without a snapshot."""
        oracle = self._oracle
        replay = oracle.history.replay()
        replay.advance(oracle.start_ts)
        self.states.schemas.update(replay.states.schemas)
        for entry in oracle.entries:
            if isinstance(entry, TableSchema):
                self.states.schemas.setdefault(entry.id, entry)
        for table, rows in replay.states.rows.items():
            if oracle.keeps(table) and table not in oracle.windows:
                self.states.rows[table] = dict(rows)
        for table, window in oracle.windows.items():
            if (schema := oracle.versions.at(table, window.low)) is not None:
                self.states.schemas[table] = schema
        if not self._carries_ddl:
            for change in oracle.schema_changes():
                if not self._dated:
                    raise BadInput(
                        f"a feed without commit-ts and without DDLs cannot be rebuilt across "
                        f"{change.query!r}"
                    )
                self._waiting.append((change.commit_ts, 0, change, None))

    def take_rows(self, rows: DeliveredRows) -> None:
        """Keep rows until a watermark covers them."""
        awaits = self._oracle.awaits_snapshot(rows.table, self._resolved)
        for op, stamp, key, left, before, after in zip(
            rows.ops,
            rows.commit_ts,
            rows.keys,
            rows.left_keys,
            rows.before,
            rows.after,
            strict=True,
        ):
            if awaits or not self._dated or stamp > self._resolved:
                change = RowChange(rows.table, Op(op), key, before, after)
                self._waiting.append((stamp, 1, change, left))

    def take_schema_change(self, change: SchemaChange) -> None:
        """Keep a DDL until a watermark covers it."""
        if self._carries_ddl and change.commit_ts > self._resolved:
            entry = (change.commit_ts, 0, change, None)
            if entry not in self._waiting:  # the same DDL on another topic-partition, or a repeat
                self._waiting.append(entry)

    def advance(self, resolved: int) -> Touched:
        """Apply what the watermark covers; return the touched keys (None: all) by table."""
        self._resolved = resolved
        ready: list[_Waiting] = []
        later: list[_Waiting] = []
        for entry in self._waiting:
            held = self._oracle.awaits_snapshot(entry[2].table, resolved)
            (later if held or entry[0] > resolved else ready).append(entry)
        self._waiting = later
        if self._dated:
            ready.sort(key=lambda e: e[:2])
        touched: Touched = {}
        for _, _, change, left in ready:
            if isinstance(change, SchemaChange):
                touched.update(dict.fromkeys(self.states.apply_schema_change(change)))
                continue
            self.states.apply(change, left)
            add_touched(touched, change, left)
        return touched
