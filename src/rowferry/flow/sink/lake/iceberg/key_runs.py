"""Key runs of Iceberg data files, also of those that somebody else has written."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from rowferry.flow.sink.lake.commit import OF_OLD_ROW
from rowferry.flow.sink.lake.draft import FIELD_ID
from rowferry.flow.sink.lake.iceberg.types import field_ids
from rowferry.flow.sink.lake.runs import RunStore, run_path
from rowferry.flow.sink.lake.stored_columns import StoredColumns
from rowferry.flow.sink.storage.files import Files


class IcebergRuns(RunStore):
    """Data files are known by their paths below the prefix; columns in them by their numbers."""

    def __init__(self, files: Files, directory: str) -> None:
        super().__init__(files, directory)
        self._columns: StoredColumns | None = None

    def use(self, columns: StoredColumns) -> None:
        """Take these as the table's columns from here on."""
        self._columns = columns

    def run_path(self, data_path: str) -> str:
        """Return where the run of a data file is: beside it."""
        root, _, name = data_path.rpartition("/")
        return run_path(root, name)

    def data_path(self, data_path: str) -> str:
        """Return where a data file is."""
        return data_path

    def key_rows(self, data_path: str, data: bytes, names: tuple[str, ...]) -> pa.Table:
        """Return the key's columns of a data file."""
        assert self._columns is not None
        return read_numbered(data, self._columns, names)


def read_numbered(
    data: Any, columns: StoredColumns, names: tuple[str, ...] | None = None
) -> pa.Table:
    """Return a data file's rows with our names for its columns, which it knows by their numbers.

    Those that the table has no more are left out, and so are those that the file does not have.
    """
    file = pq.ParquetFile(pa.BufferReader(data))
    known = {number: name for name, number in field_ids(columns).items()}
    wanted = set(known.values() if names is None else names)
    chosen = [f.name for f in file.schema_arrow if known.get(_number(f)) in wanted]
    rows = file.read(columns=chosen)
    arrays = [
        _old_rows(rows.column(f.name), known) if pa.types.is_struct(f.type) else rows.column(f.name)
        for f in rows.schema
    ]
    return pa.Table.from_arrays(arrays, [known[_number(f)] for f in rows.schema])


def _number(field: pa.Field) -> int:
    number = (field.metadata or {}).get(FIELD_ID.encode())
    return int(number) if number is not None else -1


def _old_rows(values: pa.ChunkedArray, known: Mapping[int, str]) -> pa.ChunkedArray:
    """Return old rows with our names for their columns."""
    places = [i for i, f in enumerate(values.type) if _number(f) - OF_OLD_ROW in known]
    names = [known[_number(values.type[i]) - OF_OLD_ROW] for i in places]
    chunks = []
    for chunk in values.chunks:
        held = chunk.flatten()
        chunks.append(
            pa.StructArray.from_arrays([held[i] for i in places], names, mask=chunk.is_null())
        )
    kind = pa.struct([pa.field(n, values.type[i].type) for n, i in zip(names, places, strict=True)])
    return pa.chunked_array(chunks, kind)
