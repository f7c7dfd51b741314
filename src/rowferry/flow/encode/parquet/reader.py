"""Reading a parquet data file back, row group by row group, whichever layout it has."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rowferry.change.chunk import Change, Op, make_rows
from rowferry.change.table import TableSchema
from rowferry.change.typed_columns import COMMIT_TS, OP, OP_NAMES, SEQ, canonical
from rowferry.errors import DecodeError

BEFORE, AFTER = "_before", "_after"
_ROWS: Final = 65536
_MOST_TEXT: Final = 2 << 30  # bytes of all texts of a file
_TEXTS: Final = ("STRING", "JSON", "ENUM", "BSON", "NONE")


def read_file(data: bytes, table: TableSchema) -> Iterator[Change]:
    """Yield the rows of a file in blocks, `seq` being the one that was written.

    Raises:
        DecodeError: it is no such file, or does not fit the table.
    """
    try:
        content, texts = pa.py_buffer(data), _Texts()
        leaves = pq.ParquetFile(pa.BufferReader(content)).schema
        named = [
            leaf.path
            for leaf in map(leaves.column, range(len(leaves)))
            if leaf.physical_type == "BYTE_ARRAY" and leaf.logical_type.type in _TEXTS
        ]
        # A text that stands in a file once may be that of all rows: it is counted before it grows.
        file = pq.ParquetFile(pa.BufferReader(content), read_dictionary=named)
        for group in range(file.num_row_groups):  # Arrow cannot join structs of two
            for batch in file.iter_batches(_ROWS, row_groups=[group]):
                yield _rows(batch, table, texts)
    except (pa.ArrowException, OSError, KeyError, ValueError) as err:
        words = str(err).splitlines()[0] if str(err) else type(err).__name__
        raise DecodeError(f"table {table.id}: not a parquet file of its changes: {words}") from None


class _Texts:
    """Writes texts out, for each row, as long as a file does not hold too much of them."""

    def __init__(self) -> None:
        self._left = _MOST_TEXT

    def plain(self, values: pa.Array) -> pa.Array:
        if not pa.types.is_dictionary(values.type):
            return values
        lengths = pc.take(pc.binary_length(values.dictionary), values.indices)
        self._left -= pc.sum(lengths.cast(pa.int64())).as_py() or 0
        if self._left < 0:
            raise ValueError(f"its texts have more than {_MOST_TEXT:,} bytes")
        return values.dictionary_decode()


def _rows(batch: pa.RecordBatch, table: TableSchema, texts: _Texts) -> Change:
    number = pc.index_in(texts.plain(batch.column(OP)), value_set=OP_NAMES)
    if number.null_count:
        raise ValueError(f"{OP} holds another word than {', '.join(OP_NAMES.to_pylist())}")
    op = number.cast(pa.int8())
    if BEFORE in batch.schema.names and AFTER in batch.schema.names and not _is_flat(batch, table):
        before, after = (_struct(batch.column(name), table, texts) for name in (BEFORE, AFTER))
    else:
        images = _images({n: batch.column(n) for n in batch.schema.names}, table, texts)
        fields = [pa.field(c.name, c.type.arrow) for c in table.visible]
        deletes = pc.equal(op, int(Op.DELETE))
        before = pa.StructArray.from_arrays(images, fields=fields, mask=pc.invert(deletes))
        after = pa.StructArray.from_arrays(images, fields=fields, mask=deletes)
    stamps = batch.column(COMMIT_TS).cast(pa.uint64())
    seq = pc.shift_right(batch.column(SEQ), pa.scalar(1, pa.int64()))  # see `place_in_batch`
    return make_rows(table, op, stamps, seq, before, after)


def _is_flat(batch: pa.RecordBatch, table: TableSchema) -> bool:
    """Return whether the structs' names are those of columns of the table."""
    return not pa.types.is_struct(batch.schema.field(AFTER).type)


def _struct(values: pa.StructArray, table: TableSchema, texts: _Texts) -> pa.StructArray:
    held = dict(zip((f.name for f in values.type), values.flatten(), strict=True))
    fields = [pa.field(c.name, c.type.arrow) for c in table.visible]
    return pa.StructArray.from_arrays(
        _images(held, table, texts), fields=fields, mask=values.is_null()
    )


def _images(held: dict[str, pa.Array], table: TableSchema, texts: _Texts) -> list[pa.Array]:
    return [canonical(texts.plain(held[c.name]), c) for c in table.visible]
