"""What changes amount to: lines to delete by and lines to write. Pure, and by columns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rowferry.change.chunk import Op
from rowferry.change.table import TableSchema
from rowferry.flow.encode.sql_rows.frame import RowFrame
from rowferry.flow.sink.sql.windows import is_sole_key, net_places


@dataclass(frozen=True, slots=True)
class KeyEffect:
    """Rows of one table to delete, then rows to write; no key is in either part twice.

    Attributes:
        gone: lines of the keys to delete; of a keyless table, lines of whole rows, one for each
            row to delete.
        stays: lines of the rows to write.
        keys: what names each of `stays`; of a keyless table, its lines themselves.
        replacing: rows that stand in the way of others by a further unique key are removed.
    """

    table: TableSchema
    gone: pa.LargeBinaryArray
    stays: pa.LargeBinaryArray
    keys: pa.LargeBinaryArray
    replacing: bool = False

    def __len__(self) -> int:
        return len(self.gone) + len(self.stays)

    @property
    def apart(self) -> bool:
        """Whether parts of it may be done in any order."""
        return bool(self.table.handle_key) and is_sole_key(self.table)

    def as_replacing(self) -> KeyEffect:
        """Return the same where rows that stand in the way are removed."""
        return replace(self, replacing=True)

    def part(self, start: int, stop: int) -> KeyEffect:
        """Return the effect of some neighbouring rows: first those that go, then those that stay.

        Counted are the rows of `gone`, and behind them those of `stays`.
        """
        middle = len(self.gone)
        gone = self.gone.slice(start, max(min(stop, middle) - start, 0)) if start < middle else None
        begin, end = max(start - middle, 0), max(stop - middle, 0)
        return replace(
            self,
            gone=self.gone.slice(0, 0) if gone is None else gone,
            stays=self.stays.slice(begin, end - begin),
            keys=self.keys.slice(begin, end - begin),
        )

    def named(self) -> str:
        """Return the words for its first row, for people."""
        line = next(iter(self.gone if len(self.gone) else self.keys)).as_py()
        key = line.decode("utf-8", "replace").rstrip("\n").replace("\t", ", ")
        if not self.table.handle_key:
            key = "without a key"
        elif len(self.table.handle_key) == 1:
            key = f"{self.table.handle_key[0]} = {key}"
        else:
            key = f"({', '.join(self.table.handle_key)}) = ({key})"
        shown = key if len(key) <= 100 else key[:100] + "…"
        return f"table {self.table.written_as}, row {shown}"


def lines_of(texts: pa.LargeBinaryArray) -> memoryview:
    """Return neighbouring lines as one text, without a copy."""
    if not len(texts):
        return memoryview(b"")
    view = memoryview(texts.buffers()[1]).cast("q")
    data = memoryview(texts.buffers()[2] or b"")
    return data[view[texts.offset] : view[texts.offset + len(texts)]]


def net_effect(frames: list[RowFrame]) -> KeyEffect:
    """Return the net effect of changes of one version of a table with a key, in their order."""
    table = frames[-1].table
    keys = pa.concat_arrays([f.keys for f in frames])
    rows = pa.concat_arrays([f.rows for f in frames])
    op = np.concatenate([f.op for f in frames])
    away, stay = net_places(frames, op, keys, is_sole_key(table))
    return KeyEffect(table, _taken(keys, away), _taken(rows, stay), _taken(keys, stay))


def keyless_effect(frame: RowFrame) -> KeyEffect:
    """Return the net effect of changes of a table without a key: rows are only counted."""
    old = frame.keys.filter(pa.array(frame.op != Op.INSERT))
    new = frame.rows.filter(pa.array(frame.op != Op.DELETE))
    lines = pa.concat_arrays([old, new])
    coded = lines.dictionary_encode()
    codes = coded.indices.to_numpy()
    count = len(coded.dictionary)
    more = np.bincount(codes[len(old) :], minlength=count) - np.bincount(
        codes[: len(old)], minlength=count
    )
    away = np.repeat(np.arange(count), np.maximum(-more, 0))
    stay = np.repeat(np.arange(count), np.maximum(more, 0))
    texts = coded.dictionary
    stays = _taken(texts, stay)
    return KeyEffect(frame.table, _taken(texts, away), stays, stays)


def cut(effect: KeyEffect, rows: int) -> Iterator[KeyEffect]:
    """Yield the parts of an effect of so many rows each: all that go before all that stay."""
    for start in range(0, len(effect), rows):
        yield effect.part(start, min(start + rows, len(effect)))


def _taken(texts: pa.LargeBinaryArray, places: npt.NDArray[np.int64]) -> pa.LargeBinaryArray:
    taken = pc.take(texts, pa.array(places))
    return pa.array([], pa.large_binary()) if not len(taken) else taken
