"""The parquet format: data files whose columns have types, for engines that read lakes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import ClassVar, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rowferry.change.chunk import Change, Op, Rows
from rowferry.change.sqltype import Kind
from rowferry.change.table import TableSchema
from rowferry.change.typed_columns import (
    COMMIT_TS,
    OP,
    OP_NAMES,
    SEQ,
    column_type,
    place_in_batch,
    typed,
)
from rowferry.errors import BadInput, EncodeError
from rowferry.flow.encode.contract import CodecTraits, CommitTime, RowFile
from rowferry.flow.encode.parquet.reader import AFTER, BEFORE, read_file
from rowferry.spec.changefeed import ChangefeedSpec
from rowferry.spec.option import OptionTable, Section, one_of, option
from rowferry.spec.sink_traits import SinkTraits

_GROUP_ROWS: Final = 65536
_GROUP_BYTES: Final = 128 << 20  # a group waits in memory until it is whole


class ParquetOptions(Section, section="sink.parquet"):
    """How data files of the protocol parquet look."""

    layout = option(
        one_of("flat", "images"),
        "flat",
        "`flat`: the table's columns with the row as it is now (of a delete, as it was). `images`: "
        "the structs `_before` and `_after`.",
        alterable=False,
    )
    temporal = option(
        one_of("native", "string"),
        "native",
        "DATE, DATETIME and TIMESTAMP as dates and timestamps, or as MySQL's text.",
        alterable=False,
    )
    zero_date = option(
        one_of("error", "null"),
        "error",
        "What a day that no calendar has (0000-00-00) becomes with native types: it stops the "
        "changefeed, or it is NULL.",
    )
    compression = option(
        one_of("zstd", "snappy", "gzip", "none"),
        "zstd",
        "How the pages inside a file are compressed.",
    )


class Parquet:
    """Files of typed rows; each has the columns of its table version, and is whole in itself."""

    TRAITS: ClassVar = CodecTraits(
        file_suffix=".parquet",
        schema_change_goes_to="nowhere",
        carries_before_image=True,
        can_omit_columns=False,
        kinds=frozenset(Kind),
        needs_old_rows=True,
    )
    TABLES: ClassVar[tuple[OptionTable, ...]] = (ParquetOptions.TABLE,)

    def __init__(self, spec: ChangefeedSpec, sink: SinkTraits) -> None:
        options = spec.options(ParquetOptions)
        self._flat = options.layout == "flat"
        self._native = options.temporal == "native"
        self._null_days = options.zero_date == "null"
        self._compression = options.compression

    @property
    def commit_time(self) -> CommitTime:
        """Always exact: it is a column."""
        return CommitTime("exact")

    @property
    def unseen_moves(self) -> str:
        """An update has its old row in the layout `images` only."""
        return "parquet in the layout flat, not images" if self._flat else ""

    def probe(self) -> None:
        """Ask nothing: this format needs nobody."""

    def check_table(self, table: TableSchema) -> None:
        """Refuse a table with a column of one of our names; `images` keeps them apart."""
        for name in (OP, COMMIT_TS, SEQ) if self._flat else ():
            if name in table.by_name:
                raise BadInput(
                    f"{table.id} has a column {name!r}, a name that parquet files need themselves; "
                    "set sink.parquet.layout = 'images', or rename the column"
                )

    def file(self, table: TableSchema, put: Callable[[bytes], None]) -> RowFile:
        """Begin a data file of a table version."""
        self.check_table(table)
        return _File(self._schema(table), self._columns, self._compression, put)

    def decode(self, data: bytes, table: TableSchema) -> Iterator[Change]:
        """Read a data file back; in the flat layout an update does not tell its old row."""
        return read_file(data, table)

    def _schema(self, table: TableSchema) -> pa.Schema:
        columns = [pa.field(c.name, column_type(c.type, self._native)) for c in table.visible]
        images = [pa.field(name, pa.struct(columns)) for name in (BEFORE, AFTER)]
        return pa.schema(
            [
                pa.field(OP, pa.string(), nullable=False),
                pa.field(COMMIT_TS, pa.int64(), nullable=False),
                pa.field(SEQ, pa.int64(), nullable=False),
                *(columns if self._flat else images),
            ]
        )

    def _columns(self, rows: Rows) -> list[pa.Array]:
        op, deletes = rows.batch.column("op"), rows.op == Op.DELETE
        own = [OP_NAMES.take(op), rows.batch.column("commit_ts").cast(pa.int64())]
        own.append(place_in_batch(op, rows.batch.column("seq")))
        if not self._flat:
            return own + [self._struct(rows, rows.before), self._struct(rows, rows.after)]
        if deletes.all():
            return own + self._images(rows, rows.before)
        images = self._images(rows, rows.after)
        if deletes.any():
            gone, old = pa.array(deletes), self._images(rows, rows.before)
            images = [pc.if_else(gone, b, a) for b, a in zip(old, images, strict=True)]
        return own + images

    def _struct(self, rows: Rows, image: pa.StructArray) -> pa.StructArray:
        fields = [pa.field(c.name, column_type(c.type, self._native)) for c in rows.table.visible]
        if image.null_count == len(image):
            return pa.nulls(len(image), pa.struct(fields))
        return pa.StructArray.from_arrays(
            self._images(rows, image), fields=fields, mask=image.is_null()
        )

    def _images(self, rows: Rows, image: pa.StructArray) -> list[pa.Array]:
        """Return an image's columns as typed ones.

        Raises:
            EncodeError: a column is absent, or a date is one that the type cannot hold.
        """
        table = rows.table
        held = dict(zip((f.name for f in image.type), image.flatten(), strict=True))
        missing = [c.name for c in table.visible if c.name not in held]
        if missing:
            lost = ", ".join(missing)
            raise EncodeError(f"{table.id}: parquet cannot leave columns out; missing: {lost}")
        columns = []
        for column in table.visible:
            values = held[column.name]
            one = typed(values, column, table, self._native)
            if one.null_count > values.null_count and not self._null_days:
                lost = pc.and_(one.is_null(), values.is_valid())
                raise EncodeError(
                    f"{table.id}, column {column.name!r}: {values.filter(lost)[0].as_py()!r} is "
                    "in no calendar, so parquet's types do not have it; set sink.parquet.zero-date "
                    "= 'null', or sink.parquet.temporal = 'string' in a new changefeed"
                )
            columns.append(one)
        return columns


class _File:
    """One data file on its way: row groups of a fixed number of rows, or of so many bytes of text.

    Its bytes depend on the rows only, not on the chunks in which they came: a replay may cut them
    in another way.
    """

    def __init__(
        self,
        schema: pa.Schema,
        columns: Callable[[Rows], list[pa.Array]],
        compression: str,
        put: Callable[[bytes], None],
    ) -> None:
        self._schema, self._columns, self._put = schema, columns, put
        self._sink = _Target(put)
        self._writer = pq.ParquetWriter(
            pa.PythonFile(self._sink, mode="w"),
            schema,
            compression=compression,
            version="2.6",
            store_schema=False,
            use_dictionary=True,
        )
        self._waiting: list[pa.RecordBatch] = []
        self._rows = self._bytes = 0  # of what waits

    def add(self, rows: Rows) -> None:
        """Add rows at the end."""
        batch = pa.RecordBatch.from_arrays(self._columns(rows), schema=self._schema)
        sizes = np.cumsum(_text_bytes(batch))  # of all rows up to each
        begin, before = 0, 0
        while begin < len(sizes):
            full = int(np.searchsorted(sizes, before + _GROUP_BYTES - self._bytes)) + 1
            end = min(full, begin + _GROUP_ROWS - self._rows, len(sizes))
            self._waiting.append(batch.slice(begin, end - begin))
            self._rows += end - begin
            self._bytes += int(sizes[end - 1]) - before
            begin, before = end, int(sizes[end - 1])
            if self._rows >= _GROUP_ROWS or self._bytes >= _GROUP_BYTES:
                self._write()

    def finish(self) -> None:
        """End the file; one without rows has its columns, too."""
        if self._rows:
            self._write()
        self._writer.close()

    def _write(self) -> None:
        whole = pa.Table.from_batches(self._waiting, self._schema)
        # One chunk for each column, as pages would end where a chunk does.
        self._writer.write_table(whole.combine_chunks(), row_group_size=self._rows)
        self._waiting, self._rows, self._bytes = [], 0, 0


def _text_bytes(columns: pa.RecordBatch | pa.StructArray) -> npt.NDArray[np.int64]:
    """Return how many bytes of texts and binary values each row has."""
    total = np.zeros(len(columns), np.int64)
    is_batch = isinstance(columns, pa.RecordBatch)
    for column in columns.columns if is_batch else columns.flatten():
        if pa.types.is_struct(column.type):
            total += _text_bytes(column)
        elif pa.types.is_string(column.type) or pa.types.is_binary(column.type):
            lengths = pc.binary_length(column).fill_null(0)
            total += lengths.to_numpy(zero_copy_only=False)
    return total


class _Target:
    """What Arrow writes to: bytes go on at once."""

    closed = False

    def __init__(self, put: Callable[[bytes], None]) -> None:
        self._put, self._length = put, 0

    def write(self, data: bytes) -> int:
        self._put(data)
        self._length += len(data)
        return len(data)

    def tell(self) -> int:
        return self._length

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass
