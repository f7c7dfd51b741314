"""Rows that were read from messages one by one become chunks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from rowferry.change.chunk import Op, Rows, make_rows
from rowferry.change.sqltype import Kind
from rowferry.change.table import Column, TableSchema
from rowferry.errors import DecodeError

Image = dict[str, Any]
_WHOLE: Final = frozenset({Kind.INTEGER, Kind.YEAR, Kind.BIT, Kind.ENUM, Kind.SET})


@dataclass(frozen=True, slots=True)
class ChunkShape:
    """What all rows of one chunk have in common.

    Attributes:
        before: columns of the old images; None: no row has one.
        after: columns of the new images; None: no row has one.
    """

    table: TableSchema
    before: tuple[str, ...] | None
    after: tuple[str, ...] | None
    physical_id: int | None = None
    key_only: bool = False


@dataclass(frozen=True, slots=True)
class MessageRow:
    """One row change as a message has it; values are those of chunks."""

    op: Op
    commit_ts: int
    before: Image | None
    after: Image | None

    def shape(
        self, table: TableSchema, physical_id: int | None = None, key_only: bool = False
    ) -> ChunkShape:
        """Return what rows of the same chunk must share with this one."""
        before = None if self.before is None else tuple(self.before)
        after = None if self.after is None else tuple(self.after)
        return ChunkShape(table, before, after, physical_id, key_only)


def text_value(column: Column, text: str | None) -> Any:
    """Return a value that a message has as text, as chunks hold it.

    Raises:
        ValueError: the text is no value of the column's type.
    """
    if text is None:
        return None
    kind = column.type.kind
    try:
        if kind in _WHOLE:
            return int(text)
        if kind in (Kind.FLOAT, Kind.DOUBLE):
            return float(text)
        return text.encode("latin-1") if kind is Kind.BINARY else text
    except ValueError:
        shown = f"{text[:40]!r} is no value of {column.type.sql}"
        raise ValueError(f"column {column.name!r}: {shown}") from None


def chunk_of(shape: ChunkShape, rows: Sequence[MessageRow], first: int) -> Rows:
    """Put rows of one shape together; `seq` begins with `first`.

    Raises:
        DecodeError: a value that its column cannot hold.
    """
    batch = make_rows(
        shape.table,
        pa.array([int(r.op) for r in rows], pa.int8()),
        pa.array([r.commit_ts for r in rows], pa.uint64()),
        pa.array(range(first, first + len(rows)), pa.int64()),
        _images(shape.table, shape.before, [r.before for r in rows], first),
        _images(shape.table, shape.after, [r.after for r in rows], first),
    ).batch
    return Rows(shape.table, batch, shape.physical_id, shape.key_only)


def _images(
    table: TableSchema, names: tuple[str, ...] | None, images: list[Image | None], first: int
) -> pa.StructArray:
    if names is None:
        return pa.nulls(len(images), table.image)
    kind = table.image
    if len(names) < len(table.columns):
        kind = pa.struct([pa.field(n, table.column(n).type.arrow) for n in names])
    try:
        return pa.array(images, kind)
    except (pa.ArrowException, OverflowError, TypeError, ValueError) as err:
        raise DecodeError(f"row {first + 1}: a value does not fit its column: {err}") from None
