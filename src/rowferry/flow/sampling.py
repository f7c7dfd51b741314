"""The last changes of a segment, for people: a few rows, cut short, taken once it is written.

What is seen here was decided already: masks, computed columns and column rules hold.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from rowferry.change.chunk import Op, Rows
from rowferry.change.sampled_change import HIDDEN, Image, SampledChange, SampleMode

_ROWS: Final = 4  # of a segment
_COLUMNS: Final = 16  # of a row, the key among them
_CHARACTERS: Final = 48  # of a value
_MORE: Final = "…"


@dataclass(slots=True)
class Sampler:
    """Keeps hold of the last chunk of a segment, and no more: rows pass as quickly as without."""

    mode: SampleMode
    snapshot: bool
    _last: Rows | None = None

    def saw(self, rows: Rows) -> None:
        """Take in rows on their way to an output."""
        if self.mode is not SampleMode.OFF and len(rows):
            self._last = rows

    def forms(self) -> list[dict[str, Any]] | None:
        """Return the last rows as receipts carry them; None: there are none, or none are wanted."""
        if self._last is None:
            return None
        return [one.to_json() for one in _changes(self._last, self.mode, self.snapshot)]


def _changes(rows: Rows, mode: SampleMode, snapshot: bool) -> list[SampledChange]:
    last = rows.batch.slice(max(0, rows.batch.num_rows - _ROWS))
    table, shown = rows.table, mode is SampleMode.VALUES
    keys = list(table.handle_key)[:_COLUMNS]
    before = _images(last.column("before"), keys) if shown else [None] * last.num_rows
    after = _images(last.column("after"), keys) if shown else [None] * last.num_rows
    changes = []
    for place, (op, stamp) in enumerate(
        zip(last.column("op").to_pylist(), last.column("commit_ts").to_pylist(), strict=True)
    ):
        old, new = before[place], after[place]
        image: Image = new or old or {}
        key = {name: image.get(name) if shown else HIDDEN for name in keys}
        word = "snapshot" if snapshot and op == Op.INSERT else Op(op).name.lower()
        changes.append(SampledChange(table.id, word, stamp, key, old, new))
    return changes


def _images(images: pa.StructArray, keys: list[str]) -> list[Image | None]:
    """Return images as texts: the key's columns, and as many others as there is room for."""
    names = [field.name for field in images.type]
    chosen = [*(n for n in names if n in keys), *(n for n in names if n not in keys)][:_COLUMNS]
    whole = images.flatten()
    columns = {name: _texts(whole[names.index(name)]) for name in chosen}
    there = images.is_valid().to_pylist()
    return [
        {name: columns[name][place] for name in chosen} if known else None
        for place, known in enumerate(there)
    ]


def _texts(column: pa.Array) -> list[str | None]:
    """Return values as short texts; a long one is cut before it becomes an object."""
    kind = column.type
    if pa.types.is_large_string(kind) or pa.types.is_string(kind):
        cut = pc.utf8_slice_codeunits(column, 0, _CHARACTERS + 1).to_pylist()
        return [None if text is None else _short(text) for text in cut]
    if pa.types.is_large_binary(kind) or pa.types.is_binary(kind):
        cut = pc.binary_slice(column, 0, _CHARACTERS // 2 + 1).to_pylist()
        return [None if data is None else _short(f"0x{data.hex()}") for data in cut]
    return [None if value is None else _short(str(value)) for value in column.to_pylist()]


def _short(text: str) -> str:
    return text if len(text) <= _CHARACTERS else text[:_CHARACTERS] + _MORE
