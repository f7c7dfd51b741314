"""Reading CSV lines back: blocks of rows, column by column."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rowferry.change.chunk import Change, Op, Rows, make_rows
from rowferry.change.sqltype import Kind, SqlType
from rowferry.change.table import Column, TableSchema
from rowferry.columnar.memory import Bytes, Ints
from rowferry.errors import DecodeError
from rowferry.flow.encode.csv import tokenizer as kernels_csv
from rowferry.flow.encode.kernels import spans as kernels_spans
from rowferry.flow.encode.read_back import Spans, Style, read_column

_ROOM = 1 << 21  # fields in a block
_MOST, _LEAST = 65536, 256  # rows in a block
_STRINGS = frozenset(Kind) - {Kind.INTEGER, Kind.YEAR, Kind.BIT, Kind.FLOAT, Kind.DOUBLE}
_OPS = {"I": Op.INSERT, "U": Op.UPDATE, "D": Op.DELETE}


@dataclass(frozen=True, slots=True)
class Dialect:
    """How the lines are written; `needs_end`: the last line too has the terminator."""

    delimiter: bytes
    terminator: bytes
    quote: bytes
    null: bytes
    packing: str
    commit_ts: bool
    is_update: bool
    needs_end: bool

    @property
    def meta(self) -> int:
        """How many columns stand before the table's own."""
        return 3 + self.commit_ts + self.is_update

    @property
    def style(self) -> Style:
        """How values are written."""
        text = kernels_spans.DOUBLED if self.quote else kernels_spans.ESCAPED
        mark = self.quote[0] if self.quote else 0
        return Style(text, text, mark, names=True, packed=self.packing)


@dataclass(frozen=True, slots=True)
class _Block:
    """Fields of some lines, by column and line; `first_row` is the file row of the first."""

    data: Bytes
    starts: Ints
    ends: Ints
    first_row: int

    def column(self, place: int) -> Spans:
        return Spans(self.data, self.starts[place], self.ends[place], self.first_row)


def read_lines(data: bytes, at: int, table: TableSchema, dialect: Dialect) -> Iterator[Change]:
    """Yield the rows of a file from byte `at` on, in blocks.

    Raises:
        DecodeError: a line that does not fit the table; names the row (the first is 1).
    """
    content = np.frombuffer(data, np.uint8)
    width = dialect.meta + len(table.visible)
    room = max(_LEAST, min(_MOST, _ROOM // width))
    row, seq = 1, 0
    tokens = _Tokens(content, table, dialect)
    while at < len(content):
        starts, ends = np.empty((width, room), np.int64), np.empty((width, room), np.int64)
        begins = np.empty(room, np.int64)
        count, at, status = tokens.next(at, starts, ends, begins)
        if status != kernels_csv.OK:
            raise DecodeError(f"row {row + count}: {kernels_csv.WORDS[status]}")
        block = _Block(content, starts[:, :count], ends[:, :count], row)
        op, pairs = _ops(block, dialect)
        if pairs is not None and count > 1 and pairs[-1] and op[-1] == Op.DELETE and at < len(data):
            # the other half of this update is in the next block
            count, at = count - 1, int(begins[count - 1])
            block = _Block(content, starts[:, :count], ends[:, :count], row)
            op, pairs = op[:count], pairs[:count]
        chunk = _rows(block, table, dialect, op, pairs, seq)
        yield chunk
        row, seq = row + count, seq + len(chunk)


class _Tokens:
    """The tokenizer with what it needs of table and dialect."""

    def __init__(self, data: Bytes, table: TableSchema, dialect: Dialect) -> None:
        self._data = data
        # Without quotes a text may look like NULL; where NULL cannot be, it is text.
        certain = bool(dialect.quote) or dialect.null.startswith(b"\\")
        self._nullable = np.array(
            [False] * dialect.meta
            + [certain or c.nullable or c.type.kind not in _STRINGS for c in table.visible]
        )
        self._dialect = dialect

    def next(self, at: int, starts: Ints, ends: Ints, begins: Ints) -> tuple[int, int, int]:
        dialect = self._dialect
        step: tuple[int, int, int] = kernels_csv.tokenize(
            self._data,
            at,
            np.frombuffer(dialect.delimiter, np.uint8),
            np.frombuffer(dialect.terminator, np.uint8),
            dialect.quote[0] if dialect.quote else -1,
            np.frombuffer(dialect.null, np.uint8),
            self._nullable,
            dialect.needs_end,
            starts,
            ends,
            begins,
        )
        return step


_BARE_WORDS = Style(kernels_spans.PLAIN, kernels_spans.PLAIN, names=True)


def _words(
    block: _Block, place: int, name: str, allowed: dict[str, int], style: Style = _BARE_WORDS
) -> npt.NDArray[np.int8]:
    """Return a column of fixed words as numbers."""
    spans = block.column(place)
    column = Column(0, name, SqlType("enum", elements=tuple(allowed)))
    index = read_column(spans, column, style).to_numpy(zero_copy_only=False)
    if (index == 0).any():
        raise spans.wrong(int(np.argmax(index == 0)), column, f"is not one of {', '.join(allowed)}")
    codes: npt.NDArray[np.int8] = np.array([0, *allowed.values()], np.int8)[index]
    return codes


def _ops(
    block: _Block, dialect: Dialect
) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.int8] | None]:
    """Return each line's op, and whether it is half of an update (None: not told)."""
    op = _words(block, 0, "operation", {k: int(v) for k, v in _OPS.items()}, dialect.style)
    if not dialect.is_update:
        return op, None
    return op, _words(block, dialect.meta - 1, "is-update", {"false": 0, "true": 1})


def _rows(
    block: _Block,
    table: TableSchema,
    dialect: Dialect,
    op: npt.NDArray[np.int8],
    pairs: npt.NDArray[np.int8] | None,
    seq: int,
) -> Rows:
    arrays = [
        read_column(block.column(dialect.meta + i), column, dialect.style)
        for i, column in enumerate(table.visible)
    ]
    kinds = [pa.field(c.name, c.type.arrow) for c in table.visible]
    times = np.zeros(len(op), np.uint64)
    if dialect.commit_ts:
        column = Column(0, "commit-ts", SqlType("bigint", unsigned=True))
        times = read_column(block.column(3), column, dialect.style).to_numpy(zero_copy_only=False)
    deletes = op == Op.DELETE
    if pairs is None or not pairs.any():
        before = pa.StructArray.from_arrays(arrays, fields=kinds, mask=pa.array(~deletes))
        after = pa.StructArray.from_arrays(arrays, fields=kinds, mask=pa.array(deletes))
    else:
        lines = pa.StructArray.from_arrays(arrays, fields=kinds)
        halves = pairs.astype(np.bool_)
        _check_pairs(block, op, halves)
        keep = np.flatnonzero(~(halves & (op == Op.INSERT)))  # an update stands at its first line
        updated, deletes = halves[keep], deletes[keep]
        before = lines.take(pa.array(keep, mask=~deletes))
        after = lines.take(pa.array(keep + updated, mask=deletes & ~updated))
        op = np.where(updated, np.int8(Op.UPDATE), op[keep])
        times = times[keep]
    places = pa.array(np.arange(seq, seq + len(op)))
    return make_rows(table, pa.array(op), pa.array(times), places, before, after)


def _check_pairs(block: _Block, op: npt.NDArray[np.int8], halves: npt.NDArray[np.bool_]) -> None:
    """Refuse halves of updates that do not come as delete, then insert."""
    first = halves & (op == Op.DELETE)
    second = halves & (op == Op.INSERT)
    expected = np.concatenate([[False], first[:-1]])
    wrong = (second != expected) | (halves & (op == Op.UPDATE))
    if len(first) and first[-1]:
        wrong[-1] = True
    if wrong.any():
        row = block.first_row + int(np.argmax(wrong))
        raise DecodeError(f"row {row}: an update is not a delete line followed by an insert line")
