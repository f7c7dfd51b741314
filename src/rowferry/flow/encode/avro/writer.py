"""From columns to Avro binary: the programs that the compiled writer runs.

A program is how one kind of row is written: literal bytes and cells, in order. An Avro record has
no marks between its fields, so a row is its fields' bytes one after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rowferry.change.sqltype import Kind
from rowferry.change.table import TableSchema
from rowferry.columnar.fields import Field, element_text
from rowferry.columnar.memory import frozen
from rowferry.errors import EncodeError
from rowferry.flow.encode.avro import kernels
from rowferry.flow.encode.avro.kernels_decimal import decimal_bytes
from rowferry.flow.encode.avro.schema import Modes, bit_bytes, has_default

_FIRST, _SECOND = 0, 2  # the bytes of a union's branches


@dataclass(frozen=True, slots=True)
class AvroCell:
    """A column's values: int64 or uint64 (LONG, BITS, WORD), float64 (DOUBLE), text or binary.

    A value of several parts is several cells. Its first one has the union's branches, and the
    others write `NOTHING` for NULL.

    Attributes:
        valid: the array whose validity counts; None: that of the values.
        branch: the byte of the union's branch before a value, -1 without a union.
        null: the byte of the branch that NULL is, -1 without a union.
        width: the bytes of a BITS value (written with their count) or of a WORD (without).
    """

    kind: int
    values: pa.Array
    name: str = ""
    valid: pa.Array | None = None
    branch: int = -1
    null: int = -1
    width: int = 0


Part = bytes | AvroCell


def cell_of(table: TableSchema, field: Field, modes: Modes) -> AvroCell:
    """Return how one column is written; it fits the schema's field of that column.

    Raises:
        EncodeError: a value that the column's type cannot have.
    """
    column = field.column
    kind, values, width = _rendered(table, field, modes)
    branch = null = -1
    if column.nullable:
        default_first = has_default(column, modes)
        branch, null = (_FIRST, _SECOND) if default_first else (_SECOND, _FIRST)
    return AvroCell(kind, values, column.name, field.values, branch, null, width)


def _rendered(table: TableSchema, field: Field, modes: Modes) -> tuple[int, pa.Array, int]:
    """Return the kind of cell, its values, and the width of BITS or WORD."""
    type_, values = field.column.type, field.values
    match type_.kind:
        case Kind.INTEGER | Kind.YEAR:
            if modes.bigint_text and type_.name == "bigint" and type_.unsigned:
                return kernels.TEXT, values.cast(pa.large_utf8()), 0
            return kernels.LONG, values, 0  # an unsigned number above the largest long wraps
        case Kind.FLOAT if modes.single_float:
            return kernels.WORD, single_floats(values), 4
        case Kind.FLOAT | Kind.DOUBLE:
            return kernels.DOUBLE, values.cast(pa.float64()), 0
        case Kind.BIT:
            return kernels.BITS, values, bit_bytes(type_)
        case Kind.ENUM | Kind.SET:
            return kernels.TEXT, element_text(table, field), 0
        case Kind.DECIMAL if not modes.decimal_text:
            try:
                return kernels.TEXT, decimal_bytes(values, type_.fraction_digits), 0
            except EncodeError as err:
                raise EncodeError(f"{table.id}.{field.column.name}: {err.words}") from None
    return kernels.TEXT, values, 0


def single_floats(values: pa.Array) -> pa.Array:
    """Return floats as the words that are written, most significant byte first, as Avro's four."""
    numbers = values.fill_null(0).to_numpy(zero_copy_only=False).astype("<f4", copy=False)
    return pa.array(np.ascontiguousarray(numbers).view(">u4").astype(np.uint64))


def write_rows(
    programs: Sequence[Sequence[Part]],
    which: npt.NDArray[np.int8],
    absent: npt.NDArray[np.bool_] | None = None,
) -> pa.LargeBinaryArray:
    """Write each row with the program that `which` names.

    Args:
        programs: how each kind of row is written; every cell has a value for every row.
        which: the program's place for each row.
        absent: rows whose result is NULL, whatever was written for them.

    Raises:
        EncodeError: NULL in a column that has no place for it, or columns that do not fit together.
    """
    tables = _Tables(len(which))
    for parts in programs:
        tables.add(parts)
    room = (len(which) + 1) * max(tables.reserve, default=0) + tables.text_bytes
    out, offsets = np.empty(room, np.uint8), np.zeros(len(which) + 1, np.int64)
    programs_of = frozen(np.ascontiguousarray(which, np.int8))
    bounds, reserve, entries, pool = tables.arrays()
    ended, row, place = kernels.write(programs_of, bounds, reserve, entries, pool, out, offsets)
    if ended == kernels.NOT_NULLABLE:
        name = tables.names[place]
        raise EncodeError(f"row {row} of a chunk has NULL in column {name!r}, which is NOT NULL")
    if ended != kernels.DONE:
        raise EncodeError(f"row {row} of a chunk has text outside its buffer")
    bitmap = None
    if absent is not None and absent.any():
        bitmap = pa.py_buffer(np.packbits(~absent, bitorder="little"))
    buffers = [bitmap, pa.py_buffer(offsets), pa.py_buffer(out[: offsets[-1]])]
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(which), buffers)


class _Tables:
    """Programs as the compiled writer takes them."""

    def __init__(self, rows: int) -> None:
        self.rows = rows
        self.names: list[str] = []
        self.reserve: list[int] = []
        self.text_bytes = 0
        self._entries: list[list[int]] = []
        self._bounds = [0]
        self._pool = bytearray()
        self._alive: list[Any] = []  # the writer sees addresses only

    def add(self, parts: Sequence[Part]) -> None:
        reserve = 0
        for part in parts:
            entry = [0] * kernels.COLUMNS
            if isinstance(part, bytes):
                entry[kernels.KIND] = kernels.LITERAL
                entry[kernels.DATA], entry[kernels.SIZE] = len(self._pool), len(part)
                self._pool += part
                reserve += len(part)
            else:
                self._fill(entry, part)
                reserve += 1 + kernels.LONGEST + part.width
            self.names.append("" if isinstance(part, bytes) else part.name)
            self._entries.append(entry)
        self._bounds.append(len(self._entries))
        self.reserve.append(reserve)

    def arrays(self) -> tuple[Any, Any, Any, Any]:
        return (
            np.array(self._bounds, np.int64),
            np.array(self.reserve, np.int64),
            np.array(self._entries, np.int64).reshape(-1, kernels.COLUMNS),
            frozen(np.frombuffer(bytes(self._pool) or b"\0", np.uint8)),
        )

    def _fill(self, entry: list[int], cell: AvroCell) -> None:
        values = cell.values
        if len(values) != self.rows:
            raise EncodeError("a chunk's column is shorter than the chunk")
        entry[kernels.KIND], entry[kernels.WIDTH] = cell.kind, cell.width
        entry[kernels.BRANCH], entry[kernels.NULL] = cell.branch, cell.null
        self._alive.append(cell)
        if self.rows == 0:
            return
        is_text = cell.kind in (kernels.TEXT, kernels.RAW)
        count = self.rows + 1 if is_text else self.rows
        places = values.buffers()[1]
        if places is None or places.size < (values.offset + count) * 8:
            raise EncodeError("a chunk's column is shorter than the chunk")
        entry[kernels.VALUES] = int(places.address) + values.offset * 8
        if is_text:
            data = values.buffers()[2]
            entry[kernels.DATA] = data.address if data is not None else 0
            entry[kernels.SIZE] = data.size if data is not None else 0
            ends = np.frombuffer(places, np.int64)[values.offset : values.offset + count]
            self.text_bytes += max(int(ends[-1] - ends[0]), 0)
        valid = values if cell.valid is None else cell.valid
        bitmap = valid.buffers()[0]
        if bitmap is not None and valid.null_count:
            if bitmap.size * 8 < valid.offset + self.rows:
                raise EncodeError("a chunk's validity bitmap is too short")
            entry[kernels.VALID], entry[kernels.BIT] = bitmap.address, valid.offset
