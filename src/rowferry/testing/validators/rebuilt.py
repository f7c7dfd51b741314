"""P4 and P7: the tables rebuilt from the feed equal the source's."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar

from rowferry.change.chunk import Op, SchemaChange
from rowferry.change.table import TableId
from rowferry.testing.feed import DeliveredRows, RowRepetition, Where
from rowferry.testing.model import Key, Row
from rowferry.testing.validators.oracle import DeliveryOracle
from rowferry.testing.validators.replica import Replica, Touched
from rowferry.testing.validators.validator import Validator

Tables = Mapping[TableId, Mapping[Key, Row]]
Invariant = Callable[[Tables], str | None]


class Difference:
    """Which keys of the replica differ from the source, of those touched since the last look."""

    def __init__(self, oracle: DeliveryOracle) -> None:
        self.replica = Replica(oracle)
        self._source = oracle.history.replay()
        self._oracle = oracle
        self._unsettled: Touched = {}

    def advance(self, resolved: int) -> list[tuple[TableId, Key, Row | None, Row | None]]:
        """Move both sides to a watermark; return (table, key, source's row, rebuilt row)s."""
        for touched in (self._source.advance(resolved), self.replica.advance(resolved)):
            for table, keys in touched.items():
                known = self._unsettled.setdefault(table, set())
                if known is None or keys is None:
                    self._unsettled[table] = None
                else:
                    known |= keys
        differing = []
        for table in list(self._unsettled):
            if not self._oracle.keeps(table) or self._awaits(table, resolved):
                continue
            differing += self._compare(table)
        return differing

    def _awaits(self, table: TableId, resolved: int) -> bool:
        return self._oracle.awaits_snapshot(table, resolved) or self._is_keyless(table)

    def _is_keyless(self, table: TableId) -> bool:
        schema = self._source.states.schemas.get(table)
        return schema is not None and not schema.handle_key

    def _compare(self, table: TableId) -> list[tuple[TableId, Key, Row | None, Row | None]]:
        source = self._source.states.rows.get(table, {})
        rebuilt = self.replica.states.rows.get(table, {})
        touched = self._unsettled.pop(table, set())
        keys = source.keys() | rebuilt.keys() if touched is None else touched
        return [
            (table, key, source.get(key), rebuilt.get(key))
            for key in keys
            if source.get(key) != rebuilt.get(key)
        ]


class RebuildMatches(Validator):
    """P4. At every watermark the rebuilt tables hold the source's rows, so transactions are whole.

    Args:
        oracle: what the source did.
        invariant: asked at every watermark with the rebuilt tables; returns words when broken, e.g.
            "total is 990, not 1000".
        one_container: also check that all of a transaction's rows of one table are in one file.
    """

    promise: ClassVar[str] = "P4"

    def __init__(
        self,
        oracle: DeliveryOracle,
        invariant: Invariant | None = None,
        one_container: bool = False,
    ) -> None:
        super().__init__()
        self._oracle = oracle
        self._difference = Difference(oracle)
        self._invariant = invariant
        self._one_container = one_container
        self._homes: dict[tuple[TableId, int], str] = {}
        self._reported: set[tuple[TableId, Key]] = set()
        self._last = 0
        if not oracle.facts.carries_commit_ts:
            self.leave_unchecked(
                "watermarks before the last (the feed carries no commit-ts): compared at the end, "
                "which is right only when the source was quiet by the last watermark"
            )

    def note_rows(self, rows: DeliveredRows) -> None:
        """Take rows into the replica."""
        self._difference.replica.take_rows(rows)
        if self._one_container and self._oracle.facts.carries_commit_ts:
            for i, (stamp, repetition) in enumerate(
                zip(rows.commit_ts, rows.repetitions, strict=True)
            ):
                home = self._homes.setdefault((rows.table, stamp), rows.container)
                if home != rows.container and repetition is not RowRepetition.REPEAT:
                    if not self._oracle.in_window(rows.table, stamp):
                        self.fail(f"{rows.place(i)}: its transaction began in {home}")

    def note_schema_change(self, change: SchemaChange, where: Where) -> None:
        """Take a DDL into the replica."""
        self._difference.replica.take_schema_change(change)

    def note_resolved(self, commit_ts: int) -> None:
        """Compare, unless only the end can be compared."""
        self._last = commit_ts
        if self._oracle.facts.carries_commit_ts:
            self._compare(commit_ts)

    def finish(self) -> None:
        """Compare at the last watermark."""
        if not self._oracle.facts.carries_commit_ts:
            self._compare(self._last)

    def _compare(self, resolved: int) -> None:
        for table, key, source, rebuilt in self._difference.advance(resolved):
            if (table, key) not in self._reported:
                self._reported.add((table, key))
                self.fail(_words(table, key, source, rebuilt, resolved))
        for table, schema in self._difference.replica.states.schemas.items():
            if not schema.handle_key and self._oracle.keeps(table):
                self.leave_unchecked(f"{table}: it has no key")
        if self._invariant is not None:
            broken = self._invariant(self._difference.replica.states.rows)
            if broken:
                self.fail(f"at watermark {resolved}: {broken}")


class SnapshotMeetsLog(Validator):
    """P7. Snapshot plus log equals the source: nothing missing, nothing resurrected.

    Each snapshot row must be an image that its key had inside the window; at the first watermark
    past the window the table must equal the source's.
    """

    promise: ClassVar[str] = "P7"

    def __init__(self, oracle: DeliveryOracle) -> None:
        super().__init__()
        self._oracle = oracle
        self._open = dict(oracle.windows)
        only = DeliveryOracle(
            oracle.history,
            oracle.facts,
            tuple(oracle.windows.values()),
            oracle.start_ts,
            lambda table: table in oracle.windows and oracle.keeps(table),
        )
        self._difference = Difference(only)
        self._dated = oracle.facts.carries_commit_ts
        if not self._dated:
            self.leave_unchecked("single snapshot rows (the feed carries no commit-ts)")

    def note_rows(self, rows: DeliveredRows) -> None:
        """Take rows of tables whose snapshot is under way."""
        window = self._open.get(rows.table)
        if window is None:
            return
        self._difference.replica.take_rows(rows)
        if not self._dated:
            return
        images = self._oracle.snapshot_images[rows.table]
        for i, (op, stamp, key, after) in enumerate(
            zip(rows.ops, rows.commit_ts, rows.keys, rows.after, strict=True)
        ):
            if stamp < window.low:
                self.fail(f"{rows.place(i)}: older than the snapshot at {window.low}")
            elif stamp == window.low:
                if op != Op.INSERT:
                    self.fail(f"{rows.place(i)}: a snapshot row must be an insert")
                elif after not in images.get(key, ()):
                    self.fail(f"{rows.place(i)}: the key never held {after} in its window")

    def note_schema_change(self, change: SchemaChange, where: Where) -> None:
        """Take a DDL into the replica."""
        if change.table in self._oracle.windows:
            self._difference.replica.take_schema_change(change)

    def note_resolved(self, commit_ts: int) -> None:
        """Compare the tables whose window this watermark closes."""
        closing = {t for t, w in self._open.items() if w.high <= commit_ts}
        if not closing:
            return
        for table, key, source, rebuilt in self._difference.advance(commit_ts):
            if table in closing:
                self.fail(_words(table, key, source, rebuilt, commit_ts))
        for table in closing:
            del self._open[table]

    def finish(self) -> None:
        """Say which snapshots never ended."""
        for window in self._open.values():
            self.leave_unchecked(f"{window.table}: no watermark reached {window.high}")


def _words(table: TableId, key: Key, source: Row | None, rebuilt: Row | None, resolved: int) -> str:
    at = f"{table} {key} at watermark {resolved}"
    if rebuilt is None:
        return f"missing: {at}: the source has {source}"
    if source is None:
        return f"resurrected: {at}: the source has no such row, the feed left {rebuilt}"
    return f"different: {at}: the source has {source}, the feed left {rebuilt}"
