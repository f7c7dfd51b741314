"""What a consumer sees: rows, schema changes and watermarks, in delivery order.

A `WatchedFeed` takes what was read from files or topics, works out once for each row whether it was
seen before, and passes it on in chunks. It is meant for a few million rows in one process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from operator import itemgetter
from typing import Any, Literal, NamedTuple, Protocol

import pyarrow as pa

from rowferry.change.chunk import Op, Rows, SchemaChange
from rowferry.change.table import TableId
from rowferry.downstream.consume.arrival import Where as Where
from rowferry.errors import BadInput
from rowferry.testing.model import Key, Row


@dataclass(frozen=True, slots=True)
class FeedFacts:
    """What the format and its settings carry; validators check no more than that, and say so.

    Attributes:
        carries_before: updates come with the previous row (deletes always name the deleted one).
        carries_commit_ts: each row's own commit-ts can be read back.
        updates: whether updates come whole, as delete + insert where a key changes, or always so.
        schema_changes_go_to: where a DDL is written; "files" are a storage sink's schema files.
        key_affinity: a key's changes all go to one topic-partition.
        partial_images: some columns may be missing from a row image on purpose.
    """

    carries_before: bool
    carries_commit_ts: bool
    updates: Literal["whole", "split-keys", "split-all"] = "split-keys"
    schema_changes_go_to: Literal["all-partitions", "partition-0", "files", "nowhere"] = "nowhere"
    key_affinity: bool = False
    partial_images: bool = False


EVERYWHERE = Where("")


class RowRepetition(IntEnum):
    """How a delivered row stands to what came before it."""

    FIRST = 0  # nothing of this key at this commit-ts was seen
    REPEAT = 1  # the same change, the same bytes
    OTHER = 2  # this key at this commit-ts, but another change
    REWRITTEN = 3  # the same change in other bytes


class Delivered(NamedTuple):
    """One row as a consumer sees it; `digest` stands for the raw bytes (0: unknown)."""

    table: TableId
    version: int
    op: Op
    commit_ts: int
    key: Key
    before: Row | None
    after: Row | None
    where: Where
    digest: int = 0


@dataclass(frozen=True, slots=True)
class DeliveredRows:
    """Rows of one table version from one container, as parallel lists.

    `left_keys[i]` is the key that an update moved its row away from, else None. Without commit-ts
    in the feed, `commit_ts` is all 0 and every row stands FIRST.
    """

    table: TableId
    version: int
    container: str
    numbers: Sequence[int]
    ops: list[int]
    commit_ts: list[int]
    keys: list[Key]
    left_keys: list[Key | None]
    before: list[Row | None]
    after: list[Row | None]
    repetitions: list[RowRepetition]

    def place(self, i: int) -> str:
        """Name the row for a failure's text: where it was read and what it is."""
        what = Op(self.ops[i]).name.lower()
        at = f" at {self.commit_ts[i]}" if self.commit_ts[i] else ""
        return f"{self.container}@{self.numbers[i]}: {self.table} {self.keys[i]} {what}{at}"


class Consumer(Protocol):
    """What a feed hands its events to; `validators.Validator` is one."""

    @property
    def failures(self) -> list[str]:
        """What was broken, in words."""

    def note_rows(self, rows: DeliveredRows) -> None:
        """Take rows, in delivery order."""

    def note_schema_change(self, change: SchemaChange, where: Where) -> None:
        """Take a DDL."""

    def note_watermark(self, commit_ts: int, where: Where) -> None:
        """Take a watermark of one container ("" is all of them)."""

    def note_resolved(self, commit_ts: int) -> None:
        """Learn that every container's watermark has reached this commit-ts."""

    def finish(self) -> None:
        """The feed has ended: report what only the end can show."""


class WatchedFeed:
    """Hands a feed's events to validators.

    Args:
        facts: what the feed carries.
        consumers: usually validators.
        keys: key columns by table, where the decoded table versions do not name them.
        containers: names of all topic-partitions; a watermark counts as resolved when each of them
            has it. Empty: a watermark of any container counts at once (storage).
    """

    def __init__(
        self,
        facts: FeedFacts,
        consumers: Iterable[Consumer],
        keys: Mapping[TableId, Sequence[str]] | None = None,
        containers: Sequence[str] = (),
    ) -> None:
        self.facts = facts
        self._consumers = tuple(consumers)
        self._keys = dict(keys or {})
        self._marks = dict.fromkeys(containers, 0)
        self._resolved = 0
        self._seen: dict[TableId, dict[tuple[Key, int], list[int]]] = {}

    def note_rows(self, rows: Rows, where: Where, raw: Sequence[bytes] | None = None) -> None:
        """Note a decoded chunk; its rows are numbered from `where.number` on.

        `raw` are the bytes of each row, for the promise that repeats are identical.
        """
        before, after = _images(rows.before), _images(rows.after)
        getter = self._key_getter(rows)
        keys = [getter(a if a is not None else b) for a, b in zip(after, before, strict=True)]
        moved: list[Key | None] = [None] * len(keys)
        if self.facts.updates == "whole":
            for i, (old, new) in enumerate(zip(before, after, strict=True)):
                if old is not None and new is not None and (left := getter(old)) != keys[i]:
                    moved[i] = left
        dated = self.facts.carries_commit_ts
        commit_ts = rows.commit_ts.tolist() if dated else [0] * len(keys)
        ops = rows.op.tolist()
        digests = [hash(b) for b in raw] if raw is not None else [0] * len(keys)
        self._hand_on(
            DeliveredRows(
                rows.table.id,
                rows.table.version,
                where.container,
                range(where.number, where.number + len(keys)),
                ops,
                commit_ts,
                keys,
                moved,
                before,
                after,
                self._repetitions(rows.table.id, ops, commit_ts, keys, before, after, digests),
            )
        )

    def note_row(self, row: Delivered) -> None:
        """Note one row; `note_rows` is the fast way.

        Where updates come whole, `keys` must name the table's key for moved rows to be noticed.
        """
        stamp = row.commit_ts if self.facts.carries_commit_ts else 0
        one = ([int(row.op)], [stamp], [row.key], [row.before], [row.after])
        self._hand_on(
            DeliveredRows(
                row.table,
                row.version,
                row.where.container,
                [row.where.number],
                *one[:3],
                [self._left(row)],
                *one[3:],
                self._repetitions(row.table, *one, [row.digest]),
            )
        )

    def note_schema_change(self, change: SchemaChange, where: Where) -> None:
        """Note a DDL as it was read."""
        for consumer in self._consumers:
            consumer.note_schema_change(change, where)

    def note_watermark(self, commit_ts: int, where: Where = EVERYWHERE) -> None:
        """Note a watermark as it was read; `where.container` "" stands for the whole feed."""
        for consumer in self._consumers:
            consumer.note_watermark(commit_ts, where)
        if not self._marks:
            resolved = commit_ts
        elif where.container in self._marks:
            self._marks[where.container] = max(self._marks[where.container], commit_ts)
            resolved = min(self._marks.values())
        else:
            raise BadInput(f"watermark from {where}, which is not one of {sorted(self._marks)}")
        if resolved > self._resolved:
            self._resolved = resolved
            for consumer in self._consumers:
                consumer.note_resolved(resolved)

    def finish(self) -> list[str]:
        """End the feed; return all failures."""
        for consumer in self._consumers:
            consumer.finish()
        return [f for consumer in self._consumers for f in consumer.failures]

    def _hand_on(self, rows: DeliveredRows) -> None:
        for consumer in self._consumers:
            consumer.note_rows(rows)

    def _key_getter(self, rows: Rows) -> Callable[[Any], Key]:
        names = self._keys.get(rows.table.id) or rows.table.handle_key
        names = tuple(names) or tuple(f.name for f in rows.after.type)
        if len(names) > 1:
            return itemgetter(*names)
        (name,) = names
        return lambda row: (row[name],)

    def _left(self, row: Delivered) -> Key | None:
        if self.facts.updates != "whole" or row.before is None or row.after is None:
            return None
        names = self._keys.get(row.table, ())
        old = tuple(row.before[n] for n in names)
        return old if names and old != row.key else None

    def _repetitions(
        self,
        table: TableId,
        ops: list[int],
        commit_ts: list[int],
        keys: list[Key],
        before: list[Row | None],
        after: list[Row | None],
        digests: list[int],
    ) -> list[RowRepetition]:
        """Compare each row with what was seen of its key at its commit-ts, and remember it.

        For each change a pair of 64-bit hashes is kept: of the images, of the raw bytes.
        """
        if not self.facts.carries_commit_ts:
            return [RowRepetition.FIRST] * len(keys)
        repetitions: list[RowRepetition] = []
        seen = self._seen.setdefault(table, {})
        for op, stamp, key, old, new, digest in zip(
            ops, commit_ts, keys, before, after, digests, strict=True
        ):
            content = hash(f"{op}{_text(old)}{_text(new)}")
            known = seen.get((key, stamp))
            if known is None:
                seen[key, stamp] = [content, digest]
                repetitions.append(RowRepetition.FIRST)
            elif content in known[::2]:
                same = known[known[::2].index(content) * 2 + 1] == digest
                repetitions.append(RowRepetition.REPEAT if same else RowRepetition.REWRITTEN)
            else:
                known += (content, digest)
                repetitions.append(RowRepetition.OTHER)
        return repetitions


def _text(image: Row | None) -> str:
    return "-" if image is None else repr(image)


def _images(images: pa.StructArray) -> list[Row | None]:
    """Return a struct column as dicts; by columns, which is several times faster than by rows."""
    names = [f.name for f in images.type]
    if not names:
        return [None] * len(images)
    columns = [c.to_pylist() for c in images.flatten()]
    rows: list[Row | None] = [
        dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)
    ]
    if images.null_count:
        for i, valid in enumerate(images.is_valid().to_pylist()):
            if not valid:
                rows[i] = None
    return rows
