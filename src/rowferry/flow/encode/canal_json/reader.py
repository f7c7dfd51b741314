"""Reading canal-json back: blocks of messages, column by column."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rowferry.change.chunk import Change, DdlKind, Op, Rows, SchemaChange, Watermark, make_rows
from rowferry.change.position import PHYSICAL_SHIFT
from rowferry.change.table import TableId, TableSchema
from rowferry.columnar.memory import Bytes, Ints
from rowferry.errors import DecodeError
from rowferry.flow.encode.canal_json import tokenizer as kernels_json
from rowferry.flow.encode.kernels import spans as kernels_spans
from rowferry.flow.encode.read_back import Flags, ImageSpans, Style, column_cuts, refuse_empty

_ROOM = 1 << 20  # values in a block
_MOST, _LEAST = 65536, 256  # messages in a block
_CANAL: Final = Style(text=kernels_spans.JSON, binary=kernels_spans.JSON_BYTES)
# A message's type says less than the kind that it was made from: these stand for their families.
DDL_KIND: Final = {
    "CREATE": DdlKind.CREATE_TABLE,
    "RENAME": DdlKind.RENAME_TABLE,
    "CINDEX": DdlKind.ADD_INDEX,
    "DINDEX": DdlKind.DROP_INDEX,
    "ALTER": DdlKind.MULTI_SCHEMA_CHANGE,
    "ERASE": DdlKind.DROP_TABLE,
    "TRUNCATE": DdlKind.TRUNCATE_TABLE,
    "QUERY": DdlKind.NONE,
}


@dataclass(frozen=True, slots=True)
class _Image:
    """Places of one image's values, by column and message."""

    starts: Ints
    ends: Ints

    @classmethod
    def room(cls, columns: int, messages: int) -> _Image:
        shape = (columns, messages)
        return cls(np.empty(shape, np.int64), np.empty(shape, np.int64))

    def first(self, count: int) -> _Image:
        return _Image(self.starts[:, :count], self.ends[:, :count])

    def where(self, wanted: npt.NDArray[np.bool_], other: _Image) -> _Image:
        """Take these places where wanted, else the other's."""
        return _Image(
            np.where(wanted, self.starts, other.starts), np.where(wanted, self.ends, other.ends)
        )


def read_messages(
    data: bytes, table: TableSchema, terminator: bytes, fill_old: bool
) -> Iterator[Change]:
    """Yield rows as chunks, schema changes and watermarks, in the data's order.

    Raises:
        DecodeError: a message that is malformed; names its row (the first is 1).
    """
    content = np.frombuffer(data, np.uint8)
    encoded = [c.name.encode() for c in table.visible]
    bounds = np.zeros(len(encoded) + 1, np.int64)
    np.cumsum([len(e) for e in encoded], out=bounds[1:])
    names = np.frombuffer(b"".join(encoded), np.uint8)
    scratch = np.empty(6 * max((len(e) for e in encoded), default=0), np.uint8)
    end = np.frombuffer(terminator, np.uint8)
    room = max(_LEAST, min(_MOST, _ROOM // max(len(encoded), 1), len(data) // 64 + 1))
    at, row = 0, 1
    while at < len(content):
        facts = np.empty((4, room), np.int64)
        new, old = _Image.room(len(encoded), room), _Image.room(len(encoded), room)
        count, at, status, stop = kernels_json.tokenize(
            content,
            at,
            names,
            bounds,
            end,
            scratch,
            facts,
            (new.starts, new.ends),
            (old.starts, old.ends),
        )
        if count:
            block = _Block(
                content, table, row, facts[:, :count], new.first(count), old.first(count)
            )
            yield from block.chunks(fill_old)
        row += count
        if status == kernels_json.OTHER:
            yield read_note(data[at:stop], row)
            at, row = stop + len(terminator), row + 1
        elif status != kernels_json.OK:
            raise DecodeError(f"row {row}: {kernels_json.WORDS[status]}")


def read_note(message: bytes, row: int) -> SchemaChange | Watermark:
    """Read a message that is no row change.

    Raises:
        DecodeError: it is no DDL and no watermark either.
    """
    try:
        note = json.loads(message)
        if note["isDdl"]:
            extension = note.get("_tidb") or {}
            return SchemaChange(
                commit_ts=int(extension.get("commitTs", note["es"] << PHYSICAL_SHIFT)),
                kind=DDL_KIND.get(note["type"], DdlKind.NONE),
                query=note["sql"],
                table=TableId(note["database"], note["table"]),
            )
        if note["type"] == "TIDB_WATERMARK":
            return Watermark(int(note["_tidb"]["watermarkTs"]))
    except (ArithmeticError, AttributeError, KeyError, RecursionError, TypeError, ValueError):
        pass
    raise DecodeError(f"row {row}: it is neither a row change, nor a DDL, nor a watermark")


@dataclass(frozen=True, slots=True)
class _Block:
    """Tokens of consecutive row changes; `first_row` is the row of the first."""

    data: Bytes
    table: TableSchema
    first_row: int
    facts: Ints
    new: _Image
    old: _Image

    def chunks(self, fill_old: bool) -> Iterator[Rows]:
        """Yield chunks in each of which all rows have the same columns."""
        op = self.facts[kernels_json.OP]
        deletes = op == Op.DELETE
        has_before = deletes | ((op == Op.UPDATE) & (self.facts[kernels_json.HAS_OLD] == 1))
        old = self.old
        if fill_old:
            old = self.new.where(old.starts == kernels_spans.MISSING, old)
        before = self.new.where(deletes, old)
        refuse_empty(self.table, before.starts, has_before, self.first_row)
        refuse_empty(self.table, self.new.starts, ~deletes, self.first_row)
        es = self.facts[kernels_json.ES].astype(np.uint64) << np.uint64(PHYSICAL_SHIFT)
        stamps = self.facts[kernels_json.COMMIT_TS]
        times = np.where(stamps < 0, es, stamps.view(np.uint64))
        cuts = column_cuts(before.starts, has_before) | column_cuts(self.new.starts, ~deletes)
        edges = [0, *(np.flatnonzero(cuts)).tolist(), len(op)]
        for start, stop in zip(edges, edges[1:], strict=False):
            part = slice(start, stop)
            places = np.arange(self.first_row - 1 + start, self.first_row - 1 + stop)
            yield make_rows(
                self.table,
                pa.array(op[part].astype(np.int8)),
                pa.array(times[part]),
                pa.array(places),
                self._struct(before, has_before[part], part),
                self._struct(self.new, ~deletes[part], part),
            )

    def _struct(self, image: _Image, have: Flags, part: slice) -> pa.StructArray:
        """Return one image of some rows, with the columns that the first of them has."""
        starts, ends = image.starts[:, part], image.ends[:, part]
        first_row = self.first_row + part.start
        places = ImageSpans(self.data, self.table, starts, ends, have, first_row)
        return places.read(lambda _: _CANAL)
