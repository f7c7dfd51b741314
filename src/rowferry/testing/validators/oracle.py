"""What a feed of a history must deliver: the history, its snapshots, and the form of updates.

Make it when the writers have finished: what is noted in the history later is not seen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from rowferry.change.chunk import Op, SchemaChange
from rowferry.change.table import TableId, TableSchema
from rowferry.testing.feed import FeedFacts
from rowferry.testing.model import (
    Commit,
    Entry,
    History,
    HistoryReplay,
    Key,
    Row,
    RowChange,
    Versions,
)


@dataclass(frozen=True, slots=True)
class SnapshotWindow:
    """A table's initial content was read while its log ran from `low` to `high`.

    Every snapshot row is an insert with commit-ts `low`, and its image is the row's state at some
    moment in [low, high]. Until the watermark reaches `high` a key may come again at `low` with a
    newer image, before-images are not promised, and of the log in (low, high] only the effect is
    promised, not every change.
    """

    table: TableId
    low: int
    high: int


class ExpectedChange(NamedTuple):
    """One change that the feed delivers; `required` is False inside a snapshot's window."""

    commit_ts: int
    table: TableId
    op: Op
    key: Key
    before: Row | None
    after: Row | None
    required: bool


class DeliveryOracle:
    """Answers what must, may and must not be delivered.

    Args:
        history: what the source committed.
        facts: what the feed carries.
        windows: the snapshots that the feed took; a table without one is fed from `start_ts` on.
        rereads: parts of tables that were read again beside the log, each with its own `low`; all
            of the log is promised there as anywhere.
        start_ts: changes at or below it are not part of the feed.
        keeps: which tables the feed captures.
    """

    def __init__(
        self,
        history: History,
        facts: FeedFacts,
        windows: Sequence[SnapshotWindow] = (),
        start_ts: int = 0,
        keeps: Callable[[TableId], bool] = lambda table: True,
        rereads: Sequence[SnapshotWindow] = (),
    ) -> None:
        self.rereads = {(w.table, w.low): w for w in rereads}
        self.history = history
        self.facts = facts
        self.windows = {w.table: w for w in windows}
        self.start_ts = start_ts
        self.keeps = keeps

    @cached_property
    def entries(self) -> list[Entry]:
        """The history in commit order, as of the first question."""
        return self.history.entries()

    @cached_property
    def versions(self) -> Versions:
        """Which table version was in force when."""
        return Versions(self.entries)

    @cached_property
    def expected(self) -> list[ExpectedChange]:
        """Every change of the log that the feed delivers, in commit order, in the feed's form."""
        return list(self._expected())

    @cached_property
    def places(self) -> dict[tuple[TableId, Key, int], list[int]]:
        """Places in `expected` by table, key and commit-ts (0 where the feed carries none)."""
        by_change: dict[tuple[TableId, Key, int], list[int]] = {}
        dated = self.facts.carries_commit_ts
        for place, change in enumerate(self.expected):
            stamp = change.commit_ts if dated else 0
            by_change.setdefault((change.table, change.key, stamp), []).append(place)
        return by_change

    def at(self, table: TableId, key: Key, commit_ts: int) -> list[ExpectedChange]:
        """Return the expected changes of one key at one commit-ts, in order."""
        return [self.expected[p] for p in self.places.get((table, key, commit_ts), ())]

    @cached_property
    def snapshot_images(self) -> dict[TableId, dict[Key, list[Row]]]:
        """For each table with a snapshot, every image that a snapshot row may carry, by key."""
        by_table: dict[TableId, dict[Key, list[Row]]] = {t: {} for t in self.windows}
        for window in self.windows.values():
            images = by_table[window.table]
            for key, row in self.history.rows_at(window.table, window.low).items():
                images[key] = [row]
            for change in self.expected:
                if change.table == window.table and change.after is not None:
                    if change.commit_ts <= window.high:
                        images.setdefault(change.key, []).append(change.after)
        return by_table

    def is_snapshot_row(self, table: TableId, key: Key, commit_ts: int, after: Row | None) -> bool:
        """Return whether this can be a row of the table's snapshot."""
        window = self.windows.get(table)
        if after is not None and (again := self.rereads.get((table, commit_ts))) is not None:
            return after in self._images_within(again, key)
        if window is None or after is None:
            return False
        if self.facts.carries_commit_ts and commit_ts != window.low:
            return False
        return after in self.snapshot_images[table].get(key, ())

    def _images_within(self, window: SnapshotWindow, key: Key) -> list[Row]:
        """Return every image that a key has between two commit-ts."""
        known = self._rows_at_low.get((window.table, window.low))
        if known is None:
            known = dict(self.history.rows_at(window.table, window.low))
            self._rows_at_low[window.table, window.low] = known
        images = [known[key]] if key in known else []
        stamps = self._changes_of_key.get((window.table, key), ())
        return images + [
            c.after for c in stamps if c.after and window.low < c.commit_ts <= window.high
        ]

    @cached_property
    def _rows_at_low(self) -> dict[tuple[TableId, int], dict[Key, Row]]:
        return {}

    @cached_property
    def _changes_of_key(self) -> dict[tuple[TableId, Key], list[ExpectedChange]]:
        images: dict[tuple[TableId, Key], list[ExpectedChange]] = {}
        for change in self.expected:
            images.setdefault((change.table, change.key), []).append(change)
        return images

    def first_ts(self, table: TableId) -> int:
        """Return the commit-ts after which the table's log is delivered."""
        window = self.windows.get(table)
        return window.low if window else self.start_ts

    def in_window(self, table: TableId, commit_ts: int) -> bool:
        """Return whether a commit-ts lies inside the table's snapshot window."""
        window = self.windows.get(table)
        return window is not None and window.low <= commit_ts <= window.high

    def awaits_snapshot(self, table: TableId, resolved_ts: int) -> bool:
        """Return whether the table's snapshot is not complete at this watermark."""
        window = self.windows.get(table)
        return window is not None and resolved_ts < window.high

    def schema_changes(self) -> list[SchemaChange]:
        """Return the DDLs that the feed delivers."""
        return [
            e
            for e in self.entries
            if isinstance(e, SchemaChange)
            and e.commit_ts > self.first_ts(e.table)
            and (self.keeps(e.table) or (e.previous is not None and self.keeps(e.previous)))
        ]

    def _expected(self) -> Iterator[ExpectedChange]:
        """Play the history, so that a `before` the writer did not know is filled in."""
        replay = HistoryReplay([])
        for entry in self.entries:
            if not isinstance(entry, Commit):
                replay.play(entry, {})
                continue
            for change in entry.changes:
                if self.keeps(change.table) and entry.commit_ts > self.first_ts(change.table):
                    yield from self._in_feed_form(entry.commit_ts, change, replay)
                replay.states.apply(change, replay.left_key(change))

    def _in_feed_form(
        self, commit_ts: int, change: RowChange, at: HistoryReplay
    ) -> Iterator[ExpectedChange]:
        table = change.table
        required = not self.in_window(table, commit_ts)
        before = change.before
        if before is None and change.op is not Op.INSERT:
            before = at.states.rows.get(table, {}).get(change.key)
        schema = at.states.schemas.get(table)
        if change.op is Op.UPDATE and self._splits(schema, before, change.after):
            old_key = at.left_key(change) or change.key
            yield ExpectedChange(commit_ts, table, Op.DELETE, old_key, before, None, required)
            yield ExpectedChange(
                commit_ts, table, Op.INSERT, change.key, None, change.after, required
            )
        else:
            yield ExpectedChange(
                commit_ts, table, change.op, change.key, before, change.after, required
            )

    def _splits(self, schema: TableSchema | None, before: Row | None, after: Row | None) -> bool:
        if self.facts.updates != "split-keys":
            return self.facts.updates == "split-all"
        if schema is None or before is None or after is None:
            return False
        keys = {c for i in schema.indexes if i.primary or i.unique for c in i.columns}
        names = [schema.column(c).name for c in keys]
        return any(before.get(n) != after.get(n) for n in names)
