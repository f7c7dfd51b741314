"""How each format writes a value, as its description says.

A form turns both the database's own value and the delivered one into something that can be
compared: they are equal exactly if the format carries the value rightly.
"""

from __future__ import annotations

import binascii
import json
import struct
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal, InvalidOperation
from typing import Any

from rowferry.testing.histories.facts import SHAPES, ColumnFacts, Value
from rowferry.testing.histories.outputs import from_base64, go_unquoted

_WRONG = (ValueError, TypeError, KeyError, OverflowError, AttributeError, IndexError)
_BAD = (*_WRONG, binascii.Error, InvalidOperation, struct.error)


@dataclass(frozen=True, slots=True)
class HistoryFormat:
    """One format.

    Attributes:
        truth: what a value of the database must look like.
        cell: what was delivered, in the same terms.
        has_before: whether updates tell the old row.
        key_only: whether a delete tells its key only.
    """

    truth: Callable[[ColumnFacts, Value], Hashable]
    cell: Callable[[ColumnFacts, Any], Hashable]
    has_before: bool = True
    key_only: bool = False

    def of_truth(self, column: ColumnFacts, value: Value) -> Hashable:
        """Return a value of the database, to be compared."""
        return None if value is None else self.truth(column, value)

    def of_cell(self, column: ColumnFacts, cell: Any) -> Hashable:
        """Return a delivered value, to be compared; what cannot be read equals nothing."""
        try:
            return self.cell(column, cell)
        except _BAD as err:
            return ("unreadable", repr(cell)[:300], repr(err))


def _float(column: ColumnFacts, number: Any) -> bytes:
    return struct.pack("<f" if column.family == "float" else "<d", float(number))


def _vector(numbers: Any) -> bytes:
    return b"".join(struct.pack("<f", float(n)) for n in numbers)


def _truth(column: ColumnFacts, value: Value) -> Hashable:
    """What most formats agree on; names of ENUM and SET."""
    match column.family:
        case "float" | "double":
            return _float(column, value)
        case "vector":
            return _vector(value)
        case "named":
            return str(value.name)
        case _:
            canonical: Hashable = value
            return canonical


def _numbered(column: ColumnFacts, value: Value) -> Hashable:
    return int(value.number) if column.family == "named" else _truth(column, value)


def _text_of(cell: Any) -> str:
    if not isinstance(cell, str):
        raise TypeError("not a text")
    return cell


def _canonical_int(text: str) -> int:
    if str(int(text)) != text:
        raise ValueError("not in its shortest form")
    return int(text)


def _canal(column: ColumnFacts, cell: Any) -> Hashable:
    if cell is None:
        return None
    text = _text_of(cell)
    match column.family:
        case "int" | "named":
            return _canonical_int(text)
        case "float" | "double":
            if "e" in text.lower():
                raise ValueError("an exponent")
            return _float(column, text)
        case "bytes":
            return text.encode("latin-1")
        case "vector":
            return _vector(json.loads(text))
        case _:
            return text


def _csv_truth(column: ColumnFacts, value: Value) -> Hashable:
    if column.type in ("datetime", "timestamp"):
        whole, _, fraction = value.partition(".")
        return f"{whole}.{fraction.ljust(6, '0')}"
    return _truth(column, value)


def _csv(column: ColumnFacts, cell: Any) -> Hashable:
    if cell is None:
        return None
    text = _text_of(cell)
    match column.family:
        case "int":
            return _canonical_int(text)
        case "float" | "double":
            return _float(column, text)
        case "bytes":
            return from_base64(text)
        case "vector":
            return _vector(json.loads(text))
        case _:
            return text


def _in_base64(column: ColumnFacts) -> bool:
    """Whether open-protocol writes it in base64: all TEXT and BLOB types."""
    wide = column.type.endswith(("text", "blob")) or column.type in SHAPES
    return wide or column.type in ("uuid", "inet4", "inet6")


def _open(column: ColumnFacts, cell: Any) -> Hashable:
    content = cell["v"]
    if content is None:
        return None
    if column.family in ("int", "named"):
        if not isinstance(content, int):
            raise TypeError("not a number")
        return content
    if column.family in ("float", "double"):
        if isinstance(content, str):
            raise TypeError("not a number")
        return _float(column, content)
    if _in_base64(column):
        raw = from_base64(content)
        return raw if column.family == "bytes" else raw.decode()
    match column.family:
        case "bytes":
            return go_unquoted(content)
        case "vector":
            return _vector(json.loads(content))
        case _:
            return _text_of(content)


def _plain(value: Any) -> Any:
    """Return a JSON value with all numbers alike."""
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in sorted(value.items())}
    return [_plain(v) for v in value] if isinstance(value, list) else value


def _http_truth(column: ColumnFacts, value: Value) -> Hashable:
    if column.family == "json":
        plain = _plain(json.loads(value, parse_float=Decimal))
        return None if plain is None else repr(plain)
    return _truth(column, value)


def _http(column: ColumnFacts, cell: Any) -> Hashable:
    if cell is None:
        return None
    match column.family:
        case "json":
            return repr(_plain(cell))
        case "int":
            if not isinstance(cell, int):
                raise TypeError("not a number")
            return cell
        case "float" | "double":
            if isinstance(cell, str):
                raise TypeError("not a number")
            return _float(column, cell)
        case "bytes":
            return from_base64(cell)
        case "vector":
            return _vector(cell)
        case _:
            return _text_of(cell)


def _avro_truth(column: ColumnFacts, value: Value) -> Hashable:
    if column.family == "decimal":
        return Decimal(value)
    if column.family == "int" and column.type != "bit":
        return int(value - (1 << 64) if value >= 1 << 63 else value)
    return _truth(column, value)


def _avro(column: ColumnFacts, cell: Any) -> Hashable:
    if cell is None:
        return None
    match column.family:
        case "int":
            return int.from_bytes(cell, "big") if column.type == "bit" else int(cell)
        case "float" | "double":
            return _float(column, cell)
        case "decimal":
            if not isinstance(cell, Decimal):
                raise TypeError("not a decimal")
            return cell
        case "vector":
            return _vector(json.loads(cell))
        case "bytes":
            return bytes(cell)
        case _:
            return _text_of(cell)


def _lake_truth(zero_date: str) -> Callable[[ColumnFacts, Value], Hashable]:
    """What a value is in a lake's table, by what becomes of days that no calendar has."""

    def image(column: ColumnFacts, value: Value) -> Hashable:
        if column.family == "decimal":
            return str(value)
        if column.type in SHAPES:
            return bytes(value[4:])  # without the number of its reference system
        if column.family == "time" and column.type != "time" and zero_date == "null":
            return _moment_of(str(value))
        return _truth(column, value)

    return image


def _moment_of(text: str) -> Hashable:
    """Return a time with all digits of its fraction; None: a day that no calendar has."""
    day, _, clock = text.partition(" ")
    try:
        date.fromisoformat(day)
    except ValueError:
        return None
    whole, _, fraction = clock.partition(".")
    return f"{day} {whole}.{fraction.ljust(6, '0')}" if clock else day


def _lake(column: ColumnFacts, cell: Any) -> Hashable:
    if cell is None:
        return None
    match column.family:
        case "int":
            if not isinstance(cell, int | Decimal) or int(cell) != cell:
                raise TypeError("not a whole number")
            return int(cell)
        case "float" | "double":
            return _float(column, cell)
        case "decimal":
            return cell if isinstance(cell, str) else f"{cell:f}"
        case "bytes":
            return bytes(cell)
        case "vector":
            return _vector(json.loads(cell))
        case "time" if isinstance(cell, datetime):
            if (cell.tzinfo is not None) != (column.type == "timestamp"):
                raise TypeError("a time zone where there is none, or none where one is")
            return cell.replace(tzinfo=None).isoformat(" ", "microseconds")
        case "time" if isinstance(cell, date):
            return cell.isoformat()
        case _:
            return _text_of(cell)


FORMS: dict[str, HistoryFormat] = {
    "lake-null": HistoryFormat(_lake_truth("null"), _lake),
    "lake-string": HistoryFormat(_lake_truth("string"), _lake),
    "canal-json": HistoryFormat(_numbered, _canal),
    "csv": HistoryFormat(_csv_truth, _csv, has_before=False),
    "csv-old": HistoryFormat(_csv_truth, _csv),
    "open-protocol": HistoryFormat(_numbered, _open),
    "json": HistoryFormat(_http_truth, _http),
    "avro": HistoryFormat(_avro_truth, _avro, has_before=False, key_only=True),
}
