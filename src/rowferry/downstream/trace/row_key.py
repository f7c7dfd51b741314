"""The key of the row that is looked for: read from text, compared with columns."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from rowferry.change.chunk import Op, Rows, make_rows
from rowferry.change.sqltype import Kind
from rowferry.change.table import Column, TableSchema
from rowferry.errors import BadTrace
from rowferry.flow.encode.contract import PlainValues

Flags = npt.NDArray[np.bool_]

_WHOLE: Final = re.compile(r"[+-]?[0-9]{1,20}")
_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,80}(\.[0-9]{1,40})?([eE][+-]?[0-9]{1,4})?")
_TIME: Final = re.compile(r"[0-9:. T+-]{1,40}")
_HEX: Final = re.compile(r"0[xX](?:[0-9a-fA-F]{2}){1,4096}")
_WORD: Final = re.compile(r"[A-Za-z0-9_-]+")
_DIGITS: Final = frozenset(b"0123456789")
_WHOLE_KINDS: Final = (Kind.INTEGER, Kind.YEAR, Kind.BIT, Kind.SET)
_TIMES: Final = (Kind.DATE, Kind.DATETIME, Kind.TIMESTAMP, Kind.TIME)
_MOST_TRIES: Final = 2000  # of a needle in one content


@dataclass(frozen=True, slots=True)
class KeyValue:
    """A value of one key column, in every form that a format may give it.

    Attributes:
        canonical: as images have it (see `change.sqltype`).
        texts, number, data: as text, as a whole number, as bytes; where it can be.
    """

    column: Column
    canonical: int | float | str | bytes
    texts: tuple[str, ...]
    number: int | None
    data: tuple[bytes, ...]

    def equals(self, values: pa.Array) -> pa.BooleanArray:
        """Return which of some values are this one; a type that it cannot have: none."""
        kind = values.type
        if pa.types.is_integer(kind):
            if self.number is None or not _fits(self.number, kind):
                return pa.array(np.zeros(len(values), np.bool_))
            return pc.equal(values, pa.scalar(self.number, kind))
        if pa.types.is_floating(kind):
            try:
                return pc.equal(values, pa.scalar(float(self.texts[0]), kind))
            except ValueError:
                return pa.array(np.zeros(len(values), np.bool_))
        if pa.types.is_large_string(kind) or pa.types.is_string(kind):
            return pc.is_in(values, value_set=pa.array(self.texts, kind))
        if pa.types.is_large_binary(kind) or pa.types.is_binary(kind):
            return pc.is_in(values, value_set=pa.array(self.data, kind))
        return pa.array(np.zeros(len(values), np.bool_))


@dataclass(frozen=True, slots=True)
class RowKey:
    """A key of a table, as readers of the sink see both."""

    table: TableSchema
    values: tuple[KeyValue, ...]

    @classmethod
    def read(cls, table: TableSchema, given: Sequence[tuple[str, str]]) -> RowKey:
        """Return the key that somebody wrote, as names of columns with their values.

        Raises:
            BadTrace: the table has no key, or these are not its columns, or values do not fit.
        """
        names = table.handle_key
        if not names:
            raise BadTrace(
                f"table {table.id} has no primary or NOT NULL unique key, so that no row of it can "
                "be named; read its changes by: rowferry consume"
            )
        wanted: dict[str, str] = {}
        key = f"the key of {table.id} is ({', '.join(names)})"
        for name, value in given:
            column = next((n for n in names if n.lower() == name.lower()), None)
            if column is None:
                raise BadTrace(f"{name!r} is no column of the key; {key}")
            if column in wanted:
                raise BadTrace(f"{name!r} is given twice; {key}")
            wanted[column] = value
        missing = [n for n in names if n not in wanted]
        if missing:
            raise BadTrace(f"a value of {', '.join(missing)} is missing; {key}")
        return cls(table, tuple(_value(table, table.column(n), wanted[n]) for n in names))

    def shown(self) -> dict[str, str]:
        """Return names and values, as text."""
        return {v.column.name: v.texts[0] for v in self.values}

    def in_rows(self, rows: Rows) -> Flags:
        """Return which changes are of the row: its image before or after has the key."""
        after, before = _Image(rows.after), _Image(rows.before)
        is_after = self._in(after, after)
        # An old image may hold changed columns only: the others are as they were.
        return is_after | self._in(before, after)

    def _in(self, image: _Image, other: _Image) -> Flags:
        hits = image.present.copy()
        for value in self.values:
            column = image.column(value.column.name)
            if column is None:
                column = other.column(value.column.name)
            if column is None:
                return np.zeros(len(hits), np.bool_)
            equal = pc.fill_null(value.equals(column), False)
            hits &= equal.to_numpy(zero_copy_only=False)
        return hits

    def as_insert(self) -> Rows:
        """Return an insert that holds the key alone, for what goes by keys."""
        fields = [pa.field(v.column.name, v.column.type.arrow) for v in self.values]
        arrays = [pa.array([v.canonical], v.column.type.arrow) for v in self.values]
        after = pa.StructArray.from_arrays(arrays, fields=fields)
        before = pa.nulls(1, pa.struct(fields))
        zero = pa.array([0], pa.int64())
        op = pa.array([int(Op.INSERT)], pa.int8())
        return make_rows(self.table, op, pa.array([0], pa.uint64()), zero, before, after)

    def needles(self, codec: object, table: TableSchema) -> tuple[bytes, ...]:
        """Return bytes that are in every content with a change of the row; none: it is not known.

        `table` is the version that the content is of.
        """
        if not isinstance(codec, PlainValues):
            return ()
        needles = []
        for value in self.values:
            column = table.by_name.get(value.column.name.lower())
            plain = column is not None and _is_plain(column, value)
            if column is not None and plain:
                needles.append(codec.plain_value(column, value.texts[0]))
        return tuple(needle for needle in needles if needle)


class _Image:
    """The columns of an image by lower-case name, and which rows have it."""

    def __init__(self, image: pa.StructArray) -> None:
        self._image = image
        self.present: Flags = image.is_valid().to_numpy(zero_copy_only=False)
        self._places = {f.name.lower(): place for place, f in enumerate(image.type)}

    def column(self, name: str) -> pa.Array | None:
        place = self._places.get(name.lower())
        return None if place is None else self._image.field(place)


def _is_plain(column: Column, value: KeyValue) -> bool:
    kind = column.type.kind
    if kind is not value.column.type.kind:
        return False
    return kind is Kind.INTEGER or (kind is Kind.TEXT and bool(_WORD.fullmatch(value.texts[0])))


def holds_all(content: bytes, needles: Sequence[bytes]) -> bool:
    """Return whether all of some bytes can be in a content; never false where they are."""
    return all(_holds(content, needle) for needle in needles)


def _holds(content: bytes, needle: bytes) -> bool:
    """Return whether bytes stand there, and not as a part of a longer number."""
    at, begins, ends = -1, needle[0] in _DIGITS, needle[-1] in _DIGITS
    for _ in range(_MOST_TRIES):
        at = content.find(needle, at + 1)
        if at < 0:
            return False
        end = at + len(needle)
        longer = begins and at > 0 and content[at - 1] in _DIGITS
        if not longer and not (ends and content[end : end + 1].isdigit()):
            return True
    return True


def _value(table: TableSchema, column: Column, text: str) -> KeyValue:
    kind = column.type.kind
    texts: tuple[str, ...] | None = None
    number: int | None = None
    canonical: int | float | str | bytes = text
    if kind in _WHOLE_KINDS and _WHOLE.fullmatch(text):
        canonical = number = int(text)
        texts = (str(number),) if _fits(number, column.type.arrow) else None
    elif kind is Kind.ENUM:
        elements = column.type.elements
        if text in elements or (text.isdecimal() and 0 < int(text) <= len(elements)):
            canonical = number = elements.index(text) + 1 if text in elements else int(text)
            texts = (elements[number - 1], str(number))
    elif kind in (Kind.FLOAT, Kind.DOUBLE) and _NUMBER.fullmatch(text):
        canonical, texts = float(text), (text,)
    elif kind in (Kind.DECIMAL, Kind.NUMERIC) and _NUMBER.fullmatch(text):
        texts = _decimal_texts(column, text)
        canonical = texts[0]
    elif kind in _TIMES and _TIME.fullmatch(text):
        canonical = _time_text(column, text)
        texts = (canonical,)
    elif kind is Kind.BINARY:
        data = bytes.fromhex(text[2:]) if _HEX.fullmatch(text) else text.encode()
        return KeyValue(column, data, (text,), None, (data,))
    elif kind is Kind.TEXT:
        texts = (text,)
    if texts is None:
        raise BadTrace(
            f"{text!r} is no value of {table.id}, column {column.name} ({column.type.sql})"
        )
    return KeyValue(column, canonical, texts, number, tuple(t.encode() for t in texts))


def _decimal_texts(column: Column, text: str) -> tuple[str, ...]:
    try:
        value = Decimal(text)
        exact = value.quantize(Decimal(1).scaleb(-(column.type.scale or 0)))
    except InvalidOperation:
        return (text,)
    return (format(exact, "f"), text) if exact == value else (text,)


def _time_text(column: Column, text: str) -> str:
    """Return a time as images have it: a blank before the hours, all digits of the fraction."""
    plain = text.replace("T", " ")
    if column.type.kind is Kind.DATE:
        return plain
    digits = column.type.fraction_digits
    whole, _, fraction = plain.partition(".")
    return f"{whole}.{fraction[:digits]:0<{digits}}" if digits else whole


def _fits(number: int, kind: pa.DataType) -> bool:
    try:
        pa.scalar(number, kind)
    except (pa.ArrowInvalid, OverflowError):
        return False
    return True


def key_pairs(words: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Return `column=value` words as pairs.

    Raises:
        BadTrace: one of them has no equals sign.
    """
    pairs = []
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name.strip():
            raise BadTrace(f"--key {word}: write COLUMN=VALUE, once for each column of the key")
        pairs.append((name.strip().strip("`"), value))
    return tuple(pairs)
