"""Columns as Debezium writes them: each value's JSON text, made column by column."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rowferry.change.sqltype import Kind, SqlType
from rowferry.change.table import Column
from rowferry.columnar import float_text as kernels_float
from rowferry.columnar.fields import float_text, numbers
from rowferry.columnar.memory import frozen
from rowferry.columnar.render import base64_text, hex_text, set_text, text_buffers
from rowferry.errors import EncodeError
from rowferry.flow.encode.avro.kernels_decimal import decimal_bytes
from rowferry.flow.encode.debezium import kernels as kernels_debezium
from rowferry.flow.encode.debezium.options import ValueModes
from rowferry.flow.encode.kernels import row_writer as kernels
from rowferry.flow.encode.open_protocol.kernels import escaped_text

QUOTE: Final = ord('"')
_TEXT: Final = pa.large_utf8()
_DAY_US: Final = 86_400_000_000
_NO_YEAR: Final = 1900  # what stands for the year 0000: YEAR begins with 1901
_SRID_BYTES: Final = 4  # a geometry is its SRID, then well-known binary
_EPOCH: Final = "1970-01-01"


@dataclass(frozen=True, slots=True)
class Shown:
    """A column's values on their way into rows; `valid` says which are NULL."""

    values: pa.Array
    valid: pa.Array
    quoted: bool = False

    @property
    def wrap(self) -> int:
        """The byte around each value; 0 for none."""
        return QUOTE if self.quoted else 0

    @property
    def mode(self) -> int:
        """How the compiled writer copies the values."""
        return kernels.RAW


def is_single(kind: SqlType) -> bool:
    """Return whether a FLOAT is written with 32 bits: one with digits is widened."""
    return kind.scale is None and (kind.length is None or kind.length <= 24)


def bit_size(kind: SqlType) -> int:
    """Return how many bits a BIT column has."""
    return kind.length or 1


def escaped_elements(kind: SqlType) -> tuple[str, ...]:
    """Return the names of an ENUM or SET as Debezium gives them: a comma has a backslash."""
    return tuple(name.replace(",", "\\,") for name in kind.elements)


def shown(column: Column, values: pa.Array, modes: ValueModes) -> Shown:
    """Return a column's values as JSON texts or whole numbers.

    Raises:
        EncodeError: a value that the column's type cannot have.
    """
    try:
        return _shown(column.type, values, modes)
    except EncodeError as err:
        raise EncodeError(f"column {column.name!r}: {err.words}") from None


def _shown(kind: SqlType, values: pa.Array, modes: ValueModes) -> Shown:
    match kind.kind:
        case Kind.INTEGER:
            return _integer(kind, values, modes)
        case Kind.YEAR:
            year = pc.if_else(pc.equal(values, 0), pa.scalar(_NO_YEAR, pa.int64()), values)
            return Shown(year, year)
        case Kind.FLOAT | Kind.DOUBLE:
            wide = kind.kind is Kind.FLOAT and not is_single(kind)
            wide_values = values.cast(pa.float64()) if wide else values
            return Shown(float_text(wide_values, kernels_float.NUMBER), values)
        case Kind.DECIMAL:
            return _decimal(kind, values, modes)
        case Kind.BIT:
            return _bits(kind, values)
        case Kind.DATE | Kind.DATETIME:
            return _moment(kind, values, modes.time)
        case Kind.TIMESTAMP:
            return _instant(values)
        case Kind.TIME:
            return _time(values, modes.time)
        case Kind.ENUM | Kind.SET:
            return Shown(escaped_text(element_names(kind, values)), values, quoted=True)
        case Kind.JSON:
            packed = kernels_debezium.compact_json(values)
            return Shown(escaped_text(packed), values, quoted=True)
        case Kind.VECTOR:
            return Shown(values, values)
        case Kind.BINARY:
            if kind.name == "geometry":
                return _geometry(values)
            return Shown(binary_text(values, modes.binary), values, quoted=True)
        case _:
            return Shown(escaped_text(values), values, quoted=True)


def _integer(kind: SqlType, values: pa.Array, modes: ValueModes) -> Shown:
    if not kind.unsigned or kind.name != "bigint":
        return Shown(values, values)
    if modes.bigint == "precise":
        packed = base64_text(decimal_bytes(pc.cast(values, _TEXT), 0))
        return Shown(packed, values, quoted=True)
    return Shown(pa.array(numbers(values).view(np.int64)), values)


def _decimal(kind: SqlType, values: pa.Array, modes: ValueModes) -> Shown:
    if modes.decimal == "string":
        return Shown(values, values, quoted=True)
    if modes.decimal == "double":
        return Shown(float_text(pc.cast(values, pa.float64()), kernels_float.NUMBER), values)
    packed = base64_text(decimal_bytes(values, kind.fraction_digits))
    return Shown(packed, values, quoted=True)


def _bits(kind: SqlType, values: pa.Array) -> Shown:
    if bit_size(kind) == 1:
        names = pa.array(["false", "true"], _TEXT)
        return Shown(names.take(pa.array((numbers(values) != 0).astype(np.int8))), values)
    return Shown(base64_text(bit_bytes(kind, values)), values, quoted=True)


def bit_bytes(kind: SqlType, values: pa.Array) -> pa.LargeBinaryArray:
    """Return BIT values as bytes, the lowest first."""
    words = numbers(values).astype("<u8")
    width = (bit_size(kind) + 7) // 8
    data = words.view(np.uint8).reshape(len(words), 8)[:, :width].copy().reshape(-1)
    offsets = np.arange(len(words) + 1, dtype=np.int64) * width
    return pa.LargeBinaryArray.from_buffers(
        pa.large_binary(), len(words), [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    )


def _moment(kind: SqlType, values: pa.Array, mode: str) -> Shown:
    micros = kernels_debezium.moments(values)
    if mode == "isostring":
        form = "%Y-%m-%d" if kind.kind is Kind.DATE else "%Y-%m-%dT%H:%M:%S"
        words = pc.strftime(micros.cast(pa.timestamp("us")), format=form).cast(_TEXT)
        return Shown(_zoned(words), micros, quoted=True)
    if kind.kind is Kind.DATE:
        return _whole(micros, lambda n: n // _DAY_US)
    if mode == "nanoseconds":
        return _whole(micros, lambda n: n * 1000)
    if mode == "connect" or (mode.startswith("adaptive") and kind.fraction_digits <= 3):
        return _whole(micros, lambda n: n // 1000)
    return Shown(micros, micros)


def _time(values: pa.Array, mode: str) -> Shown:
    micros = kernels_debezium.durations(values)
    if mode == "nanoseconds":
        return _whole(micros, lambda n: n * 1000)
    if mode not in ("connect", "isostring"):
        return Shown(micros, micros)
    # Those are times of a day: MySQL's others have no form.
    of_day = pc.and_(pc.greater_equal(micros, 0), pc.less(micros, _DAY_US))
    micros = pc.if_else(of_day, micros, pa.scalar(None, pa.int64()))
    if mode == "connect":
        return _whole(micros, lambda n: n // 1000)
    words = pc.strftime(micros.cast(pa.timestamp("us")), format="%H:%M:%S").cast(_TEXT)
    return Shown(_zoned(words), micros, quoted=True)


def _whole(micros: pa.Int64Array, turn: Any) -> Shown:
    turned = pa.array(turn(numbers(micros)))
    return Shown(turned, micros)


def _zoned(words: pa.Array) -> pa.Array:
    """Return times with as few digits after the point as there must be, then a Z."""
    short = pc.replace_substring_regex(words, r"\.?0*$", "")
    pointed = pc.match_substring(words, ".")
    return _joined(pc.if_else(pointed, short, words), "Z")


def _instant(values: pa.Array) -> Shown:
    """Return TIMESTAMP texts in ISO form; the zero one is 1970, as Debezium has it."""
    date = pc.utf8_slice_codeunits(values, 0, 10)
    date = pc.if_else(pc.starts_with(values, "0000-00-00"), pa.scalar(_EPOCH, _TEXT), date)
    clock = pc.utf8_slice_codeunits(values, 11)
    return Shown(_joined(date, "T", clock, "Z"), values, quoted=True)


def _joined(*parts: Any) -> pa.Array:
    whole = [pa.scalar(p, _TEXT) if isinstance(p, str) else p for p in parts]
    return pc.binary_join_element_wise(*whole, pa.scalar("", _TEXT))


def element_names(kind: SqlType, values: pa.Array) -> pa.Array:
    """Return the names of ENUM and SET values.

    Raises:
        EncodeError: a value that the type has no element for.
    """
    names = escaped_elements(kind)
    most = (1 << len(names)) - 1 if kind.kind is Kind.SET else len(names)
    top = pc.max(values).as_py()
    if top is not None and top > most:
        raise EncodeError(f"value {top} has no element in {kind.sql}")
    if kind.kind is Kind.SET:
        return set_text(numbers(values).astype(np.uint64, copy=False), names)
    return pa.array(["", *names], _TEXT).take(values)


def binary_text(values: pa.Array, mode: str) -> pa.Array:
    """Return binary values as text."""
    if mode == "hex":
        return hex_text(values)
    packed = base64_text(values)
    if mode != "base64-url-safe":
        return packed
    return pc.replace_substring(pc.replace_substring(packed, "+", "-"), "/", "_")


def _geometry(values: pa.Array) -> Shown:
    """Return geometries as objects: well-known binary, and the SRID where there is one."""
    wkb, srid = geometry_parts(values)
    words = pc.if_else(
        pa.array(srid == 0), pa.scalar("null", _TEXT), pc.cast(pa.array(srid), _TEXT)
    )
    return Shown(_joined('{"wkb":"', base64_text(wkb), '","srid":', words, "}"), values)


def geometry_parts(values: pa.Array) -> tuple[pa.LargeBinaryArray, npt.NDArray[np.int64]]:
    """Return the well-known binary of geometries, and their SRIDs, 0 for none."""
    offsets, data = text_buffers(values)
    starts = np.minimum(offsets[:-1] + _SRID_BYTES, offsets[1:])
    long_enough = offsets[1:] - offsets[:-1] >= _SRID_BYTES
    srid = np.zeros(len(values), np.int64)
    for k in range(_SRID_BYTES):
        place = np.where(long_enough, offsets[:-1] + k, 0)
        byte = data[place].astype(np.int64) if len(data) else 0
        srid |= np.where(long_enough, byte << (8 * k), 0)
    return _spans(data, starts, offsets[1:]), srid


def _spans(data: Any, starts: Any, stops: Any) -> pa.LargeBinaryArray:
    """Return the bytes between starts and stops, which do not overlap and never go back."""
    sizes = stops - starts
    places = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=places[1:])
    shift = np.repeat(starts - places[:-1], sizes)
    out = data[np.arange(int(places[-1])) + shift] if len(data) else np.zeros(0, np.uint8)
    return pa.LargeBinaryArray.from_buffers(
        pa.large_binary(), len(sizes), [None, pa.py_buffer(places), pa.py_buffer(frozen(out))]
    )
