"""The keys of rows that PostgreSQL refuses, read back from lines of COPY."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from rowferry.change.chunk import Op
from rowferry.change.quarantine import EVERY_KEY
from rowferry.columnar.row_keys import has_exact_key, key_texts
from rowferry.flow.encode.copy_rows.reader import read_lines
from rowferry.flow.encode.sql_rows.frame import RowFrame
from rowferry.flow.sink.postgresql.effects import KeyEffect


def refused_key(row: KeyEffect) -> str | None:
    """Return the key of an effect of one row; None: later changes of it would not be known."""
    table = row.table
    if not table.handle_key or not table.table_id:
        return None
    if not has_exact_key(table):
        return EVERY_KEY
    deleted = RowFrame(
        table,
        np.array([int(Op.DELETE)], np.int8),
        np.zeros(1, np.uint64),
        np.zeros(1, np.int64),
        (row.gone if len(row.gone) else row.keys).slice(0, 1),
        pa.nulls(1, pa.large_binary()),
    )
    key: str | None = key_texts(read_lines(deleted))[0].as_py()
    return key
