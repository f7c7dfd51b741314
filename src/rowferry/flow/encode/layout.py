"""Layouts: how each kind of row change is made of literals and cells.

A codec adds its columns as slots, then one program for each kind of row; `run` lets the compiled
writer make the bytes. Knows nothing of any format.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rowferry.change.remembered import Remembered
from rowferry.change.table import TableId, TableSchema
from rowferry.columnar.memory import frozen
from rowferry.errors import EncodeError
from rowferry.flow.encode.kernels import row_writer as kernels

_ENTRY, _INSTRUCTION = 10, 7  # numbers in a slot and in an instruction
_INT64, _UINT64 = pa.int64().id, pa.uint64().id
_REMEMBERED = 8192


@dataclass(frozen=True, slots=True)
class Cell:
    """The row's value in a slot."""

    slot: int


@dataclass(frozen=True, slots=True)
class Pick:
    """One of two literals: `high` where the slot's unsigned value is above the limit."""

    slot: int
    limit: int
    low: bytes
    high: bytes


@dataclass(frozen=True, slots=True)
class ChangedCell:
    """`name`, the cell and `close`, where the cell differs from another; commas between them."""

    slot: int
    other: int
    name: bytes
    close: bytes = b""  # one byte, or none


Part = bytes | Cell | Pick | ChangedCell


@dataclass(frozen=True, slots=True)
class Programs:
    """Finished programs, for any chunk whose columns are those of the first.

    Attributes:
        nulls: where each slot's NULL text lies in the pool.
        typical: the most bytes that a row needs beside its text cells.
    """

    code: npt.NDArray[np.int64]
    bounds: npt.NDArray[np.int64]
    reserve: npt.NDArray[np.int64]
    pool: npt.NDArray[np.uint8]
    nulls: tuple[tuple[int, int], ...]
    typical: int


class Layout:
    """Slots and programs for the rows of one chunk.

    With `known` programs only slots are added, the same and in the same order as for the chunk that
    they were made for.
    """

    def __init__(self, mark: bytes = b"", known: Programs | None = None) -> None:
        self._known = known
        self._mark = frozen(np.frombuffer(mark, np.uint8))
        self._pool = bytearray()
        self._slots: list[list[int]] = []
        self._code: list[list[int]] = []
        self._bounds = [0]
        self._reserve: list[int] = []
        self._text_bytes = 0
        self._alive: list[Any] = []  # the writer sees addresses only

    def slot(
        self, array: pa.Array, mode: int, wrap: int = 0, null: bytes = b"null", valid: Any = None
    ) -> int:
        """Add a column of int64, uint64, large_utf8 or large_binary; return its number.

        Args:
            array: the values, one for each row of the chunk.
            mode: how text is written, of `kernels`.
            wrap: a byte written before and after each value; 0 for none.
            null: what stands for NULL, never wrapped.
            valid: the array whose validity counts, where it is not `array` itself.
        """
        width = array.type.id
        buffers = array.buffers()
        entry = [0] * _ENTRY
        if width in (_INT64, _UINT64):
            entry[kernels.KIND] = kernels.SIGNED if width == _INT64 else kernels.UNSIGNED
            entry[kernels.VALUES] = self._address(buffers[1], array.offset, len(array))
        else:
            entry[kernels.KIND] = kernels.TEXT
            count = len(array) + 1 if len(array) else 0  # an empty array may lack its first offset
            entry[kernels.VALUES] = self._address(buffers[1], array.offset, count)
            data = buffers[2]
            entry[kernels.DATA] = data.address if data is not None else 0
            entry[kernels.SIZE] = data.size if data is not None else 0
            self._text_bytes += _text_size(array)
        source = array if valid is None else valid
        bitmap = buffers[0] if valid is None else valid.buffers()[0]
        if bitmap is not None and source.null_count:
            if bitmap.size * 8 < source.offset + len(source):
                raise EncodeError("a chunk's validity bitmap is too short")
            entry[kernels.VALID], entry[kernels.BIT] = bitmap.address, source.offset
        entry[kernels.MODE], entry[kernels.WRAP] = mode, wrap
        known = self._known
        place = self._literal(null) if known is None else known.nulls[len(self._slots)]
        entry[kernels.NULL_FROM], entry[kernels.NULL_TO] = place
        self._alive.append((array, source))
        self._slots.append(entry)
        return len(self._slots) - 1

    def program(self, parts: Sequence[Part]) -> int:
        """Add how one kind of row is written; return its number."""
        reserve, run = 0, bytearray()

        def flush() -> None:
            if run:
                self._code.append([kernels.LITERAL, *self._literal(bytes(run)), 0, 0, 0, 0])
                run.clear()

        for part in parts:
            if isinstance(part, bytes):
                run += part
                reserve += len(part)
                continue
            flush()
            reserve += self._reserve_of(part)
            match part:
                case Cell(slot):
                    self._code.append([kernels.CELL, slot, 0, 0, 0, 0, 0])
                case Pick(slot, limit, low, high):
                    places = [*self._literal(low), *self._literal(high)]
                    self._code.append([kernels.PICK, slot, limit, *places])
                case ChangedCell(slot, other, name, close):
                    places = [*self._literal(name), int.from_bytes(close)]
                    self._code.append([kernels.CHANGED, slot, other, *places, 0])
        flush()
        self._bounds.append(len(self._code))
        self._reserve.append(reserve)
        return len(self._reserve) - 1

    @property
    def programs(self) -> Programs:
        """All programs, finished."""
        if self._known is None:
            slots = (s[kernels.NULL_FROM : kernels.NULL_TO + 1] for s in self._slots)
            self._known = Programs(
                code=np.array(self._code, np.int64).reshape(-1, _INSTRUCTION),
                bounds=np.array(self._bounds, np.int64),
                reserve=np.array(self._reserve, np.int64),
                pool=frozen(np.frombuffer(bytes(self._pool) or b"\0", np.uint8)),
                nulls=tuple((a, b) for a, b in slots),
                typical=max(self._reserve, default=0),
            )
        return self._known

    def run(self, which: npt.NDArray[np.int8]) -> pa.LargeBinaryArray:
        """Write every row with the program that `which` names; values are contiguous."""
        count = len(which)
        programs = self.programs
        typical = programs.typical
        out = np.empty(count * typical + self._text_bytes + self._text_bytes // 16 + 64, np.uint8)
        offsets = np.zeros(count + 1, np.int64)
        which = frozen(np.ascontiguousarray(which, np.int8))
        tables = (
            programs.code,
            programs.bounds,
            programs.reserve,
            np.array(self._slots, np.int64).reshape(-1, _ENTRY),
            programs.pool,
            self._mark,
        )
        row, end = kernels.write_rows(0, which, *tables, out, offsets)
        while end == kernels.FULL:
            larger = np.empty(2 * len(out) + typical, np.uint8)
            larger[: offsets[row]] = out[: offsets[row]]
            out = larger
            row, end = kernels.write_rows(row, which, *tables, out, offsets)
        if end == kernels.BAD_TEXT:
            raise EncodeError(f"row {row} of a chunk has text outside its buffer")
        values = pa.py_buffer(out[: offsets[-1]])
        return pa.LargeBinaryArray.from_buffers(
            pa.large_binary(), count, [None, pa.py_buffer(offsets), values]
        )

    def _literal(self, text: bytes) -> tuple[int, int]:
        start = len(self._pool)
        self._pool += text
        return start, len(self._pool)

    def _reserve_of(self, part: Cell | Pick | ChangedCell) -> int:
        if isinstance(part, Pick):
            return max(len(part.low), len(part.high))
        entry = self._slots[part.slot]
        digits = 0 if entry[kernels.KIND] == kernels.TEXT else kernels.DIGITS
        cell = max(digits + 2, entry[kernels.NULL_TO] - entry[kernels.NULL_FROM])
        return cell + (len(part.name) + 2 if isinstance(part, ChangedCell) else 0)

    def _address(self, buffer: pa.Buffer | None, start: int, count: int) -> int:
        if count == 0:
            return 0
        if buffer is None or buffer.size < (start + count) * 8:
            raise EncodeError("a chunk's column is shorter than the chunk")
        return int(buffer.address) + start * 8


def _text_size(array: pa.Array) -> int:
    """Return how many bytes of text the rows have (a slice may share a much larger buffer)."""
    if len(array) == 0:
        return 0
    offsets = np.frombuffer(array.buffers()[1], np.int64)
    return max(int(offsets[array.offset + len(array)] - offsets[array.offset]), 0)


class ProgramMemory:
    """Programs of table versions, kept for the next chunk: to make them costs more than to run."""

    def __init__(self) -> None:
        self._kept: Remembered[tuple[TableId, Hashable], tuple[TableSchema, int, Programs]]
        self._kept = Remembered(_REMEMBERED)

    def recall(self, table: TableSchema, facts: Hashable, at_ms: int = 0) -> Programs | None:
        """Return the programs for a table; `facts` and `at_ms` are all else that they depend on."""
        known, then, programs = self._kept.get((table.id, facts), (None, 0, None))
        return programs if known is table and then == at_ms else None

    def keep(self, table: TableSchema, facts: Hashable, programs: Programs, at_ms: int = 0) -> None:
        """Remember programs, instead of those of another version of the table or another time."""
        self._kept[table.id, facts] = (table, at_ms, programs)
