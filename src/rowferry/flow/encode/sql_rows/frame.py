"""Frames of SQL texts: what the sql-rows codec hands to a sink that speaks SQL.

A frame is a stretch of one table version's changes, in order, as columns: what happened, when, the
text that names the row in a WHERE clause, and the row as the text of a VALUES list. Both texts end
with what stands between two of them, so that neighbours are joined already.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rowferry.change.chunk import Op
from rowferry.change.table import TableId, TableSchema
from rowferry.errors import DecodeError

_SCHEMA: Final = pa.schema(
    [
        ("op", pa.int8()),
        ("commit_ts", pa.uint64()),
        ("seq", pa.int64()),
        ("key", pa.large_binary()),
        ("row", pa.large_binary()),
    ]
)
_SIZE: Final = 8  # bytes of the length that a frame begins with
ROW_END: Final = b","


@dataclass(frozen=True, slots=True)
class RowFrame:
    """Changes of one table version, in order.

    Attributes:
        op: what happened, of `Op`.
        seq: the place of each change in its micro-batch.
        keys: the text that names each row: of the old one for a delete, else of the new one. For a
            keyless table it names the old row by all its columns, and is empty for an insert.
        rows: the new row as a VALUES list has it; null for a delete.
    """

    table: TableSchema
    op: npt.NDArray[np.int8]
    commit_ts: npt.NDArray[np.uint64]
    seq: npt.NDArray[np.int64]
    keys: pa.LargeBinaryArray
    rows: pa.LargeBinaryArray

    @classmethod
    def of_deleted(cls, table: TableSchema, name: pa.LargeBinaryArray) -> RowFrame:
        """Return the deletion of one row, of which only the text that names it is known."""
        op, none = np.array([int(Op.DELETE)], np.int8), pa.nulls(1, pa.large_binary())
        return cls(table, op, np.zeros(1, np.uint64), np.zeros(1, np.int64), name, none)

    def __len__(self) -> int:
        return len(self.op)

    @property
    def nbytes(self) -> int:
        """About how much memory it takes."""
        return int(self.keys.nbytes + self.rows.nbytes + 17 * len(self.op))

    def slice(self, start: int, stop: int) -> RowFrame:
        """Return a stretch of it, without a copy."""
        keys, rows = (part.slice(start, stop - start) for part in (self.keys, self.rows))
        op, commit_ts = self.op[start:stop], self.commit_ts[start:stop]
        return RowFrame(self.table, op, commit_ts, self.seq[start:stop], keys, rows)

    def take(self, places: npt.NDArray[np.int64]) -> RowFrame:
        """Return the changes at these places, in this order."""
        wanted = pa.array(places)
        keys, rows = self.keys.take(wanted), self.rows.take(wanted)
        op, commit_ts, seq = self.op[places], self.commit_ts[places], self.seq[places]
        return RowFrame(self.table, op, commit_ts, seq, keys, rows)

    @property
    def head(self) -> bytes:
        """The key of its message: the table."""
        return json.dumps(self.table.to_json(), separators=(",", ":")).encode()

    def to_parts(self) -> tuple[bytes, pa.Buffer]:
        """Return the two parts of its message's value: a length and the changes."""
        numbers = [pa.array(part) for part in (self.op, self.commit_ts, self.seq)]
        columns = [*numbers, self.keys, self.rows]
        body = pa.RecordBatch.from_arrays(columns, schema=_SCHEMA).serialize()
        return body.size.to_bytes(_SIZE, "little"), body

    @classmethod
    def from_message(cls, key: bytes | None, value: bytes | pa.Buffer | None) -> RowFrame:
        """Read what `head` and `to_parts` wrote, without a copy.

        Raises:
            DecodeError: the bytes are something else, or not all of it.
        """
        if key is None or value is None:
            raise DecodeError("a frame of SQL rows has a key and a value")
        data = pa.py_buffer(value)
        size = int.from_bytes(data[:_SIZE].to_pybytes(), "little") if data.size > _SIZE else -1
        if size != data.size - _SIZE:
            raise DecodeError("a frame of SQL rows is not as long as it says")
        try:
            batch = pa.ipc.read_record_batch(data.slice(_SIZE), _SCHEMA)
            batch.validate(full=True)
            table = _table(key)
        except (pa.ArrowInvalid, OSError, ValueError, KeyError, TypeError) as err:
            raise DecodeError(f"a frame of SQL rows cannot be read: {err}") from None
        op, commit_ts, seq = (batch.column(place).to_numpy() for place in range(3))
        return cls(table, op, commit_ts, seq, batch.column(3), batch.column(4))


@lru_cache(maxsize=256)
def _table(key: bytes) -> TableSchema:
    form: Any = json.loads(key)
    return TableSchema.from_json(form)


def written_columns(table: TableSchema) -> tuple[str, ...]:
    """Return the columns that statements write: all but generated ones."""
    return tuple(c.name for c in table.columns if not c.generated)


def key_end(table: TableSchema) -> bytes:
    """Return what stands between two texts that name rows: of a list, or of a condition."""
    return b"," if len(table.handle_key) == 1 else b" OR "


def quoted(name: str) -> str:
    """Return a name as SQL writes it."""
    return f"`{name.replace('`', '``')}`"


def quoted_table(table: TableId) -> str:
    """Return a table's whole name as SQL writes it."""
    return f"{quoted(table.database)}.{quoted(table.table)}"
