"""Kafka Connect's schemas of tables, as Debezium describes them."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import Any, Final

import numpy as np
import pyarrow as pa

from rowferry.change.sqltype import Kind, SqlType
from rowferry.change.table import Column, TableSchema
from rowferry.flow.encode.debezium.options import ValueModes
from rowferry.flow.encode.debezium.values import bit_size, escaped_elements, is_single, shown
from rowferry.flow.encode.layout import Cell, Layout

Schema = dict[str, Any]
_NOW: Final = "CURRENT_TIMESTAMP"
_TIMES: Final = {Kind.DATE, Kind.DATETIME, Kind.TIMESTAMP, Kind.TIME}
_INTEGERS: Final = {
    ("tinyint", False): "int16",
    ("tinyint", True): "int16",
    ("smallint", False): "int16",
    ("smallint", True): "int32",
    ("mediumint", False): "int32",
    ("mediumint", True): "int32",
    ("int", False): "int32",
    ("int", True): "int64",
    ("bigint", False): "int64",
    ("bigint", True): "int64",
}
_DATES: Final = {
    "isostring": ("string", "io.debezium.time.IsoDate"),
    "connect": ("int32", "org.apache.kafka.connect.data.Date"),
}
_MOMENTS: Final = {
    "isostring": ("string", "io.debezium.time.IsoTimestamp"),
    "connect": ("int64", "org.apache.kafka.connect.data.Timestamp"),
    "nanoseconds": ("int64", "io.debezium.time.NanoTimestamp"),
    "microseconds": ("int64", "io.debezium.time.MicroTimestamp"),
}
_CLOCKS: Final = {
    "isostring": ("string", "io.debezium.time.IsoTime"),
    "connect": ("int32", "org.apache.kafka.connect.data.Time"),
    "nanoseconds": ("int64", "io.debezium.time.NanoTime"),
}
DECIMAL: Final = "org.apache.kafka.connect.data.Decimal"
GEOMETRY: Final = "io.debezium.data.geometry.Geometry"
VECTOR: Final = "io.debezium.data.FloatVector"
_FALLBACKS: Final = {
    "io.debezium.time.IsoDate": b'"1970-01-01Z"',
    "io.debezium.time.IsoTimestamp": b'"1970-01-01T00:00:00Z"',
    "io.debezium.time.IsoTime": b'"00:00:00Z"',
}


def plain(kind: str, field: str = "", optional: bool = False) -> Schema:
    """Return the schema of a value without a meaning of its own."""
    return {"type": kind, "optional": optional} | ({"field": field} if field else {})


def _named(kind: str, name: str, **parameters: str) -> Schema:
    schema: Schema = {"type": kind, "name": name, "version": 1}
    return {**schema, "parameters": parameters} if parameters else schema


def _decimal(precision: int, scale: int) -> Schema:
    parameters = {"scale": str(scale), "connect.decimal.precision": str(precision)}
    return {"type": "bytes", "name": DECIMAL, "version": 1, "parameters": parameters}


def column_type(kind: SqlType, modes: ValueModes) -> Schema:
    """Return what a field's schema says about a column type."""
    match kind.kind:
        case Kind.INTEGER:
            if kind.name == "bigint" and kind.unsigned and modes.bigint == "precise":
                return _decimal(20, 0)
            return {"type": _INTEGERS[kind.name, kind.unsigned]}
        case Kind.FLOAT:
            return {"type": "float" if is_single(kind) else "double"}
        case Kind.DOUBLE:
            return {"type": "double"}
        case Kind.DECIMAL:
            if modes.decimal == "precise":
                return _decimal(kind.size or 10, kind.fraction_digits)
            return {"type": modes.decimal}
        case Kind.BIT:
            size = bit_size(kind)
            if size == 1:
                return {"type": "boolean"}
            return _named("bytes", "io.debezium.data.Bits", length=str(size))
        case Kind.YEAR:
            return _named("int32", "io.debezium.time.Year")
        case Kind.DATE:
            return _named(*_DATES.get(modes.time, ("int32", "io.debezium.time.Date")))
        case Kind.DATETIME:
            short = modes.time.startswith("adaptive") and kind.fraction_digits <= 3
            usual = "io.debezium.time." + ("Timestamp" if short else "MicroTimestamp")
            return _named(*_MOMENTS.get(modes.time, ("int64", usual)))
        case Kind.TIMESTAMP:
            return _named("string", "io.debezium.time.ZonedTimestamp")
        case Kind.TIME:
            return _named(*_CLOCKS.get(modes.time, ("int64", "io.debezium.time.MicroTime")))
        case Kind.ENUM | Kind.SET:
            name = "io.debezium.data." + ("Enum" if kind.kind is Kind.ENUM else "EnumSet")
            return _named("string", name, allowed=",".join(escaped_elements(kind)))
        case Kind.JSON:
            return _named("string", "io.debezium.data.Json")
        case Kind.VECTOR:
            return {**_named("array", VECTOR), "items": plain("float")}
        case Kind.BINARY:
            if kind.name == "geometry":
                fields = [plain("bytes", "wkb"), plain("int32", "srid", optional=True)]
                return {**_named("struct", GEOMETRY), "fields": fields, "doc": "Geometry"}
            return {"type": "bytes" if modes.binary == "bytes" else "string"}
        case _:
            return {"type": "string"}


def source_type(kind: SqlType) -> str:
    """Return a type's own name, e.g. `BIGINT UNSIGNED`, which TiDB's extension adds."""
    return kind.name.upper() + (" UNSIGNED" if kind.unsigned else "")


_ORDER: Final = (
    *("type", "fields", "items", "optional", "name", "version", "doc", "parameters", "default"),
    *("field", "tidb_type"),
)


def field_schema(column: Column, modes: ValueModes) -> Schema:
    """Return the schema of a column's field, with its default."""
    schema = {**column_type(column.type, modes), "optional": column.nullable, "field": column.name}
    default = default_text(column, modes)
    if default is not None:
        schema["default"] = json.loads(default)
    if modes.source_types:
        schema["tidb_type"] = source_type(column.type)
    return {key: schema[key] for key in _ORDER if key in schema}


def null_text(column: Column, modes: ValueModes) -> bytes:
    """Return what stands for NULL, and for a date that no calendar has.

    That is the column's default, where it has one; else null, or 1970 where NULL is not allowed.
    """
    default = default_text(column, modes) if modes.null_default or not column.nullable else None
    if default is not None:
        return default
    if column.nullable or column.type.kind not in _TIMES:
        return b"null"
    return _FALLBACKS.get(column_type(column.type, modes).get("name", ""), b"0")


@lru_cache(maxsize=4096)
def default_text(column: Column, modes: ValueModes) -> bytes | None:
    """Return a column's default as a value is written; None: there is none."""
    kind, value = column.type, column.default
    if value is None or column.generated:
        return None
    if kind.kind in _TIMES and str(value).startswith(_NOW):
        return _now_text(column, modes)
    if kind.name == "bigint" and kind.unsigned and modes.bigint == "long":
        return b"%d" % min(int(value), (1 << 63) - 1)  # not wrapped, as values are
    canonical = _canonical(kind, value)
    if canonical is None:
        return None
    form = shown(column, pa.array([canonical], kind.arrow), modes)
    if form.valid.null_count:
        # A date that no calendar has: 1970 where the column cannot be NULL.
        name = column_type(kind, modes).get("name", "")
        return None if column.nullable else _FALLBACKS.get(name, b"0")
    layout = Layout()
    slot = layout.slot(form.values, form.mode, form.wrap, valid=form.valid)
    layout.program([Cell(slot)])
    made: bytes = layout.run(np.zeros(1, np.int8))[0].as_py()
    return made


def _now_text(column: Column, modes: ValueModes) -> bytes | None:
    if column.type.kind is Kind.TIMESTAMP:
        return None if column.nullable else b'"1970-01-01T00:00:00Z"'
    return _FALLBACKS.get(column_type(column.type, modes).get("name", ""), b"0")


def _canonical(kind: SqlType, value: Any) -> Any:
    """Return a default as chunks hold values; None: it cannot be told."""
    match kind.kind:
        case Kind.INTEGER | Kind.YEAR | Kind.BIT:
            return int(value)
        case Kind.FLOAT | Kind.DOUBLE:
            return float(value)
        case Kind.ENUM:
            name = str(value)
            return kind.elements.index(name) + 1 if name in kind.elements else None
        case Kind.SET:
            names = [n for n in str(value).split(",") if n]
            known = all(n in kind.elements for n in names)
            return sum(1 << kind.elements.index(n) for n in names) if known else None
        case Kind.BINARY:
            content = str(value).encode("utf-8", "surrogateescape")
            return content.ljust(kind.size or 0, b"\0") if kind.name == "binary" else content
        case Kind.DECIMAL:
            whole, _, digits = str(value).partition(".")
            return f"{whole}.{digits:0<{kind.scale}}" if kind.scale else whole
        case _:
            return str(value)


# --- whole messages -------------------------------------------------------------------------------

_SNAPSHOT: Final = (
    "true,first,first_in_data_collection,last_in_data_collection,last,false,incremental"
)


def struct(fields: list[Schema], name: str, version: int = 0, **more: Any) -> Schema:
    """Return the schema of an object."""
    schema: Schema = {"type": "struct", "fields": fields, "optional": more.pop("optional", False)}
    return {**schema, "name": name, **({"version": version} if version else {}), **more}


def source_schema(extension: bool) -> Schema:
    """Return the schema of `source`."""
    snapshot = {
        "type": "string",
        "optional": True,
        "name": "io.debezium.data.Enum",
        "version": 1,
        "parameters": {"allowed": _SNAPSHOT},
        "default": "false",
        "field": "snapshot",
    }
    fields = [
        plain("string", "version"),
        plain("string", "connector"),
        plain("string", "name"),
        plain("int64", "ts_ms"),
        snapshot,
        plain("string", "db"),
        plain("string", "sequence", optional=True),
        plain("int64", "ts_us", optional=True),
        plain("int64", "ts_ns", optional=True),
        plain("string", "table", optional=True),
        plain("int64", "server_id"),
        plain("string", "gtid", optional=True),
        plain("string", "file"),
        plain("int64", "pos"),
        plain("int32", "row"),
        plain("int64", "thread", optional=True),
        plain("string", "query", optional=True),
    ]
    if extension:
        fields += [plain("int64", "commit_ts"), plain("string", "cluster_id")]
    return struct(fields, "io.debezium.connector.mysql.Source", 1, field="source")


_TRANSACTION: Final = struct(
    [
        plain("string", "id"),
        plain("int64", "total_order"),
        plain("int64", "data_collection_order"),
    ],
    "event.block",
    1,
    optional=True,
    field="transaction",
)
_STAMPS: Final = [plain("int64", f"ts_{unit}", optional=True) for unit in ("ms", "us", "ns")]


def key_columns(table: TableSchema) -> list[Column]:
    """Return the columns of a message's key, in the index's order.

    None where one of them is virtual, and so not written: the others would name several rows, and a
    tombstone would take all of them away.
    """
    index = table.handle_index
    columns = [table.column(name) for name in index.columns] if index else []
    return columns if all(c.generated != "virtual" for c in columns) else []


def key_schema(table: TableSchema, name: str, modes: ValueModes) -> Schema:
    """Return the schema of a table's keys."""
    return struct([field_schema(c, modes) for c in key_columns(table)], f"{name}.Key")


def envelope_schema(columns: list[Column], name: str, modes: ValueModes, extension: bool) -> Schema:
    """Return the schema of a table's values."""
    fields = [field_schema(c, modes) for c in columns]
    images = [
        struct(fields, f"{name}.Value", optional=True, field=which) for which in ("before", "after")
    ]
    rest = [source_schema(extension), _TRANSACTION, plain("string", "op"), *_STAMPS]
    return struct([*images, *rest], f"{name}.Envelope", 2)


def watermark_schema(name: str, extension: bool) -> Schema:
    """Return the schema of a watermark's value."""
    fields = [source_schema(extension), plain("string", "op"), plain("int64", "ts_ms", True)]
    return struct([*fields, _TRANSACTION], f"{name}.watermark.Envelope", 1)
