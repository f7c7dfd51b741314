"""What a consumer reads: single row changes, and where each was found."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from rowferry.change.chunk import Op, Rows, SchemaChange
from rowferry.change.table import TableSchema

Image: TypeAlias = dict[str, Any]
Key: TypeAlias = tuple[Any, ...]


class Where(NamedTuple):
    """Where something was read: file and line, or topic-partition and offset."""

    container: str
    number: int = 0

    def __str__(self) -> str:
        return f"{self.container}@{self.number}"


@dataclass(frozen=True, slots=True)
class ArrivedRow:
    """One row as a consumer sees it.

    Attributes:
        commit_ts: 0 where the format does not carry it.
        before: the row before; None for an insert, and where the format leaves it out.
        after: the row after; None for a delete.
        key_only: the columns beside the handle key did not fit into the message.
    """

    table: TableSchema
    op: Op
    commit_ts: int
    before: Image | None
    after: Image | None
    where: Where
    key_only: bool = False

    @property
    def key(self) -> Key:
        """The values that name the row: of the handle key, or all of a table without one."""
        return key_of(self.table, self.after if self.after is not None else self.before or {})

    @property
    def left_key(self) -> Key | None:
        """The key that an update moved the row away from; None: it has the same key."""
        if self.op is not Op.UPDATE or self.before is None:
            return None
        # An old image may hold changed columns only: the others are as they were.
        old = key_of(self.table, {**(self.after or {}), **self.before})
        return old if old != self.key else None

    def __str__(self) -> str:
        at = f" at {self.commit_ts}" if self.commit_ts else ""
        return f"{self.where}: {self.table.id} {self.key} {self.op.name.lower()}{at}"


@dataclass(frozen=True, slots=True)
class ArrivedStatement:
    """A schema change, and where it was read."""

    change: SchemaChange
    where: Where

    @property
    def commit_ts(self) -> int:
        """When it happened."""
        return self.change.commit_ts

    def __str__(self) -> str:
        return f"{self.where}: {self.change.query!r} at {self.commit_ts}"


Arrival: TypeAlias = ArrivedRow | ArrivedStatement


def key_of(table: TableSchema, image: Image) -> Key:
    """Return the values that name a row."""
    return tuple(image.get(name) for name in table.handle_key or tuple(image))


def row_changes(rows: Rows, where: Where, numbered: bool = False) -> Iterator[ArrivedRow]:
    """Yield the rows of a chunk one by one.

    Args:
        rows: the chunk.
        where: its first row's place.
        numbered: each row has a number of its own, counting on from the first.
    """
    columns = (rows.op.tolist(), rows.commit_ts.tolist())
    images = (rows.before.to_pylist(), rows.after.to_pylist())
    for i, (op, stamp, before, after) in enumerate(zip(*columns, *images, strict=True)):
        here = Where(where.container, where.number + i) if numbered else where
        yield ArrivedRow(rows.table, Op(op), stamp, before, after, here, rows.key_only)
