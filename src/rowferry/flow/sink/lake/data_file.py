"""Data files of a lake's table: Parquet, with what a commit tells about them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

GROUP_ROWS: Final = 131072
_MOST_COLUMNS: Final = 32  # with least and most values: as many as readers look at
_MOST_TEXT: Final = 32


def parquet_bytes(rows: pa.Table) -> bytes:
    """Return a data file; equal rows give equal bytes, however they are cut into chunks."""
    target = pa.BufferOutputStream()
    pq.write_table(
        rows.combine_chunks(),
        target,
        row_group_size=GROUP_ROWS,
        compression="zstd",
        version="2.6",
        store_schema=False,
        use_dictionary=True,
    )
    content: bytes = target.getvalue().to_pybytes()
    return content


def read_parquet(data: Any, columns: list[str] | None = None) -> pa.Table:
    """Return a data file's rows; those of `columns` that it lacks are left out."""
    # Spark writes moments in a form of 96 bits, which would be read in another unit than ours.
    file = pq.ParquetFile(
        pa.BufferReader(data) if isinstance(data, bytes) else data,
        coerce_int96_timestamp_unit="us",
    )
    wanted = columns
    if columns is not None:
        wanted = [name for name in columns if name in file.schema_arrow.names]
    return file.read(columns=wanted)


def with_constants(rows: pa.Table, held: Mapping[str, pa.Scalar]) -> pa.Table:
    """Return rows with the columns that their file does not hold, each with its one value."""
    for name, value in held.items():
        if name not in rows.column_names:
            rows = rows.append_column(name, pa.repeat(value, rows.num_rows))
    return rows


def without_rows(rows: pa.Table, gone: Any) -> pa.Table:
    """Return the rows that are not at these places."""
    if not len(gone):
        return rows
    kept = np.ones(rows.num_rows, np.bool_)
    kept[gone] = False
    return rows.filter(pa.array(kept))


def statistics(rows: pa.Table) -> dict[str, Any]:
    """Return how many rows and NULLs there are, and the least and most of each column.

    A column whose bounds cannot be told exactly and briefly has none.
    """
    least: dict[str, Any] = {}
    most: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for name in rows.schema.names[:_MOST_COLUMNS]:
        values = rows.column(name)
        if pa.types.is_nested(values.type):
            continue
        nulls[name] = values.null_count
        bounds = _bounds(values)
        if bounds is not None:
            least[name], most[name] = bounds
    return {"numRecords": rows.num_rows, "minValues": least, "maxValues": most, "nullCount": nulls}


def _bounds(values: pa.ChunkedArray) -> tuple[Any, Any] | None:
    kind = values.type
    if values.null_count == len(values):
        return None
    if pa.types.is_int64(kind) or pa.types.is_string(kind):
        extremes = pc.min_max(values)
    elif pa.types.is_date32(kind):
        extremes = pc.min_max(values.cast(pa.string()))
    elif pa.types.is_timestamp(kind):
        ends = pc.min_max(values)
        texts = pa.array([ends["min"], ends["max"]], kind).cast(pa.timestamp("us"))
        plain = pc.strftime(texts, "%Y-%m-%dT%H:%M:%S")
        mark = "Z" if kind.tz else ""
        return plain[0].as_py() + mark, plain[1].as_py() + mark
    else:
        return None
    pair = (extremes["min"].as_py(), extremes["max"].as_py())
    if pa.types.is_string(kind) and max(map(len, pair)) > _MOST_TEXT:
        return None
    return pair
