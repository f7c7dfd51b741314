"""Keys of rows as texts: equal for equal keys, wherever that can be said without the database."""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rowferry.change.chunk import Op, Rows
from rowferry.change.sqltype import Kind
from rowferry.change.table import TableSchema
from rowferry.columnar.fields import fields
from rowferry.columnar.render import hex_text
from rowferry.errors import EncodeError

# Equal values of these kinds have equal texts.
_EXACT: Final = frozenset(
    {
        Kind.INTEGER,
        Kind.DECIMAL,
        Kind.BIT,
        Kind.BINARY,
        Kind.DATE,
        Kind.DATETIME,
        Kind.TIMESTAMP,
        Kind.TIME,
        Kind.YEAR,
        Kind.ENUM,
        Kind.SET,
    }
)
_BETWEEN: Final = ","  # none of these kinds has it in its text


def has_exact_key(table: TableSchema) -> bool:
    """Return whether the texts that name rows differ wherever the rows do, and only there."""
    return all(table.column(name).type.kind in _EXACT for name in table.handle_key)


def key_texts(rows: Rows) -> pa.LargeStringArray:
    """Return the text of each row's handle key: of the old row for a delete, else of the new one.

    Only for tables with an exact key.

    Raises:
        EncodeError: a column of the key is absent.
    """
    deletes = rows.op == Op.DELETE
    if not deletes.any():
        return _texts(rows.table, rows.after)
    before = _texts(rows.table, rows.before)
    if deletes.all():
        return before
    return pc.if_else(pa.array(deletes), before, _texts(rows.table, rows.after))


def _texts(table: TableSchema, image: pa.StructArray) -> pa.LargeStringArray:
    by_name = {field.column.name: field for field in fields(table, image)}
    missing = [name for name in table.handle_key if name not in by_name]
    if missing or not table.handle_key:
        raise EncodeError(f"{table.id}: a row without its key; missing: {', '.join(missing)}")
    parts = []
    for name in table.handle_key:
        field = by_name[name]
        if field.column.type.kind is Kind.BINARY:
            parts.append(_hexed(field.values))
        else:
            parts.append(field.values.cast(pa.large_utf8()))
    if len(parts) == 1:
        return parts[0]
    return pc.binary_join_element_wise(*parts, pa.scalar(_BETWEEN, pa.large_utf8()))


def _hexed(values: pa.LargeBinaryArray) -> pa.LargeStringArray:
    """Return binary values in hexadecimal; NULL where a row has no image."""
    there = np.asarray(values.is_valid())
    return pc.if_else(pa.array(there), hex_text(pc.fill_null(values, b"")), None)
