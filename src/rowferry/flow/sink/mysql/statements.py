"""Statements as texts: multi-row deletes and upserts joined of what the codec wrote. Pure.

A statement builder is a function of a frame's table to what stands around the rows; another way of
writing rows (e.g. one that lets the newer row win) is another builder beside `upsert_around`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rowferry.change.chunk import Op
from rowferry.change.table import TableSchema
from rowferry.columnar.cuts import cuts_of
from rowferry.columnar.row_keys import has_exact_key
from rowferry.flow.encode.sql_rows.frame import (
    ROW_END,
    RowFrame,
    key_end,
    quoted,
    quoted_table,
    written_columns,
)
from rowferry.flow.sink.sql.windows import is_sole_key, net_places


@dataclass(frozen=True, slots=True)
class Around:
    """What stands before and after the joined texts of a statement, and between two of them."""

    lead: bytes
    between: bytes
    end: bytes = b""


@dataclass(frozen=True, slots=True)
class SqlStatement:
    """One statement, and the rows in it for whoever must name one.

    Attributes:
        texts: the pieces that were joined, a row each.
        keys: what names each of the rows.
        around: what the pieces were joined with.
        replaced: how the same is said by REPLACE; None: it needs no other form.
    """

    table: TableSchema
    texts: pa.LargeBinaryArray
    keys: pa.LargeBinaryArray
    around: Around
    replaced: Around | None = None

    def __len__(self) -> int:
        return len(self.texts)

    @property
    def sql(self) -> bytes:
        """The statement's text."""
        return joined(self.texts, self.around)

    def replacing(self) -> SqlStatement:
        """Return the statement that also removes whatever stands in its rows' way."""
        if self.replaced is None:
            return self
        return SqlStatement(self.table, self.texts, self.keys, self.replaced)

    def single(self, place: int) -> SqlStatement:
        """Return the statement with one of its rows alone."""
        return self.part(place, place + 1)

    def part(self, start: int, stop: int) -> SqlStatement:
        """Return the statement with some neighbouring rows of it."""
        texts, keys = (a.slice(start, stop - start) for a in (self.texts, self.keys))
        return SqlStatement(self.table, texts, keys, self.around, self.replaced)

    def named(self, place: int) -> str:
        """Return the words for one of its rows, for people."""
        end = key_end(self.table)
        key = self.keys[place].as_py().removesuffix(end).decode("utf-8", "replace")
        if len(self.table.handle_key) == 1:
            key = f"{self.table.handle_key[0]} = {key}"
        shown = key if len(key) <= 100 else key[:100] + "…"
        return f"table {self.table.written_as}, row {shown or 'without a key'}"


def joined(texts: pa.LargeBinaryArray, around: Around) -> bytes:
    """Join neighbouring texts, each of which ends with what stands between them."""
    view = memoryview(texts.buffers()[1]).cast("q")
    data = memoryview(texts.buffers()[2] or b"")
    start, stop = view[texts.offset], view[texts.offset + len(texts)]
    return b"".join((around.lead, data[start : stop - len(around.between)], around.end))


def upsert_around(table: TableSchema, keeps_key: bool = False) -> Around:
    """An INSERT that changes a row that is there already; with `keeps_key`, not its primary key."""
    names = written_columns(table)
    key = {n.lower() for n in table.primary_key} if keeps_key else ()
    set_names = [n for n in names if n.lower() not in key] or names
    pairs = ",".join(f"{quoted(n)}=VALUES({quoted(n)})" for n in set_names)
    end = f" ON DUPLICATE KEY UPDATE {pairs}".encode()
    return Around(_into("INSERT", table), ROW_END, end)


def replace_around(table: TableSchema) -> Around:
    """A REPLACE: whatever stands in a row's way is removed."""
    return Around(_into("REPLACE", table), ROW_END)


def insert_around(table: TableSchema) -> Around:
    """A plain INSERT."""
    return Around(_into("INSERT", table), ROW_END)


def delete_around(table: TableSchema) -> Around:
    """A DELETE by the handle key; without one, of one row that equals all the columns."""
    name = quoted_table(table.written_as)
    key = table.handle_key
    if len(key) == 1:
        lead, end = f"DELETE FROM {name} WHERE {quoted(key[0])} IN (", b")"
    else:
        lead, end = f"DELETE FROM {name} WHERE ", b"" if key else b" LIMIT 1"
    return Around(lead.encode(), key_end(table), end)


Put: TypeAlias = Callable[[TableSchema], tuple[Around, Around | None]]
"""How rows are written: what stands around them, and the same said by REPLACE (None: nothing)."""


def upserting(table: TableSchema) -> tuple[Around, Around]:
    """Write rows by upserts."""
    return upsert_around(table), replace_around(table)


def upserting_on_tidb(table: TableSchema) -> tuple[Around, Around]:
    """Write rows by upserts; TiDB refuses to set the primary key of a table with soft delete."""
    return upsert_around(table, keeps_key=True), replace_around(table)


def replacing(table: TableSchema) -> tuple[Around, Around]:
    """Write rows by REPLACE: safe mode."""
    return replace_around(table), replace_around(table)


def _into(verb: str, table: TableSchema) -> bytes:
    columns = ",".join(quoted(name) for name in written_columns(table))
    return f"{verb} INTO {quoted_table(table.written_as)} ({columns}) VALUES ".encode()


# --- frames to statements ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Limits:
    """How large a statement may be."""

    rows: int
    bytes: int


def in_order(frame: RowFrame, how: Put) -> Iterator[SqlStatement]:
    """Yield a statement for each change, an update of a keyless table as two."""
    table, keyless = frame.table, not frame.table.handle_key
    away = delete_around(table)
    put, replaced = insert_around(table), None
    if any(i.unique or i.primary for i in table.indexes):  # also one whose columns may be NULL
        put, replaced = how(table)
    for place in range(len(frame)):
        keys, rows = frame.keys.slice(place, 1), frame.rows.slice(place, 1)
        op = frame.op[place]
        if op == Op.DELETE or (keyless and op == Op.UPDATE):
            yield SqlStatement(table, keys, keys, away)
        if op != Op.DELETE:
            yield SqlStatement(table, rows, keys, put, replaced)


@dataclass(frozen=True, slots=True)
class NetEffect:
    """What many changes of one table amount to: first all deletes, then all upserts.

    Rows of each part have different keys, and once the deletes are done no upsert stands in
    another's way: both parts may be cut anywhere and done in any order.

    Attributes:
        apart: no upsert needs a delete to be done first.
    """

    deletes: tuple[SqlStatement, ...]
    upserts: tuple[SqlStatement, ...]
    apart: bool = False

    def __len__(self) -> int:
        return sum(len(s) for s in (*self.deletes, *self.upserts))


def net_effect(frames: list[RowFrame], limits: Limits, how: Put) -> NetEffect:
    """Return the net effect of changes of one table with a handle key, given in their order."""
    keys = pa.concat_arrays([f.keys for f in frames])
    op = np.concatenate([f.op for f in frames])
    sole = all(is_sole_key(f.table) for f in frames)
    apart = sole and all(has_exact_key(f.table) for f in frames)
    away, stay = net_places(frames, op, keys, sole)
    table = frames[-1].table
    deletes = _cut(table, keys.take(pa.array(away)), None, delete_around(table), None, limits)
    return NetEffect(tuple(deletes), tuple(_upserts(frames, keys, stay, limits, how)), apart)


def _upserts(
    frames: list[RowFrame],
    keys: pa.LargeBinaryArray,
    places: npt.NDArray[np.int64],
    limits: Limits,
    how: Put,
) -> Iterator[SqlStatement]:
    """Yield the rows at these places of all frames; those of one version go together."""
    rows = pa.concat_arrays([f.rows for f in frames])
    tables = {id(f.table): f.table for f in frames}
    versions = np.repeat([id(f.table) for f in frames], [len(f) for f in frames])[places]
    for version, table in tables.items():
        here = pa.array(places[versions == version])
        put, replace = how(table)
        yield from _cut(table, rows.take(here), keys.take(here), put, replace, limits)


def _cut(
    table: TableSchema,
    texts: pa.LargeBinaryArray,
    keys: pa.LargeBinaryArray | None,
    around: Around,
    replaced: Around | None,
    limits: Limits,
) -> Iterator[SqlStatement]:
    """Yield statements of neighbouring texts, as many in each as the limits allow."""
    room = limits.bytes - len(around.lead) - len(around.end)
    for start, stop in pairwise(cuts_of(texts, limits.rows, room)):
        part = texts.slice(start, stop - start)
        names = part if keys is None else keys.slice(start, stop - start)
        yield SqlStatement(table, part, names, around, replaced)
