"""What codecs of frames share: they know rows only, and those of databases write them alike."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rowferry.change.chunk import Change, Op, Rows, SchemaChange, Watermark
from rowferry.change.plan import Topic
from rowferry.change.table import TableSchema
from rowferry.columnar.fields import Field, ImagePresence, fields
from rowferry.errors import DecodeError, EncodeError
from rowferry.flow.encode.contract import Encoded, MessageCodec
from rowferry.flow.encode.framing import RowTexts, framed
from rowferry.flow.encode.layout import Layout, Part
from rowferry.flow.encode.sql_rows.frame import RowFrame


class FramedCodec(MessageCodec, ABC):
    """A format between tasks that read and tasks that write; users never see it."""

    protocol: str

    def batch(self, messages: Encoded, topic: Topic) -> Encoded:
        """Join the rows of each partition to one frame."""
        return framed(messages)

    def encode_schema_change(self, change: SchemaChange, planned_at_ms: int) -> Encoded | None:
        """Return None: the sink makes schema changes itself."""
        return None

    def encode_watermark(self, mark: Watermark, planned_at_ms: int) -> Encoded | None:
        """Return None: watermarks are not sent."""
        return None

    def decode(self, data: bytes, table: TableSchema) -> Iterator[Change]:
        """Refuse: frames are messages."""
        raise DecodeError(f"{self.protocol} is a format of messages, not of files")

    def decode_message(self, key: bytes | None, value: bytes | None) -> Iterator[Change]:
        """Read one frame back. A delete has its key's columns only, an update no old row."""
        yield self._read(RowFrame.from_message(key, value))

    @abstractmethod
    def _read(self, frame: RowFrame) -> Rows:
        """Return a frame's changes. Raises DecodeError."""


class DatabaseCodec(FramedCodec):
    """Texts that a database takes: of each new row, and of what names the row that it replaces."""

    def encode_rows(self, rows: Rows, planned_at_ms: int, topic: Topic | None = None) -> Encoded:
        """Encode a chunk: `values` are texts of rows, null for deletes; `keys` name them.

        A keyless table's row is named by all columns of its old image; an insert by nothing.

        Raises:
            EncodeError: a column is absent, or a keyless table's update lacks its old row.
        """
        table, images = rows.table, ImagePresence.of(rows)
        deletes = images.op == Op.DELETE
        return RowTexts(
            self._new_rows(rows, deletes),
            self._keys(rows, deletes) if table.handle_key else self._old_rows(rows, images),
            table=table,
            op=images.op,
            commit_ts=rows.commit_ts,
            seq=rows.batch.column("seq").to_numpy(),
        )

    @abstractmethod
    def _layout(self) -> Layout:
        """Return an empty layout of a text."""

    @abstractmethod
    def _written(self, table: TableSchema) -> Sequence[str]:
        """Return the columns that a row is written with."""

    @abstractmethod
    def _row(self, layout: Layout, table: TableSchema, own: Sequence[Field]) -> list[Part]:
        """Return the parts of a new row's text."""

    @abstractmethod
    def _key(self, layout: Layout, table: TableSchema, own: Sequence[Field]) -> list[Part]:
        """Return the parts of the text that names a row by its key."""

    @abstractmethod
    def _old_row(self, layout: Layout, table: TableSchema, own: Sequence[Field]) -> list[Part]:
        """Return the parts of the text that names a row of a keyless table."""

    def _new_rows(self, rows: Rows, deletes: npt.NDArray[np.bool_]) -> pa.LargeBinaryArray:
        """Return the text of each row; null for deletes."""
        table, layout, parts = rows.table, self._layout(), list[Part]()
        if not deletes.all():
            parts = self._row(layout, table, _fields(table, rows.after, self._written(table)))
        layout.program(parts)
        layout.program([])
        texts = layout.run(deletes.astype(np.int8))
        if not deletes.any():
            return texts
        valid = pa.py_buffer(np.packbits(~deletes, bitorder="little"))
        buffers = [valid, *texts.buffers()[1:]]
        return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(texts), buffers)

    def _keys(self, rows: Rows, deletes: npt.NDArray[np.bool_]) -> pa.LargeBinaryArray:
        """Return the text of each row's key: of the old row for a delete, else of the new one."""
        table, layout = rows.table, self._layout()
        for image, needed in ((rows.after, not deletes.all()), (rows.before, bool(deletes.any()))):
            own = _fields(table, image, table.handle_key) if needed else []
            layout.program(self._key(layout, table, own) if needed else [])
        return layout.run(deletes.astype(np.int8))

    def _old_rows(self, rows: Rows, images: ImagePresence) -> pa.LargeBinaryArray:
        """Return the text that names each old row; empty for inserts."""
        table, layout, parts = rows.table, self._layout(), list[Part]()
        old = images.op != Op.INSERT
        if (old & ~images.has_before).any():
            raise EncodeError(f"{table.id}: has no key, and the source does not give old rows")
        if old.any():
            parts = self._old_row(layout, table, _fields(table, rows.before, self._written(table)))
        layout.program([])
        layout.program(parts)
        return layout.run(old.astype(np.int8))


def _fields(table: TableSchema, image: pa.StructArray, wanted: Sequence[str]) -> list[Field]:
    """Return these columns of an image, in table order.

    Raises:
        EncodeError: one of them is absent.
    """
    chosen = [f for f in fields(table, image) if f.column.name in wanted]
    missing = [name for name in wanted if name not in {f.column.name for f in chosen}]
    if missing or not chosen:
        lost = ", ".join(missing) or "all"
        raise EncodeError(f"{table.id}: columns cannot be left out here; missing: {lost}")
    return chosen
