"""The hash of each row of a chunk: of its table's name and of some columns' names and values.

h = 0; each piece is "written" by h ^= CRC-32 of its bytes: first the database's and the table's
name as one piece, then each column's name and value as one. NULL is not written. Names are those of
the source, in their own case; the value is that of the new row, for a delete of the old one.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence, Set
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rowferry.change.chunk import Op, Rows
from rowferry.change.sqltype import Kind
from rowferry.change.table import Column, TableId, TableSchema
from rowferry.columnar.fields import ImagePresence, fields, float_text, one_zero
from rowferry.columnar.float_text import PLAIN
from rowferry.columnar.memory import frozen
from rowferry.errors import BadDispatchRule, EncodeError
from rowferry.flow.dispatch import hash_kernels

_FLOATS = (Kind.FLOAT, Kind.DOUBLE)
_ALL_BITS = 0xFFFFFFFF


def table_hash(table: TableId) -> int:
    """Return the hash of a table's name."""
    return zlib.crc32((table.database + table.table).encode())


def row_hashes(rows: Rows, columns: Sequence[Column]) -> npt.NDArray[np.uint32]:
    """Return the hash of each row by the values of these columns.

    A column that the new image lacks (partial images leave out what did not change) is taken from
    the old one.

    Raises:
        BadDispatchRule: a row has a column in no image: it would go elsewhere than the row's other
            changes.
        EncodeError: a row lacks the image that its kind needs, or values lie outside their buffers.
    """
    op = ImagePresence.of(rows).op
    deletes = op == Op.DELETE
    after = _values(rows.table, rows.after, columns)
    lacking = any(c.name not in after for c in columns)
    before = _values(rows.table, rows.before, columns) if lacking or deletes.any() else {}
    if lacking or deletes.any():
        _refuse_unknown(rows.table, columns, op, before.keys(), after.keys())
    slots = np.zeros((2, len(columns), hash_kernels.ENTRY), np.int64)
    for place, column in enumerate(columns):
        old = before.get(column.name)
        for image, values in enumerate((after.get(column.name, old), old)):
            if values is not None:
                slots[image, place] = values.slot()
    states = [zlib.crc32(c.name.encode()) ^ _ALL_BITS for c in columns]
    out = np.empty(len(rows), np.uint32)
    bad = hash_kernels.hash_rows(
        np.uint64(table_hash(rows.table.id)),
        frozen(deletes.view(np.int8)),
        slots,
        np.array(states, np.uint64),
        out,
    )
    if bad != hash_kernels.DONE:
        raise EncodeError(f"{rows.table.id}: row {bad} of a chunk has text outside its buffer")
    return out


def _refuse_unknown(
    table: TableSchema,
    columns: Sequence[Column],
    op: npt.NDArray[np.int8],
    before: Set[str],
    after: Set[str],
) -> None:
    images = {Op.INSERT: after, Op.UPDATE: after | before, Op.DELETE: before}
    known = [names for kind, names in images.items() if (op == kind).any()]
    # No image ever has a virtual column: all changes of a row go without it.
    stored = [c.name for c in columns if c.generated != "virtual"]
    if lost := [name for name in stored if any(name not in names for names in known)]:
        raise BadDispatchRule(
            f"table {table.id}: the partition is found by {', '.join(lost)}, which changes of it "
            "lack: the source does not tell whole rows; dispatch by the key, by table or by ts"
        )


@dataclass(frozen=True, slots=True)
class _Values:
    """A column as whole numbers or text, and the array whose validity counts."""

    values: pa.Array
    valid: pa.Array

    def slot(self) -> list[int]:
        """Return where the values are, for the kernel.

        Raises:
            EncodeError: a buffer is too small for the rows.
        """
        count, first = len(self.values), self.values.offset
        entry = [hash_kernels.ABSENT] * hash_kernels.ENTRY
        if count == 0:
            return entry
        _, places, *rest = self.values.buffers()
        if pa.types.is_integer(self.values.type):
            signed = self.values.type == pa.int64()
            entry[hash_kernels.KIND] = hash_kernels.SIGNED if signed else hash_kernels.UNSIGNED
        else:
            entry[hash_kernels.KIND] = hash_kernels.TEXT
            count += 1
            data = rest[0]
            entry[hash_kernels.DATA] = data.address if data is not None else 0
            entry[hash_kernels.SIZE] = data.size if data is not None else 0
        if places is None or places.size < (first + count) * 8:
            raise EncodeError("a chunk's column is shorter than the chunk")
        entry[hash_kernels.VALUES] = places.address + first * 8
        bitmap = self.valid.buffers()[0]
        if bitmap is not None and self.valid.null_count:
            if bitmap.size * 8 < self.valid.offset + len(self.valid):
                raise EncodeError("a chunk's validity bitmap is too short")
            entry[hash_kernels.VALID] = bitmap.address
            entry[hash_kernels.BIT] = self.valid.offset
        return entry


def _values(
    table: TableSchema, image: pa.StructArray, columns: Sequence[Column]
) -> dict[str, _Values]:
    """Return those of the columns that an image has, by name."""
    wanted = {c.name for c in columns}
    values_of = {}
    for field in fields(table, image):
        if field.column.name in wanted:
            is_float = field.column.type.kind in _FLOATS
            values = float_text(one_zero(field.values), PLAIN) if is_float else field.values
            values_of[field.column.name] = _Values(values, field.values)
    return values_of
