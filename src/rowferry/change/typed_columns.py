"""Columns in types that other systems know, made of canonical values, and back.

A canonical value is exact and most often a text (see `sqltype`). Here it becomes a number, a
decimal, a date or a name, as tables in Spark, Parquet and SQL have them.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rowferry.change.sqltype import Kind, SqlType
from rowferry.change.table import Column, TableSchema
from rowferry.errors import CorruptLog

# What a row change has beside the table's columns.
OP, COMMIT_TS, SEQ = "_op", "_commit_ts", "_seq"
OP_NAMES: Final = pa.array(["insert", "update", "delete"])  # by the number of an `Op`

_DELETE: Final = pa.scalar(2, pa.int8())
_NUMBER: Final = pa.decimal128(20, 0)  # holds every unsigned 64-bit number
_MOST_DIGITS: Final = 38
SRID_BYTES: Final = 4  # a geometry's value begins with the number of its reference system
_TIMES: Final = {
    Kind.DATE: pa.date32(),
    Kind.DATETIME: pa.timestamp("us"),
    Kind.TIMESTAMP: pa.timestamp("us", "UTC"),
}


def column_type(kind: SqlType, native_times: bool) -> pa.DataType:
    """Return the type that a column's values have as typed ones.

    Whole numbers of every width have 64 bits, so that a column that gets wider keeps its type.
    """
    match kind.kind:
        case Kind.INTEGER:
            return _NUMBER if kind.unsigned and kind.name == "bigint" else pa.int64()
        case Kind.YEAR:
            return pa.int64()
        case Kind.BIT:
            return _NUMBER if (kind.size or 1) > 63 else pa.int64()
        case Kind.FLOAT:
            return pa.float32()
        case Kind.DOUBLE:
            return pa.float64()
        case Kind.DECIMAL:
            digits = kind.size or 0
            if digits > _MOST_DIGITS:
                return pa.string()
            return pa.decimal128(digits, kind.fraction_digits)
        case Kind.BINARY:
            return pa.binary()
        case Kind.DATE | Kind.DATETIME | Kind.TIMESTAMP if native_times:
            return _TIMES[kind.kind]
        case _:
            return pa.string()


def typed(values: pa.Array, column: Column, table: TableSchema, native_times: bool) -> pa.Array:
    """Return a column's canonical values as `column_type` says.

    With `native_times`, a day that no calendar has (a zero date) is NULL: whoever must not lose it
    compares the NULLs.

    Raises:
        CorruptLog: a number that is no element of an ENUM.
    """
    kind = column.type
    if kind.kind is Kind.ENUM:
        return _enum_names(values, column, table)
    if kind.kind is Kind.SET:
        return _set_names(values, kind.elements)
    wanted = column_type(kind, native_times)
    if wanted in _TIMES.values():
        return _moments(values).cast(wanted)
    return values.cast(wanted)


def _enum_names(values: pa.Array, column: Column, table: TableSchema) -> pa.Array:
    """Return the elements' names; 0 is the empty text that stands for a wrong value."""
    names = pa.array(["", *column.type.elements], pa.string())
    try:
        return names.take(values)
    except pa.ArrowIndexError:
        most = pc.max(values).as_py()
        raise CorruptLog(
            f"{table.id}, column {column.name!r} holds element {most} of {len(names) - 1}"
        ) from None


def _set_names(values: pa.Array, elements: tuple[str, ...]) -> pa.Array:
    """Return the names of the bits that are set, joined by commas."""
    absent = pa.scalar(None, pa.string())
    # With an empty text in front, and its comma cut off: Arrow loses rows whose parts are all NULL.
    parts = [pc.if_else(values.is_valid(), "", "")]
    for place, name in enumerate(elements):
        bit = pa.scalar(1 << place, pa.uint64())
        chosen = pc.not_equal(pc.bit_wise_and(values, bit), pa.scalar(0, pa.uint64()))
        parts.append(pc.if_else(chosen, name, absent))
    joined = pc.binary_join_element_wise(*parts, ",", null_handling="skip")
    return pc.if_else(values.is_valid(), pc.utf8_slice_codeunits(joined, 1), absent)


def place_in_batch(op: pa.Array, seq: pa.Array) -> pa.Array:
    """Return what `_seq` tells: by it, rows of one commit-ts in a micro-batch have an order.

    An update that changes a unique key is a delete and an insert with one `seq`, often of the same
    primary key: whoever takes the last change of a key must take the insert.
    """
    behind = pc.not_equal(op, _DELETE).cast(pa.int64())
    return pc.add(pc.multiply(seq, pa.scalar(2, pa.int64())), behind)


# --- times ---------------------------------------------------------------------------------------

_WIDTH: Final = 26  # YYYY-MM-DD HH:MM:SS.ffffff
_MONTH_DAYS: Final = np.array([0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31], np.int64)
_DAY_US: Final = 86_400_000_000


def _moments(texts: pa.Array) -> pa.Array:
    """Return canonical dates and times as microseconds since 1970; days that never were are NULL.

    MySQL's texts have fixed columns; what a shorter one lacks is filled with zeros.
    """
    filled = pc.utf8_rpad(texts.cast(pa.string()).fill_null(""), _WIDTH, "0")
    buffer = np.frombuffer(filled.buffers()[2], np.uint8)
    begin = int(np.frombuffer(filled.buffers()[1], np.int32)[filled.offset])
    digits = buffer[begin : begin + len(filled) * _WIDTH].reshape(-1, _WIDTH).astype(np.int64) - 48

    def number(first: int, last: int) -> npt.NDArray[np.int64]:
        return digits[:, first:last] @ (10 ** np.arange(last - first - 1, -1, -1))

    year, month, day = number(0, 4), number(5, 7), number(8, 10)
    leap = (year % 4 == 0) & ((year % 100 != 0) | (year % 400 == 0)) & (month == 2)
    known = (year > 0) & (month > 0) & (month < 13)
    known &= (day > 0) & (day <= _MONTH_DAYS[np.where(known, month, 0)] + leap)
    seconds = number(11, 13) * 3600 + number(14, 16) * 60 + number(17, 19)
    micros = _days(year, month, day) * _DAY_US + seconds * 1_000_000 + number(20, 26)
    return pa.array(micros, mask=~known | ~texts.is_valid().to_numpy(zero_copy_only=False)).cast(
        pa.timestamp("us")
    )


def _days(
    year: npt.NDArray[np.int64], month: npt.NDArray[np.int64], day: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Return days since 1970-01-01 in the Gregorian calendar, with years that begin in March."""
    years = year - (month <= 2)
    era = years // 400
    within = years - era * 400
    of_year = (153 * ((month + 9) % 12) + 2) // 5 + day - 1
    days: npt.NDArray[np.int64] = era * 146_097 + within * 365 + within // 4 - within // 100
    return days + of_year - 719_468


def in_calendar(texts: pa.Array) -> pa.BooleanArray:
    """Return which canonical dates and times are of a day that a calendar has; NULL is of none."""
    return _moments(texts).is_valid()


# --- back ----------------------------------------------------------------------------------------


def canonical(values: pa.Array, column: Column) -> pa.Array:
    """Return typed values as canonical ones; `typed` has made them, with or without native times.

    The empty text of an ENUM is its element of that name, or else the wrong value 0.

    Raises:
        ValueError: a value that the column cannot have; the text has it.
    """
    kind = column.type
    match kind.kind:
        case Kind.ENUM:
            return _enum_numbers(values, kind.elements)
        case Kind.SET:
            return _set_numbers(values, kind.elements)
        case Kind.DECIMAL if pa.types.is_decimal(values.type):
            return _decimal_text(values).cast(kind.arrow)
        case Kind.DATETIME | Kind.TIMESTAMP if pa.types.is_timestamp(values.type):
            digits = kind.fraction_digits
            length = 19 + (1 + digits if digits else 0)
            plain = values.cast(pa.timestamp("us", values.type.tz))
            return pc.utf8_slice_codeunits(plain.cast(pa.string()), 0, length).cast(kind.arrow)
        case _:
            return values.cast(kind.arrow)


def _enum_numbers(values: pa.Array, elements: tuple[str, ...]) -> pa.Array:
    texts = values.cast(pa.string())
    numbers = pc.add(pc.index_in(texts, value_set=pa.array(elements, pa.string())), 1)
    wrong = pc.and_(pc.is_null(numbers), pc.not_equal(texts, ""))
    _refuse(texts, wrong.fill_null(False))
    zero = pa.scalar(0, pa.uint64())
    return pc.if_else(texts.is_valid(), numbers.cast(pa.uint64()).fill_null(zero), None)


def _set_numbers(values: pa.Array, elements: tuple[str, ...]) -> pa.Array:
    texts = values.cast(pa.string())
    framed = pc.binary_join_element_wise("", texts, "", ",")
    numbers = pc.if_else(texts.is_valid(), pa.scalar(0, pa.uint64()), None)
    for place, name in enumerate(elements):
        has = pc.match_substring(framed, f",{name},")
        bit = pa.scalar(1 << place, pa.uint64())
        numbers = pc.if_else(has, pc.bit_wise_or(numbers, bit), numbers)
    _refuse(texts, pc.not_equal(_set_names(numbers, elements), texts).fill_null(False))
    return numbers


def _refuse(texts: pa.Array, wrong: pa.BooleanArray) -> None:
    if pc.any(wrong).as_py():
        raise ValueError(f"{texts.filter(wrong)[0].as_py()!r} is no element of the column")


def _decimal_text(values: pa.Array) -> pa.Array:
    """Return decimals with all digits of their scale; Arrow writes small ones as 1E-8."""
    scale = values.type.scale
    whole = pa.decimal128(values.type.precision, 0)
    digits = pa.Array.from_buffers(whole, len(values), values.buffers(), -1, values.offset)
    texts = digits.cast(pa.string())
    if not scale:
        return texts
    sign = pc.if_else(pc.starts_with(texts, "-"), "-", "")
    padded = pc.utf8_lpad(pc.utf8_ltrim(texts, "-"), scale + 1, "0")
    before = pc.utf8_slice_codeunits(padded, 0, -scale)
    behind = pc.utf8_slice_codeunits(padded, -scale)
    return pc.binary_join_element_wise(pc.binary_join_element_wise(sign, before, ""), behind, ".")
