"""Rows out of TiDB's key and row encodings, as Arrow columns.

Comes in: the bytes of a response and where in them each row's key and value lie. Goes out: row
images. One pass finds where each row has each column; then one compiled loop per column reads it.
Which table a key belongs to is the caller's business: the table id in it is passed over.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NoReturn

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rowferry.change.sqltype import Kind, SqlType
from rowferry.change.table import Column, Index, TableId, TableSchema
from rowferry.columnar import addresses, json_binary
from rowferry.columnar.packed import Bytes, Longs, Words, frozen
from rowferry.errors import BadInput, CorruptLog
from rowferry.flow.capture.range_log import (
    kv_locate,
    kv_numbers,
    kv_text,
    kv_time,
    kv_vector,
)
from rowferry.flow.capture.range_log.kv_bytes import (
    ABSENT,
    BAD_JSON,
    BYTES_FLAG,
    DECIMAL_FLAG,
    DURATION_FLAG,
    FLOAT_FLAG,
    INT_FLAG,
    JSON_TOO_DEEP,
    UINT_FLAG,
    VALUE,
    WORDS,
    fault,
)
from rowferry.flow.capture.range_log.kv_default import default_of
from rowferry.mysql.type_facts import TYPE_FACTS

_FLAGS: Final[dict[Kind, int]] = {
    Kind.INTEGER: INT_FLAG,
    Kind.YEAR: INT_FLAG,
    Kind.FLOAT: FLOAT_FLAG,
    Kind.DOUBLE: FLOAT_FLAG,
    Kind.DECIMAL: DECIMAL_FLAG,
    Kind.BIT: UINT_FLAG,
    Kind.ENUM: UINT_FLAG,
    Kind.SET: UINT_FLAG,
    Kind.DATE: UINT_FLAG,
    Kind.DATETIME: UINT_FLAG,
    Kind.TIMESTAMP: UINT_FLAG,
    Kind.TIME: DURATION_FLAG,
    Kind.TEXT: BYTES_FLAG,
    Kind.BINARY: BYTES_FLAG,
}


@dataclass(frozen=True, slots=True)
class Handle:
    """How a table's keys name its rows.

    Attributes:
        columns: places in the table of the columns that the key holds, in key order; empty for a
            table without a primary key, whose rows have a number of their own.
        flags: type flags of a common handle's datums; empty: the handle is one integer.
    """

    columns: tuple[int, ...]
    flags: tuple[int, ...]

    @property
    def is_integer(self) -> bool:
        """The key holds one 64-bit integer, with its sign flipped."""
        return not self.flags


def handle_of(table: TableSchema) -> Handle:
    """Return how the table's keys name its rows."""
    places = {c.name.lower(): i for i, c in enumerate(table.columns)}
    columns = tuple(places[name.lower()] for name in table.primary_key)
    types = [table.columns[i].type for i in columns]
    if not types or (len(types) == 1 and types[0].kind is Kind.INTEGER):
        return Handle(columns, ())
    for i, column_type in zip(columns, types, strict=True):
        if column_type.kind not in _FLAGS:
            name = table.columns[i].name
            raise BadInput(f"{table.id}: {column_type.sql} column {name!r} cannot be in a key")
    return Handle(columns, tuple(_flag(t) for t in types))


def _flag(column_type: SqlType) -> int:
    return (
        UINT_FLAG
        if column_type.unsigned and column_type.kind is Kind.INTEGER
        else _FLAGS[column_type.kind]
    )


@dataclass(slots=True)
class _Found:
    """One column's bytes, row by row: where, how many, and in what form."""

    raw: Bytes
    at: Longs
    size: Longs
    form: Bytes


class RowDecoder:
    """Decodes rows of one table version."""

    def __init__(self, table: TableSchema) -> None:
        self.table = table
        self._handle = handle_of(table)
        ids = np.array([c.id for c in table.columns], np.int64)
        self._order = frozen(np.argsort(ids))
        self._ids = frozen(ids[self._order])
        self._flags = frozen(np.array(self._handle.flags, np.uint8))
        self._key_order = frozen(np.array(self._handle.columns, np.int64))
        self._defaults = [default_of(c) for c in table.columns]

    def decode(
        self,
        raw: npt.NDArray[np.uint8],
        key_at: npt.NDArray[np.int64],
        key_len: npt.NDArray[np.int64],
        value_at: npt.NDArray[np.int64],
        value_len: npt.NDArray[np.int64],
    ) -> pa.StructArray:
        """Return row images of type `table.image`; null where `value_len` is below 0.

        A column is taken from the value, else from the key, else it is the default that the column
        was added with, else NULL. Raises CorruptLog, naming row, column and key, on bytes that are
        not such a row.
        """
        raw, key_at, key_len = frozen(raw), frozen(key_at), frozen(key_len)
        at, size, form = self._places(len(key_at))
        bad = kv_locate.locate_values(
            raw, frozen(value_at), frozen(value_len), self._ids, self._order, at, size, form
        )
        if bad:
            self._refuse(bad, None, raw, key_at, key_len)
        present = np.asarray(value_len) >= 0
        return self._image(
            raw, key_at, key_len, at, size, form, range(len(self.table.columns)), present
        )

    def decode_keys(
        self,
        raw: npt.NDArray[np.uint8],
        key_at: npt.NDArray[np.int64],
        key_len: npt.NDArray[np.int64],
    ) -> pa.StructArray:
        """Return the columns that the keys hold, in table order; none for a table without a key.

        Strings are the key's bytes: a source that keeps sort keys there, not the strings, keeps
        the strings in the value only.
        """
        raw, key_at, key_len = frozen(raw), frozen(key_at), frozen(key_len)
        at, size, form = self._places(len(key_at))
        columns = sorted(self._handle.columns)
        present = np.ones(len(key_at), np.bool_)
        return self._image(raw, key_at, key_len, at, size, form, columns, present)

    def _places(self, rows: int) -> tuple[Longs, Longs, Bytes]:
        shape = (len(self.table.columns), rows)
        return (
            np.zeros(shape, np.int64),
            np.zeros(shape, np.int64),
            np.full(shape, ABSENT, np.uint8),
        )

    def _image(
        self,
        raw: Bytes,
        key_at: Longs,
        key_len: Longs,
        at: Longs,
        size: Longs,
        form: Bytes,
        columns: list[int] | range,
        present: npt.NDArray[np.bool_],
    ) -> pa.StructArray:
        """Read what is still absent from the keys, then each column."""
        bad = kv_locate.locate_keys(
            raw, key_at, key_len, self._flags, self._key_order, at, size, form
        )
        if bad:
            self._refuse(bad, None, raw, key_at, key_len)
        children = []
        for c in columns:
            column = self.table.columns[c]
            try:
                child = _read(column, _Found(raw, at[c], size[c], form[c]), self._handle.is_integer)
            except _FaultError as err:
                self._refuse(err.fault, column, raw, key_at, key_len)
            children.append(self._with_default(child, form[c], c))
        fields = [self.table.image.field(c) for c in columns]
        bitmap = None if present.all() else pa.py_buffer(np.packbits(present, bitorder="little"))
        return pa.Array.from_buffers(pa.struct(fields), len(key_at), [bitmap], children=children)

    def _with_default(self, child: pa.Array, form: Bytes, c: int) -> pa.Array:
        default = self._defaults[c]
        if default is None or child.null_count == 0:
            return child
        missing = form == ABSENT
        if not missing.any():
            return child
        return pc.if_else(pa.array(missing), pa.scalar(default, child.type), child)

    def _refuse(
        self, code: int, column: Column | None, raw: Bytes, key_at: Longs, key_len: Longs
    ) -> NoReturn:
        row, why = int(code) >> 6, int(code) & 63
        start = max(int(key_at[row]), 0)
        key = raw[start : start + max(int(key_len[row]), 0)].tobytes().hex() or "none"
        place = f", column {column.name!r}" if column else ""
        words = WORDS.get(why, "the bytes are not UTF-8")
        raise CorruptLog(f"{self.table.id}, row {row}{place}, key {key}: {words}")


class _FaultError(Exception):
    """A kernel refused a row; `RowDecoder` says where."""

    def __init__(self, fault: int) -> None:
        self.fault = fault


def _check(code: int) -> None:
    if code:
        raise _FaultError(code)


def _read(column: Column, cells: _Found, integer_handle: bool) -> pa.Array:
    """Read one column; rows without a value are null."""
    kind, rows = column.type.kind, len(cells.at)
    bitmap = np.zeros((rows + 7) // 8, np.uint8)
    nulls, absent = kv_text.validity(cells.form, bitmap)
    valid = pa.py_buffer(bitmap) if nulls + absent else None
    match kind:
        case Kind.INTEGER | Kind.YEAR | Kind.BIT | Kind.ENUM | Kind.SET:
            buffers = [valid, pa.py_buffer(_integers(column, cells, integer_handle))]
        case Kind.FLOAT | Kind.DOUBLE:
            buffers = [valid, pa.py_buffer(_floats(kind, cells))]
        case _:
            offsets, data = _texts(column, cells)
            used = pa.py_buffer(data).slice(0, int(offsets[rows]))
            buffers = [valid, pa.py_buffer(offsets), used]
    array = pa.Array.from_buffers(column.type.arrow, rows, buffers, nulls + absent)
    if kind is Kind.TEXT or kind is Kind.JSON:
        _check_utf8(array)
    return array


def _integers(column: Column, cells: _Found, integer_handle: bool = False) -> Words:
    signed = column.type.kind in (Kind.YEAR, Kind.TIME) or (
        column.type.kind is Kind.INTEGER and not column.type.unsigned
    )
    out = np.empty(len(cells.at), np.uint64)
    _check(
        kv_numbers.integers(
            cells.raw, cells.at, cells.size, cells.form, signed, signed or integer_handle, out
        )
    )
    return out


def _floats(kind: Kind, cells: _Found) -> npt.NDArray[np.float64] | npt.NDArray[np.float32]:
    out = np.empty(len(cells.at), np.uint64)
    _check(kv_numbers.floats(cells.raw, cells.at, cells.size, cells.form, out))
    wide = out.view(np.float64)
    if kind is Kind.DOUBLE:
        return wide
    narrow = np.empty(len(wide), np.float32)
    _check(kv_numbers.narrow(wide, narrow))
    return narrow


def _texts(column: Column, cells: _Found) -> tuple[Longs, Bytes]:
    """Return where each row's text begins, and the texts."""
    rows, fraction = len(cells.at), column.type.fraction_digits
    offsets = np.empty(rows + 1, np.int64)
    raw, at, size, form = cells.raw, cells.at, cells.size, cells.form
    match column.type.kind:
        case Kind.DECIMAL:
            precision = column.type.size or 10
            out = np.empty(rows * (precision + 3), np.uint8)
            _check(kv_numbers.decimals(raw, at, size, form, precision, fraction, offsets, out))
        case Kind.DATE | Kind.DATETIME | Kind.TIMESTAMP:
            packed, date_only = _integers(column, cells), column.type.kind is Kind.DATE
            out = np.empty(rows * 26, np.uint8)
            _check(kv_time.date_times(packed, form, date_only, fraction, offsets, out))
        case Kind.TIME:
            nanos = _integers(column, cells).view(np.int64)
            out = np.empty(rows * 17, np.uint8)
            _check(kv_time.durations(nanos, form, fraction, offsets, out))
        case Kind.JSON:
            present = form == VALUE
            out, offsets, row, why = json_binary.json_texts(
                json_binary.TIDB, raw, at, size, present
            )
            if why:
                deep = why == addresses.JSON_TOO_DEEP
                _check(fault(row, JSON_TOO_DEEP if deep else BAD_JSON))
        case Kind.VECTOR:
            vector_fault, out = kv_vector.vector_texts(raw, at, size, form, offsets)
            _check(vector_fault)
        case _:
            kv_text.string_offsets(raw, at, size, form, offsets)
            out = np.empty(int(offsets[rows]), np.uint8)
            kv_text.strings(raw, at, form, offsets, out)
    return offsets, out


def _check_utf8(array: pa.Array) -> None:
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        binary = array.view(pa.large_binary())
        for row in range(len(binary)):
            try:
                (binary[row].as_py() or b"").decode()
            except UnicodeDecodeError:
                raise _FaultError(row << 6) from None
        raise


def warm() -> None:
    """Compile every kernel, so that the first real rows need not wait."""
    columns = tuple(
        Column(i + 1, name, SqlType(name, length=10, elements=("a",)))
        for i, name in enumerate(TYPE_FACTS)
    )
    nothing = np.zeros(0, np.int64)
    for key in ((), ("int",), ("int", "varchar")):
        index = (Index(1, "PRIMARY", key, unique=True, primary=True),) if key else ()
        decoder = RowDecoder(TableSchema(TableId("", ""), 1, 1, columns, index))
        decoder.decode(np.zeros(0, np.uint8), nothing, nothing, nothing, nothing)
    json_binary.warm()
