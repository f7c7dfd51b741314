"""Messages of the simple protocol as Avro: one schema for all of them, which readers know.

The schema is a union of named records; every message is the last of them, so that its binary begins
with that one's place. No registry is asked.
"""

from __future__ import annotations

from base64 import b64encode
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rowferry.change.sqltype import Kind, SqlType
from rowferry.change.table import TableSchema
from rowferry.columnar.fields import Field
from rowferry.errors import DecodeError
from rowferry.flow.encode.avro import kernels
from rowferry.flow.encode.avro.datum import AvroSchema, long_bytes, text_bytes
from rowferry.flow.encode.avro.writer import AvroCell, Part, single_floats
from rowferry.flow.encode.simple.schema import FRACTIONS, column_length, of_table

_SPACE: Final = "com.pingcap.simple.avro"
_VERSION: Final = 1
_ZONE: Final = "UTC"  # of TIMESTAMP values
KINDS: Final = ("WATERMARK", "BOOTSTRAP", "DDL", "DML")
ROW_KINDS: Final = ("INSERT", "UPDATE", "DELETE")
_DDL_KINDS: Final = "CREATE ALTER ERASE RENAME TRUNCATE CINDEX DINDEX QUERY".split()


def _record(name: str, /, **fields: Any) -> dict[str, Any]:
    members = [{"name": key, "type": kind} for key, kind in fields.items()]
    return {"type": "record", "name": name, "namespace": _SPACE, "fields": members}


def _own(name: str) -> str:
    return f"{_SPACE}.{name}"


def _perhaps(kind: Any) -> list[Any]:
    return ["null", kind]


def _enum(name: str, symbols: list[str] | tuple[str, ...]) -> dict[str, Any]:
    return {"type": "enum", "name": name, "symbols": list(symbols)}


def _array(items: Any) -> dict[str, Any]:
    return {"type": "array", "items": items}


_VALUES: Final = (
    *("null", "long", "float", "double", "string", "bytes"),
    *(_own("Timestamp"), _own("UnsignedBigint")),
)
_IMAGE: Final = _perhaps({"type": "map", "values": list(_VALUES)})
SCHEMA: Final = [
    _record(
        "DataType",
        mysqlType="string",
        charset="string",
        collate="string",
        length="long",
        decimal=_perhaps("int"),
        elements=_perhaps(_array("string")),
        unsigned=_perhaps("boolean"),
        zerofill=_perhaps("boolean"),
    ),
    _record(
        "ColumnSchema",
        name="string",
        dataType=_own("DataType"),
        nullable="boolean",
        default=_perhaps("string"),
    ),
    _record(
        "IndexSchema",
        name="string",
        unique="boolean",
        primary="boolean",
        nullable="boolean",
        columns=_array("string"),
    ),
    _record(
        "TableSchema",
        database="string",
        table="string",
        tableID="long",
        version="long",
        columns=_array(_own("ColumnSchema")),
        indexes=_array(_own("IndexSchema")),
    ),
    _record("Checksum", version="int", corrupted="boolean", current="long", previous="long"),
    _record("Watermark", version="int", commitTs="long", buildTs="long"),
    _record("Bootstrap", version="int", buildTs="long", tableSchema=_own("TableSchema")),
    _record(
        "DDL",
        version="int",
        type=_enum("DDLType", _DDL_KINDS),
        sql="string",
        commitTs="long",
        buildTs="long",
        tableSchema=_perhaps(_own("TableSchema")),
        preTableSchema=_perhaps(_own("TableSchema")),
    ),
    _record("Timestamp", location="string", value="string"),
    _record("UnsignedBigint", value="long"),
    _record(
        "DML",
        version="int",
        database="string",
        table="string",
        tableID="long",
        type=_enum("DMLType", ROW_KINDS),
        commitTs="long",
        buildTs="long",
        schemaVersion="long",
        claimCheckLocation=_perhaps("string"),
        handleKeyOnly=_perhaps("boolean"),
        checksum=_perhaps(_own("Checksum")),
        data=_IMAGE,
        old=_IMAGE,
    ),
    _record(
        "Message",
        type=_enum("MessageType", KINDS),
        payload=[_own(name) for name in ("Watermark", "Bootstrap", "DDL", "DML")],
    ),
]
_MESSAGES: Final = AvroSchema(SCHEMA)
_MESSAGE: Final = len(SCHEMA) - 1
_NULL, _THERE = b"\0", b"\2"  # the branches of an optional value
_LONG, _FLOAT, _DOUBLE, _TEXT, _BYTES, _TIMESTAMP, _UNSIGNED = (2 * i for i in range(1, 8))


# --- rows -----------------------------------------------------------------------------------------


def row_head(database: str, table: str, table_id: int) -> bytes:
    """Return what the message of a row begins with."""
    kind = KINDS.index("DML")
    lead = long_bytes(_MESSAGE) + long_bytes(kind) * 2 + long_bytes(_VERSION)
    return lead + text_bytes(database) + text_bytes(table) + long_bytes(table_id)


def row_middle(
    built_at_ms: int, version: int, key_only: bool, locations: pa.Array | None
) -> list[Part]:
    """Return what stands between a row's commit-ts and its images."""
    place: Part = _NULL
    if locations is not None:
        place = AvroCell(kernels.TEXT, locations, branch=_THERE[0], null=_NULL[0])
    mark = _THERE + b"\1" if key_only else _NULL
    return [long_bytes(built_at_ms) + long_bytes(version), place, mark + _NULL]  # no checksum


def image_parts(image: list[Field] | None) -> list[Part]:
    """Return how a row image is written; None: it is not there."""
    if image is None:
        return [_NULL]
    parts: list[Part] = [_THERE + long_bytes(len(image))]
    for field in image:
        parts += [text_bytes(field.column.name), *_cells(field)]
    return [*parts, _NULL]


def _cells(field: Field) -> list[AvroCell]:
    values, kind = field.values, field.column.type

    def one(what: int, made: pa.Array, branch: int, width: int = 0) -> AvroCell:
        return AvroCell(what, made, field.column.name, values, branch, _NULL[0], width)

    match kind.kind:
        case Kind.INTEGER | Kind.YEAR | Kind.ENUM | Kind.SET:
            is_big = kind.name == "bigint" and kind.unsigned
            return [one(kernels.LONG, values, _UNSIGNED if is_big else _LONG)]
        case Kind.BIT:
            return [one(kernels.TEXT, pc.cast(values, pa.large_utf8()), _TEXT)]
        case Kind.FLOAT:
            return [one(kernels.WORD, single_floats(values), _FLOAT, 4)]
        case Kind.DOUBLE:
            return [one(kernels.DOUBLE, values.cast(pa.float64()), _DOUBLE)]
        case Kind.BINARY:
            return [one(kernels.TEXT, values, _BYTES)]
        case Kind.TIMESTAMP:
            zone = text_bytes(_ZONE)
            same = pa.array(np.full(len(values), int.from_bytes(zone, "big"), np.uint64))
            text = AvroCell(kernels.TEXT, values, valid=values, null=kernels.NOTHING)
            return [one(kernels.WORD, same, _TIMESTAMP, len(zone)), text]
        case _:
            return [one(kernels.TEXT, values, _TEXT)]


# --- what is no row -------------------------------------------------------------------------------


def note(kind: str, commit_ts: int, built_at_ms: int, query: str, **tables: TableSchema) -> bytes:
    """Return the message of a watermark, a table's definition, or a DDL."""
    group = kind if kind in KINDS else "DDL"
    stamps = {"version": _VERSION, "commitTs": commit_ts, "buildTs": built_at_ms}
    body = {**stamps, "type": kind, "sql": query}
    body |= {key: _definition(table) for key, table in tables.items()}
    payload = {"type": group, "payload": (KINDS.index(group), body)}
    return _MESSAGES.encode((_MESSAGE, payload))


def _definition(table: TableSchema) -> dict[str, Any]:
    form = of_table(table)
    form["database"] = form["schema"]
    for column, one in zip(table.columns, form["columns"], strict=True):
        one["dataType"] = _data_type(column.type, one["dataType"])
        one["default"] = _default(column.type, one["default"])
    return form


_NUMBERS: Final = frozenset(
    {Kind.INTEGER, Kind.FLOAT, Kind.DOUBLE, Kind.DECIMAL, Kind.BIT, Kind.YEAR}
)


def _data_type(kind: SqlType, form: dict[str, Any]) -> dict[str, Any]:
    """Return a type as TiCDC's Avro tells it: some facts of all numbers, others of few types.

    The digits of a DATETIME and a TIME are told besides, which TiCDC itself leaves out: without
    them its decoder rounds such values to whole seconds.
    """
    facts = {key: form[key] for key in ("mysqlType", "charset", "collate")}
    facts["length"] = column_length(kind) or -1
    if kind.kind in FRACTIONS:
        facts["decimal"] = kind.fraction_digits
    if kind.kind in _NUMBERS:
        facts |= {"unsigned": kind.unsigned, "zerofill": kind.zerofill}
    if kind.elements:
        facts["elements"] = list(kind.elements)
    return facts


def _default(kind: SqlType, value: Any) -> str | None:
    if value is None:
        return None
    if kind.kind is Kind.BIT:
        return int(value).to_bytes(((kind.size or 1) + 7) // 8, "big").decode("latin-1")
    return str(value)


# --- reading --------------------------------------------------------------------------------------


def read_message(data: bytes) -> dict[str, Any]:
    """Return a message as its JSON form would be.

    Raises:
        DecodeError: it is no message of this format.
    """
    try:
        whole = _MESSAGES.decode(data)
        message: dict[str, Any] = whole["payload"]
        kind = whole["type"]
        if "type" not in message:
            message["type"] = kind
        for key in ("tableSchema", "preTableSchema"):
            if message.get(key) is not None:
                message[key]["schema"] = message[key]["database"]
                for column in message[key]["columns"]:
                    column["default"] = _read_default(column)
        for key in ("data", "old"):
            if message.get(key) is not None:
                message[key] = {n: _text_of(v) for n, v in message[key].items()}
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as err:
        raise DecodeError(f"it is no message of the simple protocol ({err})") from None
    message.setdefault("commitTs", 0)
    return message


def _read_default(column: dict[str, Any]) -> Any:
    value = column["default"]
    if value is not None and column["dataType"]["mysqlType"] == "bit":
        return int.from_bytes(value.encode("latin-1", "replace"), "big")
    return value


def _text_of(value: Any) -> Any:
    """Return a value as the JSON form has it."""
    if isinstance(value, bytes):
        return b64encode(value).decode()
    if isinstance(value, dict) and "location" not in value:
        return str(value["value"] % (1 << 64))
    return value if value is None or isinstance(value, dict | str) else repr(value)
