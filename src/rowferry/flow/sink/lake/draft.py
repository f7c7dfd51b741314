"""What a task makes of the rows of one table: a data file and its key run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from rowferry.change.chunk import Op, Rows
from rowferry.change.table import TableSchema
from rowferry.errors import EncodeError
from rowferry.flow.sink.lake.columns import BEFORE, LakeColumns
from rowferry.flow.sink.lake.commit import OF_OLD_ROW, FileColumns
from rowferry.flow.sink.lake.data_file import parquet_bytes, read_parquet, statistics
from rowferry.flow.sink.lake.key_run import GONE, KeyRun
from rowferry.flow.sink.lake.keys import Keys, joined, keys_of
from rowferry.flow.sink.lake.partitioning import FileLayout, Value, shares
from rowferry.flow.sink.lake.runs import run_of

FIELD_ID: Final = "PARQUET:field_id"
PLAIN: Final = FileLayout()


@dataclass(frozen=True, slots=True)
class Made:
    """The content of a data file and of its run; empty: there is none.

    Attributes:
        note: what the commit needs to know.
        mark: what tells it from the files of other partitions; empty: there are none.
    """

    data: bytes
    run: bytes
    note: dict[str, Any]
    mark: str = ""


class FileDraft:
    """The rows of one table in one segment, gathered.

    In the mode upsert only the last change of each key counts, and rows are stored in the order of
    their keys; in the mode changelog all are stored as they came. A partitioned table has a file
    for each partition.
    """

    def __init__(
        self,
        lake: LakeColumns,
        table: TableSchema,
        columns: FileColumns,
        layout: FileLayout = PLAIN,
        empty_is_null: bool = False,
    ) -> None:
        physical = columns.names
        self._names, self._layout, self._empty_is_null = physical, layout, empty_is_null
        self._lake = lake
        self._table = table
        self._schema = physical_schema(lake.schema(table), columns)
        self._key_names = [
            physical[c.name]
            for c in table.visible
            if c.name.lower() in {k.lower() for k in table.handle_key}
        ]
        self._batches: list[pa.RecordBatch] = []
        self._keys: list[Keys] = []
        self._deletes: list[npt.NDArray[np.bool_]] = []
        self.changes = 0

    def add(self, rows: Rows) -> None:
        """Add changes behind those that are there."""
        self.changes += len(rows)
        columns = self._lake.changes(rows) if self._lake.changelog else self._lake.rows(rows)
        if not self._lake.changelog:
            self._keys.append(keys_of(self._lake.key(rows.table, columns)))
            self._deletes.append(rows.op == Op.DELETE)
        arrays = [_as_stored(a, f.type) for a, f in zip(columns, self._schema, strict=True)]
        self._batches.append(pa.RecordBatch.from_arrays(arrays, schema=self._schema))

    def finish(self) -> list[Made]:
        """Return the files: one, or one for each partition."""
        if not self.changes:
            return [Made(b"", b"", {})]
        rows = pa.Table.from_batches(self._batches, self._schema)
        if self._lake.changelog:
            return [
                self._made(rows.take(pa.array(share.places)), b"", share.values)
                for share in shares(rows, self._layout, self._names)
            ]
        keys, deletes = joined(self._keys), np.concatenate(self._deletes)
        last = keys.last_places()
        kept, gone = last[~deletes[last]], last[deletes[last]]
        stored = keys.take(kept)
        order = stored.order()
        rows, stored, lost = rows.take(pa.array(kept[order])), stored.take(order), keys.take(gone)
        files = []
        for share in shares(rows, self._layout, self._names):
            numbers = np.concatenate(
                [
                    np.arange(len(share.places), dtype=np.uint32),
                    np.full(len(lost), GONE, np.uint32),
                ]
            )
            every = joined([stored.take(share.places), lost])
            run = KeyRun.make(self._key_names, every, numbers).content()
            files.append(self._made(rows.take(pa.array(share.places)), run, share.values))
            lost = lost.take(np.zeros(0, np.int64))  # one run has the deleted keys
        return files

    def _made(self, rows: pa.Table, run: bytes, values: tuple[Value, ...]) -> Made:
        data = parquet_bytes(rows) if rows.num_rows else b""
        note = note_of(rows)
        if not self._layout.fields or not rows.num_rows:
            return Made(data, run, note)
        if self._empty_is_null and "" in values:
            raise EncodeError(
                f"{self._table.id}: an empty text in {self._layout.fields[values.index('')]}, by "
                "which the table is partitioned, is NULL to readers of Delta; partition by another "
                "column in sink.lake.layouts and run rowferry changefeed reset --snapshot"
            )
        # Names follow the content: what an earlier try has written of other rows stays aside.
        mark = blake2b(data, digest_size=8).hexdigest()
        return Made(data, run, {**note, "partition": list(values)}, mark)

    def of_stored(self, data: bytes) -> Made:
        """Return the files for a data file that an earlier try has written, of other rows."""
        rows = read_parquet(data)
        run = b"" if self._lake.changelog else run_of(self._key_names, rows).content()
        return Made(data, run, note_of(rows))


def _as_stored(values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return values in a type of data files; fields of a struct go by their places."""
    if not pa.types.is_struct(kind):
        return values.cast(kind)
    # Arrow casts structs by the names of their fields, and those in files are others.
    inner = [a.cast(f.type) for a, f in zip(values.flatten(), kind, strict=True)]
    return pa.StructArray.from_arrays(inner, fields=list(kind), mask=values.is_null())


def note_of(rows: pa.Table) -> dict[str, Any]:
    """Return what a commit needs to know about a data file."""
    return {"rows": rows.num_rows, "stats": json.dumps(statistics(rows), ensure_ascii=False)}


def physical_schema(schema: pa.Schema, columns: FileColumns) -> pa.Schema:
    """Return a schema with the names, and the numbers if any, that data files have."""
    physical = columns.names
    fields = []
    for field in schema:
        name, kind = physical[field.name], field.type
        if field.name == BEFORE and pa.types.is_struct(kind):
            inner = [(physical[f.name], f.type) for f in kind]
            kind = pa.struct([numbered(n, t, columns.ids, OF_OLD_ROW) for n, t in inner])
        fields.append(numbered(name, kind, columns.ids))
    return pa.schema(fields)


def numbered(name: str, kind: pa.DataType, ids: Mapping[str, int], above: int = 0) -> pa.Field:
    """Return a field that a data file knows by its number, where there are numbers."""
    about = {FIELD_ID: str(ids[name] + above)} if ids else None
    return pa.field(name, kind, metadata=about)
