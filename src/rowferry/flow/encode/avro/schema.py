"""Avro schemas of tables: which Avro type each column has, and the exact JSON text."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

import numpy as np

from rowferry.change.sqltype import Kind, SqlType
from rowferry.change.table import Column, TableId, TableSchema
from rowferry.errors import SchemaRefused, TableIneligible

KEYSPACE: Final = "default"
OP, COMMIT_TS, COMMIT_TIME = "_tidb_op", "_tidb_commit_ts", "_tidb_commit_physical_time"
EXTENSION: Final[tuple[dict[str, Any], ...]] = (
    {"default": "", "name": OP, "type": "string"},
    {"default": 0, "name": COMMIT_TS, "type": "long"},
    {"default": 0, "name": COMMIT_TIME, "type": "long"},
)
VECTOR: Final = "TiDBVECTORFloat32"
_FIRST = re.compile(r"[^A-Za-z_]")
_LATER = re.compile(r"[^A-Za-z0-9_]")
_NOW: Final = "CURRENT_TIMESTAMP"
_TIMES: Final = frozenset({Kind.DATE, Kind.DATETIME, Kind.TIMESTAMP, Kind.TIME})
# What Go's JSON writer escapes beside what JSON itself demands.
_HTML: Final = str.maketrans({c: f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"})


@dataclass(frozen=True, slots=True)
class Modes:
    """How some kinds of columns are written; see the options of the same names."""

    decimal_text: bool = False
    bigint_text: bool = False
    single_float: bool = False


def avro_name(name: str) -> str:
    """Return a name that Avro allows: letters, digits and `_`, no digit first.

    Every other character becomes `_`; a digit in front is kept behind a `_`.
    """
    if not name:
        return name
    first = name[0]
    if _FIRST.match(first):
        first = f"_{first}" if "0" <= first <= "9" else "_"
    return first + _LATER.sub("_", name[1:])


def namespace_of(database: str, keyspace: str = KEYSPACE) -> str:
    """Return the namespace of a database's records."""
    return ".".join(avro_name(part) for part in (keyspace, database) if part)


# --- types ----------------------------------------------------------------------------------------


def avro_type(kind: SqlType, modes: Modes) -> dict[str, Any]:
    """Return the Avro type of a column type, with the parameters that tell the SQL type."""
    what = kind.kind
    unsigned = " UNSIGNED" if kind.unsigned else ""
    if what is Kind.INTEGER and kind.name == "bigint":
        text = kind.unsigned and modes.bigint_text
        return _typed("string" if text else "long", f"BIGINT{unsigned}")
    if what is Kind.INTEGER:
        return _typed("long" if kind.name == "int" and kind.unsigned else "int", f"INT{unsigned}")
    if what in (Kind.FLOAT, Kind.DOUBLE):
        single = what is Kind.FLOAT and modes.single_float
        return _typed("float" if single else "double", what.name)
    if what is Kind.DECIMAL:
        if modes.decimal_text:
            return _typed("string", "DECIMAL")
        digits = {"precision": kind.size, "scale": kind.fraction_digits}
        return {**_typed("bytes", "DECIMAL"), "logicalType": "decimal", **digits}
    if what is Kind.BIT:
        return _typed("bytes", "BIT", length=str(kind.size))
    if what in (Kind.ENUM, Kind.SET):
        return _typed("string", what.name, allowed=_allowed(kind.elements))
    if what is Kind.YEAR:
        return _typed("int", "YEAR")
    if what is Kind.BINARY:
        return _typed("bytes", "BLOB")
    if what is Kind.VECTOR:
        return _typed("string", VECTOR)
    if what in _TIMES or what is Kind.JSON:
        return _typed("string", what.name)
    return _typed("string", "TEXT")


def _typed(avro: str, tidb_type: str, **more: str) -> dict[str, Any]:
    parameters = dict(sorted({**more, "tidb_type": tidb_type}.items()))
    return {"type": avro, "connect.parameters": parameters}


def plain_element(name: str) -> str:
    """Return an element's name as `allowed` shows it: doubled or escaped quotes stand once."""
    return name.replace("\\'", "'").replace("''", "'")


def _allowed(elements: Sequence[str]) -> str:
    return ",".join(plain_element(e.replace(",", "\\,")) for e in elements)


# --- fields ---------------------------------------------------------------------------------------


def has_default(column: Column, modes: Modes) -> bool:
    """Return whether the column's field carries its default: precise decimals never do."""
    precise = column.type.kind is Kind.DECIMAL and not modes.decimal_text
    return column.default is not None and not precise


def field_of(column: Column, modes: Modes) -> dict[str, Any]:
    """Return the field of a column: a nullable one is a union, its default's branch first."""
    avro, name = avro_type(column.type, modes), avro_name(column.name)
    if has_default(column, modes):
        default = _default(column, modes)
        return {
            "default": default,
            "name": name,
            "type": [avro, "null"] if column.nullable else avro,
        }
    if column.nullable:
        return {"default": None, "name": name, "type": ["null", avro]}
    return {"name": name, "type": avro}


def _default(column: Column, modes: Modes) -> Any:
    """Return a default as TiCDC writes it: bytes as base64, a FLOAT with its stored value."""
    kind, value = column.type, column.default
    if kind.kind is Kind.BIT:
        size = max(int(value).bit_length() + 7, 8) // 8  # as few as there can be
        return base64.b64encode(int(value).to_bytes(size, "big")).decode()
    if kind.kind is Kind.BINARY:
        content = str(value).encode("utf-8", "surrogateescape")
        if kind.name == "binary":  # values of this type are filled up with zeros
            content = content.ljust(kind.size or 0, b"\0")
        return base64.b64encode(content).decode()
    if kind.kind is Kind.FLOAT:
        return float(np.float32(value))
    if kind.kind is Kind.DOUBLE:
        return float(value)
    if kind.kind is Kind.YEAR or kind.kind is Kind.INTEGER:
        if kind.name == "bigint" and kind.unsigned:
            return str(value) if modes.bigint_text else _wrapped(int(value))
        return int(value)
    if kind.kind in _TIMES and str(value).startswith(_NOW):
        return _NOW  # its digits are the column's
    return str(value)


def _wrapped(value: int) -> int:
    """Return an unsigned number as the signed one of the same 64 bits."""
    return value - (1 << 64) if value >= 1 << 63 else value


def bit_bytes(kind: SqlType) -> int:
    """Return how many bytes a BIT column's values have."""
    return ((kind.size or 1) + 7) // 8


# --- records --------------------------------------------------------------------------------------


def key_columns(table: TableSchema) -> list[Column]:
    """Return the columns of the message key: the handle key's.

    Raises:
        TableIneligible: the table has no handle key, or one of a column that is not written.
    """
    wanted = {name.lower() for name in table.handle_key}
    columns = [c for c in table.visible if c.name.lower() in wanted]
    if not columns or len(columns) != len(wanted):
        raise TableIneligible(
            f"table {table.id}: protocol avro needs a primary key or a unique key of NOT NULL, "
            "not virtual columns; add one or leave the table out by filter.rules"
        )
    return columns


def key_schema(table: TableSchema, modes: Modes) -> str:
    """Return the JSON of a table's key schema; raises as `key_columns` does."""
    return _record(table, [field_of(c, modes) for c in key_columns(table)])


def value_schema(table: TableSchema, modes: Modes, extension: bool) -> str:
    """Return the JSON of a table's value schema.

    Raises:
        SchemaRefused: two columns have one name in Avro.
    """
    own_fields = [field_of(c, modes) for c in table.visible]
    return _record(table, own_fields + list(EXTENSION if extension else ()))


def _record(table: TableSchema, members: list[dict[str, Any]]) -> str:
    _refuse_twins(table, [field["name"] for field in members])
    name: TableId = table.written_as
    return json_text(
        {
            "type": "record",
            "name": avro_name(name.table),
            "namespace": namespace_of(name.database),
            "fields": members,
        }
    )


def _refuse_twins(table: TableSchema, names: list[str]) -> None:
    twins = sorted({n for n in names if names.count(n) > 1})
    if twins:
        same = [c.name for c in table.visible if avro_name(c.name) == twins[0]]
        raise SchemaRefused(
            f"table {table.id}: {' and '.join(map(repr, same))} would be the Avro field "
            f"{twins[0]!r} more than once; rename a column or leave it out by sink.column-selectors"
        )


# --- text -----------------------------------------------------------------------------------------


def json_text(value: Any) -> str:
    """Return compact JSON as Go's writer makes it: keys as given, `<`, `>` and `&` escaped."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{json_text(k)}:{json_text(v)}" for k, v in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(json_text, value)) + "]"
    if isinstance(value, float):
        return go_number(value)
    return json.dumps(value, ensure_ascii=False).translate(_HTML)


def go_number(value: float) -> str:
    """Return the shortest text of a float, with an exponent only below 1e-6 and from 1e21 on."""
    if value == 0 or 1e-6 <= abs(value) < 1e21:
        text = format(Decimal(repr(value)), "f")
        return text.removesuffix(".0")
    digits, _, exponent = repr(value).partition("e")
    if not exponent:  # not reached by finite numbers in this range
        return digits
    return f"{digits}e{exponent[0]}{exponent[1:].lstrip('0')}"
