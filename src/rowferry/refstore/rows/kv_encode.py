"""Keys and values of rows, as the reference store keeps them: TiDB's encodings.

Comes in: row images as Arrow columns. Goes out: one key and one value for each row. A value that
its column cannot hold is refused before anything is made of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rowferry.change.sqltype import Kind, SqlType
from rowferry.change.table import Column, Index, TableId, TableSchema
from rowferry.columnar.packed import Bytes, Longs, Words, decimal_bytes, frozen
from rowferry.errors import StoreError
from rowferry.flow.capture.range_log.kv import Handle, handle_of
from rowferry.flow.capture.range_log.kv_bytes import (
    BYTES_FLAG,
    DECIMAL_FLAG,
    MAX_DECIMAL_DIGITS,
    MAX_DECIMAL_SCALE,
    RECORD_PREFIX,
)
from rowferry.refstore.rows import kv_encode_kernels as kernels
from rowferry.refstore.rows.kv_encode_json import encode_json, encode_vector

_SIGN: Final = np.uint64(1 << 63)
_BITS: Final = {"tinyint": 8, "smallint": 16, "mediumint": 24, "int": 32, "bigint": 64}
_SHORT_HANDLE: Final = 9  # a common handle is never as short as an integer
_MAX_BYTES: Final = {"tiny": 255, "": 65535, "medium": 16777215, "long": 4294967295}
_BY_LENGTH: Final = ("char", "varchar", "binary", "varbinary")
_ANY_TIME: Final = (0, (1 << 63) - 1)
# A TIMESTAMP lies between 1970-01-01 00:00:01 and 2038-01-19 03:14:07.999999.
_TIMESTAMPS: Final = (
    ((1970 * 13 + 1) << 5 | 1) << 41 | 1 << 24,
    ((2038 * 13 + 1) << 5 | 19) << 41 | (3 << 12 | 14 << 6 | 7) << 24 | 999_999,
)


@dataclass(slots=True)
class _Packed:
    """One column, ready to be written: its values' bytes, and numbers in their sorting form."""

    data: Bytes
    at: Longs
    size: Longs  # -1: NULL
    words: Words | None = None


def table_prefix(physical_id: int) -> bytes:
    """Return what all record keys of the table (or table partition) begin with."""
    return b"t" + (physical_id + (1 << 63)).to_bytes(8, "big") + b"_r"


def table_end(physical_id: int) -> bytes:
    """Return the smallest key after all record keys of the table (or table partition)."""
    return table_prefix(physical_id)[:-1] + b"s"


def encode_rows(
    table: TableSchema,
    physical_id: int,
    image: pa.StructArray,
    row_ids: pa.Array | None = None,
) -> tuple[pa.LargeBinaryArray, pa.LargeBinaryArray]:
    """Return the keys and the values of rows.

    Args:
        table: the table version that the rows belong to.
        physical_id: the table's id, or the table partition's.
        image: full rows; virtual generated columns are not stored and may be missing.
        row_ids: int64, the rows' own numbers, for a table without a primary key.

    Raises:
        StoreError: a value does not fit its column; the text names column and value.
    """
    handle = handle_of(table)
    stored = {i for i, c in enumerate(table.columns) if c.generated != "virtual"}
    packed = {i: _pack(table, i, image) for i in sorted(stored | set(handle.columns))}
    keys = _keys(table, handle, physical_id, packed, row_ids, len(image))
    in_key = {i for i in handle.columns if table.columns[i].type.kind is not Kind.TEXT}
    wanted = sorted(stored - in_key, key=lambda i: table.columns[i].id)
    return keys, _values(
        [table.columns[i] for i in wanted], [packed[i] for i in wanted], len(image)
    )


def encode_keys(
    table: TableSchema,
    physical_id: int,
    image: pa.StructArray,
    row_ids: pa.Array | None = None,
) -> pa.LargeBinaryArray:
    """Return the keys of rows; `image` needs only the columns of the primary key.

    Raises StoreError as `encode_rows` does.
    """
    handle = handle_of(table)
    packed = {i: _pack(table, i, image) for i in handle.columns}
    return _keys(table, handle, physical_id, packed, row_ids, len(image))


# --- putting together ----------------------------------------------------------------------------


def _keys(
    table: TableSchema,
    handle: Handle,
    physical_id: int,
    packed: dict[int, _Packed],
    row_ids: pa.Array | None,
    rows: int,
) -> pa.LargeBinaryArray:
    for i in handle.columns:
        if (packed[i].size < 0).any():
            raise StoreError(f"{table.id}: column {table.columns[i].name!r} of the key is NULL")
    total = np.full(rows, RECORD_PREFIX, np.int64)
    for i, flag in zip(handle.columns, handle.flags, strict=False):
        if flag == BYTES_FLAG:
            kernels.group_sizes(packed[i].size, total)
        else:
            total += 1 + (packed[i].size if flag == DECIMAL_FLAG else 8)
    if handle.is_integer:
        total += 8
    else:
        total = np.maximum(total, RECORD_PREFIX + _SHORT_HANDLE)
    offsets = _running(total)
    out = np.zeros(int(offsets[-1]), np.uint8)
    cursor = offsets[:-1].copy()
    kernels.put_prefix(out, cursor, frozen(np.frombuffer(table_prefix(physical_id), np.uint8)))
    if handle.is_integer:
        kernels.put_words(out, cursor, 0, _integer_handle(table, handle, packed, row_ids, rows))
    for i, flag in zip(handle.columns, handle.flags, strict=False):
        column = packed[i]
        if flag == BYTES_FLAG:
            kernels.put_groups(out, cursor, column.data, column.at, column.size)
        elif column.words is None:
            kernels.put_bytes(out, cursor, flag, column.data, column.at, column.size)
        else:
            kernels.put_words(out, cursor, flag, column.words)
    return _binaries(out, offsets)


def _integer_handle(
    table: TableSchema,
    handle: Handle,
    packed: dict[int, _Packed],
    row_ids: pa.Array | None,
    rows: int,
) -> Words:
    if handle.columns:
        (place,) = handle.columns
        # Signed or not, the key holds the bit pattern as a signed number, its sign flipped.
        bits: Words = packed[place].data.view(np.uint64)
        return frozen(bits ^ _SIGN)
    if row_ids is None or len(row_ids) != rows or row_ids.null_count:
        raise StoreError(f"{table.id} has no primary key: give each row its number in row_ids")
    numbers: Longs = _arrow(row_ids).cast(pa.int64()).to_numpy()
    return frozen(numbers.view(np.uint64) ^ _SIGN)


def _values(columns: Sequence[Column], packed: Sequence[_Packed], rows: int) -> pa.LargeBinaryArray:
    """Write row format 2; the columns come in the order of their ids."""
    present, data = np.zeros(rows, np.int64), np.zeros(rows, np.int64)
    for column in packed:
        kernels.tally(column.size, present, data)
    large = data > 0xFFFF
    large |= any(c.id > 0xFF for c in columns)
    count = len(columns)
    total = 6 + count * np.where(large, 4, 1) + present * np.where(large, 4, 2) + data
    offsets = _running(total)
    out = np.empty(int(offsets[-1]), np.uint8)
    kernels.put_headers(out, offsets, large, present, count)
    placed, used = np.zeros(rows, np.int64), np.zeros(rows, np.int64)
    for place, (definition, column) in enumerate(zip(columns, packed, strict=True)):
        kernels.put_column(
            out,
            offsets,
            large,
            present,
            count,
            definition.id,
            place,
            column.data,
            column.at,
            column.size,
            placed,
            used,
        )
    return _binaries(out, offsets)


def _running(sizes: Longs) -> Longs:
    offsets = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=offsets[1:])
    return offsets


def _binaries(out: Bytes, offsets: Longs) -> pa.LargeBinaryArray:
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(out)]
    return pa.Array.from_buffers(pa.large_binary(), len(offsets) - 1, buffers, 0)


def _arrow(array: pa.Array | pa.ChunkedArray) -> pa.Array:
    return array.combine_chunks() if isinstance(array, pa.ChunkedArray) else array


# --- one column ----------------------------------------------------------------------------------


def _pack(table: TableSchema, place: int, image: pa.StructArray) -> _Packed:
    """Check one column's values and bring them into their stored form."""
    column = table.columns[place]
    field = image.type.get_field_index(column.name)
    if image.null_count or field < 0:
        missing = "a row is null" if image.null_count else f"column {column.name!r} is missing"
        raise StoreError(f"{table.id}: {missing}")
    values = image.field(field)
    try:
        values = values.cast(column.type.arrow)
    except pa.ArrowInvalid as err:
        raise StoreError(f"{table.id}: column {column.name!r} ({column.type.sql}): {err}") from err
    if values.null_count and not column.nullable:
        raise StoreError(f"{table.id}: column {column.name!r} is NOT NULL")
    packed, bad = _PACKERS[column.type.kind](values, column.type)
    if bad >= 0:
        value = repr(values[bad].as_py())
        shown = value if len(value) <= 80 else value[:77] + "..."
        raise StoreError(f"{table.id}: column {column.name!r}: {shown} is no {column.type.sql}")
    return packed


def _sizes(values: pa.Array, size: int) -> Longs:
    """Return the same size for each value, -1 for NULL."""
    sizes = np.full(len(values), size, np.int64)
    if values.null_count:
        sizes[values.is_null().to_numpy(zero_copy_only=False)] = -1
    return sizes


def _numbers(values: pa.Array, dtype: type[np.generic]) -> npt.NDArray[Any]:
    """Return the values' numbers; NULL is any number."""
    start = values.offset
    return np.frombuffer(values.buffers()[1] or b"", dtype)[start : start + len(values)]


def _strings(values: pa.Array) -> _Packed:
    """Return the values' bytes where they are."""
    start, rows = values.offset, len(values)
    _, offsets, data = values.buffers()
    ends = np.frombuffer(offsets, np.int64)[start : start + rows + 1] if rows else np.zeros(1, int)
    size = np.diff(ends)
    if values.null_count:
        size[values.is_null().to_numpy(zero_copy_only=False)] = -1
    return _Packed(frozen(np.frombuffer(data or b"", np.uint8)), frozen(ends[:-1]), size)


def _first(bad: npt.NDArray[np.bool_], size: Longs) -> int:
    """Return the first row that is bad and not NULL, or -1."""
    bad_rows = np.flatnonzero(bad & (size >= 0))
    return int(bad_rows[0]) if len(bad_rows) else -1


def _fixed(words: Words, size: Longs, sorting: Words) -> _Packed:
    at = np.arange(len(words), dtype=np.int64) * 8
    return _Packed(frozen(words.view(np.uint8)), frozen(at), size, frozen(sorting))


def _pack_integers(values: pa.Array, column_type: SqlType) -> tuple[_Packed, int]:
    signed = column_type.arrow == pa.int64()
    numbers = _numbers(values, np.int64 if signed else np.uint64)
    size = _sizes(values, 8)
    low, high = _limits(column_type)
    bad = (numbers < low) | (numbers > high)
    if column_type.kind is Kind.YEAR:
        bad |= (numbers > 0) & (numbers < 1901)
    words: Words = np.ascontiguousarray(numbers).view(np.uint64)
    kernels.integer_sizes(frozen(words), signed, size)
    return _fixed(words, size, words ^ _SIGN if signed else words), _first(bad, size)


def _limits(column_type: SqlType) -> tuple[int, int]:
    """Return the smallest and the largest number that fits."""
    match column_type.kind:
        case Kind.YEAR:
            return 0, 2155
        case Kind.ENUM:
            return 0, len(column_type.elements)  # 0: MySQL's mark of a value that was refused
        case Kind.SET:
            return 0, (1 << len(column_type.elements)) - 1
        case Kind.BIT:
            return 0, (1 << (column_type.size or 1)) - 1
    bits = _BITS[column_type.name]
    if column_type.unsigned:
        return 0, (1 << bits) - 1
    return -(1 << (bits - 1)), (1 << (bits - 1)) - 1


def _pack_floats(values: pa.Array, column_type: SqlType) -> tuple[_Packed, int]:
    dtype = np.float32 if column_type.kind is Kind.FLOAT else np.float64
    size = _sizes(values, 8)
    numbers = np.where(size < 0, 0.0, _numbers(values, dtype)).astype(np.float64)
    bad = ~np.isfinite(numbers)
    if column_type.unsigned:
        bad |= numbers < 0
    bits: Words = (numbers + 0.0).view(np.uint64)  # + 0.0: there is no negative zero
    sorting = np.where(bits & _SIGN, ~bits, bits | _SIGN)
    return _fixed(sorting.byteswap(), size, sorting), _first(bad, size)


def _pack_dates(values: pa.Array, column_type: SqlType) -> tuple[_Packed, int]:
    text, words = _strings(values), np.empty(len(values), np.uint64)
    first, last = _TIMESTAMPS if column_type.kind is Kind.TIMESTAMP else _ANY_TIME
    date_only, fraction = column_type.kind is Kind.DATE, column_type.fraction_digits
    bad = kernels.parse_date_times(
        text.data, text.at, text.size, date_only, fraction, first, last, words
    )
    size = _sizes(values, 8)
    if bad < 0:
        kernels.integer_sizes(frozen(words), False, size)
    return _fixed(words, size, words), bad


def _pack_durations(values: pa.Array, column_type: SqlType) -> tuple[_Packed, int]:
    text, nanos = _strings(values), np.empty(len(values), np.int64)
    bad = kernels.parse_durations(text.data, text.at, text.size, column_type.fraction_digits, nanos)
    size, words = _sizes(values, 8), nanos.view(np.uint64)
    if bad < 0:
        kernels.integer_sizes(frozen(words), True, size)
    return _fixed(words, size, words ^ _SIGN), bad


def _pack_decimals(values: pa.Array, column_type: SqlType) -> tuple[_Packed, int]:
    precision, scale = column_type.size or 10, column_type.fraction_digits
    if not (0 < precision <= MAX_DECIMAL_DIGITS and scale <= min(precision, MAX_DECIMAL_SCALE)):
        raise StoreError(f"{column_type.sql} is no type: at most 65 digits, 30 after the point")
    wide = 2 + decimal_bytes(precision - scale) + decimal_bytes(scale)
    text, out = _strings(values), np.zeros((len(values), wide), np.uint8)
    bad = kernels.pack_decimals(
        text.data, text.at, text.size, precision, scale, column_type.unsigned, out
    )
    at = np.arange(len(values), dtype=np.int64) * wide
    return _Packed(frozen(out.reshape(-1)), frozen(at), _sizes(values, wide)), bad


def _pack_strings(values: pa.Array, column_type: SqlType) -> tuple[_Packed, int]:
    packed = _strings(values)
    if column_type.name in _BY_LENGTH:
        if column_type.length is None:
            return packed, -1
        counted = pc.utf8_length(values) if column_type.kind is Kind.TEXT else None
        lengths = packed.size if counted is None else counted.fill_null(-1).to_numpy()
        return packed, _first(lengths > column_type.length, packed.size)
    limit = _MAX_BYTES.get(column_type.name.removesuffix("text").removesuffix("blob"))
    return packed, -1 if limit is None else _first(packed.size > limit, packed.size)


def _pack_each(encode: Callable[[str], bytes], values: pa.Array) -> tuple[_Packed, int]:
    """Encode texts one by one: JSON and vectors."""
    packed = []
    for row, text in enumerate(values.to_pylist()):
        try:
            packed.append(None if text is None else encode(text))
        except ValueError:
            return _strings(values), row
    return _strings(pa.array(packed, pa.large_binary())), -1


def _pack_vectors(values: pa.Array, column_type: SqlType) -> tuple[_Packed, int]:
    packed, bad = _pack_each(encode_vector, values)
    if bad < 0 and column_type.length is not None:
        bad = _first(packed.size != 4 + 4 * column_type.length, packed.size)
    return packed, bad


_PACKERS: Final[dict[Kind, Callable[[pa.Array, SqlType], tuple[_Packed, int]]]] = {
    Kind.INTEGER: _pack_integers,
    Kind.YEAR: _pack_integers,
    Kind.BIT: _pack_integers,
    Kind.ENUM: _pack_integers,
    Kind.SET: _pack_integers,
    Kind.FLOAT: _pack_floats,
    Kind.DOUBLE: _pack_floats,
    Kind.DECIMAL: _pack_decimals,
    Kind.DATE: _pack_dates,
    Kind.DATETIME: _pack_dates,
    Kind.TIMESTAMP: _pack_dates,
    Kind.TIME: _pack_durations,
    Kind.TEXT: _pack_strings,
    Kind.BINARY: _pack_strings,
    Kind.JSON: lambda values, _: _pack_each(encode_json, values),
    Kind.VECTOR: _pack_vectors,
}


def warm() -> None:
    """Compile every kernel, so that the first real rows need not wait."""
    names = ("int", "double", "decimal", "date", "time", "varchar", "blob")
    columns = tuple(Column(i + 1, n, SqlType(n), False) for i, n in enumerate(names))
    index = (Index(1, "PRIMARY", names, unique=True, primary=True),)
    table = TableSchema(TableId("", ""), 1, 1, columns, index)
    encode_rows(table, 1, pa.array([], table.image))
    encode_keys(table, 1, pa.array([], table.image))
