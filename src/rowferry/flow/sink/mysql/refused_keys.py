"""The keys of rows that the downstream refuses, read back from the texts of statements."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from rowferry.change.chunk import Op
from rowferry.change.quarantine import EVERY_KEY
from rowferry.change.table import TableSchema
from rowferry.columnar.row_keys import has_exact_key, key_texts
from rowferry.flow.encode.sql_rows.frame import RowFrame
from rowferry.flow.encode.sql_rows.reader import read_frame


def refused_key(table: TableSchema, name: pa.LargeBinaryArray) -> str:
    """Return the key of the row that a WHERE clause's text names."""
    if not has_exact_key(table):
        return EVERY_KEY
    deleted = RowFrame(
        table,
        np.array([int(Op.DELETE)], np.int8),
        np.zeros(1, np.uint64),
        np.zeros(1, np.int64),
        name,
        pa.nulls(1, pa.large_binary()),
    )
    key: str = key_texts(read_frame(deleted))[0].as_py()
    return key
