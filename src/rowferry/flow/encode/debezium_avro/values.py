"""Columns as the Avro writer takes them, with Debezium's forms of values."""

from __future__ import annotations

import json
from base64 import b64decode
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rowferry.change.sqltype import Kind, SqlType
from rowferry.columnar.fields import Field, numbers
from rowferry.errors import EncodeError
from rowferry.flow.encode.avro import kernels
from rowferry.flow.encode.avro.kernels_decimal import decimal_bytes
from rowferry.flow.encode.avro.writer import AvroCell, single_floats, write_rows
from rowferry.flow.encode.debezium import kernels as kernels_debezium
from rowferry.flow.encode.debezium import schema
from rowferry.flow.encode.debezium.options import ValueModes
from rowferry.flow.encode.debezium.values import (
    binary_text,
    bit_bytes,
    bit_size,
    element_names,
    geometry_parts,
    is_single,
    shown,
)

_FIRST, _SECOND = 0, 2  # the bytes of a union's branches
_TEXT: Final = pa.large_utf8()


def cells_of(field: Field, modes: ValueModes) -> list[AvroCell]:
    """Return how a column is written; it fits the field that `to_avro` makes of its schema.

    NULL is what `null_text` says, as it is in JSON.

    Raises:
        EncodeError: a value that the column's type cannot have.
    """
    column = field.column
    try:
        first, *rest = _cells(column.type, field, modes)
    except EncodeError as err:
        raise EncodeError(f"column {column.name!r}: {err.words}") from None
    branch = null = -1
    if column.nullable:
        default_first = schema.default_text(column, modes) is not None
        branch, null = (_FIRST, _SECOND) if default_first else (_SECOND, _FIRST)
    stand_in = json.loads(schema.null_text(column, modes))
    values, valid = first.values, first.valid
    if stand_in is not None and valid is not None and valid.null_count and not rest:
        values, valid = _filled(first, column.type, stand_in), None
    cell = AvroCell(first.kind, values, column.name, valid, branch, null, first.width)
    return [cell, *rest]


def _cells(kind: SqlType, field: Field, modes: ValueModes) -> list[AvroCell]:
    values = field.values

    def one(what: int, made: pa.Array, width: int = 0, valid: pa.Array = values) -> list[AvroCell]:
        return [AvroCell(what, made, field.column.name, valid, width=width)]

    match kind.kind:
        case Kind.INTEGER if kind.name == "bigint" and kind.unsigned and modes.bigint == "precise":
            return one(kernels.TEXT, decimal_bytes(pc.cast(values, _TEXT), 0))
        case Kind.INTEGER:
            return one(kernels.LONG, values)  # an unsigned number above the largest long wraps
        case Kind.FLOAT if is_single(kind):
            return one(kernels.WORD, single_floats(values), 4)
        case Kind.FLOAT | Kind.DOUBLE:
            return one(kernels.DOUBLE, values.cast(pa.float64()))
        case Kind.DECIMAL if modes.decimal == "double":
            return one(kernels.DOUBLE, pc.cast(values, pa.float64()))
        case Kind.DECIMAL if modes.decimal == "precise":
            return one(kernels.TEXT, decimal_bytes(values, kind.fraction_digits))
        case Kind.BIT if bit_size(kind) == 1:
            truths = pa.array((numbers(values) != 0).astype(np.uint64))
            return one(kernels.WORD, truths, 1)
        case Kind.BIT:
            return one(kernels.TEXT, bit_bytes(kind, values))
        case Kind.YEAR | Kind.DATE | Kind.DATETIME | Kind.TIMESTAMP | Kind.TIME:
            form = shown(field.column, values, modes)
            is_text = pa.types.is_large_string(form.values.type)
            return one(kernels.TEXT if is_text else kernels.LONG, form.values, valid=form.valid)
        case Kind.ENUM | Kind.SET:
            return one(kernels.TEXT, element_names(kind, values))
        case Kind.JSON:
            return one(kernels.TEXT, kernels_debezium.compact_json(values))
        case Kind.VECTOR:
            return _vector(field)
        case Kind.BINARY if kind.name == "geometry":
            return _geometry(field)
        case Kind.BINARY if modes.binary != "bytes":
            return one(kernels.TEXT, binary_text(values, modes.binary))
        case _:
            return one(kernels.TEXT, values)


def _filled(cell: AvroCell, kind: SqlType, stand_in: Any) -> pa.Array:
    """Return the values with another in place of NULL, which is given as JSON has it."""
    values = cell.values
    if pa.types.is_large_binary(values.type):
        stand_in = b64decode(stand_in)
    elif cell.kind == kernels.WORD:
        exact = pa.array([stand_in], pa.float32()) if kind.kind is Kind.FLOAT else None
        stand_in = int(stand_in) if exact is None else single_floats(exact)[0].as_py()
    elif values.type == pa.uint64():
        stand_in %= 1 << 64
    return pc.if_else(pc.is_valid(cell.valid), values, pa.scalar(stand_in, values.type))


def _vector(field: Field) -> list[AvroCell]:
    """Return an array of floats: their count, they, and the zero that ends it, unless it is it."""
    inner = pc.utf8_trim(pc.utf8_slice_codeunits(field.values.fill_null("[]"), 1, -1), " ")
    empty = pc.equal(inner, "")
    parts = pc.split_pattern(inner, ",")
    counts = pc.if_else(empty, 0, pc.list_value_length(parts).cast(pa.int64()))
    kept = pc.utf8_trim(pc.list_flatten(pc.filter(parts, pc.invert(empty))), " ")
    try:
        floats = np.ascontiguousarray(
            pc.cast(kept, pa.float32()).to_numpy(zero_copy_only=False), "<f4"
        )
    except pa.ArrowInvalid as err:
        raise EncodeError(f"a vector holds what is no number: {err}") from None
    sizes = counts.to_numpy(zero_copy_only=False)
    ends = (sizes > 0).astype(np.int64)
    offsets = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes * 4 + ends, out=offsets[1:])
    data = np.zeros(int(offsets[-1]), np.uint8)
    starts = np.repeat(offsets[:-1], sizes * 4)
    first = np.zeros(len(sizes), np.int64)
    np.cumsum(sizes[:-1] * 4, out=first[1:])
    data[starts + np.arange(len(starts)) - np.repeat(first, sizes * 4)] = floats.view(np.uint8)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    packed = pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(sizes), buffers)
    return [
        AvroCell(kernels.LONG, pa.array(sizes), valid=field.values),
        AvroCell(kernels.RAW, packed, valid=field.values, null=kernels.NOTHING),
    ]


def _geometry(field: Field) -> list[AvroCell]:
    """Return a record of well-known binary and the SRID, which is null where there is none."""
    wkb, srid = geometry_parts(field.values)
    given = pa.array(srid, mask=srid == 0)
    branches = AvroCell(kernels.LONG, given, valid=given, branch=_SECOND, null=_FIRST)
    packed = write_rows([[branches]], np.zeros(len(srid), np.int8))
    return [
        AvroCell(kernels.TEXT, wkb, valid=field.values),
        AvroCell(kernels.RAW, packed, valid=field.values, null=kernels.NOTHING),
    ]
