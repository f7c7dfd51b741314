"""Rows of parked keys leave the flow here; rows that are sent again come back into it.

    capture ──▶ decide ──▶ (parked keys are taken out) ──▶ dispatch ──▶ encode ──▶ sink
                           (retry: parked rows) ───────────▶

Rows are parked as `decide` has left them, so that masked values stay masked.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rowferry.change.chunk import Rows
from rowferry.change.plan import Receipt, Segment, TableSlice
from rowferry.change.quarantine import (
    EVERY_KEY,
    KEY_SHAPE,
    LIMIT_BYTES,
    ROW_BYTES,
    DivertedRow,
    PlanQuarantine,
    RefusedKey,
    cause_of,
    too_many,
)
from rowferry.change.table import TableSchema
from rowferry.columnar.row_keys import has_exact_key, key_texts
from rowferry.errors import DecodeError, MessageTooLarge, QuarantineFull

_SIZE: Final = 4  # bytes of the length before each image
_ORDINAL_BITS: Final = 40


class Parking:
    """What one task takes out of the flow."""

    def __init__(self, asked: PlanQuarantine | None, limit: int) -> None:
        """Take out rows of the keys that a plan names, at most `limit` of them."""
        self._keys = {one.table_id: one.keys for one in asked.parked} if asked else {}
        self._limit = limit
        self._rows: list[DivertedRow] = []
        self._bytes = 0

    def passed(self, rows: Rows) -> Rows:
        """Return the rows that go on.

        Raises:
            QuarantineFull: more rows wait than may be parked.
        """
        keys = self._keys.get(rows.table.table_id)
        if not keys or not len(rows):
            return rows
        waits = waiting(rows, keys)
        if not waits.any():
            return rows
        every = EVERY_KEY in keys or not has_exact_key(rows.table)
        self._take(rows, np.flatnonzero(waits), None if every else key_texts(rows))
        return rows.take(np.flatnonzero(~waits))

    def receipts(self, segment: int) -> list[Receipt]:
        """Return what was taken out of a segment, for the driver."""
        if not self._rows:
            return []
        rows = [row.to_json() for row in self._rows]
        return [Receipt.of_quarantine({"segment": segment, "parked": rows})]

    def _take(
        self, rows: Rows, places: npt.NDArray[np.int64], texts: pa.LargeStringArray | None
    ) -> None:
        table = rows.table
        shape = shape_of(table)
        for at in places.tolist():
            image = _image(rows.batch, at)
            if len(image) > ROW_BYTES:
                raise QuarantineFull(
                    f"table {table.id}: a row of {len(image)} bytes waits, and the quarantine "
                    f"takes rows of up to {ROW_BYTES} bytes"
                )
            self._bytes += len(image)
            if len(self._rows) >= self._limit or self._bytes > LIMIT_BYTES:
                raise too_many(self._limit, f"table {table.id} has rows that wait")
            self._rows.append(
                DivertedRow(
                    table=table.id,
                    table_id=table.table_id,
                    version=table.version,
                    physical_id=rows.physical_id,
                    key=EVERY_KEY if texts is None else texts[at].as_py(),
                    op=int(rows.op[at]),
                    commit_ts=int(rows.commit_ts[at]),
                    shape=shape,
                    image=image,
                )
            )


def waiting(rows: Rows, keys: Sequence[str]) -> npt.NDArray[np.bool_]:
    """Return which rows are of parked keys of their table."""
    if EVERY_KEY in keys or not has_exact_key(rows.table):
        return np.ones(len(rows), np.bool_)
    are_in = pc.is_in(key_texts(rows), value_set=pa.array(keys, pa.large_utf8()))
    mask: npt.NDArray[np.bool_] = are_in.to_numpy(zero_copy_only=False)
    return mask


def diverted(receipts: Iterable[Receipt]) -> tuple[DivertedRow, ...]:
    """Return the rows that tasks took out, in the order of their segments."""
    parts = [r.quarantine for r in receipts if r.quarantine and "parked" in r.quarantine]
    parts.sort(key=lambda part: int(part["segment"]))
    return tuple(DivertedRow.from_json(form) for part in parts for form in part["parked"])


def refused(receipts: Iterable[Receipt]) -> tuple[RefusedKey, ...]:
    """Return the keys that the target refused, each once."""
    forms = (form for r in receipts for form in (r.quarantine or {}).get("refused", ()))
    each = {one.parked_key: one for one in map(RefusedKey.from_json, forms)}
    return tuple(each[key] for key in sorted(each))


def refusal_receipts(keys: Sequence[RefusedKey]) -> list[Receipt]:
    """Return refusals for the driver."""
    if not keys:
        return []
    return [Receipt.of_quarantine({"refused": [one.to_json() for one in keys]})]


def shape_of(table: TableSchema) -> str:
    """Return a text that is equal where rows of one version fit into another as they are.

    Its first `KEY_SHAPE` characters are equal where keys can be compared.
    """
    columns = [[c.name, c.type.to_json(), c.generated] for c in table.columns]
    key = [[name, table.column(name).type.to_json()] for name in table.handle_key]
    return _digest(key)[:KEY_SHAPE] + _digest([columns, key])[KEY_SHAPE:]


def _digest(form: Any) -> str:
    return hashlib.sha256(json.dumps(form).encode()).hexdigest()


# --- rows that the codec refuses -----------------------------------------------------------------


def refusal_of(rows: Rows, error: MessageTooLarge) -> RefusedKey:
    """Return the refusal of a single row that cannot be encoded.

    Raises:
        MessageTooLarge: it cannot be parked, because later changes of it would not be known.
    """
    table = rows.table
    if not table.handle_key or not table.table_id:
        raise error
    key = key_texts(rows)[0].as_py() if has_exact_key(table) else EVERY_KEY
    return RefusedKey(table.table_id, key, cause_of(error.words))


# --- rows that are sent again --------------------------------------------------------------------


def joined_images(images: Iterable[bytes]) -> bytes:
    """Return the payload of a segment of parked rows."""
    return b"".join(len(one).to_bytes(_SIZE, "little") + one for one in images)


def parked_rows(segment: Segment, tables: Mapping[TableSlice, TableSchema]) -> Iterator[Rows]:
    """Yield the rows of a segment that sends parked ones again, in their order.

    `tables` has the versions as readers see them; the images have their shape.
    """
    one = segment.slices[0]
    table = tables[one]
    held: list[pa.RecordBatch] = []
    count = 0
    for image in _split(segment.payload):
        batch = pa.ipc.open_stream(image).read_next_batch()
        if held and held[0].schema != batch.schema:
            yield _chunk(table, held, one.physical_id, segment.ordinal, count)
            count, held = count + len(held), []
        held.append(batch)
    if held:
        yield _chunk(table, held, one.physical_id, segment.ordinal, count)


def shown_images(image: bytes) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
    """Return the row before and after a parked change, by column."""
    batch = pa.ipc.open_stream(image).read_next_batch()
    before, after = (batch.column(name)[0].as_py() for name in ("before", "after"))
    return before, after


def _chunk(
    table: TableSchema, held: list[pa.RecordBatch], physical_id: int | None, ordinal: int, at: int
) -> Rows:
    whole = pa.Table.from_batches(held).combine_chunks().to_batches()[0]
    places = (ordinal << _ORDINAL_BITS) + at + np.arange(len(held), dtype=np.int64)
    seq = whole.schema.get_field_index("seq")
    return Rows(table, whole.set_column(seq, "seq", pa.array(places)), physical_id)


def _split(payload: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(payload):
        size = int.from_bytes(payload[at : at + _SIZE], "little")
        image = payload[at + _SIZE : at + _SIZE + size]
        if len(image) != size:
            raise DecodeError("parked rows are not as long as they say")
        yield image
        at += _SIZE + size


def _image(batch: pa.RecordBatch, at: int) -> bytes:
    """Return one row as an Arrow IPC stream; its buffers hold nothing of its neighbours."""
    one = batch.take(pa.array([at]))
    out = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(out, one.schema, options=options) as writer:
        writer.write_batch(one)
    return bytes(out.getvalue().to_pybytes())
