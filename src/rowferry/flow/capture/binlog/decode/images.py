"""The second half of decoding: row images as Arrow structs, from the places of their values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rowferry.columnar.addresses import Bytes, Longs, frozen
from rowferry.flow.capture.binlog.decode import kernels_columns as kernels
from rowferry.flow.capture.binlog.decode.columns import BadValue, ColumnReader, Flags, Strings
from rowferry.flow.capture.binlog.decode.kernels_find import AFTER, BEFORE, DELETE, INSERT

# Of each row, which op has no such image.
_WITHOUT: Final = {BEFORE: INSERT, AFTER: DELETE}


@dataclass(frozen=True, slots=True)
class FoundRows:
    """The rows of a chunk, as the first pass found them; see `decode_kernels.walk`.

    Attributes:
        block: rows to take column by column together.
        partial: which JSON documents after the change hold changes only; None: there are none.
    """

    rows: int
    block: int
    op: npt.NDArray[np.int8]
    event: npt.NDArray[np.int32]
    at: Longs
    shape: npt.NDArray[np.int16]
    shaped: Longs
    sizes: Longs
    nulls: Longs
    partial: npt.NDArray[np.uint8] | None


class ImageRefused(Exception):
    """A value cannot be read: its row in the chunk, its column, its place, and why."""

    def __init__(self, row: int, column: int, place: int, why: int) -> None:
        self.row = row
        self.column = column
        self.place = place
        self.why = why


@dataclass(frozen=True, slots=True)
class _Filled:
    """What the second pass made of one side's images; `j` counts the columns that they have."""

    columns: list[int]
    words: Longs
    offsets: Longs
    begin: Longs
    out: Bytes
    slot: Longs
    bitmaps: Bytes
    bitmap_slot: Longs

    def strings(self, j: int) -> Strings:
        k = int(self.slot[j])
        return Strings(self.out[self.begin[k] : self.begin[k + 1]], self.offsets[k])

    def bitmap(self, j: int) -> pa.Buffer | None:
        k = int(self.bitmap_slot[j])
        return pa.py_buffer(self.bitmaps[k]) if k >= 0 else None


@dataclass(frozen=True, slots=True)
class _Places:
    """Which columns an image has, and where the second pass puts them.

    Attributes:
        strings: those of variable length, counted as in the image.
        fixed: how many are 64-bit words.
        slot: of each column, among the words or among the strings.
        no_bitmaps: the slots of the bitmaps where no column has a NULL.
    """

    columns: list[int]
    strings: list[int]
    fixed: int
    slot: Longs
    no_bitmaps: Longs

    @classmethod
    def of(cls, readers: Sequence[ColumnReader], columns: list[int]) -> _Places:
        fixed = np.array([readers[c].is_fixed for c in columns], np.bool_)
        return cls(
            columns,
            strings=np.flatnonzero(~fixed).tolist(),
            fixed=int(fixed.sum()),
            slot=frozen(np.where(fixed, np.cumsum(fixed), np.cumsum(~fixed)) - 1),
            no_bitmaps=np.full(len(columns), -1, np.int64),
        )


class ImageReader:
    """Reads row images of one table."""

    def __init__(self, columns: list[ColumnReader], documents: list[int]) -> None:
        self._columns = columns
        self._documents = {column: i for i, column in enumerate(documents)}
        self._action = frozen(np.array([c.action for c in columns], np.int64))
        self._first = frozen(np.array([c.first for c in columns], np.int64))
        self._second = frozen(np.array([c.second for c in columns], np.int64))
        self._all = _Places.of(columns, list(range(len(columns))))
        self._image = pa.struct([pa.field(c.name, c.arrow) for c in columns])

    def read(self, raw: Bytes, places: FoundRows) -> tuple[pa.StructArray, pa.StructArray]:
        """Return the images before and after the changes; null where there is none.

        Raises:
            Refused: a value cannot be read.
        """
        # Binary documents before the change, for those after it that hold changes only.
        documents: dict[int, tuple[Strings, Flags]] = {}
        before = self._side(raw, places, BEFORE, documents)
        return before, self._side(raw, places, AFTER, documents)

    def _side(
        self, raw: Bytes, places: FoundRows, side: int, documents: dict[int, tuple[Strings, Flags]]
    ) -> pa.StructArray:
        if places.shaped[side] < 0:
            return pa.nulls(places.rows, self._image)
        filled = self._fill(raw, places, side)
        arrays = []
        for j, column in enumerate(filled.columns):
            reader, nulls = self._columns[column], int(places.nulls[side, j])
            if reader.is_fixed:
                words = filled.words[filled.slot[j]]
                arrays.append(reader.words(words, filled.bitmap(j), nulls))
                continue
            strings, present = filled.strings(j), places.at[side, : places.rows, j] >= 0
            try:
                if places.partial is not None and column in self._documents:
                    if side == AFTER:
                        changed = places.partial[:, self._documents[column]] > 0
                        before = documents.get(column)
                        strings = reader.with_changes(strings, present & changed, before)
                    else:
                        documents[column] = strings, present
                arrays.append(reader.strings(strings, present, filled.bitmap(j), nulls))
            except BadValue as err:
                place = int(places.at[side, err.row, j])
                raise ImageRefused(err.row, column, place, err.why) from None
        have = places.op != _WITHOUT[side]
        bitmap = None if have.all() else pa.py_buffer(np.packbits(have, bitorder="little"))
        image = self._image
        if len(filled.columns) != len(self._columns):
            image = pa.struct([image.field(column) for column in filled.columns])
        return pa.Array.from_buffers(image, places.rows, [bitmap], children=arrays)

    def _fill(self, raw: Bytes, located: FoundRows, side: int) -> _Filled:
        """Run the second pass."""
        rows, n = located.rows, int(located.shaped[side])
        places = self._all
        if n != len(self._columns):
            places = _Places.of(self._columns, located.shape[side, :n].tolist())
        nulls, sizes = located.nulls[side, :n].tolist(), located.sizes[side, :n].tolist()
        readers = self._columns
        begin = [0]
        for j in places.strings:
            room = readers[places.columns[j]].room(rows - nulls[j], sizes[j])
            begin.append(begin[-1] + room)
        with_nulls = [j for j in range(n) if nulls[j]]
        bitmap_slot = places.no_bitmaps
        if with_nulls:
            bitmap_slot = bitmap_slot.copy()
            bitmap_slot[with_nulls] = np.arange(len(with_nulls))
        filled = _Filled(
            places.columns,
            words=np.empty((places.fixed, rows), np.int64),
            offsets=np.empty((len(places.strings), rows + 1), np.int64),
            begin=frozen(np.array(begin, np.int64)),
            out=np.empty(begin[-1], np.uint8),
            slot=places.slot,
            bitmaps=np.empty((len(with_nulls), (rows + 7) // 8), np.uint8),
            bitmap_slot=frozen(bitmap_slot),
        )
        row, j, why = kernels.fill(
            raw,
            located.at[side],
            rows,
            located.block,
            located.shape[side],
            self._action,
            self._first,
            self._second,
            filled.slot,
            filled.words,
            filled.offsets,
            filled.begin,
            filled.out,
            filled.bitmap_slot,
            filled.bitmaps,
        )
        if why:
            column = places.columns[j]
            raise ImageRefused(int(row), column, int(located.at[side, row, j]), int(why))
        return filled
