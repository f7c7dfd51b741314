"""Reads Avro rows back: from a schema's parameters to a table, from binary to canonical values."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal
from typing import Any, Final

import pyarrow as pa

from rowferry.change.chunk import Op, Rows, make_rows
from rowferry.change.sqltype import Kind, SqlType
from rowferry.change.table import Column, Index, TableId, TableSchema
from rowferry.errors import BadInput, DecodeError
from rowferry.flow.encode.avro.schema import EXTENSION, VECTOR, plain_element

_DOUBLE: Final = struct.Struct("<d")
_EXACT: Final = Context(prec=100)
BEFORE: Final = "_ticdc_before"
# TiCDC's own fields: what its settings can add is read, too.
_OWN: Final = frozenset(f["name"] for f in EXTENSION) | {
    "_tidb_row_level_checksum",
    "_tidb_corrupted",
    "_tidb_checksum_version",
    BEFORE,
}
# What the schema does not tell is taken so wide that every value fits.
_SECONDS: Final = 6
_PLAIN: Final = {"TEXT": "longtext", "BLOB": "longblob"}
_IN_KEY: Final = {"TEXT": "varchar", "BLOB": "varbinary"}
_KEY_LENGTH: Final = 255


class BinaryCursor:
    """A place in one message's binary; reading past its end raises DecodeError."""

    def __init__(self, data: bytes, at: int = 0) -> None:
        self.data, self.at = data, at

    @property
    def at_end(self) -> bool:
        """Whether nothing is left."""
        return self.at >= len(self.data)

    def take(self, size: int) -> bytes:
        """Return the next bytes."""
        end = self.at + size
        if size < 0 or end > len(self.data):
            raise DecodeError(f"the binary ends at byte {len(self.data)}, inside a value")
        taken = self.data[self.at : end]
        self.at = end
        return taken

    def long(self) -> int:
        """Read a zig-zag integer."""
        number = shift = 0
        while True:
            byte = self.take(1)[0]
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
            if shift > 63:
                raise DecodeError(f"an integer at byte {self.at} has more than ten bytes")
        if number >> 64:
            raise DecodeError(f"an integer that ends at byte {self.at} has more than 64 bits")
        return (number >> 1) ^ -(number & 1)

    def bytes_(self) -> bytes:
        """Read bytes with their count."""
        return self.take(self.long())

    def text(self) -> str:
        """Read text with its count of bytes."""
        try:
            return self.bytes_().decode()
        except UnicodeDecodeError:
            raise DecodeError(f"text before byte {self.at} is not UTF-8") from None

    def double(self) -> float:
        """Read a double."""
        return float(_DOUBLE.unpack(self.take(8))[0])


Read = Callable[[BinaryCursor], Any]
_AVRO: Final[dict[str, Read]] = {
    "int": BinaryCursor.long,
    "long": BinaryCursor.long,
    "double": BinaryCursor.double,
    "float": lambda cursor: struct.unpack("<f", cursor.take(4))[0],
    "string": BinaryCursor.text,
    "bytes": BinaryCursor.bytes_,
    "boolean": lambda cursor: cursor.take(1) != b"\0",
}


@dataclass(frozen=True, slots=True)
class RecordReader:
    """One schema, ready to read binary with.

    Attributes:
        name: the table's name as far as Avro names keep it.
        columns: those of the table, without the extension.
        fields: every field's name, how it is read, and whether it is a column's, in the schema's
            order.
    """

    name: TableId
    columns: tuple[Column, ...]
    fields: tuple[tuple[str, Read, bool], ...]

    def read(self, cursor: BinaryCursor) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the row's values, and those of the extension fields."""
        row: dict[str, Any] = {}
        own: dict[str, Any] = {}
        for name, read, is_column in self.fields:
            into = row if is_column else own
            try:
                into[name] = read(cursor)
            except DecodeError as err:
                raise DecodeError(f"field {name!r}: {err.words}") from None
        return row, own

    def read_whole(self, binary: bytes) -> tuple[dict[str, Any], dict[str, Any]]:
        """Read a record that must be all of `binary`."""
        cursor = BinaryCursor(binary)
        record = self.read(cursor)
        if not cursor.at_end:
            raise DecodeError(f"{len(binary) - cursor.at} bytes are left after the last field")
        return record


def record_reader(schema: str, in_key: bool = False) -> RecordReader:
    """Return the reader of a schema's JSON.

    Raises:
        DecodeError: it is no record of columns that carry their SQL types.
    """
    try:
        form = json.loads(schema)
        columns, fields = [], []
        for place, field in enumerate(form["fields"], 1):
            name, branches = field["name"], field["type"]
            union = branches if isinstance(branches, list) else [branches]
            avro = next(b for b in union if b != "null")
            if name == BEFORE and avro["type"] == "record":
                fields.append((name, _in_union(branches, _image_reader(avro)), False))
                continue
            if name in _OWN and isinstance(avro, str):  # a column's would tell its SQL type
                fields.append((name, _AVRO[avro], False))
                continue
            kind = _sql_type(avro, in_key)
            columns.append(Column(place, name, kind, nullable="null" in union))
            read = _reader(avro, kind)
            fields.append((name, _in_union(union, read) if union is branches else read, True))
        database = form["namespace"].partition(".")[2]
    except (ValueError, KeyError, TypeError, StopIteration, BadInput, RecursionError) as err:
        raise DecodeError(f"the schema is not one of this format: {err!r}") from None
    return RecordReader(TableId(database, form["name"]), tuple(columns), tuple(fields))


def table_of(columns: Sequence[Column], name: TableId, key: Sequence[Column]) -> TableSchema:
    """Return the table that messages tell of: its key is the message key's columns."""
    by_name = {c.name: c for c in key}
    # The key's own columns, so that a text there can be indexed.
    own_columns = tuple(by_name.get(c.name, c) for c in columns)
    primary = Index(1, "PRIMARY", tuple(by_name), unique=True, primary=True)
    indexes = (primary,) if key else ()
    return TableSchema(name, 0, 0, own_columns, indexes, inferred=True)


def rows_of(table: TableSchema, changes: Sequence[tuple[Op, int, Any, Any]]) -> Rows:
    """Return a chunk of changes given as (op, commit-ts, before, after)."""
    image = table.image
    return make_rows(
        table,
        pa.array([int(c[0]) for c in changes], pa.int8()),
        pa.array([c[1] for c in changes], pa.uint64()),
        pa.array(range(len(changes)), pa.int64()),
        pa.array([c[2] for c in changes], image),
        pa.array([c[3] for c in changes], image),
    )


# --- types ----------------------------------------------------------------------------------------


def _sql_type(avro: dict[str, Any], in_key: bool) -> SqlType:
    """Return the SQL type that a type's parameters tell."""
    parameters = avro["connect.parameters"]
    word, _, sign = parameters["tidb_type"].partition(" ")
    if word in _PLAIN:
        if in_key:
            return SqlType(_IN_KEY[word], length=_KEY_LENGTH)
        return SqlType(_PLAIN[word])
    if word == VECTOR:
        return SqlType("vector")
    name = word.lower()
    if word == "DECIMAL":
        return SqlType(name, length=avro.get("precision", 65), scale=avro.get("scale", 30))
    if word == "BIT":
        return SqlType(name, length=int(parameters["length"]))
    if word in ("ENUM", "SET"):
        return SqlType(name, elements=_elements(parameters["allowed"]))
    if word in ("DATETIME", "TIMESTAMP", "TIME"):
        return SqlType(name, scale=_SECONDS)
    return SqlType(name, unsigned=sign == "UNSIGNED")


def _elements(allowed: str) -> tuple[str, ...]:
    """Split at commas that no backslash stands before."""
    return tuple(e.replace("\0", ",") for e in allowed.replace("\\,", "\0").split(","))


def _image_reader(record: dict[str, Any]) -> Read:
    """Return how a row inside a row is read: its fields are columns."""
    inner = record_reader(json.dumps(record))
    return lambda cursor: inner.read(cursor)[0]


def _in_union(union: list[Any], read: Read) -> Read:
    null = union.index("null")

    def choose(cursor: BinaryCursor) -> Any:
        branch = cursor.long()
        if not 0 <= branch < len(union):
            raise DecodeError(f"a union has no branch {branch}")
        return None if branch == null else read(cursor)

    return choose


def _reader(avro: dict[str, Any], kind: SqlType) -> Read:
    """Return how a value is read: first as its Avro type, then into its canonical form."""
    plain, what = _AVRO[avro["type"]], kind.kind
    if what is Kind.DECIMAL and avro["type"] == "bytes":
        scale = kind.fraction_digits
        return lambda cursor: _decimal(plain(cursor), scale)
    if what is Kind.BIT:
        return lambda cursor: int.from_bytes(plain(cursor), "big")
    if what is Kind.ENUM:
        return lambda cursor: _enum(plain(cursor), kind.elements)
    if what is Kind.SET:
        return lambda cursor: _set(plain(cursor), kind.elements)
    if what is Kind.INTEGER and avro["type"] == "string":
        return lambda cursor: _whole(plain(cursor))
    if what is Kind.INTEGER and kind.unsigned:
        return lambda cursor: plain(cursor) & 0xFFFFFFFFFFFFFFFF  # a wrapped one comes back
    return plain


def _decimal(unscaled: bytes, scale: int) -> str:
    number = Decimal(int.from_bytes(unscaled, "big", signed=True))
    return format(number.scaleb(-scale, _EXACT), "f")


def _whole(text: str) -> int:
    if not text.isdecimal():
        raise DecodeError(f"{text!r} is no whole number")
    return int(text)


def _place(name: str, elements: tuple[str, ...]) -> int:
    plain = plain_element(name)
    if plain not in elements:
        raise DecodeError(f"{name!r} is not one of {', '.join(elements)}")
    return elements.index(plain)


def _enum(name: str, elements: tuple[str, ...]) -> int:
    return 0 if name == "" and "" not in elements else _place(name, elements) + 1


def _set(names: str, elements: tuple[str, ...]) -> int:
    return sum(1 << _place(n, elements) for n in names.split(",")) if names else 0
